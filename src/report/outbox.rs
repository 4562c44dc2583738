//! The one way of Kubernetes Events to the API server, about changes and about kills.
//!
//! In come records of changes, the reports of [`ReportQueue`]s and [`PodMetadata`]; out go Events, those about kills first. Events for
//! people have one set of rates. [`events`](super::events) composes and plans them. A message about a change waits in memory and is
//! counted where it becomes no Event. Reports of kills wait in the log: the outbox acknowledges them once the API server has their
//! Event. What the API server refuses for now, or does not answer, waits by namespace and kind, and the link's state gives the reason.
//! Where the API server will never take an Event of a kill on a pod (the pod's namespace is gone, or a quota is used up), the Event
//! is about the node instead.

mod retries;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, fs, io};

use futures::future::{BoxFuture, FutureExt, select_all};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::broadcast::{self, error::RecvError};

use self::retries::{FIRST_RETRY, LONGEST_RETRY, Retries};
use crate::failpoint::failpoint;
use crate::files::replace_atomically;
use crate::kubernetes::events::{EventRates, NamedEvent, PodReference, Posted, Subject, post, raise};
use crate::kubernetes::metrics::{EventMetrics, EventOutcome};
use crate::kubernetes::{ApiClient, ApiError, Problem};
use crate::model::ChangeRecord;
use crate::model::objects::PodUid;
use crate::oom::KillFacts;
use crate::pace::Backoff;
use crate::report::content::Report;
use crate::report::destination::{Destination, SharedWindow};
use crate::report::events::{Composer, ContainerFacts, EventLimits, EventMessage, LastEvent, PlannedEvent};
use crate::report::log::Pending;
use crate::report::metrics::ReportOutcome;
use crate::report::reporter::{ReportQueue, until};
use crate::share::places_of_most;

/// So many messages about changes may wait for the API server.
const QUEUE: usize = 256;

/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(10);

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

    /// Whether the node has a pod with this UID in its cgroup's name.
    fn has_pod(&self, uid: &PodUid) -> bool;

    /// The facts about the report's container that decide whether a VPA recommender needs an Event.
    fn container_facts(&self, report: &Report) -> ContainerFacts;
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
    pub async fn run(mut self, mut records: broadcast::Receiver<Arc<ChangeRecord>>) -> Infallible {
        let mut rates = EventRates::new(Instant::now());
        let mut first_view = self.metadata.wait_until_known();
        let (mut is_known, mut away_until, mut sent_again) = (false, None::<Instant>, false);
        let (health, mut pauses) = (self.client.health.clone(), Backoff::new(FIRST_RETRY, LONGEST_RETRY));
        loop {
            away_until = away_until.filter(|_| health.away().is_some());
            for kills in self.kills.iter_mut().filter(|_| is_known) {
                kills.take_in(self.metadata.as_ref()).await;
            }
            let due = self.kills.iter().filter_map(KillEvents::ready_at);
            let due = due.chain(self.changes.ready_at(&rates)).min();
            let due = due.map(|due| away_until.map_or(due, |until| due.max(until)));
            let more = self.kills.iter_mut().map(|kills| kills.queue.more().boxed());
            let more = select_all(more.chain([pending().boxed()])).map(drop);
            // Cancel-safe, all of them: none has taken anything yet.
            tokio::select! {
                biased;
                record = next_record(&mut records) => self.changes.add(&record, self.metadata.as_ref()),
                () = &mut first_view, if !is_known => is_known = true,
                () = more => {}
                () = until(due) => {
                    sent_again = self.send_next(&mut rates, sent_again).await;
                    // In an outage one Event waits for the API server, and not one of each namespace.
                    match health.away() {
                        Some(_) => away_until = Some(Instant::now() + pauses.next(None)),
                        None => pauses.reset(),
                    }
                }
                () = health.returned(), if away_until.is_some() => {}
            }
        }
    }

    /// Tries to send one Event. Those about kills go first: the rates may leave room for few. After an Event that was sent again, a
    /// new one goes first: the answers to those may take long. Returns whether the Event was sent again.
    async fn send_next(&mut self, rates: &mut EventRates, sent_again: bool) -> bool {
        let (client, node, metadata) = (&self.client, &self.node, self.metadata.as_ref());
        let rounds: &[bool] = if sent_again { &[true, false] } else { &[false] };
        for new_only in rounds {
            for kills in &mut self.kills {
                if let Some((outcome, event)) = kills.next(rates, metadata, *new_only).await {
                    kills.send(client, node, outcome, event, rates).await;
                    return outcome == ReportOutcome::SentAgain;
                }
            }
            if let Some(again) = self.changes.send_next(client, node, rates, *new_only).await {
                return again;
            }
        }
        false
    }
}

