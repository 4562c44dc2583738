//! The discovery against a made-up runtime behind a real socket, and a tree of plain files.

mod limits;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;
use crate::config::tests::load;
use crate::model::CgroupPath;
use crate::observe::metrics::registry;
use crate::runtime::Deadlines;
use crate::runtime::proto::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use crate::runtime::proto::{
    CgroupDriver, Container, ContainerResources, ContainerState, ContainerStatus, ContainerStatusRequest,
    ContainerStatusResponse, LinuxContainerResources, LinuxRuntimeConfiguration, ListContainersRequest,
    ListContainersResponse, ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox, PodSandboxMetadata,
    RuntimeConfigRequest, RuntimeConfigResponse, VersionRequest, VersionResponse,
};

const UID: &str = "6c4b2d1e-0000-4000-8000-00000000000a";
/// What the formulas make of the shares every container here has stored.
const SHARES: i64 = 1024;
const LINEAR: &str = "39\n";
const QUADRATIC: &str = "100\n";

/// What every look asks for.
const LISTS: [&str; 2] = ["ListPodSandbox", "ListContainers"];

/// What the runtime is and has, and which calls it has got.
#[derive(Debug, Default)]
struct State {
    version: &'static str,
    driver: CgroupDriver,
    away: bool,
    sandboxes: Vec<PodSandbox>,
    containers: Vec<Container>,
    calls: Vec<&'static str>,
}

#[derive(Debug, Clone)]
struct Runtime(Arc<Mutex<State>>);

impl Runtime {
    fn answer<T>(&self, call: &'static str, answer: impl FnOnce(&State) -> T) -> Result<Response<T>, Status> {
        let mut state = self.0.lock().unwrap();
        if state.away {
            return Err(Status::unavailable("server is not initialized yet"));
        }
        state.calls.push(call);
        Ok(Response::new(answer(&state)))
    }
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    async fn version(&self, _: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
        self.answer("Version", |state| VersionResponse {
            runtime_name: "containerd".to_owned(),
            runtime_version: state.version.to_owned(),
            ..VersionResponse::default()
        })
    }

    async fn runtime_config(
        &self,
        _: Request<RuntimeConfigRequest>,
    ) -> Result<Response<RuntimeConfigResponse>, Status> {
        self.answer("RuntimeConfig", |state| RuntimeConfigResponse {
            linux: Some(LinuxRuntimeConfiguration {
                cgroup_driver: state.driver.into(),
            }),
        })
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<ListPodSandboxRequest>,
    ) -> Result<Response<ListPodSandboxResponse>, Status> {
        self.answer("ListPodSandbox", |state| ListPodSandboxResponse {
            items: state.sandboxes.clone(),
        })
    }

    async fn list_containers(
        &self,
        _: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        self.answer("ListContainers", |state| ListContainersResponse {
            containers: state.containers.clone(),
        })
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Result<Response<ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        self.answer("ContainerStatus", |state| {
            let found = state.containers.iter().find(|container| container.id == id);
            let status = found.map(|container| ContainerStatus {
                id: container.id.clone(),
                state: container.state,
                labels: container.labels.clone(),
                resources: Some(ContainerResources {
                    linux: Some(LinuxContainerResources {
                        cpu_shares: SHARES,
                        ..LinuxContainerResources::default()
                    }),
                }),
                ..ContainerStatus::default()
            });
            ContainerStatusResponse {
                status,
                ..ContainerStatusResponse::default()
            }
        })
    }
}

/// A node with one pod, and its discovery.
struct MadeUp {
    directory: TempDir,
    runtime: Arc<Mutex<State>>,
    discovery: Discovery,
    _view: watch::Sender<Arc<NodeView>>,
    _server: AbortOnDropHandle<()>,
}

