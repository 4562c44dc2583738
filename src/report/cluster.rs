//! Delivery as Kubernetes Events: reports → Events at the API server, as [`events`](super::events) plans them.
//!
//! In come the reports of a [`ReportQueue`] and [`PodMetadata`]; out go Events. The delivery acknowledges the reports of an Event
//! once the API server has it. While the API server is away, or a right is missing, everything waits in the log, and the link's
//! state says what is missing. Where the API server will never take an Event on a pod (the pod's namespace is gone, or a quota
//! is used up), the Event is about the node instead.
//!
//! An [`EventPlan`] makes Events for people, or Events for a VPA recommender.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, fs, io};

use futures::future::{BoxFuture, FutureExt};
use jiff::Timestamp;

use crate::files::replace_atomically;
use crate::kubernetes::events::{NamedEvent, PodReference, Posted, Subject, post};
use crate::kubernetes::{ApiClient, ApiError, Problem};
use crate::oom::KillFacts;
use crate::pace::Backoff;
use crate::report::content::Report;
use crate::report::destination::Destination;
use crate::report::events::{
    ContainerFacts, LastTold, PlannedEvent, PodEvents, Rates, VpaEvents, VpaWindows, Withheld,
};
use crate::report::log::Pending;
use crate::report::log::task::until;
use crate::report::metrics::ReportOutcome;
use crate::report::reporter::{Deliver, Ended, ReportQueue};

/// What the agent knows now besides the reports.
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
    plan: EventPlan,
    backoff: Backoff,
}

impl EventDelivery {
    /// Delivers the Events of a plan in the name of a node.
    pub fn new(client: ApiClient, node: &str, metadata: Arc<dyn PodMetadata>, plan: EventPlan) -> Self {
        Self {
            client,
            node: node.to_owned(),
            metadata,
            plan,
            backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT),
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
                Some(Ok(event)) => self.send(queue, &event).await?,
                Some(Err(number)) => withhold(queue, vec![number]).await?,
                // Cancel-safe, all of them: none has taken anything from the queue yet.
                None => tokio::select! {
                    more = queue.more() => more?,
                    () = until(self.plan.ready_at()) => {}
                },
            }
        }
    }

    /// Takes reports out of the queue, as far as there is room.
    async fn fill(&mut self, queue: &mut ReportQueue) -> Result<(), Ended> {
        let plan = &mut self.plan;
        let room = plan.destination().window().saturating_sub(plan.waiting());
        let mut withheld = Vec::new();
        for mut pending in queue.next(room).await? {
            let number = pending.number;
            self.metadata.complete_names(pending.report.facts_mut());
            if plan.offer(pending).is_err() {
                withheld.push(number);
            }
        }
        withhold(queue, withheld).await
    }

    async fn send(&mut self, queue: &mut ReportQueue, planned: &PlannedEvent) -> Result<(), Ended> {
        let numbers = self.post(queue, planned).await;
        self.plan.keep().await;
        let all = numbers.len() == planned.reports.len();
        queue.acknowledge(numbers).await?;
        if !all {
            // An Event of an earlier agent covers some. The plan takes in again everything that is still pending.
            self.plan.start_over();
            queue.start_over();
        }
        Ok(())
    }

    /// Tries until the API server has the Event or will never take it. Returns the numbers of the reports to acknowledge.
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
            self.backoff.reset();
            queue.connected();
            let error = match posted {
                Ok(Posted::Created) => return planned.numbers(),
                Ok(Posted::Existed { count }) => return planned.covered_by(count),
                Err(error) => error,
            };
            // An Event on the node would mean nothing to a recommender.
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
        let wait = self.backoff.next(error.problem.retry_after());
        tracing::warn!(%error, ?wait, "Events about OOM kills are not delivered; they are kept");
        queue.wait(error.to_string(), wait).await;
    }
}

async fn withhold(queue: &ReportQueue, numbers: Vec<u64>) -> Result<(), Ended> {
    if numbers.is_empty() {
        return Ok(());
    }
    queue.count(ReportOutcome::Withheld, numbers.len());
    queue.acknowledge(numbers).await
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
    match problem {
        Problem::Refused(status) => !matches!(status.code, 401 | 409 | 429 | 500..),
        _ => false,
    }
}

/// How long the kubelet has to write the end of a container into the pod's status: the recommender reads that, too, and must
/// not count a kill twice. The kubelet looks at its containers every second (`genericPlegRelistPeriod`) and writes the
/// status at once, unless the API server makes it wait.
const SETTLE: Duration = Duration::from_secs(10);

/// Makes Events of the reports of one destination.
#[derive(Debug)]
pub enum EventPlan {
    People(PodEvents),
    Recommender(RecommenderPlan),
}

