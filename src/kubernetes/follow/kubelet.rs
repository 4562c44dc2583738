//! The pods of the node as its kubelet reports them (KEP-4188): without a watch at the API server, and with new pods also
//! during an outage of the API server.
//!
//! Each event holds a whole pod in the API's protobuf encoding. The agent turns it into the JSON of the API server, so that
//! both are decoded with the same bounds. Every connection begins with all pods; the known pods stay until that list is
//! complete.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::transport::Endpoint;

use super::{Follower, ListChanges, SharedList, Timing};
use crate::kubernetes::kept::ObjectMemory;
use crate::kubernetes::object::Decoded;
use crate::model::objects::{Pod, annotation};
use crate::pace::Backoff;
use crate::proto::kubelet::pods_client::PodsClient;
use crate::proto::kubelet::{EventType, WatchPodsEvent, WatchPodsRequest, core};

/// The longest silence of a kubelet that answers, while it connects and while it sends the initial pods.
const PATIENCE: Duration = Duration::from_secs(20);

/// The interval of HTTP/2 pings.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// The longest pause between attempts. A kubelet restarts within seconds.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The annotation with a pod's source, which every pod of the kubelet has. The kubelet overwrites the value in
/// the object (`updatePodsFunc`, kubernetes `pkg/kubelet/config`).
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";

/// Follows the pods that have not ended at the kubelet's socket, and notifies `changes` as [`super::follow`] does.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn follow_kubelet(socket: PathBuf, timing: Timing, memory: ObjectMemory, changes: ListChanges) -> Follower<Pod> {
    let shared = SharedList::new("pods of the kubelet".to_owned(), None, memory, changes);
    Follower::of(Arc::clone(&shared), run(socket, timing, shared))
}

async fn run(socket: PathBuf, timing: Timing, shared: Arc<SharedList<Pod>>) {
    let mut backoff = Backoff::new(timing.first_pause, LONGEST_PAUSE);
    loop {
        if let Err(status) = watch(&socket, &shared, &mut backoff).await {
            let why = match status.message() {
                "" => status.code().description(),
                message => message,
            };
            let socket = socket.display();
            shared.trouble(&format!("the kubelet lists no pods at {socket}: {why}"), true, false);
        }
        sleep(backoff.next(None)).await;
    }
}

/// Applies the initial pods, then every change. Returns when there is room for pods that were left out.
async fn watch(socket: &Path, shared: &SharedList<Pod>, backoff: &mut Backoff) -> Result<(), Status> {
    let silent = |_| Status::deadline_exceeded(format!("it sent nothing for {PATIENCE:?}"));
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))
        .map_err(|error| Status::invalid_argument(error.to_string()))?
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_while_idle(true);
    let unreachable = |error| Status::unavailable(format!("{:#}", anyhow::Error::new(error)));
    let channel = timeout(PATIENCE, endpoint.connect()).await.map_err(silent)?;
    let mut client = PodsClient::new(channel.map_err(unreachable)?);
    let begun = timeout(PATIENCE, client.watch_pods(WatchPodsRequest {})).await;
    let mut events = begun.map_err(silent)??.into_inner();
    shared.with(super::Followed::begin_list);
    let mut news = false;
    loop {
        let event = timeout(PATIENCE, events.message()).await.map_err(silent)??;
        let event = event.ok_or_else(ended)?;
        if event.r#type() == EventType::InitialSyncComplete {
            break;
        }
        news |= apply(shared, &event)?;
    }
    news |= shared.with(super::Followed::end_list);
    backoff.reset();
    shared.publish(news);
    while !shared.with(|followed| followed.must_list_again()) {
        let event = events.message().await?.ok_or_else(ended)?;
        if apply(shared, &event)? {
            shared.publish(true);
        }
    }
    Ok(())
}

fn ended() -> Status {
    Status::unavailable("it ended the watch")
}

/// Applies one event; returns whether the known pods changed.
fn apply(shared: &SharedList<Pod>, event: &WatchPodsEvent) -> Result<bool, Status> {
    let decoded = decode_pod(&event.pod);
    // Pods that have ended use no resources; the watch at the API server omits them, too.
    let has_ended = |(pod, _): &(Pod, usize)| pod.has_ended();
    let is_gone = match event.r#type() {
        EventType::Added | EventType::Modified => decoded.object.as_ref().is_ok_and(has_ended),
        EventType::Deleted => true,
        EventType::Unspecified | EventType::InitialSyncComplete => {
            let kind = event.r#type;
            return Err(Status::invalid_argument(format!(
                "an event of the unexpected type {kind}"
            )));
        }
    };
    Ok(shared.with(|followed| {
        // The kubelet may still report a pod whose name a newer pod has.
        let sent = decoded.object.as_ref().ok().map(|(pod, _)| &pod.metadata);
        let of_name = followed.object(&decoded.key).map(|pod| &pod.metadata);
        let other = of_name.zip(sent).filter(|(of_name, sent)| of_name.uid != sent.uid);
        if is_gone {
            return other.is_none() && followed.remove(&decoded.key);
        }
        let is_earlier = other.is_some_and(|(of_name, sent)| sent.creation_timestamp < of_name.creation_timestamp);
        !is_earlier && followed.store(decoded, event.r#type() == EventType::Added)
    }))
}

/// Decodes a pod. A static pod gets the annotation of its mirror pod, so that the agent does not resize
/// it at the API server.
pub(in crate::kubernetes) fn decode_pod(bytes: &[u8]) -> Decoded<Pod> {
    let text = core::Pod::decode(bytes).ok().and_then(|mut pod| {
        let metadata = pod.metadata.as_mut()?;
        let source = metadata.annotations.get(CONFIG_SOURCE);
        if source.is_some_and(|source| source != "api") {
            let uid = metadata.uid.clone();
            metadata.annotations.insert(annotation::MIRROR.to_owned(), uid);
        }
        serde_json::to_string(&pod).ok()
    });
    Decoded::parse(&text.unwrap_or_default())
}
