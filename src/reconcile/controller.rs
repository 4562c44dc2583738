//! The controller: the one task that owns the state of every pod.
//!
//! In: views of the sources, discoveries, written files, operators' requests, reports of the guard, ended passes, the clock.
//! Each becomes an input to the state of the pods concerned ([`super::pod::PodState::apply`]), and [`Controller::carry_out`]
//! carries out the effects, in one place. The controller decides nothing about a pod itself, and does no I/O.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::pod::{Effect, Now, PodInput, PodState, Pods};
use super::shrink::ShrinkEnd;
use super::watching::Watching;
use crate::actuate::{HookRun, JobDone};
use crate::decide;
use crate::guard;
use crate::model::{AskWhenFull, HookEnd, Target};
use crate::observe::health::Heartbeat;
use crate::oom::OomReport;
use crate::sources::NodeView;

mod deciding;
mod guarding;
mod node;
mod passes;
mod publishing;
mod requests;
mod resizing;
mod saving;

pub(crate) use guarding::GuardLink;
pub(crate) use node::{Discovered, NodeFacts};
pub(crate) use passes::{Passes, StartedPass};
pub(crate) use publishing::{OBSERVING, Publisher};
pub(crate) use requests::{AgentSnapshot, PodSnapshot, Reply, Request, send};
pub(crate) use resizing::ResizeEndpoint;
pub(crate) use saving::Store;

/// Decisions that depend on the time, such as on a pod's age, are made this often.
const DECIDE_EVERY: Duration = Duration::from_secs(60);
/// A sweep checks one in this many of the pods whose files the kernel watches: no kernel report is relied upon for ever.
const SWEEP_PARTS: usize = 20;
/// After a round over all pods, the controller only takes events for this many times as long: during a change of a
/// thousand pods, rounds would take all of its time.
const REST_FACTOR: u32 = 2;
/// No rest follows a round that is shorter than a timer's resolution.
const SHORT_ROUND: Duration = Duration::from_millis(1);
/// An idle controller reports that it is alive this often.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);

/// An event for the controller.
#[derive(Debug)]
pub(crate) enum Event {
    /// The view of the sources, or their problems, changed.
    View(Arc<NodeView>, Vec<String>),
    /// The problems of the sources, while there is no view yet.
    SourceProblems(Vec<String>),
    /// The API server answers again.
    ApiServerReturned,
    /// The configuration was read again.
    Options(Options),
    Discovered(Discovered),
    PassEnded(StartedPass, Box<JobDone>),
    /// A hook of the pod ended. False: an earlier hook ran in the container, and this one did not.
    HookEnded(String, Box<HookRun>, HookEnd, bool),
    /// A task that worked on a pod ended with this input.
    Pod(String, PodInput),
    /// The kernel killed a process for a limit that a pass had lowered.
    Killed(Arc<OomReport>),
    Request(Request),
}

/// The part of the configuration that the controller uses.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) decide: decide::Options,
    pub(crate) sweep_interval: Duration,
    pub(crate) observe_only: bool,
    /// Whether to raise a pod's cgroup that is below its containers.
    pub(crate) repair_pod_level: bool,
    /// Whether to patch a spec although the node has no room now.
    pub(crate) ask_when_full: AskWhenFull,
    /// Whether to annotate pods with the values applied to them.
    pub(crate) annotate: bool,
    pub(crate) hooks: Hooks,
    /// The settings of the guard; `None` turns the guard off.
    pub(crate) guard: Option<guard::Settings>,
}

/// Which pods' hooks may run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) enabled: bool,
    pub(crate) forbidden: Vec<String>,
}

impl Hooks {
    /// Why hooks of pods in this namespace do not run.
    pub(super) fn forbidden_by(&self, namespace: &str) -> Option<&'static str> {
        let is_named = self.forbidden.iter().any(|forbidden| forbidden == namespace);
        let named = is_named.then_some("hooksForbiddenNamespaces names its namespace");
        if self.enabled { named } else { Some("hooks is false") }
    }
}

/// Owns the state of every pod, and carries out its effects.
#[derive(Debug)]
pub(crate) struct Controller {
    options: Options,
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
    schedule: Schedule,
}

/// When the next round over all pods is due.
#[derive(Debug)]
struct Schedule {
    sweep: Instant,
    /// The part of the pods that the latest sweep checked.
    swept: usize,
    decide: Instant,
}

