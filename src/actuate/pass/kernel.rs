//! The stages of a pass on the kernel's files: observe, make room, then check the plan or write.
//!
//! They block, so they run on threads that may. A pass that has to wait leaves its thread.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Observed, Pass, Staged, overtaken};
use crate::actuate::execute::{Executor, raise_unit};
use crate::actuate::handles::PodHandles;
use crate::actuate::shrink::{Lowering, ShrinkReport, StepError, reclaim_below_limits};
use crate::actuate::urgent::{Growable, grow_memory};
use crate::model::{
    Bytes, ContainerName, CriResources, MemoryLimit, Outcome, Setting, Settings, Step, StepRecord, Target,
};
use crate::plan::{Plan, spec_step};

impl Pass {
    /// Observes the cgroups, makes room for lower memory limits, and ends with `last`: the pass writes, or checks its plan before a
    /// patch. After the patch, the pass uses what it has observed before.
    pub(super) async fn run_kernel_stages(
        mut self: Box<Self>,
        last: fn(&mut Self, &mut Observed) -> Result<(), Outcome>,
    ) -> Staged<Box<Self>> {
        loop {
            let until;
            (self, until) = self.on_files(move |pass| pass.advance(last)).await?;
            let Some(until) = until else { return Ok(self) };
            let wait = until.saturating_duration_since(Instant::now());
            tracing::debug!(?wait, "waits: more memory is in use than the lower limits allow");
            tokio::time::sleep_until(until.into()).await;
        }
    }

