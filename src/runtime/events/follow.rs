//! The task behind an event stream: chooses a source, reads it, and starts over when the runtime comes back.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt, TryFutureExt};
use tokio::sync::broadcast::Sender;
use tonic::Status;

use super::super::{ContainerRuntime, Cri, Problem, RuntimeError, proto};
use super::sources::Source;
use super::{ContainerEvent, RuntimeEvent};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often the agent lists the containers where the runtime offers no events.
const POLLING_INTERVAL: Duration = Duration::from_secs(1);

/// A source's stream. `None` is an event that the agent ignores.
pub(super) type Events = BoxStream<'static, Result<Option<RuntimeEvent>, Status>>;

/// Why the task stopped following a source; [`Problem::Unimplemented`] where the runtime does not have that source.
type Lost = Result<Infallible, RuntimeError>;

#[derive(Debug)]
pub(super) struct Follower {
    pub(super) cri: Cri,
    pub(super) output: Sender<RuntimeEvent>,
}

impl Follower {
    /// Follows for ever. After each loss it tries all sources again, because an upgrade of the runtime may bring a better one.
    pub(super) async fn run(self) {
        let mut pause = FIRST_PAUSE;
        let mut reported = false;
        loop {
            let mut subscribed = false;
            let Err(error) = self.follow_until_lost(&mut subscribed).await;
            if subscribed {
                (pause, reported) = (FIRST_PAUSE, false);
            }
            tracing::debug!(%error, ?pause, "cannot follow the runtime's events");
            if !reported {
                self.send(RuntimeEvent::Lost { why: error.to_string() });
                reported = true;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Follows the first source that the runtime offers, or polls.
    async fn follow_until_lost(&self, subscribed: &mut bool) -> Lost {
        for source in Source::of(self.cri.info().await?.kind) {
            match self.forward(*source, subscribed).await {
                Err(error) if error.problem == Problem::Unimplemented => {
                    tracing::info!(source = source.method(), "the runtime does not offer these events");
                }
                lost => return lost,
            }
        }
        tracing::info!(interval = ?POLLING_INTERVAL, "no events are offered; listing containers instead");
        self.poll(subscribed).await
    }

    /// Forwards a source's events until it ends.
    async fn forward(&self, source: Source, subscribed: &mut bool) -> Lost {
        let ended = |problem| self.cri.error(source.method(), None, problem);
        let lost = |status: Status| ended(Problem::from(&status));
        let mut opening = pin!(source.open(self.cri.clone()).map_err(lost));
        // grpc-go sends headers with the first message, so an idle runtime acknowledges a subscription only with its first
        // event. A later call that the runtime answers on the same connection shows that it has read the subscription.
        let opened = tokio::select! {
            biased;
            opened = &mut opening => Some(opened?),
            version = self.cri.version() => version.map(|_| None)?,
        };
        self.send(RuntimeEvent::Resync);
        *subscribed = true;
        let mut events = match opened {
            Some(events) => events,
            None => opening.await?,
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

    /// Lists containers at an interval and sends the differences.
    async fn poll(&self, subscribed: &mut bool) -> Lost {
        let mut before = None;
        loop {
            let now = containers(self.cri.list(None).await?);
            match &before {
                None => self.send(RuntimeEvent::Resync),
                Some(before) => changes(before, &now).for_each(|event| self.send(event)),
            }
            *subscribed = true;
            before = Some(now);
            tokio::time::sleep(POLLING_INTERVAL).await;
        }
    }
}

/// The containers of one list, by id, and whether each runs.
type Containers = BTreeMap<String, bool>;

fn containers(listed: Vec<proto::Container>) -> Containers {
    let running = i32::from(proto::ContainerState::ContainerRunning);
    let containers = listed.into_iter();
    containers
        .map(|container| (container.id, container.state == running))
        .collect()
}

/// The events between two lists. A container that came and went in between has none.
fn changes(before: &Containers, now: &Containers) -> impl Iterator<Item = RuntimeEvent> {
    let removed = before.keys().filter(|id| !now.contains_key(*id));
    let removed = removed.map(|id| RuntimeEvent::container(id, ContainerEvent::Removed));
    let changed = now.iter().filter_map(|(id, runs)| {
        let event = match (before.get(id).is_some_and(|ran| *ran), *runs) {
            (false, true) => ContainerEvent::Started,
            (true, false) => ContainerEvent::Stopped,
            _ => return None,
        };
        Some(RuntimeEvent::container(id, event))
    });
    removed.chain(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn containers(listed: &[(&str, bool)]) -> Containers {
        listed.iter().map(|(id, runs)| ((*id).to_owned(), *runs)).collect()
    }

    #[test]
    fn differences_are_told_once_each() {
        let before = containers(&[("gone", true), ("stays", true), ("stops", true), ("starts", false)]);
        let now = containers(&[
            ("stays", true),
            ("stops", false),
            ("starts", true),
            ("new", true),
            ("made", false),
        ]);
        let events: Vec<_> = changes(&before, &now).collect();
        assert_eq!(
            events,
            [
                RuntimeEvent::container("gone", ContainerEvent::Removed),
                RuntimeEvent::container("new", ContainerEvent::Started),
                RuntimeEvent::container("starts", ContainerEvent::Started),
                RuntimeEvent::container("stops", ContainerEvent::Stopped),
            ]
        );
    }

    #[test]
    fn the_same_list_twice_is_silence() {
        let now = containers(&[("a", true), ("b", false)]);
        assert_eq!(changes(&now, &now).count(), 0);
    }
}
