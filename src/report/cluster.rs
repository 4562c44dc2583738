//! Delivery as Kubernetes Events: reports → Events at the API server, as [`events`](super::events) plans them.
//!
//! In come the reports of a [`ReportQueue`] and [`PodMetadata`]; out go Events. The delivery acknowledges the reports
//! of an Event once the API server has it. While the API server is away, or a right is missing, everything waits in the
//! log, and the link's state gives the reason. Where the API server will never take an Event on a pod (the pod's
//! namespace is gone, or a quota is used up), the Event is about the node instead.
//!
//! An [`EventPlan`] makes Events: [`PodEvents`](super::events::PodEvents) for people, [`VpaEvents`](super::events::VpaEvents)
//! for a VPA recommender.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use std::{fmt, fs, io};

use futures::future::{BoxFuture, FutureExt};

use crate::files::replace_atomically;
use crate::kubernetes::events::{NamedEvent, PodReference, Posted, Subject, post};
use crate::kubernetes::{ApiClient, Problem};
use crate::oom::KillFacts;
use crate::report::content::Report;
use crate::report::destination::Destination;
use crate::report::events::{ContainerFacts, LastEvent, PlannedEvent};
use crate::report::log::Pending;
use crate::report::metrics::ReportOutcome;
use crate::report::reporter::{Deliver, ReportQueue, until};

/// The agent's facts about pods, besides the reports.
pub trait PodMetadata: fmt::Debug + Send + Sync {
    /// Waits until the pods of the node are known for the first time. An agent that begins while the API server is away
    /// knows no pod by name.
    fn wait_until_known(&self) -> BoxFuture<'static, ()>;

    /// Fills in the names of pod and container that were not known at the kill: the pod by the UID in its cgroup's
    /// name, the container by its id.
    fn complete_names(&self, facts: &mut KillFacts);

    /// Gives a pod the UID it has at the API server (for a static pod its mirror pod's) and finds out whether the container
    /// is an init container. A pod that is not known stays as it is.
    fn resolve(&self, reference: &mut PodReference);

    /// The facts about the report's container that decide whether a VPA recommender needs an Event.
    fn container_facts(&self, report: &Report) -> ContainerFacts;
}

/// Delivers to [`Destination::PodEvents`] or [`Destination::VpaEvents`], in the name of a node.
#[derive(Debug)]
pub struct EventDelivery {
    pub client: ApiClient,
    pub node: String,
    pub metadata: Arc<dyn PodMetadata>,
    pub plan: Box<dyn EventPlan>,
}

impl Deliver for EventDelivery {
    fn destination(&self) -> Destination {
        self.plan.destination()
    }

    fn run(self: Box<Self>, queue: ReportQueue) -> BoxFuture<'static, Infallible> {
        self.deliver(queue).boxed()
    }
}

impl EventDelivery {
    async fn deliver(mut self, mut queue: ReportQueue) -> Infallible {
        self.metadata.wait_until_known().await;
        loop {
            let room = self.plan.destination().window().saturating_sub(self.plan.waiting());
            for mut pending in queue.next(room).await {
                self.metadata.complete_names(pending.report.facts_mut());
                self.plan.offer(pending);
            }
            let mut withheld = Vec::new();
            let now = Instant::now();
            let next = self.plan.next_event(now, self.metadata.as_ref(), &mut withheld);
            let has_room = !withheld.is_empty();
            if has_room {
                queue.count(ReportOutcome::Withheld, withheld.len());
                queue.acknowledge(withheld).await;
            }
            match next {
                Some(event) => self.send(&mut queue, &event).await,
                None if has_room => {}
                // Cancel-safe, all of them: none has taken anything from the queue yet.
                None => {
                    tracing::debug!(
                        waiting = self.plan.waiting(),
                        "no Event is due: reports wait for their rate, or none waits"
                    );
                    tokio::select! {
                        () = queue.more() => {}
                        () = until(self.plan.ready_at()) => {}
                    }
                }
            }
        }
    }

    async fn send(&mut self, queue: &mut ReportQueue, planned: &PlannedEvent) {
        let numbers = self.post(queue, planned).await;
        keep(self.plan.as_ref()).await;
        let all = numbers.len() == planned.reports.len();
        queue.acknowledge(numbers).await;
        if !all {
            // An Event of an earlier agent covers some. The plan takes in again everything that is still pending.
            self.plan.start_over();
            queue.start_over();
        }
    }

