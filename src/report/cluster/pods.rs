//! Tells people of kills by Events on pods.

use std::sync::Arc;
use std::time::Instant;

use futures::future::{BoxFuture, FutureExt};
use tokio_util::sync::CancellationToken;

use super::poster::{OnRefusal, Outcome, Poster};
use super::{PodMetadata, named};
use crate::kubernetes::ApiClient;
use crate::kubernetes::events::Posted;
use crate::report::destination::Destination;
use crate::report::events::{PlannedEvent, PodEvents, Rates};
use crate::report::log::task::until;
use crate::report::queue::{Ended, ReportQueue};
use crate::report::reporter::Deliver;

/// Delivers to [`Destination::PodEvents`].
#[derive(Debug)]
pub struct PodEventDelivery {
    poster: Poster,
}

/// Reports on their way into Events.
struct PodEventTask {
    poster: Poster,
    queue: ReportQueue,
    events: PodEvents,
    /// The number of the last report that was taken in.
    after: u64,
    /// There are no more now.
    drained: bool,
}

impl PodEventDelivery {
    /// In the name of that node.
    #[must_use]
    pub fn new(client: ApiClient, node: &str, metadata: Arc<dyn PodMetadata>) -> Self {
        Self {
            poster: Poster::new(client, node.to_owned(), metadata),
        }
    }
}

impl Deliver for PodEventDelivery {
    fn destination(&self) -> Destination {
        Destination::PodEvents
    }

    fn run(self: Box<Self>, queue: ReportQueue, stop: CancellationToken) -> BoxFuture<'static, ()> {
        let task = PodEventTask {
            poster: self.poster,
            queue,
            events: PodEvents::new(Rates::default(), Destination::PodEvents.window(), Instant::now()),
            after: 0,
            drained: false,
        };
        // Either way the agent is ending.
        async move { task.run(stop).await.unwrap_or(()) }.boxed()
    }
}

impl PodEventTask {
    async fn run(mut self, stop: CancellationToken) -> Result<(), Ended> {
        // Cancel-safe: nothing is in hand.
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = self.poster.metadata().wait_until_known() => {}
        }
        loop {
            self.fill().await?;
            if let Some(event) = self.events.next(Instant::now()) {
                match self.poster.post(&event, OnRefusal::AboutNode, &self.queue, &stop).await {
                    Some(outcome) => self.acknowledge_posted(&event, outcome).await?,
                    None => return Ok(()),
                }
                continue;
            }
            // Cancel-safe, all of them: nothing is in hand.
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                more = self.queue.more(), if self.drained => {
                    more?;
                    self.drained = false;
                }
                () = until(self.events.ready_at()) => {}
            }
        }
    }

    /// Takes in what there is, as far as there is room.
    async fn fill(&mut self) -> Result<(), Ended> {
        let room = Destination::PodEvents.window().saturating_sub(self.events.waiting());
        if room > 0 && !self.drained {
            let pending = self.queue.next(self.after, room).await?;
            self.drained = pending.len() < room;
            for pending in pending {
                self.after = pending.number;
                self.events.offer(named(pending, self.poster.metadata()));
            }
        }
        self.queue.set_in_flight(self.events.waiting());
        Ok(())
    }

    async fn acknowledge_posted(&mut self, event: &PlannedEvent, outcome: Outcome) -> Result<(), Ended> {
        let numbers = match outcome {
            Outcome::Posted(Posted::Existed { count }) => event.told_by(count),
            Outcome::Posted(Posted::Created) | Outcome::Refused => event.numbers(),
        };
        let all = numbers.len() == event.reports.len();
        self.queue.acknowledge(numbers).await?;
        if !all {
            // An earlier agent told of some. Everything that is still pending is taken in again.
            self.events.start_over();
            self.after = 0;
            self.drained = false;
        }
        Ok(())
    }
}
