//! The end of a pass: undoes what a failed pass did, and completes the result.

use super::Pass;
use crate::actuate::execute::Executor;
use crate::actuate::job::JobDone;
use crate::actuate::runtime_stage;
use crate::failpoint::failpoint;
use crate::model::Outcome;

impl Pass {
    /// Undoes the actions of a failed pass: files and units, then the runtime's stored specs, then the patch. Keeps the written
    /// values where a cgroup has ended, or where only the verification failed: they are in order.
    ///
    /// The stored specs come after the files, although the pass updates the runtime after it writes them: the runtime writes a
    /// lower limit without a check of the memory in use, which would kill where the file could not be put back. The patch comes last:
    /// the API server may take seconds, for which the files do not wait.
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
        let mut executor = Executor::new(&self.node, &self.handles);
        executor.written = std::mem::take(&mut self.written);
        if let Err(failed) = executor.undo() {
            self.done.record.outcome.not_undone(&failed);
        }
        self.done.systemd_failed |= executor.systemd_failed;
        let raised_again = self.raise_again();
        self.done.record.steps.extend(executor.records);
        self.done.record.steps.extend(raised_again);
        self.done.shrink.freezes.extend(executor.freezes);
    }

    /// Undoes what has to be undone, and completes the result. Closes the cgroups where one of them is gone.
    pub(super) async fn end(self: Box<Self>) -> JobDone {
        let mut pass = self.take_back().await;
        let done = &mut pass.done;
        // By how the writes ended: a denial below changes the outcome, and not what the files hold.
        if !done.record.outcome.holds() {
            // The written steps were undone, or hold although the next pass plans the rest anew.
            done.shrink.retain_written(&done.record.steps);
        }
        done.quotas = pass.targets.scope.quotas;
        // What a container has used that ended meanwhile says nothing about the next one.
        if !done.stale && pass.handles.all_exist() {
            done.shrink.seen = pass.job.seen;
        }
        done.stale |= matches!(done.record.outcome, Outcome::Interrupted(_));
        done.handles = Some(pass.handles).filter(|handles| !done.stale && !handles.is_empty());
        if let Some(why) = done.api.denied() {
            done.record.outcome.deny(why);
        }
        let withheld = pass.grant.and_then(|grant| grant.withheld);
        if let (Outcome::Applied | Outcome::Unchanged, Some(withheld)) = (&done.record.outcome, withheld) {
            done.record.outcome = Outcome::Withheld(withheld);
        }
        pass.done
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::actuate::node::Node;
    use crate::model::Target;
    use crate::plan::shrink::UsageHistory;

    #[tokio::test]
    async fn use_seen_in_an_ended_container_is_forgotten() {
        for (has_ended, is_interrupted) in [(false, false), (false, true), (true, false), (true, true)] {
            let root = tempfile::tempdir().unwrap();
            let mut pass = Pass::on_plain_files(root.path(), Node::on_files(root.path()));
            pass.observe().unwrap();
            pass.job.seen = [(Target::Pod, UsageHistory::default())].into();
            if has_ended {
                fs::remove_dir_all(root.path().join("pod/app")).unwrap();
            }
            // The guard interrupts a pass as well, and memory that grows counts most.
            let outcome = if is_interrupted {
                Outcome::Interrupted("the guard raised a limit meanwhile".to_owned())
            } else {
                Outcome::Unchanged
            };
            let done = pass.stop(outcome).end().await;
            assert_eq!(done.shrink.seen.is_empty(), has_ended, "{}", done.record.outcome.word());
        }
    }
}