impl MadeUp {
    async fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let root = directory.path();
        fs::write(root.join("cgroup.controllers"), "cpu memory\n").unwrap();
        fs::create_dir_all(root.join(format!("kubepods/burstable/pod{UID}"))).unwrap();
        let runtime = Arc::new(Mutex::new(State {
            version: "1.7.0",
            driver: CgroupDriver::Cgroupfs,
            ..State::default()
        }));
        let socket = root.join("cri.sock");
        let incoming = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let router = Server::builder().add_service(RuntimeServiceServer::new(Runtime(Arc::clone(&runtime))));
        let server = tokio::spawn(async move { router.serve_with_incoming(incoming).await.unwrap() });
        let (sender, view) = watch::channel(Arc::default());
        let mut discovery = Discovery::new(DiscoveryLinks {
            config: load(&[
                &format!("--cgroup-root={}", root.display()),
                &format!("--state-dir={}", root.display()),
                &format!("--runtime-socket={}", socket.display()),
                "--kubepods=/kubepods",
            ])
            .unwrap(),
            freezer: Arc::new(Freezer::below(root).unwrap()),
            least_limits: Arc::default(),
            runtime_metrics: RuntimeMetrics::register(&mut registry()),
            view,
            node_pods: watch::channel(Arc::default()).0,
            seen: watch::channel(None).1,
            unsaved: BTreeMap::new(),
        });
        // Found here, so that no task follows its events: that one's calls are not the discovery's.
        let (cri, info) = discover(Some(&socket), Deadlines::default()).await.unwrap();
        discovery.runtime = Some(KnownRuntime {
            cri: Arc::new(cri),
            info,
            doubted: false,
        });
        Self {
            discovery,
            directory,
            runtime,
            _view: sender,
            _server: AbortOnDropHandle::new(server),
        }
    }

    /// The directory of the pod's cgroup.
    fn pod(&self) -> PathBuf {
        self.directory.path().join(format!("kubepods/burstable/pod{UID}"))
    }

    /// A container starts; its OCI runtime gives it this weight.
    fn start(&self, letter: char, created_at: i64, weight: &str) {
        let id = letter.to_string().repeat(64);
        write_files(&self.pod().join(&id), weight);
        let labels = [
            ("io.kubernetes.pod.name", "web"),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", UID),
            ("io.kubernetes.container.name", &letter.to_string()),
        ];
        self.runtime.lock().unwrap().containers.push(Container {
            id,
            pod_sandbox_id: "sandbox".to_owned(),
            state: ContainerState::ContainerRunning.into(),
            created_at,
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            ..Container::default()
        });
    }

    /// Looks; returns also what that look asked the runtime.
    async fn look(&mut self) -> (Discovered, Vec<&'static str>) {
        self.runtime.lock().unwrap().calls.clear();
        let discovered = self.discovery.discover().await;
        let calls = std::mem::take(&mut self.runtime.lock().unwrap().calls);
        (discovered, calls)
    }

    async fn formula(&mut self) -> WeightFormula {
        self.look().await.0.node.unwrap().traits.container_weight
    }
}

fn write_files(cgroup: &Path, weight: &str) {
    fs::create_dir_all(cgroup).unwrap();
    for (file, content) in [
        ("cpu.weight", weight),
        ("cpu.max", "max 100000\n"),
        ("memory.max", "max\n"),
        ("memory.min", "0\n"),
        ("memory.low", "0\n"),
        ("memory.high", "max\n"),
    ] {
        fs::write(cgroup.join(file), content).unwrap();
    }
}

fn sandbox(id: &str, metadata: Option<PodSandboxMetadata>) -> PodSandbox {
    PodSandbox {
        id: id.to_owned(),
        metadata,
        labels: [("io.kubernetes.pod.uid".to_owned(), UID.to_owned())].into(),
    }
}

fn named(uid: &str) -> Option<PodSandboxMetadata> {
    Some(PodSandboxMetadata {
        name: "web".to_owned(),
        namespace: "default".to_owned(),
        uid: uid.to_owned(),
        ..PodSandboxMetadata::default()
    })
}

fn lost() -> RuntimeEvent {
    RuntimeEvent::Lost {
        why: "it stopped".to_owned(),
    }
}

#[tokio::test]
async fn a_quiet_node_costs_two_calls() {
    let mut node = MadeUp::new().await;
    node.start('a', 1, LINEAR);
    node.start('b', 2, LINEAR);
    node.look().await;
    assert_eq!(node.look().await.1, LISTS);
    node.start('c', 3, LINEAR);
    assert_eq!(node.look().await.1, [LISTS[0], LISTS[1], "ContainerStatus"]);
}

