//! The CRI client: every call has a deadline, every answer is checked, every error names its call.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::OptionFuture;
use tokio::sync::Semaphore;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use super::error::{Problem, RuntimeError};
use super::events::{EventStream, NAMESPACE};
use super::metrics::RuntimeMetrics;
use super::proto::runtime_service_client::RuntimeServiceClient;
use super::proto::{self, ContainerStatusResponse, ExecSyncResponse, LinuxContainerResources, VersionResponse};
use super::{ContainerRuntime, Executed, ListedContainer, ListedPod, Listing, RuntimeInfo, answer};
use crate::cgroup::page_size;
use crate::model::CriResources;
use crate::proto::containerd::KillRequest;
use crate::proto::containerd::tasks_client::TasksClient;

/// The largest answer accepted, as the kubelet's: a list of a dense node exceeds tonic's own 4 MiB.
const MAX_ANSWER: usize = 16 << 20;

/// The verbose answers at once: each may have megabytes, because it has the variables of its container.
const VERBOSE_AT_ONCE: usize = 2;

/// The largest answer accepted from a command in a container.
const MOST_PRINTED: usize = 64 << 10;

/// How long after a command's deadline the runtime may take to end the command.
const TIME_TO_KILL: Duration = Duration::from_secs(2);

/// How long calls may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    pub read: Duration,
    /// For updates: the runtime runs its OCI runtime, and lowering memory may reclaim inside the call.
    pub update: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            read: Duration::from_secs(2),
            update: Duration::from_secs(10),
        }
    }
}

/// A client of a runtime that serves CRI v1 at a unix socket. Clones are cheap and share one connection. The first call
/// connects, and so does the first call after the runtime restarted.
#[derive(Debug, Clone)]
pub struct Cri {
    pub(super) client: RuntimeServiceClient<Channel>,
    pub(super) channel: Channel,
    socket: Arc<Path>,
    deadlines: Deadlines,
    verbose: Arc<Semaphore>,
    metrics: Option<RuntimeMetrics>,
}