    /// Tries until the API server has the Event or will never take it. Returns the numbers of the reports to acknowledge.
    /// Cancelling it is harmless: the next agent posts the Event again, under the same name.
    async fn post(&mut self, queue: &mut ReportQueue, planned: &PlannedEvent) -> Vec<u64> {
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
            tracing::debug!(event = event.name, ?outcome, posted = ?posted.as_ref().ok(), "an Event was sent");
            if let Err(error) = &posted
                && !is_permanent(&error.problem)
            {
                let asked_for = error.problem.retry_after();
                queue.wait("Events about OOM kills", error.to_string(), asked_for).await;
                continue;
            }
            queue.connected();
            let error = match posted {
                Ok(Posted::Created) => return planned.numbers(),
                Ok(Posted::Existed { count }) => return planned.covered_by(count),
                Err(error) => error,
            };
            // An Event on the node would mean nothing to a recommender.
            if event.subject == Subject::Node || self.plan.destination() == Destination::VpaEvents {
                tracing::error!(event = event.name, "an Event is given up: {error}");
                queue.count(ReportOutcome::Refused, planned.reports.len());
                return planned.numbers();
            }
            tracing::warn!(event = event.name, "an Event on a pod becomes one on the node: {error}");
            event = about_node(event);
        }
    }
}

/// Writes down when each container had its last Event.
async fn keep(plan: &dyn EventPlan) {
    let Some((path, told)) = plan.memory() else { return };
    let (path, told) = (path.to_owned(), told.to_vec());
    let replace = move || {
        let replaced = replace_atomically(&path, |new| Ok(serde_json::to_writer(new, &told)?));
        if let Err(error) = replaced {
            tracing::warn!(path = %path.display(), %error, "the times of Events for the VPA recommender are not saved");
        }
    };
    // An error: the runtime is ending.
    tokio::task::spawn_blocking(replace).await.unwrap_or(());
}

/// The same Event, about the node: the API server takes none about the pod.
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

/// Whether the API server will refuse the Event however often the agent sends it. Operators can mend missing rights and expired
/// credentials, and a proxy may have sent an answer that cannot be read.
const fn is_permanent(problem: &Problem) -> bool {
    matches!(problem, Problem::Refused(status) if !matches!(status.code, 401 | 409 | 429 | 500..))
}

/// Makes Events of the reports of one destination.
pub trait EventPlan: fmt::Debug + Send + Sync {
    fn destination(&self) -> Destination;

    /// Takes a report in.
    fn offer(&mut self, pending: Pending);

    /// How many of the reports taken in are in no Event yet.
    fn waiting(&self) -> usize;

    /// When [`Self::next_event`] has something, if no more reports come: in the past if now, never if none waits.
    fn ready_at(&self) -> Option<Instant>;

    /// The next Event that may be sent now. Adds the numbers of reports that get no Event to `withheld`.
    fn next_event(&mut self, now: Instant, metadata: &dyn PodMetadata, withheld: &mut Vec<u64>)
    -> Option<PlannedEvent>;

    /// Forgets the reports that wait. Events that were sent still count against the rates.
    fn start_over(&mut self);

    /// The content of the plan's file after each Event, and its path.
    fn memory(&self) -> Option<(&Path, &[LastEvent])> {
        None
    }
}

/// Reads when each container had its last Event, from the file of [`EventPlan::memory`]. Without the file each container has
/// one Event too many. Blocks.
pub fn read_memory(path: &Path) -> Vec<LastEvent> {
    let read = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        read => read.and_then(|text| Ok(serde_json::from_slice(&text)?)),
    };
    read.unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "the times of earlier Events for the VPA recommender are unknown");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::report::events::VpaEvents;
    use crate::report::testing::kill_of;

    #[tokio::test]
    async fn earlier_events_are_known_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vpa-events.json");
        let mut plan = VpaEvents::new(SignedDuration::from_mins(10), read_memory(&path), path.clone());
        let pending = Pending {
            number: 1,
            report: kill_of("web", 1).into(),
        };
        let facts = ContainerFacts {
            regular: true,
            vpa: true,
            pinned: false,
            survived: Some(true),
        };
        plan.decide(&pending, facts, Timestamp::now()).unwrap();
        keep(&plan).await;
        assert_eq!(read_memory(&path).as_slice(), plan.memory().unwrap().1);
        assert_eq!(read_memory(&path).len(), 1);
        fs::write(&path, "[{").unwrap();
        assert_eq!(read_memory(&path), []);
    }
}
