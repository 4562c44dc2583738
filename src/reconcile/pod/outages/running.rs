//! A pass that runs, act by act: what the API server makes of its requests, what the kernel gets, and what the pass returns.

use super::*;
use crate::actuate::ApiReport;
use crate::plan::lift_kept;
use crate::plan::resize::{self, Grant, ResizePatch};

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
    pub(super) id: PassId,
    pub(super) of: PodId,
    pub(super) cause: Cause,
    pub(super) resize: ResizeDecision,
    /// The pod as it was known when the pass began, and the least limits of then.
    pub(super) viewed: Arc<Pod>,
    pub(super) least: Vec<(String, Bytes)>,
    pub(super) api: ApiReport,
    /// What the pass comes to, once it needs nothing more of the API server.
    pub(super) outcome: Option<Outcome>,
    /// The amounts that the cgroups get.
    pub(super) writes: Option<Vec<NamedRequirements>>,
}

impl RunningPass {
    pub(super) fn new(id: PassId, job: Job, viewed: Arc<Pod>, least: Vec<(String, Bytes)>) -> Self {
        let mut pass = Self {
            id,
            of: job.targets.bound.live().id.clone(),
            cause: job.cause,
            resize: job.resize,
            viewed,
            least,
            api: ApiReport::default(),
            outcome: None,
            writes: None,
        };
        match pass.resize.clone() {
            ResizeDecision::Patch(_) => {}
            ResizeDecision::Write(grant) => pass.apply_grant(grant),
            ResizeDecision::Wait { why, retry_after } => {
                pass.api.retry_after = retry_after;
                pass.outcome = Some(Outcome::Withheld(why));
            }
            ResizeDecision::Refuse { why, no_room } => {
                pass.api.no_room = no_room;
                pass.outcome = Some(Outcome::Refused(why));
            }
            ResizeDecision::Direct => panic!("the kubelet resizes this pod"),
        }
        pass
    }

    fn apply_grant(&mut self, grant: Grant) {
        self.api.retry_after = grant.retry_after;
        self.writes = Some(grant.targets);
        self.outcome = Some(grant.withheld.map_or(Outcome::Applied, Outcome::Withheld));
    }

    /// Whether the pass has patched the spec, and the cgroups are to get the same.
    pub(super) const fn has_patched(&self) -> bool {
        matches!(
            (&self.resize, &self.outcome, &self.api.asked),
            (ResizeDecision::Patch(_), Some(Outcome::Applied), Some(_))
        )
    }
}

impl World {
    pub(super) fn least_limits(&self) -> Vec<(String, Bytes)> {
        let limits = self.state.desired.memory_limits();
        limits.map(|(name, limit)| (name.to_owned(), limit)).collect()
    }

    /// The patch of the running pass, if the API server has not answered it.
    pub(super) fn asks(&self) -> Option<&ResizePatch> {
        match self.running.as_ref() {
            Some(RunningPass {
                resize: ResizeDecision::Patch(patch),
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
        let is_stale = !resize::same(&self.server.requirements(), &patch.from);
        let is_sent = is_patch && !is_stale && !matches!(answer, Answer::NotSent | Answer::NotRead);
        pass.api.unanswered = is_patch.then_some(is_sent && answer != Answer::Denies);
        match answer {
            Answer::NotSent if self.least_limits() == pass.least => {
                pass.outcome = Some(Outcome::Refused("no room".to_owned()));
            }
            Answer::NotSent => pass.outcome = Some(Outcome::Interrupted("overtaken".to_owned())),
            Answer::NotRead => pass.apply_grant(patch.later("away", LATER)),
            _ if is_stale && patch.ahead => pass.apply_grant(patch.later("changed", LATER)),
            _ if is_stale => {
                pass.api.retry_after = Some(LATER);
                pass.outcome = Some(Outcome::Withheld(Withheld::Unanswered("changed".to_owned())));
            }
            Answer::Accepts => {
                self.patch_server(&patch.changes);
                self.unanswered = None;
                pass.api.asked = Some(patch.accepted(self.server.metadata.generation));
                pass.apply_grant(patch.grant(&self.server));
            }
            Answer::Denies => {
                self.unanswered = None;
                pass.api.denied = Some("a quota".to_owned());
                pass.outcome = Some(Outcome::Refused("a quota".to_owned()));
                pass.writes = Some(patch.held);
            }
            Answer::Fails { carries_out, silent } => {
                if carries_out {
                    self.patch_server(&patch.changes);
                }
                if is_patch {
                    self.unanswered = Some(carries_out.then_some(self.server.metadata.generation));
                }
                if silent || patch.ahead {
                    pass.apply_grant(patch.later("failed", LATER));
                } else {
                    pass.outcome = Some(Outcome::Refused("failed".to_owned()));
                }
            }
        }
        self.running = Some(pass);
    }

    /// The kernel gets these amounts, and no less than the guard gave.
    pub(super) fn write(&mut self, amounts: Vec<NamedRequirements>) {
        let amounts = self.state.desired.with_temporary(amounts);
        self.kernel = [0, 1].map(|number| limit_of(&amounts, number));
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

    /// The running pass ends. With an `undo`, it takes its patch back, and keeps the limits in `raised`.
    pub(super) fn end_running(&mut self, undo: Option<Undo>, raised: Option<(usize, u64)>) {
        let Some(mut pass) = self.running.take() else {
            return;
        };
        let is_current = self.least_limits() == pass.least && raised.is_none();
        if !is_current && (pass.writes.is_some() || undo.is_some()) {
            pass.outcome = Some(Outcome::Interrupted("overtaken".to_owned()));
        } else if undo.is_some() {
            pass.outcome = Some(Outcome::RolledBack("EBUSY".to_owned()));
        } else if let Some(amounts) = pass.writes.take() {
            self.write(amounts);
            self.above_spec |= pass.api.denied.is_some() && self.is_above_spec();
        }
        if let (Some(undo), ResizeDecision::Patch(patch)) = (undo, &pass.resize) {
            let mut held = self.state.desired.with_temporary(patch.held.clone());
            if let Some((container, mib)) = raised {
                held[container].resources.lift(Resource::Memory, mib * MIB);
            }
            self.take_back(&mut pass.api, patch, held, undo);
        }
        let outcome = pass.outcome.clone().unwrap_or(Outcome::Unchanged);
        self.denied |= pass.api.denied.is_some();
        let record = ChangeRecord::new(pass.of, pass.cause, outcome);
        let done = JobDone {
            api: pass.api,
            ..JobDone::new(record)
        };
        let quiet = SignedDuration::from_secs(600);
        self.apply(PodInput::PassEnded {
            pass: pass.id,
            done: Box::new(done),
            quiet,
        });
    }

    fn take_back(&mut self, api: &mut ApiReport, patch: &ResizePatch, held: Vec<NamedRequirements>, undo: Undo) {
        if let Some(field) = self.amid_pass.take() {
            self.edit(field);
        }
        let changes = patch.undo(&self.server, &held).unwrap();
        if changes.is_empty() {
            return;
        }
        if undo.carries_out || !undo.silent {
            self.patch_server(&changes);
        }
        if undo.silent {
            self.unanswered = Some(undo.carries_out.then_some(self.server.metadata.generation));
            (api.asked, api.taking_back) = (None, Some(patch.undone(&held)));
        } else {
            api.asked = Some(patch.taken_back(self.server.metadata.generation, held));
        }
    }
}