    /// Runs a stage on the kernel's files once the pod's namespace has a slot.
    pub(super) async fn on_files<T: Send + 'static>(
        self: Box<Self>,
        work: impl FnOnce(&mut Self) -> Result<T, Outcome> + Send + 'static,
    ) -> Staged<(Box<Self>, T)> {
        let node = Arc::clone(&self.node);
        let (namespace, class) = self.user();
        let _slot = node.concurrency.kernel.wait(&namespace, class).await;
        match self.blocking(work).await {
            (pass, Ok(done)) => Ok((pass, done)),
            (pass, Err(outcome)) => Err(pass.stop(outcome)),
        }
    }

    pub(super) async fn blocking<T: Send + 'static>(
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
        last: fn(&mut Self, &mut Observed) -> Result<(), Outcome>,
    ) -> Result<Option<Instant>, Outcome> {
        let mut observed = match self.observed.take() {
            Some(observed) => observed,
            None => self.observe()?,
        };
        let until = self.make_room(&mut observed)?;
        if until.is_none() {
            // Last before the write, on the same thread. The guard raises the least limit before it writes the file, so the plan has every
            // limit that the guard has written by now.
            if !self.is_current(&observed) {
                return Err(overtaken());
            }
            last(self, &mut observed)?;
        }
        self.observed = Some(observed);
        Ok(until)
    }

    /// Checks the steps that follow the patch, and carries out none.
    pub(super) fn check_plan(&mut self, observed: &mut Observed) -> Result<(), Outcome> {
        Executor::new(&self.node, &self.handles).check_all(&observed.plan)
    }

    /// The steps towards the targets, and none carried out. Those for the runtime's `stored` specs come last.
    pub(in crate::actuate) fn planned_steps(
        &mut self,
        stored: &BTreeMap<ContainerName, CriResources>,
    ) -> Result<Vec<Step>, Outcome> {
        let mut observed = self.observe()?;
        self.check_plan(&mut observed)?;
        // A pass would refuse at once to lower a limit without room.
        let checked = observed.checks.advance(&self.handles, false);
        checked.map_err(|error| error.ends(Outcome::Refused))?;
        let (specs, page) = (observed.wanted.specs.iter(), self.node.traits.page);
        let updates = specs.filter_map(|(name, wanted)| spec_step(name, stored.get(name)?, wanted, page));
        observed.plan.steps.extend(updates);
        Ok(observed.plan.steps)
    }

    /// Makes room for lower memory limits in one turn; returns the time of the next turn, if the pass needs one.
    fn make_room(&mut self, observed: &mut Observed) -> Result<Option<Instant>, Outcome> {
        let (since, turns) = observed.making_room.get_or_insert_with(|| (Instant::now(), 0));
        *turns += 1;
        let next = observed.checks.advance(&self.handles, true);
        // Also a turn that fails has read the memory in use.
        self.job.seen.extend(observed.checks.seen());
        if !observed.checks.is_empty() && self.done.api.accepted().is_none() {
            self.done.record.stages.prepare = since.elapsed();
        }
        self.done.shrink.refused = matches!(next, Err(StepError::NoRoom(_)));
        next.map_err(|error| error.ends(Outcome::Refused))
    }

    /// Carries out the plan, and keeps what the watch of lower limits and an undo need.
    pub(super) fn write(&mut self, observed: &mut Observed) -> Result<(), Outcome> {
        if !observed.least_limits.is_empty() {
            // The guard writes files alone, and systemd writes all of a unit's properties with the first one that a step changes.
            self.done.systemd_failed |= raise_unit(&self.node, &self.handles, &self.live().id);
            // systemd may take its time, and the guard may raise a limit meanwhile.
            if !self.is_current(observed) {
                return Err(overtaken());
            }
        }
        let mut lowered = if observed.may_be_outdated() {
            self.plan_again(observed)?
        } else {
            Vec::new()
        };
        let handles = &self.handles;
        // Before the first step: the watch compares later readings with these, and a burst is judged by the throttling before it.
        lowered.extend(observed.before_lowering(handles, |_, _| true)?);
        let touched = observed.touched(&lowered, &self.job.watched);
        let bursts = new_bursts(&observed.plan, handles)?;
        let start = Instant::now();
        let mut executor = Executor::new(&self.node, handles);
        // With any property, systemd resets memory.oom.group, so that a kill would not end the whole container. Where the kubelet
        // resizes, the runtime sets the properties and then the file.
        executor.aligns_scopes = self.job.aligns_scopes && self.grant.is_none();
        let ended = executor.run(&observed.plan);
        let (took, verified) = (start.elapsed(), self.job.asked.elapsed());
        self.done.systemd_failed |= executor.systemd_failed;
        let is_mismatch = executor.mismatch;
        self.least_limits.clone_from(&observed.least_limits);
        let raised_again = self.raise_again();
        // After the write, and not part of its time: this makes room for the kubelet's next try.
        if self.grant.as_ref().is_some_and(|grant| grant.reclaim)
            && let Err(error) = reclaim_below_limits(&observed.wanted.tree, handles)
        {
            tracing::warn!(%error, "cannot reclaim the memory that keeps the kubelet from lowering a limit");
        }
        // Also after a failed step: the end undoes what is written, and leaves out of the report what does not hold.
        self.done.shrink = ShrinkReport {
            lowered,
            touched,
            refused: executor.not_shrinkable,
            freezes: executor.freezes,
            ..ShrinkReport::default()
        };
        self.done.bursts = bursts;
        self.done.record.steps.extend(executor.records);
        self.done.record.steps.extend(raised_again);
        self.written = executor.written;
        self.done.record.stages.verified = verified;
        if !observed.plan.steps.is_empty() {
            self.done.record.stages.write = took;
        }
        self.end_writes(ended, is_mismatch)
    }

    /// How the writes end the pass. Where a file holds another value after a patch, the kubelet is resizing the pod: the patch and the
    /// written values stay, and the next pass, which has no patch to take back, writes the rest.
    fn end_writes(&mut self, ended: Result<(), Outcome>, is_mismatch: bool) -> Result<(), Outcome> {
        match ended {
            Err(Outcome::RolledBack(why)) if is_mismatch && self.patched.take().is_some() => {
                Err(Outcome::Interrupted(why))
            }
            ended => ended,
        }
    }

    /// Raises the limits again that the guard has raised since the pass observed: where the guard wrote between the latest check of the
    /// least limits and the pass's own write, that write came over the guard's. The guard raises the least limit before it writes, so
    /// the limit is found here, whichever write came first. Returns the steps.
    pub(in crate::actuate) fn raise_again(&self) -> Vec<StepRecord> {
        let mut steps = Vec::new();
        let bound = &self.targets.bound;
        let mut known = self.least_limits.clone();
        loop {
            let least_limits = self.node.least_limits.of(self.uid());
            let mut higher = least_limits.clone();
            higher.retain(|name, to| known.get(name) < Some(&*to));
            if higher.is_empty() {
                return steps;
            }
            let growable = Growable {
                pod: Arc::clone(bound.object()),
                targets: self.targets.amounts.clone(),
            };
            for (name, to) in higher {
                let raised = grow_memory(&self.node, &self.handles, &growable, &name, to);
                let has_ended = matches!(raised.outcome, Outcome::Interrupted(_));
                if !raised.outcome.holds() && !has_ended {
                    let (pod, outcome) = (&bound.live().id, &raised.outcome);
                    tracing::warn!(%pod, ?outcome, "cannot raise a limit again that the guard had raised; the next pass tries again");
                }
                let raised = raised.steps.into_iter();
                steps.extend(raised.map(|step| StepRecord { rollback: true, ..step }));
            }
            // The guard may have raised a limit once more before this write.
            known = least_limits;
        }
    }

    /// Reads the files again, and plans from what they hold now. Returns the limits of the earlier plan that are lower already: a
    /// kubelet that has the new spec may have written them first; the pass has them watched all the same.
    fn plan_again(&mut self, observed: &mut Observed) -> Result<Vec<Lowering>, Outcome> {
        let tree = self.handles.read()?;
        self.done.stale |= tree.containers.len() < self.live().containers.len();
        let holds = |target: &Target, to: Bytes| {
            tree.get(target).and_then(Settings::memory_limit) == Some(MemoryLimit::Bytes(to.get()))
        };
        // The earlier plan has the limits as they were; the new one does not lower what is lower already.
        let lowered = observed.before_lowering(&self.handles, holds)?;
        observed.plan = Plan::of_files(&tree, &observed.wanted.tree, &self.node.traits)?;
        Ok(lowered)
    }
}

