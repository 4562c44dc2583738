//! A runtime that is unavailable, hangs, is another kind of server, or gives invalid answers: vscaled distinguishes
//! these errors, names the call and the socket, and hides no other error.

pub(crate) mod fake;

use std::future::pending;
use std::time::Duration;

use futures::future::join_all;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tonic::transport::Server;
use vscaled::model::CriResources;
use vscaled::runtime::proto::image_service_server::{ImageService, ImageServiceServer};
use vscaled::runtime::proto::{Container, ContainerEventResponse, ContainerEventType};
use vscaled::runtime::{ContainerRuntime, Cri, Deadlines, EventStream, Problem, RuntimeError, RuntimeEvent, discover};

use fake::{Events, FakeRuntime, Socket, container};

const IMPATIENT: Deadlines = Deadlines {
    read: Duration::from_millis(50),
    update: Duration::from_millis(60),
};

const MEMORY: CriResources = CriResources {
    cpu_shares: None,
    cpu_quota: None,
    cpu_period: None,
    memory_limit_in_bytes: Some(64 << 20),
};

fn client(socket: &Socket) -> Cri {
    Cri::new(&socket.path(), Deadlines::default()).unwrap()
}

/// The only error of a discovery at this socket.
async fn found(socket: &Socket) -> RuntimeError {
    let error = discover(Some(&socket.path()), Deadlines::default()).await.unwrap_err();
    let path = socket.path().display().to_string();
    assert!(error.to_string().contains(&path), "{error}");
    let [only] = <[RuntimeError; 1]>::try_from(error.tried).unwrap();
    only
}

#[tokio::test]
async fn a_missing_socket_says_what_to_look_at() {
    let error = found(&Socket::nowhere()).await;
    assert!(error.is_retryable());
    assert!(error.to_string().contains("the socket does not exist"), "{error}");
}

#[tokio::test]
async fn a_socket_without_a_listener_is_a_stopped_runtime() {
    let socket = Socket::nowhere();
    drop(UnixListener::bind(socket.path()).unwrap());
    let error = found(&socket).await;
    assert!(error.is_retryable());
    assert!(error.to_string().contains("the runtime is stopped"), "{error}");
}

#[tokio::test]
async fn a_runtime_that_hangs_runs_into_the_deadline_of_the_call() {
    let socket = Socket::with(|connection| async move {
        let _held: tokio::net::UnixStream = connection;
        pending::<()>().await;
    });
    let cri = Cri::new(&socket.path(), IMPATIENT).unwrap();
    let read = cri.list_containers().await.unwrap_err();
    assert_eq!(read.problem, Problem::Deadline { limit: IMPATIENT.read });
    let update = cri.update("c1", &MEMORY).await.unwrap_err();
    assert_eq!(
        update.problem,
        Problem::Deadline {
            limit: IMPATIENT.update
        }
    );
    assert!(
        update.is_retryable() && update.to_string().contains("container c1"),
        "{update}"
    );
}

#[tokio::test]
async fn a_socket_that_does_not_speak_grpc_is_not_a_runtime() {
    let socket = Socket::with(|mut connection| async move {
        let answer = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nthis is the docker API, not what you want";
        connection.write_all(answer).await.unwrap();
        pending::<()>().await;
    });
    let error = found(&socket).await;
    assert!(
        error.to_string().contains("no CRI v1 runtime is behind this socket"),
        "{error}"
    );
    assert!(!error.is_retryable());
}

#[derive(Debug)]
struct ImagesOnly;

impl ImageService for ImagesOnly {}

#[tokio::test]
async fn a_server_without_cri_is_not_a_runtime() {
    let socket = Socket::serving(Server::builder().add_service(ImageServiceServer::new(ImagesOnly)));
    let error = found(&socket).await;
    assert!(
        error.to_string().contains("no CRI v1 runtime is behind this socket"),
        "{error}"
    );
    assert!(error.to_string().contains("disabled_plugins"), "{error}");
}

