//! Reads the kernel's log from `/dev/kmsg`, or through syslog(2) where a pod has no such device, and returns
//! [`Notice`]s.
//!
//! If the kernel overwrote records before the agent read them, the reader returns [`Notice::Lost`], and the receiver
//! reads all counters at once. Events that were in the log when the reader opened it are [`Origin::Replayed`]. The
//! reader skips those up to the last record that an earlier agent reported.
//!
//! One `read` of the device returns one record. EAGAIN is the end for now. EPIPE says that the kernel overwrote
//! records: the next read returns the oldest one left. EINVAL says that a record was larger than the buffer and is
//! skipped (`devkmsg_read` in kernel/printk/printk.c). Opening needs CAP_SYSLOG where `kernel.dmesg_restrict` is 1.

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
use super::join::LogPlace;
use super::numbers::Offset;
use super::parse::Event;
pub(super) use device::async_fd;
use device::{BUFFER, Device};
pub use syslog::Numbering;
use syslog::Syslog;
use tracker::{Attempt, ReadToEnd, Tracker};

pub const DEVICE: &str = "/dev/kmsg";
/// The word in the configuration for syslog(2).
pub const SYSLOG: &str = "syslog";
/// The reader reads this many records before it lets other tasks run.
const AT_ONCE: usize = 1024;

/// The id of a boot of the machine: `/proc/sys/kernel/random/boot_id`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

/// Whether the kernel logged an event while this agent read the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    Live,
    /// The event was in the log before the reader reached the end for the first time.
    Replayed,
}

/// An event with its record and its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEvent {
    pub event: Event,
    /// The number of the record that completed the event.
    pub seq: u64,
    /// The time is exact to about a millisecond.
    pub place: LogPlace,
    /// The time of the record by the wall clock. A live one is exact to the delay of the reader, others to about a
    /// millisecond, unless the machine was suspended since.
    pub at: Timestamp,
    pub origin: Origin,
}

/// What the reader returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Event(LogEvent),
    /// A part of the log is missing: read all counters.
    Lost(Loss),
    /// The reader returned everything that was in the log when it opened the log.
    CaughtUp,
}

/// The part of the log that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The kernel overwrote this many records of any kind; 0 if their number is unknown.
    Overwritten { records: u64 },
    /// A record was larger than the buffer.
    TooLong,
}

/// A way to read the log.
#[derive(Debug)]
enum Source {
    Device(Device),
    Syslog(Syslog),
}

impl Source {
    /// Opens the configured source: syslog(2) for the word [`SYSLOG`], else the device. If [`DEVICE`] cannot
    /// be opened, opens syslog(2) instead.
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

/// Checks that syslog(2) answers this process. Blocks for a moment.
///
/// Errors: the right that the pod needs.
pub fn probe_syslog() -> Result<()> {
    Syslog::open().map(drop)
}

/// Reads the kernel's log from where an earlier agent of this boot ended.
#[derive(Debug)]
pub struct KmsgReader {
    source: Source,
    buffer: Box<[u8]>,
    tracker: Tracker,
    /// The notices that [`Self::next`] has not returned yet.
    notices: VecDeque<Notice>,
    /// The latest time at which the reader was at the end of the log.
    read_up_to: Option<Duration>,
}

impl KmsgReader {
    /// Opens the log: `device`, or [`SYSLOG`]. If [`DEVICE`] cannot be opened, reads syslog(2) instead. An earlier
    /// agent of this boot has reported the events up to the record `reported`.
    ///
    /// Errors: the right or the device that the pod needs, or another cause.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(device: &Path, reported: Option<u64>) -> Result<Self> {
        Ok(Self::of(Source::open(device)?, reported))
    }

    fn of(source: Source, reported: Option<u64>) -> Self {
        let numbering = match source {
            Source::Device(_) => Numbering::Records,
            Source::Syslog(_) => Numbering::Times,
        };
        Self {
            source,
            buffer: vec![0; BUFFER].into(),
            tracker: Tracker::new(reported, numbering),
            notices: VecDeque::new(),
            read_up_to: None,
        }
    }

    /// The numbering of this source.
    pub const fn numbering(&self) -> Numbering {
        self.tracker.numbering
    }

    /// Asks for a read of syslog(2), which cannot be waited for.
    pub const fn wake(&mut self) {
        if let Source::Syslog(syslog) = &mut self.source {
            syslog.wake();
        }
    }

    /// The reader has returned everything that the kernel logged before this moment of CLOCK_MONOTONIC. Returns `None`
    /// before the reader first reached the end, and while notices wait.
    pub fn read_up_to(&self) -> Option<Duration> {
        self.read_up_to.filter(|_| self.notices.is_empty())
    }

    /// How far the numbers of kills are ahead of the latest lines.
    pub const fn offset(&self) -> Offset {
        self.tracker.numbers.offset()
    }

    /// Waits for the next notice. Cancel-safe.
    ///
    /// Errors: the log cannot be read any more, and why.
    pub async fn next(&mut self) -> Result<Notice> {
        loop {
            if let Some(notice) = self.next_now()? {
                return Ok(notice);
            }
            match &mut self.source {
                Source::Device(device) => device.readable().await?,
                Source::Syslog(syslog) => syslog.readable().await,
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
            if !self.notices.is_empty() || !self.read_once()? {
                break;
            }
        }
        Ok(self.notices.pop_front())
    }

    /// Reads one record. Returns whether the log may hold another one now.
    fn read_once(&mut self) -> Result<bool> {
        let now = Moment::now();
        let attempt = match &mut self.source {
            Source::Device(device) => match device.read(&mut self.buffer)? {
                Attempt::AtEnd(end) if self.tracker.numbers.wants_count() => {
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