impl Cri {
    /// A client of the process that listens at `socket`. Does not connect. Needs a tokio runtime.
    ///
    /// Errors: the path is not UTF-8.
    pub fn new(socket: &Path, deadlines: Deadlines) -> Result<Self, RuntimeError> {
        let unusable = |cause: &str| RuntimeError {
            method: "Version",
            socket: socket.into(),
            container: None,
            problem: Problem::not_cri(cause, "give the path of a unix socket, in UTF-8"),
        };
        let path = socket.to_str().ok_or_else(|| unusable("the path is not UTF-8"))?;
        let channel = Endpoint::from_shared(format!("unix://{path}"))
            .map_err(|error| unusable(&error.to_string()))?
            .connect_lazy();
        Ok(Self {
            client: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER),
            channel,
            socket: socket.into(),
            deadlines,
            verbose: Arc::new(Semaphore::new(VERBOSE_AT_ONCE)),
            metrics: None,
        })
    }

    /// The same client, which counts its calls from now on.
    #[must_use]
    pub fn counted(mut self, metrics: RuntimeMetrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn error(&self, method: &'static str, container: Option<&str>, problem: Problem) -> RuntimeError {
        RuntimeError {
            method,
            socket: Arc::clone(&self.socket),
            container: container.map(str::to_owned),
            problem,
        }
    }

    /// The runtime's name and version. This is the cheapest call that shows whether the runtime answers.
    pub(super) async fn version(&self) -> Result<VersionResponse, RuntimeError> {
        let version = "v1".to_owned();
        let mut client = self.client.clone();
        let call = client.version(proto::VersionRequest { version });
        let mut answer = self.call("Version", None, self.deadlines.read, call, Ok).await;
        if let Err(RuntimeError { problem, .. }) = &mut answer
            && *problem == Problem::Unimplemented
        {
            *problem = Problem::not_cri(
                "it serves gRPC without runtime.v1.RuntimeService",
                "the runtime's CRI is disabled (containerd: disabled_plugins) or older than v1",
            );
        }
        answer
    }

    /// The running containers, unfiltered by labels. Every entry has an id.
    pub(super) async fn running(&self) -> Result<Vec<proto::Container>, RuntimeError> {
        let state = proto::ContainerState::ContainerRunning.into();
        let state = Some(proto::ContainerStateValue { state });
        let filter = Some(proto::ContainerFilter { state });
        let mut client = self.client.clone();
        let call = client.list_containers(proto::ListContainersRequest { filter });
        let read = |answer: proto::ListContainersResponse| match answer.containers {
            listed if listed.iter().any(|container| container.id.is_empty()) => {
                Err(Problem::nonsense("a container without an id"))
            }
            listed => Ok(listed),
        };
        self.call("ListContainers", None, self.deadlines.read, call, read).await
    }

    /// The pods whose sandbox is ready, in one call. Includes pods whose containers are all down, between two crashes. A
    /// sandbox that the runtime cannot describe does not hide the others.
    ///
    /// Errors: the runtime is away, hangs, or answers nonsense.
    pub async fn list_pods(&self) -> Result<Listing<ListedPod>, RuntimeError> {
        const METHOD: &str = "ListPodSandbox";
        let state = proto::PodSandboxState::SandboxReady.into();
        let state = Some(proto::PodSandboxStateValue { state });
        let filter = Some(proto::PodSandboxFilter { state });
        let mut client = self.client.clone();
        let call = client.list_pod_sandbox(proto::ListPodSandboxRequest { filter });
        let read = |answer: proto::ListPodSandboxResponse| Ok(answer.items);
        let sandboxes = self.call(METHOD, None, self.deadlines.read, call, read).await?;
        let of_pods = sandboxes
            .into_iter()
            .filter(|sandbox| answer::is_the_kubelets(&sandbox.labels));
        Ok(self.listing(METHOD, of_pods.map(|sandbox| (None, answer::listed_pod(sandbox)))))
    }

    /// The running containers of pods, in one call however many there are. A container that the runtime cannot describe
    /// does not hide the others.
    ///
    /// Errors: the runtime is away, hangs, or the list itself is unusable.
    pub async fn list_containers(&self) -> Result<Listing<ListedContainer>, RuntimeError> {
        let running = self.running().await?.into_iter();
        let of_pods = running.filter(|entry| answer::is_the_kubelets(&entry.labels));
        let read = of_pods.map(|entry| (Some(entry.id.clone()), answer::listed(entry)));
        Ok(self.listing("ListContainers", read))
    }

    /// Whether the runtime runs a container of a pod. Where this runtime is chosen, the next list reports an error again.
    pub async fn runs_pods(&self) -> bool {
        let listed = self.list_containers().await;
        listed.is_ok_and(|listed| !listed.entries.is_empty())
    }

    /// The entries of a list, each with the container's id if it has one.
    fn listing<T>(
        &self,
        method: &'static str,
        read: impl Iterator<Item = (Option<String>, Result<T, Problem>)>,
    ) -> Listing<T> {
        let (mut entries, mut unusable) = (Vec::new(), Vec::new());
        for (container, entry) in read {
            match entry {
                Ok(entry) => entries.push(entry),
                Err(problem) => unusable.push(self.error(method, container.as_deref(), problem)),
            }
        }
        Listing { entries, unusable }
    }

    /// Follows the events of containers until the stream is dropped.
    pub fn events(&self) -> EventStream {
        EventStream::of(self.clone())
    }

    async fn status<R>(
        &self,
        id: &str,
        verbose: bool,
        read: impl FnOnce(ContainerStatusResponse) -> Result<R, Problem>,
    ) -> Result<R, RuntimeError> {
        // The error would be that of a closed semaphore.
        let _turn = OptionFuture::from(verbose.then(|| self.verbose.acquire())).await;
        let container_id = id.to_owned();
        let mut client = self.client.clone();
        let call = client.container_status(proto::ContainerStatusRequest { container_id, verbose });
        self.call("ContainerStatus", Some(id), self.deadlines.read, call, read)
            .await
    }

    /// Waits for the answer of one call, counts the call, and reads the answer. A call that is dropped at its deadline resets
    /// its stream, which cancels the call in the runtime too.
    async fn call<T, R>(
        &self,
        method: &'static str,
        container: Option<&str>,
        limit: Duration,
        answer: impl Future<Output = Result<Response<T>, Status>>,
        read: impl FnOnce(T) -> Result<R, Problem>,
    ) -> Result<R, RuntimeError> {
        let start = Instant::now();
        let answer = match tokio::time::timeout(limit, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Problem::from(&status)),
            Err(_) => Err(Problem::Deadline { limit }),
        };
        if let Some(metrics) = &self.metrics {
            metrics.called(method, start.elapsed(), answer.as_ref().err());
        }
        answer
            .and_then(read)
            .map_err(|problem| self.error(method, container, problem))
    }
}

#[tonic::async_trait]
impl ContainerRuntime for Cri {
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError> {
        let version = self.version().await?;
        let kind =
            answer::runtime_kind(&version.runtime_name).map_err(|problem| self.error("Version", None, problem))?;
        let mut client = self.client.clone();
        let call = client.runtime_config(proto::RuntimeConfigRequest {});
        let read = |config: proto::RuntimeConfigResponse| answer::cgroup_driver(&config);
        let driver = self.call("RuntimeConfig", None, self.deadlines.read, call, read).await;
        let cgroup_driver = match driver {
            Err(error) if error.problem == Problem::Unimplemented => None,
            driver => driver?,
        };
        Ok(RuntimeInfo {
            name: version.runtime_name,
            version: version.runtime_version,
            kind,
            cgroup_driver,
        })
    }

