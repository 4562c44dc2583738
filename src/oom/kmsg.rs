//! Reads the kernel's log from `/dev/kmsg`, or through syslog(2) where a pod has no such device, and returns
//! [`Notice`]s.
//!
//! If the kernel overwrote records before the agent read them, the reader returns [`Notice::Lost`], and the receiver
//! reads all counters at once. Events that were in the log when the reader opened it are marked as replayed. Records are
//! numbered by their time, so an agent continues where another one ended that read another source.
//!
//! One `read` of the device returns one record. EAGAIN is the end for now. EPIPE says that the kernel overwrote
//! records: the next read returns the oldest one left. EINVAL says that a record was larger than the buffer and is
//! skipped (`devkmsg_read` in kernel/printk/printk.c). Opening needs CAP_SYSLOG where `kernel.dmesg_restrict` is 1.

mod device;
mod syslog;

use std::fmt;
use std::mem::take;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::assemble::Assembler;
pub use super::clock::monotonic;
use super::clock::{LogClock, SLEW};
use super::counters::machine_kill_count;
use super::join::{LogPlace, SLACK};
use super::numbers::LineNumbers;
use super::parse::{Event, Parsed, Parser};
use super::record::Line;
use device::Device;
use syslog::Syslog;
pub use syslog::SyslogError;

pub const DEVICE: &str = "/dev/kmsg";
/// The word in the configuration for syslog(2).
pub const SYSLOG: &str = "syslog";
/// The time until the next attempt to open a log that cannot be read.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// The reader reads this many records before it lets other tasks run.
const AT_ONCE: usize = 1024;

/// The id of a boot of the machine: `/proc/sys/kernel/random/boot_id`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub String);

impl BootId {
    /// The id of the current boot.
    ///
    /// Errors: /proc cannot be read.
    pub fn current() -> Result<Self> {
        let id = procfs::sys::kernel::random::boot_id();
        id.map(Self)
            .map_err(|error| anyhow!("cannot tell which boot this is: {error}; mount /proc"))
    }
}

/// An event with its record and its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEvent {
    pub event: Event,
    /// The number of the record that completed the event.
    pub seq: u64,
    pub place: LogPlace,
    /// Whether the event was in the log before the reader reached the end for the first time.
    pub replayed: bool,
}

/// What the reader returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Event(LogEvent),
    /// A part of the log is missing: read all counters.
    Lost,
}

/// A way to read the log.
trait Source: fmt::Debug + Send {
    /// The name for people.
    fn name(&self) -> &'static str;

    /// Reads once; `None` if there is nothing to read before [`Self::readable`] returns.
    fn read(&mut self) -> Result<Option<Attempt>>;

    /// Waits until there may be something to read. Cancel-safe.
    fn readable(&mut self) -> BoxFuture<'_, Result<()>>;

    /// The log may have grown: for a source that cannot be waited for.
    fn wake(&mut self) {}
}

/// Opens the configured source: syslog(2) for the word [`SYSLOG`], else the device. If [`DEVICE`] cannot
/// be opened, opens syslog(2) instead.
fn open_source(configured: &Path) -> Result<Box<dyn Source>> {
    if configured == Path::new(SYSLOG) {
        return Ok(Box::new(Syslog::open()?));
    }
    match Device::open(configured.to_owned()) {
        Ok(device) => Ok(Box::new(device)),
        Err(device) if configured == Path::new(DEVICE) => match Syslog::open() {
            Ok(syslog) => Ok(Box::new(syslog)),
            Err(syslog) => Err(anyhow!("{syslog}; {device}")),
        },
        Err(device) => Err(device),
    }
}

/// The lowest number of a record. Agents before these numbers took the device's own, which are lower.
pub(super) const FIRST_NUMBER: u64 = 1 << 63;
/// This many bits of a number distinguish kills with the same time: some machines have a clock of ten milliseconds.
const ORDINAL_BITS: u32 = 12;
const LAST_ORDINAL: u64 = (1 << ORDINAL_BITS) - 1;