/// The next record of a change; waits for ever once there are no more.
async fn next_record(records: &mut broadcast::Receiver<Arc<ChangeRecord>>) -> Arc<ChangeRecord> {
    loop {
        match records.recv().await {
            Ok(record) => return record,
            Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "changes became no Events"),
            Err(RecvError::Closed) => return pending().await,
        }
    }
}

/// The Events about changes.
#[derive(Debug)]
pub struct ChangeEvents {
    composer: Composer,
    limits: EventLimits,
    /// Messages that wait for the API server, oldest first.
    messages: VecDeque<EventMessage>,
    retries: Retries<NamedEvent>,
    metrics: EventMetrics,
}

impl ChangeEvents {
    /// The names of the Events contain the present time.
    pub fn new(metrics: EventMetrics) -> Self {
        Self {
            composer: Composer::default(),
            limits: EventLimits::new(Timestamp::now().as_nanosecond()),
            messages: VecDeque::new(),
            retries: Retries::default(),
            metrics,
        }
    }

    fn add(&mut self, record: &ChangeRecord, metadata: &dyn PodMetadata) {
        self.composer.retain(|uid| metadata.has_pod(uid));
        if let Some(message) = self.composer.compose(record) {
            self.keep(message);
        }
    }

    /// Keeps a message. Of too many, the newest of the namespace with most messages is lost.
    fn keep(&mut self, message: EventMessage) {
        self.messages.push_back(message);
        if self.messages.len() <= QUEUE {
            return;
        }
        let newest_first = self.messages.iter().rev();
        if let Some((newest, _)) = places_of_most(newest_first.map(|message| message.subject.namespace())) {
            self.messages.remove(self.messages.len() - 1 - newest);
            self.metrics.count(EventOutcome::Lost, 1);
        }
    }

    fn ready_at(&self, rates: &EventRates) -> Option<Instant> {
        let now = Instant::now();
        let waits = self.messages.iter().map(|message| {
            let paused = rates.paused_until(message.subject.namespace(), now);
            paused.unwrap_or(now)
        });
        let (waits, due) = (waits.min(), self.limits.next_due(rates, now).map(|wait| now + wait));
        [self.retries.ready_at(), waits, due].into_iter().flatten().min()
    }

    /// The Event that is due, and whether it is sent again. Messages about a namespace that waits for the API server stay.
    fn next(&mut self, rates: &mut EventRates, now: Instant, new_only: bool) -> Option<(NamedEvent, bool)> {
        if !new_only && let Some(event) = self.retries.take_due(now) {
            return Some((event, true));
        }
        let may_go = |message: &EventMessage| rates.paused_until(message.subject.namespace(), now).is_none();
        let place = self.messages.iter().position(may_go);
        let message = place.and_then(|place| self.messages.remove(place));
        let new = message.and_then(|message| self.limits.record(message, rates, now));
        // Also after a message, so that a stream of messages does not delay due changes.
        let new = new.or_else(|| self.limits.due(rates, now))?;
        let namespace = new.subject.namespace().to_owned();
        Some((self.retries.hold(&namespace, new)?, false))
    }

