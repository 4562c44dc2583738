//! One pass over one pod, stage by stage: observe, make room, patch, write, sync the runtime, verify, undo.
//!
//! The pass writes the kernel's files first, because only they bound the containers: they hold the new values within a
//! millisecond. Where the kubelet does not resize, it updates the runtime next, so that no later update of the stored spec brings
//! the old values back. If the runtime does not answer, the update stays pending and nothing is undone; if the runtime refuses, the pass undoes everything.
//!
//! Stages that read or write the kernel's files block, and run on threads that may. A pass that has to wait leaves its thread.

mod observed;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::execute::Executor;
use super::handles::PodHandles;
use super::job::{Job, JobDone};
use super::node::Node;
use super::runtime_stage;
use super::shrink::{Next, ShrinkChecks, ShrinkReport, StepError, reclaim_below_limits};
use crate::cgroup::CgroupError;
use crate::failpoint::failpoint;
use crate::model::objects::{Pod, PodUid};
use crate::model::{
    Bytes, Cause, ChangeRecord, MemoryLimit, Outcome, PodAmounts, Setting, Settings, Step, Target, Withheld,
};
use crate::plan::{Plan, PlanError};
use crate::resize::{Act, Answer, Grant, Patch};
use crate::slots::Class;

pub(super) use observed::Observed;

/// What a pass writes towards.
#[derive(Debug, Clone, PartialEq)]
struct Aim {
    amounts: PodAmounts,
    /// As in [`PodTargets`](crate::plan::PodTargets).
    lift_undeclared: bool,
    /// As in [`PodTargets`](crate::plan::PodTargets).
    kubelet_unasked: bool,
    /// As in [`Job`].
    held_before: bool,
}

/// The state of a running pass.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) node: Arc<Node>,
    pub(super) job: Box<Job>,
    pub(super) done: JobDone,
    /// What the pass was begun with, and what it writes towards now.
    decided: Aim,
    aim: Aim,
    /// The steps on files and units, to undo if the pass fails.
    written: Vec<Step>,
    /// The pod after the patch of this pass.
    patched: Option<(Box<Pod>, Box<Patch>)>,
    /// Why the pass writes the granted values instead of the wanted ones.
    withheld: Option<Withheld>,
    /// The kubelet waits until less memory is in use than the limits allow.
    reclaims: bool,
    /// Whether the kubelet resizes the pod. Then the runtime's stored specs are the kubelet's to write: an update of ours would
    /// race the kubelet's own, which may still carry the values from before.
    kubelet_resizes: bool,
}

/// The end of a stage: the pass continues with the value, or is over.
type Staged<T> = Result<T, Box<Pass>>;

/// Runs one pass.
///
/// A pass that lowers memory limits may take seconds and waits for most of them, while passes of other pods run. Every pod of
/// a node may have a waiting pass, so the state of a pass is boxed.
pub async fn reconcile(node: Arc<Node>, job: Box<Job>) -> JobDone {
    let (Ok(pass) | Err(pass)) = Box::pin(stages(Pass::new(node, job))).await;
    Box::pin(pass.end()).await
}

async fn stages(pass: Box<Pass>) -> Staged<Box<Pass>> {
    let (pass, observed) = pass.find_aim().await?;
    let (mut pass, observed) = pass.run_kernel_stages(observed, Pass::write).await?;
    failpoint("pass.written");
    if !pass.kubelet_resizes && (pass.job.check_runtime || !observed.plan.steps.is_empty()) {
        let start = Instant::now();
        let synced = Box::pin(runtime_stage::sync(&mut pass, &observed)).await;
        pass.done.record.stages.runtime = start.elapsed();
        if let Err(outcome) = synced {
            return Err(pass.stop(outcome));
        }
    }
    let outcome = match pass.done.record.steps.as_slice() {
        [] => Outcome::Unchanged,
        _ => Outcome::Applied,
    };
    Ok(pass.stop(outcome))
}

impl Pass {
    fn new(node: Arc<Node>, mut job: Box<Job>) -> Box<Self> {
        let pod = job.targets.bound.live().id.clone();
        let mut record = ChangeRecord::new(pod, job.cause.clone(), Outcome::Unchanged);
        record.stages.decide = job.decided_in;
        let done = JobDone {
            foreign: std::mem::take(&mut job.foreign),
            ..JobDone::new(record)
        };
        let decided = Aim {
            amounts: job.targets.amounts.clone(),
            lift_undeclared: job.targets.lift_undeclared,
            kubelet_unasked: job.targets.kubelet_unasked,
            held_before: job.held_before,
        };
        Box::new(Self {
            node,
            job,
            done,
            aim: decided.clone(),
            decided,
            written: Vec::new(),
            patched: None,
            withheld: None,
            reclaims: false,
            kubelet_resizes: false,
        })
    }

