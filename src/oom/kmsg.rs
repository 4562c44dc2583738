//! `/dev/kmsg` → [`Notice`]s, read by whoever waits for them.
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
mod tracker;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use clock::Now;
pub use clock::monotonic;
use device::{BUFFER, Device};
pub use error::KmsgError;
pub use notice::{BootId, LogEvent, Loss, Notice, Origin, Position};
use tracker::{Attempt, Tracker};

/// The device.
pub const DEVICE: &str = "/dev/kmsg";
/// Records read in a row before others get their turn.
const AT_ONCE: usize = 1024;

/// What to read, and from where on.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device, [`DEVICE`] but for tests.
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

/// A source of the kernel's log, record by record.
trait RecordSource {
    /// Reads the next record, if there is one.
    fn read<'b>(&mut self, buffer: &'b mut [u8]) -> Result<Attempt<'b>, KmsgError>;

    /// Waits until the next record may be there. Cancel-safe.
    async fn readable(&mut self) -> Result<(), KmsgError>;
}

/// Reads the log.
#[derive(Debug)]
pub struct KmsgReader {
    boot: BootId,
    source: Device,
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
        let told = options.told.filter(|told| told.boot == boot).map(|told| told.seq);
        Ok(Self {
            boot,
            source: Device::open(options.device)?,
            buffer: vec![0; BUFFER].into(),
            tracker: Tracker::new(told),
            notices: VecDeque::new(),
            asked: false,
            failed: None,
        })
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
    pub const fn ask(&mut self) {
        self.asked = true;
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
        let at_end = attempt == Attempt::AtEnd;
        self.notices.extend(self.tracker.take(attempt, now));
        if !at_end {
            return Some(Step::Record);
        }
        if std::mem::take(&mut self.asked) {
            let up_to = u64::try_from(now.monotonic_us).unwrap_or(0);
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