impl Controller {
    pub(crate) fn new(
        options: Options,
        node: NodeFacts,
        passes: Passes,
        endpoint: ResizeEndpoint,
        store: Store,
        guard: GuardLink,
        publisher: Publisher,
    ) -> Self {
        let now = Instant::now();
        Self {
            schedule: Schedule {
                sweep: now + options.sweep_interval,
                swept: 0,
                decide: now + DECIDE_EVERY,
            },
            options,
            pods: Pods::default(),
            sources: deciding::Sources::default(),
            node,
            passes,
            endpoint,
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
        let (mut wake, mut rest) = (self.next_wake(), Instant::now());
        loop {
            heartbeat.beat();
            // Cancel-safe: `recv` and `written` lose nothing, the others only tell the time.
            tokio::select! {
                Some(report) = self.guard.reports.recv() => self.take_guard_report(report),
                event = events.recv() => match event {
                    Some(event) => self.take_event(event),
                    None => break,
                },
                written = self.files.next_written() => self.note_written(written),
                () = tokio::time::sleep_until(wake) => {}
                () = stop.cancelled() => break,
            }
            let began = Instant::now();
            if began < rest {
                wake = wake.min(rest);
                continue;
            }
            self.run_round(began);
            wake = self.next_wake();
            let took = began.elapsed();
            if took > SHORT_ROUND {
                rest = Instant::now() + took * REST_FACTOR;
            }
        }
        self.finish(events).await;
    }

    /// Starts what is due for any pod, saves and publishes.
    fn run_round(&mut self, now: Instant) {
        self.on_time(now);
        self.update_guard();
        self.start_passes();
        // After the passes: containers do not wait for the disk.
        self.store.save(&self.pods);
        self.requests.answer_once(self.store.writer.saved());
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
            match events.recv().await {
                Some(event @ Event::PassEnded(..)) => self.take_event(event),
                Some(_) => {}
                None => break,
            }
        }
        self.store.save(&self.pods);
        self.store.writer.finish().await;
        self.requests.answer_now();
    }

    fn take_event(&mut self, event: Event) {
        match event {
            Event::View(view, problems) => self.take_view(view, problems),
            Event::SourceProblems(problems) => self.take_source_problems(problems),
            Event::Options(options) => {
                self.options = options;
                self.schedule.sweep = self.schedule.sweep.min(Instant::now() + self.options.sweep_interval);
                self.decide_all(Timestamp::now());
            }
            Event::ApiServerReturned => {
                self.apply_where(
                    |state| state.drift.resize.waits_for_api_server(),
                    || PodInput::ApiServerReturned,
                );
            }
            Event::Discovered(discovered) => self.take_discovered(discovered),
            Event::PassEnded(pass, done) => self.end_pass(pass, done),
            Event::HookEnded(key, run, end, is_only) => {
                if is_only {
                    self.passes.hooked.remove(&run.live.id);
                }
                self.publisher.metrics.hook_ended(run.moment, &end);
                self.apply(&key, PodInput::HookEnded(run, end));
            }
            Event::Pod(key, input) => self.apply(&key, input),
            Event::Killed(kill) => self.take_kill(&kill),
            Event::Request(request) => (request.0)(self),
        }
    }

    /// Applies an input to a pod, and carries out the effects.
    fn apply(&mut self, key: &str, input: PodInput) {
        for effect in self.pods.apply(key, input, Now::read()) {
            self.carry_out(key, effect);
        }
    }

    /// Whether the pod of this name runs with this UID.
    fn runs(&self, key: &str, uid: &str) -> bool {
        let live = self.pods.get(key).and_then(|state| state.live.as_ref());
        live.is_some_and(|live| live.id.uid == uid)
    }

    fn apply_to_all(&mut self, keys: impl IntoIterator<Item = String>, input: impl Fn() -> PodInput) {
        for key in keys {
            self.apply(&key, input());
        }
    }

    /// Applies an input to every pod that `fits`.
    fn apply_where(&mut self, fits: impl Fn(&PodState) -> bool, input: impl Fn() -> PodInput) {
        self.apply_to_all(self.pods.keys_of(fits), input);
    }

