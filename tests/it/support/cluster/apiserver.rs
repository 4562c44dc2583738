//! etcd and kube-apiserver with token users, RBAC, and the CustomResourceDefinition of VPAs.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{admin, free_port, parts};
use crate::support::scratch;

const PATIENCE: Duration = Duration::from_secs(120);

const VPA_CRD: &str = include_str!("../../../data/cluster/vpa-crd.yaml");

/// A user of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Has every right.
    Admin,
    /// The agent's service account as deployed, with the rights of its RBAC rules only.
    Agent,
    Kubelet,
    /// A person on call, without rights until a test grants some.
    OnCall,
}

impl User {
    const ALL: [Self; 4] = [Self::Admin, Self::Agent, Self::Kubelet, Self::OnCall];

    /// The tokens are no secrets: the API server listens on loopback and lives for one test.
    const fn token(self) -> &'static str {
        match self {
            Self::Admin => "token-of-admin",
            Self::Agent => "token-of-agent",
            Self::Kubelet => "token-of-kubelet",
            Self::OnCall => "token-of-on-call",
        }
    }

    /// A line of kube-apiserver's token file: token, name, UID, groups.
    const fn line(self) -> &'static str {
        match self {
            Self::Admin => "token-of-admin,admin,1,system:masters\n",
            Self::Agent => {
                "token-of-agent,system:serviceaccount:vscaled:vscaled,2,\"system:serviceaccounts,system:serviceaccounts:vscaled\"\n"
            }
            Self::Kubelet => "token-of-kubelet,system:node:node-1,3,system:nodes\n",
            Self::OnCall => "token-of-on-call,on-call,4\n",
        }
    }
}

/// A running API server. Dropping the value ends it and etcd. If a test fails, the end of the log is printed.
#[derive(Debug)]
pub(crate) struct ApiServer {
    server: Option<Child>,
    etcd: Child,
    parts: PathBuf,
    port: u16,
    etcd_port: u16,
    directory: TempDir,
}

