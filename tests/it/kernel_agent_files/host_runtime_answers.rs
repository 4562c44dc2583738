//! A runtime that refuses, gives invalid answers, or writes other values than requested.
//!
//! The runtime is a fake, because no real one does so on demand. The cgroups and the processes are real.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tonic::transport::Server;
use tonic::{Request, Response, Status};
use vscaled::runtime::proto;
use vscaled::runtime::proto::runtime_service_server::{RuntimeService, RuntimeServiceServer};

use super::{AT_FIRST, Amounts, SIDE, Scene, UID, bursts, cpu};
use crate::runtime_faults::fake::Socket;

const TARGET: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("side", Amounts::doubled(60, 40))];

/// The runtime's reaction to an update.
#[derive(Debug, Clone)]
enum Behaviour {
    /// Stores it.
    Fair,
    /// Refuses updates of this container.
    Refuses(&'static str),
    /// Answers about another container than the requested one, so the agent never sends an update.
    Confused,
    /// Refuses updates of `side`. On an update of `app`, creates the first file, on which a process starts to
    /// allocate, and waits until the second file reports this many bytes.
    Busy(PathBuf, PathBuf, u64),
    /// Stores the update, and once writes this text into a file.
    Writes(PathBuf, &'static str),
}

/// A runtime that knows the scene's containers: their names and stored resources, by id.
#[derive(Debug, Clone)]
struct OddRuntime {
    containers: Arc<Mutex<BTreeMap<String, (&'static str, proto::LinuxContainerResources)>>>,
    behaviour: Arc<Mutex<Behaviour>>,
    /// Whether an update set a memory limit below the current use, which a real runtime would have written.
    kills: Arc<Mutex<bool>>,
}

impl OddRuntime {
    /// Starts the runtime and the agent.
    async fn start(scene: &mut Scene, behaviour: Behaviour) -> (Self, Socket) {
        let containers = scene.pod.containers.iter();
        let containers = containers.map(|(name, container)| (container.id.clone(), (*name, container.amounts.cri())));
        let runtime = Self {
            containers: Arc::new(Mutex::new(containers.collect())),
            behaviour: Arc::new(Mutex::new(behaviour)),
            kills: Arc::default(),
        };
        let service = RuntimeServiceServer::new(runtime.clone());
        let socket = Socket::serving(Server::builder().add_service(service));
        scene.agent.set("--runtime-socket", socket.path());
        scene.agent.start().await;
        scene.agent.reaches("web", "NotManaged").await;
        (runtime, socket)
    }

    fn set_behaviour(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    fn behaviour(&self) -> Behaviour {
        self.behaviour.lock().unwrap().clone()
    }

    /// Whether the runtime has stored these amounts.
    fn stores(&self, wanted: &[(&str, Amounts)]) -> bool {
        let containers = self.containers.lock().unwrap();
        let stored = |name: &str| {
            containers
                .values()
                .find(|(of, _)| *of == name)
                .map(|(_, stored)| *stored)
        };
        wanted.iter().all(|(name, amounts)| stored(name) == Some(amounts.cri()))
    }
}

/// The memory use in a file.
fn in_use(file: &Path) -> u64 {
    fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

fn labels(name: &str) -> HashMap<String, String> {
    let labels = [
        ("io.kubernetes.pod.name", "web"),
        ("io.kubernetes.pod.namespace", "test"),
        ("io.kubernetes.pod.uid", UID),
        ("io.kubernetes.container.name", name),
    ];
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

#[tonic::async_trait]
impl RuntimeService for OddRuntime {
    async fn version(&self, _: Request<proto::VersionRequest>) -> Result<Response<proto::VersionResponse>, Status> {
        Ok(Response::new(proto::VersionResponse {
            runtime_name: "containerd".to_owned(),
            ..proto::VersionResponse::default()
        }))
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<proto::ListPodSandboxRequest>,
    ) -> Result<Response<proto::ListPodSandboxResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn list_containers(
        &self,
        _: Request<proto::ListContainersRequest>,
    ) -> Result<Response<proto::ListContainersResponse>, Status> {
        let listed = |(id, (name, _)): (&String, &(&'static str, proto::LinuxContainerResources))| proto::Container {
            id: id.clone(),
            pod_sandbox_id: "sandbox".to_owned(),
            state: proto::ContainerState::ContainerRunning.into(),
            labels: labels(name),
            ..proto::Container::default()
        };
        let containers = self.containers.lock().unwrap().iter().map(listed).collect();
        Ok(Response::new(proto::ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<proto::ContainerStatusRequest>,
    ) -> Result<Response<proto::ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        let containers = self.containers.lock().unwrap();
        let (name, stored) = containers.get(&id).ok_or_else(|| Status::not_found(id.clone()))?;
        let confused = matches!(self.behaviour(), Behaviour::Confused);
        let status = proto::ContainerStatus {
            id: if confused { "another".to_owned() } else { id },
            state: proto::ContainerState::ContainerRunning.into(),
            labels: labels(name),
            resources: Some(proto::ContainerResources { linux: Some(*stored) }),
            ..proto::ContainerStatus::default()
        };
        Ok(Response::new(proto::ContainerStatusResponse {
            status: Some(status),
            ..proto::ContainerStatusResponse::default()
        }))
    }

    async fn update_container_resources(
        &self,
        request: Request<proto::UpdateContainerResourcesRequest>,
    ) -> Result<Response<proto::UpdateContainerResourcesResponse>, Status> {
        let request = request.into_inner();
        let mut containers = self.containers.lock().unwrap();
        let (name, stored) = containers.get_mut(&request.container_id).unwrap();
        match self.behaviour() {
            Behaviour::Refuses(refused) if refused == *name => return Err(Status::unknown("not in the mood")),
            Behaviour::Writes(file, text) => {
                self.set_behaviour(Behaviour::Fair);
                fs::write(file, text).unwrap();
            }
            Behaviour::Busy(..) if *name == "side" => return Err(Status::unknown("not in the mood")),
            Behaviour::Busy(go, usage, until) => {
                fs::write(go, "").unwrap();
                let deadline = Instant::now() + Duration::from_secs(60);
                while in_use(&usage) < until && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let limit = request.linux.unwrap().memory_limit_in_bytes;
                let kills = limit > 0 && limit.cast_unsigned() < in_use(&usage);
                *self.kills.lock().unwrap() |= kills;
            }
            Behaviour::Fair | Behaviour::Refuses(_) | Behaviour::Confused => {}
        }
        let told = request.linux.unwrap();
        // Zero means "not specified".
        for (field, value) in [
            (&mut stored.cpu_shares, told.cpu_shares),
            (&mut stored.cpu_quota, told.cpu_quota),
            (&mut stored.cpu_period, told.cpu_period),
            (&mut stored.memory_limit_in_bytes, told.memory_limit_in_bytes),
        ] {
            if value != 0 {
                *field = value;
            }
        }
        Ok(Response::new(Default::default()))
    }
}

#[tokio::test]
async fn a_runtimes_refusal_is_undone_everywhere() {
    let mut scene = Scene::new();
    let with_bursts = bursts::give(&scene, [10_001, 20_000, 0]);
    let (runtime, _socket) = OddRuntime::start(&mut scene, Behaviour::Refuses("side")).await;
    // The app's update comes first, and the agent has to undo it.
    scene.recommend(&TARGET);
    let pod = scene.agent.reaches("web", "Refused").await;
    assert!(pod.detail.contains("not in the mood"), "{}", pod.detail);
    // The agent retries now and then, so a retry may be in progress.
    let undone = || scene.holds(&AT_FIRST) && runtime.stores(&AT_FIRST);
    scene.agent.wait_for("everything to be undone", undone).await;

    let change = scene.agent.resize(scene.by_hand(cpu("1"))).await.unwrap();
    assert_eq!(change.outcome, "RolledBack", "{change:#?}");
    assert!(scene.agent.pod("web").await.unwrap().r#override.is_none());
    scene.agent.wait_for("everything to be undone", undone).await;
    if with_bursts {
        assert_eq!(bursts::held(&scene), Some([10_001, 20_000, 0]), "to the microsecond");
    }
    let history = scene.agent.history().await;
    assert!(
        history
            .iter()
            .all(|change| change.outcome == "RolledBack" && !change.cause.starts_with("drift")),
        "its own undoing was taken for a reason to try again: {history:#?}"
    );

    runtime.set_behaviour(Behaviour::Fair);
    scene.settles(&TARGET).await;
    assert!(runtime.stores(&TARGET));
}

#[tokio::test]
async fn memory_in_use_is_not_taken_by_the_runtime() {
    let mut scene = Scene::new();
    let cgroup = scene.pod.containers["app"].cgroup.clone();
    let directories = scene.node.cgroups().directories(&cgroup);
    let usage = directories.iter().flat_map(|directory| {
        let files = ["memory.usage_in_bytes", "memory.current"];
        files.map(|file| directory.join(file))
    });
    let usage = usage.into_iter().find(|file| file.exists()).unwrap();
    let go = scene.agent.path().join("go");
    let program = format!(
        "select undef, undef, undef, 0.01 until -e \"{}\"; my $n = 150 << 20; my $x = \"a\" x $n; sleep 1000",
        go.display()
    );
    scene.node.spawn(&cgroup, &format!("exec perl -e '{program}'"));
    // More than the app's initial 128 MiB.
    let (runtime, _socket) = OddRuntime::start(&mut scene, Behaviour::Busy(go, usage, 150 << 20)).await;
    scene.recommend(&TARGET);
    let incomplete = async || {
        let history = scene.agent.history().await;
        history.into_iter().find(|change| change.outcome == "Incomplete")
    };
    let change = scene.agent.until("the pass to end", incomplete).await;
    assert!(change.reason.contains("not in the mood"), "{change:#?}");
    assert!(change.reason.contains("could not be undone"), "{change:#?}");
    assert!(!*runtime.kills.lock().unwrap(), "{change:#?}");
    assert_eq!(scene.node.cgroups().oom_kills(&cgroup), 0);
}

#[tokio::test]
async fn a_senseless_answer_is_reported_and_retried() {
    let mut scene = Scene::new();
    let (runtime, socket) = OddRuntime::start(&mut scene, Behaviour::Confused).await;
    scene.recommend(&TARGET);
    let holds = || scene.holds(&TARGET);
    scene.agent.wait_for("the files to hold the values", holds).await;
    let pod = scene.agent.reaches("web", "Owed").await;
    let name = socket.path().display().to_string();
    assert!(
        pod.detail.contains("\"another\"") && pod.detail.contains(&name),
        "{}",
        pod.detail
    );
    runtime.set_behaviour(Behaviour::Fair);
    scene.settles(&TARGET).await;
    assert!(runtime.stores(&TARGET));
}

#[tokio::test]
async fn unexpected_runtime_writes_are_repaired() {
    let mut scene = Scene::new();
    let weight = scene.node.held(&scene.pod)["app"]
        .iter()
        .map(|setting| setting.file().name())
        .find(|file| file.contains("weight") || file.contains("shares"))
        .unwrap();
    let directory = &scene.node.cgroups().directories(&scene.pod.containers["app"].cgroup)[0];
    let behaviour = Behaviour::Writes(directory.join(weight), "77");
    let (runtime, _socket) = OddRuntime::start(&mut scene, behaviour).await;
    let target = [TARGET[0], ("side", SIDE)];
    scene.recommend(&target);
    scene.settles(&target).await;
    assert!(matches!(runtime.behaviour(), Behaviour::Fair), "never meddled");
    assert!(runtime.stores(&target));
    let history = scene.agent.history().await;
    assert!(
        history[0].outcome == "Incomplete" && history[0].reason.contains("container app"),
        "{history:#?}"
    );
}

#[tokio::test]
async fn a_container_the_runtime_lacks_is_skipped() {
    let mut scene = Scene::new();
    let (runtime, _socket) = OddRuntime::start(&mut scene, Behaviour::Fair).await;
    runtime.containers.lock().unwrap().clear();
    scene.recommend(&TARGET);
    scene.settles(&TARGET).await;
    let change = scene.agent.resize(scene.by_hand(cpu("1"))).await.unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
}
