//! etcd and kube-apiserver with token users, RBAC, and the CustomResourceDefinition of VPAs, as processes.

use std::fs::{self, File};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use serde_json::json;
use tempfile::TempDir;

use super::api::{Api, User};
use super::{Programs, Release, free_port};
use crate::support::http::post;
use crate::support::{pause_after, scratch};

/// A guest of the lab on a busy machine takes minutes.
const PATIENCE: Duration = Duration::from_secs(400);
/// How often an API server that ends before it is ready is started.
const STARTS: usize = 3;

const VPA_CRD: &str = include_str!("../../../data/cluster/vpa-crd.yaml");

/// A running API server. Dropping the value ends it and etcd. If a test fails, the end of the log is printed.
#[derive(Debug)]
pub(crate) struct ApiServer {
    server: Option<Child>,
    etcd: Child,
    etcd_port: u16,
    api: Api,
    authority: CertifiedIssuer<'static, KeyPair>,
    /// Whether pods get the tokens of their service accounts, which must exist then.
    mounts_tokens: bool,
    /// Removes the files at the end.
    _directory: TempDir,
}

impl Deref for ApiServer {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl ApiServer {
    /// Starts an API server that has no objects besides the VerticalPodAutoscaler kind, in about five seconds.
    /// Without the program, reports `test` as skipped and returns `None`.
    pub(crate) fn start(release: Release, test: &str) -> Option<Self> {
        Self::start_with(release, false, test)
    }

    /// One of today, like [`Self::start`], with the tokens of service accounts in pods. Pods with the node's network
    /// reach it as they do in any cluster.
    pub(crate) fn start_for_pods(test: &str) -> Option<Self> {
        let cluster = Self::start_with(Release::Today, true, test)?;
        // Without a proxy, the port has to be the API server's own, as the address is.
        let path = "/api/v1/namespaces/default/services/kubernetes";
        cluster.wait_for(path, || cluster.try_get(path).is_ok());
        let mut service = cluster.get(path);
        service["spec"]["ports"][0]["port"] = json!(cluster.port());
        cluster.send(Method::PUT, path, &service);
        Some(cluster)
    }

    fn start_with(release: Release, mounts_tokens: bool, test: &str) -> Option<Self> {
        let programs = Programs::of(release, test)?;
        let directory = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(scratch())
            .unwrap();
        let etcd_port = free_port();
        let mut cluster = Self {
            server: None,
            etcd: etcd(&programs.etcd(), directory.path(), etcd_port),
            etcd_port,
            api: Api::of(programs, release, free_port(), directory.path()),
            authority: authority("the API server's authority"),
            mounts_tokens,
            _directory: directory,
        };
        fs::write(cluster.file("tokens.csv"), User::ALL.map(User::line).concat()).unwrap();
        let key = KeyPair::generate().unwrap();
        fs::write(cluster.file("service-account.key"), key.serialize_pem()).unwrap();
        fs::write(cluster.file("service-account.pub"), key.public_key_pem()).unwrap();
        cluster.make_certificates();
        cluster.launch();
        cluster.install_crd();
        Some(cluster)
    }

    /// Starts the API server, also after [`Self::stop`], and waits until it is ready. One that ends is started again, as a kubelet does:
    /// where processors are scarce, its own first checks time out.
    pub(crate) fn launch(&mut self) {
        for _ in 1..STARTS {
            match self.try_launch(PATIENCE) {
                Ok(()) => return,
                Err(ended) => eprintln!("the API server is started again: {ended}"),
            }
        }
        if let Err(ended) = self.try_launch(PATIENCE) {
            panic!("{ended}\n{}", self.log());
        }
    }

