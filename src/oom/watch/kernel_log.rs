//! The kernel's log as the watcher has it: open, or about to be tried again.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Error, Result};

use crate::oom::kmsg::{KmsgReader, Notice, Numbering};
use crate::oom::numbers::Offset;

/// A log that cannot be read is tried again after so long.
const TRY_AGAIN: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct KernelLog {
    device: PathBuf,
    reader: Option<KmsgReader>,
    try_at: Duration,
    problem: Option<String>,
}

impl KernelLog {
    pub(super) const fn new(device: PathBuf) -> Self {
        Self {
            device,
            reader: None,
            try_at: Duration::ZERO,
            problem: None,
        }
    }

    /// Opens the log if it is time to. Returns what its numbers count if it is open now and was not before.
    pub(super) fn open(&mut self, told: Option<u64>, now: Duration) -> Option<Numbering> {
        if self.reader.is_some() || now < self.try_at {
            return None;
        }
        match KmsgReader::start(&self.device, told) {
            Ok(reader) => {
                let numbering = reader.numbering();
                let through = match numbering {
                    Numbering::Records => "the device",
                    Numbering::Times => "syslog(2)",
                };
                tracing::info!("the kernel's log is read through {through}");
                (self.reader, self.problem) = (Some(reader), None);
                Some(numbering)
            }
            Err(error) => {
                self.close(&error, now);
                None
            }
        }
    }

    /// Closes a log that cannot be read any more.
    pub(super) fn close(&mut self, error: &Error, now: Duration) {
        self.reader = None;
        self.try_at = now + TRY_AGAIN;
        let problem = format!("{error}; kills are counted, and told without process and cause");
        if self.problem.as_ref() != Some(&problem) {
            tracing::warn!("{problem}");
        }
        self.problem = Some(problem);
    }

    /// The next notice, or why the log cannot be read any more. Waits for ever while it is not open. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Notice> {
        match &mut self.reader {
            Some(reader) => reader.next().await,
            None => std::future::pending().await,
        }
    }

    /// The next notice, if there is one already.
    pub(super) fn next_now(&mut self) -> Result<Option<Notice>> {
        self.reader.as_mut().map_or(Ok(None), KmsgReader::next_now)
    }

    /// Something says that there may be news in it.
    pub(super) const fn wake(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.wake();
        }
    }

    /// Which kills its lines are, while it is open.
    pub(super) fn offset(&self) -> Option<Offset> {
        self.reader.as_ref().map(KmsgReader::offset)
    }

    /// Up to when everything is known, once all that was in the log at first has been told.
    pub(super) fn read_up_to(&self) -> Option<Duration> {
        self.reader.as_ref().map_or(Some(Duration::MAX), KmsgReader::read_up_to)
    }

    /// When to try again to open the log.
    pub(super) fn try_at(&self) -> Option<Duration> {
        self.reader.is_none().then_some(self.try_at)
    }

    /// Why the log is not read, and what to do about it.
    pub(super) const fn problem(&self) -> Option<&String> {
        self.problem.as_ref()
    }
}
