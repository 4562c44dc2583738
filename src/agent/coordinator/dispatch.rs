//! Handing out passes and taking in their results.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{Coordinator, Event};
use crate::actuate::{Cause, ChangeRecord, Job, JobDone, Node, Outcome, Verdict, reconcile};
use crate::agent::entry::{Entry, FIRST_RETRY, Pending, Waiter};
use crate::plan::Target;
use crate::resources::ControlFile;

impl Coordinator {
    /// Starts a pass for every pod that has something to do, and can. How many of them write at once is up to their
    /// [lanes](crate::actuate::Lanes).
    pub(super) fn dispatch(&mut self) {
        let (Some(node), false) = (&self.node, self.options.observe_only) else {
            return;
        };
        for (key, entry) in &mut self.entries {
            if let Some((job, cause)) = next_job(entry) {
                self.running += 1;
                start(Arc::clone(node), key.clone(), cause, job, self.events.clone());
            }
        }
    }

    /// Takes in the result of a pass.
    pub(super) fn take_done(&mut self, key: &str, uid: &str, cause: Cause, done: JobDone) {
        self.running -= 1;
        if done.stale {
            self.ask_refresh();
        }
        self.metrics.passed(&done);
        self.learn_formula(&done);
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.work.running.as_deref() != Some(uid) {
            return;
        }
        entry.work.running = None;
        let waiting = std::mem::take(&mut entry.work.waiting);
        let Some(live) = entry.live.as_ref().filter(|live| live.id.uid == uid) else {
            // The pod ended meanwhile, and perhaps another one has its name.
            return;
        };
        report_foreign(key, &done);
        let record = self.history.add(Timestamp::now(), live.id.clone(), cause, &done);
        entry.holds = done.outcome.holds();
        entry.owed = matches!(done.outcome, Outcome::RuntimeOwed { .. });
        entry.foreign = done.foreign;
        let undone = settle(entry, &record, waiting);
        if let Some(handles) = done.handles {
            if !self.watching.watches(key) {
                self.watching.watch(key, &handles);
            }
            entry.handles = Some(handles);
        } else {
            self.watching.forget(key);
        }
        self.unsaved |= undone;
    }

    /// The runtime wrote weights by another formula than assumed: plan with that one from now on.
    fn learn_formula(&mut self, done: &JobDone) {
        if let (Some(formula), Some(node)) = (done.formula, &self.node)
            && node.traits.container_weight != formula
        {
            tracing::info!(%formula, "the runtime converts cpu shares to weights by another formula than assumed");
            let mut learnt = Node::clone(node);
            learnt.traits.container_weight = formula;
            self.node = Some(Arc::new(learnt));
            self.ask_refresh();
        }
    }
}

/// What the next pass of a pod is, if anything stands for it.
fn next_job(entry: &mut Entry) -> Option<(Job, Cause)> {
    if entry.work.running.is_some() {
        return None;
    }
    let live = entry.live.clone()?;
    let Pending {
        cause,
        asked,
        check_runtime,
        waiting,
    } = entry.work.pending.take()?;
    let targets = entry.standing.targets(&entry.pod)?;
    entry.work.running = Some(live.id.uid.clone());
    entry.work.waiting = waiting;
    let job = Job {
        pod: Arc::clone(&entry.pod),
        live,
        handles: entry.handles.take(),
        targets,
        lift_undeclared: entry.standing.returning,
        cause: cause.clone(),
        asked,
        held_before: entry.holds,
        foreign: std::mem::take(&mut entry.foreign),
        // What is owed to the runtime is tried with every pass.
        check_runtime: check_runtime || entry.owed,
    };
    Some((job, cause))
}

fn start(node: Arc<Node>, key: String, cause: Cause, job: Job, events: tokio::sync::mpsc::Sender<Event>) {
    let uid = job.live.id.uid.clone();
    tokio::spawn(async move {
        let done = Box::new(reconcile(node, job).await);
        // Fails only when the coordinator is gone, and then nobody wants to know.
        if events.send(Event::Done { key, uid, cause, done }).await.is_err() {
            tracing::debug!("a pass ended after the agent did");
        }
    });
}

/// Decides what follows from a finished pass; returns whether what stands has changed.
fn settle(entry: &mut Entry, record: &Arc<ChangeRecord>, waiting: Vec<Waiter>) -> bool {
    if !record.steps.is_empty() || record.outcome.reason().is_some() {
        entry.last = Some(Arc::clone(record));
    }
    let mut undone = false;
    match &record.outcome {
        Outcome::Applied | Outcome::Unchanged => {
            entry.reset_retries();
            undone = std::mem::take(&mut entry.standing.returning);
        }
        // Whoever lives there now is being looked up, and a pass follows at once if that is somebody else.
        Outcome::Interrupted { .. } => entry.work.retry_at = Some(Instant::now() + FIRST_RETRY),
        Outcome::RuntimeOwed { .. }
        | Outcome::Refused { .. }
        | Outcome::RolledBack { .. }
        | Outcome::Incomplete { .. } => {
            let wait = entry.back_off(Instant::now());
            tracing::warn!(
                pod = %record.pod, cause = %record.cause, outcome = record.outcome.word(),
                reason = record.outcome.reason().unwrap_or_default(), retry_in = ?wait, "not everything is as it should be"
            );
        }
    }
    for waiter in waiting {
        let refused = !record.outcome.holds();
        if let (true, Some(before)) = (refused, waiter.before) {
            // What an operator asked for and was refused does not stand.
            entry.standing = before;
            entry.reset_retries();
            undone = true;
        }
        if waiter.reply.send(Arc::clone(record)).is_err() {
            tracing::debug!(pod = %record.pod, "the operator did not wait for the answer");
        }
    }
    undone
}

/// Says once who keeps changing a value back.
fn report_foreign(key: &str, done: &JobDone) {
    let report = |target: &Target, file: ControlFile, verdict: Verdict| match verdict {
        Verdict::Repair => tracing::info!(pod = key, %target, %file, "something else changed a value; repaired"),
        Verdict::LeaveUntil(until) => tracing::warn!(
            pod = key, %target, %file, %until,
            "something else keeps changing this value back; it is left alone until then"
        ),
    };
    for (target, file, verdict) in &done.flipped {
        report(target, *file, *verdict);
    }
}
