//! The kernel's log as the watcher has it: open, or about to be tried again.

use std::path::PathBuf;
use std::time::Duration;

use crate::oom::kmsg::{KmsgError, KmsgReader, Notice, Numbering, Options, Position};

/// A log that cannot be read is tried again after so long.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// How often to ask how far the log was read, while something waits for that.
const ASK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct KernelLog {
    device: PathBuf,
    reader: Option<KmsgReader>,
    /// Everything that was in the log at first has been told.
    pub(super) caught_up: bool,
    /// Everything logged before was told.
    pub(super) up_to: Duration,
    asked: Duration,
    try_at: Duration,
    problem: Option<String>,
}

impl KernelLog {
    pub(super) const fn new(device: PathBuf) -> Self {
        Self {
            device,
            reader: None,
            caught_up: false,
            up_to: Duration::ZERO,
            asked: Duration::ZERO,
            try_at: Duration::ZERO,
            problem: None,
        }
    }

    /// Opens the log if it is time to. Returns whether it is open now and was not before.
    pub(super) fn open(&mut self, told: Option<Position>, now: Duration) -> bool {
        if self.reader.is_some() || now < self.try_at {
            return false;
        }
        let device = self.device.clone();
        match KmsgReader::start(Options { device, told }) {
            Ok(reader) => {
                let through = match reader.numbering() {
                    Numbering::Records => "the device",
                    Numbering::Times => "syslog(2)",
                };
                tracing::info!("the kernel's log is read through {through}");
                self.reader = Some(reader);
                (self.caught_up, self.up_to, self.problem) = (false, Duration::ZERO, None);
                true
            }
            Err(error) => {
                self.fail(&error, now);
                false
            }
        }
    }

    fn fail(&mut self, error: &KmsgError, now: Duration) {
        self.try_at = now + TRY_AGAIN;
        let problem = format!("{error}; kills are counted, and told without process and cause");
        if self.problem.as_ref() != Some(&problem) {
            tracing::warn!("{problem}");
        }
        self.problem = Some(problem);
    }

    /// Closes a log that cannot be read any more.
    pub(super) fn close(&mut self, now: Duration) {
        if let Some(Err(error)) = self.reader.take().map(KmsgReader::stop) {
            self.fail(&error, now);
        }
    }

    /// The next notice; `None` when the log cannot be read any more. Waits for ever where there is none. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Notice> {
        match &mut self.reader {
            Some(reader) => reader.next().await,
            None => std::future::pending().await,
        }
    }

    /// The next notice, if there is one already.
    pub(super) fn next_now(&mut self) -> Option<Notice> {
        self.reader.as_mut()?.next_now()
    }

    /// Something says that there may be news in it.
    pub(super) fn wake(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.wake();
        }
    }

    /// What the numbers of its records count, while it is open.
    pub(super) fn numbering(&self) -> Option<Numbering> {
        self.reader.as_ref().map(KmsgReader::numbering)
    }

    pub(super) const fn is_open(&self) -> bool {
        self.reader.is_some()
    }

    /// Whether what is known of the log is all of it up to now, or there is nothing to wait for.
    pub(super) const fn is_caught_up(&self) -> bool {
        self.reader.is_none() || self.caught_up
    }

    /// Up to when everything is known.
    pub(super) const fn progress(&self) -> Duration {
        match self.reader {
            Some(_) => self.up_to,
            None => Duration::MAX,
        }
    }

    /// Asks how far the log was read, if that was not done just now; returns when to do so again.
    pub(super) fn request_position(&mut self, now: Duration) -> Option<Duration> {
        let reader = self.reader.as_mut()?;
        if now >= self.asked + ASK_AGAIN {
            self.asked = now;
            reader.request_position();
        }
        Some(self.asked + ASK_AGAIN)
    }

    /// When to try again to open the log.
    pub(super) fn try_at(&self) -> Option<Duration> {
        self.reader.is_none().then_some(self.try_at)
    }

    /// Why the log is not read, and what to do about it.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}
