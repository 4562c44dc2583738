//! The open device: reading, and waiting until there is something to read.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::KmsgError;
use super::tracker::Attempt;

/// `PRINTK_MESSAGE_MAX` is 2 KiB; escaping makes four bytes of one.
pub(super) const BUFFER: usize = 8192;
/// Each EINVAL passes over a record. This many in a row are not a log.
const MOST_REFUSALS: u32 = 1000;
/// Questions answered at once.
const QUESTIONS: usize = 64;
/// Milliseconds after which a loss that the full channel kept back is told again.
const RETRY_MS: u16 = 100;

/// Why waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    Stopped,
    Asked,
    MayRead,
}

/// The open device.
#[derive(Debug)]
pub(super) struct Log {
    device: PathBuf,
    file: File,
    refusals: u32,
}

impl Log {
    pub(super) fn open(device: PathBuf) -> Result<Self, KmsgError> {
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

    pub(super) fn read<'a>(&mut self, buffer: &'a mut [u8]) -> Result<Attempt<'a>, KmsgError> {
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

    /// Waits for a record or a question, and no longer than a moment if something is still to be told.
    pub(super) fn wait(&self, asked: &mut PipeReader, all_told: bool) -> Result<Wake, KmsgError> {
        let mut wanted = [
            PollFd::new(self.file.as_fd(), PollFlags::POLLIN),
            PollFd::new(asked.as_fd(), PollFlags::POLLIN),
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
        if !wanted[1].any().unwrap_or(true) {
            return Ok(Wake::MayRead);
        }
        match asked.read(&mut [0; QUESTIONS]) {
            Ok(0) => Ok(Wake::Stopped),
            Ok(_) => Ok(Wake::Asked),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Wake::MayRead),
            Err(source) => Err(self.failed(source)),
        }
    }

    fn failed(&self, source: io::Error) -> KmsgError {
        KmsgError::Read {
            device: self.device.clone(),
            source,
        }
    }
}
