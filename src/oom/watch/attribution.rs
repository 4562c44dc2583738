//! Attributes kills to containers: all that is known of kills that are not told yet → reports, each kill in one of them, once.
//!
//! In come what the log says, what the counters show, who lives on the node, and the time; out come reports and, to be
//! kept with them, the [`Checkpoint`] that says they were told. Until a report is out, nothing of its kill counts as told:
//! an agent that ends before finds it again. What has to be read from files is behind [`NodeIo`]; apart from that
//! this is pure.

mod events;
mod release;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::checkpoint::{Checkpoint, CheckpointError, ToldState};
use super::kill_counters::{CounterScope, KillCounters, SavedCounter};
use super::node_io::NodeIo;
use super::own_writes::OwnWrites;
use super::pending::PendingKill;
use super::pod_names::{NodePods, PodNames};
use super::records::Records;
use crate::model::CgroupPath;
use crate::oom::counters::CounterError;
use crate::oom::join::{CounterDelta, Joiner, Progress};
use crate::oom::kill::Kill;
use crate::oom::kmsg::{BootId, Numbering, Position};
use crate::oom::report::{Candidates, OomReport, Role};

/// How far the time of a record may be off.
const SLACK: Duration = Duration::from_millis(50);

/// One moment by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) monotonic: Duration,
    pub(super) wall: Timestamp,
}

impl Moment {
    /// What the wall clock showed at another moment, if nobody set it since.
    pub(super) fn wall_at(&self, monotonic: Duration) -> Timestamp {
        let ago = SignedDuration::try_from(self.monotonic.saturating_sub(monotonic)).unwrap_or_default();
        self.wall.checked_sub(ago).unwrap_or(self.wall)
    }
}

/// What is known of a record that waits, beside what it says.
#[derive(Debug, Clone)]
struct RecordFacts {
    wall: Timestamp,
    /// Whether it was in the log before this agent read it.
    replayed: bool,
    role: Role,
}

#[derive(Debug, Default)]
struct LogSide {
    /// Whether the log can be read.
    readable: bool,
    /// What was logged before is told already, or is not to be.
    from: Duration,
    told: Records,
    /// Records that an earlier agent left in doubt.
    doubted: Vec<u64>,
    waiting: HashMap<u64, RecordFacts>,
}

#[derive(Debug, Default)]
struct CounterSide {
    /// Until the tree is known, what was saved of its counters.
    saved: Vec<SavedCounter>,
    tree: Option<KillCounters>,
    /// A moment before the latest sweep.
    swept: Option<Duration>,
    /// A moment after the first.
    first_sweep: Option<Duration>,
}

/// What is known of kills that are not told yet, and which kills were told.
#[derive(Debug)]
pub(super) struct Attribution {
    boot: BootId,
    node: String,
    /// Whether there was an agent before this one. If not, whatever is counted and logged already is none of ours.
    continues: bool,
    joiner: Joiner,
    log: LogSide,
    counters: CounterSide,
    /// Whether our cgroup namespace hides the upper part of the paths that the kernel logs.
    namespaced: bool,
    names: PodNames,
    own_writes: OwnWrites,
    open: Vec<PendingKill>,
    /// Lists of possible victims that were made of others just now.
    listed: Vec<(Arc<[Arc<Kill>]>, Candidates)>,
    reports: Vec<OomReport>,
    unsaved: bool,
}

impl Attribution {
    /// Goes on where an earlier agent left off; without one, begins here.
    ///
    /// Errors: [`CheckpointError`] when it cannot be known where the earlier one left off.
    pub(super) fn new(
        boot: BootId,
        node: String,
        checkpoint: Option<&[u8]>,
        now: Moment,
    ) -> Result<Self, CheckpointError> {
        let Some(checkpoint) = checkpoint else {
            return Ok(Self::beginning(boot, node, now));
        };
        let left = Checkpoint::decode(checkpoint)?.of_boot(&boot);
        Ok(Self {
            continues: true,
            log: LogSide {
                from: left.log_from,
                told: left.records,
                doubted: left.doubted,
                ..LogSide::default()
            },
            counters: CounterSide {
                saved: left.counters,
                ..CounterSide::default()
            },
            joiner: Joiner::new(false).with_told_by_counter(left.told_by_counter),
            ..Self::beginning(boot, node, now)
        })
    }

    /// Begins here: kills from before are none of ours.
    pub(super) fn beginning(boot: BootId, node: String, now: Moment) -> Self {
        Self {
            boot,
            node,
            continues: false,
            joiner: Joiner::new(false),
            log: LogSide {
                from: now.monotonic,
                ..LogSide::default()
            },
            counters: CounterSide::default(),
            namespaced: false,
            names: PodNames::default(),
            own_writes: OwnWrites::default(),
            open: Vec::new(),
            listed: Vec::new(),
            reports: Vec::new(),
            // An agent that goes on from here has to know that it does.
            unsaved: true,
        }
    }

    /// From where on the log is to be read.
    pub(super) fn position(&self) -> Option<Position> {
        self.log.told.up_to().map(|seq| Position {
            boot: self.boot.clone(),
            seq,
        })
    }

    /// Takes in who lives here.
    pub(super) fn set_node_pods(&mut self, residents: &NodePods, now: Moment) {
        self.names.update(residents, now.monotonic);
    }

