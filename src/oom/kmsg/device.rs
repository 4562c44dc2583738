//! The open device.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::unix::AsyncFd;

use super::KmsgError;
use super::tracker::Attempt;
use crate::oom::epoll::async_fd;

/// `PRINTK_MESSAGE_MAX` is 2 KiB; escaping makes four bytes of one.
pub(super) const BUFFER: usize = 8192;
/// Each EINVAL passes over a record. This many in a row are not a log.
const MOST_REFUSALS: u32 = 1000;

/// The open device.
#[derive(Debug)]
pub(super) struct Device {
    path: PathBuf,
    file: AsyncFd<File>,
    refusals: u32,
}

impl Device {
    pub(super) fn open(path: PathBuf) -> Result<Self, KmsgError> {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(source) => return Err(KmsgError::Open { device: path, source }),
        };
        match async_fd(file) {
            Ok(file) => Ok(Self {
                path,
                file,
                refusals: 0,
            }),
            // As epoll says of a file that has an end.
            Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) => Err(KmsgError::Ended { device: path }),
            Err(source) => Err(KmsgError::Open { device: path, source }),
        }
    }

    pub(super) fn read<'b>(&mut self, buffer: &'b mut [u8]) -> Result<Attempt<'b>, KmsgError> {
        let device = || self.path.clone();
        let attempt = match self.file.get_mut().read(buffer) {
            Ok(0) => return Err(KmsgError::Ended { device: device() }),
            Ok(length) => Attempt::Record(&buffer[..length]),
            Err(source) => match source.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EAGAIN) => Attempt::AtEnd(None),
                Some(Errno::EINTR) => Attempt::NotDue,
                Some(Errno::EPIPE) => Attempt::Overwritten,
                Some(Errno::EINVAL) if self.refusals < MOST_REFUSALS => Attempt::TooLong,
                _ => {
                    let device = device();
                    return Err(KmsgError::Read { device, source });
                }
            },
        };
        let refused = u32::from(attempt == Attempt::TooLong);
        self.refusals = (self.refusals + refused) * refused;
        Ok(attempt)
    }

    pub(super) async fn readable(&mut self) -> Result<(), KmsgError> {
        let readable = async {
            let mut ready = self.file.readable_mut().await?;
            // The end that was read may be older than this readiness: it is cleared only if there is no record now.
            let wanted = PollFd::new(ready.get_inner().as_fd(), PollFlags::POLLIN);
            if poll(&mut [wanted], PollTimeout::ZERO)? == 0 {
                ready.clear_ready();
            }
            Ok(())
        };
        readable.await.map_err(|source| KmsgError::Read {
            device: self.path.clone(),
            source,
        })
    }
}