#[tokio::test]
async fn a_runtime_nobody_knows_is_named() {
    let error = found(&Socket::of(FakeRuntime::new("podman", Events::Unimplemented))).await;
    assert!(
        error.to_string().contains("\"podman\" is not a supported runtime"),
        "{error}"
    );
}

#[tokio::test]
async fn a_runtime_that_does_not_tell_its_driver_is_still_a_runtime() {
    let socket = Socket::of(FakeRuntime::new("containerd", Events::Unimplemented));
    let (_, info) = discover(Some(&socket.path()), Deadlines::default()).await.unwrap();
    assert_eq!(info.cgroup_driver, None);
}

#[tokio::test]
async fn one_nameless_container_does_not_hide_the_others() {
    let runtime = FakeRuntime::new("containerd", Events::Unimplemented);
    let mut nameless = container("bad");
    nameless.labels.remove("io.kubernetes.container.name");
    *runtime.containers.lock().unwrap() = vec![nameless, container("good")];
    let socket = Socket::of(runtime);
    let listing = client(&socket).list_containers().await.unwrap();
    assert_eq!(listing.entries.len(), 1);
    assert_eq!(listing.entries[0].id, "good");
    let [error] = <[RuntimeError; 1]>::try_from(listing.unusable).unwrap();
    assert!(
        error.to_string().contains("container bad")
            && error.to_string().contains("io.kubernetes.container.name is missing"),
        "{error}"
    );
}

#[tokio::test]
async fn what_no_kubelet_made_is_not_listed() {
    let runtime = FakeRuntime::new("containerd", Events::Unimplemented);
    let mut by_hand = container("by-hand");
    by_hand.labels.clear();
    *runtime.containers.lock().unwrap() = vec![by_hand, container("good")];
    let listing = client(&Socket::of(runtime)).list_containers().await.unwrap();
    assert!(listing.unusable.is_empty(), "{:?}", listing.unusable);
    assert_eq!(listing.entries.len(), 1);
    assert_eq!(listing.entries[0].id, "good");
}

#[tokio::test]
async fn a_status_about_another_container_is_refused() {
    let mut runtime = FakeRuntime::new("containerd", Events::Unimplemented);
    runtime.status_about = Some("good");
    let socket = Socket::of(runtime);
    let cri = client(&socket);
    cri.stored("good").await.unwrap();
    let error = cri.stored("bad").await.unwrap_err();
    assert!(
        error.to_string().contains("container bad") && error.to_string().contains("about container \"good\""),
        "{error}"
    );
}

#[tokio::test]
async fn looking_at_all_containers_or_at_one_is_a_single_call() {
    let runtime = FakeRuntime::new("containerd", Events::Unimplemented);
    *runtime.containers.lock().unwrap() = (0..250).map(|n| container(&n.to_string())).collect();
    let calls = std::sync::Arc::clone(&runtime.calls);
    let socket = Socket::of(runtime);
    let cri = client(&socket);
    assert_eq!(cri.list_containers().await.unwrap().entries.len(), 250);
    assert_eq!(*calls.lock().unwrap(), ["ListContainers"]);
    cri.stored("17").await.unwrap();
    assert_eq!(*calls.lock().unwrap(), ["ListContainers", "ContainerStatus"]);
}

#[tokio::test]
async fn an_older_runtime_tells_specs_in_verbose_statuses() {
    let mut runtime = FakeRuntime::new("containerd", Events::Unimplemented);
    runtime.is_old = true;
    let socket = Socket::of(runtime);
    let cri = client(&socket);
    let ids: Vec<_> = (0..60).map(|n| n.to_string()).collect();
    for stored in join_all(ids.iter().map(|id| cri.stored(id))).await {
        assert_eq!(stored.unwrap(), Some(MEMORY));
    }
}

