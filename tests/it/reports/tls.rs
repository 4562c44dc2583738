//! Certificates: valid, wrong, expired, missing, replaced.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};
use vscaled::report::grpc::{GrpcOptions, TlsFiles};

use super::receiver::{Manner, Receiver};
use super::station::{Station, ids, options};

/// An authority, and files with its certificates.
pub(super) struct Authority {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub(super) struct Signed {
    certificate: String,
    key: String,
}

impl Authority {
    pub(super) fn new() -> Self {
        Self::named("ours")
    }

    fn named(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self {
            directory: TempDir::new().unwrap(),
            issuer,
        }
    }

    pub(super) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a name, valid or expired.
    pub(super) fn sign(&self, name: &str, expired: bool) -> Signed {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        if expired {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Signed {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    pub(super) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Files with a certificate and its key.
    pub(super) fn files(&self, signed: &Signed) -> (PathBuf, PathBuf) {
        (
            self.file("tls.crt", &signed.certificate),
            self.file("tls.key", &signed.key),
        )
    }

    /// Trusts this authority, and presents a certificate if there is one.
    pub(super) fn believed(&self, identity: Option<(PathBuf, PathBuf)>) -> TlsFiles {
        TlsFiles {
            ca: Some(self.file("ca.crt", &self.pem())),
            identity,
            server_name: None,
        }
    }
}

pub(super) fn server(signed: &Signed) -> ServerTlsConfig {
    ServerTlsConfig::new().identity(Identity::from_pem(&signed.certificate, &signed.key))
}

pub(super) async fn receiver(tls: ServerTlsConfig) -> Receiver {
    Receiver::at("127.0.0.1:0", Manner::BySequence, Some(tls)).await
}

fn to(receiver: &Receiver, tls: TlsFiles) -> GrpcOptions {
    GrpcOptions {
        tls,
        ..options(&receiver.address)
    }
}

async fn arrives(receiver: &Receiver, tls: TlsFiles) {
    let directory = tempfile::tempdir().unwrap();
    let station = Station::start(&directory, to(receiver, tls));
    station.kill(1..=10).await;
    station.settled().await;
    assert_eq!(receiver.ids(), ids(1..=10));
    station.finish().await;
}

/// Waits for the reason why no report arrives, and checks that none is lost.
async fn refused(receiver: &Receiver, tls: TlsFiles) -> String {
    let directory = tempfile::tempdir().unwrap();
    let station = Station::start(&directory, to(receiver, tls));
    station.kill(1..=10).await;
    let error = station.failure().await;
    assert_eq!(station.handle.status().borrow().reports, 10);
    assert_eq!(receiver.ids(), [""; 0]);
    station.finish().await;
    assert!(error.chars().count() < 500, "{error}");
    error
}

#[tokio::test]
async fn reports_go_to_certified_receivers() {
    let authority = Authority::new();
    let receiver = receiver(server(&authority.sign("127.0.0.1", false))).await;
    arrives(&receiver, authority.believed(None)).await;
}

#[tokio::test]
async fn a_receiver_may_ask_for_a_certificate() {
    let authority = Authority::new();
    let mutual = server(&authority.sign("127.0.0.1", false)).client_ca_root(Certificate::from_pem(authority.pem()));
    let receiver = receiver(mutual).await;
    let identity = authority.files(&authority.sign("node-1", false));
    arrives(&receiver, authority.believed(Some(identity))).await;
}

/// Whether the error contains the word, or is a broken connection: a receiver checks the agent's certificate after
/// the agent considers the connection established. When the receiver disconnects, the agent's write may fail before
/// the agent reads the reason.
fn says(error: &str, word: &str) -> bool {
    let error = error.to_lowercase();
    [word, "broken pipe", "connection reset"]
        .iter()
        .any(|honest| error.contains(honest))
}

#[tokio::test]
async fn an_agent_without_certificate_is_reported() {
    let authority = Authority::new();
    let mutual = server(&authority.sign("127.0.0.1", false)).client_ca_root(Certificate::from_pem(authority.pem()));
    let receiver = receiver(mutual).await;
    let missing = refused(&receiver, authority.believed(None)).await;
    assert!(says(&missing, "certificate"), "{missing}");
    let identity = authority.files(&authority.sign("node-1", true));
    let expired = refused(&receiver, authority.believed(Some(identity))).await;
    assert!(says(&expired, "expired"), "{expired}");
}

#[tokio::test]
async fn an_expired_receiver_gets_nothing() {
    let authority = Authority::new();
    let receiver = receiver(server(&authority.sign("127.0.0.1", true))).await;
    let error = refused(&receiver, authority.believed(None)).await;
    assert!(error.contains("expired"), "{error}");
}

#[tokio::test]
async fn a_receiver_of_another_authority_gets_nothing() {
    let (authority, other) = (Authority::new(), Authority::named("another"));
    let of_other = receiver(server(&other.sign("127.0.0.1", false))).await;
    let error = refused(&of_other, authority.believed(None)).await;
    assert!(error.contains("UnknownIssuer"), "{error}");
    let error = refused(&of_other, TlsFiles::default()).await;
    assert!(
        error.contains("UnknownIssuer"),
        "nor do the system's authorities know it: {error}"
    );
    let of_other_name = receiver(server(&authority.sign("recommender.example", false))).await;
    let error = refused(&of_other_name, authority.believed(None)).await;
    assert!(error.contains("not valid for name"), "{error}");
}

#[tokio::test]
async fn a_receiver_may_have_a_configured_name() {
    let authority = Authority::new();
    let receiver = receiver(server(&authority.sign("recommender.example", false))).await;
    let tls = TlsFiles {
        server_name: Some("recommender.example".to_owned()),
        ..authority.believed(None)
    };
    arrives(&receiver, tls).await;
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new();
    let receiver = receiver(server(&authority.sign("127.0.0.1", false))).await;
    let no_certificate = TlsFiles {
        ca: Some(authority.file("ca.crt", "nonsense")),
        ..TlsFiles::default()
    };
    let error = refused(&receiver, no_certificate).await;
    assert!(
        error.contains("ca.crt: it holds no PEM block \"CERTIFICATE\""),
        "{error}"
    );
    let missing = TlsFiles {
        ca: Some("/nonexistent/ca.crt".into()),
        ..TlsFiles::default()
    };
    let error = refused(&receiver, missing).await;
    assert!(error.starts_with("/nonexistent/ca.crt: No such file"), "{error}");
    let signed = authority.sign("node-1", false);
    let swapped = (
        authority.file("swapped.crt", &signed.key),
        authority.file("swapped.key", &signed.certificate),
    );
    let error = refused(&receiver, authority.believed(Some(swapped))).await;
    assert!(error.contains("swapped.crt"), "{error}");
}

#[tokio::test]
async fn replaced_certificates_are_used() {
    let (authority, old) = (Authority::new(), Authority::named("another"));
    let receiver = receiver(server(&authority.sign("127.0.0.1", false))).await;
    let directory = tempfile::tempdir().unwrap();
    let file = authority.file("ca.crt", &old.pem());
    let tls = TlsFiles {
        ca: Some(file.clone()),
        ..TlsFiles::default()
    };
    let station = Station::start(&directory, to(&receiver, tls));
    station.kill(1..=10).await;
    assert!(station.failure().await.contains("UnknownIssuer"));
    fs::write(file, authority.pem()).unwrap();
    station.settled().await;
    assert_eq!(receiver.ids(), ids(1..=10));
    station.finish().await;
}
