//! `/dev/kmsg`, read by a thread of its own → [`Notice`]s in a channel.
//!
//! The thread does nothing but read, parse and hand on: it never waits for whoever receives. If records are overwritten
//! before it could read them, or the channel is full, it says so with [`Notice::Lost`], and the receiver looks at all
//! counters at once. What was already in the log when it was opened is told as [`Origin::Replayed`], and not at all up to
//! the [`Position`] of a process that read it before.
//!
//! One `read` returns one record; EAGAIN is the end for now, EPIPE says that records were overwritten (the next read
//! returns the oldest that is left), EINVAL that a record was larger than the buffer and is passed over (`devkmsg_read` in
//! kernel/printk/printk.c). Opening needs CAP_SYSLOG where `kernel.dmesg_restrict` is 1.

mod clock;
mod outbox;
mod tracker;

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::parse::Event;
use clock::Now;
use outbox::{Closed, Outbox};
use tracker::{Attempt, Tracker};

/// The device.
pub const DEVICE: &str = "/dev/kmsg";
/// `PRINTK_MESSAGE_MAX` is 2 KiB; escaping makes four bytes of one.
const BUFFER: usize = 8192;
/// Each EINVAL passes over a record. This many in a row are not a log.
const MOST_REFUSALS: u32 = 1000;
/// Milliseconds after which a loss that the full channel kept back is told again.
const RETRY_MS: u16 = 100;

/// Which boot of the machine: `/proc/sys/kernel/random/boot_id`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub String);

impl BootId {
    /// That of the running kernel.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn current() -> Result<Self, KmsgError> {
        let id = procfs::sys::kernel::random::boot_id();
        id.map(Self).map_err(|error| KmsgError::Boot(error.to_string()))
    }
}

/// Up to where the log was read. Record numbers start anew with each boot.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Position {
    /// Of which boot.
    pub boot: BootId,
    /// The number of the last record that needs no telling again.
    pub seq: u64,
}

/// Whether something was logged while we read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// It was logged just now.
    Live,
    /// It was in the log before we had read to its end for the first time.
    Replayed,
}

/// What the thread tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Something in the log.
    Event {
        /// What.
        event: Event,
        /// The number of the record that completed it: the position to keep once it is dealt with.
        seq: u64,
        /// When, by the wall clock: exact to the delay of the reader if live, to about a millisecond otherwise, unless
        /// the machine was suspended since.
        at: Timestamp,
        /// While we read, or before.
        origin: Origin,
    },
    /// Something is missing. Look at all counters.
    Lost(Loss),
    /// All that was in the log when it was opened has been told.
    CaughtUp,
}

/// What is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The kernel overwrote records before they were read: this many, if it can be told.
    Overwritten {
        /// How many records of any kind.
        records: u64,
    },
    /// A record did not fit into the buffer.
    TooLong,
    /// The receiver was too slow: this many notices were dropped.
    Dropped {
        /// How many.
        notices: u64,
    },
}

/// Why the log cannot be read, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum KmsgError {
    /// It cannot be opened.
    #[error("cannot open {}: {source}; {}", device.display(), next_step(source))]
    Open {
        /// The device.
        device: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Reading it failed for good.
    #[error("cannot read {}: {source}", device.display())]
    Read {
        /// The device.
        device: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has an end, which the kernel's log has not.
    #[error("{} came to its end: it is not the kernel's log", device.display())]
    Ended {
        /// The device.
        device: PathBuf,
    },
    /// The boot cannot be told.
    #[error("cannot tell which boot this is: {0}; mount /proc")]
    Boot(String),
    /// No thread or pipe could be made.
    #[error("cannot start the reader of the kernel's log: {0}")]
    Start(#[source] io::Error),
    /// A clock could not be read.
    #[error("cannot read the clock: {0}")]
    Clock(Errno),
    /// The thread panicked.
    #[error("the reader of the kernel's log panicked")]
    Panicked,
}

fn next_step(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "give the pod a hostPath volume for it (type CharDevice)",
        io::ErrorKind::PermissionDenied => {
            "grant CAP_SYSLOG (needed while the sysctl kernel.dmesg_restrict is 1) and access to the device (c 1:11 r)"
        }
        _ => "kills are still counted, without their detail",
    }
}

/// What to read, and from where on.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device, [`DEVICE`] but for tests.
    pub device: PathBuf,
    /// Up to where an earlier process told what it read. Of another boot, it means nothing.
    pub told: Option<Position>,
    /// Notices that may wait for the receiver.
    pub capacity: usize,
}

impl Default for Options {
    fn default() -> Self {
        let device = PathBuf::from(DEVICE);
        Self {
            device,
            told: None,
            capacity: 4096,
        }
    }
}