#[tokio::test]
async fn a_container_without_an_id_spoils_the_list() {
    let runtime = FakeRuntime::new("containerd", Events::Unimplemented);
    *runtime.containers.lock().unwrap() = vec![Container::default()];
    let error = client(&Socket::of(runtime)).list_containers().await.unwrap_err();
    assert!(error.to_string().contains("answer makes no sense"), "{error}");
}

#[tokio::test]
async fn a_list_that_is_larger_than_the_agent_reads_is_refused() {
    let runtime = FakeRuntime::new("containerd", Events::Unimplemented);
    let mut fat = container("fat");
    fat.labels.insert("fat".to_owned(), "x".repeat(17 << 20));
    *runtime.containers.lock().unwrap() = vec![fat];
    let error = client(&Socket::of(runtime)).list_containers().await.unwrap_err();
    assert!(error.to_string().contains("too large"), "{error}");
}

#[tokio::test]
async fn a_refused_value_is_never_sent() {
    let cri = client(&Socket::nowhere());
    let tiny = CriResources {
        memory_limit_in_bytes: Some(0),
        ..MEMORY
    };
    let error = cri.update("c1", &tiny).await.unwrap_err();
    assert!(error.to_string().contains(", not 0; nothing was sent"), "{error}");
}

async fn next(events: &mut EventStream) -> RuntimeEvent {
    tokio::time::timeout(Duration::from_secs(30), events.next())
        .await
        .expect("an event in time")
}

/// Skips other events until the next one about a container.
async fn next_of_a_container(events: &mut EventStream) -> RuntimeEvent {
    loop {
        let event = next(events).await;
        if matches!(event, RuntimeEvent::Started(_) | RuntimeEvent::Ended(_)) {
            return event;
        }
    }
}

fn started(id: &str) -> RuntimeEvent {
    RuntimeEvent::Started(id.to_owned())
}

#[tokio::test]
async fn cri_events_are_followed_where_containerds_own_are_missing() {
    for name in ["cri-o", "containerd"] {
        let event = ContainerEventResponse {
            container_id: "c1".to_owned(),
            container_event_type: ContainerEventType::ContainerStartedEvent.into(),
            created_at: 1,
        };
        let socket = Socket::of(FakeRuntime::new(name, Events::These(vec![event])));
        let mut events = client(&socket).events();
        assert_eq!(next(&mut events).await, RuntimeEvent::Resync);
        assert_eq!(next_of_a_container(&mut events).await, started("c1"));
    }
}

#[tokio::test]
async fn without_any_events_the_differences_of_lists_are_told() {
    for offered in [Events::Unimplemented, Events::EndAtOnce] {
        let runtime = FakeRuntime::new("cri-o", offered);
        let containers = std::sync::Arc::clone(&runtime.containers);
        *containers.lock().unwrap() = vec![container("old")];
        let socket = Socket::of(runtime);
        let mut events = client(&socket).events();
        assert_eq!(next(&mut events).await, RuntimeEvent::Resync);
        // New containers appear until polling detects one of them, which proves that polling has started.
        let mut made = 0;
        let event = loop {
            made += 1;
            containers.lock().unwrap().push(container(&format!("new-{made}")));
            let waiting = next_of_a_container(&mut events);
            if let Ok(event) = tokio::time::timeout(Duration::from_millis(100), waiting).await {
                break event;
            }
        };
        assert!(
            matches!(&event, RuntimeEvent::Started(id) if id.starts_with("new-")),
            "{event:?}"
        );
    }
}

#[tokio::test]
async fn a_runtime_that_is_away_is_told_once() {
    let socket = Socket::nowhere();
    let mut events = client(&socket).events();
    let RuntimeEvent::Lost { why } = next(&mut events).await else {
        panic!("followed nobody");
    };
    assert!(why.contains("the socket does not exist"), "{why}");
    let silence = tokio::time::timeout(Duration::from_millis(500), events.next()).await;
    assert!(silence.is_err(), "{silence:?}");
}
