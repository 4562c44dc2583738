//! A pass that runs, act by act: what the API server makes of its requests, what the kernel gets, and what the pass returns.

use super::*;
use crate::plan::lift_kept;
use crate::resize::{Grant, Patch, Report, ResizeError};

/// A node that has room for all.
pub(super) const ROOM: Room = Room {
    capacity: Capacity {
        amounts: ResourceList {
            cpu: None,
            memory: None,
        },
        from: Capacity::MACHINE,
    },
    others: OtherPods {
        take: ResourceList {
            cpu: None,
            memory: None,
        },
        pods: 0,
    },
};

/// What the API server makes of the request of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The pass stops before: a limit was raised meanwhile, or there is no room under a lower one.
    NotSent,
    /// The spec cannot be read before the patch.
    NotRead,
    Accepts,
    Denies,
    /// An error that says nothing, and none at all (`silent`).
    Fails {
        carries_out: bool,
        silent: bool,
    },
}

/// What the API server makes of the request that takes a patch back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Undo {
    pub(super) carries_out: bool,
    pub(super) silent: bool,
}

/// A pass that runs.
#[derive(Debug, Clone)]
pub(super) struct RunningPass {
    pub(super) number: u64,
    pub(super) of: PodId,
    pub(super) cause: Cause,
    pub(super) resize: Act,
    /// The pod as it was known when the pass began, and the least limits of then.
    pub(super) viewed: Arc<Pod>,
    pub(super) least: Vec<(String, Bytes)>,
    pub(super) api: Report,
    /// The limits that the pass keeps although lower ones are desired.
    pub(super) holds: Holds,
    /// What the pass comes to, once it needs nothing more of the API server.
    pub(super) outcome: Option<Outcome>,
    /// The amounts that the cgroups get.
    pub(super) writes: Option<PodAmounts>,
    /// What the pass writes if the spec is as it knows it.
    reads: Option<Grant>,
    /// Whether the pod is on the way back to its spec.
    returns: bool,
}

impl RunningPass {
    pub(super) fn new(number: u64, job: Job, viewed: Arc<Pod>, least: Vec<(String, Bytes)>) -> Self {
        let mut pass = Self {
            number,
            of: job.targets.bound.live().id.clone(),
            cause: job.cause,
            resize: job.resize,
            viewed,
            least,
            api: Report::default(),
            holds: job.targets.holds,
            outcome: None,
            writes: None,
            reads: None,
            returns: job.targets.lift_undeclared,
        };
        if pass.resize != Act::Direct {
            pass.turn_to(pass.resize.clone());
        }
        pass
    }

    /// From here on the pass does this, as [`crate::actuate`] does.
    fn turn_to(&mut self, act: Act) {
        match act {
            Act::Patch(_) => {}
            Act::Write(grant) => {
                self.reads = grant.follows.is_some().then(|| grant.clone());
                self.api.retry_after = grant.retry_after;
                self.writes = Some(grant.targets);
                self.outcome = Some(grant.withheld.map_or(Outcome::Applied, Outcome::Withheld));
            }
            Act::End {
                outcome,
                retry_after,
                no_room,
            } => {
                (self.api.retry_after, self.api.no_room) = (retry_after, no_room);
                (self.writes, self.outcome) = (None, Some(outcome));
            }
            Act::Direct => panic!("the kubelet resizes this pod"),
        }
    }

    /// The result of the pass with this outcome, and without an answer of the API server.
    pub(super) fn done(&self, outcome: Outcome) -> JobDone {
        JobDone::new(ChangeRecord::new(self.of.clone(), self.cause.clone(), outcome))
    }

    /// Whether the pass reads the spec before it writes, and what else than its cgroups may be a reason.
    pub(super) const fn reads(&self) -> (bool, bool) {
        (self.reads.is_some(), self.returns)
    }