    /// Carries out what comes before a write, such as a patch of the spec, until the values to write are known. Returns beside the pass
    /// what it has observed meanwhile.
    async fn find_aim(mut self: Box<Self>) -> Staged<(Box<Self>, Option<Box<Observed>>)> {
        let mut act = std::mem::take(&mut self.job.resize);
        let mut observed = None;
        loop {
            self.kubelet_resizes = act != Act::Direct;
            (self, observed, act) = match act {
                Act::Direct => {
                    let aim = Aim {
                        kubelet_unasked: true,
                        ..self.decided.clone()
                    };
                    self.aim_at(aim);
                    return Ok((self, observed));
                }
                Act::Write(grant) if grant.follows.is_some() => self.compare_and_read(grant).await?,
                Act::Write(grant) => {
                    self.aim_at_grant(grant);
                    return Ok((self, observed));
                }
                Act::Patch(patch) => self.make_room_and_patch(patch).await?,
                Act::End {
                    outcome,
                    retry_after,
                    no_room,
                } => {
                    let api = &mut self.done.api;
                    (api.retry_after, api.no_room) = (retry_after, no_room);
                    return Err(self.stop(outcome));
                }
            };
        }
    }

    /// From here on the pass writes towards these values.
    fn aim_at(&mut self, aim: Aim) {
        if aim != self.aim {
            let targets = &mut self.job.targets;
            targets.amounts.clone_from(&aim.amounts);
            targets.lift_undeclared = aim.lift_undeclared;
            targets.kubelet_unasked = aim.kubelet_unasked;
            self.aim = aim;
        }
    }

    /// From here on the pass writes what the kubelet has granted.
    fn aim_at_grant(&mut self, grant: Grant) {
        let decided = &self.decided;
        self.aim_at(Aim {
            // The API server cannot remove a limit from a spec.
            lift_undeclared: decided.lift_undeclared && grant.ahead,
            // The kubelet restarts containers with the values of the spec.
            kubelet_unasked: decided.kubelet_unasked || grant.is_written_ahead(),
            held_before: decided.held_before && grant.settled,
            amounts: grant.targets,
        });
        self.done.api.retry_after = grant.retry_after;
        (self.withheld, self.reclaims) = (grant.withheld, grant.reclaim);
    }

    /// Makes room for the patched values, as for a write, and patches the spec. Returns what the pass has observed and still uses, and
    /// what it does after the answer.
    async fn make_room_and_patch(mut self: Box<Self>, patch: Patch) -> Staged<(Box<Self>, Option<Box<Observed>>, Act)> {
        if !patch.changes.is_empty() {
            self.done.api.answer = Answer::NotCarriedOut;
        }
        self.aim_at(Aim {
            amounts: patch.request.targets.clone(),
            lift_undeclared: false,
            // The targets are new: a file that differs from them is no drift.
            held_before: false,
            ..self.decided.clone()
        });
        let observed;
        (self, observed) = self.run_kernel_stages(None, Self::check_plan).await?;
        failpoint("pass.room_made");
        if self.job.targets.amounts != patch.request.targets {
            return Err(self.stop(overtaken()));
        }
        let answer = self.patch(&patch).await;
        let away = self.job.resizer.as_ref().and_then(|resizer| resizer.away());
        let next = patch.answered(answer.as_ref(), away, &mut self.done.api);
        let is_fast = matches!(&next, Act::Write(grant) if grant.withheld.is_none());
        let observed = match answer {
            Ok(pod) if is_fast => {
                // The cgroups may be unable to hold the values after all.
                self.patched = Some((Box::new(pod), Box::new(patch)));
                Some(observed)
            }
            // The pass does something else than what it has observed for.
            _ => None,
        };
        Ok((self, observed, next))
    }

