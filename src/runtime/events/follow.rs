//! The task behind an event stream: chooses a source, drains it, and starts over when the runtime comes back.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tonic::Status;

use super::super::{ContainerRuntime, Cri, Problem, RuntimeError, proto};
use super::sources::Source;
use super::{EventSender, Happened, RuntimeEvent};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A source's stream. `None` is an event that is of no interest here.
pub(super) type Events = BoxStream<'static, Result<Option<RuntimeEvent>, Status>>;

/// Why a source is no longer followed.
#[derive(Debug)]
enum Ended {
    /// The runtime does not have this source.
    NotOffered,
    /// The runtime is away, or broke the stream.
    Lost(RuntimeError),
}

#[derive(Debug)]
pub(super) struct Follower {
    pub(super) cri: Cri,
    pub(super) polling_interval: Duration,
    pub(super) output: EventSender,
}

impl Follower {
    /// Follows for ever. The sources are tried anew after each loss, because an upgrade may bring a better one.
    pub(super) async fn run(self) {
        let mut pause = FIRST_PAUSE;
        let mut reported = false;
        loop {
            let mut subscribed = false;
            let error = self.follow_until_lost(&mut subscribed).await;
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

    /// Follows the first source that is offered, or polls.
    async fn follow_until_lost(&self, subscribed: &mut bool) -> RuntimeError {
        let kind = match self.cri.info().await {
            Ok(info) => info.kind,
            Err(error) => return error,
        };
        for source in Source::of(kind) {
            let opening = source.open(self.cri.clone());
            match self.forward(source.method(), opening, subscribed).await {
                Ended::NotOffered => {
                    tracing::info!(source = source.method(), "the runtime does not offer these events");
                }
                Ended::Lost(error) => return error,
            }
        }
        tracing::info!(interval = ?self.polling_interval, "no events are offered; listing containers instead");
        self.poll(subscribed).await
    }

    /// Forwards a source's events until it ends.
    async fn forward(
        &self,
        method: &'static str,
        opening: impl Future<Output = Result<Events, Status>>,
        subscribed: &mut bool,
    ) -> Ended {
        let mut opening = pin!(opening);
        // A subscription is acknowledged with its first event only (grpc-go sends headers with the first message), so
        // an idle runtime would leave it open whether anything is missed. A later call answered on the same connection
        // tells: the runtime has read the subscription before it.
        let opened = tokio::select! {
            biased;
            opened = &mut opening => Some(opened),
            sign_of_life = self.cri.version() => match sign_of_life {
                Ok(_) => None,
                Err(error) => return Ended::Lost(error),
            },
        };
        if let Some(Err(status)) = opened {
            return self.ended(method, &status);
        }
        self.send(RuntimeEvent::Resync);
        *subscribed = true;
        let opened = match opened {
            Some(opened) => opened,
            None => opening.await,
        };
        let mut events = match opened {
            Ok(events) => events,
            Err(status) => return self.ended(method, &status),
        };
        let mut is_first = true;
        loop {
            match events.next().await {
                Some(Ok(Some(event))) => self.send(event),
                Some(Ok(None)) => {}
                Some(Err(status)) => return self.ended(method, &status),
                // CRI-O with pod events disabled answers with a stream that ends at once.
                None if is_first => return Ended::NotOffered,
                None => return Ended::Lost(self.cri.error(method, None, Problem::nonsense("the stream ended"))),
            }
            is_first = false;
        }
    }

    fn send(&self, event: RuntimeEvent) {
        // Where nobody listens any more, this task ends in a moment.
        self.output.send(event).ok();
    }

    /// Lists containers at an interval and sends the differences.
    async fn poll(&self, subscribed: &mut bool) -> RuntimeError {
        let mut before = None;
        loop {
            let now = match self.cri.list(None).await {
                Ok(listed) => containers(listed),
                Err(error) => return error,
            };
            match &before {
                None => self.send(RuntimeEvent::Resync),
                Some(before) => changes(before, &now).for_each(|event| self.send(event)),
            }
            *subscribed = true;
            before = Some(now);
            tokio::time::sleep(self.polling_interval).await;
        }
    }

    fn ended(&self, method: &'static str, status: &Status) -> Ended {
        match Problem::from(status) {
            Problem::Unimplemented => Ended::NotOffered,
            problem => Ended::Lost(self.cri.error(method, None, problem)),
        }
    }
}

/// The containers of one list, by id, and whether each runs.
pub(super) type Containers = BTreeMap<String, bool>;

pub(super) fn containers(listed: Vec<proto::Container>) -> Containers {
    let running = i32::from(proto::ContainerState::ContainerRunning);
    let containers = listed.into_iter();
    containers
        .map(|container| (container.id, container.state == running))
        .collect()
}

/// What happened between two lists. A container that came and went in between was never there.
pub(super) fn changes(before: &Containers, now: &Containers) -> impl Iterator<Item = RuntimeEvent> {
    let removed = before.keys().filter(|id| !now.contains_key(*id));
    let removed = removed.map(|id| RuntimeEvent::container(id, Happened::Removed));
    let changed = now.iter().filter_map(|(id, runs)| {
        let happened = match (before.get(id).is_some_and(|ran| *ran), *runs) {
            (false, true) => Happened::Started,
            (true, false) => Happened::Stopped,
            _ => return None,
        };
        Some(RuntimeEvent::container(id, happened))
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
                RuntimeEvent::container("gone", Happened::Removed),
                RuntimeEvent::container("new", Happened::Started),
                RuntimeEvent::container("starts", Happened::Started),
                RuntimeEvent::container("stops", Happened::Stopped),
            ]
        );
    }

    #[test]
    fn the_same_list_twice_is_silence() {
        let now = containers(&[("a", true), ("b", false)]);
        assert_eq!(changes(&now, &now).count(), 0);
    }
}