/// The thread that reads the log. Dropping this ends it.
#[derive(Debug)]
pub struct KmsgReader {
    boot: BootId,
    notices: mpsc::Receiver<Notice>,
    stop: PipeWriter,
    thread: JoinHandle<Result<(), KmsgError>>,
}

impl KmsgReader {
    /// Opens the log and starts the thread.
    ///
    /// # Errors
    /// [`KmsgError::Open`] with what to grant, or one of the rarer ones.
    pub fn start(options: Options) -> Result<Self, KmsgError> {
        let boot = BootId::current()?;
        let told = options.told.filter(|told| told.boot == boot).map(|told| told.seq);
        let log = Log::open(options.device)?;
        let (stopped, stop) = io::pipe().map_err(KmsgError::Start)?;
        let (sender, notices) = mpsc::channel(options.capacity.max(1));
        let tracker = Tracker::new(told);
        let thread = thread::Builder::new()
            .name("kmsg".to_owned())
            .spawn(move || run(log, &stopped, tracker, Outbox::new(sender)))
            .map_err(KmsgError::Start)?;
        Ok(Self {
            boot,
            notices,
            stop,
            thread,
        })
    }

    /// The boot that the positions are of.
    #[must_use]
    pub const fn boot(&self) -> &BootId {
        &self.boot
    }

    /// Waits for the next notice; `None` when the thread has ended, and [`Self::stop`] says why. Cancel-safe.
    pub async fn next(&mut self) -> Option<Notice> {
        self.notices.recv().await
    }

    /// Ends the thread, waits for it, and says whether it had to end before.
    ///
    /// # Errors
    /// What ended it.
    pub fn stop(self) -> Result<(), KmsgError> {
        let Self {
            notices, stop, thread, ..
        } = self;
        drop((notices, stop));
        thread.join().unwrap_or(Err(KmsgError::Panicked))
    }
}

fn run(mut log: Log, stopped: &PipeReader, mut tracker: Tracker, mut outbox: Outbox) -> Result<(), KmsgError> {
    let mut buffer = [0; BUFFER];
    loop {
        let attempt = log.read(&mut buffer)?;
        let at_end = attempt == Attempt::AtEnd;
        let now = Now::read().map_err(KmsgError::Clock)?;
        for notice in tracker.take(attempt, now) {
            outbox.send(notice);
        }
        match outbox.flush() {
            Err(Closed) => return Ok(()),
            Ok(all_told) if at_end && log.wait(stopped, all_told)? == Wake::Stopped => return Ok(()),
            Ok(_) => {}
        }
    }
}

/// Why waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    Stopped,
    MayRead,
}

/// The open device.
#[derive(Debug)]
struct Log {
    device: PathBuf,
    file: File,
    refusals: u32,
}

impl Log {
    fn open(device: PathBuf) -> Result<Self, KmsgError> {
        match OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&device)
        {
            Ok(file) => Ok(Self {
                device,
                file,
                refusals: 0,
            }),
            Err(source) => Err(KmsgError::Open { device, source }),
        }
    }

    fn read<'a>(&mut self, buffer: &'a mut [u8]) -> Result<Attempt<'a>, KmsgError> {
        let outcome = loop {
            match self.file.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome,
            }
        };
        let attempt = match outcome {
            Ok(0) => {
                return Err(KmsgError::Ended {
                    device: self.device.clone(),
                });
            }
            Ok(length) => Attempt::Record(&buffer[..length]),
            Err(source) => match source.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EAGAIN) => Attempt::AtEnd,
                Some(Errno::EPIPE) => Attempt::Overwritten,
                Some(Errno::EINVAL) if self.refusals < MOST_REFUSALS => Attempt::TooLong,
                _ => return Err(self.failed(source)),
            },
        };
        self.refusals = if attempt == Attempt::TooLong {
            self.refusals + 1
        } else {
            0
        };
        Ok(attempt)
    }

    /// Waits for a record, and no longer than a moment if something is still to be told.
    fn wait(&self, stopped: &PipeReader, all_told: bool) -> Result<Wake, KmsgError> {
        let mut wanted = [
            PollFd::new(self.file.as_fd(), PollFlags::POLLIN),
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        ];
        let timeout = if all_told {
            PollTimeout::NONE
        } else {
            PollTimeout::from(RETRY_MS)
        };
        match poll(&mut wanted, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(self.failed(errno.into())),
        }
        // The other end of the pipe is never written to: it is readable when it is closed.
        let is_stopped = wanted[1].any().unwrap_or(true);
        Ok(if is_stopped { Wake::Stopped } else { Wake::MayRead })
    }

    fn failed(&self, source: io::Error) -> KmsgError {
        KmsgError::Read {
            device: self.device.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests;