    /// Like [`Self::launch`]. Returns the reason when the API server ends before it is ready, or is not ready in
    /// time.
    pub(crate) fn try_launch(&mut self, patience: Duration) -> Result<(), String> {
        assert!(self.server.is_none(), "the API server runs already");
        let mut command = Command::new(self.programs().kubernetes(self.release(), "kube-apiserver"));
        command
            .arg(format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port))
            .args(["--bind-address=127.0.0.1", "--endpoint-reconciler-type=none"])
            // Without this flag the API server searches for its address, which a machine with loopback only does not
            // have.
            .arg("--advertise-address=127.0.0.1")
            .arg(format!("--secure-port={}", self.port()))
            .arg(format!("--tls-cert-file={}", self.file("apiserver.crt").display()))
            .arg(format!(
                "--tls-private-key-file={}",
                self.file("apiserver.key").display()
            ))
            .arg(format!("--token-auth-file={}", self.file("tokens.csv").display()))
            .arg(format!("--client-ca-file={}", self.file("agent.crt").display()))
            .args(["--authorization-mode=Node,RBAC"])
            .args((!self.mounts_tokens).then_some("--disable-admission-plugins=ServiceAccount"))
            .args([
                // The first address is that of the service `kubernetes`.
                "--service-cluster-ip-range=127.0.0.0/24",
                "--service-account-issuer=https://kubernetes.default.svc",
            ])
            .args(["--allow-privileged", "--shutdown-delay-duration=0"])
            // The nodes' names are in no DNS.
            .arg("--kubelet-preferred-address-types=InternalIP")
            // For API servers behind this one, such as metrics-server.
            .arg("--requestheader-username-headers=X-Remote-User")
            .arg("--requestheader-group-headers=X-Remote-Group")
            .arg("--requestheader-extra-headers-prefix=X-Remote-Extra-")
            .arg(format!(
                "--requestheader-client-ca-file={}",
                self.file("proxy.crt").display()
            ))
            .arg(format!("--proxy-client-cert-file={}", self.file("proxy.crt").display()))
            .arg(format!("--proxy-client-key-file={}", self.file("proxy.key").display()));
        for (flag, file) in [("certificate", "crt"), ("key", "key")] {
            let path = self.file(&format!("kubelet-client.{file}"));
            command.arg(format!("--kubelet-client-{flag}={}", path.display()));
        }
        for (flag, file) in [("signing-key", "key"), ("key", "pub")] {
            let path = self.file(&format!("service-account.{file}"));
            command.arg(format!("--service-account-{flag}-file={}", path.display()));
        }
        self.server = Some(logged(command, &self.file("kube-apiserver.log")));
        let started = Instant::now();
        loop {
            let looked = Instant::now();
            if self.is_ready() {
                return Ok(());
            }
            let ended = self.server.as_mut().and_then(|server| server.try_wait().unwrap());
            if let Some(ended) = ended {
                self.server = None;
                return Err(format!(
                    "{ended} after {:.0?}: {}",
                    started.elapsed(),
                    self.last_words()
                ));
            }
            if started.elapsed() > patience {
                self.stop();
                return Err(format!("not ready after {patience:?}"));
            }
            std::thread::sleep(pause_after(looked));
        }
    }

    /// Waits until a condition holds.
    pub(crate) fn wait_for(&self, what: &str, holds: impl Fn() -> bool) {
        let started = Instant::now();
        loop {
            let looked = Instant::now();
            if holds() {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "no {what}\n{}", self.log());
            std::thread::sleep(pause_after(looked));
        }
    }

    /// Whether the API server was started and not stopped.
    pub(crate) const fn is_launched(&self) -> bool {
        self.server.is_some()
    }

