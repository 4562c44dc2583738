//! The starts and ends of containers as one stream, whichever event service the runtime has.
//!
//! containerd has an event service of its own, and CRI has `GetContainerEvents`. The agent tries containerd's own first:
//! containerd broadcasts these events to every subscriber. CRI events of containerd 1.x and of CRI-O before 1.28 are one queue, in
//! which a second subscriber takes events away from the kubelet, and CRI-O before 1.33 may crash when a subscriber leaves. CRI-O has
//! only CRI's, unless disabled. Where a runtime has none for the agent, it lists the running containers at an interval and sends the
//! differences.
//!
//! The agent does not subscribe to updates: the runtime reports each update of a pass back, and updates by others show in the
//! files.
//!
//! One task reads the runtime's stream and never waits for the consumer: a slow reader would block containerd. When the
//! channel is full, the oldest events are dropped and one [`RuntimeEvent::Resync`] replaces them. So the stream only makes
//! discovery faster; correctness never depends on it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use prost::{DecodeError, Message};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Receiver, Sender};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use super::proto::{ContainerEventResponse, ContainerEventType, GetEventsRequest};
use super::{ContainerRuntime, Cri, Problem, RuntimeError, RuntimeInfo};
use crate::model::RuntimeKind;
use crate::pace::Backoff;
use crate::proto::containerd::events_client::EventsClient;
use crate::proto::containerd::{ContainerDelete, Envelope, SubscribeRequest, TaskDelete, TaskExit, TaskStart};

/// How many events may wait for the consumer before a resync replaces them.
const BUFFER: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A subscription that ends sooner lengthens the pause: each one costs the runtime lists, of this task and of discovery.
const LASTING: Duration = Duration::from_secs(60);
/// How often the agent lists the containers where the runtime offers no events.
const POLLING_INTERVAL: Duration = Duration::from_secs(1);
/// The containerd namespace in which its CRI keeps pods.
pub(super) const NAMESPACE: &str = "k8s.io";

const TASK_START: &str = "/tasks/start";
const TASK_EXIT: &str = "/tasks/exit";
/// containerd sends this after the end, when the cgroup is gone.
const TASK_DELETE: &str = "/tasks/delete";
const CONTAINER_DELETE: &str = "/containers/delete";

/// An event of the runtime or of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// The process of the container with this id started, in a new cgroup with the runtime's values. Sandboxes have events
    /// too, under their own id, and some ids belong to neither.
    Started(String),
    /// The container's process ended, its cgroup is gone, or the runtime removed it: several events for one container.
    Ended(String),
    /// Events arrive from here on, and earlier ones may be missing: list everything. Sent at the start, after a lost runtime
    /// is back, and when the consumer was too slow.
    Resync,
    /// The runtime is lost; no event arrives until the next [`Self::Resync`]. Sent once for each loss.
    Lost { why: String },
}

/// The events of containers from now on. Dropping it ends the subscription.
#[derive(Debug)]
pub struct EventStream {
    receiver: Receiver<RuntimeEvent>,
    _follower: AbortOnDropHandle<()>,
}

impl EventStream {
    pub(super) fn of(cri: Cri) -> Self {
        let (output, receiver) = broadcast::channel(BUFFER);
        let follower = tokio::spawn(EventFollower { cri, output }.run());
        Self {
            receiver,
            _follower: AbortOnDropHandle::new(follower),
        }
    }

    /// A stream of the events that a test sends.
    #[cfg(test)]
    pub(crate) fn fed_by_hand(buffer: usize) -> (Sender<RuntimeEvent>, Self) {
        let (sender, receiver) = broadcast::channel(buffer.max(1));
        let stream = Self {
            receiver,
            _follower: AbortOnDropHandle::new(tokio::spawn(async {})),
        };
        (sender, stream)
    }

    /// The next event. Cancel-safe: an event is either returned or still in the channel.
    pub async fn next(&mut self) -> RuntimeEvent {
        match self.receiver.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(_)) => RuntimeEvent::Resync,
            // The task that sends never ends.
            Err(RecvError::Closed) => pending().await,
        }
    }
}

/// A service's stream. `None` is an event that the agent ignores.
type ServiceEvents = BoxStream<'static, Result<Option<RuntimeEvent>, Status>>;