    /// Observes the cgroups, and reads the pod if they differ from its object, or get back what the object has. The guard's limits do not
    /// wait for that. Returns what the pass has observed and still uses, and what it does after the answer.
    async fn compare_and_read(mut self: Box<Self>, grant: Grant) -> Staged<(Box<Self>, Option<Box<Observed>>, Act)> {
        let before = (self.done.foreign.clone(), self.job.cgroups.clone());
        self.aim_at_grant(grant.clone());
        let observed;
        (self, observed) = self.on_files(Self::observe).await;
        let mut observed = match observed {
            Ok(observed) => observed,
            Err(outcome) => return Err(self.stop(outcome)),
        };
        let may_end_return = self.decided.lift_undeclared && grant.withheld.is_none();
        let is_as_known = observed.plan.steps.is_empty() && !may_end_return;
        if is_as_known || !observed.least_limits.is_empty() {
            // The pass uses what it has observed; with steps it reads the files again before it writes.
            observed.making_room = Some((Instant::now(), u32::from(!observed.plan.steps.is_empty())));
            return Ok((self, Some(observed), Act::Write(Grant { follows: None, ..grant })));
        }
        // It observes again after the answer. What differs from a late object is no drift.
        self.done.flipped.clear();
        (self.done.foreign, self.job.cgroups) = before;
        let read = self.read_soon().await;
        let next = grant.was_read(read.as_ref(), &mut self.done.api);
        Ok((self, None, next))
    }

    /// Observes the cgroups, makes room for lower memory limits, and ends with `last`: the pass writes, or checks its plan before a
    /// patch. After the patch, the pass uses what it has observed before.
    async fn run_kernel_stages(
        mut self: Box<Self>,
        mut observed: Option<Box<Observed>>,
        last: fn(&mut Self, &mut Observed) -> Result<(), Outcome>,
    ) -> Staged<(Box<Self>, Box<Observed>)> {
        loop {
            let advanced;
            (self, advanced) = self.on_files(move |pass| pass.advance(observed, last)).await;
            match advanced {
                Ok((kept, Some(until))) => {
                    observed = Some(kept);
                    let wait = until.saturating_duration_since(Instant::now());
                    tracing::debug!(
                        ?wait,
                        "more memory is in use than the lower limits allow, with some to spare"
                    );
                    tokio::time::sleep_until(until.into()).await;
                }
                Ok((observed, None)) => return Ok((self, observed)),
                Err(outcome) => return Err(self.stop(outcome)),
            }
        }
    }

    /// Whose slots the pass uses.
    pub(super) fn user(&self) -> (String, Class) {
        let namespace = self.job.targets.bound.live().id.namespace.clone();
        let cause = &self.job.cause;
        let by_operator = matches!(cause, Cause::Operator { .. } | Cause::Released { .. });
        let is_urgent = by_operator || cause.is_emergency();
        (namespace, if is_urgent { Class::Privileged } else { Class::Ordinary })
    }