/// The number of a record with this time. `ordinal` kills have this time, up to this record.
pub(super) const fn record_number(timestamp_us: u64, ordinal: u64) -> u64 {
    FIRST_NUMBER | (timestamp_us << ORDINAL_BITS) | ordinal
}

/// The name of a record in the ids of kills.
pub(super) fn record_name(seq: u64) -> String {
    let time = seq & !FIRST_NUMBER;
    let timestamp_us = time >> ORDINAL_BITS;
    match time & LAST_ORDINAL {
        1 => format!("time-{timestamp_us}"),
        ordinal => format!("time-{timestamp_us}-{ordinal}"),
    }
}

/// Checks that syslog(2) answers this process. Blocks for a moment.
///
/// Errors: why it does not.
pub fn probe_syslog() -> Result<(), SyslogError> {
    Syslog::open().map(drop)
}

/// Reads the kernel's log from its beginning. A log that cannot be read is closed until the next attempt.
#[derive(Debug, Default)]
pub struct KmsgReader {
    device: PathBuf,
    /// `None` while the log is closed.
    source: Option<Box<dyn Source>>,
    tracker: Tracker,
    /// The latest time at which the reader was at the end of the log.
    read_up_to: Option<Duration>,
    /// When to try to open a closed log.
    try_at: Duration,
    /// Why the log is closed, and what to do about it.
    pub(super) problem: Option<String>,
}

impl KmsgReader {
    /// A closed log: `device`, or [`SYSLOG`]. If [`DEVICE`] cannot be opened, the reader uses syslog(2) instead.
    pub fn new(device: PathBuf) -> Self {
        Self {
            device,
            ..Self::default()
        }
    }

    /// Opens a closed log if an attempt is due. Returns whether this call opened it.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn open(&mut self, now: Duration) -> bool {
        if self.source.is_some() || now < self.try_at {
            return false;
        }
        match open_source(&self.device) {
            Ok(source) => self.begin(source),
            Err(error) => self.close(&error, now),
        }
        self.source.is_some()
    }

    /// Begins to read a source.
    fn begin(&mut self, source: Box<dyn Source>) {
        tracing::info!("the kernel's log is read through {}", source.name());
        *self = Self {
            source: Some(source),
            ..Self::new(take(&mut self.device))
        };
    }

    /// Closes a log that cannot be read any more.
    pub(super) fn close(&mut self, error: &Error, now: Duration) {
        self.source = None;
        self.try_at = now + TRY_AGAIN;
        let problem = format!("{error}; kills are counted, and reported without process and cause");
        if self.problem.as_ref() != Some(&problem) {
            tracing::warn!("{problem}");
        }
        self.problem = Some(problem);
    }

    /// When to try to open a closed log.
    pub(super) fn due(&self) -> Option<Duration> {
        self.source.is_none().then_some(self.try_at)
    }

    /// Requests a read of a source that cannot be waited for.
    pub fn wake(&mut self) {
        if let Some(source) = &mut self.source {
            source.wake();
        }
    }

    /// The reader has returned everything that the kernel logged before this moment of CLOCK_MONOTONIC. Returns `None`
    /// before the reader first reached the end. A closed log has no further events.
    pub const fn read_up_to(&self) -> Option<Duration> {
        match self.source {
            Some(_) => self.read_up_to,
            None => Some(Duration::MAX),
        }
    }

    /// Waits for the next notice, for ever while the log is closed. Cancel-safe.
    ///
    /// Errors: the log cannot be read any more, and why.
    pub async fn next(&mut self) -> Result<Notice> {
        loop {
            if let Some(notice) = self.next_now()? {
                return Ok(notice);
            }
            match &mut self.source {
                Some(source) => source.readable().await?,
                None => std::future::pending().await,
            }
            // A process may fill the log faster than the agent reads it.
            tokio::task::yield_now().await;
        }
    }

    /// The next notice, if the log holds one now.
    ///
    /// Errors: the log cannot be read any more, and why.
    pub fn next_now(&mut self) -> Result<Option<Notice>> {
        for _ in 0..AT_ONCE {
            let Some(source) = &mut self.source else { break };
            let event = match source.read()? {
                Some(Attempt::Line(line)) => self.tracker.line(line, monotonic()),
                Some(Attempt::Nothing) => None,
                Some(Attempt::Late { logged_us, by }) => {
                    self.tracker.waited = false;
                    self.tracker.clock.observe(logged_us, by);
                    None
                }
                Some(Attempt::Lost) => {
                    self.tracker.lost();
                    return Ok(Some(Notice::Lost));
                }
                Some(Attempt::AtEnd(as_of)) => {
                    self.read_up_to = Some(as_of);
                    self.tracker.at_end(machine_kill_count, monotonic);
                    break;
                }
                None => break,
            };
            if event.is_some() {
                return Ok(event.map(Notice::Event));
            }
        }
        Ok(None)
    }
}

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Attempt {
    /// A line of the kernel.
    Line(Line),
    /// A signal interrupted the read, or the kernel did not write the record.
    Nothing,
    /// The next lines were not read at once. The kernel logged the last of them at this time, before that moment of
    /// CLOCK_MONOTONIC.
    Late { logged_us: u64, by: Duration },
    /// The end of the log. The source has returned everything that the kernel logged before this moment of
    /// CLOCK_MONOTONIC.
    AtEnd(Duration),
    /// The kernel overwrote records, or one was larger than the buffer. The next read returns the record after these.
    Lost,
}