    /// Whether the pass has patched the spec, and the cgroups are to get the same.
    pub(super) const fn has_patched(&self) -> bool {
        matches!(
            (&self.resize, &self.outcome, &self.api.answer),
            (Act::Patch(_), Some(Outcome::Applied), Some(Ok(_)))
        )
    }
}

impl World {
    pub(super) fn least_limits(&self) -> Vec<(String, Bytes)> {
        let limits = self.state.desired.memory_limits();
        limits.map(|(name, limit)| (name.to_owned(), limit)).collect()
    }

    /// The patch of the running pass, if the API server has not answered it.
    pub(super) fn asks(&self) -> Option<&Patch> {
        match self.running.as_ref() {
            Some(RunningPass {
                resize: Act::Patch(patch),
                outcome: None,
                ..
            }) => Some(patch),
            _ => None,
        }
    }

    /// The API server answers the running pass, as [`crate::actuate`] takes it.
    pub(super) fn answer(&mut self, answer: Answer) {
        let Some(patch) = self.asks().cloned() else {
            return;
        };
        let mut pass = self.running.take().unwrap();
        let is_patch = !patch.changes.is_empty();
        let is_stale = !self.server.requirements().same(&patch.from);
        // Without a read, the patch names the version that the watch has shown, and what fails may be a conflict.
        let is_read = patch.reads_first || !pass.viewed.requirements().same(&patch.from);
        let answer = match answer {
            Answer::NotRead if !is_read => Answer::Fails {
                carries_out: false,
                silent: true,
            },
            answer => answer,
        };
        let is_conflict = is_stale && (is_read || !matches!(answer, Answer::Fails { .. }));
        let is_sent = is_patch && !is_conflict && !matches!(answer, Answer::NotSent | Answer::NotRead);
        pass.api.answer = is_patch.then_some(Err(ResizeError::NotSent));
        let error = match answer {
            Answer::NotSent => {
                pass.outcome = Some(match self.least_limits() == pass.least {
                    true => Outcome::Refused("no room".to_owned()),
                    false => Outcome::Interrupted("overtaken".to_owned()),
                });
                self.running = Some(pass);
                return;
            }
            Answer::NotRead => Some(ResizeError::Away("away".to_owned())),
            _ if is_conflict => Some(ResizeError::Stale),
            Answer::Accepts => None,
            Answer::Denies => Some(ResizeError::Denied("a quota".to_owned())),
            Answer::Fails { silent: true, .. } => Some(ResizeError::Away("failed".to_owned())),
            Answer::Fails { .. } => Some(ResizeError::Refused {
                reason: "failed".to_owned(),
                retry_after: None,
            }),
        };
        if let Some(error) = error.as_ref().filter(|_| is_sent) {
            pass.api.answer = Some(Err(error.clone()));
        }
        let carries_out =
            is_sent && !is_stale && matches!(answer, Answer::Accepts | Answer::Fails { carries_out: true, .. });
        if carries_out {
            self.patch_server(&patch.changes);
        }
        match (&error, is_sent) {
            (None | Some(ResizeError::Denied(_)), _) => self.unanswered = None,
            (Some(_), true) if is_stale => {}
            (Some(_), true) => self.unanswered = Some(carries_out.then_some(self.server.metadata.generation)),
            (Some(_), false) => {}
        }
        let answered = error.as_ref().map_or(Ok(&self.server), Err);
        let next = patch.answered(answered, None, &mut pass.api);
        pass.turn_to(next);
        if let Some(why) = pass.api.denied() {
            pass.outcome = Some(Outcome::Refused(why.to_owned()));
        }
        self.running = Some(pass);
    }

    /// The kernel gets these amounts, and no less than the guard gave.
    pub(super) fn write(&mut self, amounts: PodAmounts) {
        self.kernel = self.kernel_with(amounts);
    }

    fn kernel_with(&self, amounts: PodAmounts) -> [u64; 2] {
        if amounts.is_empty() {
            // A pass for a burst alone.
            return self.kernel;
        }
        let amounts = self.state.desired.with_temporary(amounts);
        [0, 1].map(|number| limit_of(&amounts, number))
    }