#[tokio::test]
async fn a_formula_seen_by_a_pass_counts() {
    let mut node = MadeUp::new().await;
    let (pass, seen) = watch::channel(None);
    node.discovery.links.seen = seen;
    node.start('a', 1, LINEAR);
    assert_eq!(node.formula().await, WeightFormula::Linear);
    pass.send_replace(Some(WeightFormula::Quadratic));
    assert_eq!(node.formula().await, WeightFormula::Quadratic);
    assert_eq!(node.formula().await, WeightFormula::Quadratic);
}

#[tokio::test]
async fn a_new_container_shows_the_new_formula() {
    let mut node = MadeUp::new().await;
    node.start('a', 1, LINEAR);
    assert_eq!(node.formula().await, WeightFormula::Linear);
    node.discovery.handle(&lost());
    node.discovery.handle(&RuntimeEvent::Resync);
    assert_eq!(node.formula().await, WeightFormula::Linear);
    node.start('b', 2, QUADRATIC);
    assert_eq!(node.formula().await, WeightFormula::Quadratic);
}

#[tokio::test]
async fn after_a_loss_containers_are_listed_again() {
    let mut node = MadeUp::new().await;
    node.start('a', 1, LINEAR);
    assert_eq!(node.formula().await, WeightFormula::Linear);

    // Made anew under the same age by a clock that was set back.
    write_files(&node.pod().join("a".repeat(64)), QUADRATIC);
    node.runtime.lock().unwrap().away = true;
    node.discovery.handle(&lost());
    let (discovered, _) = node.look().await;
    assert!(
        discovered.problems[0].contains("not initialized"),
        "{:?}",
        discovered.problems
    );
    assert_eq!(discovered.node.unwrap().traits.container_weight, WeightFormula::Linear);

    node.runtime.lock().unwrap().away = false;
    assert_eq!(node.formula().await, WeightFormula::Quadratic);
}

#[tokio::test]
async fn specs_show_the_formula_without_a_runtime() {
    for (weights, formula) in [
        (&[(1, LINEAR)][..], WeightFormula::Linear),
        (&[(1, QUADRATIC)], WeightFormula::Quadratic),
        // Another process has written the weight of one of them.
        (&[(1, LINEAR), (2, LINEAR), (3, QUADRATIC)], WeightFormula::Linear),
        (&[(3, LINEAR), (2, LINEAR), (1, "77\n")], WeightFormula::Linear),
    ] {
        let mut node = MadeUp::new().await;
        (node.discovery.runtime, node.discovery.links.config.runtime_socket) = (None, PathSetting::None);
        let (mut containers, mut statuses) = (String::new(), String::new());
        for ((second, weight), letter) in weights.iter().zip('a'..) {
            node.start(letter, *second, weight);
            let id = letter.to_string().repeat(64);
            containers += &format!("  - {{name: {letter}, resources: {{requests: {{cpu: 1000m}}}}}}\n");
            statuses += &format!(
                "  - {{name: {letter}, containerID: containerd://{id}, state: {{running: {{startedAt: '2026-01-01T00:00:0{second}Z'}}}}}}\n"
            );
        }
        let pod = format!(
            "kind: Pod\nmetadata: {{name: web, uid: {UID}}}\nspec:\n  containers:\n{containers}status:\n  containerStatuses:\n{statuses}"
        );
        assert_eq!(node.formula().await, weight::ASSUMED);
        let view = crate::sources::parse_manifests("test", &pod).unwrap().view;
        node._view.send_replace(Arc::new(view.into()));
        assert_eq!(node.formula().await, formula, "{weights:?}");
    }
}

#[tokio::test]
async fn a_returned_runtime_names_itself_again() {
    let mut node = MadeUp::new().await;
    node.start('a', 1, LINEAR);
    let (discovered, _) = node.look().await;
    assert_eq!(
        discovered.node.unwrap().runtime_name.as_deref(),
        Some("containerd 1.7.0")
    );

    node.runtime.lock().unwrap().version = "2.1.0";
    node.runtime.lock().unwrap().driver = CgroupDriver::Systemd;
    node.discovery.handle(&lost());
    node.discovery.handle(&RuntimeEvent::Resync);
    let (discovered, calls) = node.look().await;
    assert_eq!(
        discovered.node.unwrap().runtime_name.as_deref(),
        Some("containerd 2.1.0")
    );
    assert_eq!(
        calls,
        ["Version", "RuntimeConfig", LISTS[0], LISTS[1], "ContainerStatus"]
    );
    assert_eq!(
        node.discovery.runtime.unwrap().info.cgroup_driver,
        Some(Driver::Systemd)
    );
}

