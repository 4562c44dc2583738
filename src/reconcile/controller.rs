//! The controller: the one task that owns the state of every pod.
//!
//! In: views of the sources, discoveries, written files, operators' requests, reports of the guard, ended passes, the clock.
//! Each becomes an input to the state of the pods concerned ([`super::pod::PodState::apply`]), and [`Controller::carry_out`]
//! carries out the effects, in one place. The controller decides nothing about a pod itself, and does no I/O.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::Span;

use super::metrics::{growth_outcome, hook_labels};
use super::pod::{Check, Effect, NodeEvent, Now, PodInput, PodState, Pods, watched_limits};
use super::store::{LONGEST_SAVE_WAIT, Store};
use super::watching::Watching;
use crate::actuate::{HookRun, JobDone, LeastLimits, PodResizer};
use crate::config::{Config, allows_hooks_in};
use crate::guard::budgets::Budget;
use crate::guard::{self, Guard, GuardEvent, Guarded, Report, Watchlist};
use crate::model::objects::PodKey;
use crate::model::{Cause, HookEnd, Outcome, QUICK, Resource, at_once};
use crate::observe::health::Heartbeat;
use crate::oom::OomReport;
use crate::pace::fraction;
use crate::sources::NodeView;

mod deciding;
mod logging;
mod node;
mod passes;
mod publishing;
mod requests;

use logging::log;
pub(crate) use node::{Discovered, NodeFacts};
use passes::{Passes, ResizeEndpoint};
pub(crate) use publishing::Publisher;
pub(crate) use requests::{AgentSnapshot, PodSnapshot, Reply, send};

/// Decisions that depend on the time, such as on a pod's age, are made this often.
const DECIDE_EVERY: Duration = Duration::from_secs(60);
/// A sweep checks one in this many of the pods whose files the kernel watches: no kernel report is relied upon for ever.
const SWEEP_PARTS: usize = 20;
/// An idle controller reports that it is alive this often.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);

/// An event for the controller.
pub(crate) enum Event {
    /// The view of the sources, or their problems, changed. There is no view before every source has one.
    View {
        view: Option<Arc<NodeView>>,
        problems: Vec<String>,
        /// Is dropped with the event, once the controller has decided. The next view comes after that, so that each is the newest.
        decided: oneshot::Sender<()>,
    },
    /// The API server answers again.
    ApiServerReturned,
    /// The configuration was read again.
    Config(Box<Config>),
    Discovered(Discovered),
    /// A pass of this pod ended.
    PassEnded {
        key: PodKey,
        /// The number of the pass.
        pass: u64,
        /// The pass's span, with pod and cause.
        span: Span,
        done: Box<JobDone>,
    },
    HookEnded {
        key: PodKey,
        run: Box<HookRun>,
        end: HookEnd,
        /// False if an earlier hook ran in the container, and this one did not.
        is_only: bool,
    },
    /// A task that worked on a pod ended with this input.
    Pod(PodKey, PodInput),
    /// The kernel killed a process.
    Killed(Arc<OomReport>),
    /// An operator's request: a function that only reads the state or applies an input.
    Request(Box<dyn FnOnce(&mut Controller) + Send>),
}

/// Owns the state of every pod, and carries out its effects.
#[derive(Debug)]
pub(crate) struct Controller {
    config: Config,
    pods: Pods,
    sources: deciding::Sources,
    node: NodeFacts,
    passes: Passes,
    endpoint: ResizeEndpoint,
    requests: requests::Requests,
    store: Store,
    guard: GuardLink,
    files: Watching,
    publisher: Publisher,
    next_sweep: Instant,
    /// The part of the pods that the latest sweep checked.
    swept: usize,
    next_decisions: Instant,
    next_publication: Instant,
    /// Whether a pod is to be decided about before that.
    decides: bool,
    /// When the clocks were last compared.
    clocks: Now,
}

/// The controller's side of the guard.
#[derive(Debug)]
pub(crate) struct GuardLink {
    /// `None` if the guard's thread could not be started.
    pub(crate) guard: Option<Guard>,
    pub(crate) reports: mpsc::UnboundedReceiver<Report>,
    pub(crate) least_limits: Arc<LeastLimits>,
    /// The pods whose watched limits may have changed since the last watch list, also those that are gone.
    pub(crate) changed: BTreeSet<PodKey>,
}

