//! Which records of the kernel's log were told.
//!
//! Kills are logged in one order and told in another, since some wait for counters. Kept over restarts are the record up to
//! which everything was told and the few beyond it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The records of one boot that were told.
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