#[tokio::test]
async fn a_runtime_without_containers_makes_way() {
    let (mut node, other) = (MadeUp::new().await, MadeUp::new().await);
    let socket = other.directory.path().join("cri.sock");
    let is_other = |node: &MadeUp| node.discovery.runtime.as_ref().unwrap().cri.socket() == socket;
    node.start('a', 1, LINEAR);
    node.look().await;
    // As if the search had found the other one first.
    node.discovery.links.config.runtime_socket = PathSetting::Path(socket.clone());
    node.look().await;
    assert!(!is_other(&node), "it runs a container");
    node.runtime.lock().unwrap().containers.clear();
    for _ in 0..2 {
        node.look().await;
        assert!(!is_other(&node), "neither runs a container");
    }
    other.start('b', 2, LINEAR);
    node.look().await;
    assert!(is_other(&node));
}

#[tokio::test]
async fn events_that_came_together_are_one_look() {
    let mut node = MadeUp::new().await;
    let (sender, stream) = EventStream::fed_by_hand(8);
    node.look().await;
    node.discovery.runtime_events = Some(stream);
    for event in [lost(), RuntimeEvent::Resync] {
        sender.send(event).unwrap();
    }
    node.discovery.handle_waiting_events();
    assert!(node.discovery.runtime.as_ref().unwrap().doubted);
    assert!(next_event(&mut node.discovery.runtime_events).now_or_never().is_none());
}

#[tokio::test]
async fn an_unlisted_pod_ends_with_its_cgroup() {
    let mut node = MadeUp::new().await;
    node.start('a', 1, LINEAR);
    node.start('b', 2, LINEAR);
    let (found, _) = node.look().await;
    // A root that is not there stands for everything that keeps the agent from listing the pods.
    node.discovery.links.config.kubepods = Some(CgroupPath::new("/gone/kubepods").unwrap());
    let (discovered, _) = node.look().await;
    let problem = "kubepods: there is no cgroup /gone/kubepods";
    assert!(
        discovered.problems.iter().any(|found| found == problem),
        "{:?}",
        discovered.problems
    );
    assert!(discovered.node.is_some() && discovered.inventory == found.inventory);

    let pod = node.pod();
    fs::remove_dir_all(pod.join("b".repeat(64))).unwrap();
    let (discovered, _) = node.look().await;
    let pods: Vec<_> = discovered.inventory.pods().collect();
    assert_eq!(pods[0].containers.keys().collect::<Vec<_>>(), ["a"]);
    assert!(discovered.may_have_cgroup(UID));
    fs::remove_dir_all(pod).unwrap();
    let (discovered, _) = node.look().await;
    assert!(!discovered.may_have_cgroup(UID) && discovered.inventory == Inventory::default());
}

#[tokio::test]
async fn without_a_root_nothing_has_ended() {
    let mut node = MadeUp::new().await;
    node.discovery.links.config.kubepods = Some(CgroupPath::new("/gone/kubepods").unwrap());
    let (discovered, _) = node.look().await;
    assert!(discovered.node.is_none() && discovered.may_have_cgroup(UID));
}

#[tokio::test]
async fn a_lasting_problem_is_looked_at_less_often() {
    let mut node = MadeUp::new().await;
    let mut now = Instant::now();
    let seconds = Duration::from_secs;
    let mut pause = |problems: &[&str], later: Duration| {
        let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
        now += later;
        node.discovery.pause(&problems, now)
    };
    assert_eq!(pause(&[], Duration::ZERO), IDLE);
    let mut last = pause(&["no cgroup"], Duration::ZERO);
    assert!(last <= seconds(1), "{last:?}");
    for _ in 0..8 {
        last = pause(&["no cgroup"], last);
        assert!(last <= seconds(15), "{last:?}");
    }
    assert!(last > seconds(7), "{last:?}");
    assert!(pause(&["no runtime"], Duration::ZERO) <= seconds(1), "another problem");
    assert_eq!(pause(&[], Duration::ZERO), IDLE);
}

