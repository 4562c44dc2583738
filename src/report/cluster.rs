//! Delivery as Kubernetes Events: reports → Events at the API server, as [`events`](super::events) plans them.
//!
//! In come the reports of a [`ReportQueue`] and [`PodMetadata`]; out go Events, each acknowledged once
//! the API server has it. While it is away, or refuses for want of a right, everything waits in the spool, and the link's
//! state says what is missing. What it will never take on a pod (its namespace is gone, or a quota is used up) is told
//! about the node instead, so that it is told at all.
//!
//! A `Plan` says what becomes of them: Events for people, or Events for a VPA recommender.

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

/// What the agent knows besides the reports, at the moment it is asked.
pub trait PodMetadata: fmt::Debug + Send + Sync {
    /// Waits until the pods of the node are known for the first time. An agent that begins while the API server is
    /// away knows nobody by name.
    fn wait_until_known(&self) -> BoxFuture<'static, ()>;

    /// The names of the pod with this UID in its cgroup's name, and of its container with this id.
    fn names(&self, uid: &str, container: &str) -> Option<Names>;

    /// Gives a pod the UID it has at the API server (for a static pod its mirror pod's) and finds out whether the container
    /// is an init container. A pod that is not known stays as it is.
    fn resolve(&self, reference: &mut PodReference);

    /// What a VPA recommender would have to know of the report's container.
    fn container_facts(&self, report: &Report) -> ContainerFacts;
}

/// What a pod and its container are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    pub namespace: String,
    pub pod: String,
    /// The container's name; none if it is not known.
    pub container: Option<String>,
}

/// With names in place of those that were not known when the kill was seen.
fn named(mut pending: Pending, metadata: &dyn PodMetadata) -> Pending {
    let facts = pending.report.facts_mut();
    let (Some(pod), container) = (&mut facts.pod, &mut facts.container) else {
        return pending;
    };
    let nameless = pod.name.is_empty() || container.as_ref().is_some_and(|container| container.name.is_empty());
    let id = container.as_ref().map_or("", |container| &container.id);
    if nameless && let Some(names) = metadata.names(&pod.uid, id) {
        pod.namespace = names.namespace;
        pod.name = names.pod;
        if let (Some(container), Some(name)) = (container, names.container) {
            container.name = name;
        }
    }
    pending
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
    plan: Plan,
    backoff: Backoff,
    connected: bool,
}

impl EventDelivery {
    /// Tells people, by Events on pods.
    pub fn for_people(client: ApiClient, node: &str, metadata: Arc<dyn PodMetadata>) -> Self {
        let most = Destination::PodEvents.window();
        let events = PodEvents::new(Rates::default(), most, Instant::now());
        Self::new(client, node, metadata, Plan::People(events))
    }

    /// Tells an unmodified VPA recommender, by Events in the shape that it reads. The file `memory`, whose directory is there,
    /// keeps what it was told. Blocks.
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
                    more = queue.more() => more?,
                    () = until(self.plan.ready_at()) => {}
                },
            }
        }
    }

    /// Takes in what there is, as far as there is room.
    async fn fill(&mut self, queue: &mut ReportQueue) -> Result<(), Ended> {
        let plan = &mut self.plan;
        let room = plan.destination().window().saturating_sub(plan.waiting());
        let mut withheld = Vec::new();
        for pending in queue.next(room).await? {
            let number = pending.number;
            if plan.offer(named(pending, self.metadata.as_ref())).is_err() {
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
            // An earlier agent told of some. Everything that is still pending is taken in again.
            self.plan.start_over();
            queue.start_over();
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

/// How long the kubelet has to say in the pod's status what became of a container: the recommender reads that, too, and
/// must not count a kill twice. The kubelet looks at its containers every second (`genericPlegRelistPeriod`) and writes the
/// status at once, unless the API server makes it wait.
const SETTLE: Duration = Duration::from_secs(10);

/// The next thing to do.
enum Next {
    Send(Box<PlannedEvent>),
    /// No Event tells of the report with this number.
    Withhold(u64),
}

/// Reports of one destination, on their way into Events.
#[derive(Debug)]
enum Plan {
    People(PodEvents),
    Recommender(VpaPlan),
}

/// Reports for a VPA recommender, each until it can be known what became of its container.
#[derive(Debug)]
struct VpaPlan {
    events: VpaEvents,
    /// Reports with the moment at which each is decided, which ascends.
    waiting: VecDeque<(Instant, Pending)>,
    /// Where it is kept when the recommender was told of which container, so that windows outlive the agent: a list in
    /// JSON, replaced whole. To lose it costs one Event too many for each container.
    memory: PathBuf,
}

fn log_withheld(pending: &Pending, why: Withheld) {
    tracing::debug!(id = %pending.report.id(), ?why, "the VPA recommender is not told");
}

impl Plan {
    /// Goes on with what the file `memory` has. Blocks.
    fn for_recommender(windows: VpaWindows, memory: PathBuf) -> Self {
        let read = match fs::read(&memory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read.and_then(|text| Ok(serde_json::from_slice::<Vec<LastTold>>(&text)?)),
        };
        let told = read.unwrap_or_else(|error| {
            tracing::warn!(path = %memory.display(), %error, "what the VPA recommender was told before is not known");
            Vec::new()
        });
        Self::Recommender(VpaPlan {
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

    /// Takes a report in. Errors: why no Event will tell of it, which is logged.
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

    /// The reports that were taken in and are in no Event yet.
    fn waiting(&self) -> usize {
        match self {
            Self::People(events) => events.waiting(),
            Self::Recommender(plan) => plan.waiting.len(),
        }
    }

    /// When [`Self::next`] has something, if nothing more is offered.
    fn ready_at(&self) -> Option<Instant> {
        match self {
            Self::People(events) => events.ready_at(),
            Self::Recommender(plan) => plan.waiting.front().map(|(due, _)| *due),
        }
    }

    fn next(&mut self, metadata: &dyn PodMetadata) -> Option<Next> {
        let now = Instant::now();
        if self.ready_at()? > now {
            return None;
        }
        match self {
            Self::People(events) => events.next(now).map(Box::new).map(Next::Send),
            Self::Recommender(plan) => {
                let (_, pending) = plan.waiting.pop_front()?;
                let facts = metadata.container_facts(&pending.report);
                Some(match plan.events.decide(&pending, facts, Timestamp::now()) {
                    Ok(event) => Next::Send(Box::new(event)),
                    Err(why) => {
                        log_withheld(&pending, why);
                        Next::Withhold(pending.number)
                    }
                })
            }
        }
    }

    /// Forgets what waits, which is offered again.
    fn start_over(&mut self) {
        match self {
            Self::People(events) => events.start_over(),
            Self::Recommender(plan) => plan.waiting.clear(),
        }
    }

    /// Keeps what was sent, where that outlives the agent.
    async fn keep(&self) {
        let Self::Recommender(VpaPlan { events, memory, .. }) = self else {
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
        let open = || match Plan::for_recommender(VpaWindows::default(), path.clone()) {
            Plan::Recommender(plan) => plan,
            Plan::People(_) => unreachable!(),
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
        Plan::Recommender(plan).keep().await;
        assert_eq!(open().events.told(), told);
        assert_eq!(Plan::Recommender(open()).offer(pending), Err(Withheld::WithinWindow));
        fs::write(&path, "[{").unwrap();
        assert_eq!(open().events.told(), []);
    }
}