    /// The reason in the log why the API server ended.
    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.file("kube-apiserver.log")).unwrap_or_default();
        let fatal = log
            .lines()
            .rev()
            .find(|line| line.starts_with('F') || line.starts_with("panic"));
        fatal.unwrap_or("its log does not say why").to_owned()
    }

    /// Creates the certificates for clients and for kubelets, each with its authority. Otherwise the API server
    /// generates an RSA key for each, which takes a second.
    fn make_certificates(&self) {
        self.renew_certificate();
        self.renew_agent();
        for (file, name, issuer) in [
            ("kubelet-client", "kube-apiserver", "the authority for kubelets"),
            ("proxy", "front-proxy", "the authority for other API servers"),
        ] {
            self.write_certificate(file, &client("system:masters", name), &authority(issuer));
        }
    }

    /// Makes another certificate for the agent, of another authority. The API server reads the authority's file again by
    /// itself, and accepts no earlier certificate of the agent then.
    pub(crate) fn renew_agent(&self) {
        let agent = client("system:serviceaccounts", "system:serviceaccount:vscaled:vscaled");
        self.write_certificate("agent", &agent, &authority("the authority for agents"));
    }

    /// A kubeconfig with the agent's certificate and the API server's authority, all in files beside it.
    pub(crate) fn agents_kubeconfig(&self) -> PathBuf {
        self.write_authority();
        let path = self.file("agent.kubeconfig");
        let text = format!(
            "apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
clusters: [{{name: test, cluster: {{server: 'https://127.0.0.1:{}', certificate-authority: authority.crt}}}}]
users: [{{name: test, user: {{client-certificate: agent.crt, client-key: agent.key}}}}]
",
            self.port()
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes the authority into the file that [`Self::agents_kubeconfig`] names.
    pub(crate) fn write_authority(&self) {
        fs::write(self.file("authority.crt"), self.authority()).unwrap();
    }

    fn write_certificate(&self, name: &str, params: &CertificateParams, issuer: &CertifiedIssuer<'_, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, issuer).unwrap();
        fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
        let chain = certificate.pem() + &issuer.pem();
        fs::write(self.file(&format!("{name}.crt")), chain).unwrap();
    }

    /// The client certificate that the API server shows to kubelets, and its authority.
    pub(crate) fn kubelet_client(&self) -> PathBuf {
        self.file("kubelet-client.crt")
    }

    /// Memory use in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let server = self.server.as_ref().expect("the API server runs");
        let process = procfs::process::Process::new(server.id().cast_signed()).unwrap();
        process.status().unwrap().vmrss.unwrap_or_default() * 1024
    }

    /// Kills the API server, as a crash would. etcd keeps all data.
    pub(crate) fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    /// Makes etcd forget every version of every object but the latest.
    pub(crate) fn compact(&self) {
        let etcd = ([127, 0, 0, 1], self.etcd_port).into();
        let ask = |path: &str, request: &str| {
            let (code, answer) = post(etcd, path, request).expect("etcd answers");
            assert_eq!(code, 200, "{path}: {answer}");
            serde_json::from_str::<serde_json::Value>(&answer).unwrap()
        };
        let status = ask("/v3/maintenance/status", "{}");
        let revision = &status["header"]["revision"];
        ask(
            "/v3/kv/compaction",
            &json!({"revision": revision, "physical": true}).to_string(),
        );
    }

    /// Gives the API server another certificate of the same authority, from its next launch on.
    pub(crate) fn renew_certificate(&self) {
        let names = ["127.0.0.1", "kubernetes", "kubernetes.default.svc"].map(str::to_owned);
        let server = CertificateParams::new(names).unwrap();
        self.write_certificate("apiserver", &server, &self.authority);
    }

    /// Gives the API server a certificate of another authority, from its next launch on.
    pub(crate) fn renew_authority(&mut self) {
        self.authority = authority("the API server's next authority");
        self.renew_certificate();
    }

    /// The authority of the API server's certificate (PEM).
    pub(crate) fn authority(&self) -> String {
        self.authority.pem()
    }

    /// Stops the API server's processes (SIGSTOP), or resumes them: connections stay open without answers.
    pub(crate) fn hang(&self, hang: bool) {
        let server = self.server.as_ref().expect("the API server runs");
        let signal = if hang { Signal::SIGSTOP } else { Signal::SIGCONT };
        kill(Pid::from_raw(server.id().cast_signed()), signal).unwrap();
    }

    /// Installs the CustomResourceDefinitions of VPA and waits until VPAs are served.
    fn install_crd(&self) {
        for definition in serde_saphyr::from_multiple::<serde_json::Value>(VPA_CRD).unwrap() {
            self.apply(&definition);
        }
        let vpas = "/apis/autoscaling.k8s.io/v1/verticalpodautoscalers";
        let is_listed = || self.try_get("/apis").unwrap().contains("autoscaling.k8s.io");
        self.wait_for("VPAs", || is_listed() && self.try_get(vpas).is_ok());
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        for process in self.server.iter_mut().chain([&mut self.etcd]) {
            process
                .kill()
                .and_then(|()| process.wait())
                .map_or_else(|error| eprintln!("{process:?}: {error}"), drop);
        }
        if std::thread::panicking() {
            eprintln!("the API server's log:\n{}", self.log());
        }
    }
}

/// The certificate of a client, which is a member of a group.
fn client(group: &str, name: &str) -> CertificateParams {
    let mut client = CertificateParams::default();
    client.distinguished_name.push(DnType::OrganizationName, group);
    client.distinguished_name.push(DnType::CommonName, name);
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    client
}

/// An authority that signs certificates.
fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap()
}

/// Starts etcd. Its data need not survive a crash of the machine.
fn etcd(program: &Path, directory: &Path, port: u16) -> Child {
    let clients = format!("http://127.0.0.1:{port}");
    let peers = format!("http://127.0.0.1:{}", free_port());
    let mut command = Command::new(program);
    command
        .arg(format!("--data-dir={}", directory.join("etcd").display()))
        .args([
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
        ])
        .args([
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
        ])
        .arg(format!("--initial-cluster=default={peers}"))
        .args(["--unsafe-no-fsync", "--log-outputs=stderr", "--log-level=warn"]);
    logged(command, &directory.join("etcd.log"))
}

/// Starts a program with a log file.
fn logged(mut command: Command, log: &Path) -> Child {
    let log = File::options().create(true).append(true).open(log).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
