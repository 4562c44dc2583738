//! Handing out passes and taking in their results.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use jiff::Timestamp;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::guarding::raise_floors;
use super::resizing::Roominess;
use super::{Coordinator, Event, Reply};
use crate::actuate::{Job, JobDone, Node, Verdict, intention, reconcile};
use crate::agent::entry::{ByHand, Entry, FIRST_RETRY, Pending};
use crate::agent::shrinking::WatchId;
use crate::model::{BoundPod, Cause, ChangeRecord, ControlFile, Outcome, Target};
use crate::pace::scattered;

/// One pass, as it is known while it runs.
#[derive(Debug, Clone)]
pub(in crate::agent) struct Pass {
    /// Counts up from 1.
    number: u64,
    /// Which pod's entry.
    key: String,
    /// Which pod: another may have taken the name meanwhile.
    uid: String,
    /// The entry's epoch when it began.
    epoch: u64,
    /// Who asked.
    cause: Cause,
    /// How long the decision took that led here.
    decided_in: Duration,
    /// What is logged about it says which pod and why.
    span: Span,
}

impl Coordinator {
    /// Starts a pass for every pod that has something to do, and can. How many of them write at once is up to their
    /// [lanes](crate::actuate::Lanes).
    pub(super) fn dispatch(&mut self) {
        let (Some(node), false) = (&self.node, self.options.observe_only) else {
            return;
        };
        let mut entries = self.entries.values();
        let due = entries.any(|entry| entry.work.pending.is_some());
        let resizer = self.resizer.get().filter(|_| due);
        let mut roominess = Roominess::of(&self.entries, &self.view, resizer, self.resizer.upgraded(), node);
        for (key, entry) in &mut self.entries {
            // An entry may be new while a pass of an earlier one still runs for the same pod.
            if entry.live.as_ref().is_none_or(|live| self.busy.contains(&live.id.uid)) {
                continue;
            }
            if let Some((mut job, cause)) = next_job(entry) {
                job.through = roominess.through(entry, &job.targets, &cause);
                if job.through.is_some() && (entry.standing.overridden.is_some() || !entry.standing.leases.is_empty()) {
                    entry.standing.remember_origin(&entry.pod);
                }
                job.kubelet_unasked = job.through.is_none();
                let intention = intention(node, &job);
                if let (Some(through), Some(intention)) = (&mut job.through, intention) {
                    through.noted = Some(self.saver.next_settled().boxed().shared());
                    entry.standing.asking = Some(intention);
                    self.unsaved = true;
                }
                self.passes += 1;
                let pass = Pass {
                    number: self.passes,
                    key: key.clone(),
                    uid: job.bound.live().id.uid.clone(),
                    // An error's, so that it is there whatever the level of what is logged.
                    span: tracing::error_span!("pass", pod = %job.bound.live().id, %cause),
                    epoch: entry.epoch,
                    decided_in: match cause {
                        Cause::Recommendation { .. } | Cause::BoostEnded { .. } => entry.decided_in,
                        _ => Duration::ZERO,
                    },
                    cause,
                };
                entry.work.running = Some(pass.number);
                self.marked.note_written(&pass.uid);
                self.busy.insert(pass.uid.clone());
                start(Arc::clone(node), pass, Box::new(job), self.events.clone());
            }
        }
    }

