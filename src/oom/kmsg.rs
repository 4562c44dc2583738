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
use device::Device;
pub(super) use device::async_fd;
pub use syslog::Numbering;
use syslog::Syslog;
use tracker::{Attempt, Tracker};

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
    /// The time of the record by the wall clock, exact to about a millisecond, unless the machine was suspended since.
    pub at: Timestamp,
    pub origin: Origin,
}

/// What the reader returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Event(LogEvent),
    /// A part of the log is missing: read all counters.
    Lost,
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

    const fn numbering(&self) -> Numbering {
        match self {
            Self::Device(_) => Numbering::Records,
            Self::Syslog(_) => Numbering::Times,
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
    tracker: Tracker,
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
        // The reader ignores a number of the other source.
        let reported = reported.filter(|record| Numbering::of(*record) == source.numbering());
        Self {
            source,
            tracker: Tracker::new(reported),
            read_up_to: None,
        }
    }

    /// The numbering of this source.
    pub const fn numbering(&self) -> Numbering {
        self.source.numbering()
    }

    /// Asks for a read of syslog(2), which cannot be waited for.
    pub const fn wake(&mut self) {
        if let Source::Syslog(syslog) = &mut self.source {
            syslog.wake();
        }
    }

    /// The reader has returned everything that the kernel logged before this moment of CLOCK_MONOTONIC. Returns `None`
    /// before the reader first reached the end.
    pub const fn read_up_to(&self) -> Option<Duration> {
        self.read_up_to
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
            let now = Moment::now();
            let attempt = match &mut self.source {
                Source::Device(device) => Some(device.read()?),
                Source::Syslog(syslog) => syslog.read()?,
            };
            let Some(attempt) = attempt else { break };
            if let Attempt::AtEnd(as_of) = attempt {
                self.read_up_to = Some(as_of);
                if self.tracker.numbers.wants_count() {
                    self.tracker.numbers.at_end(machine_kill_count(), now.monotonic);
                }
            }
            let is_at_end = matches!(attempt, Attempt::AtEnd(_));
            let notice = self.tracker.record_read(attempt, now);
            if notice.is_some() || is_at_end {
                return Ok(notice);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
