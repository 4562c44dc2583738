//! The one way of Kubernetes Events to the API server, about changes and about kills.
//!
//! In come records of changes, the reports of [`ReportQueue`]s and [`PodMetadata`]; out go Events, of each namespace those about kills
//! first. Events for people have one set of rates. [`events`](super::events) composes and plans them. A message about a change waits in
//! memory and is counted where it becomes no Event. Reports of kills wait in the log: the outbox acknowledges them once the API server
//! has their Event. Each namespace has one attempt at a time, and all take turns: a webhook that answers slowly keeps no other namespace
//! waiting.
//! What the API server refuses for now, or does not answer, waits by namespace and kind, and the link's state gives the reason.
//! Where the API server will never take an Event of a kill on a pod (the pod's namespace is gone, or a quota is used up), the Event
//! is about the node instead.

mod retries;

use std::convert::Infallible;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, fs, io};

use futures::future::{BoxFuture, FutureExt, select_all};
use futures::stream::{FuturesUnordered, StreamExt as _};
use indexmap::IndexSet;
use jiff::Timestamp;
use parking_lot::Mutex;

use self::retries::Retries;
use crate::failpoint::failpoint;
use crate::feed::FeedListener;
use crate::files::replace_atomically;
use crate::kubernetes::events::{EventRates, NamedEvent, PodReference, Posted, Subject, post, raise};
use crate::kubernetes::metrics::{EventMetrics, EventOutcome};
use crate::kubernetes::{ApiClient, ApiError, Problem};
use crate::model::ChangeRecord;
use crate::model::objects::PodUid;
use crate::oom::KillFacts;
use crate::rate_limiter::{KeyedRateLimiter, REPEATED_LINES};
use crate::report::content::Report;
use crate::report::destination::{Destination, SharedWindow};
use crate::report::events::{Composer, ContainerFacts, EventLimits, LastEvent, PlannedEvent};
use crate::report::log::Pending;
use crate::report::metrics::ReportOutcome;
use crate::report::reporter::{ReportQueue, until};

/// So many messages about changes may wait for the API server.
const QUEUE: usize = 256;

/// So many Events are on their way at once, one of each namespace at most. Resizes need calls, too.
const AT_ONCE: usize = 4;

/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time between two attempts to find a turn for what exceeds a rate.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The agent's facts about pods, besides the reports.
pub trait PodMetadata: fmt::Debug + Send + Sync {
    /// Waits until the pods of the node are known for the first time. An agent that begins while the API server is away
    /// knows no pod by name.
    fn wait_until_known(&self) -> BoxFuture<'static, ()>;

    /// Fills in the names of pod and container that were not known at the kill: the pod by the UID in its cgroup's
    /// name, the container by its id.
    fn complete_names(&self, facts: &mut KillFacts);

    /// Whether the container is an init container; no, if the pod is not known.
    fn is_init(&self, reference: &PodReference) -> bool;

    /// Whether the node has a pod with this UID in its cgroup's name.
    fn has_pod(&self, uid: &PodUid) -> bool;

    /// The facts about the report's container that decide whether a VPA recommender needs an Event; none if its pod is not known.
    fn container_facts(&self, report: &Report) -> Option<ContainerFacts>;
}

/// What decides which Event is sent next.
struct Turns {
    rates: EventRates,
    retries: Retries,
    /// Whether the API server is away. One Event of each kind waits for it then, and not one of each namespace.
    is_away: bool,
    /// After an Event that is sent again, namespaces without one go first: the answers to those may take long.
    new_first: bool,
}

/// Sends the Events of a node.
#[derive(Debug)]
pub struct Outbox {
    pub client: ApiClient,
    pub node: String,
    pub metadata: Arc<dyn PodMetadata>,
    pub changes: ChangeEvents,
    /// The first goes first.
    pub kills: Vec<KillEvents>,
}

impl Outbox {
    /// Sends Events about changes and about the reports of the queues. Cancelling it is harmless: the next agent sends what is not
    /// acknowledged then, under the same names.
    pub async fn run(mut self, mut records: FeedListener<Arc<ChangeRecord>>) -> Infallible {
        let mut turns = Turns {
            rates: EventRates::new(Instant::now()),
            retries: Retries::default(),
            is_away: false,
            new_first: false,
        };
        let (mut attempts, health) = (FuturesUnordered::new(), self.client.health.clone());
        let (mut first_view, mut is_known) = (self.metadata.wait_until_known(), false);
        loop {
            let now = Instant::now();
            turns.is_away = health.away().is_some();
            for kills in self.kills.iter_mut().filter(|_| is_known) {
                kills.take_in(self.metadata.as_ref()).await;
            }
            let most = if turns.is_away { 1 } else { AT_ONCE };
            while attempts.len() < most
                && let Some(outgoing) = self.begin(&mut turns, now).await
            {
                attempts.push(attempt(self.client.clone(), self.node.clone(), outgoing));
            }
            let (has_room, due) = (attempts.len() < most, self.ready_at(&turns, now));
            let more = self.kills.iter().map(|kills| kills.queue.more().boxed());
            let more = select_all(more.chain([pending().boxed()])).map(drop);
            // Cancel-safe, all of them: none has taken anything yet.
            tokio::select! {
                biased;
                record = next_record(&mut records) => self.changes.add(&record, self.metadata.as_ref()),
                () = &mut first_view, if !is_known => is_known = true,
                () = more, if is_known => {}
                Some((outgoing, answer)) = attempts.next() => self.end(outgoing, answer, &mut turns).await,
                () = until(due), if has_room => {}
                () = health.returned(), if turns.is_away => {}
            }
        }
    }

