//! The task behind an event stream: chooses a source, drains it, and starts over when the runtime comes back.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tonic::Status;

use super::super::{ContainerRuntime, Cri, Problem, RuntimeError};
use super::RuntimeEvent;
use super::polling::Containers;
use super::sender::EventOutput;
use super::sources::Source;

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
    pub(super) output: EventOutput,
}

impl Follower {
    /// Follows for ever. The sources are tried anew after each loss, because an upgrade may bring a better one.
    pub(super) async fn run(mut self) {
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
                self.output.send(RuntimeEvent::Lost { why: error.to_string() });
                reported = true;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Follows the first source that is offered, or polls.
    async fn follow_until_lost(&mut self, subscribed: &mut bool) -> RuntimeError {
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
        &mut self,
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
        self.output.send(RuntimeEvent::Resync);
        *subscribed = true;
        let opened = match opened {
            Some(opened) => opened,
            None => self.delivering_resync(opening).await,
        };
        let mut events = match opened {
            Ok(events) => events,
            Err(status) => return self.ended(method, &status),
        };
        let mut is_first = true;
        loop {
            match self.delivering_resync(events.next()).await {
                Some(Ok(Some(event))) => self.output.send(event),
                Some(Ok(None)) => {}
                Some(Err(status)) => return self.ended(method, &status),
                // CRI-O with pod events disabled answers with a stream that ends at once.
                None if is_first => return Ended::NotOffered,
                None => return Ended::Lost(self.cri.error(method, None, Problem::nonsense("the stream ended"))),
            }
            is_first = false;
        }
    }

    /// Waits for the future, and delivers a pending resync meanwhile.
    async fn delivering_resync<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                done = &mut future => return done,
                // Cancel-safe: the resync stays pending.
                () = self.output.deliver_resync() => {}
            }
        }
    }

    /// Lists containers at an interval and sends the differences.
    async fn poll(&mut self, subscribed: &mut bool) -> RuntimeError {
        let mut before: Option<Containers> = None;
        loop {
            let now = match self.cri.list(None).await {
                Ok(listed) => Containers::of(&listed),
                Err(error) => return error,
            };
            match &before {
                None => self.output.send(RuntimeEvent::Resync),
                Some(before) => now.events_since(before).for_each(|event| self.output.send(event)),
            }
            *subscribed = true;
            before = Some(now);
            self.delivering_resync(tokio::time::sleep(self.polling_interval)).await;
        }
    }

    fn ended(&self, method: &'static str, status: &Status) -> Ended {
        match Problem::from(status) {
            Problem::Unimplemented => Ended::NotOffered,
            problem => Ended::Lost(self.cri.error(method, None, problem)),
        }
    }
}
