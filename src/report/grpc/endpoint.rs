//! The address of a receiver, and the files of certificates and keys, which the agent reads for each connection.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use http::Uri;
use http::uri::Authority;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// Room for a socket's path in `sockaddr_un` (unix(7)), without the final NUL.
const MAX_SOCKET_PATH: usize = 107;
const NO_ENDPOINT: &str = "not https://host:port, http://host:port or unix:///path";

/// The address of a receiver: `https://host:port`, `http://host:port` in the clear, or `unix:///path`, a socket on this node.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub struct Endpoint(String);

impl Endpoint {
    pub(super) fn is_tls(&self) -> bool {
        self.0.starts_with("https://")
    }

    /// Whether others than the processes on this node can read reports and forge acknowledgements.
    pub fn is_exposed(&self) -> bool {
        let plain = self.0.strip_prefix("http://").and_then(|host| host.parse().ok());
        plain.is_some_and(|host: Authority| !is_loopback(host.host()))
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

impl FromStr for Endpoint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix://") {
            let usable = Path::new(path).is_absolute() && path.len() <= MAX_SOCKET_PATH && !path.contains('\0');
            return usable.then(|| Self(text.to_owned())).ok_or(NO_ENDPOINT);
        }
        let uri: Uri = text.parse().map_err(|_| NO_ENDPOINT)?;
        let authority = uri.authority().ok_or(NO_ENDPOINT)?;
        let has_port = !authority.host().is_empty() && authority.port_u16().is_some();
        let has_more = authority.as_str().contains('@') || uri.path().len() > 1 || uri.query().is_some();
        match uri.scheme_str() {
            Some("https" | "http") if has_port && !has_more => {
                Ok(Self(uri.to_string().trim_end_matches('/').to_owned()))
            }
            Some(_) | None => Err(NO_ENDPOINT),
        }
    }
}

/// How the agent checks the receiver's certificate, and which one it shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities that may sign the receiver's certificate, in PEM; the system's if absent.
    pub ca: Option<PathBuf>,
    /// The agent's own certificate and its key, in PEM, for receivers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the receiver's certificate must have, if not the one in the address.
    pub server_name: Option<String>,
}

impl TlsFiles {
    /// Reads the files.
    pub(super) async fn read(&self) -> Result<ClientTlsConfig> {
        let mut tls = ClientTlsConfig::new();
        tls = match &self.ca {
            Some(file) => tls.ca_certificate(Certificate::from_pem(read(file, "CERTIFICATE").await?)),
            None => tls.with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            let certificate = read(certificate, "CERTIFICATE").await?;
            tls = tls.identity(Identity::from_pem(certificate, read(key, "PRIVATE KEY").await?));
        }
        if let Some(name) = &self.server_name {
            tls = tls.domain_name(name);
        }
        Ok(tls)
    }
}

async fn read(file: &Path, what: &str) -> Result<Vec<u8>> {
    let read = tokio::fs::read(file).await;
    let content = read.with_context(|| file.display().to_string())?;
    // Without a block, rustls would complain about the peer's certificate instead of about this file.
    let end = format!("{what}-----");
    let text = String::from_utf8_lossy(&content);
    let mut lines = text.lines().map(str::trim_end);
    if !lines.any(|line| line.starts_with("-----BEGIN ") && line.ends_with(&end)) {
        bail!("{}: it holds no PEM block \"{what}\"", file.display());
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_printed_as_written() {
        for text in [
            "https://recommender.kube-system:8443",
            "http://127.0.0.1:9000",
            "https://[2001:db8::1]:443",
            "unix:///run/recommender.sock",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "recommender:8443",
            "https://recommender",
            "https://user:secret@recommender:8443",
            "https://recommender:8443/path",
            "ftp://recommender:21",
            "unix://relative",
            "https://:8443",
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(NO_ENDPOINT), "{text}");
        }
    }

    #[test]
    fn only_the_network_needs_tls() {
        let exposed = |text: &str| text.parse::<Endpoint>().unwrap().is_exposed();
        assert!(exposed("http://10.0.0.1:80") && exposed("http://localhost.evil.example:80"));
        assert!(!exposed("http://localhost:80") && !exposed("http://[::1]:80") && !exposed("http://127.9.9.9:80"));
        assert!(!exposed("https://10.0.0.1:80") && !exposed("unix:///s"));
    }
}