    /// Takes in the result of a pass.
    pub(super) fn take_done(&mut self, pass: &Pass, mut done: JobDone) {
        let _about = pass.span.enter();
        done.stages.decide = pass.decided_in;
        self.busy.remove(&pass.uid);
        if done.api.unsupported {
            self.resizing_is_unsupported();
        }
        if done.stale {
            self.ask_refresh();
        }
        self.metrics.passed(&done);
        self.learn_formula(&done);
        let quiet = self.quiet();
        let Some(entry) = self.entries.get_mut(&pass.key) else {
            return;
        };
        if entry.work.running != Some(pass.number) {
            return;
        }
        entry.work.running = None;
        let Some(live) = entry.live.clone().filter(|live| live.id.uid == pass.uid) else {
            // The pod ended meanwhile, and perhaps another one has its name.
            return;
        };
        let lives = |id: &str| live.containers.values().any(|container| container.id == id);
        self.unsaved |= entry.standing.scope.quotas.update(&done.quotas, lives);
        report_foreign(&done);
        if let Some(why) = &done.api.denied {
            for said in entry.deny_loans(why, Timestamp::now(), quiet) {
                done.outcome.add(&said);
                self.unsaved = true;
                self.unwatched = true;
            }
        }
        let record = self.history.add(
            Timestamp::now(),
            live.id.clone(),
            pass.cause.clone(),
            &mut done,
            entry.withheld.as_ref(),
        );
        if let Some(asked) = done.api.asked.take() {
            self.resizer.accepted();
            if record.outcome.is_kept() {
                entry.accept_loans(&asked);
            }
            self.unwatched = true;
            entry.standing.asked = Some(asked);
            entry.standing.asking = None;
            entry.work.accepted_at = Some(Instant::now());
            self.unsaved = true;
        }
        if let Some(node) = &self.node {
            let id = WatchId {
                key: pass.key.clone(),
                number: pass.number,
            };
            let mut report = std::mem::take(&mut done.shrink);
            if entry.takes_back_denied(&report.lowered, Timestamp::now()) {
                report.lowered.clear();
            }
            entry
                .shrinking
                .passed(report, id, Arc::clone(node), live, self.events.clone());
        }
        self.unsaved |= entry.yield_to_spec();
        entry.owed = matches!(done.outcome, Outcome::RuntimeOwed { .. });
        if !record.steps.is_empty() || record.outcome.reason().is_some() {
            entry.last = Some(Arc::clone(&record));
        }
        if entry.epoch != pass.epoch {
            // Something else is wanted meanwhile, or lives there: the pass that is asked for starts anew.
            return;
        }
        entry.holds = done.outcome.is_kept();
        if entry.holds {
            entry.shrinking.pass_settled();
        }
        entry.withheld = match &record.outcome {
            Outcome::Withheld(withheld) => Some(withheld.clone()),
            _ => None,
        };
        entry.foreign = done.foreign;
        if let Some(handles) = done.handles {
            if self.watching.watch(&pass.key, &handles) && entry.holds {
                // What was written before the watch stood was told to nobody.
                entry.ask(Cause::Drift, false);
            }
            entry.handles = Some(handles);
        } else {
            self.watching.forget(&pass.key);
        }
        entry.work.waits_for_room = done.api.no_room;
        let Settled { undone, answer } = settle(entry, &record, done.api.retry_after);
        if undone && let Some(live) = &entry.live {
            raise_floors(&self.floors, &live.id.uid, &entry.standing.leases);
        }
        self.unsaved |= undone;
        self.unwatched |= undone;
        self.answers.extend(answer.map(|reply| (reply, record)));
        self.next_order(&pass.key);
    }

    /// The runtime wrote weights by another formula than assumed: the survey is told, and brings a node that has it.
    fn learn_formula(&self, done: &JobDone) {
        if let Some(formula) = done.formula {
            self.formula.send_replace(Some(formula));
            self.ask_refresh();
        }
    }
}

/// What the next pass of a pod is, if anything stands for it.
fn next_job(entry: &mut Entry) -> Option<(Job, Cause)> {
    if entry.work.running.is_some() {
        return None;
    }
    let bound = BoundPod::new(&entry.pod, entry.live.as_ref()?)?;
    let begins = |pending: &mut Pending| pending.not_before.is_none_or(|at| at <= Instant::now());
    let Pending {
        cause,
        asked,
        check_runtime,
        ..
    } = entry.work.pending.take_if(begins)?;
    let targets = entry.aims()?;
    entry.standing.scope.widen(&entry.pod.requirements(), &targets);
    let job = Job {
        bound,
        handles: entry.handles.take(),
        targets,
        lift_undeclared: entry.standing.returning,
        through: None,
        kubelet_unasked: true,
        cause: cause.clone(),
        asked,
        held_before: entry.holds,
        foreign: entry.foreign.clone(),
        // What is owed to the runtime is tried with every pass.
        check_runtime: check_runtime || entry.owed,
        scope: entry.standing.scope.clone(),
        holds: entry.shrinking.holds(Timestamp::now()),
        seen: entry.shrinking.seen.clone(),
    };
    Some((job, cause))
}

