//! Turns the results of reads of the log into notices. Pure: results and times are arguments.

use std::time::Duration;

use super::{LogEvent, Loss, Notice, Numbering, Origin};
use crate::oom::assemble::Assembler;
use crate::oom::clock::{LogClock, Moment};
use crate::oom::join::LogPlace;
use crate::oom::numbers::{KillLine, LineNumbers};
use crate::oom::parse::Parser;
use crate::oom::record::{Line, Record};

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Attempt<'a> {
    Record(&'a [u8]),
    /// A line of syslog(2). Its number is its time.
    Line(Line),
    /// The source did not read: a call is not due, or a signal interrupted the read.
    NotDue,
    AtEnd(ReadToEnd),
    /// The kernel overwrote records. The next read returns the oldest one left.
    Overwritten,
    /// A record was larger than the buffer. The next read returns the one after.
    TooLong,
}

/// The source reached the end of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReadToEnd {
    /// The source has returned everything that the kernel logged before this moment of CLOCK_MONOTONIC; `None` stands
    /// for the moment of this read.
    pub(super) as_of: Option<Duration>,
    /// The machine's count of kills before and after that moment, if the source read it.
    pub(super) kills: Option<(u64, u64)>,
}

/// The position in the log.
#[derive(Debug)]
pub(super) struct Tracker {
    /// An earlier agent reported everything up to this record.
    reported: Option<u64>,
    pub(super) numbering: Numbering,
    /// The number of the next record.
    next: Option<u64>,
    origin: Origin,
    /// Whether the agent waits for the next record, so that it reads the record at once.
    waited: bool,
    overwritten: bool,
    clock: LogClock,
    assembler: Assembler,
    parser: Parser,
    pub(super) numbers: LineNumbers,
}

impl Tracker {
    /// Begins before the log's first record. Ignores a `reported` that is a number of the other source.
    pub(super) fn new(reported: Option<u64>, numbering: Numbering) -> Self {
        Self {
            reported: reported.filter(|record| Numbering::of(*record) == numbering),
            numbering,
            next: None,
            origin: Origin::Replayed,
            waited: false,
            overwritten: false,
            clock: LogClock::default(),
            assembler: Assembler::default(),
            parser: Parser::default(),
            numbers: LineNumbers::default(),
        }
    }

    /// Takes the result of a read, and the time at which the read returned.
    pub(super) fn record_read(&mut self, attempt: Attempt<'_>, now: Moment) -> impl Iterator<Item = Notice> + use<> {
        let (loss, notice) = match attempt {
            Attempt::Record(bytes) => match Record::parse(bytes) {
                Some(record) => {
                    let missing = self.next.map_or(0, |next| record.seq.saturating_sub(next));
                    self.next = Some(record.seq.saturating_add(1));
                    let loss = self.overwritten(missing);
                    (loss, Line::of_record(&record).and_then(|line| self.line(line, now)))
                }
                None => (None, None),
            },
            Attempt::Line(line) => (self.overwritten(0), self.line(line, now)),
            Attempt::NotDue => (None, None),
            Attempt::AtEnd(end) => {
                if let Some((before, after)) = end.kills {
                    self.numbers.at_end(before, after, now.monotonic);
                }
                self.waited = true;
                let was = std::mem::replace(&mut self.origin, Origin::Live);
                let caught_up = (was == Origin::Replayed).then_some(Notice::CaughtUp);
                (self.overwritten(0), caught_up)
            }
            Attempt::Overwritten => {
                self.overwritten = true;
                (None, None)
            }
            Attempt::TooLong => {
                self.next = self.next.map(|next| next + 1);
                (Some(self.lost(Loss::TooLong)), None)
            }
        };
        loss.map(Notice::Lost).into_iter().chain(notice)
    }

    fn line(&mut self, line: Line, now: Moment) -> Option<Notice> {
        let (seq, timestamp_us) = (line.seq?, line.timestamp_us?);
        if std::mem::take(&mut self.waited) {
            self.clock.observe(timestamp_us, now);
        }
        let line = self.assembler.push(line)?;
        let kills = self.parser.kill_lines();
        let event = self.parser.push(&line);
        let logged = self.clock.monotonic(timestamp_us, now);
        let kill = if self.parser.kill_lines() > kills {
            self.numbers.line(logged)
        } else {
            KillLine::default()
        };
        let event = event?;
        if self.origin == Origin::Replayed && self.reported.is_some_and(|record| seq <= record) {
            return None;
        }
        let at = match (self.origin, self.numbering) {
            (Origin::Live, Numbering::Records) => now.wall,
            (Origin::Replayed, _) | (_, Numbering::Times) => now.wall_at(logged),
        };
        Some(Notice::Event(LogEvent {
            event,
            seq,
            place: LogPlace {
                time: logged,
                line: kill,
            },
            at,
            origin: self.origin,
        }))
    }

    /// The loss before this read: the kernel overwrote this many records, as far as their numbers tell.
    fn overwritten(&mut self, records: u64) -> Option<Loss> {
        let is_gap = std::mem::take(&mut self.overwritten) || records > 0;
        is_gap.then(|| self.lost(Loss::Overwritten { records }))
    }

    fn lost(&mut self, loss: Loss) -> Loss {
        self.assembler.lost();
        self.parser.lost();
        self.numbers.lost();
        loss
    }
}
