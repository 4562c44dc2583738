//! What reading `/dev/kmsg` returned → what to tell. No I/O and no clock: both are arguments.

use std::time::Duration;

use super::clock::{LogClock, Now};
use super::{LogEvent, Loss, Notice, Numbering, Origin};
use crate::oom::assemble::Assembler;
use crate::oom::line::Line;
use crate::oom::parse::Parser;
use crate::oom::record::Record;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Attempt<'a> {
    Record(&'a [u8]),
    /// A line of a log that is read as text. Its number is its time.
    Line(Line),
    /// Nothing was read: it is not time to.
    NotRead,
    AtEnd,
    /// Records were overwritten. The next read returns the oldest that is left.
    Overwritten,
    /// A record did not fit and is passed over.
    TooLong,
}

/// Where in the log we are.
#[derive(Debug)]
pub(super) struct Tracker {
    /// An earlier process told everything up to this record.
    told: Option<u64>,
    numbering: Numbering,
    /// The number of the record that comes next.
    next: Option<u64>,
    origin: Origin,
    /// Whether the record that comes next was waited for.
    waited: bool,
    overwritten: bool,
    clock: LogClock,
    assembler: Assembler,
    parser: Parser,
}

impl Tracker {
    pub(super) fn new(told: Option<u64>, numbering: Numbering) -> Self {
        Self {
            told,
            numbering,
            next: None,
            origin: Origin::Replayed,
            waited: false,
            overwritten: false,
            clock: LogClock::default(),
            assembler: Assembler::default(),
            parser: Parser::default(),
        }
    }

    pub(super) const fn numbering(&self) -> Numbering {
        self.numbering
    }

    /// Accounts for what a read returned, at the time it returned.
    pub(super) fn record_read(&mut self, attempt: Attempt<'_>, now: Now) -> impl Iterator<Item = Notice> + use<> {
        let (loss, notice) = match attempt {
            Attempt::Record(bytes) => match Record::parse(bytes) {
                Some(record) => {
                    let gap = self.gap_before(record.seq);
                    (gap, Line::of_record(&record).and_then(|line| self.line(line, now)))
                }
                None => (None, None),
            },
            Attempt::Line(line) => (self.unknown_gap(), self.line(line, now)),
            Attempt::NotRead => (None, None),
            Attempt::AtEnd => (self.unknown_gap(), self.at_end()),
            Attempt::Overwritten => {
                self.overwritten = true;
                (None, None)
            }
            Attempt::TooLong => {
                self.next = self.next.map(|next| next + 1);
                self.forget();
                (Some(Loss::TooLong), None)
            }
        };
        loss.map(Notice::Lost).into_iter().chain(notice)
    }

    fn line(&mut self, line: Line, now: Now) -> Option<Notice> {
        let (seq, timestamp_us) = (line.seq?, line.timestamp_us?);
        if std::mem::take(&mut self.waited) {
            self.clock.observe(timestamp_us, now);
        }
        let line = self.assembler.push(line)?;
        let event = self.parser.push(&line)?;
        let is_told = self.origin == Origin::Replayed && self.told.is_some_and(|told| seq <= told);
        let at = match (self.origin, self.numbering) {
            (Origin::Live, Numbering::Records) => now.wall,
            (Origin::Replayed, _) | (_, Numbering::Times) => self.clock.wall(timestamp_us, now),
        };
        let logged = self.clock.monotonic_us(timestamp_us, now);
        (!is_told).then_some(Notice::Event(LogEvent {
            logged: Duration::from_micros(u64::try_from(logged).unwrap_or(0)),
            event,
            seq,
            at,
            origin: self.origin,
        }))
    }

    fn at_end(&mut self) -> Option<Notice> {
        self.waited = true;
        let was = std::mem::replace(&mut self.origin, Origin::Live);
        (was == Origin::Replayed).then_some(Notice::CaughtUp)
    }

    /// Compares the number of a record with the one that was due.
    fn gap_before(&mut self, seq: u64) -> Option<Loss> {
        let records = self.next.map_or(0, |next| seq.saturating_sub(next));
        self.next = Some(seq.saturating_add(1));
        let is_gap = std::mem::take(&mut self.overwritten) || records > 0;
        is_gap.then(|| {
            self.forget();
            Loss::Overwritten { records }
        })
    }

    fn unknown_gap(&mut self) -> Option<Loss> {
        let is_gap = std::mem::take(&mut self.overwritten);
        is_gap.then(|| {
            self.forget();
            Loss::Overwritten { records: 0 }
        })
    }

    fn forget(&mut self) {
        self.assembler.lost();
        self.parser.lost();
    }
}