    /// Whether the kernel gives a container more than its spec, what the kubelet is still to lower, what the guard gave, and what is
    /// kept for now.
    fn is_above_spec(&self) -> bool {
        let mut given = self.state.desired.with_temporary(self.server.requirements());
        lift_kept(&self.state.holds(self.now.wall), &mut given);
        let above = |number: usize| {
            let runs_with = self.server.status.container_statuses[number].resources.unwrap();
            let runs_with = runs_with.limits.memory.unwrap().get() / MIB;
            self.kernel[number] > limit_of(&given, number).max(runs_with)
        };
        (0..self.kernel.len()).any(above)
    }

    /// The API server shows the running pass the spec, if it reads that.
    pub(super) fn show_spec(&mut self) {
        let Some(mut pass) = self.running.take() else {
            return;
        };
        if let Some(grant) = pass.reads.take() {
            let differs = self.kernel_with(grant.targets.clone()) != self.kernel;
            let may_end_return = pass.returns && grant.withheld.is_none();
            if (differs || may_end_return) && self.state.desired.temporary.is_empty() {
                let away = ResizeError::Away("away".to_owned());
                let read = if self.away { Err(&away) } else { Ok(&self.server) };
                let next = grant.was_read(read, &mut pass.api);
                pass.turn_to(next);
            }
        }
        self.running = Some(pass);
    }

    /// The running pass ends. With an `undo`, it takes its patch back, and keeps the limits in `raised`.
    pub(super) fn end_running(&mut self, undo: Option<Undo>, raised: Option<(usize, u64)>) {
        self.show_spec();
        let Some(mut pass) = self.running.take() else {
            return;
        };
        assert_ne!(pass.resize, Act::Direct, "the kubelet resizes this pod");
        let is_current = self.least_limits() == pass.least && raised.is_none();
        if !is_current && (pass.writes.is_some() || undo.is_some()) {
            pass.outcome = Some(Outcome::Interrupted("overtaken".to_owned()));
        } else if undo.is_some() {
            pass.outcome = Some(Outcome::RolledBack("EBUSY".to_owned()));
        } else if let Some(amounts) = pass.writes.take() {
            self.write(amounts);
            self.above_spec |= pass.api.denied().is_some() && self.is_above_spec();
        }
        if let (Some(undo), Act::Patch(patch)) = (undo, &pass.resize) {
            let mut held = self.state.desired.with_temporary(patch.request.held.clone());
            if let Some((container, mib)) = raised {
                held.containers[container].resources.lift(Resource::Memory, mib * MIB);
            }
            self.take_back(&mut pass.api, patch, held, undo);
        }
        let outcome = pass.outcome.clone().unwrap_or(Outcome::Unchanged);
        self.denied |= pass.api.denied().is_some();
        let done = JobDone {
            api: pass.api.clone(),
            ..pass.done(outcome)
        };
        self.end_pass(pass.number, done);
    }

    pub(super) fn end_pass(&mut self, pass: u64, done: JobDone) {
        let (done, quiet) = (Box::new(done), SignedDuration::from_secs(600));
        self.apply(PodInput::OnNode(NodeEvent::PassEnded { pass, done, quiet }));
    }

    fn take_back(&mut self, api: &mut Report, patch: &Patch, held: PodAmounts, undo: Undo) {
        if let Some(field) = self.amid_pass.take() {
            self.edit(field);
        }
        let back = patch.taken_back(held);
        let changes = patch.undo(&self.server, &back).unwrap();
        if changes.is_empty() {
            return;
        }
        if undo.carries_out || !undo.silent {
            self.patch_server(&changes);
        }
        if undo.silent {
            self.unanswered = Some(undo.carries_out.then_some(self.server.metadata.generation));
            api.answer = Some(Err(ResizeError::NotTakenBack(back.targets)));
        } else {
            let generation = self.server.metadata.generation;
            api.answer = Some(Ok(Request { generation, ..back }));
        }
    }
}