    /// The namespaces with an Event to send, each with the time from which on it may be sent.
    fn due<'a>(&'a self, turns: &'a Turns, now: Instant) -> impl Iterator<Item = (&'a str, Instant)> {
        let retries = turns.retries.namespaces().map(move |namespace| (namespace, now));
        let may_go = move |kind: Option<Destination>| !(turns.is_away && turns.retries.hold(kind, None));
        let kills = self.kills.iter();
        let kills = kills.filter(move |kills| may_go(Some(kills.queue.destination)));
        let kills = kills.flat_map(move |kills| kills.plan.due(now));
        let changes = self.changes.limits.waiting().filter(move |_| may_go(None));
        retries.chain(kills).chain(changes)
    }

    /// When [`Self::begin`] may have something, after it had nothing at that time.
    fn ready_at(&self, turns: &Turns, now: Instant) -> Option<Instant> {
        let ready = self.due(turns, now).filter_map(|(namespace, at)| {
            let at = turns.rates.next_at(namespace)?.max(at);
            Some(if at > now { at } else { now + TRY_AGAIN })
        });
        ready.min()
    }

    /// The next Event to send, of the namespace that waits longest. That has no other attempt until [`Self::end`].
    async fn begin(&mut self, turns: &mut Turns, now: Instant) -> Option<PlannedEvent> {
        let due = self.due(turns, now).filter(|(_, at)| *at <= now);
        let due: IndexSet<String> = due.map(|(namespace, _)| namespace.to_owned()).collect();
        let mut in_turn = turns.rates.in_turn(due.iter().map(String::as_str), now);
        if turns.new_first {
            in_turn.sort_by_key(|place| turns.retries.namespaces().any(|namespace| namespace == due[*place]));
        }
        for place in in_turn {
            if let Some(next) = self.next_in(&due[place], turns, now).await {
                turns.rates.begin(next.namespace());
                turns.new_first = next.outcome == ReportOutcome::SentAgain;
                return Some(next);
            }
        }
        if !due.is_empty() {
            tracing::debug!(?due, "what these namespaces have to send waits for a turn");
        }
        None
    }

    /// The next Event in a namespace. Those about kills go before changes: the rates may leave room for few. Those of a kind that the API
    /// server refuses for now go last, and keep no other waiting.
    async fn next_in(&mut self, namespace: &str, turns: &mut Turns, now: Instant) -> Option<PlannedEvent> {
        let whose = (!turns.is_away).then_some(namespace);
        let Turns { rates, retries, .. } = turns;
        for kills in &mut self.kills {
            if !retries.hold(Some(kills.queue.destination), whose)
                && let Some(new) = kills.next(namespace, rates, self.metadata.as_ref(), now).await
            {
                return Some(new);
            }
        }
        let is_held = retries.hold(None, whose);
        let change = (!is_held).then(|| self.changes.next(namespace, rates, now));
        change.flatten().or_else(|| retries.next_in(namespace))
    }

    /// Ends the attempt to send an Event. One that is refused for now, or by a proxy's 404, is sent again.
    async fn end(&mut self, outgoing: PlannedEvent, answer: Result<Posted, ApiError>, turns: &mut Turns) {
        let (now, destination, namespace) = (Instant::now(), outgoing.destination, outgoing.namespace().to_owned());
        let (event, outcome) = (&outgoing.event.name, outgoing.outcome);
        tracing::debug!(event, ?outcome, posted = ?answer.as_ref().ok(), "an Event was sent");
        let mut kills = self.kills.iter_mut();
        let kills = kills.find(|kills| Some(kills.queue.destination) == destination);
        if let Some(KillEvents { queue, .. }) = &kills {
            queue.count(outcome, outgoing.reports.len());
        }
        if let Err(error) = &answer
            && (kills.is_some() || error.problem.is_retryable() || error.problem.status() == Some(404))
            && !is_permanent(&error.problem)
        {
            let wait = turns.retries.failed(outgoing, error.problem.retry_after());
            turns.rates.end(&namespace, now + wait, now);
            return match kills {
                Some(KillEvents { queue, .. }) => queue.waits("Events about OOM kills", error.to_string(), wait),
                None => tracing::debug!("an Event waits: {error}"),
            };
        }
        turns.rates.end(&namespace, now, now);
        turns.retries.ended(&outgoing);
        let Some(kills) = kills else {
            return self.changes.end(answer);
        };
        if !turns.retries.hold(destination, None) {
            kills.queue.connected();
        }
        if let Some(about_node) = kills.end(outgoing, answer).await {
            turns.retries.push(about_node);
        }
    }
}