impl Now {
    pub(crate) fn read() -> Self {
        let wall = || Ok::<_, std::convert::Infallible>(Timestamp::now());
        let Ok((instant, wall)) = at_once(QUICK, std::time::Instant::now, wall);
        Self {
            wall,
            instant,
            fraction: fraction(),
        }
    }
}

impl Controller {
    pub(crate) fn new(
        config: Config,
        node: NodeFacts,
        events: mpsc::Sender<Event>,
        resizer: Option<Arc<dyn PodResizer>>,
        store: Store,
        guard: GuardLink,
        publisher: Publisher,
    ) -> Self {
        let now = Instant::now();
        Self {
            next_sweep: now + config.sweep_interval,
            swept: 0,
            next_decisions: now + DECIDE_EVERY,
            next_publication: now,
            decides: false,
            clocks: Now::read(),
            config,
            pods: Pods::default(),
            sources: deciding::Sources::default(),
            node,
            passes: Passes::new(events),
            endpoint: ResizeEndpoint {
                resizer,
                ..ResizeEndpoint::default()
            },
            requests: requests::Requests::default(),
            store,
            guard,
            files: Watching::new(),
            publisher,
        }
    }

    /// Runs until the channel of events is closed or `stop` is cancelled; then waits for the running passes.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        stop: tokio_util::sync::CancellationToken,
        heartbeat: Heartbeat,
    ) {
        let mut arrived = Vec::new();
        loop {
            heartbeat.beat();
            let wake = self.next_wake();
            // Cancel-safe: `recv`, `recv_many` and `written` lose nothing, the others only wait for a time.
            tokio::select! {
                Some(report) = self.guard.reports.recv() => self.take_guard_report(report),
                count = events.recv_many(&mut arrived, events.max_capacity()) => if count == 0 {
                    break;
                },
                written = self.files.next_written() => self.note_written(written),
                () = tokio::time::sleep_until(wake) => {}
                () = stop.cancelled() => break,
            }
            // One round for all that came meanwhile.
            arrived.drain(..).for_each(|event| self.take_event(event));
            self.run_round(Instant::now());
        }
        self.finish(events).await;
    }

    /// Starts what is due for any pod, saves and publishes.
    fn run_round(&mut self, now: Instant) {
        self.on_time(now);
        self.update_guard();
        self.start_passes();
        // After the passes: containers do not wait for the disk.
        self.store.save();
        if !self.requests.ended.is_empty() {
            tokio::spawn(self.requests.answer_once(self.store.saved()));
        }
        self.publish(now);
    }

    /// Waits for the running passes: none is cut off between two steps.
    async fn finish(mut self, mut events: mpsc::Receiver<Event>) {
        if let Some(guard) = self.guard.guard.take() {
            guard.stop();
        }
        while let Ok(report) = self.guard.reports.try_recv() {
            self.take_guard_report(report);
        }
        while !self.passes.busy.is_empty() {
            // A pass may take longer than the agent gets to end.
            self.save_all();
            match events.recv().await {
                Some(event @ Event::PassEnded { .. }) => self.take_event(event),
                Some(_) => {}
                None => break,
            }
        }
        self.save_all();
        let saved = self.store.saved();
        let (saved, ()) = tokio::join!(saved, self.store.finish(LONGEST_SAVE_WAIT));
        self.requests.answer_once(std::future::ready(saved)).await;
    }

    /// Has everything saved that has changed, also what could wait.
    fn save_all(&mut self) {
        self.store.due = self.store.due.map(|_| Instant::now());
        self.store.save();
    }

    fn take_event(&mut self, event: Event) {
        self.follow_clocks(Now::read());
        match event {
            Event::View {
                view,
                problems,
                decided: _decided,
            } => match view {
                Some(view) => self.take_view(view, problems),
                None => self.take_source_problems(problems),
            },
            Event::Config(config) => {
                self.config = *config;
                self.watch_all();
                self.next_sweep = self.next_sweep.min(Instant::now() + self.config.sweep_interval);
                self.decide_all(Timestamp::now());
            }
            Event::ApiServerReturned => self.take_returned_api_server(),
            Event::Discovered(discovered) => self.take_discovered(discovered),
            Event::PassEnded { key, pass, span, done } => span.in_scope(|| self.end_pass(&key, pass, done)),
            Event::HookEnded { key, run, end, is_only } => {
                if is_only {
                    self.passes.hooked.remove(&run.live.id);
                }
                let result = if end.how.is_ok() { "ran" } else { "failed" };
                let hooks = &self.publisher.metrics.hooks;
                hooks.get_or_create(&hook_labels(run.moment, result)).inc();
                self.apply(&key, PodInput::OnNode(NodeEvent::HookEnded { run, end }));
            }
            Event::Pod(key, input) => self.apply(&key, input),
            Event::Killed(kill) => self.take_kill(&kill),
            Event::Request(request) => request(self),
        }
    }

    /// Applies an input to a pod, and carries out the effects.
    fn apply(&mut self, key: &PodKey, input: PodInput) {
        for effect in self.pods.apply(key, input, Now::read()) {
            self.carry_out(key, effect);
        }
    }

    fn apply_to_all(&mut self, keys: impl IntoIterator<Item = PodKey>, input: impl Fn() -> PodInput) {
        for key in keys {
            self.apply(&key, input());
        }
    }

    fn carry_out(&mut self, key: &PodKey, effect: Effect) {
        match effect {
            Effect::Save { pods, can_wait } => self.store.replace(pods, can_wait),
            Effect::WatchGuard => drop(self.guard.changed.insert(key.clone())),
            Effect::SetLeastLimits(limits) => self.guard.least_limits.set(limits),
            Effect::RunPass { pass, job } => self.run_pass(key, pass, job),
            Effect::RunHook(run) => self.run_hook(key, run),
            Effect::RaisePodLevel { bound, low } => self.raise_pod_level(key, bound, low),
            Effect::WatchFiles(handles) => self.watch_files(key, handles),
            Effect::WatchShrink(Some((number, lowered))) => self.watch_shrink(key, number, lowered),
            Effect::WatchShrink(None) => drop(self.passes.shrink_watches.remove(key)),
            Effect::Record {
                record,
                is_news,
                answers,
            } => {
                let record = self.publisher.history.add(*record, is_news);
                self.requests.answer(answers, record);
            }
            Effect::Settled(uid) => self.publisher.history.mark_carried_out(&uid),
            Effect::Refuse { request, error } => self.requests.refuse(request, error),
            Effect::AdmitRequest { id, request } => {
                let capacity = Box::new(self.capacity(self.pods.values()));
                self.apply(key, PodInput::Admitted { id, request, capacity });
            }
            Effect::Decide => self.decides = true,
            Effect::Avoided(avoided) => {
                if let Some(state) = self.pods.get(key) {
                    self.publisher.savings.count(state, avoided, Timestamp::now());
                }
            }
            Effect::ShrinkEnded(ended) => {
                if let Err(why) = &ended {
                    tracing::warn!(pod = %key, why, "a lower memory limit is undone");
                }
                let outcome = if ended.is_ok() { "kept" } else { "undone" };
                let shrinks = &self.publisher.metrics.shrinks;
                shrinks.get_or_create(&[("outcome", outcome)]).inc();
            }
            Effect::Log(line) => log(key, line),
        }
    }

    fn take_guard_report(&mut self, report: Report) {
        self.follow_clocks(Now::read());
        if let Some(outcome) = growth_outcome(&report.event) {
            let growths = &self.publisher.metrics.growths;
            growths.get_or_create(&[("outcome", outcome)]).inc();
        }
        log_threat(&report);
        let Guarded { pod, container } = report.of.clone();
        let raised = match &report.event {
            GuardEvent::Grew { to, grown, .. } => Some(*to).filter(|_| grown.outcome == Outcome::Applied),
            _ => None,
        };
        let key = pod.key();
        let live = self.pods.get(&key).and_then(|state| state.live.as_ref());
        if live.is_some_and(|live| live.id.uid == pod.uid) {
            self.apply(&key, PodInput::OnNode(NodeEvent::Guard(Box::new(report))));
        } else {
            tracing::info!(%pod, "the guard reports a pod that no source describes any more");
            if let GuardEvent::Grew { why, grown, .. } = report.event {
                let cause = Cause::Guard {
                    container: container.to_string(),
                    resource: Resource::Memory,
                    why: Some(why),
                };
                let record = grown.record(pod.clone(), cause);
                let is_news = !record.steps.is_empty();
                self.publisher.history.add(record, is_news);
            }
        }
        // The pod's state has the limit now, or will never have it.
        if let Some(to) = raised {
            self.guard.least_limits.end_raise(&pod.uid, &container, to);
        }
    }

    /// Has the guard get the limits of all pods: something has changed that concerns them.
    fn watch_all(&mut self) {
        self.guard.changed.extend(self.pods.keys_of(|_| true));
    }

    /// Sends the guard the limits that have changed.
    fn update_guard(&mut self) {
        if self.guard.guard.is_none() {
            return self.guard.changed.clear();
        }
        let watchlist = self.next_watchlist();
        if let (Some(guard), Some(watchlist)) = (&self.guard.guard, watchlist) {
            guard.watch(watchlist);
        }
    }

    /// The limits that have changed since the last list, and those of all pods that share a quota with a pod of which they have.
    fn next_watchlist(&mut self) -> Option<Watchlist> {
        let node = self.node.known()?;
        let mut changed = std::mem::take(&mut self.guard.changed);
        if changed.is_empty() {
            return None;
        }
        let view = &self.sources.view.namespaces;
        let has_quota = |namespace: &&str| view.get(*namespace).is_some_and(|known| !known.quotas.is_empty());
        let shared = changed.iter().map(PodKey::namespace).filter(has_quota);
        let shared: BTreeSet<String> = shared.map(str::to_owned).collect();
        let is_shared = |state: &PodState| shared.contains(&state.pod.metadata.namespace);
        changed.extend(self.pods.keys_of(is_shared));
        let (config, now) = (&self.config, Timestamp::now());
        let states = changed.iter().map(|key| (key, self.pods.get(key)));
        // These are all pods of their quotas.
        let capacity = self.capacity(states.clone().filter_map(|(_, state)| state));
        let guarded = |state: &PodState| {
            let mut guarded = watched_limits(state, self.hooks_forbidden_by(state).is_none(), now)?;
            capacity.bound_growth(state, &mut guarded);
            Some(guarded).filter(|_| config.guard && !config.observe_only)
        };
        let pods = states
            .clone()
            .map(|(key, state)| (key.clone(), state.and_then(guarded)));
        let claims = states.map(|(key, state)| (key.clone(), state.and_then(|state| capacity.claim(state))));
        // If the size of the memory is unknown, its parts are zero, and the guard gives nothing.
        let memory = self.node.machine.memory.unwrap_or_default();
        Some(Watchlist {
            node,
            pods: pods.collect(),
            claims: claims.collect(),
            settings: guard::Settings {
                reserve: config.guard_reserve.of(memory),
                budget: Budget {
                    pod: config.guard_pod_budget.of(memory),
                    node: config.guard_node_budget.of(memory),
                },
                quiet: config.guard_quiet_period,
            },
        })
    }

    /// How long a container has to be quiet before a temporary limit ends.
    fn quiet(&self) -> SignedDuration {
        let quiet = Some(self.config.guard_quiet_period).filter(|_| self.config.guard);
        SignedDuration::try_from(quiet.unwrap_or_default()).unwrap_or(SignedDuration::MAX)
    }

    /// Why the hooks of this pod do not run.
    fn hooks_forbidden_by(&self, state: &PodState) -> Option<&'static str> {
        let (pod, metadata) = (&state.pod, &state.pod.metadata);
        if pod.cgroup_uid() != metadata.uid {
            return Some("its object is a mirror pod, which others than its author can write");
        }
        let is_allowed = allows_hooks_in(&self.config.hooks, &metadata.namespace);
        (!is_allowed).then_some("the key hooks does not list its namespace")
    }

    /// Reports a kill to the state of its pod.
    fn take_kill(&mut self, kill: &OomReport) {
        let Some(pod) = &kill.facts.pod else { return };
        let container = kill.facts.container.as_ref();
        let target = container.map(|container| &*container.name).into();
        let key = PodKey::new(&pod.namespace, &pod.name);
        let identity = self.pods.get(&key).and_then(|state| state.identity.as_ref());
        if identity.is_some_and(|id| id.uid == *pod.uid) {
            self.apply(
                &key,
                PodInput::OnNode(NodeEvent::Killed {
                    target,
                    at: kill.time,
                    lowered: kill.own_write.is_some(),
                }),
            );
        }
    }

    /// Forgets saved pods that no source describes, and the files of pods that are gone. Not before every source has answered.
    fn forget_saved(&mut self) {
        self.store.retry_failed();
        if !self.sources.seen {
            return;
        }
        self.store.retain(|id| {
            // The state of an earlier pod with the same name is not this pod's, also where a manifest without a UID describes both.
            let is_other = |state: &PodState| state.identity.as_ref().is_some_and(|running| running.uid != id.uid);
            let state = self.pods.get(&id.key());
            state.is_some_and(|state| state.pod.describes(id) && !is_other(state))
        });
        let found = &self.node.found;
        drop(self.store.limit_files.forget_all_but(|uid| found.may_have_cgroup(uid)));
    }

    /// Tells the pods by how much the wall clock was set since the clocks were last compared.
    fn follow_clocks(&mut self, now: Now) {
        let earlier = std::mem::replace(&mut self.clocks, now);
        if let Some(by) = now.step_since(earlier) {
            tracing::info!(%by, "the wall clock was set: overrides and waits end as much later or earlier");
            self.apply_to_all(self.pods.keys_of(|_| true), || PodInput::ClockSet(by));
        }
    }

    fn on_time(&mut self, now: Instant) {
        self.follow_clocks(Now::read());
        let wall = Timestamp::now();
        let written = self.files.take_due(now);
        self.apply_to_all(written, || PodInput::Check(Check::FilesWritten));
        let woken = self.pods.woken(now.into_std(), wall);
        self.apply_to_all(woken, || PodInput::TimePassed);
        if self.endpoint.take_due(now) {
            self.watch_all();
            self.apply_to_all(self.pods.keys_of(|_| true), || PodInput::Check(Check::ResizeRetried));
        }
        self.begin_shrink_turns(wall);
        if std::mem::take(&mut self.decides) {
            self.decide_changed(wall, true);
        }
        if self.next_decisions <= now {
            self.next_decisions = now + DECIDE_EVERY;
            self.decide_all(wall);
            self.match_live();
        }
        if self.next_sweep <= now {
            self.next_sweep = now + self.config.sweep_interval;
            self.node.request_discovery();
            // The guard tries again to open what it could not.
            self.watch_all();
            self.forget_saved();
            self.swept = (self.swept + 1) % SWEEP_PARTS;
            let due = self.pods.iter().enumerate().filter(|(number, (key, state))| {
                let is_told = state.is_settled() && self.files.reports_writes_to(key);
                !is_told || number % SWEEP_PARTS == self.swept
            });
            let due: Vec<PodKey> = due.map(|(_, (key, _))| key.clone()).collect();
            self.apply_to_all(due, || PodInput::Check(Check::Swept));
        }
    }

    fn next_wake(&self) -> Instant {
        let (now, wall) = (Instant::now(), Timestamp::now());
        let from_now = |at: Timestamp| now + Duration::try_from(at.duration_since(wall)).unwrap_or_default();
        let (at, wall_at) = self.pods.wakes_at();
        let of_pods = [at.map(Instant::from_std), wall_at.map(from_now)];
        let decides = self.decides.then_some(now);
        let others = [self.files.due, self.endpoint.retry_at, self.store.due, decides];
        let latest = self.next_sweep.min(self.next_decisions).min(now + HEARTBEAT_EVERY);
        of_pods.into_iter().chain(others).flatten().fold(latest, Instant::min)
    }
}

/// Logs that a container will reach a memory limit that is not raised.
fn log_threat(Report { of, event }: &Report) {
    let Guarded { pod, container } = of;
    let container = container.as_str();
    match event {
        GuardEvent::Refused { why, .. } => tracing::warn!(
            %pod, container, reason = why,
            "a memory limit is not raised although it will be reached"
        ),
        GuardEvent::Pressure { limit, lent } => tracing::warn!(
            %pod, container, %limit, %lent,
            "a memory limit that cannot be raised will be reached: requesting evidence"
        ),
        _ => {}
    }
}

#[cfg(test)]
mod event_tests;
#[cfg(test)]
mod guard_tests;
#[cfg(test)]
mod tests;