    async fn stored(&self, id: &str) -> Result<Option<CriResources>, RuntimeError> {
        let read = |answer| answer::stored(id, answer);
        match self.status(id, false, read).await? {
            // An older runtime has it in the verbose status alone.
            None => self.status(id, true, read).await,
            known => Ok(known),
        }
    }

    async fn exec(&self, id: &str, command: &[String], deadline: Duration) -> Result<Executed, RuntimeError> {
        let request = proto::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(deadline.as_secs()).unwrap_or(i64::MAX).max(1),
        };
        // tonic refuses a larger answer before it reads the answer: a container never fills the agent's memory.
        let mut client = RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(MOST_PRINTED);
        let call = client.exec_sync(request);
        let read = |answer: ExecSyncResponse| answer::executed(&answer, deadline);
        self.call("ExecSync", Some(id), deadline + TIME_TO_KILL, call, read)
            .await
    }

    async fn signal(&self, id: &str, signal: u32) -> Result<(), RuntimeError> {
        let mut request = Request::new(KillRequest {
            container_id: id.to_owned(),
            signal,
        });
        let namespace = MetadataValue::from_static(NAMESPACE);
        request.metadata_mut().insert("containerd-namespace", namespace);
        let mut tasks = TasksClient::new(self.channel.clone());
        let call = tasks.kill(request);
        self.call("Kill", Some(id), self.deadlines.read, call, |_| Ok(())).await
    }

    async fn first_process(&self, id: &str) -> Result<Option<i32>, RuntimeError> {
        self.status(id, true, |answer| answer::first_process(id, &answer)).await
    }

    async fn update(&self, id: &str, resources: &CriResources) -> Result<(), RuntimeError> {
        const METHOD: &str = "UpdateContainerResources";
        let linux = update_request(resources).map_err(|problem| self.error(METHOD, Some(id), problem))?;
        let mut client = self.client.clone();
        let call = client.update_container_resources(proto::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
        });
        self.call(METHOD, Some(id), self.deadlines.update, call, |_| Ok(()))
            .await
    }
}

