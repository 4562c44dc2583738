//! The reports of one destination → Events at the API server, however long it takes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use jiff::Timestamp;

use super::plan::{Next, Plan};
use super::{PodMetadata, named};
use crate::kubernetes::events::{NamedEvent, PodReference, Posted, Subject, post};
use crate::kubernetes::{ApiClient, ApiError, Problem};
use crate::pace::Backoff;
use crate::report::destination::Destination;
use crate::report::events::{PlannedEvent, VpaWindows};
use crate::report::log::task::until;
use crate::report::metrics::ReportOutcome;
use crate::report::queue::{Ended, ReportQueue};
use crate::report::reporter::Deliver;

/// The wait after the first failure, about.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest, unless the API server asks for more.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Delivers to [`Destination::PodEvents`] or [`Destination::VpaEvents`], in the name of a node.
#[derive(Debug)]
pub struct EventDelivery {
    client: ApiClient,
    node: String,
    metadata: Arc<dyn PodMetadata>,
    plan: Plan,
    backoff: Backoff,
    connected: bool,
    /// The number of the last report that was taken in.
    after: u64,
    /// There are no more now.
    drained: bool,
}

impl EventDelivery {
    /// Tells people, by Events on pods.
    #[must_use]
    pub fn for_people(client: ApiClient, node: &str, metadata: Arc<dyn PodMetadata>) -> Self {
        Self::new(client, node, metadata, Plan::for_people())
    }

    /// Tells an unmodified VPA recommender, by Events in the shape that it reads. The file `memory`, whose directory is there,
    /// keeps what it was told. Blocks.
    #[must_use]
    pub fn for_recommender(
        client: ApiClient,
        node: &str,
        metadata: Arc<dyn PodMetadata>,
        windows: VpaWindows,
        memory: PathBuf,
    ) -> Self {
        Self::new(client, node, metadata, Plan::for_recommender(windows, memory))
    }

    fn new(client: ApiClient, node: &str, metadata: Arc<dyn PodMetadata>, plan: Plan) -> Self {
        Self {
            client,
            node: node.to_owned(),
            metadata,
            plan,
            backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT),
            connected: false,
            after: 0,
            drained: false,
        }
    }
}

impl Deliver for EventDelivery {
    fn destination(&self) -> Destination {
        self.plan.destination()
    }

    fn run(mut self: Box<Self>, mut queue: ReportQueue) -> BoxFuture<'static, ()> {
        // Either way the agent is ending.
        async move { self.deliver(&mut queue).await.unwrap_or(()) }.boxed()
    }
}

impl EventDelivery {
    async fn deliver(&mut self, queue: &mut ReportQueue) -> Result<(), Ended> {
        self.metadata.wait_until_known().await;
        loop {
            self.fill(queue).await?;
            match self.plan.next(self.metadata.as_ref()) {
                Some(Next::Send(event)) => self.send(queue, &event).await?,
                Some(Next::Withhold(number)) => withhold(queue, vec![number]).await?,
                // Cancel-safe, all of them: nothing is in hand.
                None => tokio::select! {
                    more = queue.more(), if self.drained => {
                        more?;
                        self.drained = false;
                    }
                    () = until(self.plan.ready_at()) => {}
                },
            }
        }
    }

    /// Takes in what there is, as far as there is room.
    async fn fill(&mut self, queue: &mut ReportQueue) -> Result<(), Ended> {
        let plan = &mut self.plan;
        let room = plan.destination().window().saturating_sub(plan.waiting());
        if room > 0 && !self.drained {
            let pending = queue.next(self.after, room).await?;
            self.drained = pending.len() < room;
            let mut withheld = Vec::new();
            for pending in pending {
                self.after = pending.number;
                if plan.offer(named(pending, self.metadata.as_ref())).is_err() {
                    withheld.push(self.after);
                }
            }
            withhold(queue, withheld).await?;
        }
        Ok(())
    }

    async fn send(&mut self, queue: &ReportQueue, planned: &PlannedEvent) -> Result<(), Ended> {
        let numbers = self.post(queue, planned).await;
        self.plan.keep().await;
        let all = numbers.len() == planned.reports.len();
        queue.acknowledge(numbers).await?;
        if !all {
            // An earlier agent told of some. Everything that is still pending is taken in again.
            self.plan.start_over();
            self.after = 0;
            self.drained = false;
        }
        Ok(())
    }

    /// Tries until the API server has the Event or will never take it. Returns the numbers of the reports that are dealt with.
    /// Cancelling it is harmless: the next agent posts the Event again, under the same name.
    async fn post(&mut self, queue: &ReportQueue, planned: &PlannedEvent) -> Vec<u64> {
        let mut event = planned.event.clone();
        // The pod as the API server knows it.
        if let Subject::Pod(reference) = &mut event.subject {
            self.metadata.resolve(reference);
        }
        let mut sent = ReportOutcome::Sent;
        loop {
            let outcome = std::mem::replace(&mut sent, ReportOutcome::SentAgain);
            queue.count(outcome, planned.reports.len());
            let posted = post(&self.client, &self.node, &event).await;
            if let Err(error) = &posted
                && !is_permanent(&error.problem)
            {
                self.wait(queue, error).await;
                continue;
            }
            // It did answer.
            self.backoff.reset();
            if !std::mem::replace(&mut self.connected, true) {
                queue.connected();
            }
            let error = match posted {
                Ok(Posted::Created) => return planned.numbers(),
                Ok(Posted::Existed { count }) => return planned.told_by(count),
                Err(error) => error,
            };
            // On the node it would mean nothing to a recommender.
            if event.subject == Subject::Node || self.destination() == Destination::VpaEvents {
                tracing::error!(event = event.name, "an Event is given up: {error}");
                queue.count(ReportOutcome::Refused, planned.reports.len());
                return planned.numbers();
            }
            tracing::warn!(event = event.name, "an Event on a pod becomes one on the node: {error}");
            event = about_node(event);
        }
    }

    async fn wait(&mut self, queue: &ReportQueue, error: &ApiError) {
        self.connected = false;
        let wait = self.backoff.next(error.problem.retry_after());
        tracing::warn!(%error, ?wait, "Events about OOM kills are not delivered; they are kept");
        queue.waiting(error.to_string(), Timestamp::now() + wait);
        tokio::time::sleep(wait).await;
    }
}

async fn withhold(queue: &ReportQueue, numbers: Vec<u64>) -> Result<(), Ended> {
    if numbers.is_empty() {
        return Ok(());
    }
    queue.count(ReportOutcome::Withheld, numbers.len());
    queue.acknowledge(numbers).await
}

/// The same where the API server takes no Event about the pod.
fn about_node(event: NamedEvent) -> NamedEvent {
    let whose = match &event.subject {
        Subject::Node => String::new(),
        Subject::Pod(PodReference { pod, container, .. }) => {
            let container = container.as_ref().map(|name| format!(", container {name}"));
            format!("Pod {}/{}{}: ", pod.namespace, pod.name, container.unwrap_or_default())
        }
    };
    NamedEvent {
        subject: Subject::Node,
        message: format!("{whose}{}", event.message),
        ..event
    }
}

/// Whether the same Event will be refused however often it is sent. Rights that lack and credentials that have expired
/// can be mended, and what cannot be read may have come from something in between.
const fn is_permanent(problem: &Problem) -> bool {
    match problem {
        Problem::Refused(status) => !matches!(status.code, 401 | 409 | 429 | 500..),
        _ => false,
    }
}