/// The next record of a change; waits for ever once there are no more.
async fn next_record(records: &mut FeedListener<Arc<ChangeRecord>>) -> Arc<ChangeRecord> {
    let Some((record, missed)) = records.next().await else {
        return pending().await;
    };
    if missed > 0 {
        tracing::warn!(missed, "changes get no Events: they came too fast");
    }
    record
}

/// The Events about changes.
#[derive(Debug)]
pub struct ChangeEvents {
    composer: Composer,
    limits: EventLimits,
    metrics: EventMetrics,
    /// The log lines about Events that are not written, by the status of the answer.
    logged: KeyedRateLimiter<Option<u16>>,
}

impl ChangeEvents {
    /// The names of the Events contain the present time.
    pub fn new(metrics: EventMetrics) -> Self {
        Self {
            composer: Composer::default(),
            limits: EventLimits::new(Timestamp::now().as_nanosecond(), QUEUE),
            metrics,
            logged: KeyedRateLimiter::new(REPEATED_LINES),
        }
    }

    fn add(&mut self, record: &ChangeRecord, metadata: &dyn PodMetadata) {
        self.composer.retain(|uid| metadata.has_pod(uid));
        if let Some(message) = self.composer.compose(record) {
            self.keep(message);
        }
    }

    fn keep(&mut self, message: NamedEvent) {
        let lost = self.limits.add(message, Instant::now());
        self.metrics.count(EventOutcome::Lost, lost.into());
    }

    /// The Event that is due in a namespace.
    fn next(&mut self, namespace: &str, rates: &mut EventRates, now: Instant) -> Option<PlannedEvent> {
        let new = self.limits.next(namespace, rates, now);
        self.metrics.count(EventOutcome::HeldBack, self.limits.take_held_back());
        Some(PlannedEvent::new(new?, Vec::new()))
    }

    /// Counts an Event. The API server has it, or will never take it.
    fn end(&self, answer: Result<Posted, ApiError>) {
        let Err(error) = answer else {
            failpoint("event.posted");
            return self.metrics.count(EventOutcome::Written, 1);
        };
        if self.logged.try_use(error.problem.status(), Instant::now()) {
            tracing::warn!("an Event was not written: {error}");
        }
        self.metrics.count(EventOutcome::Lost, 1);
    }
}

/// The Events about the kills of one destination.
#[derive(Debug)]
pub struct KillEvents {
    queue: ReportQueue,
    plan: Box<dyn EventPlan>,
    /// The reports in the plan, in the retries and on their way.
    window: Arc<Mutex<SharedWindow>>,
}

impl KillEvents {
    /// Events for the reports of a queue.
    pub fn new(queue: ReportQueue, plan: Box<dyn EventPlan>) -> Self {
        let window = SharedWindow::new(queue.destination.window());
        Self {
            queue,
            plan,
            window: Arc::new(Mutex::new(window)),
        }
    }

    async fn take_in(&mut self, metadata: &dyn PodMetadata) {
        let window = Arc::clone(&self.window);
        let admits = move |number, report: &Report| window.lock().take_in(number, report);
        for mut pending in self.queue.next(usize::MAX, admits).await {
            metadata.complete_names(pending.report.facts_mut());
            self.plan.offer(pending);
        }
    }

    /// Acknowledges reports, which leave room for others.
    async fn acknowledge(&mut self, numbers: Vec<u64>) {
        if self.window.lock().release(&numbers) {
            self.queue.start_over();
        }
        self.queue.acknowledge(numbers).await;
    }

    /// The next Event that is due in a namespace.
    async fn next(
        &mut self,
        namespace: &str,
        rates: &mut EventRates,
        metadata: &dyn PodMetadata,
        now: Instant,
    ) -> Option<PlannedEvent> {
        let mut withheld = Vec::new();
        let next = self.plan.next_event(namespace, now, rates, metadata, &mut withheld);
        if !withheld.is_empty() {
            self.queue.count(ReportOutcome::Withheld, withheld.len());
            self.acknowledge(withheld).await;
        }
        let mut planned = next?;
        planned.destination = Some(self.queue.destination);
        if let Subject::Pod(reference) = &mut planned.event.subject {
            reference.init = metadata.is_init(reference);
        }
        Some(planned)
    }

