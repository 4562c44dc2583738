//! What is kept over restarts: which kills were told, by record and by counter.
//!
//! Opaque bytes to whoever keeps them, together with the reports of the kills they count as told.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use super::kill_counters::SavedCounter;
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
    pub(super) fn decode(bytes: &[u8], boot: BootId) -> Result<Self> {
        let unreadable = "the record of which kills were told cannot be read";
        let checkpoint: Self = serde_json::from_slice(bytes).map_err(|error| anyhow!("{unreadable}: {error}"))?;
        match checkpoint.version {
            VERSION if checkpoint.boot == boot => Ok(checkpoint),
            VERSION => Ok(Self::new(boot, Duration::ZERO)),
            other => bail!("the record of which kills were told is of version {other}, not of version {VERSION}"),
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

/// The records of one boot that were told. Kills are logged in one order and told in another, since some wait for counters:
/// kept are the record up to which everything was told and the few beyond it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Records {
    /// All up to this one were.
    up_to: Option<u64>,
    beyond: BTreeSet<u64>,
    /// Read, and not told yet.
    #[serde(skip)]
    waiting: BTreeSet<u64>,
}

impl Records {
    /// The record up to which there is nothing left to tell.
    pub(super) const fn up_to(&self) -> Option<u64> {
        self.up_to
    }

    /// Any record that was told.
    pub(super) fn any(&self) -> Option<u64> {
        self.up_to.or_else(|| self.beyond.first().copied())
    }

    pub(super) fn is_told(&self, record: u64) -> bool {
        self.up_to.is_some_and(|up_to| record <= up_to) || self.beyond.contains(&record)
    }

    /// A record was read, and says something that is to be told.
    pub(super) fn wait(&mut self, record: u64) {
        self.waiting.insert(record);
    }

    /// It was told, or turned out to be nothing to tell. Records are read in order, so none is still to come before it.
    pub(super) fn mark_told(&mut self, record: u64) {
        self.waiting.remove(&record);
        self.beyond.insert(record);
        let rest = match self.waiting.first() {
            Some(first) => self.beyond.split_off(first),
            None => BTreeSet::new(),
        };
        self.up_to = self.up_to.max(self.beyond.last().copied());
        self.beyond = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_not_passed_over_when_later_records_are_told() {
        let mut records = Records::default();
        for record in [10, 20, 30] {
            records.wait(record);
        }
        records.mark_told(30);
        records.mark_told(20);
        assert_eq!(records.up_to(), None);
        assert!(records.is_told(20) && records.is_told(30) && !records.is_told(10) && !records.is_told(25));
        let text = serde_json::to_string(&records).unwrap();
        let mut again: Records = serde_json::from_str(&text).unwrap();
        assert!(again.is_told(30) && !again.is_told(10));
        again.wait(10);
        again.mark_told(10);
        assert_eq!((again.up_to(), again.beyond.len()), (Some(30), 0));
    }
}
