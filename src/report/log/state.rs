//! The content of the log: reports and the destinations that have not acknowledged them, and the last checkpoint. Pure.
//!
//! A report stays while a destination has not acknowledged it. Beside that the latest kills stay in detail, which operators
//! list. Numbers of reports only ascend; each agent numbers the reports that it finds anew.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use anyhow::Result;
use indexmap::IndexMap;

use super::frame::{Acknowledged, Entry, Stored};
use super::{LATEST, oldest_of_most};
use crate::oom::OomReport;
use crate::report::content::Report;
use crate::report::destination::{Destinations, from_bits};

#[derive(Debug, Default)]
pub(super) struct State {
    /// The reports that some destination has not acknowledged, by number.
    pub(super) slots: BTreeMap<u64, Slot>,
    /// The latest kills, by number: those in `slots`, and those that every destination has.
    latest: IndexMap<u64, Arc<OomReport>>,
    pub(super) last_number: u64,
    /// The last checkpoint.
    pub(super) checkpoint: Option<Vec<u8>>,
}

/// A report of the log.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) report: Report,
    /// The destinations that have not acknowledged the report.
    pub(super) pending: Destinations,
    /// The destinations that may have received the report.
    pub(super) sent: Destinations,
    /// The length of its JSON in bytes.
    pub(super) length: u32,
}

/// A report that a destination has not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Queues deliver reports in the order of their numbers, and acknowledge them by number.
    pub number: u64,
    pub report: Report,
}

impl State {
    /// Takes in a frame of a log.
    pub(super) fn replay_entry(&mut self, payload: &[u8]) -> Result<()> {
        let (entry, reports) = Entry::read(payload)?;
        for (stored, report) in entry.stored.iter().zip(reports) {
            self.insert(stored.number, Slot::new(report, from_bits(stored.pending)));
        }
        for Acknowledged { destinations, numbers } in entry.acknowledged {
            let destinations = from_bits(destinations);
            for number in numbers {
                self.acknowledge(destinations, number);
            }
        }
        self.checkpoint = entry.checkpoint.or(self.checkpoint.take());
        Ok(())
    }

    /// Takes in the content of a log, for the selected destinations: the reports, and the last checkpoint unless this state
    /// has one. Returns how many reports have no selected destination any more.
    pub(super) fn take_in(&mut self, found: Self, selected: Destinations) -> usize {
        let mut forgotten = 0;
        for (_, slot) in found.reports() {
            let pending = slot.pending & selected;
            forgotten += usize::from(pending.is_empty() && !slot.pending.is_empty());
            self.insert(self.last_number + 1, Slot { pending, ..slot });
        }
        self.checkpoint = self.checkpoint.take().or(found.checkpoint);
        forgotten
    }

    /// The frames of a file that holds this state and nothing else.
    pub(super) fn frames(&self) -> impl Iterator<Item = io::Result<Vec<u8>>> {
        let reports = self.reports().into_iter();
        let frames = reports.map(|report| frame(None, &[report]));
        std::iter::once(frame(self.checkpoint.clone(), &[])).chain(frames)
    }

    /// All reports, by ascending number. A count may have the number of a kill that it counts.
    fn reports(&self) -> Vec<(u64, Slot)> {
        let is_pending = |number| self.slots.get(number).is_some_and(|slot| slot.report.kill().is_some());
        let acknowledged = self.latest.iter().filter(|(number, _)| !is_pending(number));
        let acknowledged = acknowledged.map(|(number, kill)| {
            let report = Report::from(Arc::clone(kill));
            (*number, Slot::new(report, Destinations::empty()))
        });
        let pending = self.slots.iter().map(|(number, slot)| (*number, slot.clone()));
        let mut all: Vec<_> = acknowledged.chain(pending).collect();
        all.sort_by_key(|(number, _)| *number);
        all
    }

    /// Adds a report; of an earlier one of this number stays what only operators need.
    pub(super) fn insert(&mut self, number: u64, slot: Slot) {
        self.last_number = self.last_number.max(number);
        if let Some(kill) = slot.report.kill() {
            self.latest.insert(number, Arc::clone(kill));
        }
        if self.latest.len() > LATEST {
            let lost = oldest_of_most(self.latest.values().map(Arc::as_ref));
            self.latest.shift_remove_index(lost);
        }
        if !slot.pending.is_empty() {
            self.slots.insert(number, slot);
        }
    }

    /// The latest kills, oldest first.
    pub(super) fn latest(&self) -> Vec<Arc<OomReport>> {
        self.latest.values().cloned().collect()
    }

    /// Removes these destinations from those that need the report. Returns whether one of them needed it.
    pub(super) fn acknowledge(&mut self, destinations: Destinations, number: u64) -> bool {
        let Some(slot) = self.slots.get_mut(&number) else {
            return false;
        };
        let was_pending = slot.pending.intersects(destinations);
        slot.pending.remove(destinations);
        if slot.pending.is_empty() {
            self.slots.remove(&number);
        }
        was_pending
    }
}