/// Why the task stopped following a service; [`Problem::Unimplemented`] where the runtime does not have that service.
type Lost = Result<Infallible, RuntimeError>;

/// Sends the events of a runtime to a stream.
#[derive(Debug)]
struct EventFollower {
    cri: Cri,
    output: Sender<RuntimeEvent>,
}

impl EventFollower {
    /// Follows for ever. After each loss it tries all services again, because an upgrade of the runtime may bring a better one.
    async fn run(self) {
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut reported = false;
        loop {
            let mut subscribed = None;
            let Err(error) = self.follow_until_lost(&mut subscribed).await;
            reported &= subscribed.is_none();
            let pause = pause_after(subscribed.map(|at| at.elapsed()), &mut pauses);
            tracing::debug!(%error, ?pause, "cannot follow the runtime's events");
            if !reported {
                self.send(RuntimeEvent::Lost { why: error.to_string() });
                reported = true;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Follows the first service that the runtime offers, or polls.
    async fn follow_until_lost(&self, subscribed: &mut Option<Instant>) -> Lost {
        let info = self.cri.info().await?;
        let mut services = Vec::new();
        if info.kind == RuntimeKind::Containerd {
            let opening = subscribe_to_containerd(self.cri.clone()).boxed();
            services.push(("containerd's Subscribe", opening));
        }
        if serves_several(&info) {
            services.push(("GetContainerEvents", subscribe_to_cri(self.cri.clone()).boxed()));
        }
        for (service, opening) in services {
            match self.forward(service, opening, subscribed).await {
                Err(error) if error.problem == Problem::Unimplemented => {
                    tracing::info!(source = service, "the runtime does not offer these events");
                }
                lost => return lost,
            }
        }
        tracing::info!(interval = ?POLLING_INTERVAL, "no events are offered; listing containers instead");
        self.poll(subscribed).await
    }

    /// Forwards a service's events until it ends.
    async fn forward(
        &self,
        service: &'static str,
        opening: impl Future<Output = Result<ServiceEvents, Status>>,
        subscribed: &mut Option<Instant>,
    ) -> Lost {
        let ended = |problem| self.cri.error(service, None, problem);
        let lost = |status: Status| ended(Problem::from(&status));
        let mut opening = pin!(opening);
        // grpc-go sends headers with the first message, so an idle runtime acknowledges a subscription only with its first
        // event. A later call that the runtime answers on the same connection shows that it has read the subscription.
        let opened = tokio::select! {
            biased;
            opened = &mut opening => Some(opened.map_err(lost)?),
            version = self.cri.version() => version.map(|_| None)?,
        };
        self.send(RuntimeEvent::Resync);
        subscribed.get_or_insert_with(Instant::now);
        let mut events = match opened {
            Some(events) => events,
            None => opening.await.map_err(lost)?,
        };
        let mut is_first = true;
        while let Some(event) = events.next().await {
            if let Some(event) = event.map_err(lost)? {
                self.send(event);
            }
            is_first = false;
        }
        // CRI-O with pod events disabled answers with a stream that ends at once.
        Err(ended(if is_first {
            Problem::Unimplemented
        } else {
            Problem::nonsense("the stream ended")
        }))
    }

    fn send(&self, event: RuntimeEvent) {
        // Without a receiver this task is about to be aborted.
        self.output.send(event).ok();
    }

    /// Lists the running containers at an interval and sends the differences.
    async fn poll(&self, subscribed: &mut Option<Instant>) -> Lost {
        let mut before = None;
        loop {
            let running = self.cri.running().await?;
            let now = running.into_iter().map(|container| container.id).collect();
            match &before {
                None => self.send(RuntimeEvent::Resync),
                Some(before) => changes(before, &now).for_each(|event| self.send(event)),
            }
            subscribed.get_or_insert_with(Instant::now);
            before = Some(now);
            tokio::time::sleep(POLLING_INTERVAL).await;
        }
    }
}

/// Whether CRI's events may have a subscriber beside the kubelet: not those of an old CRI-O (`server/container_events.go`, cri-o#9004).
fn serves_several(info: &RuntimeInfo) -> bool {
    let minor = info.version.split('.').nth(1).and_then(|minor| minor.parse().ok());
    info.kind != RuntimeKind::Crio || minor.is_none_or(|minor: u32| minor >= 33)
}

/// The pause after a subscription that lasted so long, or after none.
fn pause_after(lasted: Option<Duration>, pauses: &mut Backoff) -> Duration {
    if lasted.is_some_and(|lasted| lasted >= LASTING) {
        pauses.reset();
    }
    pauses.next(None)
}

/// The events between two lists of running containers. A container that came and went in between has none.
fn changes<'a>(before: &'a BTreeSet<String>, now: &'a BTreeSet<String>) -> impl Iterator<Item = RuntimeEvent> + 'a {
    let ended = before.difference(now).cloned().map(RuntimeEvent::Ended);
    ended.chain(now.difference(before).cloned().map(RuntimeEvent::Started))
}

/// Subscribes to containerd's own events. grpc-go servers answer with the first event, so this may wait for long.
async fn subscribe_to_containerd(cri: Cri) -> Result<ServiceEvents, Status> {
    let topics = [TASK_START, TASK_EXIT, TASK_DELETE, CONTAINER_DELETE];
    let filters = topics
        .map(|topic| format!("namespace=={NAMESPACE},topic==\"{topic}\""))
        .to_vec();
    let mut client = EventsClient::new(cri.channel);
    let answer = client.subscribe(SubscribeRequest { filters }).await?;
    Ok(answer.into_inner().map(|envelope| of_containerd(&envelope?)).boxed())
}

async fn subscribe_to_cri(mut cri: Cri) -> Result<ServiceEvents, Status> {
    let answer = cri.client.get_container_events(GetEventsRequest {}).await?;
    Ok(answer.into_inner().map(|event| event.map(of_cri)).boxed())
}

fn of_containerd(Envelope { topic, event }: &Envelope) -> Result<Option<RuntimeEvent>, Status> {
    let payload = event
        .as_ref()
        .ok_or_else(|| Status::data_loss(format!("an event of topic {topic} is empty")))?;
    decode(topic, &payload.value).map_err(|error| Status::data_loss(format!("an event of topic {topic}: {error}")))
}

fn decode(topic: &str, payload: &[u8]) -> Result<Option<RuntimeEvent>, DecodeError> {
    let (container, process) = match topic {
        TASK_START => return Ok(Some(RuntimeEvent::Started(TaskStart::decode(payload)?.container_id))),
        TASK_EXIT => TaskExit::decode(payload).map(|exit| (exit.container_id, exit.id))?,
        TASK_DELETE => TaskDelete::decode(payload).map(|deleted| (deleted.container_id, deleted.id))?,
        CONTAINER_DELETE => (ContainerDelete::decode(payload)?.id, String::new()),
        _ => return Ok(None),
    };
    // A process that exec started has an id of its own.
    let is_first = process.is_empty() || process == container;
    Ok(is_first.then_some(RuntimeEvent::Ended(container)))
}

fn of_cri(event: ContainerEventResponse) -> Option<RuntimeEvent> {
    match ContainerEventType::try_from(event.container_event_type).ok()? {
        ContainerEventType::ContainerCreatedEvent => None,
        ContainerEventType::ContainerStartedEvent => Some(RuntimeEvent::Started(event.container_id)),
        ContainerEventType::ContainerStoppedEvent | ContainerEventType::ContainerDeletedEvent => {
            Some(RuntimeEvent::Ended(event.container_id))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_reader_gets_one_resync() {
        let (sender, mut stream) = EventStream::fed_by_hand(2);
        let event = |id: &str| RuntimeEvent::Started(id.to_owned());
        for id in ["a", "b", "c", "d"] {
            sender.send(event(id)).unwrap();
        }
        for expected in [RuntimeEvent::Resync, event("c"), event("d")] {
            assert_eq!(stream.next().await, expected);
        }
        sender.send(event("e")).unwrap();
        assert_eq!(stream.next().await, event("e"));
    }

    #[test]
    fn subscriptions_that_break_at_once_become_rare() {
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        assert!(pause_after(Some(LASTING), &mut pauses) <= FIRST_PAUSE);
        let broken: Vec<_> = [None, Some(Duration::from_secs(2))]
            .iter()
            .cycle()
            .take(8)
            .map(|lasted| pause_after(*lasted, &mut pauses))
            .collect();
        assert!(broken[7] >= LONGEST_PAUSE / 2, "{broken:?}");
        assert!(pause_after(Some(LASTING), &mut pauses) <= FIRST_PAUSE);
    }

    fn ids(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn differences_are_told_once_each() {
        let events: Vec<_> = changes(&ids(&["gone", "stays", "stops"]), &ids(&["new", "starts", "stays"])).collect();
        assert_eq!(
            events,
            [
                RuntimeEvent::Ended("gone".to_owned()),
                RuntimeEvent::Ended("stops".to_owned()),
                RuntimeEvent::Started("new".to_owned()),
                RuntimeEvent::Started("starts".to_owned()),
            ]
        );
    }

    #[test]
    fn the_same_list_twice_is_silence() {
        let now = ids(&["a", "b"]);
        assert_eq!(changes(&now, &now).count(), 0);
    }

    #[test]
    fn an_ended_exec_does_not_end_its_container() {
        let exit = |id: &str| {
            let exit = TaskExit {
                container_id: "c1".into(),
                id: id.into(),
            };
            decode(TASK_EXIT, &exit.encode_to_vec()).unwrap()
        };
        assert_eq!(exit("exec-7"), None);
        assert_eq!(exit("c1"), Some(RuntimeEvent::Ended("c1".to_owned())));
    }

    #[test]
    fn a_gone_cgroup_ends_its_container() {
        let deleted = |id: &str| {
            let deleted = TaskDelete {
                container_id: "c1".into(),
                id: id.into(),
            };
            decode(TASK_DELETE, &deleted.encode_to_vec()).unwrap()
        };
        let ended = Some(RuntimeEvent::Ended("c1".to_owned()));
        assert_eq!((deleted(""), deleted("c1")), (ended.clone(), ended));
        assert_eq!(deleted("exec-7"), None);
    }

    #[test]
    fn each_topic_of_containerd_has_its_meaning() {
        let container_id = "c1".to_owned();
        let started = TaskStart { container_id };
        let started = decode(TASK_START, &started.encode_to_vec()).unwrap();
        assert_eq!(started, Some(RuntimeEvent::Started("c1".to_owned())));
        let deleted = ContainerDelete { id: "c1".to_owned() };
        let deleted = decode(CONTAINER_DELETE, &deleted.encode_to_vec()).unwrap();
        assert_eq!(deleted, Some(RuntimeEvent::Ended("c1".to_owned())));
        assert_eq!(decode("/tasks/oom", &[]).unwrap(), None);
    }

    #[test]
    fn each_event_of_cri_has_its_meaning() {
        let (started, ended) = (
            RuntimeEvent::Started("c1".to_owned()),
            RuntimeEvent::Ended("c1".to_owned()),
        );
        for (kind, expected) in [
            (ContainerEventType::ContainerCreatedEvent, None),
            (ContainerEventType::ContainerStartedEvent, Some(started)),
            (ContainerEventType::ContainerStoppedEvent, Some(ended.clone())),
            (ContainerEventType::ContainerDeletedEvent, Some(ended)),
        ] {
            let event = ContainerEventResponse {
                container_id: "c1".to_owned(),
                container_event_type: kind.into(),
                ..ContainerEventResponse::default()
            };
            assert_eq!(of_cri(event), expected, "{kind:?}");
        }
    }

    #[test]
    fn old_crio_has_no_second_subscriber() {
        for (kind, version, expected) in [
            (RuntimeKind::Crio, "1.32.9", false),
            (RuntimeKind::Crio, "1.33.0", true),
            (RuntimeKind::Crio, "", true),
            (RuntimeKind::Containerd, "1.7.0", true),
        ] {
            let info = RuntimeInfo {
                name: String::new(),
                version: version.to_owned(),
                kind,
                cgroup_driver: None,
            };
            assert_eq!(serves_several(&info), expected, "{kind:?} {version}");
        }
    }

    #[test]
    fn an_undecodable_event_names_its_topic() {
        let envelope = Envelope {
            topic: TASK_START.into(),
            event: Some(prost_types::Any {
                type_url: "containerd.events.TaskStart".into(),
                value: vec![0xff, 0xff],
            }),
        };
        let error = of_containerd(&envelope).unwrap_err();
        assert!(
            error.message().starts_with("an event of topic /tasks/start: "),
            "{error}"
        );
    }
}
