//! The one owner of what the agent knows: takes in facts and requests, hands out passes, keeps their results.
//!
//! In: views of what pods should have, refreshed inventories, changed files, operators' requests, finished passes, the
//! clock. Out: passes ([`crate::actuate::reconcile`], at most one for each pod at a time), the history, what
//! must survive a restart. It never does I/O itself apart from saving that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;

use super::applied::Applied;
use super::entry::Entry;
use super::history::History;
use super::inventory::Inventory;
use super::metrics::Metrics;
use super::saver::Saver;
use super::shrinking::WatchId;
use super::state::{Restored, SavedPod};
use super::watching::{Watching, Written};
use crate::actuate::shrink::Verdict;
use crate::actuate::{Floors, JobDone, Node, PodResizer};
use crate::decide;
use crate::guard::{self, Guard, Marked};
use crate::model::{Cause, ChangeRecord, ResourceList, WeightFormula};
use crate::observe::audit::Audit;
use crate::observe::health::{Heartbeat, Latch};
use crate::oom::OomReport;
use crate::sources::NodeView;
use resizer::Resizer;

mod counting;
mod deciding;
mod denials;
mod dispatch;
mod guarding;
mod living;
mod others;
mod recording;
mod requests;
mod resizer;
mod resizing;
mod room;
mod saving;
mod shrinks;
mod unnoted;

pub(super) use dispatch::Pass;
pub(super) use requests::{Health, Order, Reply, Request, Selection, Snapshot, Wish, answer, not_running};
pub(super) use shrinks::tell_of_blame;

/// Time-dependent decisions (a pod grows old enough) are looked at this often.
const DECIDE_AGAIN: Duration = Duration::from_secs(60);
/// An idle coordinator gives a sign of life this often.
const BEAT: Duration = Duration::from_secs(5);
/// Writes come in bursts, and a pass of ours is one: wait for the end of the burst before looking at what was written.
const SETTLE: Duration = Duration::from_millis(20);

/// What the coordinator is told.
#[derive(Debug)]
pub(super) enum Event {
    /// The source's view, or what is wrong with it, changed.
    View(Arc<NodeView>, Vec<String>),
    /// What is wrong with a source that knows nothing yet.
    SourceProblems(Vec<String>),
    /// The configuration was read again.
    Options(Options),
    /// The node was looked at.
    Refreshed(Refreshed),
    /// A pass ended.
    Done {
        /// Which one.
        pass: Pass,
        /// What became of it.
        done: Box<JobDone>,
    },
    /// Watching a pod whose memory limits were lowered ended.
    Watched(WatchId, Verdict),
    /// Somebody was killed for a limit that was lowered.
    Blamed(Arc<OomReport>),
    /// An operator asks.
    Request(Request),
}

/// What looking at the node found.
#[derive(Debug)]
pub(super) struct Refreshed {
    /// The node, once it is known well enough to act on it.
    pub(super) node: Option<Arc<Node>>,
    /// What lives there.
    pub(super) inventory: Inventory,
    /// Whether the runtime could be asked.
    pub(super) runtime_answers: bool,
    /// What is degraded, one sentence each.
    pub(super) problems: Vec<String>,
}

/// How the coordinator is to work.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) decide: decide::Options,
    pub(super) sweep_interval: Duration,
    pub(super) observe_only: bool,
    /// Whether pods say what is applied to them.
    pub(super) annotate: bool,
    /// How to grow limits in an emergency; `None` is not at all.
    pub(super) guard: Option<guard::Settings>,
}

