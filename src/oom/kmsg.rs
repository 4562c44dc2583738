//! `/dev/kmsg`, or syslog(2) where a pod has no such device → [`Notice`]s, read by whoever waits for them.
//!
//! If records were overwritten before they could be read, [`Notice::Lost`] says so, and the receiver looks at all counters at
//! once. What was already in the log when it was opened is told as [`Origin::Replayed`], and not at all up to the
//! [`Position`] of a process that read it before.
//!
//! One `read` returns one record; EAGAIN is the end for now, EPIPE says that records were overwritten (the next read
//! returns the oldest that is left), EINVAL that a record was larger than the buffer and is passed over (`devkmsg_read` in
//! kernel/printk/printk.c). Opening needs CAP_SYSLOG where `kernel.dmesg_restrict` is 1.

mod device;
mod error;
mod notice;
mod syslog;
mod tracker;
mod unread;

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use super::clock::Moment;
pub use super::clock::monotonic;
use device::{BUFFER, Device};
pub use error::KmsgError;
pub use notice::{BootId, LogEvent, Loss, Notice, Origin, Position};
pub use syslog::Numbering;
use syslog::Syslog;
use tracker::{Attempt, Tracker};

/// The device.
pub const DEVICE: &str = "/dev/kmsg";
/// The word for the system call in its place.
pub const SYSLOG: &str = "syslog";
/// Records read in a row before others get their turn.
const AT_ONCE: usize = 1024;

/// Where the log is read.
#[derive(Debug)]
enum Source {
    Device(Device),
    Syslog(Syslog),
}

impl Source {
    /// Opens what is configured: the word [`SYSLOG`], a device, or what there is of both where it is [`DEVICE`].
    fn open(configured: &Path) -> Result<Self, KmsgError> {
        if configured == Path::new(SYSLOG) {
            return Syslog::open().map(Self::Syslog);
        }
        match Device::open(configured.to_owned()) {
            Ok(device) => Ok(Self::Device(device)),
            Err(device @ KmsgError::Open { .. }) if configured == Path::new(DEVICE) => match Syslog::open() {
                Ok(syslog) => Ok(Self::Syslog(syslog)),
                Err(syslog) => Err(KmsgError::Neither {
                    device: device.to_string(),
                    syslog: syslog.to_string(),
                }),
            },
            Err(error) => Err(error),
        }
    }
}

/// Whether syslog(2) answers this process. Blocks for a moment.
///
/// # Errors
/// [`KmsgError`] with what to grant.
pub fn probe_syslog() -> Result<(), KmsgError> {
    Syslog::open().map(drop)
}

/// Reads the log.
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
    /// `told` an earlier process told what it read; of another boot, that means nothing.
    ///
    /// # Errors
    /// [`KmsgError::Open`] with what to grant, or one of the rarer ones.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(device: &Path, told: Option<Position>) -> Result<Self, KmsgError> {
        let boot = BootId::current()?;
        let told = told.filter(|told| told.boot == boot).map(|told| told.seq);
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
    #[must_use]
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
    #[must_use]
    pub fn read_up_to(&self) -> Option<Duration> {
        self.read_up_to.filter(|_| self.notices.is_empty())
    }

    /// Waits for the next notice. Cancel-safe.
    ///
    /// # Errors
    /// Why the log cannot be read any more.
    pub async fn next(&mut self) -> Result<Notice, KmsgError> {
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
    /// # Errors
    /// Why the log cannot be read any more.
    pub fn next_now(&mut self) -> Result<Option<Notice>, KmsgError> {
        for _ in 0..AT_ONCE {
            if !self.notices.is_empty() || !self.read_once()? {
                break;
            }
        }
        Ok(self.notices.pop_front())
    }

    /// Reads one record. Whether there may be another one now.
    fn read_once(&mut self) -> Result<bool, KmsgError> {
        let now = Moment::now();
        let attempt = match &mut self.source {
            Source::Device(device) => device.read(&mut self.buffer)?,
            Source::Syslog(syslog) => syslog.read()?,
        };
        let read_up_to = match attempt {
            Attempt::NotDue => return Ok(false),
            Attempt::AtEnd(as_of) => Some(as_of.unwrap_or(now.monotonic)),
            _ => None,
        };
        self.notices.extend(self.tracker.record_read(attempt, now));
        self.read_up_to = read_up_to.or(self.read_up_to);
        Ok(read_up_to.is_none())
    }
}

#[cfg(test)]
mod tests;
