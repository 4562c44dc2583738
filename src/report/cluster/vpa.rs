//! Tells an unmodified VPA recommender of kills, by Events in the shape that it reads.
//!
//! A report that may be for it waits until the kubelet has had time to say in the pod's status what became of the
//! container: the recommender reads that, too, and must not count a kill twice.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::poster::{OnRefusal, Poster};
use super::windows::Windows;
use super::{PodMetadata, named};
use crate::kubernetes::ApiClient;
use crate::report::destination::Destination;
use crate::report::events::{VpaDecision, VpaEvents, VpaWindows};
use crate::report::log::Pending;
use crate::report::log::task::until;
use crate::report::metrics::ReportOutcome;
use crate::report::queue::{Ended, ReportQueue};
use crate::report::reporter::Deliver;

/// How long the kubelet is given. It looks at its containers every second (`genericPlegRelistPeriod`) and writes the status
/// at once, unless the API server makes it wait.
const SETTLE: Duration = Duration::from_secs(10);

/// How the recommender is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VpaEventOptions {
    pub windows: VpaWindows,
    /// Where it is kept what it was told, so that windows outlive the agent. The directory is there.
    pub memory: PathBuf,
}

/// Delivers to [`Destination::VpaEvents`].
#[derive(Debug)]
pub struct VpaEventDelivery {
    poster: Poster,
    options: VpaEventOptions,
}

/// Reports on their way to the recommender.
struct VpaEventTask {
    poster: Poster,
    queue: ReportQueue,
    events: VpaEvents,
    windows: Windows,
    /// Reports with the moment at which each is looked at again, which ascends.
    waiting: VecDeque<(Instant, Pending)>,
    /// The number of the last report that was taken in.
    after: u64,
    /// There are no more now.
    drained: bool,
}

impl VpaEventDelivery {
    /// In the name of that node.
    #[must_use]
    pub fn new(client: ApiClient, node: &str, metadata: Arc<dyn PodMetadata>, options: VpaEventOptions) -> Self {
        Self {
            poster: Poster::new(client, node.to_owned(), metadata),
            options,
        }
    }
}

impl Deliver for VpaEventDelivery {
    fn destination(&self) -> Destination {
        Destination::VpaEvents
    }

    fn run(self: Box<Self>, queue: ReportQueue, stop: CancellationToken) -> BoxFuture<'static, ()> {
        async move {
            let VpaEventOptions { windows, memory } = self.options;
            let (memory, before) = Windows::open(memory).await;
            let task = VpaEventTask {
                poster: self.poster,
                queue,
                events: VpaEvents::new(windows, before),
                windows: memory,
                waiting: VecDeque::new(),
                after: 0,
                drained: false,
            };
            // Either way the agent is ending.
            task.run(stop).await.unwrap_or(());
        }
        .boxed()
    }
}

impl VpaEventTask {
    async fn run(mut self, stop: CancellationToken) -> Result<(), Ended> {
        // Cancel-safe: nothing is in hand.
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = self.poster.metadata().wait_until_known() => {}
        }
        loop {
            self.fill().await?;
            if let Some((due, _)) = self.waiting.front()
                && *due <= Instant::now()
                && let Some((_, pending)) = self.waiting.pop_front()
            {
                if self.finish_report(pending, &stop).await?.is_none() {
                    return Ok(());
                }
                continue;
            }
            let next = self.waiting.front().map(|(due, _)| *due);
            // Cancel-safe, all of them: nothing is in hand.
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                more = self.queue.more(), if self.drained => {
                    more?;
                    self.drained = false;
                }
                () = until(next) => {}
            }
        }
    }

    /// Takes in what there is, as far as there is room. What is not for the recommender is dealt with at once.
    async fn fill(&mut self) -> Result<(), Ended> {
        let room = Destination::VpaEvents.window().saturating_sub(self.waiting.len());
        if room > 0 && !self.drained {
            let pending = self.queue.next(self.after, room).await?;
            self.drained = pending.len() < room;
            let (due, now) = (Instant::now() + SETTLE, Timestamp::now());
            let mut withheld = Vec::new();
            for pending in pending {
                self.after = pending.number;
                let pending = named(pending, self.poster.metadata());
                match self.events.screen(&pending.report, now) {
                    Ok(()) => self.waiting.push_back((due, pending)),
                    Err(why) => {
                        tracing::debug!(id = %pending.report.id(), ?why, "the VPA recommender is not told");
                        withheld.push(pending.number);
                    }
                }
            }
            if !withheld.is_empty() {
                self.queue.count(ReportOutcome::Withheld, withheld.len());
                self.queue.acknowledge(withheld).await?;
            }
        }
        self.queue.set_in_flight(self.waiting.len());
        Ok(())
    }

    /// Deals with a report now that it can be known what became of the container; none once told to stop.
    async fn finish_report(&mut self, pending: Pending, stop: &CancellationToken) -> Result<Option<()>, Ended> {
        let facts = self.poster.metadata().container_facts(&pending.report);
        match self.events.decide(&pending, facts, Timestamp::now()) {
            VpaDecision::Withhold(why) => {
                tracing::debug!(id = %pending.report.id(), ?why, "the VPA recommender is not told");
                self.queue.count(ReportOutcome::Withheld, 1);
            }
            VpaDecision::Send(event) => {
                let told = self.poster.post(&event, OnRefusal::GiveUp, &self.queue, stop).await;
                if told.is_none() {
                    return Ok(None);
                }
                self.windows.keep(self.events.told()).await;
            }
        }
        self.queue.acknowledge(vec![pending.number]).await?;
        Ok(Some(()))
    }
}
