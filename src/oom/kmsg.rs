//! `/dev/kmsg`, or syslog(2) where a pod has no such device → [`Notice`]s, read by whoever waits for them.
//!
//! If records were overwritten before they could be read, [`Notice::Lost`] says so, and the receiver looks at all counters at
//! once. What was already in the log when it was opened is told as [`Origin::Replayed`], and not at all up to the
//! [`Position`] of a process that read it before.
//!
//! One `read` returns one record; EAGAIN is the end for now, EPIPE says that records were overwritten (the next read
//! returns the oldest that is left), EINVAL that a record was larger than the buffer and is passed over (`devkmsg_read` in
//! kernel/printk/printk.c). Opening needs CAP_SYSLOG where `kernel.dmesg_restrict` is 1.

mod clock;
mod device;
mod error;
mod notice;
mod syslog;
mod tracker;
mod unread;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clock::Now;
pub use clock::monotonic;
use device::{BUFFER, Device};
pub use error::KmsgError;
pub use notice::{BootId, LogEvent, Loss, Notice, Origin, Position};
use syslog::{LineNumber, Syslog};
use tracker::{Attempt, Tracker};

/// The device.
pub const DEVICE: &str = "/dev/kmsg";
/// The word for the system call in its place.
pub const SYSLOG: &str = "syslog";
/// Records read in a row before others get their turn.
const AT_ONCE: usize = 1024;

/// What to read, and from where on.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device, or [`SYSLOG`]. Where [`DEVICE`] cannot be opened, syslog(2) is read in its place.
    pub device: PathBuf,
    /// Up to where an earlier process told what it read. Of another boot, it means nothing.
    pub told: Option<Position>,
}

impl Default for Options {
    fn default() -> Self {
        let device = PathBuf::from(DEVICE);
        Self { device, told: None }
    }
}