/// The frame of this checkpoint and these reports.
pub(super) fn frame(checkpoint: Option<Vec<u8>>, reports: &[(u64, Slot)]) -> io::Result<Vec<u8>> {
    let mut json = Vec::new();
    let mut entry = Entry {
        checkpoint,
        ..Entry::default()
    };
    for (number, slot) in reports {
        serde_json::to_writer(&mut json, &slot.report)?;
        entry.stored.push(Stored {
            number: *number,
            pending: slot.pending.bits().into(),
            length: slot.length,
        });
    }
    entry.frame(&json)
}

impl Slot {
    /// Whether a destination may have received the report without an acknowledgement. To aggregate it would count its kill
    /// twice there.
    pub(super) fn is_sent(&self) -> bool {
        self.pending.intersects(self.sent)
    }

    pub(super) fn new(report: Report, pending: Destinations) -> Self {
        // A report without JSON takes no room.
        let length = serde_json::to_vec(&report).map_or(0, |json| u32::try_from(json.len()).unwrap_or(u32::MAX));
        Self {
            report,
            pending,
            sent: Destinations::empty(),
            length,
        }
    }
}

#[cfg(any(test, fuzzing))]
#[path = "../../../fuzz/inputs/kills.rs"]
pub(crate) mod fuzz;

#[cfg(test)]
mod tests {
    use super::super::KillLog;
    use super::*;
    use crate::report::destination::Destination;
    use crate::report::testing::kill_of;

    fn state(pending: &[u32]) -> State {
        let mut state = State::default();
        for (number, pending) in (1..).zip(pending) {
            let kill = kill_of("web", number).into();
            state.insert(number, Slot::new(kill, from_bits(*pending)));
        }
        state
    }

    fn log(pending: &[u32]) -> KillLog {
        KillLog {
            state: state(pending),
            ..KillLog::default()
        }
    }

    fn numbers(state: &State) -> Vec<u64> {
        state.slots.keys().copied().collect()
    }

    #[test]
    fn a_report_stays_until_all_acknowledged_it() {
        let mut log = log(&[5]);
        log.state
            .acknowledge(Destinations::from_iter([Destination::PodEvents]), 1);
        assert_eq!(log.state.slots[&1].pending, Destinations::from(Destination::Grpc));
        assert_eq!(log.next_for(Destination::PodEvents, 0, 9, |_, _| true), []);
        assert_eq!(log.next_for(Destination::Grpc, 0, 9, |_, _| true).len(), 1);
        log.state.acknowledge(from_bits(7), 1);
        assert_eq!(numbers(&log.state), [0; 0]);
    }

    #[test]
    fn the_latest_kills_stay() {
        let mut state = state(&[4; LATEST + 2]);
        state.acknowledge(from_bits(4), 1);
        state.acknowledge(from_bits(4), 9);
        assert_eq!(state.aggregate(false, false, 1), 256);
        assert_eq!((numbers(&state), state.latest().len()), (vec![2], LATEST));
        let (mut again, frames) = (State::default(), state.frames());
        for frame in frames {
            again.replay_entry(&frame.unwrap()[12..]).unwrap();
        }
        assert_eq!((numbers(&again), again.latest()), (vec![2], state.latest()));
        assert_eq!(again.slots[&2].report.count(), 256);
    }

    #[test]
    fn reports_without_a_receiver_are_counted() {
        for (selected, forgotten) in [(1, 1), (2, 3), (5, 0)] {
            let found = state(&[1, 5, 4, 0]);
            assert_eq!(State::default().take_in(found, from_bits(selected)), forgotten);
        }
    }

    #[test]
    fn sent_reports_are_not_aggregated() {
        let mut log = log(&[6, 6, 2, 6]);
        assert_eq!(log.next_for(Destination::Grpc, 0, 2, |_, _| true).len(), 2);
        assert_eq!(
            log.state.aggregate(false, false, 1),
            0,
            "3 and 4 have other destinations"
        );
        assert_eq!(log.next_for(Destination::VpaEvents, 0, 1, |_, _| true).len(), 1);
        log.state.acknowledge(from_bits(2), 4);
        assert_eq!(numbers(&log.state), [1, 2, 3, 4]);
        assert_eq!(log.state.aggregate(false, true, 1), 2, "1 and 2");
        assert_eq!(numbers(&log.state), [3, 4, 5]);
    }

    #[test]
    fn reports_left_out_are_not_sent() {
        let mut log = log(&[1; 6]);
        let sent = log.next_for(Destination::PodEvents, 0, 9, |number, _| number % 2 == 1);
        assert_eq!(sent.len(), 3);
        assert_eq!(log.state.aggregate(true, false, 1), 3, "2, 4 and 6");
        assert_eq!(numbers(&log.state), [1, 2, 3, 5]);
    }
}
