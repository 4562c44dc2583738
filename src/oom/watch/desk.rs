//! Everything known about kills that are not told yet → reports, each kill in one of them, once.
//!
//! In come what the log says, what the counters show, who lives on the node, and the time; out come reports and, to be
//! kept with them, the [`Checkpoint`] that says they were told. Until a report is out, nothing of its kill counts as told:
//! an agent that ends before finds it again. What has to be read from files is behind [`Surroundings`]; apart from that
//! this is pure.

mod events;
mod release;

pub(super) use events::Told;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::accounts::{Accounts, Counting, SavedAccount};
use super::checkpoint::{Checkpoint, CheckpointError, Left};
use super::open::Open;
use super::own_writes::OwnWrites;
use super::records::Records;
use super::roster::{Residents, Roster};
use super::surroundings::Surroundings;
use crate::cgroup::CgroupPath;
use crate::oom::counters::CounterError;
use crate::oom::join::{Joiner, Progress, Rise};
use crate::oom::kill::Kill;
use crate::oom::kmsg::{BootId, Position};
use crate::oom::report::{Candidates, OomReport, Role};

/// How far the time of a record may be off.
const SLACK: Duration = Duration::from_millis(50);

/// One moment by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    /// CLOCK_MONOTONIC.
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
struct Logged {
    wall: Timestamp,
    while_down: bool,
    role: Role,
}

/// Where kills are put together.
#[derive(Debug)]
pub(super) struct Desk {
    boot: BootId,
    node: String,
    /// Whether there was an agent before this one. If not, whatever is counted and logged already is none of ours.
    continues: bool,
    joiner: Joiner,
    has_log: bool,
    /// What was logged before is told already, or is not to be.
    log_from: Duration,
    records: Records,
    /// Records that an earlier agent left in doubt.
    doubted: Vec<u64>,
    logged: HashMap<u64, Logged>,
    /// Until the tree is known, what was saved of its accounts.
    saved: Vec<SavedAccount>,
    accounts: Option<Accounts>,
    /// Whether our cgroup namespace hides the upper part of the paths that the kernel logs.
    namespaced: bool,
    /// A moment before the latest look at the counters.
    looked: Option<Duration>,
    /// A moment after the first.
    first_look: Option<Duration>,
    roster: Roster,
    own_writes: OwnWrites,
    open: Vec<Open>,
    /// Lists of possible victims that were made of others just now.
    listed: Vec<(Arc<[Arc<Kill>]>, Candidates)>,
    reports: Vec<OomReport>,
    unsaved: bool,
}

impl Desk {
    /// Goes on where an earlier agent left off; without one, begins here.
    ///
    /// # Errors
    /// [`CheckpointError`] when it cannot be known where the earlier one left off.
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
            log_from: left.log_from,
            records: left.records,
            doubted: left.doubted,
            saved: left.counters,
            joiner: Joiner::new(false).with_told_alone(left.told_alone),
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
            has_log: false,
            log_from: now.monotonic,
            records: Records::default(),
            doubted: Vec::new(),
            logged: HashMap::new(),
            saved: Vec::new(),
            accounts: None,
            namespaced: false,
            looked: None,
            first_look: None,
            roster: Roster::default(),
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
        self.records.up_to().map(|seq| Position {
            boot: self.boot.clone(),
            seq,
        })
    }

    /// Takes in who lives here.
    pub(super) fn take_residents(&mut self, residents: &Residents, now: Moment) {
        self.roster.update(residents, now.monotonic);
    }

    /// The tree's root, once it is known. `namespaced` says whether the kernel logs longer paths than we see.
    pub(super) fn take_tree(&mut self, counting: Counting, root: &CgroupPath, namespaced: bool) {
        if self.accounts.as_ref().is_some_and(|accounts| accounts.root() == root) {
            return;
        }
        let saved = self
            .accounts
            .take()
            .map_or_else(|| std::mem::take(&mut self.saved), |old| old.saved());
        self.accounts = Some(Accounts::new(counting, root.clone(), &saved));
        self.namespaced = namespaced;
    }

    pub(super) const fn own_writes(&mut self) -> &mut OwnWrites {
        &mut self.own_writes
    }

    /// The log can be read.
    pub(super) const fn log_began(&mut self) {
        self.has_log = true;
        self.joiner.log_began();
    }

    /// The log cannot be read any more. All counters must have been looked at since the last that was read of it.
    pub(super) fn log_ended(&mut self, now: Moment, around: &impl Surroundings) {
        self.has_log = false;
        for kill in self.joiner.log_ended() {
            self.open(kill, now, around);
        }
        self.listed.clear();
    }

    /// Looks at all counters that may have risen, from `before` on. Returns whether one could not be read.
    pub(super) fn look(
        &mut self,
        before: Duration,
        around: &impl Surroundings,
        clock: impl FnOnce() -> Moment,
    ) -> Option<CounterError> {
        let accounts = self.accounts.as_mut()?;
        let begins = self.looked.is_none() && !self.continues;
        let sweep = if begins {
            accounts.begin_here(around)
        } else {
            accounts.sweep(around)
        };
        let now = clock();
        let by = now.monotonic;
        let after = self.looked.replace(before).unwrap_or_default();
        self.first_look.get_or_insert(by);
        self.unsaved |= begins;
        for risen in sweep.rises.into_iter().filter(|_| !begins) {
            let told = self.joiner.counted(Rise {
                cgroup: risen.cgroup,
                after,
                by,
                kills: risen.kills,
                again: risen.again,
            });
            told.into_iter().for_each(|kill| self.open(kill, now, around));
        }
        self.account_for_counted_again();
        if !self.has_log {
            // What is counted now is told now. When the log can be read, it must not be told from there.
            self.log_from = by + SLACK;
        }
        sweep.failed
    }

    /// Decides what cannot change any more.
    pub(super) fn settle(&mut self, progress: Progress, now: Moment, around: &impl Surroundings) {
        for kill in self.joiner.settle(progress) {
            self.open(kill, now, around);
        }
        self.listed.clear();
        self.account_for_counted_again();
    }

    pub(super) fn account_for_counted_again(&mut self) {
        for record in self.joiner.take_known() {
            self.records.tell(record);
            self.logged.remove(&record);
            self.unsaved = true;
        }
        for group in self.joiner.take_counted_again() {
            if let Some(accounts) = &mut self.accounts {
                accounts.tell_again(&group);
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
    pub(super) fn take_reports(&mut self) -> Vec<OomReport> {
        std::mem::take(&mut self.reports)
    }

    /// What to keep together with everything handed out so far, if there is news for it.
    pub(super) fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        std::mem::take(&mut self.unsaved).then(|| {
            let counters = self
                .accounts
                .as_ref()
                .map_or_else(|| self.saved.clone(), Accounts::saved);
            let left = Left {
                log_from: self.log_from,
                records: self.records.clone(),
                doubted: self.still_doubted(),
                counters,
                told_alone: self.told_alone(),
            };
            Checkpoint::new(self.boot.clone(), left)
        })
    }

    /// The kills that were told by counters alone, without those that are not told yet.
    fn told_alone(&self) -> Vec<Rise> {
        let mut rises = self.joiner.told_alone().to_vec();
        for open in self.open.iter().filter(|open| open.kill.record.is_none()) {
            let of = |rise: &Rise| Some(&rise.cgroup) == open.kill.cgroup.as_ref() && rise.by == open.kill.at;
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
        let unread = self.doubted.iter().filter(|record| !self.records.is_told(**record));
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