    /// Tries to send one Event; returns whether it was sent again. Drops an Event that the API server refuses.
    async fn send_next(
        &mut self,
        client: &ApiClient,
        node: &str,
        rates: &mut EventRates,
        new_only: bool,
    ) -> Option<bool> {
        let next = self.next(rates, Instant::now(), new_only);
        self.metrics.count(EventOutcome::HeldBack, self.limits.take_held_back());
        let (mut event, again) = next?;
        event.last = Timestamp::now();
        event.first = event.last;
        let attempt = async {
            if event.count == 1 || !raise(client, &event).await? {
                // An existing Event is from an earlier attempt.
                post(client, node, &event).await?;
            }
            Ok::<_, ApiError>(())
        };
        let namespace = event.subject.namespace().to_owned();
        let (attempted, pause) = within(&namespace, rates, attempt).await;
        let now = Instant::now();
        let next_at = rates.paused_until(&namespace, now).unwrap_or(now);
        match attempted {
            Ok(()) => {
                failpoint("event.posted");
                self.retries.ended(&namespace, next_at);
                self.metrics.count(EventOutcome::Written, 1);
            }
            Err(error) if error.problem.is_retryable() => {
                tracing::debug!("an Event waits: {error}");
                let asked_for = error.problem.retry_after().max(Some(pause));
                let until = self.retries.failed(&namespace, event, asked_for, now);
                rates.pause(&namespace, until, now);
            }
            Err(error) => {
                tracing::warn!("an Event was not written: {error}");
                self.retries.ended(&namespace, next_at);
                self.metrics.count(EventOutcome::Lost, 1);
            }
        }
        Some(again)
    }
}

/// The Events about the kills of one destination.
#[derive(Debug)]
pub struct KillEvents {
    queue: ReportQueue,
    plan: Box<dyn EventPlan>,
    /// The reports in the plan and in the retries.
    window: Arc<Mutex<SharedWindow>>,
    retries: Retries<PlannedEvent>,
}

