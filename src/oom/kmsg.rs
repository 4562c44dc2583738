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
mod device;
mod error;
mod notice;
mod outbox;
mod tracker;

use std::io::{self, PipeReader, PipeWriter, Write};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc;

use clock::Now;
pub use clock::monotonic;
use device::{BUFFER, Log, Wake};
pub use error::KmsgError;
pub use notice::{BootId, Loss, Notice, Origin, Position};
use outbox::{Closed, Outbox};
use tracker::{Attempt, Tracker};

/// The device.
pub const DEVICE: &str = "/dev/kmsg";

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
    control: PipeWriter,
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
        let (asked, control) = io::pipe().map_err(KmsgError::Start)?;
        let (sender, notices) = mpsc::channel(options.capacity.max(1));
        let tracker = Tracker::new(told);
        let thread = thread::Builder::new()
            .name("kmsg".to_owned())
            .spawn(move || run(log, asked, tracker, Outbox::new(sender)))
            .map_err(KmsgError::Start)?;
        Ok(Self {
            boot,
            notices,
            control,
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

    /// Asks the thread to read to the end of the log and then to tell [`Notice::UpTo`]: once for several that ask at the
    /// same time. Blocks only if thousands of questions are open.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn ask(&self) -> io::Result<()> {
        (&self.control).write_all(b"?")
    }

    /// Ends the thread, waits for it, and says whether it had to end before.
    ///
    /// # Errors
    /// What ended it.
    pub fn stop(self) -> Result<(), KmsgError> {
        let Self {
            notices,
            control,
            thread,
            ..
        } = self;
        drop((notices, control));
        thread.join().unwrap_or(Err(KmsgError::Panicked))
    }
}

fn run(mut log: Log, mut asked: PipeReader, mut tracker: Tracker, mut outbox: Outbox) -> Result<(), KmsgError> {
    let mut buffer = [0; BUFFER];
    let mut answer = None;
    loop {
        let attempt = log.read(&mut buffer)?;
        let at_end = attempt == Attempt::AtEnd;
        let now = Now::read().map_err(KmsgError::Clock)?;
        for notice in tracker.take(attempt, now) {
            outbox.send(notice);
        }
        if let Some(up_to) = answer.take_if(|_| at_end) {
            outbox.send(Notice::UpTo(up_to));
        }
        let all_told = match outbox.flush() {
            Err(Closed) => return Ok(()),
            Ok(all_told) => all_told,
        };
        if at_end {
            match log.wait(&mut asked, all_told)? {
                Wake::Stopped => return Ok(()),
                Wake::Asked => answer = Some(monotonic().map_err(KmsgError::Clock)?),
                Wake::MayRead => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