    fn carry_out(&mut self, key: &str, effect: Effect) {
        match effect {
            Effect::SaveState => self.store.dirty = true,
            Effect::WatchGuard => self.guard.stale = true,
            Effect::MoveLeastLimit {
                uid,
                container,
                from,
                to,
            } => self.guard.least_limits.change(&uid, &container, from, to),
            Effect::ForgetLeastLimits(uid) => self.guard.least_limits.forget(&uid),
            Effect::RunPass(pass, job) => self.run_pass(key, pass, job),
            Effect::RunHook(run) => self.run_hook(key, run),
            Effect::RaisePodLevel(bound, low) => self.raise_pod_level(key, bound, low),
            Effect::WatchFiles(handles) => self.watch_files(key, handles),
            Effect::WatchShrink(Some((number, lowered))) => self.watch_shrink(key, number, lowered),
            Effect::WatchShrink(None) => drop(self.passes.shrink_watches.remove(key)),
            Effect::Record { record, news, answers } => {
                let record = self.publisher.history.add(*record, news);
                if let Some(request) = answers {
                    self.requests.answer(request, record);
                }
            }
            Effect::Refuse(request, error) => self.requests.refuse(request, error),
            Effect::AdmitRequest(id, request) => {
                if let Some(state) = self.pods.get(key) {
                    let headroom = self.capacity().headroom(state, self.node.managers());
                    self.apply(key, PodInput::Admitted(id, request, Box::new(headroom)));
                }
            }
            Effect::Decide => self.schedule.decide = Instant::now(),
            Effect::Avoided(avoided) => {
                if let Some(state) = self.pods.get(key) {
                    self.publisher.worth.count(state, avoided, Timestamp::now());
                }
            }
            Effect::ShrinkEnded(ended) => {
                if let ShrinkEnd::Undone(why) = &ended {
                    tracing::warn!(pod = key, why, "a shrink is undone");
                }
                self.publisher.metrics.shrink_ended(&ended);
            }
        }
    }

    /// Reports a kill to the state of its pod.
    fn take_kill(&mut self, kill: &OomReport) {
        let Some(pod) = &kill.facts.pod else { return };
        let container = kill.facts.container.as_ref();
        let target = container.map_or(Target::Pod, |container| Target::Container(container.name.clone()));
        let key = format!("{}/{}", pod.namespace, pod.name);
        let identity = self.pods.get(&key).and_then(|state| state.identity.as_ref());
        if identity.is_some_and(|id| id.uid == pod.uid) {
            self.apply(&key, PodInput::Killed(target));
        }
    }

    fn on_time(&mut self, now: Instant) {
        let wall = Timestamp::now();
        let written = self.files.take_due(now);
        self.apply_to_all(written, || PodInput::FilesWritten);
        let std_now = now.into_std();
        let is_due = |state: &PodState| {
            let (at, wall_at) = state.wakes_at(std_now);
            at.is_some_and(|at| at <= std_now) || wall_at.is_some_and(|at| at <= wall)
        };
        self.apply_where(is_due, || PodInput::TimePassed);
        if self.endpoint.take_due(now) {
            self.apply_where(|_| true, || PodInput::ResizeRetried);
        }
        self.begin_shrink_turns(wall);
        let is_over = |state: &PodState| state.decision.next_change().is_some_and(|end| end <= wall);
        if self.pods.values().any(is_over) {
            self.decide_all(wall);
        }
        if self.schedule.decide <= now {
            self.schedule.decide = now + DECIDE_EVERY;
            self.decide_all(wall);
            self.match_live();
        }
        if self.schedule.sweep <= now {
            self.schedule.sweep = now + self.options.sweep_interval;
            self.node.request_discovery();
            self.forget_saved();
            self.schedule.swept = (self.schedule.swept + 1) % SWEEP_PARTS;
            let due = self.pods.iter().enumerate().filter(|(number, (key, state))| {
                let is_told = state.is_settled() && self.files.reports_writes_to(key);
                !is_told || number % SWEEP_PARTS == self.schedule.swept
            });
            let due: Vec<String> = due.map(|(_, (key, _))| key.clone()).collect();
            self.apply_to_all(due, || PodInput::Swept);
        }
    }

    fn next_wake(&self) -> Instant {
        let (now, wall) = (Instant::now(), Timestamp::now());
        let from_now = |at: Timestamp| now + Duration::try_from(at.duration_since(wall)).unwrap_or_default();
        let of_pods = self.pods.values().flat_map(|state| {
            let (at, wall_at) = state.wakes_at(now.into_std());
            [at.map(Instant::from_std), wall_at.map(from_now)]
        });
        let others = [self.files.due, self.endpoint.retry_at];
        of_pods
            .chain(others)
            .flatten()
            .chain([self.schedule.sweep, self.schedule.decide, now + HEARTBEAT_EVERY])
            .min()
            .unwrap_or(self.schedule.sweep)
    }
}
