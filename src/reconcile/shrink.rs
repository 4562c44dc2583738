//! One pod's shrinks: its turn, the watch after a pass, and shrinks that were undone. Pure.
//!
//! [`crate::plan::shrink`] has the rules: how to lower a limit, and how to recognise harm. A pass lowers the limit.
//! This state keeps the results.

use std::mem;

use jiff::{SignedDuration, Timestamp};

use crate::actuate::shrink::{Lowering, SeenBefore, ShrinkReport, Verdict};
use crate::model::objects::Pod;
use crate::model::{Bytes, LivePod, MemoryLimit, PodAmounts, Requirements, Resource, Target};
use crate::plan::lift_kept;
use crate::plan::shrink::{FailedShrinks, Holds, Progress, Trouble};

/// A turn without a result keeps other pods of the workload waiting for this long at most.
const LONGEST_TURN: SignedDuration = SignedDuration::from_mins(5);

/// The shrinks of one pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShrinkState {
    /// Memory use that earlier attempts have seen.
    seen: SeenBefore,
    /// Shrinks that were undone, or that wait for the pod's turn.
    backoffs: FailedShrinks,
    /// When an undone shrink is tried again.
    retry_at: Option<Timestamp>,
    /// The number of the pass whose lower limits are watched.
    watched: Option<u64>,
    /// When the pod's turn began. The turn ends with the watch.
    turn: Option<Timestamp>,
    /// The limits lowered last that were neither kept nor undone. They outlast the watch: a kill can end the watched
    /// container, and its report comes later.
    recent: Vec<Lowering>,
}

/// The end of a shrink: the limits stay, or they go up again for this reason.
pub(crate) type ShrinkEnd = Result<(), String>;

impl ShrinkState {
    pub(crate) const fn seen(&self) -> &SeenBefore {
        &self.seen
    }

    /// The limits that are kept although lower ones are desired.
    pub(crate) fn holds(&self, now: Timestamp) -> Holds {
        self.backoffs.holds(now)
    }

    /// Raises the limits of containers to those that are kept for now, and the pod's own limit to what is kept of its cgroup's, to the one
    /// that waits for its turn, and to those of its regular containers: the API server takes no higher ones. A limit whose change would
    /// restart a container stays. The `holds` include those of hooks.
    pub(crate) fn lift_kept(&self, pod: &Pod, holds: &Holds, targets: &mut PodAmounts) {
        lift_kept(holds, targets);
        let overhead = pod.spec.overhead.memory.map_or(0, Bytes::get);
        let of_cgroup = holds.get(&Target::Pod).and_then(|limit| limit.bounded());
        let of_cgroup = of_cgroup.map(|limit| limit.get().saturating_sub(overhead));
        let waits = self.backoffs.put_off_limit(&Target::Pod);
        let regular = pod.spec.containers.iter();
        let limits = regular.filter_map(|own| targets.container(&own.name)?.limits.memory);
        let largest = limits.max().filter(|_| !holds.is_empty()).map(Bytes::get);
        let restarts = pod.restarts_with_pod_limit(Resource::Memory, targets).is_some();
        if let Some(own) = targets.pod.as_mut().filter(|_| !restarts) {
            for least in [of_cgroup, waits, largest].into_iter().flatten() {
                own.lift(Resource::Memory, least);
            }
        }
    }

    /// When an undone shrink is tried again.
    pub(crate) const fn wakes_at(&self) -> Option<Timestamp> {
        self.retry_at
    }

    /// Notes other targets: memory limits of containers, and the pod's own, that come down wait for the pod's turn, and no others.
    pub(crate) fn put_off(&mut self, before: &PodAmounts, after: &PodAmounts, now: Timestamp) {
        let limit = |has: &Requirements| {
            let limit = has.limits.nonzero().memory;
            limit.map_or(MemoryLimit::Max, |limit| MemoryLimit::Bytes(limit.get()))
        };
        let lowered = after.iter().filter_map(|(of, after)| {
            let before = limit(before.get(of)?);
            (limit(after) < before).then(|| (Target::from(of), before))
        });
        let lowered: Vec<_> = lowered.collect();
        self.backoffs.put_off(&lowered, now);
    }

    /// Keeps no limit of which another client has changed the spec.
    pub(crate) fn take_edits(&mut self, edits: &PodAmounts) {
        for (of, resources) in edits.iter() {
            if resources.limits.memory.is_some() {
                self.backoffs.forget(&of.into());
            }
        }
    }

    /// Keeps no limit any more after a request of an operator. Returns what was kept.
    pub(crate) fn forget_all(&mut self) -> FailedShrinks {
        self.retry_at = None;
        mem::take(&mut self.backoffs)
    }

    /// Notes the shrinks of a pass; the lowered limits are watched from now on, together with those that are watched already.
    pub(crate) fn pass_ended(&mut self, report: ShrinkReport, number: u64) {
        self.seen.extend(report.seen);
        self.forget_seen(&report.touched);
        if report.touched.is_empty() {
            return;
        }
        if self.watched.take().is_none() {
            self.recent = Vec::new();
        }
        self.recent.retain(|known| !report.touched.contains(&known.target));
        self.recent.extend(report.lowered);
        self.watched = (!self.recent.is_empty()).then_some(number);
    }

