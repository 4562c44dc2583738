//! The runtime client's reads and events with containerd.

use std::time::Duration;

use vscaled::model::{CriResources, Driver, RuntimeKind};
use vscaled::runtime::proto::ContainerState;
use vscaled::runtime::{EventStream, Problem, RuntimeEvent, discover};

use super::*;

/// Skips other events until the expected one arrives. Only a failing test waits this long.
async fn expect(events: &mut EventStream, wanted: &RuntimeEvent) {
    let found = async { while events.next().await != *wanted {} };
    tokio::time::timeout(Duration::from_secs(60), found)
        .await
        .unwrap_or_else(|_| panic!("{wanted:?} was never told"));
}

#[tokio::test]
async fn containers_are_listed_with_their_stored_resources() {
    let containerd = Containerd::start(OciRuntime::Runc).await;
    let pod = containerd.run(&pod()).await;
    let (cri, info) = discover(Some(&containerd.socket()), patient()).await.unwrap();
    assert_eq!((info.name.as_str(), info.kind), ("containerd", RuntimeKind::Containerd));
    // containerd reports the driver from 2.0 on; an older one must not be taken for systemd's.
    assert!(matches!(info.cgroup_driver, None | Some(Driver::Cgroupfs)), "{info:?}");

    let pods = cri.list_pods().await.unwrap().entries;
    assert_eq!(pods.len(), 1);
    let listed = &pods[0].pod;
    assert_eq!(
        (listed.uid.as_str(), listed.namespace.as_str(), listed.name.as_str()),
        (UID, "test", "web-0")
    );
    let listing = cri.list_containers().await.unwrap();
    assert!(listing.unusable.is_empty(), "{:?}", listing.unusable);
    let mut containers = listing.entries;
    containers.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(containers.len(), 2);
    let app = &containers[0];
    assert_eq!((app.name.as_str(), app.pod.to_string().as_str()), ("app", "test/web-0"));
    assert_eq!((app.pod.uid.as_str(), &app.id), (UID, &pod.containers[0].id));
    let sidecar = &containers[1];
    assert_eq!((sidecar.name.as_str(), &sidecar.id), ("sidecar", &pod.containers[1].id));
    assert!(app.created_at.is_some() && app.created_at < sidecar.created_at);

    let stored = CriResources {
        cpu_shares: Some(512),
        cpu_quota: Some(20_000),
        cpu_period: Some(100_000),
        memory_limit_in_bytes: Some(64 * MIB),
    };
    assert_eq!(cri.stored(&app.id).await.unwrap(), Some(stored));
    let told = cri.stored(&sidecar.id).await.unwrap();
    assert_eq!(told.unwrap().memory_limit_in_bytes, Some(32 * MIB));
}

#[tokio::test]
async fn starts_and_ends_are_told() {
    let containerd = Containerd::start(OciRuntime::Runc).await;
    let cri = client(&containerd);
    let mut events = cri.events();
    expect(&mut events, &RuntimeEvent::Resync).await;

    let pod = containerd.run(&pod()).await;
    let app = &pod.containers[0];
    expect(&mut events, &RuntimeEvent::Started(app.id.clone())).await;

    containerd.end(app).await;
    expect(&mut events, &RuntimeEvent::Ended(app.id.clone())).await;
    assert_eq!(containerd.life(&app.id).await.state(), ContainerState::ContainerExited);
    let running = cri.list_containers().await.unwrap().entries;
    assert_eq!(
        running.iter().map(|container| &container.id).collect::<Vec<_>>(),
        [&pod.containers[1].id]
    );
}

#[tokio::test]
async fn a_runtime_that_stopped_is_unavailable_until_it_is_back() {
    let mut containerd = Containerd::start(OciRuntime::Runc).await;
    let pod = containerd.run(&pod()).await;
    let cri = client(&containerd);
    let mut events = cri.events();
    expect(&mut events, &RuntimeEvent::Resync).await;
    assert_eq!(cri.list_containers().await.unwrap().entries.len(), 2);

    containerd.stop();
    let lost = async {
        loop {
            if let RuntimeEvent::Lost { why } = events.next().await {
                return why;
            }
        }
    };
    let why = tokio::time::timeout(Duration::from_secs(60), lost).await.unwrap();
    let socket = containerd.socket().display().to_string();
    assert!(why.contains(&socket), "{why}");
    let change = CriResources {
        memory_limit_in_bytes: Some(96 * MIB),
        ..CriResources::default()
    };
    let error = cri.update(&pod.containers[0].id, &change).await.unwrap_err();
    let gone = matches!(error.problem, Problem::NoSocket | Problem::Unavailable(_));
    assert!(gone, "{error}");
    assert!(error.is_retryable());
    assert!(
        error.to_string().contains(&socket) && error.to_string().contains(&pod.containers[0].id),
        "{error}"
    );

    containerd.launch().await;
    expect(&mut events, &RuntimeEvent::Resync).await;
    assert_eq!(cri.list_containers().await.unwrap().entries.len(), 2);
    for container in &pod.containers {
        assert_eq!(containerd.pid(&container.id), container.pid);
    }
}

#[tokio::test]
async fn the_beginning_of_an_id_is_not_taken_for_the_container() {
    let containerd = Containerd::start(OciRuntime::Runc).await;
    let pod = containerd.run(&pod()).await;
    let app = &pod.containers[0].id;
    let error = client(&containerd).stored(&app[..12]).await.unwrap_err();
    let nonsense = error.to_string().contains("answer makes no sense");
    assert!(nonsense && error.to_string().contains(app), "{error}");
}

#[tokio::test]
async fn an_unknown_container_is_not_found() {
    let containerd = Containerd::start(OciRuntime::Runc).await;
    let cri = client(&containerd);
    let change = CriResources {
        cpu_shares: Some(1024),
        ..CriResources::default()
    };
    for error in [
        cri.stored("nobody").await.unwrap_err(),
        cri.update("nobody", &change).await.unwrap_err(),
    ] {
        assert!(error.is_not_found() && error.to_string().contains("nobody"), "{error}");
    }
}