    /// Acknowledges the reports of an Event that the API server has, or will never take. Returns the Event to send instead.
    async fn end(&mut self, outgoing: PlannedEvent, answer: Result<Posted, ApiError>) -> Option<PlannedEvent> {
        let (queue, event) = (&self.queue, &outgoing.event);
        let numbers = match answer {
            Ok(Posted::Created) => outgoing.numbers(),
            Ok(Posted::Existed { count }) => outgoing.covered_by(count),
            // An Event on the node would mean nothing to a recommender.
            Err(error) if event.subject == Subject::Node || queue.destination == Destination::VpaEvents => {
                tracing::error!(event = event.name, "an Event is dropped: {error}");
                queue.count(ReportOutcome::Refused, outgoing.reports.len());
                outgoing.numbers()
            }
            Err(error) => {
                tracing::warn!(event = event.name, "an Event goes to the node, not to its pod: {error}");
                return Some(about_node(outgoing));
            }
        };
        if let Some((path, told)) = self.plan.ended(&outgoing.numbers()) {
            keep(path.to_owned(), told).await;
        }
        let others = outgoing.numbers().split_off(numbers.len());
        self.acknowledge(numbers).await;
        if !others.is_empty() {
            // An Event of an earlier agent covers only the first. The plan takes in the others again.
            self.window.lock().release(&others);
            self.queue.start_over();
        }
        None
    }
}

/// Waits [`PATIENCE`] for the API server's answer to an Event. The Event's name keeps it from being written twice.
async fn attempt(
    client: ApiClient,
    node: String,
    mut outgoing: PlannedEvent,
) -> (PlannedEvent, Result<Posted, ApiError>) {
    let (event, is_change) = (&mut outgoing.event, outgoing.destination.is_none());
    if is_change {
        [event.first, event.last] = [Timestamp::now(); 2];
    }
    let event = &*event;
    let attempt = async {
        if is_change && event.count > 1 && raise(&client, event).await? {
            return Ok(Posted::Existed { count: event.count });
        }
        // An existing Event is from an earlier attempt.
        post(&client, &node, event).await
    };
    let answer = tokio::time::timeout(PATIENCE, attempt).await.unwrap_or_else(|_| {
        let (call, problem) = ("create events".to_owned(), Problem::Timeout(PATIENCE));
        Err(ApiError { call, problem })
    });
    (outgoing, answer)
}

/// Writes down when each container had its last Event.
async fn keep(path: PathBuf, told: Vec<LastEvent>) {
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
fn about_node(mut outgoing: PlannedEvent) -> PlannedEvent {
    let event = &mut outgoing.event;
    if let Subject::Pod(PodReference { pod, container, .. }) = &event.subject {
        let container = container.as_ref().map(|name| format!(", container {name}"));
        let (container, message) = (container.unwrap_or_default(), &event.message);
        event.message = format!("Pod {}/{}{container}: {message}", pod.namespace, pod.name);
    }
    event.subject = Subject::Node;
    outgoing.outcome = ReportOutcome::SentAgain;
    outgoing
}

/// Whether the API server will refuse the Event however often the agent sends it: a rule denies it, or its namespace is gone. Operators
/// can mend missing rights and expired credentials, and a proxy may have answered.
fn is_permanent(problem: &Problem) -> bool {
    problem.names_no_object() || matches!(problem, Problem::Refused(status) if status.is_denial())
}

/// Makes Events of the reports of one destination: [`PodEvents`](super::events::PodEvents) for people,
/// [`VpaEvents`](super::events::VpaEvents) for a VPA recommender.
pub trait EventPlan: fmt::Debug + Send + Sync {
    /// Takes a report in.
    fn offer(&mut self, pending: Pending);

    /// The namespaces of the reports that are in no Event yet, each with the time from which on it may have one.
    fn due(&self, now: Instant) -> Vec<(&str, Instant)>;

    /// The next Event in a namespace that may be sent now. Adds the numbers of reports that get no Event to `withheld`.
    fn next_event(
        &mut self,
        namespace: &str,
        now: Instant,
        rates: &mut EventRates,
        metadata: &dyn PodMetadata,
        withheld: &mut Vec<u64>,
    ) -> Option<PlannedEvent>;

    /// Notes that the API server has the Event about these reports, or will never take it. Returns the path of the plan's file, and
    /// what it contains from now on.
    fn ended(&mut self, _numbers: &[u64]) -> Option<(&Path, Vec<LastEvent>)> {
        None
    }
}

/// Reads when each container had its last Event, from the file of [`EventPlan::ended`]. Without the file each container has
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
mod tests;