impl KillEvents {
    /// Events for the reports of a queue.
    pub fn new(queue: ReportQueue, plan: Box<dyn EventPlan>) -> Self {
        let window = SharedWindow::new(queue.destination.window());
        Self {
            queue,
            plan,
            window: Arc::new(Mutex::new(window)),
            retries: Retries::default(),
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

    fn ready_at(&self) -> Option<Instant> {
        [self.retries.ready_at(), self.plan.ready_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The next Event that is due, and whether it is sent again.
    async fn next(
        &mut self,
        rates: &mut EventRates,
        metadata: &dyn PodMetadata,
        new_only: bool,
    ) -> Option<(ReportOutcome, PlannedEvent)> {
        let now = Instant::now();
        if !new_only && let Some(event) = self.retries.take_due(now) {
            return Some((ReportOutcome::SentAgain, event));
        }
        let mut withheld = Vec::new();
        let mut next = self.plan.next_event(now, rates, metadata, &mut withheld);
        if !withheld.is_empty() {
            self.queue.count(ReportOutcome::Withheld, withheld.len());
            self.acknowledge(withheld).await;
        }
        let waiting = self.plan.waiting();
        if next.is_none() && waiting > 0 {
            tracing::debug!(waiting, "no Event is due: reports wait for their rate");
        }
        if let Some(PlannedEvent { event, .. }) = &mut next
            && let Subject::Pod(reference) = &mut event.subject
        {
            // The pod as the API server knows it.
            metadata.resolve(reference);
        }
        let next = next?;
        let namespace = next.event.subject.namespace().to_owned();
        let next = self.retries.hold(&namespace, next)?;
        Some((ReportOutcome::Sent, next))
    }

    /// Tries to send an Event, and acknowledges its reports once the API server has it or will never take it.
    async fn send(
        &mut self,
        client: &ApiClient,
        node: &str,
        outcome: ReportOutcome,
        mut planned: PlannedEvent,
        rates: &mut EventRates,
    ) {
        let namespace = planned.event.subject.namespace().to_owned();
        let queue = &mut self.queue;
        queue.count(outcome, planned.reports.len());
        let event = &planned.event;
        let (posted, pause) = within(&namespace, rates, post(client, node, event)).await;
        tracing::debug!(event = event.name, ?outcome, posted = ?posted.as_ref().ok(), "an Event was sent");
        let now = Instant::now();
        let next_at = rates.paused_until(&namespace, now).unwrap_or(now);
        if let Err(error) = &posted
            && !is_permanent(&error.problem)
        {
            let asked_for = error.problem.retry_after().max(Some(pause));
            let until = self.retries.failed(&namespace, planned, asked_for, now);
            rates.pause(&namespace, until, now);
            queue.waits("Events about OOM kills", error.to_string(), until.duration_since(now));
            return;
        }
        self.retries.ended(&namespace, next_at);
        if self.retries.len() == 0 {
            queue.connected();
        }
        let numbers = match posted {
            Ok(Posted::Created) => planned.numbers(),
            Ok(Posted::Existed { count }) => planned.covered_by(count),
            // An Event on the node would mean nothing to a recommender.
            Err(error) if event.subject == Subject::Node || queue.destination == Destination::VpaEvents => {
                tracing::error!(event = event.name, "an Event is given up: {error}");
                queue.count(ReportOutcome::Refused, planned.reports.len());
                planned.numbers()
            }
            Err(error) => {
                tracing::warn!(event = event.name, "an Event on a pod becomes one on the node: {error}");
                planned.event = about_node(planned.event);
                let namespace = planned.event.subject.namespace().to_owned();
                self.retries.again(&namespace, planned, now);
                return;
            }
        };
        keep(self.plan.as_ref()).await;
        let all = numbers.len() == planned.reports.len();
        self.acknowledge(numbers).await;
        if !all {
            // An Event of an earlier agent covers some. The plan takes in again everything that is still pending.
            self.plan.start_over();
            self.retries = Retries::default();
            self.window.lock().clear();
            self.queue.start_over();
        }
    }
}

/// Waits [`PATIENCE`] for an attempt, while no other Event goes out. Its name keeps an Event from being written twice. Returns also
/// how long the namespace has to wait after a slow answer.
async fn within<T, F>(namespace: &str, rates: &mut EventRates, attempt: F) -> (Result<T, ApiError>, Duration)
where
    F: Future<Output = Result<T, ApiError>>,
{
    let began = Instant::now();
    let Ok(answer) = tokio::time::timeout(PATIENCE, attempt).await else {
        let (call, problem) = ("create events".to_owned(), Problem::Timeout(PATIENCE));
        return (Err(ApiError { call, problem }), Duration::ZERO);
    };
    let is_silence = answer.as_ref().is_err_and(|error| error.problem.is_silence());
    let pause = if is_silence {
        Duration::ZERO
    } else {
        rates.attempted(namespace, began.elapsed(), Instant::now())
    };
    (answer, pause)
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

/// Makes Events of the reports of one destination: [`PodEvents`](super::events::PodEvents) for people,
/// [`VpaEvents`](super::events::VpaEvents) for a VPA recommender.
pub trait EventPlan: fmt::Debug + Send + Sync {
    /// Takes a report in.
    fn offer(&mut self, pending: Pending);

    /// How many of the reports taken in are in no Event yet.
    fn waiting(&self) -> usize;

    /// When [`Self::next_event`] has something, if no more reports come: in the past if now, never if none waits.
    fn ready_at(&self) -> Option<Instant>;

    /// The next Event that may be sent now. Adds the numbers of reports that get no Event to `withheld`.
    fn next_event(
        &mut self,
        now: Instant,
        rates: &mut EventRates,
        metadata: &dyn PodMetadata,
        withheld: &mut Vec<u64>,
    ) -> Option<PlannedEvent>;

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
mod tests;
