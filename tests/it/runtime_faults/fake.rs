//! A fake runtime behind a real unix socket, for answers that no real one gives on demand.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures::stream::{self, StreamExt};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::codegen::BoxStream;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status};
use vscaled::runtime::proto::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use vscaled::runtime::proto::{
    Container, ContainerEventResponse, ContainerResources, ContainerState, ContainerStatus, ContainerStatusRequest,
    ContainerStatusResponse, GetEventsRequest, LinuxContainerResources, ListContainersRequest, ListContainersResponse,
    VersionRequest, VersionResponse,
};

/// The behaviour of the event stream.
#[derive(Debug, Clone)]
pub(super) enum Events {
    /// The call does not exist.
    Unimplemented,
    /// The stream ends at once, as CRI-O's does with pod events disabled.
    EndAtOnce,
    /// The stream sends these events, and then nothing.
    These(Vec<ContainerEventResponse>),
}

/// A runtime with configured answers; every other call is unimplemented.
#[derive(Debug, Clone)]
pub(super) struct FakeRuntime {
    pub(super) name: &'static str,
    pub(super) containers: Arc<Mutex<Vec<Container>>>,
    /// The id in the answers about statuses; `None` means the requested one.
    pub(super) status_about: Option<&'static str>,
    /// Whether only verbose statuses have resources, as containerd's before 1.7.
    pub(super) is_old: bool,
    pub(super) events: Events,
    /// The received calls about containers.
    pub(super) calls: Arc<Mutex<Vec<&'static str>>>,
}

impl FakeRuntime {
    pub(super) fn new(name: &'static str, events: Events) -> Self {
        Self {
            name,
            containers: Arc::default(),
            status_about: None,
            is_old: false,
            events,
            calls: Arc::default(),
        }
    }
}

#[tonic::async_trait]
impl RuntimeService for FakeRuntime {
    async fn version(&self, _: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
        Ok(Response::new(VersionResponse {
            runtime_name: self.name.to_owned(),
            ..VersionResponse::default()
        }))
    }

    async fn list_containers(
        &self,
        _: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        self.calls.lock().unwrap().push("ListContainers");
        let containers = self.containers.lock().unwrap().clone();
        Ok(Response::new(ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Result<Response<ContainerStatusResponse>, Status> {
        let ContainerStatusRequest { container_id, verbose } = request.into_inner();
        let call = if verbose {
            "verbose ContainerStatus"
        } else {
            "ContainerStatus"
        };
        self.calls.lock().unwrap().push(call);
        let asked = container_id;
        let status = ContainerStatus {
            id: self.status_about.map_or(asked, str::to_owned),
            state: ContainerState::ContainerRunning.into(),
            labels: labels(),
            resources: (!self.is_old).then(|| ContainerResources {
                linux: Some(LinuxContainerResources::default()),
            }),
            ..ContainerStatus::default()
        };
        let spec = r#"{"runtimeSpec":{"linux":{"resources":{"memory":{"limit":67108864}}}}}"#;
        let info = verbose.then(|| ("info".to_owned(), spec.to_owned()));
        Ok(Response::new(ContainerStatusResponse {
            status: Some(status),
            info: info.into_iter().collect(),
        }))
    }

    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> Result<Response<BoxStream<ContainerEventResponse>>, Status> {
        match &self.events {
            Events::Unimplemented => Err(Status::unimplemented("unknown method GetContainerEvents")),
            Events::EndAtOnce => Ok(Response::new(Box::pin(stream::empty()))),
            Events::These(events) => {
                let events = stream::iter(events.clone().into_iter().map(Ok));
                Ok(Response::new(Box::pin(events.chain(stream::pending()))))
            }
        }
    }
}

/// The labels that a kubelet gives a container.
fn labels() -> HashMap<String, String> {
    let labels = [
        ("io.kubernetes.pod.name", "web-0"),
        ("io.kubernetes.pod.namespace", "shop"),
        ("io.kubernetes.pod.uid", "11111111-2222-3333-4444-555555555555"),
        ("io.kubernetes.container.name", "app"),
    ];
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// A container of a pod, as in a list.
pub(super) fn container(id: &str) -> Container {
    Container {
        id: id.to_owned(),
        pod_sandbox_id: "sandbox".to_owned(),
        state: ContainerState::ContainerRunning.into(),
        labels: labels(),
        ..Container::default()
    }
}

/// A test's own socket, with its server until the value is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    directory: TempDir,
    /// `None` without a server.
    _server: Option<AbortOnDropHandle<()>>,
}

impl Socket {
    /// A path for a socket without a server.
    pub(crate) fn nowhere() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            _server: None,
        }
    }

    /// Serves gRPC.
    pub(crate) fn serving(router: Router) -> Self {
        let socket = Self::nowhere();
        let listener = UnixListenerStream::new(UnixListener::bind(socket.path()).unwrap());
        let server = tokio::spawn(async move { router.serve_with_incoming(listener).await.unwrap() });
        Self {
            _server: Some(AbortOnDropHandle::new(server)),
            ..socket
        }
    }

    pub(super) fn of(runtime: FakeRuntime) -> Self {
        Self::serving(Server::builder().add_service(RuntimeServiceServer::new(runtime)))
    }

    /// Calls a function for every connection.
    pub(super) fn with<F>(answer: impl Fn(tokio::net::UnixStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let socket = Self::nowhere();
        let listener = UnixListener::bind(socket.path()).unwrap();
        let server = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(answer(connection));
            }
        });
        Self {
            _server: Some(AbortOnDropHandle::new(server)),
            ..socket
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("cri.sock")
    }
}
