//! Signals where the runtime has no call for them, such as CRI-O. The agent sends the signal where it can see the
//! process, and otherwise reports that before a signal is due.

use tonic::codegen::BoxStream;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use vscaled::runtime::proto::runtime_service_client::RuntimeServiceClient;
use vscaled::runtime::proto::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use vscaled::runtime::proto::{
    ContainerEventResponse, ContainerStatusRequest, ContainerStatusResponse, ExecSyncRequest, ExecSyncResponse,
    GetEventsRequest, ListContainersRequest, ListContainersResponse, ListPodSandboxRequest, ListPodSandboxResponse,
    UpdateContainerResourcesRequest, UpdateContainerResourcesResponse, VersionRequest, VersionResponse,
};

use super::hooks::HIGHER;
use super::{SIDE, Scene};
use crate::runtime_faults::fake::Socket;
use crate::support::amounts::with_env;

/// Only the CRI of a containerd, without its other services.
struct OnlyCri(RuntimeServiceClient<Channel>);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl RuntimeService for OnlyCri {
    async fn version(&self, request: Request<VersionRequest>) -> Answer<VersionResponse> {
        self.0.clone().version(request).await
    }

    async fn list_pod_sandbox(&self, request: Request<ListPodSandboxRequest>) -> Answer<ListPodSandboxResponse> {
        self.0.clone().list_pod_sandbox(request).await
    }

    async fn list_containers(&self, request: Request<ListContainersRequest>) -> Answer<ListContainersResponse> {
        self.0.clone().list_containers(request).await
    }

    async fn container_status(&self, request: Request<ContainerStatusRequest>) -> Answer<ContainerStatusResponse> {
        self.0.clone().container_status(request).await
    }

    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> Answer<UpdateContainerResourcesResponse> {
        self.0.clone().update_container_resources(request).await
    }

    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> Answer<ExecSyncResponse> {
        self.0.clone().exec_sync(request).await
    }

    async fn get_container_events(&self, _: Request<GetEventsRequest>) -> Answer<BoxStream<ContainerEventResponse>> {
        Err(Status::unimplemented("no events"))
    }
}