    /// Runs a stage on the kernel's files once the pod's namespace has a slot.
    async fn on_files<T: Send + 'static>(
        self: Box<Self>,
        work: impl FnOnce(&mut Self) -> T + Send + 'static,
    ) -> (Box<Self>, T) {
        let node = Arc::clone(&self.node);
        let (namespace, class) = self.user();
        let _slot = node.concurrency.kernel.wait(&namespace, class).await;
        self.blocking(work).await
    }

    async fn blocking<T: Send + 'static>(
        mut self: Box<Self>,
        work: impl FnOnce(&mut Self) -> T + Send + 'static,
    ) -> (Box<Self>, T) {
        let span = tracing::Span::current();
        let worked = tokio::task::spawn_blocking(move || {
            let result = span.in_scope(|| work(&mut self));
            (self, result)
        });
        worked.await.unwrap_or_else(|panic| resume_unwind(panic.into_panic()))
    }

    /// Advances until the pass has ended with `last`, or returns the time at which to continue.
    fn advance(
        &mut self,
        observed: Option<Box<Observed>>,
        last: fn(&mut Self, &mut Observed) -> Result<(), Outcome>,
    ) -> Result<(Box<Observed>, Option<Instant>), Outcome> {
        let mut observed = match observed.filter(|observed| observed.aim == self.aim) {
            Some(observed) => observed,
            None => self.observe()?,
        };
        if let Some(until) = self.make_room(&mut observed)? {
            return Ok((observed, Some(until)));
        }
        if !self.is_current(&observed) {
            return Err(overtaken());
        }
        last(self, &mut observed)?;
        Ok((observed, None))
    }

    /// Checks the steps that follow the patch, and carries out none.
    fn check_plan(&mut self, observed: &mut Observed) -> Result<(), Outcome> {
        Executor::new(&self.node, opened(self.done.handles.as_ref())?).check_all(&observed.plan)
    }

    /// Whether the guard has raised no limit of the pod since the pass observed.
    pub(super) fn is_current(&self, observed: &Observed) -> bool {
        self.node.least_limits.of(self.uid()) == observed.least_limits
    }

    pub(super) fn uid(&self) -> &PodUid {
        &self.job.targets.bound.live().id.uid
    }

    fn observe(&mut self) -> Result<Box<Observed>, Outcome> {
        let stages = &mut self.done.record.stages;
        if stages.queued.is_zero() {
            stages.queued = self.job.asked.elapsed();
        }
        let start = Instant::now();
        let live = Arc::clone(self.job.targets.bound.live());
        let (handles, tree) = PodHandles::open_and_read(&self.node.hierarchy, &live)?;
        let handles = &*self.done.handles.insert(handles);
        // A new cgroup may have the path of one that ended.
        let found = handles.identities();
        let others = self.job.cgroups.as_ref().is_some_and(|known| *known != found);
        self.job.cgroups = Some(found);
        stages.observe = start.elapsed();
        let start = Instant::now();
        self.done.stale = tree.containers.len() < live.containers.len();
        let amounts = &mut self.job.targets.amounts;
        let decided = amounts.containers.clone();
        let least_limits = self.node.least_limits.lift(&live.id.uid, amounts);
        let pairs = amounts.containers.iter().zip(decided);
        let grown: Vec<_> = pairs
            .filter_map(|(now, decided)| (*now != decided).then(|| now.name.clone()))
            .collect();
        let mut wanted = self.job.targets.values(&tree, &self.node.traits);
        if !others {
            let (foreign, held_before) = (&mut self.done.foreign, self.aim.held_before);
            self.done.flipped = foreign.find_flips(&tree, &mut wanted, held_before, &grown);
        }
        let plan = Plan::of_files(&tree, &wanted.tree, &self.node.traits)?;
        let checks = ShrinkChecks::of(&plan, handles, &self.job.seen)?;
        self.job.seen.extend(checks.seen());
        stages.plan = start.elapsed();
        Ok(Box::new(Observed {
            aim: self.aim.clone(),
            wanted,
            plan,
            least_limits,
            checks,
            making_room: None,
        }))
    }

    /// Makes room for lower memory limits in one turn; returns the time of the next turn, if the pass needs one.
    fn make_room(&mut self, observed: &mut Observed) -> Result<Option<Instant>, Outcome> {
        let (since, turns) = observed.making_room.get_or_insert_with(|| (Instant::now(), 0));
        *turns += 1;
        let next = observed.checks.advance(opened(self.done.handles.as_ref())?, true);
        // Also a turn that fails has read the memory in use.
        self.job.seen.extend(observed.checks.seen());
        let next = next?;
        if !observed.checks.is_empty() && self.done.api.answer.accepted().is_none() {
            self.done.record.stages.prepare = since.elapsed();
        }
        match next {
            Next::Ready => Ok(None),
            Next::Wait(until) => Ok(Some(until)),
            Next::Refused(why) => {
                self.done.shrink.refused = true;
                Err(Outcome::Refused(why))
            }
        }
    }

    fn write(&mut self, observed: &mut Observed) -> Result<(), Outcome> {
        let handles = opened(self.done.handles.as_ref())?;
        let mut lowered = Vec::new();
        if observed.making_room.is_some_and(|(_, turns)| turns > 1) {
            // Making room took a while, so the files are read again. A kubelet that has the new spec may have written the lower
            // limits first; the pass has them watched all the same.
            let tree = handles.read()?;
            self.done.stale |= tree.containers.len() < self.job.targets.bound.live().containers.len();
            let holds = |target: &Target, to: Bytes| {
                tree.get(target).and_then(Settings::memory_limit) == Some(MemoryLimit::Bytes(to.get()))
            };
            lowered = observed.before_lowering(handles, holds)?;
            observed.plan = Plan::of_files(&tree, &observed.wanted.tree, &self.node.traits)?;
        }
        lowered.extend(observed.before_lowering(handles, |_, _| true)?);
        let touched = observed.touched(&lowered, &self.job.watched);
        let bursts = new_bursts(&observed.plan, handles)?;
        let start = Instant::now();
        let mut executor = Executor::new(&self.node, handles);
        // With any property, systemd resets memory.oom.group, so that a kill would not end the whole container. Where the kubelet
        // resizes, the runtime sets the properties and then the file.
        executor.aligns_scopes = self.job.aligns_scopes && !self.kubelet_resizes;
        let ended = executor.run(&observed.plan);
        let (took, verified) = (start.elapsed(), self.job.asked.elapsed());
        let executed = executor.done;
        if self.reclaims
            && let Err(error) = reclaim_below_limits(&observed.wanted.tree, handles)
        {
            tracing::warn!(%error, "no room is made for the kubelet");
        }
        self.done.shrink = ShrinkReport {
            lowered,
            touched,
            refused: executed.not_shrinkable,
            freezes: executed.freezes,
            ..ShrinkReport::default()
        };
        self.done.bursts = bursts;
        self.done.record.steps.extend(executed.records);
        self.written = executed.written;
        self.done.record.stages.verified = verified;
        if !observed.plan.steps.is_empty() {
            self.done.record.stages.write = took;
        }
        ended
    }

    /// Ends the pass with this outcome.
    fn stop(mut self: Box<Self>, outcome: Outcome) -> Box<Self> {
        self.done.record.outcome = outcome;
        self
    }

    /// Undoes the actions of a failed pass: files and units, then the runtime's stored specs, then the patch. Keeps the written
    /// values where a cgroup has ended, or where only the verification failed: they are in order.
    ///
    /// The stored specs come after the files, although the pass updates the runtime after it writes them: the runtime writes a
    /// lower limit without a check of the memory in use, which would kill where the file could not be put back.
    async fn take_back(mut self: Box<Self>) -> Box<Self> {
        if matches!(self.done.record.outcome, Outcome::RolledBack(_)) {
            self = self.blocking(Self::undo_steps).await.0;
            Box::pin(runtime_stage::undo(&mut self)).await;
        }
        if let Some((patched, patch)) = self.patched.take_if(|_| !self.done.record.outcome.holds()) {
            failpoint("pass.not_taken_back");
            Box::pin(self.undo_patch(*patched, &patch)).await;
        }
        self
    }

    fn undo_steps(&mut self) {
        let Some(handles) = &self.done.handles else { return };
        let mut executor = Executor::new(&self.node, handles);
        executor.done.written = std::mem::take(&mut self.written);
        if let Err(failed) = executor.undo() {
            self.done.record.outcome.not_undone(&failed);
        }
        let executed = executor.done;
        self.done.record.steps.extend(executed.records);
        self.done.shrink.freezes.extend(executed.freezes);
    }

    /// Undoes what has to be undone, and completes the result. Closes the cgroups where one of them is gone.
    async fn end(self: Box<Self>) -> JobDone {
        let mut pass = self.take_back().await;
        let done = &mut pass.done;
        if !done.record.outcome.holds() {
            // The written steps were undone, or hold although the next pass plans the rest anew.
            done.shrink.retain_written(&done.record.steps);
        }
        done.shrink.seen = std::mem::take(&mut pass.job.seen);
        done.quotas = std::mem::take(&mut pass.job.targets.scope.quotas);
        done.stale |= matches!(done.record.outcome, Outcome::Interrupted(_));
        done.handles = done.handles.take().filter(|_| !done.stale);
        if let Some(why) = done.api.answer.denied() {
            done.record.outcome.deny(why);
        }
        if let (Outcome::Applied | Outcome::Unchanged, Some(withheld)) = (&done.record.outcome, pass.withheld) {
            done.record.outcome = Outcome::Withheld(withheld);
        }
        pass.done
    }
}

