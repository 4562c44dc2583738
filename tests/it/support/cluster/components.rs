//! Kubernetes' controllers and scheduler, VPA's own programs and metrics-server, as processes beside an API server on
//! loopback, with an admin's rights.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ::http::Method;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::json;
use tempfile::TempDir;

use super::api::{Api, User};
use super::{admin, free_port};
use crate::support::{http, scratch};

/// The path of the usage of all pods.
const USAGE: &str = "/apis/metrics.k8s.io/v1beta1/pods";

/// What the mode InPlace and startup boosts need.
const GATES: &str = "--feature-gates=InPlace=true,CPUStartupBoost=true";

/// What keeps namespaces, service accounts, nodes and workloads as a cluster has them.
const CONTROLLERS: &str = "--controllers=cronjob-controller,daemonset-controller,deployment-controller,\
    garbage-collector-controller,job-controller,namespace-controller,node-lifecycle-controller,replicaset-controller,\
    root-ca-certificate-publisher-controller,serviceaccount-controller,statefulset-controller,taint-eviction-controller";

/// The path of the webhook that the admission controller registers.
const WEBHOOK: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/vpa-webhook-config";

/// Running programs. Dropping the value ends them. If a test fails, the ends of their logs are printed.
#[derive(Debug)]
pub(crate) struct Components {
    processes: Vec<(&'static str, Child)>,
    /// Where the updater serves metrics.
    updater: Option<SocketAddr>,
    /// The objects through which the API server reaches them, and an admin who removes these at the end.
    registered: Vec<&'static str>,
    admin: PathBuf,
    directory: TempDir,
}

impl Components {
    /// Starts none of them.
    pub(crate) fn new(api: &Api) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(scratch())
            .unwrap();
        Self {
            processes: Vec::new(),
            updater: None,
            registered: Vec::new(),
            admin: api.kubeconfig(User::Admin),
            directory,
        }
    }