/// After a record that was read at once, times are exact to [`SLACK`] for so long.
const EXACT_FOR: Duration = SLACK.saturating_mul(SLEW);

/// The position in the log.
#[derive(Debug, Default)]
struct Tracker {
    /// The number of the last record of a kill.
    last_kill: u64,
    /// Whether the reader has reached the end.
    is_live: bool,
    /// Whether the agent waits for the next record, so that it reads the record at once.
    waited: bool,
    clock: LogClock,
    /// Until then times of records are exact; if not, they are too late.
    exact_until: Duration,
    assembler: Assembler,
    parser: Parser,
    numbers: LineNumbers,
}

impl Tracker {
    fn lost(&mut self) {
        // The next record is the oldest one left.
        self.waited = false;
        self.assembler.lost();
        self.parser.lost();
        self.numbers.lost();
    }

    /// The reader returned everything that was in the log. The time is that after the count: a kill between the two has no line yet.
    fn at_end(&mut self, count: impl FnOnce() -> Option<u64>, clock: impl FnOnce() -> Duration) {
        (self.waited, self.is_live) = (true, true);
        if self.numbers.wants_count() {
            self.numbers.at_end(count(), clock());
        }
    }

    /// Takes a line, and the time at which the read returned.
    fn line(&mut self, line: Line, now: Duration) -> Option<LogEvent> {
        let timestamp_us = line.timestamp_us?;
        if take(&mut self.waited) {
            self.clock.observe(timestamp_us, now);
            self.exact_until = now + EXACT_FOR;
        }
        let mut killed = None;
        for line in self.assembler.push(line) {
            if let Parsed::Kill(event) = self.parser.push(&line) {
                killed = Some(event);
            }
        }
        let event = killed?;
        // Numbers of kills ascend, also where their times do not: a lower one would count as reported.
        let seq = record_number(timestamp_us, 0).max(self.last_kill).saturating_add(1);
        self.last_kill = seq;
        let time = self.clock.monotonic(timestamp_us, now);
        let numbers = self.numbers.line(time);
        let mut event = event?;
        if let Event::Kill(kill) = &mut event {
            kill.seq = Some(seq);
        }
        Some(LogEvent {
            event,
            seq,
            place: LogPlace {
                time,
                is_exact: now <= self.exact_until,
                numbers,
            },
            replayed: !self.is_live,
        })
    }
}

#[cfg(test)]
mod tests;