    /// Forgets the memory use seen of these: they have another limit, or have freed memory on request.
    pub(crate) fn forget_seen(&mut self, targets: &[Target]) {
        self.seen.retain(|target, _| !targets.contains(target));
        if self.seen.is_empty() {
            // An empty map still holds half a kilobyte, in each pod.
            self.seen = SeenBefore::new();
        }
    }

    /// The watch that should run: the number of its pass, and the lowered limits.
    pub(crate) fn watch(&self) -> Option<(u64, Vec<Lowering>)> {
        self.watched.map(|number| (number, self.recent.clone()))
    }

    /// Notes the end of a watch. Ignores a watch that a later one has replaced.
    pub(crate) fn watch_ended(&mut self, number: u64, verdict: Verdict, now: Timestamp) -> Option<ShrinkEnd> {
        self.watched.take_if(|watched| *watched == number)?;
        self.turn = None;
        match verdict {
            Verdict::Gone => None,
            Verdict::Kept => {
                for lowering in mem::take(&mut self.recent) {
                    self.backoffs
                        .forgive(&lowering.target, MemoryLimit::Bytes(lowering.to.get()));
                }
                Some(Ok(()))
            }
            Verdict::Trouble(target, trouble) => self.undo(&target, trouble, now),
        }
    }

    /// Notes a kill in this cgroup; `None` where no limit was lowered lately.
    pub(crate) fn killed(&mut self, target: &Target, now: Timestamp) -> Option<ShrinkEnd> {
        let ended = self.undo(target, Trouble::Killed(1), now)?;
        self.watched = None;
        Some(ended)
    }

    /// Undoes all limits that came down together.
    fn undo(&mut self, target: &Target, trouble: Trouble, now: Timestamp) -> Option<ShrinkEnd> {
        if self.recent.is_empty() {
            return None;
        }
        self.turn = None;
        let why = format!("{target}: {trouble}");
        for lowering in mem::take(&mut self.recent) {
            let until = self.backoffs.note(&lowering.target, lowering.from, &why, now);
            self.retry_at = Some(self.retry_at.map_or(until, |at| at.min(until)));
        }
        Some(Err(why))
    }

    /// It is the pod's turn.
    pub(crate) fn begin_turn(&mut self, now: Timestamp) {
        self.backoffs.end_waiting();
        self.turn = Some(now);
    }

    /// Ends the turn after a pass that lowered nothing that is watched.
    pub(crate) fn end_turn_unless_watched(&mut self) {
        self.turn.take_if(|_| self.watched.is_none());
    }

    /// The progress of shrinks; `None` where no limit is being lowered.
    pub(crate) fn progress(&self, now: Timestamp) -> Option<Progress> {
        let has_turn = self.turn.is_some_and(|since| now.duration_since(since) < LONGEST_TURN);
        if self.backoffs.next(now).is_some() || (has_turn && self.backoffs.has_failed()) {
            Some(Progress::Undone)
        } else if self.backoffs.waits() {
            Some(Progress::Waits)
        } else {
            (has_turn || self.watched.is_some()).then_some(Progress::Tried)
        }
    }

    /// Why a lower limit is not in force, if one was undone.
    pub(crate) fn detail(&self, now: Timestamp) -> Option<String> {
        let failed = self.backoffs.next(now)?;
        Some(format!(
            "a lower memory limit was undone (attempt {}) and is tried again at {}: {}",
            failed.times, failed.until, failed.why
        ))
    }

    /// When a lower limit is tried again, as a sentence.
    pub(crate) fn next_step(&self, now: Timestamp) -> Option<String> {
        if let Some(failed) = self.backoffs.next(now) {
            let (target, until) = (&failed.target, failed.until);
            return Some(format!("The lower limit of {target} is tried again at {until:.0}."));
        }
        self.backoffs.waits().then(|| {
            "The lower memory limit is tried once it is this pod's turn: a few pods of a workload at a time, and none while a \
             lower limit of one of them is undone."
                .to_owned()
        })
    }

    /// Whether it is time to try an undone shrink again; true once. The pod's turn begins, unless it waits for one.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> bool {
        let due = self.retry_at.take_if(|at| *at <= now).is_some();
        if due {
            self.retry_at = self.backoffs.next(now).map(|backoff| backoff.until);
            if !self.backoffs.waits() {
                self.begin_turn(now);
            }
        }
        due
    }

    /// Every date that is compared with the wall clock.
    pub(crate) fn dates(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.backoffs.dates().chain(&mut self.retry_at).chain(&mut self.turn)
    }

    /// What outlasts the agent.
    pub(crate) fn saved(&self) -> FailedShrinks {
        self.backoffs.clone()
    }

    /// Takes the undone shrinks of an earlier agent, or those before an override.
    pub(crate) fn restore(&mut self, backoffs: FailedShrinks, now: Timestamp) {
        self.retry_at = backoffs.next(now).map(|backoff| backoff.until);
        self.backoffs = backoffs;
    }

    /// Forgets the memory use seen when containers have ended or started; the watch goes on if the pod's cgroup is the same.
    pub(crate) fn live_changed(&mut self, earlier: Option<&LivePod>, live: Option<&LivePod>) {
        let same = |(earlier, live): (&LivePod, &LivePod)| earlier.id == live.id && earlier.path == live.path;
        self.seen.clear();
        self.watched.take_if(|_| !earlier.zip(live).is_some_and(same));
    }
}

#[cfg(test)]
mod tests;
