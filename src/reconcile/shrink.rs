//! One pod's lower memory limits: whose turn it is, what is watched, what was undone. Pure.
//!
//! [`crate::plan::shrink`] says how to lower a limit and what harm looks like; a pass lowers it; this remembers
//! what came of that.

use jiff::{SignedDuration, Timestamp};

use crate::actuate::shrink::{Lowering, SeenBefore, ShrinkReport, Verdict};
use crate::model::{LivePod, MemoryLimit, Target};
use crate::plan::shrink::{Holds, Progress, Regret, Regrets, Trouble};

/// A pod whose turn it is and that has nothing to show for so long keeps others of its workload waiting no more.
const LONGEST_TURN: SignedDuration = SignedDuration::from_mins(5);

/// What is known about a pod's lower memory limits.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShrinkState {
    /// Usage that earlier tries have seen.
    pub(crate) seen: SeenBefore,
    /// Every shrink that was undone.
    pub(crate) backoffs: Regrets,
    /// When a shrink that was undone is to be tried again.
    pub(crate) retry_at: Option<Timestamp>,
    /// The number of the pass whose lower limits are watched now.
    watched: Option<u64>,
    /// Since when it is the pod's turn, until its limits were lowered and watched.
    turn: Option<Timestamp>,
    /// What was lowered last and neither kept nor undone since. It outlasts its watch: whoever is killed for it may take
    /// with it what was watched, and is told of later.
    recent: Vec<Lowering>,
}

/// How watching after a shrink ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShrinkEnd {
    Kept,
    /// The limits go up again, for this reason.
    Undone(String),
}

impl ShrinkState {
    /// Takes in what a pass did; what it lowered is watched from now on, together with what is watched already.
    pub(crate) fn pass_ended(&mut self, report: ShrinkReport, number: u64) {
        self.seen.extend(report.seen);
        self.forget_seen(&report.touched);
        if report.touched.is_empty() {
            return;
        }
        if self.watched.take().is_none() {
            self.recent.clear();
        }
        self.recent.retain(|known| !report.touched.contains(&known.target));
        self.recent.extend(report.lowered);
        self.watched = (!self.recent.is_empty()).then_some(number);
    }

    /// What was seen of these says nothing any more: they have another limit, or were told to free memory.
    pub(crate) fn forget_seen(&mut self, targets: &[Target]) {
        self.seen.retain(|target, _| !targets.contains(target));
    }

    /// The watch that should run: its number, and what it watches.
    pub(crate) fn watch(&self) -> Option<(u64, &[Lowering])> {
        self.watched.map(|number| (number, self.recent.as_slice()))
    }

    /// Takes in how a watch ended; a watch that was replaced by a later one counts no longer.
    pub(crate) fn watch_ended(&mut self, number: u64, verdict: Verdict, now: Timestamp) -> Option<ShrinkEnd> {
        self.watched.take_if(|watched| *watched == number)?;
        self.turn = None;
        match verdict {
            Verdict::Gone => None,
            Verdict::Kept => {
                for lowering in self.recent.drain(..) {
                    self.backoffs.forgive(&lowering.target);
                }
                Some(ShrinkEnd::Kept)
            }
            Verdict::Trouble(target, trouble) => self.undo(&target, trouble, now),
        }
    }

    /// Takes in that somebody in this cgroup was killed for a limit that was lowered; none where that was known.
    pub(crate) fn killed(&mut self, target: &Target, now: Timestamp) -> Option<ShrinkEnd> {
        let ended = self.undo(target, Trouble::Killed(1), now)?;
        self.watched = None;
        Some(ended)
    }

    /// Whatever came down together goes up together.
    fn undo(&mut self, target: &Target, trouble: Trouble, now: Timestamp) -> Option<ShrinkEnd> {
        if self.recent.is_empty() {
            return None;
        }
        self.turn = None;
        let why = format!("{target}: {trouble}");
        for lowering in self.recent.drain(..) {
            let until = self.backoffs.note(&lowering.target, lowering.from, &why, now);
            self.retry_at = Some(self.retry_at.map_or(until, |at| at.min(until)));
        }
        Some(ShrinkEnd::Undone(why))
    }

    /// These limits come down from what they are once it is the pod's turn.
    pub(crate) fn put_off(&mut self, lowered: &[(Target, MemoryLimit)], now: Timestamp) {
        self.backoffs.end_waiting();
        for (target, before) in lowered {
            self.backoffs.put_off(target, *before, now);
        }
    }

    /// It is the pod's turn.
    pub(crate) fn begin_turn(&mut self, now: Timestamp) {
        self.backoffs.end_waiting();
        self.turn = Some(now);
    }

    /// A pass left everything as it should be. Where it lowered nothing that is watched, the turn is over.
    pub(crate) fn end_turn_unless_watched(&mut self) {
        self.turn.take_if(|_| self.watched.is_none());
    }

    /// How lower limits fare; `None` where there are none to speak of.
    pub(crate) fn progress(&self, now: Timestamp) -> Option<Progress> {
        let has_turn = self.turn.is_some_and(|since| now.duration_since(since) < LONGEST_TURN);
        if self.next_retry(now).is_some() {
            Some(Progress::Undone)
        } else if self.backoffs.waits(now) {
            Some(Progress::Waits)
        } else {
            (has_turn || self.watched.is_some()).then_some(Progress::Tried)
        }
    }

    /// The limits that are kept now although lower ones are wanted.
    pub(crate) fn holds(&self, now: Timestamp) -> Holds {
        self.backoffs.holds(now)
    }

    /// The shrink that was undone and is tried again first.
    pub(crate) fn next_retry(&self, now: Timestamp) -> Option<&Regret> {
        self.backoffs.next(now)
    }

    /// Whether it is time to try a shrink again, and from then on not any more.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> bool {
        let due = self.retry_at.take_if(|at| *at <= now).is_some();
        if due {
            self.retry_at = self.backoffs.next(now).map(|backoff| backoff.until);
        }
        due
    }

    /// Takes over what an earlier agent saved.
    pub(crate) fn restore(&mut self, backoffs: Regrets, now: Timestamp) {
        self.retry_at = backoffs.next(now).map(|backoff| backoff.until);
        self.backoffs = backoffs;
    }

    /// An operator wants other limits: earlier harm counts no longer.
    pub(crate) fn forget_backoffs(&mut self) {
        self.backoffs = Regrets::default();
        self.retry_at = None;
    }

    /// Containers of the pod have ended or started: what was seen of it says nothing, but whoever is left is watched on.
    pub(crate) fn live_changed(&mut self, earlier: Option<&LivePod>, live: Option<&LivePod>) {
        let same = |(earlier, live): (&LivePod, &LivePod)| earlier.id == live.id && earlier.path == live.path;
        if earlier.zip(live).is_some_and(same) {
            self.seen.clear();
        } else {
            self.start_over();
        }
    }

    /// The pod's cgroups are other ones now: what is known about the earlier ones says nothing.
    pub(crate) fn start_over(&mut self) {
        self.seen.clear();
        self.watched = None;
    }
}

#[cfg(test)]
mod tests;
