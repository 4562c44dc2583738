//! The checkpoint: which kills the agent has reported, by record and by counter. The kill log keeps it over restarts.
//!
//! The kill log stores a checkpoint as opaque bytes, together with the reports of the kills that it counts as reported.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use super::kill_counters::SavedCounter;
use crate::oom::join::CounterDelta;
use crate::oom::kmsg::{BootId, FIRST_NUMBER};
use crate::oom::report::Role;

/// A change to the meaning of the content raises this.
const VERSION: u32 = 1;

/// The reported kills of a boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Checkpoint {
    pub(super) version: u32,
    pub(super) boot: BootId,
    /// The counters have shown the kills of records from before this moment of CLOCK_MONOTONIC,
    /// or no agent reports them.
    #[serde(rename = "logFromUs", with = "crate::oom::join::micros")]
    pub(super) log_from: Duration,
    pub(super) records: Records,
    pub(super) counters: Vec<SavedCounter>,
    /// The kills that were reported from counters alone and whose records may still come.
    #[serde(default, rename = "toldByCounter", skip_serializing_if = "Vec::is_empty")]
    pub(super) reported_by_counter: Vec<CounterDelta>,
}

impl Checkpoint {
    /// A checkpoint without reported kills. No agent is to report what was logged before `log_from`.
    pub(super) fn new(boot: BootId, log_from: Duration) -> Self {
        Self {
            version: VERSION,
            boot,
            log_from,
            ..Self::default()
        }
    }

    /// The checkpoint in these bytes, if it is of this boot. One of another boot becomes an empty one: records and
    /// counters begin anew with each boot.
    ///
    /// Errors: the bytes are no checkpoint, or one of another version.
    pub(super) fn decode(bytes: &[u8], boot: BootId) -> Result<Self> {
        let unreadable = "the checkpoint of kills cannot be read";
        let checkpoint: Self = serde_json::from_slice(bytes).map_err(|error| anyhow!("{unreadable}: {error}"))?;
        match checkpoint.version {
            VERSION if checkpoint.boot == boot => Ok(checkpoint),
            VERSION => Ok(Self::new(boot, Duration::ZERO)),
            other => bail!("the checkpoint of kills is of version {other}, not of version {VERSION}"),
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

/// The reported records of one boot. The agent reports kills in another order than the kernel logs them,
/// because some wait for counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Records {
    /// All records up to this one are reported.
    up_to: Option<u64>,
    /// The reported records after that one.
    beyond: BTreeSet<u64>,
    /// The records that were read and are not reported yet.
    #[serde(skip)]
    waiting: BTreeMap<u64, RecordFacts>,
    /// Whether nothing says which of the replayed records are reported.
    #[serde(skip)]
    pub(super) are_unknown: bool,
}

/// The facts about an unreported record, beside its content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RecordFacts {
    /// Whether the record was in the log before this agent read the log.
    pub(super) replayed: bool,
    pub(super) role: Role,
}

impl Records {
    /// Drops numbers of the device, which an earlier version kept. Returns whether these were such numbers.
    pub(super) fn drop_numbers_of_device(&mut self) -> bool {
        let any = self.up_to.or_else(|| self.beyond.first().copied());
        let are_of_device = any.is_some_and(|record| record < FIRST_NUMBER);
        if are_of_device {
            *self = Self {
                are_unknown: true,
                ..Self::default()
            };
        }
        are_of_device
    }

    pub(super) fn is_reported(&self, record: u64) -> bool {
        self.up_to.is_some_and(|up_to| record <= up_to) || self.beyond.contains(&record)
    }

    /// Adds a record that is to be reported.
    pub(super) fn wait(&mut self, record: u64, facts: RecordFacts) {
        self.waiting.insert(record, facts);
    }

    /// The facts about a record that is to be reported.
    pub(super) fn facts(&self, record: Option<u64>) -> Option<&RecordFacts> {
        self.waiting.get(&record?)
    }

    /// The agent has reported a record, or the record needs no report. The agent reads records in order, so no earlier
    /// one is still to come.
    pub(super) fn mark_reported(&mut self, record: u64) {
        self.waiting.remove(&record);
        self.beyond.insert(record);
        let first = self.waiting.keys().next();
        let rest = first.map_or_else(BTreeSet::new, |first| self.beyond.split_off(first));
        self.up_to = self.up_to.max(self.beyond.last().copied());
        self.beyond = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_records_are_not_passed_over() {
        let mut records = Records::default();
        for record in [10, 20, 30] {
            records.wait(record, RecordFacts::default());
        }
        records.mark_reported(30);
        records.mark_reported(20);
        assert_eq!(records.up_to, None);
        assert!(
            records.is_reported(20) && records.is_reported(30) && !records.is_reported(10) && !records.is_reported(25)
        );
        let text = serde_json::to_string(&records).unwrap();
        let mut again: Records = serde_json::from_str(&text).unwrap();
        assert!(again.is_reported(30) && !again.is_reported(10));
        again.wait(10, RecordFacts::default());
        again.mark_reported(10);
        assert_eq!((again.up_to, again.beyond.len()), (Some(30), 0));
    }

    #[test]
    fn only_the_same_boot_has_reported_kills() {
        let [same, next] = ["b1", "b2"].map(|id| BootId(id.to_owned()));
        let mut saved = Checkpoint::new(same.clone(), Duration::from_micros(5_000_001));
        saved.records.mark_reported(7);
        let bytes = saved.encode().unwrap();
        assert_eq!(Checkpoint::decode(&bytes, same).unwrap(), saved);
        let anew = Checkpoint::decode(&bytes, next.clone()).unwrap();
        assert_eq!(anew, Checkpoint::new(next, Duration::ZERO));
        assert!(!anew.records.is_reported(7));
    }
}