fn start(node: Arc<Node>, pass: Pass, job: Box<Job>, events: tokio::sync::mpsc::Sender<Event>) {
    let span = pass.span.clone();
    let work = async move {
        let done = Box::new(reconcile(node, job).await);
        // Fails only when the coordinator is gone, and then nobody wants to know.
        if events.send(Event::Done { pass, done }).await.is_err() {
            tracing::debug!("a pass ended after the agent did");
        }
    };
    tokio::spawn(work.instrument(span));
}

/// What follows from a finished pass.
#[derive(Default)]
struct Settled {
    /// What stands has changed.
    undone: bool,
    /// Who waits for the pass.
    answer: Option<Reply<Arc<ChangeRecord>>>,
}

/// Decides what follows from a finished pass.
fn settle(entry: &mut Entry, record: &ChangeRecord, retry_after: Option<Duration>) -> Settled {
    let mut undone = false;
    match &record.outcome {
        Outcome::Applied | Outcome::Unchanged => {
            entry.reset_retries();
            // A limit that is kept for now is still on its way back.
            undone = entry.shrinking.again().is_none() && entry.standing.has_returned();
        }
        // The kubelet has said so, and says so again when it thinks otherwise.
        Outcome::Withheld(_) => entry.reset_retries(),
        // Whoever lives there now is being looked up, and a pass follows at once if that is somebody else. An operator
        // waits for that one.
        Outcome::Interrupted { .. } => {
            entry.work.retry_at = Some(Instant::now() + FIRST_RETRY);
            return Settled::default();
        }
        Outcome::RuntimeOwed { .. }
        | Outcome::Refused { .. }
        | Outcome::RolledBack { .. }
        | Outcome::Incomplete { .. } => {
            let wait = entry.back_off(Instant::now(), retry_after);
            if !entry.is_looked_after() {
                entry.forget_notices();
            }
            tracing::warn!(
                outcome = record.outcome.word(), reason = record.outcome.reason().unwrap_or_default(), retry_in = ?wait, "not everything is as it should be"
            );
        }
    }
    if record.outcome.is_kept() {
        // The API server is to be asked later.
        let again = retry_after.map(|wait| Instant::now() + wait + scattered(FIRST_RETRY));
        entry.work.retry_at = entry.work.retry_at.or(again);
    }
    let waiter = entry.work.waiter.take();
    let answer = waiter.map(|waiter| {
        if let (false, Some(before)) = (record.outcome.is_kept(), waiter.before) {
            undone = true;
            withdraw(entry, before, &record.outcome);
        }
        waiter.reply
    });
    Settled { undone, answer }
}

/// What an operator asked for and was refused does not stand.
fn withdraw(entry: &mut Entry, before: ByHand, outcome: &Outcome) {
    before.put_back(entry);
    entry.start_over();
    if let Outcome::Incomplete { .. } = outcome {
        // What was done of it is still to be undone.
        entry.standing.returning |= entry.standing.is_empty();
    }
    entry.work.retry_at = Some(Instant::now() + FIRST_RETRY);
}

/// Says once who keeps changing a value back.
fn report_foreign(done: &JobDone) {
    let report = |target: &Target, file: ControlFile, verdict: Verdict| match verdict {
        Verdict::Repair => {
            tracing::info!(cgroup = %target, %file, "something else changed a value; repaired");
        }
        Verdict::LeaveUntil(until) => tracing::warn!(
            cgroup = %target, %file, %until,
            "something else keeps changing this value back; it is left alone until then"
        ),
    };
    for (target, file, verdict) in &done.flipped {
        report(target, *file, *verdict);
    }
}