    /// Starts what makes pods of workloads and brings them to the node.
    pub(crate) fn launch_controllers(&mut self, api: &Api) {
        let own = |flag: &str, file: &str| format!("--{flag}={}", api.file(file).display());
        let common = [
            format!("--kubeconfig={}", api.kubeconfig(User::Admin).display()),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        let mut arguments = common.to_vec();
        self.launch_kubernetes(api, "kube-scheduler", common.to_vec());
        arguments.extend([
            CONTROLLERS.to_owned(),
            own("service-account-private-key-file", "service-account.key"),
            own("root-ca-file", "apiserver.crt"),
        ]);
        self.launch_kubernetes(api, "kube-controller-manager", arguments);
    }

    /// Starts all of VPA's programs, and metrics-server.
    pub(crate) fn launch_vpa(&mut self, api: &Api) {
        self.launch_metrics_server(api);
        self.launch_recommender(api);
        self.launch_updater(api);
        self.launch_admission_controller(api);
    }

    /// Starts metrics-server, which serves the usage of pods a while later, when it has asked the kubelet twice.
    pub(crate) fn launch_metrics_server(&mut self, api: &Api) {
        let port = free_port();
        // The API server connects to the name of such a service without a look at its endpoints.
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics-server", "namespace": "kube-system"},
            "spec": {"type": "ExternalName", "externalName": "127.0.0.1"},
        });
        let served = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {
                "service": {"name": "metrics-server", "namespace": "kube-system", "port": port},
                "group": "metrics.k8s.io", "version": "v1beta1", "insecureSkipTLSVerify": true,
                "groupPriorityMinimum": 100, "versionPriority": 100,
            },
        });
        api.apply(&service);
        let kubeconfig = api.kubeconfig(User::Admin);
        let client = |file: &str| api.file(&format!("kubelet-client.{file}"));
        let arguments = [
            ("authentication-kubeconfig", kubeconfig.clone()),
            ("authorization-kubeconfig", kubeconfig.clone()),
            ("kubeconfig", kubeconfig),
            ("cert-dir", self.directory.path().join("metrics-server")),
            ("kubelet-client-certificate", client("crt")),
            ("kubelet-client-key", client("key")),
        ];
        let arguments = arguments
            .into_iter()
            .map(|(flag, path)| format!("--{flag}={}", path.display()))
            .chain(
                [
                    "--kubelet-insecure-tls",
                    "--kubelet-use-node-status-port",
                    "--kubelet-preferred-address-types=InternalIP",
                    "--metric-resolution=10s",
                    "--kubelet-request-timeout=9s",
                    "--bind-address=127.0.0.1",
                ]
                .map(str::to_owned),
            )
            .chain([format!("--secure-port={port}")]);
        self.launch_addon(api, "metrics-server", arguments.collect());
        api.apply(&served);
        self.registered
            .push("/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io");
    }

    /// Whether metrics-server serves the usage of a pod of this name.
    pub(crate) fn measures(&self, api: &Api, pod: &str) -> bool {
        api.try_get(USAGE)
            .is_ok_and(|list| list.contains(&format!("\"name\":\"{pod}\"")))
    }

    /// Starts the recommender, which looks each few seconds.
    pub(crate) fn launch_recommender(&mut self, api: &Api) {
        self.launch_of_vpa(api, "recommender", &["--recommender-interval=3s"]);
    }

    /// Starts the updater, which looks each few seconds.
    pub(crate) fn launch_updater(&mut self, api: &Api) {
        self.launch_of_vpa(api, "updater", &["--updater-interval=3s", "--min-replicas=1", GATES]);
    }

    /// Starts the admission controller, which registers its webhook some seconds later.
    pub(crate) fn launch_admission_controller(&mut self, api: &Api) {
        let port = free_port();
        let [authority, certificate, key] = self.make_certificate();
        let arguments = [
            GATES.to_owned(),
            "--register-by-url".to_owned(),
            "--webhook-address=https://127.0.0.1".to_owned(),
            format!("--webhook-port={port}"),
            format!("--port={port}"),
            format!("--client-ca-file={}", authority.display()),
            format!("--tls-cert-file={}", certificate.display()),
            format!("--tls-private-key={}", key.display()),
        ];
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        self.launch_of_vpa(api, "admission-controller", &arguments);
        self.registered.push(WEBHOOK);
    }

    /// How often the updater has looked at all pods.
    pub(crate) fn updater_loops(&self) -> Option<u64> {
        let (_, text) = http::get(self.updater?, "/metrics")?;
        let loops = |line: &str| {
            line.strip_prefix("vpa_updater_execution_latency_seconds_count{step=\"total\"}")?
                .trim()
                .parse()
                .ok()
        };
        text.lines().find_map(loops)
    }

    fn launch_of_vpa(&mut self, api: &Api, name: &'static str, arguments: &[&str]) {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        if name == "updater" {
            self.updater = Some(address);
        }
        let own = [
            format!("--kubeconfig={}", api.kubeconfig(User::Admin).display()),
            format!("--address={address}"),
        ];
        let arguments = own.into_iter().chain(arguments.iter().map(|of| (*of).to_owned()));
        self.launch_addon(api, name, arguments.collect());
    }

    fn launch_addon(&mut self, api: &Api, name: &'static str, arguments: Vec<String>) {
        self.launch(&api.programs().addon(name), name, arguments);
    }

    fn launch_kubernetes(&mut self, api: &Api, name: &'static str, arguments: Vec<String>) {
        self.launch(&api.programs().kubernetes(api.release(), name), name, arguments);
    }

    fn launch(&mut self, program: &Path, name: &'static str, arguments: Vec<String>) {
        let log = File::create(self.log_file(name)).unwrap();
        let process = Command::new(program)
            .args(arguments)
            // What the programs think that they run in.
            .env("NAMESPACE", "kube-system")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        self.processes.push((name, process));
    }

    /// Writes a certificate for loopback: its authority, itself and its key.
    fn make_certificate(&self) -> [PathBuf; 3] {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority
            .distinguished_name
            .push(DnType::CommonName, "the webhook's authority");
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = certificate.signed_by(&key, &authority).unwrap();
        let files = [
            ("authority.crt", authority.pem()),
            ("webhook.crt", certificate.pem()),
            ("webhook.key", key.serialize_pem()),
        ];
        files.map(|(name, text)| {
            let path = self.directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        })
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.log"))
    }
}

impl Drop for Components {
    fn drop(&mut self) {
        for (name, process) in &mut self.processes {
            process
                .kill()
                .and_then(|()| process.wait())
                .map_or_else(|error| eprintln!("{name}: {error}"), drop);
        }
        for path in &self.registered {
            // Otherwise others wait for what does not answer any more.
            if let Err(error) = admin::request(&self.admin, Method::DELETE, path, None) {
                eprintln!("{path}: {error}");
            }
        }
        if std::thread::panicking() {
            for (name, _) in &self.processes {
                eprintln!("{name}'s log:\n{}", end_of(&self.log_file(name)));
            }
        }
    }
}

fn end_of(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