/// The owner of everything.
#[derive(Debug)]
pub(super) struct Coordinator {
    options: Options,
    metrics: Metrics,
    saver: Saver,
    unsaved: bool,
    /// Operators whose passes ended, and how.
    answers: Vec<(Reply<Arc<ChangeRecord>>, Arc<ChangeRecord>)>,
    /// What was loaded at the start and has not met its pod yet.
    saved: BTreeMap<String, SavedPod>,
    restore_problem: Option<String>,
    view: Arc<NodeView>,
    seen_view: bool,
    inventory: Inventory,
    node: Option<Arc<Node>>,
    runtime_answers: bool,
    node_problems: Vec<String>,
    source_problems: Vec<String>,
    kill_problems: Vec<watch::Receiver<Vec<String>>>,
    entries: BTreeMap<String, Box<Entry>>,
    /// How many passes were begun.
    passes: u64,
    /// The UIDs of the pods that passes run for now.
    busy: BTreeSet<String>,
    resizer: Resizer,
    applied: Option<Applied>,
    watching: Watching,
    /// Pods whose files were written, and when to look at them.
    written: BTreeSet<String>,
    guard: Option<Guard>,
    reports: mpsc::UnboundedReceiver<guard::Report>,
    /// Pods that an earlier agent may have lent memory without noting it.
    marked: Marked,
    floors: Arc<Floors>,
    /// What the guard is to watch may have changed.
    unwatched: bool,
    look_at: Option<Instant>,
    history: History,
    machine: ResourceList,
    events: mpsc::Sender<Event>,
    refresh: mpsc::Sender<()>,
    formula: watch::Sender<Option<WeightFormula>>,
    next_sweep: Instant,
    next_decide: Instant,
    next_count: Instant,
    /// Held until the source and the node are known.
    starting: Vec<Latch>,
}

/// What the coordinator is connected to.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) events: mpsc::Sender<Event>,
    pub(super) refresh: mpsc::Sender<()>,
    pub(super) formula: watch::Sender<Option<WeightFormula>>,
    pub(super) changes: broadcast::Sender<Arc<ChangeRecord>>,
    pub(super) metrics: Metrics,
    pub(super) starting: Vec<Latch>,
    pub(super) audit: Audit,
    /// What this machine has.
    pub(super) machine: ResourceList,
    /// What hinders watching for kills.
    pub(super) problems: Vec<watch::Receiver<Vec<String>>>,
    /// Grows limits in an emergency; `None` where it could not be started.
    pub(super) guard: Option<Guard>,
    pub(super) reports: mpsc::UnboundedReceiver<guard::Report>,
    pub(super) marked: Marked,
    pub(super) floors: Arc<Floors>,
    pub(super) resizer: Option<Arc<dyn PodResizer>>,
    /// Where pods are to say what is applied to them; `None` without an API server.
    pub(super) applied: Option<Applied>,
}

impl Coordinator {
    pub(super) fn new(options: Options, saver: Saver, restored: Restored, links: Links) -> Self {
        let now = Instant::now();
        Self {
            next_sweep: now + options.sweep_interval,
            next_decide: now + DECIDE_AGAIN,
            next_count: now,
            starting: links.starting,
            options,
            metrics: links.metrics,
            saver,
            unsaved: false,
            answers: Vec::new(),
            saved: restored.pods,
            restore_problem: restored.problem,
            view: Arc::default(),
            seen_view: false,
            inventory: Inventory::default(),
            node: None,
            runtime_answers: false,
            node_problems: Vec::new(),
            source_problems: Vec::new(),
            kill_problems: links.problems,
            entries: BTreeMap::new(),
            passes: 0,
            busy: BTreeSet::new(),
            resizer: Resizer::new(links.resizer),
            applied: links.applied,
            watching: Watching::new(),
            written: BTreeSet::new(),
            guard: links.guard,
            reports: links.reports,
            marked: links.marked,
            floors: links.floors,
            unwatched: true,
            look_at: None,
            history: History::new(links.changes, links.audit),
            machine: links.machine,
            events: links.events,
            refresh: links.refresh,
            formula: links.formula,
        }
    }

