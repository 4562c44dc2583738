//! Turns the results of reads of the log into notices. Pure: results and times are arguments.

use std::time::Duration;

use super::{LogEvent, Notice, Origin};
use crate::oom::assemble::Assembler;
use crate::oom::clock::{LogClock, Moment};
use crate::oom::join::LogPlace;
use crate::oom::numbers::{KillLine, LineNumbers};
use crate::oom::parse::Parser;
use crate::oom::record::Line;

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Attempt {
    /// A line of the kernel. The number of a line of syslog(2) is its time.
    Line(Line),
    /// A signal interrupted the read, or the kernel did not write the record.
    Nothing,
    /// The end of the log. The source has returned everything that the kernel logged before this moment of
    /// CLOCK_MONOTONIC.
    AtEnd(Duration),
    /// The kernel overwrote records, or one was larger than the buffer. The next read returns the record after these.
    Lost,
}

/// The position in the log.
#[derive(Debug)]
pub(super) struct Tracker {
    /// An earlier agent reported everything up to this record.
    reported: Option<u64>,
    origin: Origin,
    /// Whether the agent waits for the next record, so that it reads the record at once.
    waited: bool,
    clock: LogClock,
    assembler: Assembler,
    parser: Parser,
    pub(super) numbers: LineNumbers,
}

impl Tracker {
    /// Begins before the log's first record.
    pub(super) fn new(reported: Option<u64>) -> Self {
        Self {
            reported,
            origin: Origin::Replayed,
            waited: false,
            clock: LogClock::default(),
            assembler: Assembler::default(),
            parser: Parser::default(),
            numbers: LineNumbers::default(),
        }
    }

    /// Takes the result of a read, and the time at which the read returned.
    pub(super) fn record_read(&mut self, attempt: Attempt, now: Moment) -> Option<Notice> {
        match attempt {
            Attempt::Line(line) => self.line(line, now).map(Notice::Event),
            Attempt::Nothing => None,
            Attempt::AtEnd(_) => {
                (self.waited, self.origin) = (true, Origin::Live);
                None
            }
            Attempt::Lost => {
                self.assembler.lost();
                self.parser.lost();
                self.numbers.lost();
                Some(Notice::Lost)
            }
        }
    }

    fn line(&mut self, line: Line, now: Moment) -> Option<LogEvent> {
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
        Some(LogEvent {
            event,
            seq,
            place: LogPlace {
                time: logged,
                line: kill,
            },
            at: now.wall_at(logged),
            origin: self.origin,
        })
    }
}
