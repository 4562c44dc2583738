//! What is kept over restarts: which kills were told, by record and by counter.
//!
//! Opaque bytes to whoever keeps them, together with the reports of the kills they count as told.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::kill_counters::SavedCounter;
use super::records::Records;
use crate::oom::join::CounterDelta;
use crate::oom::kmsg::BootId;

/// Raised when the meaning of the content changes.
const VERSION: u32 = 1;

/// Which kills of a boot were told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Checkpoint {
    pub(super) version: u32,
    pub(super) boot: BootId,
    /// What was logged before this moment of CLOCK_MONOTONIC was told by counters, or is not to be.
    #[serde(rename = "logFromUs", with = "crate::oom::join::micros")]
    pub(super) log_from: Duration,
    pub(super) records: Records,
    /// The records among those that wait whose counter may have been taken for another's.
    #[serde(default)]
    pub(super) doubted: Vec<u64>,
    pub(super) counters: Vec<SavedCounter>,
    /// The kills that were told by counters alone and whose records may still come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
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
    /// Nothing was told of this boot, and what was logged before this moment is not to be.
    pub(super) fn new(boot: BootId, log_from: Duration) -> Self {
        Self {
            version: VERSION,
            boot,
            log_from,
            records: Records::default(),
            doubted: Vec::new(),
            counters: Vec::new(),
            told_by_counter: Vec::new(),
        }
    }

    /// What was told of this boot. Of another one, nothing was: records and counters began anew.
    pub(super) fn decode(bytes: &[u8], boot: BootId) -> Result<Self, CheckpointError> {
        let checkpoint: Self = serde_json::from_slice(bytes)?;
        match checkpoint.version {
            VERSION if checkpoint.boot == boot => Ok(checkpoint),
            VERSION => Ok(Self::new(boot, Duration::ZERO)),
            other => Err(CheckpointError::Version(other)),
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}