    /// Works until the channel of events is closed or `stop` says so; then waits for the passes that run.
    pub(super) async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        stop: tokio_util::sync::CancellationToken,
        heartbeat: Heartbeat,
    ) {
        loop {
            heartbeat.beat();
            let wake = self.next_wake();
            // Cancel-safe: `recv` and `written` lose nothing, the others only tell the time.
            tokio::select! {
                Some(report) = self.reports.recv() => self.take_report(report),
                event = events.recv() => match event {
                    Some(event) => self.take(event),
                    None => break,
                },
                written = self.watching.written() => self.take_written(written),
                () = tokio::time::sleep_until(wake) => {}
                () = stop.cancelled() => break,
            }
            self.on_time(Instant::now());
            self.watch_guarded();
            self.dispatch();
            self.save();
            self.answer_operators();
            self.count(Instant::now());
        }
        self.finish(events).await;
    }

    /// Lets the passes that run come to their end; none is cut off between two steps.
    async fn finish(mut self, mut events: mpsc::Receiver<Event>) {
        if let Some(guard) = self.guard.take() {
            guard.stop();
        }
        while let Ok(report) = self.reports.try_recv() {
            self.take_report(report);
        }
        while !self.busy.is_empty() {
            match events.recv().await {
                Some(event @ Event::Done { .. }) => self.take(event),
                Some(_) => {}
                None => break,
            }
        }
        self.save();
        self.saver.finish().await;
        for (reply, record) in self.answers {
            answer(reply, Ok(record));
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::View(view, problems) => self.take_view(view, problems),
            Event::SourceProblems(problems) => self.take_silence(problems),
            Event::Options(options) => {
                self.options = options;
                self.next_sweep = self.next_sweep.min(Instant::now() + self.options.sweep_interval);
                self.unwatched = true;
                self.decide_all(Timestamp::now());
            }
            Event::Refreshed(refreshed) => self.take_refreshed(refreshed),
            Event::Done { pass, done } => self.take_done(&pass, *done),
            Event::Watched(id, verdict) => self.take_watched(&id, verdict),
            Event::Blamed(kill) => self.take_blame(&kill),
            Event::Request(request) => self.take_request(request),
        }
    }

    /// Files were written: by somebody else, or by a pass of ours. Looks at them once the writer is done.
    fn take_written(&mut self, written: Written) {
        let ours = |entry: &Entry| !entry.standing.is_empty();
        match written {
            Written::Pods(pods) => self.written.extend(pods),
            Written::PerhapsAll => {
                let all = self.entries.iter().filter(|(_, entry)| ours(entry));
                self.written.extend(all.map(|(key, _)| key.clone()));
            }
        }
        if !self.written.is_empty() {
            // Where memory was lent somebody may be about to run out of it: the rest of the burst is looked at afterwards.
            let lent = |key: &String| self.entries.get(key).is_some_and(|entry| entry.has_lent_memory());
            let wait = if self.written.iter().any(lent) {
                Duration::ZERO
            } else {
                SETTLE
            };
            let at = Instant::now() + wait;
            self.look_at = Some(self.look_at.map_or(at, |known| known.min(at)));
        }
    }

    fn look_at_written(&mut self) {
        self.look_at = None;
        for key in std::mem::take(&mut self.written) {
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.is_looked_after()
            {
                entry.ask(Cause::Drift, false);
            }
        }
    }

    /// Does what is due.
    fn on_time(&mut self, now: Instant) {
        let wall = Timestamp::now();
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at_written();
        }
        for entry in self.entries.values_mut() {
            if entry.work.retry_at.is_some_and(|at| at <= now) {
                entry.work.retry_at = None;
                entry.ask(Cause::Retry, true);
            }
        }
        self.try_resizer_again(now);
        self.end_overrides(wall);
        self.end_boosts(wall);
        self.end_denied_loans(wall);
        self.try_shrinks_again(wall);
        self.give_turns(wall);
        if self.next_decide <= now {
            self.next_decide = now + DECIDE_AGAIN;
            self.decide_all(wall);
            self.match_live();
        }
        if self.next_sweep <= now {
            self.next_sweep = now + self.options.sweep_interval;
            self.ask_refresh();
            self.forget_saved();
            self.unsaved |= self.saver.problem().is_some();
            for entry in self.entries.values_mut().filter(|entry| entry.is_looked_after()) {
                entry.ask(Cause::Sweep, entry.owed);
            }
        }
    }

    /// The next moment at which something is due.
    fn next_wake(&self) -> Instant {
        let wall = Timestamp::now();
        let now = Instant::now();
        let passes = self.entries.values().filter_map(|entry| entry.work.wakes_at(now));
        let ends = |entry: &Entry| {
            [
                entry.standing.ends_at(),
                entry.shrinking.again(),
                entry.decision.boosts.next_end,
                entry.denied_loan_ends(),
            ]
        };
        let dated = self.entries.values().flat_map(|entry| ends(entry)).flatten();
        let dated = dated.map(|at| now + Duration::try_from(at.duration_since(wall)).unwrap_or_default());
        let periodic = [self.next_sweep, self.next_decide, now + BEAT];
        passes
            .chain(dated)
            .chain(self.look_at)
            .chain(self.resizer.again())
            .chain(periodic)
            .min()
            .unwrap_or(self.next_sweep)
    }
}