/// The request that changes exactly the fields that are set.
///
/// On the wire zero means "leave it", so a zero is refused here: it would silently change nothing. The bounds are the
/// kernel's (`kernel/sched/core.c`: quota at least 1 ms, period 1 ms to 1 s; `cpu.shares` at least 2).
fn update_request(resources: &CriResources) -> Result<LinuxContainerResources, Problem> {
    let CriResources {
        cpu_shares,
        cpu_quota,
        cpu_period,
        memory_limit_in_bytes,
    } = *resources;
    let bounded = |value: Option<i64>| value.filter(|value| *value != -1);
    let page = i64::try_from(page_size().get()).unwrap_or(i64::MAX);
    let changes = i64::from(*resources != CriResources::default());
    let rules = [
        ("the number of changed fields", Some(changes), "at least 1", 1..=1),
        ("cpu_shares", cpu_shares, "2 to 262144", 2..=262_144),
        (
            "cpu_quota",
            bounded(cpu_quota),
            "-1 (unbounded) or at least 1000 µs",
            1000..=i64::MAX,
        ),
        ("cpu_period", cpu_period, "1000 to 1000000 µs", 1000..=1_000_000),
        (
            "memory_limit_in_bytes",
            bounded(memory_limit_in_bytes),
            "-1 (unbounded) or at least one page of memory",
            page..=i64::MAX,
        ),
    ];
    for (field, value, allowed, range) in rules {
        if let Some(value) = value.filter(|value| !range.contains(value)) {
            let why = format!("{field} must be {allowed}, not {value}; nothing was sent");
            return Err(Problem::Unusable(why));
        }
    }
    Ok(LinuxContainerResources {
        cpu_shares: cpu_shares.unwrap_or(0),
        cpu_quota: cpu_quota.unwrap_or(0),
        cpu_period: cpu_period.unwrap_or(0),
        memory_limit_in_bytes: memory_limit_in_bytes.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;
    use tokio_util::task::AbortOnDropHandle;
    use tonic::transport::Server;

    use super::*;
    use crate::runtime::proto::runtime_service_server::{RuntimeService, RuntimeServiceServer};
    use crate::runtime::proto::{ExecSyncRequest, UpdateContainerResourcesRequest, UpdateContainerResourcesResponse};

    /// Keeps the requests about containers.
    #[derive(Debug, Clone, Default)]
    struct RequestRecorder {
        updates: Arc<Mutex<Vec<UpdateContainerResourcesRequest>>>,
        commands: Arc<Mutex<Vec<ExecSyncRequest>>>,
    }

    #[tonic::async_trait]
    impl RuntimeService for RequestRecorder {
        async fn update_container_resources(
            &self,
            request: Request<UpdateContainerResourcesRequest>,
        ) -> Result<Response<UpdateContainerResourcesResponse>, Status> {
            self.updates.lock().push(request.into_inner());
            Ok(Response::new(UpdateContainerResourcesResponse::default()))
        }

        async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> Result<Response<ExecSyncResponse>, Status> {
            self.commands.lock().push(request.into_inner());
            Ok(Response::new(ExecSyncResponse::default()))
        }
    }

    #[tokio::test]
    async fn a_request_names_its_container_and_amounts() {
        let temp = tempfile::tempdir().unwrap();
        let socket = temp.path().join("x.sock");
        let recorder = RequestRecorder::default();
        let incoming = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let router = Server::builder().add_service(RuntimeServiceServer::new(recorder.clone()));
        let _server = AbortOnDropHandle::new(tokio::spawn(async move {
            router.serve_with_incoming(incoming).await.unwrap();
        }));
        let cri = Cri::new(&socket, Deadlines::default()).unwrap();
        let resources = CriResources {
            cpu_shares: Some(512),
            cpu_quota: Some(-1),
            ..CriResources::default()
        };
        cri.update("c1", &resources).await.unwrap();
        let update = UpdateContainerResourcesRequest {
            container_id: "c1".to_owned(),
            linux: Some(update_request(&resources).unwrap()),
        };
        assert_eq!(*recorder.updates.lock(), [update]);
        let cmd = vec!["jcmd".to_owned(), "1".to_owned()];
        // A timeout of 0 would be none.
        for (deadline, timeout) in [(Duration::from_millis(100), 1), (Duration::from_secs(90), 90)] {
            cri.exec("c2", &cmd, deadline).await.unwrap();
            let command = ExecSyncRequest {
                container_id: "c2".to_owned(),
                cmd: cmd.clone(),
                timeout,
            };
            assert_eq!(recorder.commands.lock().pop(), Some(command));
        }
    }

    #[test]
    fn only_the_fields_that_change_are_sent() {
        let memory = CriResources {
            memory_limit_in_bytes: Some(64 << 20),
            ..CriResources::default()
        };
        let expected = LinuxContainerResources {
            memory_limit_in_bytes: 64 << 20,
            ..LinuxContainerResources::default()
        };
        assert_eq!(update_request(&memory).unwrap(), expected);
    }

    #[test]
    fn each_field_is_sent_within_its_bounds() {
        let page = i64::try_from(page_size().get()).unwrap();
        for (cpu_shares, cpu_quota, cpu_period, memory_limit_in_bytes) in
            [(2, 1000, 1_000_000, page), (262_144, 20_000, 1000, 64 << 20)]
        {
            let sent = update_request(&CriResources {
                cpu_shares: Some(cpu_shares),
                cpu_quota: Some(cpu_quota),
                cpu_period: Some(cpu_period),
                memory_limit_in_bytes: Some(memory_limit_in_bytes),
            });
            let expected = LinuxContainerResources {
                cpu_shares,
                cpu_quota,
                cpu_period,
                memory_limit_in_bytes,
            };
            assert_eq!(sent, Ok(expected));
        }
    }

    #[test]
    fn unbounded_is_minus_one() {
        let unbounded = CriResources {
            cpu_quota: Some(-1),
            memory_limit_in_bytes: Some(-1),
            ..CriResources::default()
        };
        let sent = update_request(&unbounded).unwrap();
        assert_eq!((sent.cpu_quota, sent.memory_limit_in_bytes), (-1, -1));
    }

    #[test]
    fn a_zero_that_would_change_nothing_is_refused() {
        let zero = CriResources {
            cpu_quota: Some(0),
            ..CriResources::default()
        };
        assert_eq!(
            update_request(&zero).unwrap_err().to_string(),
            "cpu_quota must be -1 (unbounded) or at least 1000 µs, not 0; nothing was sent"
        );
        assert!(update_request(&CriResources::default()).is_err());
    }

    #[test]
    fn values_the_kernel_would_refuse_are_not_sent() {
        for (shares, quota, period, memory) in [
            (Some(1), None, None, None),
            (Some(262_145), None, None, None),
            (None, Some(999), None, None),
            (None, Some(-2), None, None),
            (None, None, Some(999), None),
            (None, None, Some(1_000_001), None),
            (None, None, None, Some(4095)),
            (None, None, None, Some(i64::MIN)),
        ] {
            let resources = CriResources {
                cpu_shares: shares,
                cpu_quota: quota,
                cpu_period: period,
                memory_limit_in_bytes: memory,
            };
            assert!(update_request(&resources).is_err(), "{resources:?}");
        }
    }
}
