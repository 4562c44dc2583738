//! The kernel's log through syslog(2), for pods without the device: CAP_SYSLOG is all it takes.
//!
//! The call copies what the log holds and takes nothing from other readers (`SYSLOG_ACTION_READ_ALL`). It cannot be waited
//! for, so it is made when something says that there is news ([`Syslog::wake`]), ten times a second at most, and only what
//! is new since the call before is told ([`Unread`]).

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use rmesg::error::RMesgError;
use rmesg::klogctl::{KLogType, safely_wrapped_klogctl};
use tokio::time::{Instant, sleep_until};

use super::KmsgError;
use super::clock::Now;
use super::tracker::Attempt;
use super::unread::Unread;
use crate::oom::line::Line;
use crate::oom::text;

/// The time between two calls.
const BETWEEN_CALLS: Duration = Duration::from_millis(100);
/// The text of a log is longer than the log: each line of it repeats the time.
const TEXT_PER_BYTE: usize = 2;
/// What is read of a log at most, its end.
const MOST_READ: usize = 2 << 20;
/// The numbers of lines begin here. No record of `/dev/kmsg` has so high a number.
const FIRST_NUMBER: u64 = 1 << 63;
/// So many bits of a number tell apart kills of one microsecond: some machines have a clock of ten milliseconds.
const ORDINAL_BITS: u32 = 12;
const LAST_ORDINAL: u64 = (1 << ORDINAL_BITS) - 1;
/// What each kill has one line with.
const KILLED: &str = "Killed process ";

/// The number of a line: its time, and how many kills were logged at that time up to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LineNumber {
    pub(super) timestamp_us: u64,
    pub(super) ordinal: u64,
}

impl LineNumber {
    /// That of a line after this one.
    fn next(self, timestamp_us: u64, text: &str) -> Self {
        let before = if timestamp_us == self.timestamp_us {
            self.ordinal
        } else {
            0
        };
        let ordinal = (before + u64::from(text.contains(KILLED))).min(LAST_ORDINAL);
        Self { timestamp_us, ordinal }
    }

    pub(super) const fn to_seq(self) -> u64 {
        FIRST_NUMBER | (self.timestamp_us << ORDINAL_BITS) | self.ordinal
    }

    /// `None` for the number of a record.
    pub(super) const fn of_seq(seq: u64) -> Option<Self> {
        if seq < FIRST_NUMBER {
            return None;
        }
        Some(Self {
            timestamp_us: (seq - FIRST_NUMBER) >> ORDINAL_BITS,
            ordinal: seq & LAST_ORDINAL,
        })
    }
}

/// One call: what the log holds.
type ReadAll = Box<dyn FnMut() -> Result<Vec<u8>, KmsgError> + Send>;

/// The log, as read last.
pub(super) struct Syslog {
    read_all: ReadAll,
    unread: Unread,
    lines: VecDeque<Line>,
    last: LineNumber,
    /// Something says that there is news.
    woken: bool,
    /// Whether lines were overwritten before the call read them, and this is not told yet.
    overwritten: bool,
    /// The end of what was read is not told yet.
    at_end: bool,
    called: Option<Instant>,
    /// A moment before the last call.
    as_of: Option<Now>,
}

impl Syslog {
    /// Makes the first call.
    pub(super) fn open() -> Result<Self, KmsgError> {
        Self::new(Box::new(read_all))
    }

    /// The same with another log.
    pub(super) fn new(read_all: ReadAll) -> Result<Self, KmsgError> {
        let mut syslog = Self {
            read_all,
            unread: Unread::default(),
            lines: VecDeque::new(),
            last: LineNumber::default(),
            woken: true,
            overwritten: false,
            at_end: false,
            called: None,
            as_of: None,
        };
        syslog.call()?;
        Ok(syslog)
    }

    fn is_due(&self) -> bool {
        self.woken
            && self
                .called
                .is_none_or(|called| called + BETWEEN_CALLS <= Instant::now())
    }

    fn call(&mut self) -> Result<(), KmsgError> {
        self.woken = false;
        self.as_of = Some(Now::read().map_err(KmsgError::Clock)?);
        let log = (self.read_all)()?;
        self.called = Some(Instant::now());
        self.at_end = true;
        let new = self.unread.after(&log);
        self.overwritten = new.lost;
        for bytes in new.text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let Some(line) = text::kernel_line(&String::from_utf8_lossy(bytes)) else {
                continue;
            };
            let timestamp_us = line.timestamp_us.ok_or(KmsgError::NoTimes)?;
            self.last = self.last.next(timestamp_us, &line.text);
            let seq = Some(self.last.to_seq());
            self.lines.push_back(Line { seq, ..line });
        }
        Ok(())
    }

    /// The next line, if there is one.
    pub(super) fn read<'b>(&mut self) -> Result<Attempt<'b>, KmsgError> {
        if !self.at_end && self.is_due() {
            self.call()?;
        }
        if std::mem::take(&mut self.overwritten) {
            return Ok(Attempt::Overwritten);
        }
        if let Some(line) = self.lines.pop_front() {
            return Ok(Attempt::Line(line));
        }
        if std::mem::take(&mut self.at_end) {
            return Ok(Attempt::AtEnd);
        }
        Ok(Attempt::NotRead)
    }

    /// Waits until it is time for a call. Cancel-safe.
    pub(super) async fn readable(&self) {
        match self.called.filter(|_| self.woken) {
            Some(called) => sleep_until(called + BETWEEN_CALLS).await,
            None if self.woken => {}
            None => std::future::pending().await,
        }
    }

    /// Something says that there is news.
    pub(super) const fn wake(&mut self) {
        self.woken = true;
    }

    /// A moment before the last call.
    pub(super) const fn as_of(&self) -> Option<Now> {
        self.as_of
    }
}

impl fmt::Debug for Syslog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, woken, .. } = self;
        formatter
            .debug_struct("Syslog")
            .field("lines", &lines.len())
            .field("woken", woken)
            .finish_non_exhaustive()
    }
}

/// What the log holds, or the end of it.
fn read_all() -> Result<Vec<u8>, KmsgError> {
    let refused = |error: RMesgError| match error {
        RMesgError::OperationNotPermitted(_) => KmsgError::SyslogRefused,
        other => KmsgError::Syslog(other.to_string()),
    };
    let size = safely_wrapped_klogctl(KLogType::SyslogActionSizeBuffer, &mut []).map_err(refused)?;
    let mut log = vec![0; size.saturating_mul(TEXT_PER_BYTE).min(MOST_READ)];
    let read = safely_wrapped_klogctl(KLogType::SyslogActionReadAll, &mut log).map_err(refused)?;
    log.truncate(read);
    Ok(log)
}
