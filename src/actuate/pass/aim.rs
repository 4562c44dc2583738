//! What a pass writes towards, and what it does until it knows that: it patches the spec, or compares the cgroups with it.
//!
//! [`Act`] says what to do next about the pod's resize, before the pass and after each answer of the API server.

use std::time::Instant;

use super::{Pass, Staged, overtaken};
use crate::failpoint::failpoint;
use crate::resize::{Act, Grant, Patch, ResizeError};

impl Pass {
    /// Carries out what comes before a write, such as a patch of the spec, until the values to write are known.
    pub(super) async fn find_aim(mut self: Box<Self>) -> Staged<Box<Self>> {
        let mut act = std::mem::take(&mut self.job.resize);
        loop {
            (self, act) = match act {
                Act::Direct => {
                    let decided = &self.job.targets;
                    self.targets.amounts.clone_from(&decided.amounts);
                    self.targets.lift_undeclared = decided.lift_undeclared;
                    self.targets.kubelet_unasked = true;
                    self.held_before = self.job.held_before;
                    return Ok(self);
                }
                Act::Write(grant) if grant.follows.is_some() => self.compare_and_read(grant).await?,
                Act::Write(grant) => {
                    self.aim_at(&grant);
                    self.grant = Some(grant);
                    return Ok(self);
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

    /// From here on the pass writes what the kubelet has granted. Unless it has observed for the same amounts, it observes again.
    pub(in crate::actuate) fn aim_at(&mut self, grant: &Grant) {
        let (decided, targets) = (&self.job.targets, &mut self.targets);
        targets.amounts.clone_from(&grant.targets);
        // The API server cannot remove a limit from a spec.
        targets.lift_undeclared = decided.lift_undeclared && grant.ahead;
        // The kubelet restarts containers with the values of the spec.
        targets.kubelet_unasked = decided.kubelet_unasked || grant.is_written_ahead();
        self.held_before = self.job.held_before && grant.settled;
        self.done.api.retry_after = grant.retry_after;
    }

    /// Makes room for the patched values, as for a write, and patches the spec. Returns what the pass does after the answer.
    async fn make_room_and_patch(mut self: Box<Self>, patch: Patch) -> Staged<(Box<Self>, Act)> {
        if !patch.changes.is_empty() {
            // Until the API server is called: also a pass that ends before that says what became of the request.
            self.done.api.answer = Some(Err(ResizeError::NotSent));
        }
        // As if they were granted, and the kubelet not done: a file that differs from new targets is no drift.
        let targets = patch.request.targets.clone();
        self.aim_at(&Grant {
            targets,
            ..Grant::default()
        });
        // Room before the patch: the kubelet writes the patched limits soon after it, and checks less.
        self = self.run_kernel_stages(Self::check_plan).await?;
        failpoint("pass.room_made");
        // The observation has lifted the amounts where the guard has raised a limit: the spec would get the lower one.
        if self.targets.amounts != patch.request.targets {
            return Err(self.stop(overtaken()));
        }
        let answer = self.patch(&patch).await;
        let away = self.job.resizer.as_ref().and_then(|resizer| resizer.away());
        let next = patch.answered(answer.as_ref(), away, &mut self.done.api);
        let is_fast = matches!(&next, Act::Write(grant) if grant.withheld.is_none());
        match answer {
            // Kept before the write: the cgroups may be unable to hold the values after all, and the end then takes the patch back.
            Ok(pod) if is_fast => self.patched = Some((Box::new(pod), Box::new(patch))),
            // The pass does something else than what it has observed for.
            _ => self.observed = None,
        }
        Ok((self, next))
    }

    /// Observes the cgroups, and reads the pod if they differ from its object, or get back what the object has. The guard's limits do not
    /// wait for that. Returns what the pass does after the answer.
    async fn compare_and_read(mut self: Box<Self>, grant: Grant) -> Staged<(Box<Self>, Act)> {
        // Before the observation, which counts flips and takes over the cgroups' identities.
        let before = (self.done.foreign.clone(), self.job.cgroups.clone());
        self.aim_at(&grant);
        let mut observed;
        (self, observed) = self.on_files(Self::observe).await?;
        let may_end_return = self.job.targets.lift_undeclared && grant.withheld.is_none();
        let is_as_known = observed.plan.steps.is_empty() && !may_end_return;
        if is_as_known || !observed.least_limits.is_empty() {
            // The pass uses what it has observed; with steps it reads the files again before it writes.
            observed.making_room = Some((Instant::now(), u32::from(!observed.plan.steps.is_empty())));
            self.observed = Some(observed);
            return Ok((self, Act::Write(Grant { follows: None, ..grant })));
        }
        // It observes again after the answer. What differs from a late object is no drift.
        self.done.flipped.clear();
        (self.done.foreign, self.job.cgroups) = before;
        let read = self.read_soon().await;
        let next = grant.was_read(read.as_ref(), &mut self.done.api);
        Ok((self, next))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::actuate::node::Node;
    use crate::model::{PodAmounts, Withheld};

    #[test]
    fn a_grant_bounds_what_its_pass_does() {
        let later = Withheld::SpecLater(String::new());
        for (settled, ahead, withheld, expected) in [
            (false, false, None, [false, false, false]),
            (true, false, None, [false, false, true]),
            (true, true, None, [true, false, true]),
            (true, true, Some(later), [true, true, true]),
        ] {
            let root = tempfile::tempdir().unwrap();
            let mut pass = Pass::on_plain_files(root.path(), Node::on_files(root.path()));
            (pass.job.targets.lift_undeclared, pass.job.held_before) = (true, true);
            pass.aim_at(&Grant {
                settled,
                ahead,
                withheld,
                ..Grant::default()
            });
            let targets = &pass.targets;
            assert_eq!(targets.amounts, PodAmounts::default(), "what is granted");
            let aim = [targets.lift_undeclared, targets.kubelet_unasked, pass.held_before];
            assert_eq!(aim, expected, "{settled} {ahead}");
        }
    }

    #[tokio::test]
    async fn what_differs_from_a_late_object_is_no_drift() {
        let root = tempfile::tempdir().unwrap();
        let mut pass = Pass::on_plain_files(root.path(), Node::on_files(root.path()));
        for file in ["pod/memory.max", "pod/app/memory.max"] {
            fs::write(root.path().join(file), "134217728\n").unwrap();
        }
        pass.job.held_before = true;
        let (settled, targets) = (true, pass.job.targets.amounts.clone());
        for (follows, is_drift) in [(Some(targets.clone()), false), (None, true)] {
            pass.job.resize = Act::Write(Grant {
                targets: targets.clone(),
                settled,
                follows,
                ..Grant::default()
            });
            pass = pass.find_aim().await.unwrap();
            assert!(pass.observed.is_none(), "it observes again");
            if is_drift {
                drop(pass.observe());
            }
            let found = (!pass.done.flipped.is_empty(), !pass.done.foreign.is_empty());
            assert_eq!(found, (is_drift, is_drift));
        }
    }
}