/// The containers that get a burst and have none, and for how long the kernel has throttled each.
fn new_bursts(plan: &Plan, handles: &PodHandles) -> Result<Vec<(String, Duration)>, Outcome> {
    let is_new = |(from, to): (Setting, Setting)| from.burst_us() == Some(0) && to.burst_us() > Some(0);
    let with_burst = plan
        .steps
        .iter()
        .filter(|step| step.change.files().into_iter().any(is_new));
    let containers = with_burst.filter_map(|step| Some((step.target.container()?, handles.get(&step.target)?)));
    let read = containers.map(|(name, cgroup)| Ok((name.to_owned(), cgroup.periods()?.throttled_for)));
    read.collect()
}

fn overtaken() -> Outcome {
    Outcome::Interrupted("a limit was grown in an emergency meanwhile".to_owned())
}

/// The pod's cgroups, which the first stage opens.
///
/// Errors: that stage has not run.
pub(super) fn opened(handles: Option<&PodHandles>) -> Result<&PodHandles, Outcome> {
    handles.ok_or_else(|| Outcome::Interrupted("the pod's cgroups are not open".to_owned()))
}

/// The end of a pass over a pod whose files cannot be read.
impl From<CgroupError> for Outcome {
    fn from(error: CgroupError) -> Self {
        StepError::from(error).ends(Self::Refused)
    }
}

/// The end of a pass for which no valid order of steps exists.
impl From<PlanError> for Outcome {
    fn from(error: PlanError) -> Self {
        Self::Refused(error.to_string())
    }
}
