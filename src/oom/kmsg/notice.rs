//! What the reader of the log tells.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::KmsgError;
use crate::oom::parse::Event;

/// Which boot of the machine: `/proc/sys/kernel/random/boot_id`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub String);

impl BootId {
    /// That of the running kernel.
    ///
    /// Errors: when /proc cannot be read.
    pub fn current() -> Result<Self, KmsgError> {
        let id = procfs::sys::kernel::random::boot_id();
        id.map(Self).map_err(|error| KmsgError::Boot(error.to_string()))
    }
}

/// Up to where the log was read. Record numbers start anew with each boot.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Position {
    pub boot: BootId,
    /// The number of the last record that needs no telling again.
    pub seq: u64,
}

/// Whether something was logged while we read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// It was logged just now.
    Live,
    /// It was in the log before we had read to its end for the first time.
    Replayed,
}

/// What the log says, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEvent {
    pub event: Event,
    /// The number of the record that completed it: the position to keep once it is dealt with.
    pub seq: u64,
    /// When it was logged, by CLOCK_MONOTONIC: to about a millisecond.
    pub logged: Duration,
    /// When, by the wall clock: exact to the delay of the reader if live, to about a millisecond otherwise, unless
    /// the machine was suspended since.
    pub at: Timestamp,
    /// Whether it was logged while this process read.
    pub origin: Origin,
}

/// What the reader of the log tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Event(LogEvent),
    /// Something is missing. Look at all counters.
    Lost(Loss),
    /// All that was in the log when it was opened has been told.
    CaughtUp,
}

/// The part of the log that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The kernel overwrote records before they were read: this many, if it can be told.
    Overwritten {
        /// How many records of any kind.
        records: u64,
    },
    /// A record did not fit into the buffer.
    TooLong,
}