/// The containers that get a burst and have none, and for how long the kernel has throttled each.
fn new_bursts(plan: &Plan, handles: &PodHandles) -> Result<Vec<(ContainerName, Duration)>, Outcome> {
    let is_new = |(from, to): (Setting, Setting)| from.burst_us() == Some(0) && to.burst_us() > Some(0);
    let with_burst = plan
        .steps
        .iter()
        .filter(|step| step.change.files().into_iter().any(is_new));
    let containers = with_burst.filter_map(|step| Some((step.target.container()?, handles.get(&step.target)?)));
    let read = containers.map(|(name, cgroup)| Ok((ContainerName::from(name), cgroup.periods()?.throttled_for)));
    read.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::actuate::node::Node;
    use crate::model::objects::Pod;
    use crate::model::{Cause, LivePod};
    use crate::resize::{Act, Facts, Resize};

    #[test]
    fn only_a_first_burst_notes_the_throttling() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("pod/app");
        fs::create_dir_all(&directory).unwrap();
        fs::write(
            directory.join("cpu.stat"),
            "nr_periods 5\nnr_throttled 2\nthrottled_usec 700\n",
        )
        .unwrap();
        let live = LivePod::on_files(["app"]);
        let handles = PodHandles::open(&Node::on_files(root.path()).hierarchy, &live).unwrap();
        let app = || Target::Container("app".into());
        for (target, from, to, is_new) in [
            (app(), 0, 100, true),
            (app(), 50, 100, false),
            (app(), 100, 0, false),
            (Target::Pod, 0, 100, false),
        ] {
            let [from, to] = [from, to].map(Setting::CpuMaxBurst);
            let steps = vec![Step::of_file(target, from, to)];
            let expected = is_new.then(|| (ContainerName::from("app"), Duration::from_micros(700)));
            let bursts = new_bursts(&Plan { steps }, &handles);
            assert_eq!(bursts, Ok(Vec::from_iter(expected)), "{from} {to}");
        }
    }

    #[test]
    fn a_limit_that_others_lowered_is_watched() {
        let root = tempfile::tempdir().unwrap();
        let set = |directory: &str, mebibytes: u64| {
            let file = root.path().join(directory).join("memory.max");
            fs::write(file, format!("{}\n", mebibytes << 20)).unwrap();
        };
        let mut pass = Pass::on_plain_files(root.path(), Node::on_files(root.path()));
        for directory in ["pod", "pod/app"] {
            set(directory, 200);
        }
        let mut observed = pass.observe().unwrap();
        set("pod/app", 160);
        let lowered = pass.plan_again(&mut observed).unwrap();
        let lowered: Vec<_> = lowered.into_iter().map(|one| (one.target, one.from, one.to)).collect();
        let [from, to] = [200, 160].map(|mebibytes| Bytes::new(mebibytes << 20));
        let app = Target::Container("app".into());
        assert_eq!(lowered, [(app, MemoryLimit::Bytes(from.get()), to)]);
        let steps: Vec<_> = observed.plan.steps.iter().map(|step| &step.target).collect();
        assert_eq!((steps, pass.done.stale), (vec![&Target::Pod], false));
        fs::remove_dir_all(root.path().join("pod/app")).unwrap();
        pass.plan_again(&mut observed).unwrap();
        assert!(pass.done.stale, "a container has ended");
    }

    #[test]
    fn a_patch_outlasts_a_race_with_the_kubelet() {
        let root = tempfile::tempdir().unwrap();
        let mut pass = Pass::on_plain_files(root.path(), Node::on_files(root.path()));
        let object = Pod::clone(pass.job.targets.bound.object());
        let mut targets = object.requirements();
        targets.containers[0].resources.limits.memory = Some(Bytes::new(192 << 20));
        let act = Resize::default().next(&object, &targets, &Cause::Sweep, &Facts::default());
        let Act::Patch(patch) = act else { panic!("no patch") };
        let failed = || Err(Outcome::RolledBack("7000 is read back".to_owned()));
        pass.patched = Some((Box::new(object), Box::new(patch)));
        assert_eq!(pass.end_writes(failed(), false), failed());
        assert!(pass.patched.is_some());
        let interrupted = Outcome::Interrupted("7000 is read back".to_owned());
        assert_eq!(pass.end_writes(failed(), true), Err(interrupted));
        assert!(pass.patched.is_none(), "the end would take it back");
        assert_eq!(pass.end_writes(failed(), true), failed(), "no patch was sent");
    }

    #[test]
    fn a_growth_while_systemd_answers_ends_the_pass() {
        let root = tempfile::tempdir().unwrap();
        let mut pass = Pass::on_plain_files(root.path(), Node::on_files(root.path()));
        let file = root.path().join("pod/app/memory.max");
        let grow = |pass: &Pass, mebibytes: u64| {
            pass.node
                .least_limits
                .raise(&"u".into(), "app", Bytes::new(mebibytes << 20));
        };
        for path in [&file, &root.path().join("pod/memory.max")] {
            fs::write(path, format!("{}\n", 128 << 20)).unwrap();
        }
        grow(&pass, 192);
        let mut observed = pass.observe().unwrap();
        grow(&pass, 256);
        assert_eq!(pass.write(&mut observed), Err(overtaken()));
        assert_eq!(fs::read_to_string(file).unwrap().trim(), (128 << 20).to_string());
    }

    #[test]
    fn a_growth_beside_the_write_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let files = ["pod", "pod/app"].map(|directory| root.path().join(directory).join("memory.max"));
        let set = |mebibytes: u64| {
            for file in &files {
                fs::write(file, format!("{}\n", mebibytes << 20)).unwrap();
            }
        };
        let mut pass = Pass::on_plain_files(root.path(), Node::on_files(root.path()));
        set(128);
        let mut observed = pass.observe().unwrap();
        // The guard comes after the pass has compared the least limits.
        pass.node.least_limits.raise(&"u".into(), "app", Bytes::new(192 << 20));
        set(192);
        pass.write(&mut observed).unwrap();
        let held = files.map(|file| fs::read_to_string(file).unwrap().trim().parse::<u64>().unwrap() >> 20);
        assert_eq!(held, [192; 2]);
        let written = pass.done.record.steps.iter().map(|step| step.rollback);
        assert_eq!(written.collect::<Vec<_>>(), [false, false, true, true]);
    }
}
