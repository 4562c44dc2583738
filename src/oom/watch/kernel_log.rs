//! The kernel's log as the watcher holds it: open, or closed until the next attempt.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Error, Result};

use crate::oom::kmsg::{KmsgReader, Notice, Numbering};

/// The time until the next attempt to open a log that cannot be read.
const TRY_AGAIN: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct KernelLog {
    device: PathBuf,
    /// `None` while the log is closed.
    pub(super) reader: Option<KmsgReader>,
    /// When to try to open a closed log.
    pub(super) try_at: Duration,
    /// Why the log is closed, and what to do about it.
    pub(super) problem: Option<String>,
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

    /// Opens a closed log if an attempt is due. Returns the numbering of a log that this call opened.
    pub(super) fn open(&mut self, reported: Option<u64>, now: Duration) -> Option<Numbering> {
        if self.reader.is_some() || now < self.try_at {
            return None;
        }
        match KmsgReader::start(&self.device, reported) {
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

    /// The next notice, or why the log cannot be read any more. Waits for ever while the log is closed. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Notice> {
        match &mut self.reader {
            Some(reader) => reader.next().await,
            None => std::future::pending().await,
        }
    }

    /// The next notice, if the log holds one now.
    pub(super) fn next_now(&mut self) -> Result<Option<Notice>> {
        self.reader.as_mut().map_or(Ok(None), KmsgReader::next_now)
    }

    /// Asks for a read of a log that cannot be waited for.
    pub(super) const fn wake(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.wake();
        }
    }
}