/// The sources there are.
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

    /// Reads the next record, if there is one.
    fn read<'b>(&mut self, buffer: &'b mut [u8]) -> Result<Attempt<'b>, KmsgError> {
        match self {
            Self::Device(device) => device.read(buffer),
            Self::Syslog(syslog) => syslog.read(),
        }
    }

    /// Waits until the next record may be there. Cancel-safe.
    async fn readable(&mut self) -> Result<(), KmsgError> {
        match self {
            Self::Device(device) => device.readable().await,
            Self::Syslog(syslog) => {
                syslog.readable().await;
                Ok(())
            }
        }
    }

    /// There may be news, which the kernel announces at the device alone.
    fn wake(&mut self) {
        if let Self::Syslog(syslog) = self {
            syslog.wake();
        }
    }

    /// Up to when [`Attempt::AtEnd`], returned at that moment, says that everything was read; `None` if nothing was.
    fn as_of(&self, now: Now) -> Option<Now> {
        match self {
            Self::Device(_) => Some(now),
            Self::Syslog(syslog) => syslog.as_of(),
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

/// What the numbers of records count. Those of one source mean nothing in the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbering {
    /// Records since boot: `/dev/kmsg`.
    Records,
    /// Microseconds since boot, and the kills in each: syslog(2), which tells no number.
    Times,
}

impl Numbering {
    /// What this number counts.
    #[must_use]
    pub const fn of(seq: u64) -> Self {
        match LineNumber::of_seq(seq) {
            None => Self::Records,
            Some(_) => Self::Times,
        }
    }

    /// What a record of this number is called in the ids of kills.
    #[must_use]
    pub fn name(seq: u64) -> String {
        match LineNumber::of_seq(seq) {
            None => format!("log-{seq}"),
            Some(LineNumber {
                timestamp_us,
                ordinal: 0 | 1,
            }) => format!("time-{timestamp_us}"),
            Some(LineNumber { timestamp_us, ordinal }) => format!("time-{timestamp_us}-{ordinal}"),
        }
    }
}

/// Reads the log.
#[derive(Debug)]
pub struct KmsgReader {
    boot: BootId,
    source: Source,
    buffer: Box<[u8]>,
    tracker: Tracker,
    /// What was read and is not taken yet.
    notices: VecDeque<Notice>,
    /// Whether to tell how far the log is read.
    asked: bool,
    failed: Option<KmsgError>,
}

/// How far reading got.
enum Step {
    Record,
    AtEnd,
}

impl KmsgReader {
    /// Opens the log.
    ///
    /// # Errors
    /// [`KmsgError::Open`] with what to grant, or one of the rarer ones.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(options: Options) -> Result<Self, KmsgError> {
        let boot = BootId::current()?;
        let source = Source::open(&options.device)?;
        Ok(Self::of(source, boot, options.told))
    }

    fn of(source: Source, boot: BootId, told: Option<Position>) -> Self {
        let numbering = match source {
            Source::Device(_) => Numbering::Records,
            Source::Syslog(_) => Numbering::Times,
        };
        let told = told.filter(|told| told.boot == boot && Numbering::of(told.seq) == numbering);
        Self {
            boot,
            source,
            buffer: vec![0; BUFFER].into(),
            tracker: Tracker::new(told.map(|told| told.seq), numbering),
            notices: VecDeque::new(),
            asked: false,
            failed: None,
        }
    }

    /// What the numbers of records count.
    #[must_use]
    pub const fn numbering(&self) -> Numbering {
        self.tracker.numbering()
    }

    /// Something says that there may be news in the log. Needed where the kernel does not tell when there is.
    pub fn wake(&mut self) {
        self.source.wake();
    }

    /// The boot that the positions are of.
    #[must_use]
    pub const fn boot(&self) -> &BootId {
        &self.boot
    }

    /// Waits for the next notice; `None` when the log cannot be read any more, and [`Self::stop`] says why. Cancel-safe.
    pub async fn next(&mut self) -> Option<Notice> {
        loop {
            for _ in 0..AT_ONCE {
                if let Some(notice) = self.notices.pop_front() {
                    return Some(notice);
                }
                match self.step()? {
                    Step::Record => {}
                    Step::AtEnd if self.notices.is_empty() => {
                        let readable = self.source.readable().await;
                        self.checked(readable)?;
                    }
                    Step::AtEnd => {}
                }
            }
            // A process may fill the log faster than it can be read.
            tokio::task::yield_now().await;
        }
    }

    /// The next notice, if one is there now.
    pub fn next_now(&mut self) -> Option<Notice> {
        for _ in 0..AT_ONCE {
            if !self.notices.is_empty() {
                break;
            }
            if let Step::AtEnd = self.step()? {
                break;
            }
        }
        self.notices.pop_front()
    }

    /// Has the reader tell [`Notice::UpTo`] when it has read to the end of the log.
    pub fn request_position(&mut self) {
        self.asked = true;
        self.source.wake();
    }

    /// Closes the log, and says whether it could not be read any more.
    ///
    /// # Errors
    /// Why.
    pub fn stop(self) -> Result<(), KmsgError> {
        self.failed.map_or(Ok(()), Err)
    }

    /// Reads once; `None` when the log cannot be read any more.
    fn step(&mut self) -> Option<Step> {
        let now = self.checked(Now::read().map_err(KmsgError::Clock))?;
        let attempt = match self.source.read(&mut self.buffer) {
            Ok(attempt) => attempt,
            Err(error) => {
                self.failed = Some(error);
                return None;
            }
        };
        if matches!(attempt, Attempt::NotRead) {
            return Some(Step::AtEnd);
        }
        let as_of = self.source.as_of(now).filter(|_| matches!(attempt, Attempt::AtEnd));
        self.notices.extend(self.tracker.record_read(attempt, now));
        let Some(as_of) = as_of else {
            return Some(Step::Record);
        };
        if std::mem::take(&mut self.asked) {
            let up_to = u64::try_from(as_of.monotonic_us).unwrap_or(0);
            self.notices.push_back(Notice::UpTo(Duration::from_micros(up_to)));
        }
        Some(Step::AtEnd)
    }

    fn checked<T>(&mut self, result: Result<T, KmsgError>) -> Option<T> {
        result.map_err(|error| self.failed = Some(error)).ok()
    }
}

#[cfg(test)]
mod tests;