/// Reports for a VPA recommender, each until the kubelet has had time to write the pod's status.
#[derive(Debug)]
pub struct RecommenderPlan {
    events: VpaEvents,
    /// Reports with the moment at which each is decided, which ascends.
    waiting: VecDeque<(Instant, Pending)>,
    /// The file that keeps when each container had its last Event, so that windows outlive the agent: a list in JSON, replaced
    /// whole. To lose the file costs one Event too many for each container.
    memory: PathBuf,
}

fn log_withheld(pending: &Pending, why: Withheld) {
    tracing::debug!(id = %pending.report.id(), ?why, "the VPA recommender is not told");
}

impl EventPlan {
    /// Events on pods, for people.
    pub fn for_people() -> Self {
        let most = Destination::PodEvents.window();
        Self::People(PodEvents::new(Rates::default(), most, Instant::now()))
    }

    /// Events in the shape that an unmodified VPA recommender reads. Resumes the windows that the file `memory` keeps,
    /// in a directory that exists. Blocks.
    pub fn for_recommender(windows: VpaWindows, memory: PathBuf) -> Self {
        let read = match fs::read(&memory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read.and_then(|text| Ok(serde_json::from_slice::<Vec<LastTold>>(&text)?)),
        };
        let told = read.unwrap_or_else(|error| {
            tracing::warn!(path = %memory.display(), %error, "what the VPA recommender was told before is not known");
            Vec::new()
        });
        Self::Recommender(RecommenderPlan {
            events: VpaEvents::new(windows, told),
            waiting: VecDeque::new(),
            memory,
        })
    }

    const fn destination(&self) -> Destination {
        match self {
            Self::People(_) => Destination::PodEvents,
            Self::Recommender(_) => Destination::VpaEvents,
        }
    }

    /// Takes a report in.
    ///
    /// Errors: why no Event will tell of the report, which is logged.
    fn offer(&mut self, pending: Pending) -> Result<(), Withheld> {
        match self {
            Self::People(events) => events.offer(pending),
            Self::Recommender(plan) => {
                let screened = plan.events.screen(&pending.report, Timestamp::now());
                screened.inspect_err(|why| log_withheld(&pending, *why))?;
                plan.waiting.push_back((Instant::now() + SETTLE, pending));
            }
        }
        Ok(())
    }

    /// How many of the reports taken in are in no Event yet.
    fn waiting(&self) -> usize {
        match self {
            Self::People(events) => events.waiting(),
            Self::Recommender(plan) => plan.waiting.len(),
        }
    }

    /// When [`Self::next`] has something, if no more reports come.
    fn ready_at(&self) -> Option<Instant> {
        match self {
            Self::People(events) => events.ready_at(),
            Self::Recommender(plan) => plan.waiting.front().map(|(due, _)| *due),
        }
    }

    /// The next Event that may be sent now, or the number of a report that no Event tells of.
    fn next(&mut self, metadata: &dyn PodMetadata) -> Option<Result<PlannedEvent, u64>> {
        let now = Instant::now();
        if self.ready_at()? > now {
            return None;
        }
        match self {
            Self::People(events) => events.next(now).map(Ok),
            Self::Recommender(plan) => {
                let (_, pending) = plan.waiting.pop_front()?;
                let facts = metadata.container_facts(&pending.report);
                let planned = plan.events.decide(&pending, facts, Timestamp::now());
                Some(planned.map_err(|why| {
                    log_withheld(&pending, why);
                    pending.number
                }))
            }
        }
    }

    /// Forgets the reports that wait.
    fn start_over(&mut self) {
        match self {
            Self::People(events) => events.start_over(),
            Self::Recommender(plan) => plan.waiting.clear(),
        }
    }

    /// Writes down when each container had its last Event.
    async fn keep(&self) {
        let Self::Recommender(RecommenderPlan { events, memory, .. }) = self else {
            return;
        };
        let (told, path) = (events.told().to_vec(), memory.clone());
        let replace = move || replace_atomically(&path, |new| Ok(serde_json::to_writer(new, &told)?)).map(drop);
        let replaced = tokio::task::spawn_blocking(replace).await;
        if let Err(error) = replaced.map_err(io::Error::from).flatten() {
            tracing::warn!(path = %memory.display(), %error, "what the VPA recommender was told is not kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::events::ContainerFacts;
    use crate::report::testing::kill_of;

    #[tokio::test]
    async fn what_was_told_is_known_again_and_what_is_not_understood_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vpa-events.json");
        let open = || match EventPlan::for_recommender(VpaWindows::default(), path.clone()) {
            EventPlan::Recommender(plan) => plan,
            EventPlan::People(_) => unreachable!(),
        };
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
        let mut plan = open();
        plan.events.decide(&pending, facts, Timestamp::now()).unwrap();
        let told = plan.events.told().to_vec();
        EventPlan::Recommender(plan).keep().await;
        assert_eq!(open().events.told(), told);
        assert_eq!(
            EventPlan::Recommender(open()).offer(pending),
            Err(Withheld::WithinWindow)
        );
        fs::write(&path, "[{").unwrap();
        assert_eq!(open().events.told(), []);
    }
}
