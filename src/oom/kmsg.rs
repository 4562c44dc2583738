//! `/dev/kmsg`, or syslog(2) where a pod has no such device → [`Notice`]s, read by whoever waits for them.
//!
//! If records were overwritten before they could be read, [`Notice::Lost`] says so, and the receiver looks at all counters at
//! once. What was already in the log when it was opened is told as [`Origin::Replayed`], and not at all up to the
//! last record that a process told that read it before.
//!
//! One `read` returns one record; EAGAIN is the end for now, EPIPE says that records were overwritten (the next read
//! returns the oldest that is left), EINVAL that a record was larger than the buffer and is passed over (`devkmsg_read` in
//! kernel/printk/printk.c). Opening needs CAP_SYSLOG where `kernel.dmesg_restrict` is 1.

mod device;
mod syslog;
mod tracker;
mod unread;

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::clock::Moment;
pub use super::clock::monotonic;
use super::counters::machine_kill_count;
use super::numbers::{KillLine, Offset};
use super::parse::Event;
pub(super) use device::async_fd;
use device::{BUFFER, Device};
pub use syslog::Numbering;
use syslog::Syslog;
use tracker::{Attempt, ReadToEnd, Tracker};

pub const DEVICE: &str = "/dev/kmsg";
/// The word for the system call in its place.
pub const SYSLOG: &str = "syslog";
/// Records read in a row before others get their turn.
const AT_ONCE: usize = 1024;

/// Which boot of the machine: `/proc/sys/kernel/random/boot_id`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub String);

impl BootId {
    /// That of the running kernel.
    ///
    /// Errors: when /proc cannot be read.
    pub fn current() -> Result<Self> {
        let id = procfs::sys::kernel::random::boot_id();
        id.map(Self)
            .map_err(|error| anyhow!("cannot tell which boot this is: {error}; mount /proc"))
    }
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
    /// Which of the kills in the log it is.
    pub line: KillLine,
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

/// Where the log is read.
#[derive(Debug)]
enum Source {
    Device(Device),
    Syslog(Syslog),
}

impl Source {
    /// Opens what is configured: the word [`SYSLOG`], a device, or what there is of both where it is [`DEVICE`].
    fn open(configured: &Path) -> Result<Self> {
        if configured == Path::new(SYSLOG) {
            return Syslog::open().map(Self::Syslog);
        }
        match Device::open(configured.to_owned()) {
            Err(device) if configured == Path::new(DEVICE) => match Syslog::open() {
                Ok(syslog) => Ok(Self::Syslog(syslog)),
                Err(syslog) => Err(anyhow!("{syslog}; {device}")),
            },
            opened => opened.map(Self::Device),
        }
    }
}

/// Whether syslog(2) answers this process. Blocks for a moment.
///
/// Errors: what to grant.
pub fn probe_syslog() -> Result<()> {
    Syslog::open().map(drop)
}

/// Reads the kernel's log, and goes on where an earlier process of this boot ended.
#[derive(Debug)]
pub struct KmsgReader {
    source: Source,
    buffer: Box<[u8]>,
    tracker: Tracker,
    /// What was read and is not taken yet.
    notices: VecDeque<Notice>,
    read_up_to: Option<Duration>,
}

impl KmsgReader {
    /// Opens the log: `device`, or [`SYSLOG`]. Where [`DEVICE`] cannot be opened, syslog(2) is read in its place. Up to
    /// the record `told` an earlier process of this boot told what it read.
    ///
    /// Errors: what to grant, or, rarely, what else is wrong.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(device: &Path, told: Option<u64>) -> Result<Self> {
        Ok(Self::of(Source::open(device)?, told))
    }

    fn of(source: Source, told: Option<u64>) -> Self {
        let numbering = match source {
            Source::Device(_) => Numbering::Records,
            Source::Syslog(_) => Numbering::Times,
        };
        Self {
            source,
            buffer: vec![0; BUFFER].into(),
            tracker: Tracker::new(told, numbering),
            notices: VecDeque::new(),
            read_up_to: None,
        }
    }

    /// What the numbers of records count.
    pub const fn numbering(&self) -> Numbering {
        self.tracker.numbering()
    }

    /// Something says that there may be news in the log. Needed where the kernel does not tell when there is.
    pub const fn wake(&mut self) {
        if let Source::Syslog(syslog) = &mut self.source {
            syslog.wake();
        }
    }

    /// All that was logged before this moment of CLOCK_MONOTONIC was told; `None` before the log's first end was reached.
    pub fn read_up_to(&self) -> Option<Duration> {
        self.read_up_to.filter(|_| self.notices.is_empty())
    }

    /// Which kills the lines read last are.
    pub const fn offset(&self) -> Offset {
        self.tracker.numbers().offset()
    }

    /// Waits for the next notice. Cancel-safe.
    ///
    /// Errors: why the log cannot be read any more.
    pub async fn next(&mut self) -> Result<Notice> {
        loop {
            if let Some(notice) = self.next_now()? {
                return Ok(notice);
            }
            match &mut self.source {
                Source::Device(device) => device.readable().await?,
                Source::Syslog(syslog) => syslog.readable().await,
            }
            // A process may fill the log faster than it can be read.
            tokio::task::yield_now().await;
        }
    }

    /// The next notice, if one is there now.
    ///
    /// Errors: why the log cannot be read any more.
    pub fn next_now(&mut self) -> Result<Option<Notice>> {
        for _ in 0..AT_ONCE {
            if !self.notices.is_empty() || !self.read_once()? {
                break;
            }
        }
        Ok(self.notices.pop_front())
    }

    /// Reads one record. Whether there may be another one now.
    fn read_once(&mut self) -> Result<bool> {
        let now = Moment::now();
        let attempt = match &mut self.source {
            Source::Device(device) => match device.read(&mut self.buffer)? {
                Attempt::AtEnd(end) if self.tracker.numbers().wants_count() => {
                    let before = machine_kill_count();
                    match device.read(&mut self.buffer)? {
                        Attempt::AtEnd(_) => Attempt::AtEnd(ReadToEnd {
                            kills: before.zip(machine_kill_count()),
                            ..end
                        }),
                        other => other,
                    }
                }
                other => other,
            },
            Source::Syslog(syslog) => syslog.read()?,
        };
        let read_up_to = match attempt {
            Attempt::NotDue => return Ok(false),
            Attempt::AtEnd(end) => Some(end.as_of.unwrap_or(now.monotonic)),
            _ => None,
        };
        self.notices.extend(self.tracker.record_read(attempt, now));
        self.read_up_to = read_up_to.or(self.read_up_to);
        Ok(read_up_to.is_none())
    }
}

#[cfg(test)]
mod tests;