impl ApiServer {
    /// Starts an API server that has no objects besides the VerticalPodAutoscaler kind, in about five seconds.
    /// Without the program, reports `test` as skipped and returns `None`.
    pub(crate) fn start(test: &str) -> Option<Self> {
        let parts = parts(test)?;
        let directory = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(scratch())
            .unwrap();
        let etcd_port = free_port();
        let mut cluster = Self {
            server: None,
            etcd: etcd(&parts, directory.path(), etcd_port),
            parts,
            port: free_port(),
            etcd_port,
            directory,
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

    /// Starts the API server, also after [`Self::stop`], and waits until it is ready.
    pub(crate) fn launch(&mut self) {
        if let Err(ended) = self.try_launch(PATIENCE) {
            panic!("{ended}\n{}", self.log());
        }
    }

    /// Like [`Self::launch`]. Returns the reason when the API server ends before it is ready, or is not ready in
    /// time.
    pub(crate) fn try_launch(&mut self, patience: Duration) -> Result<(), String> {
        assert!(self.server.is_none(), "the API server runs already");
        let mut command = Command::new(self.parts.join("kube-apiserver"));
        command
            .arg(format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port))
            .args(["--bind-address=127.0.0.1", "--endpoint-reconciler-type=none"])
            // Without this flag the API server searches for its address, which a machine with loopback only does not
            // have.
            .arg("--advertise-address=127.0.0.1")
            .arg(format!("--secure-port={}", self.port))
            .arg(format!("--tls-cert-file={}", self.file("apiserver.crt").display()))
            .arg(format!(
                "--tls-private-key-file={}",
                self.file("apiserver.key").display()
            ))
            .arg(format!("--token-auth-file={}", self.file("tokens.csv").display()))
            .args([
                "--authorization-mode=Node,RBAC",
                "--disable-admission-plugins=ServiceAccount",
            ])
            .args([
                "--service-cluster-ip-range=10.96.0.0/24",
                "--service-account-issuer=https://kubernetes.default.svc",
            ])
            .args(["--allow-privileged", "--shutdown-delay-duration=0"])
            // The nodes' names are in no DNS.
            .arg("--kubelet-preferred-address-types=InternalIP");
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
        while !self.is_ready() {
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
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
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
        let authority = |name: &str| {
            let mut authority = CertificateParams::default();
            authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            authority.distinguished_name.push(DnType::CommonName, name);
            CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap()
        };
        let write = |name: &str, params: CertificateParams, issuer: &CertifiedIssuer<'_, KeyPair>| {
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, issuer).unwrap();
            fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
            let chain = certificate.pem() + &issuer.pem();
            fs::write(self.file(&format!("{name}.crt")), chain).unwrap();
        };
        let names = ["127.0.0.1", "10.96.0.1", "kubernetes", "kubernetes.default.svc"].map(str::to_owned);
        let server = CertificateParams::new(names).unwrap();
        write("apiserver", server, &authority("the API server's authority"));
        let mut client = CertificateParams::default();
        client
            .distinguished_name
            .push(DnType::OrganizationName, "system:masters");
        client.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        write("kubelet-client", client, &authority("the authority for kubelets"));
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

    /// Stops the API server's processes (SIGSTOP), or resumes them: connections stay open without answers.
    pub(crate) fn hang(&self, hang: bool) {
        let server = self.server.as_ref().expect("the API server runs");
        let signal = if hang { Signal::SIGSTOP } else { Signal::SIGCONT };
        kill(Pid::from_raw(server.id().cast_signed()), signal).unwrap();
    }

    pub(crate) fn kubeconfig(&self, user: User) -> PathBuf {
        self.write_kubeconfig(&format!("{user:?}"), user.token())
    }

    fn write_kubeconfig(&self, name: &str, token: &str) -> PathBuf {
        let path = self.file(&format!("{name}.kubeconfig"));
        let text = format!(
            "apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
clusters: [{{name: test, cluster: {{server: 'https://127.0.0.1:{}', certificate-authority: '{}'}}}}]
users: [{{name: test, user: {{token: {token}}}}}]
",
            self.port,
            self.file("apiserver.crt").display(),
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// A kubeconfig with a token of the agent's own service account, which must exist. The API server issues the
    /// token, as for a pod.
    pub(crate) fn deployed_kubeconfig(&self) -> PathBuf {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let path = "/api/v1/namespaces/vscaled/serviceaccounts/vscaled/token";
        let answer = self.send(Method::POST, path, &request);
        self.write_kubeconfig("deployed", answer["status"]["token"].as_str().unwrap())
    }

    /// The port on loopback.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// The certificate and its authority (PEM).
    pub(crate) fn certificate(&self) -> String {
        fs::read_to_string(self.file("apiserver.crt")).unwrap()
    }

    /// The path of a cluster program.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.parts.join(name)
    }

    /// Creates or updates an object.
    pub(crate) fn apply(&self, object: &Value) {
        if let Err(refused) = admin::apply(&self.kubeconfig(User::Admin), object) {
            panic!("{object} was refused: {refused}\n{}", self.log());
        }
    }

    /// The answer to an admin's GET of a path, or the error.
    pub(crate) fn try_get(&self, path: &str) -> Result<String, kube::Error> {
        admin::request(&self.kubeconfig(User::Admin), Method::GET, path, None)
    }

    /// The object or list at a path.
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.try_get(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        serde_json::from_str(&answer).unwrap()
    }

    /// Sends an object to a path and returns the answer.
    fn send(&self, method: Method, path: &str, object: &Value) -> Value {
        let answer = admin::request(&self.kubeconfig(User::Admin), method, path, Some(object));
        serde_json::from_str(&answer.unwrap_or_else(|error| panic!("{path}: {error}"))).unwrap()
    }

    /// Grants the agent the rights of an overlay.
    pub(crate) fn grant(&self, overlay: &str) {
        let directory = format!("{}/{overlay}", env!("CARGO_MANIFEST_DIR"));
        let rendered = self.kubectl(&["kustomize", &directory], "");
        let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
        for kind in ["Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"] {
            let object = objects.iter().find(|object| object["kind"] == kind);
            self.apply(object.unwrap_or_else(|| panic!("{overlay} has no {kind}")));
        }
    }

    pub(crate) fn uid(&self, path: &str) -> String {
        self.get(path)["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Writes the status of an object, as its controller does; `collection` is the path of its collection.
    pub(crate) fn put_status(&self, collection: &str, name: &str, status: &Value) {
        let path = format!("{collection}/{name}");
        let mut object = self.get(&path);
        object["status"] = status.clone();
        self.send(Method::PUT, &format!("{path}/status"), &object);
    }

    pub(crate) fn kubectl_program(&self) -> PathBuf {
        self.parts.join("kubectl")
    }

    /// Runs kubectl as admin with this standard input and returns its output. A failure of kubectl fails the test.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        match self.try_kubectl(User::Admin, arguments, input) {
            Ok(printed) => printed,
            Err(complaint) => panic!("kubectl {arguments:?}: {complaint}"),
        }
    }

    /// Runs kubectl and returns its output or its error message.
    pub(crate) fn try_kubectl(&self, user: User, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut kubectl = Command::new(self.kubectl_program())
            .args(arguments)
            .env("KUBECONFIG", self.kubeconfig(user))
            .env("HOME", self.directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        kubectl.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = kubectl.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    /// Installs the CustomResourceDefinition of VPAs and waits until it is served.
    fn install_crd(&self) {
        self.apply(&serde_saphyr::from_str(VPA_CRD).unwrap());
        let vpas = "/apis/autoscaling.k8s.io/v1/verticalpodautoscalers";
        let listed = || self.try_get("/apis").unwrap();
        let started = Instant::now();
        while !listed().contains("autoscaling.k8s.io") || self.try_get(vpas).is_err() {
            assert!(started.elapsed() < PATIENCE, "no VPAs\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn is_ready(&self) -> bool {
        self.try_get("/readyz").is_ok()
    }

    fn log(&self) -> String {
        let tail = |name| {
            let log = fs::read_to_string(self.file(name)).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            // A Go program that panics prints the reason first, then long stack traces.
            let panic = lines
                .iter()
                .position(|line| line.starts_with("panic") || line.starts_with("fatal error"));
            let from = panic.unwrap_or(lines.len()).min(lines.len().saturating_sub(20));
            lines[from..].iter().take(60).copied().collect::<Vec<_>>().join("\n")
        };
        format!("{}\n{}", tail("etcd.log"), tail("kube-apiserver.log"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
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

/// Starts etcd. Its data need not survive a crash of the machine.
fn etcd(parts: &Path, directory: &Path, port: u16) -> Child {
    let clients = format!("http://127.0.0.1:{port}");
    let peers = format!("http://127.0.0.1:{}", free_port());
    let mut command = Command::new(parts.join("etcd"));
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
