//! What is kept over restarts: which kills were told, by record and by counter.
//!
//! Opaque bytes to whoever keeps them, together with the reports of the kills they count as told.

use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::kill_counters::SavedCounter;
use super::records::Records;
use crate::model::CgroupPath;
use crate::oom::join::CounterDelta;
use crate::oom::kmsg::BootId;

/// Raised when the meaning of the content changes.
const VERSION: u32 = 1;

/// Where an agent left off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Checkpoint {
    version: u32,
    boot: BootId,
    /// What was logged before this moment of CLOCK_MONOTONIC, in microseconds, was told by counters, or is not to be.
    log_from_us: u64,
    records: Records,
    /// The records among those that wait whose counter may have been taken for another's.
    #[serde(default)]
    doubted: Vec<u64>,
    counters: Vec<SavedCounter>,
    /// The kills that were told by counters alone and whose records may still come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    told_by_counter: Vec<ToldByCounter>,
}

/// Kills that were told by a counter alone, with the two reads between which it rose, in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToldByCounter {
    cgroup: String,
    after_us: u64,
    by_us: u64,
    kills: NonZeroU64,
}

/// What was told of a boot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ToldState {
    pub(super) log_from: Duration,
    pub(super) records: Records,
    pub(super) doubted: Vec<u64>,
    pub(super) counters: Vec<SavedCounter>,
    pub(super) told_by_counter: Vec<CounterDelta>,
}

/// Bytes that are not a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("the record of which kills were told cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// They were written by another version.
    #[error("the record of which kills were told is of version {0}, not of version {VERSION}")]
    Version(u32),
}

impl Checkpoint {
    pub(super) fn new(boot: BootId, left: ToldState) -> Self {
        Self {
            version: VERSION,
            boot,
            log_from_us: micros(left.log_from),
            records: left.records,
            doubted: left.doubted,
            counters: left.counters,
            told_by_counter: left.told_by_counter.iter().map(ToldByCounter::from).collect(),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let checkpoint: Self = serde_json::from_slice(bytes)?;
        if checkpoint.version == VERSION {
            Ok(checkpoint)
        } else {
            Err(CheckpointError::Version(checkpoint.version))
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// What was told of this boot. Of another one, nothing was: records and counters began anew.
    pub(super) fn of_boot(self, boot: &BootId) -> ToldState {
        if self.boot != *boot {
            return ToldState::default();
        }
        ToldState {
            log_from: Duration::from_micros(self.log_from_us),
            records: self.records,
            doubted: self.doubted,
            counters: self.counters,
            told_by_counter: self.told_by_counter.iter().filter_map(ToldByCounter::rise).collect(),
        }
    }
}

impl From<&CounterDelta> for ToldByCounter {
    fn from(rise: &CounterDelta) -> Self {
        Self {
            cgroup: rise.cgroup.to_string(),
            after_us: micros(rise.after),
            by_us: micros(rise.by),
            kills: rise.kills,
        }
    }
}

impl ToldByCounter {
    fn rise(&self) -> Option<CounterDelta> {
        Some(CounterDelta {
            cgroup: CgroupPath::new(&self.cgroup).ok()?,
            after: Duration::from_micros(self.after_us),
            by: Duration::from_micros(self.by_us),
            kills: self.kills,
            again: 0,
        })
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