impl Scene {
    /// A pod with hooks, behind a runtime without a call for signals.
    async fn without_calls_for_signals() -> (Self, Socket) {
        let mut scene = Self::new("trap 'echo told >/told' HUP; while true; do sleep 0.1; done").await;
        let cri = RuntimeServiceServer::new(OnlyCri(scene.containerd.kubelet()));
        let socket = Socket::serving(Server::builder().add_service(cri));
        scene.agent.set("--runtime-socket", socket.path());
        scene.manifest = with_env(
            &scene.manifest,
            "side",
            &[("VSCALED_ON_MEMORY_PRESSURE", "signal: SIGKILL")],
        );
        scene.declare(
            &["app"],
            &[
                ("VSCALED_AFTER_GROW", "signal: SIGHUP"),
                ("VSCALED_ON_MEMORY_PRESSURE", "signal: SIGKILL"),
                ("VSCALED_BEFORE_SHRINK", r#"["true"]"#),
            ],
        );
        (scene, socket)
    }

    /// The agent's messages about hooks: for the pod, and for the node.
    async fn hook_messages(&self) -> (Vec<String>, Option<String>) {
        let mut client = self.agent.client().await;
        let mut notes = client.explain("test/web".to_owned()).await.unwrap().notes;
        notes.retain(|note| note.starts_with("hook "));
        notes.sort_unstable();
        let checks = client.doctor().await.unwrap().checks;
        let check = checks
            .into_iter()
            .find(|check| check.name == "hooks" && check.status != "ok");
        (notes, check.map(|check| check.status + ": " + &check.found))
    }
}

#[tokio::test]
async fn an_impossible_signal_is_named_early() {
    let (mut scene, _socket) = Scene::without_calls_for_signals().await;
    let as_in_the_base_daemon_set = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    scene.agent = scene.agent.wrapped(&as_in_the_base_daemon_set, "exec \"$@\"");
    scene.agent.start().await;
    scene.knows_all().await;
    let (notes, check) = scene.hook_messages().await;
    let [signal, app, side] = <[String; 3]>::try_from(notes).unwrap();
    assert!(
        signal.starts_with("hook after-grow in container app: its signal cannot be sent: process "),
        "{signal}"
    );
    for (note, container) in [(app, "app"), (side, "side")] {
        let begins = format!("hook on-memory-pressure in container {container}: env[VSCALED_ON_MEMORY_PRESSURE]");
        assert!(note.starts_with(&begins) && note.contains("SIGHUP, SIGUSR1"), "{note}");
    }
    let check = check.unwrap();
    assert!(
        check.starts_with("warn: hooks that cannot run: 3, such as test/web hook "),
        "{check}"
    );
    // Everything is as the message said.
    scene.recommend(HIGHER, SIDE);
    let told = scene.hooks(1).await.remove(0);
    assert!(
        told.outcome == "HookFailed" && told.reason.starts_with("process "),
        "{told:?}"
    );
    assert!(scene.file("told").is_none());
}

#[tokio::test]
async fn the_agent_signals_processes_it_sees() {
    let (mut scene, _socket) = Scene::without_calls_for_signals().await;
    scene.manifest = scene.manifest.replacen("SIGKILL", "SIGHUP", 1);
    scene.declare(&["app"], &[("VSCALED_AFTER_GROW", "signal: SIGHUP")]);
    scene.agent.start().await;
    scene.knows_all().await;
    assert_eq!(scene.hook_messages().await, (Vec::new(), None));
    scene.recommend(HIGHER, SIDE);
    let told = scene.hooks(1).await.remove(0);
    assert!(
        told.outcome == "HookRan" && told.reason.contains("SIGHUP was sent"),
        "{told:?}"
    );
    let is_told = || scene.file("told").is_some();
    scene.agent.wait_for("the signal", is_told).await;
}

#[tokio::test]
async fn trying_a_signal_sends_none() {
    let scene = Scene::started("trap 'echo told >/told' HUP USR1; while true; do sleep 0.1; done").await;
    scene.declare(&["app"], &[("VSCALED_AFTER_GROW", "signal: SIGHUP")]);
    scene.recommend(HIGHER, SIDE);
    scene.hooks(1).await;
    scene
        .agent
        .wait_for("the signal", || scene.file("told").is_some())
        .await;
    let (first, _) = scene.life(0).await;
    std::fs::remove_file(format!("/proc/{first}/root/told")).unwrap();
    assert_eq!(scene.hook_messages().await, (Vec::new(), None));
    assert!(scene.file("told").is_none() && scene.life(0).await.0 == first);
}

#[tokio::test]
async fn hooks_without_a_runtime_are_refused() {
    let mut scene = Scene::new("sleep 1000").await;
    scene.agent.set("--runtime-socket", "none");
    let ids: Vec<_> = scene.pod.containers.iter().map(|container| &container.id).collect();
    let statuses = format!(
        "containerStatuses: [{{name: app, containerID: \"containerd://{}\"}}, {{name: side, containerID: \"containerd://{}\"}}]",
        ids[0], ids[1]
    );
    scene.manifest = scene.manifest.replace("containerStatuses: []", &statuses);
    scene.declare(&["app"], &[("VSCALED_BEFORE_SHRINK", r#"["true"]"#)]);
    scene.agent.start().await;
    scene.knows_all().await;
    let (notes, check) = scene.hook_messages().await;
    let why = "hook before-shrink in container app: there is no container runtime to run it";
    assert_eq!(notes, [why]);
    assert_eq!(
        check,
        Some(format!("warn: hooks that cannot run: 1, such as test/web {why}"))
    );
}
