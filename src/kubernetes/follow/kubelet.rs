//! The pods of the node as its kubelet tells them (KEP-4188): without a watch at the API server, and new ones also while that
//! is away.
//!
//! Each event holds a whole pod in the API's protobuf encoding. It becomes JSON as the API server has it, so that one reader
//! holds both to the same bounds. Every connection begins with all pods there are; what was known before stays until then.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::transport::Endpoint;

use super::state::unreadable;
use super::{Follower, Known, Timing};
use crate::kubernetes::object::{Decoded, decode};
use crate::kubernetes::pieces::Piece;
use crate::model::objects::{Pod, annotation};
use crate::pace::Backoff;
use crate::proto::kubelet::pods_client::PodsClient;
use crate::proto::kubelet::{EventType, WatchPodsEvent, WatchPodsRequest, core};

/// A kubelet that does not go on with its pods for so long does not answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often a silent kubelet is asked whether it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// A kubelet is back within seconds of its restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// On every pod that the kubelet has: where from. The kubelet overwrites what an object says of it (`updatePodsFunc`, kubernetes
/// `pkg/kubelet/config`).
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";

/// Follows the pods that have not ended at the kubelet's socket, and tells `changed` as [`super::follow`] does.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn follow_kubelet(socket: PathBuf, timing: Timing, changed: Arc<Notify>) -> Follower<Pod> {
    let about = "pods of the kubelet".to_owned();
    Follower::of(about, changed, |known| run(socket, timing, known))
}

async fn run(socket: PathBuf, timing: Timing, known: Arc<Known<Pod>>) {
    let mut backoff = Backoff::new(timing.first_pause, LONGEST_PAUSE);
    loop {
        if let Err(status) = watch(&socket, &known, &mut backoff).await {
            let why = match status.message() {
                "" => status.code().description(),
                message => message,
            };
            let socket = socket.display();
            known.trouble(&format!("the kubelet tells no pods at {socket}: {why}"), false);
        }
        sleep(backoff.next(None)).await;
    }
}

/// Takes over all pods, then what changes. Ends when all are to be told again because there is room for more.
async fn watch(socket: &Path, known: &Known<Pod>, backoff: &mut Backoff) -> Result<(), Status> {
    let silent = |_| Status::deadline_exceeded(format!("it has said nothing for {PATIENCE:?}"));
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))
        .map_err(|error| Status::invalid_argument(error.to_string()))?
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_while_idle(true);
    let unreachable = |error| Status::unavailable(format!("{:#}", anyhow::Error::new(error)));
    let channel = timeout(PATIENCE, endpoint.connect()).await.map_err(silent)?;
    let mut client = PodsClient::new(channel.map_err(unreachable)?);
    let begun = timeout(PATIENCE, client.watch_pods(WatchPodsRequest {})).await;
    let mut events = begun.map_err(silent)??.into_inner();
    known.with(super::Followed::begin_list);
    let mut news = false;
    loop {
        let event = timeout(PATIENCE, events.message()).await.map_err(silent)??;
        let event = event.ok_or_else(ended)?;
        if event.r#type() == EventType::InitialSyncComplete {
            break;
        }
        news |= apply(known, &event)?;
    }
    news |= known.with(super::Followed::end_list);
    backoff.reset();
    known.publish(news);
    while !known.with(|known| known.has_room) {
        let event = events.message().await?.ok_or_else(ended)?;
        if apply(known, &event)? {
            known.publish(true);
        }
    }
    Ok(())
}

fn ended() -> Status {
    Status::unavailable("it ended the watch")
}

/// Takes over one event; returns whether it changed what is known.
fn apply(known: &Known<Pod>, event: &WatchPodsEvent) -> Result<bool, Status> {
    let decoded = decode_pod(&event.pod);
    // Pods that have ended hold nothing any more, as with the API server.
    let has_ended = |(pod, _): &(Pod, usize)| matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
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
    Ok(known.with(|known| {
        if !is_gone {
            return known.put(decoded, event.r#type() == EventType::Added);
        }
        // The kubelet may still have a pod whose name another has by now.
        let uid = decoded.object.as_ref().map(|(pod, _)| pod.metadata.uid.as_str());
        let of_name = known.object(&decoded.key).map(|pod| pod.metadata.uid.as_str());
        let is_other = of_name.is_some_and(|of_name| uid.is_ok_and(|uid| uid != of_name));
        !is_other && known.remove(&decoded.key)
    }))
}

/// Reads a pod. A static pod gets the annotation that its mirror pod has at the API server: it cannot be resized there.
pub(in crate::kubernetes) fn decode_pod(bytes: &[u8]) -> Decoded<Pod> {
    let text = core::Pod::decode(bytes).ok().and_then(|mut pod| {
        let metadata = pod.metadata.as_mut()?;
        if metadata
            .annotations
            .get(CONFIG_SOURCE)
            .is_some_and(|source| source != "api")
        {
            let uid = metadata.uid.clone();
            metadata.annotations.insert(annotation::MIRROR.to_owned(), uid);
        }
        serde_json::to_string(&pod).ok()
    });
    let text = text.unwrap_or_default();
    decode(&text).unwrap_or_else(|| unreadable(&Piece::Object(text.into_bytes())))
}