#[tokio::test]
async fn events_do_not_put_off_a_retry() {
    let mut node = MadeUp::new().await;
    let (now, problems) = (Instant::now(), ["no runtime".to_owned()]);
    let first = node.discovery.pause(&problems, now);
    let (step, mut left) = (first / 8, first);
    for event in 1..8 {
        left = node.discovery.pause(&problems, now + step * event);
        assert_eq!(left, first - step * event, "event {event}");
    }
    assert!(node.discovery.pause(&problems, now + first) > left, "this one was due");
}

#[tokio::test]
async fn a_sandbox_without_metadata_hides_no_pod() {
    let mut node = MadeUp::new().await;
    node.runtime.lock().unwrap().sandboxes =
        vec![sandbox("s1", None), sandbox("s2", named("")), sandbox("s3", named(UID))];
    let (discovered, _) = node.look().await;
    assert!(discovered.runtime_answers);
    let pods: Vec<_> = discovered.inventory.pods().map(|pod| pod.id.to_string()).collect();
    assert_eq!(pods, ["default/web"]);
    let problems = discovered.problems.join("\n");
    for unusable in ["\"s1\" has no metadata\n", "\"s2\" has no metadata.uid"] {
        assert!(problems.contains(unusable), "{problems}");
    }
}

#[tokio::test]
async fn a_listed_sandbox_needs_no_further_list() {
    let mut node = MadeUp::new().await;
    node.discovery.handle(&RuntimeEvent::Started("s1".to_owned()));
    node.look().await;
    assert!(node.discovery.pause(&[], Instant::now()) < IDLE, "the list lacks it");
    node.runtime.lock().unwrap().sandboxes = vec![sandbox("s1", named(UID))];
    node.look().await;
    assert_eq!(node.discovery.pause(&[], Instant::now()), IDLE);
}

#[tokio::test]
async fn what_is_configured_counts() {
    let mut node = MadeUp::new().await;
    node.start('a', 1, LINEAR);
    let from = |node: &Node| [node.driver_from, node.formula_from, node.kubelet_from];
    let found = node.look().await.0.node.unwrap();
    assert_eq!(
        from(&found),
        [KnownFrom::Reported, KnownFrom::Reported, KnownFrom::Inferred]
    );
    assert_eq!(found.traits.kubelet, KubeletVersion::NEWEST);
    let config = &mut node.discovery.links.config;
    config.cgroup_driver = Some(Driver::Cgroupfs);
    config.weight_formula = Some(WeightFormula::Quadratic);
    config.kubelet_version = Some(KubeletVersion(30));
    let found = node.look().await.0.node.unwrap();
    assert_eq!(from(&found), [KnownFrom::Configured; 3]);
    let traits = &found.traits;
    assert_eq!(
        (traits.container_weight, traits.kubelet),
        (WeightFormula::Quadratic, KubeletVersion(30))
    );
}

#[tokio::test]
async fn a_pods_files_show_whether_cgroups_burst() {
    let mut node = MadeUp::new().await;
    write_files(&node.pod(), LINEAR);
    for has_bursts in [false, true] {
        if has_bursts {
            fs::write(node.pod().join("cpu.max.burst"), "0\n").unwrap();
        }
        assert_eq!(node.look().await.0.node.unwrap().has_bursts, has_bursts);
    }
    fs::remove_dir_all(node.pod()).unwrap();
    assert!(node.look().await.0.node.unwrap().has_bursts, "without pods");
}

#[tokio::test]
async fn a_systemd_that_hangs_holds_up_nothing() {
    let mut late = None;
    let (sender, answers) = std::sync::mpsc::channel();
    let hangs = move || answers.recv().unwrap();
    answer_within(&mut late, Duration::from_millis(10), hangs)
        .await
        .unwrap_err();
    let again = async |late: &mut Option<JoinHandle<u32>>| {
        answer_within(late, Duration::MAX, || panic!("a call beside the late one")).await
    };
    again(&mut late).await.unwrap_err();
    sender.send(7).unwrap();
    let answer = loop {
        match again(&mut late).await {
            Ok(answer) => break answer,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!((answer, late.is_none()), (7, true));
}