    /// The tree's root, once it is known. `namespaced` says whether the kernel logs longer paths than we see.
    pub(super) fn set_tree(&mut self, counting: CounterScope, root: &CgroupPath, namespaced: bool) {
        let counters = &mut self.counters;
        if counters.tree.as_ref().is_some_and(|tree| tree.root() == root) {
            return;
        }
        let saved = match counters.tree.take() {
            Some(old) => old.saved(),
            None => std::mem::take(&mut counters.saved),
        };
        counters.tree = Some(KillCounters::new(counting, root.clone(), &saved));
        self.namespaced = namespaced;
    }

    pub(super) const fn own_writes(&mut self) -> &mut OwnWrites {
        &mut self.own_writes
    }

    /// The log can be read, and its records have such numbers.
    pub(super) fn log_began(&mut self, numbering: Numbering, now: Duration) {
        if self
            .log
            .told
            .any()
            .is_some_and(|record| Numbering::of(record) != numbering)
        {
            // The records of another source: which of these they are is not known. The counters tell of what was before.
            self.log.told = Records::default();
            self.log.doubted.clear();
            self.log.from = now;
            self.unsaved = true;
        }
        self.log.readable = true;
        self.joiner.log_began();
    }

    /// The log cannot be read any more. All counters must have been swept since the last record was read.
    pub(super) fn log_ended(&mut self, now: Moment, around: &impl NodeIo) {
        self.log.readable = false;
        for kill in self.joiner.log_ended() {
            self.open(kill, now, around);
        }
        self.listed.clear();
    }

    /// Looks at all counters that may have risen, from `before` on. Returns whether one could not be read.
    pub(super) fn sweep(
        &mut self,
        before: Duration,
        around: &impl NodeIo,
        clock: impl FnOnce() -> Moment,
    ) -> Option<CounterError> {
        let tree = self.counters.tree.as_mut()?;
        let begins = self.counters.swept.is_none() && !self.continues;
        let sweep = if begins {
            tree.start_at_current(around)
        } else {
            tree.sweep(around)
        };
        let now = clock();
        let by = now.monotonic;
        let after = self.counters.swept.replace(before).unwrap_or_default();
        self.counters.first_sweep.get_or_insert(by);
        self.unsaved |= begins;
        for risen in sweep.rises.into_iter().filter(|_| !begins) {
            let told = self.joiner.counted(CounterDelta {
                cgroup: risen.cgroup,
                after,
                by,
                kills: risen.kills,
                again: risen.again,
            });
            told.into_iter().for_each(|kill| self.open(kill, now, around));
        }
        self.apply_join_results();
        if !self.log.readable {
            // What is counted now is told now. When the log can be read, it must not be told from there.
            self.log.from = by + SLACK;
        }
        sweep.failed
    }

    /// Decides what cannot change any more.
    pub(super) fn decide(&mut self, progress: Progress, now: Moment, around: &impl NodeIo) {
        for kill in self.joiner.decide_up_to(progress) {
            self.open(kill, now, around);
        }
        self.listed.clear();
        self.apply_join_results();
    }

    pub(super) fn apply_join_results(&mut self) {
        for record in self.joiner.take_known() {
            self.log.told.mark_told(record);
            self.log.waiting.remove(&record);
            self.unsaved = true;
        }
        for group in self.joiner.take_duplicates() {
            if let Some(tree) = &mut self.counters.tree {
                tree.mark_counted_twice(&group);
                self.unsaved = true;
            }
        }
    }

    /// Whether a kill waits for the counters.
    pub(super) fn waits_for_counters(&self) -> bool {
        self.joiner.has_kills_waiting()
    }

    /// Whether anything waits for the counters or the log.
    pub(super) fn is_waiting(&self) -> bool {
        self.joiner.is_waiting()
    }

    /// Hands out what is to be told now.
    pub(super) fn drain_reports(&mut self) -> Vec<OomReport> {
        std::mem::take(&mut self.reports)
    }

    /// What to keep together with everything handed out so far, if there is news for it.
    pub(super) fn next_checkpoint(&mut self) -> Option<Checkpoint> {
        std::mem::take(&mut self.unsaved).then(|| {
            let CounterSide { saved, tree, .. } = &self.counters;
            let left = ToldState {
                log_from: self.log.from,
                records: self.log.told.clone(),
                doubted: self.still_doubted(),
                counters: tree.as_ref().map_or_else(|| saved.clone(), KillCounters::saved),
                told_by_counter: self.told_by_counter(),
            };
            Checkpoint::new(self.boot.clone(), left)
        })
    }

    /// The kills that were told by counters alone, without those that are not told yet.
    fn told_by_counter(&self) -> Vec<CounterDelta> {
        let mut rises = self.joiner.told_by_counter().to_vec();
        for open in self.open.iter().filter(|open| open.kill.record.is_none()) {
            let of = |rise: &CounterDelta| Some(&rise.cgroup) == open.kill.cgroup.as_ref() && rise.by == open.kill.at;
            if let Some(at) = rises.iter().position(of) {
                match NonZeroU64::new(rises[at].kills.get() - 1) {
                    Some(left) => rises[at].kills = left,
                    None => drop(rises.remove(at)),
                }
            }
        }
        rises
    }

    /// The records of kills that are not told, and of which an agent that finds them again must not be more certain.
    fn still_doubted(&self) -> Vec<u64> {
        let unread = self
            .log
            .doubted
            .iter()
            .filter(|record| !self.log.told.is_told(**record));
        let open = self.open.iter().filter(|open| !open.kill.is_certain());
        let open = open.flat_map(|open| &open.records);
        let mut doubted: Vec<u64> = unread.chain(open).copied().chain(self.joiner.doubted()).collect();
        doubted.sort_unstable();
        doubted.dedup();
        doubted
    }
}

#[cfg(test)]
mod tests;
