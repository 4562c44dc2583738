//! The log's device, usually `/dev/kmsg`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, anyhow};
use futures::future::BoxFuture;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::unix::AsyncFd;

use super::{Attempt, Source};
use crate::descriptors::async_fd;
use crate::oom::clock::monotonic;
use crate::oom::record::Line;

/// Bytes. `PRINTK_MESSAGE_MAX` is 2 KiB; escaping makes four bytes of one.
const BUFFER: usize = 8192;

#[derive(Debug)]
pub(super) struct Device {
    path: PathBuf,
    file: AsyncFd<File>,
    buffer: Box<[u8]>,
}

impl Device {
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&path);
        let file = opened.map_err(|error| cannot_open(&path, &error))?;
        match async_fd(file) {
            Ok(file) => Ok(Self {
                path,
                file,
                buffer: vec![0; BUFFER].into(),
            }),
            // epoll refuses a file that has an end.
            Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) => Err(ended(&path)),
            Err(error) => Err(cannot_open(&path, &error)),
        }
    }
}

impl Source for Device {
    fn name(&self) -> &'static str {
        "the device"
    }

    fn read(&mut self) -> Result<Option<Attempt>> {
        let now = monotonic();
        let attempt = match self.file.get_mut().read(&mut self.buffer) {
            Ok(0) => return Err(ended(&self.path)),
            Ok(length) => {
                let line = Line::of_record(&self.buffer[..length]).filter(|line| line.from_kernel);
                line.map_or(Attempt::Nothing, Attempt::Line)
            }
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EAGAIN) => Attempt::AtEnd(now),
                Some(Errno::EINTR) => Attempt::Nothing,
                Some(Errno::EPIPE | Errno::EINVAL) => Attempt::Lost,
                _ => return Err(cannot_read(&self.path, &error)),
            },
        };
        Ok(Some(attempt))
    }

    fn readable(&mut self) -> BoxFuture<'_, Result<()>> {
        let Self { path, file, .. } = self;
        Box::pin(async move {
            let readable = async {
                let mut ready = file.readable_mut().await?;
                // The kernel may have logged since the last read, so clear the readiness only if there is no record now.
                let wanted = PollFd::new(ready.get_inner().as_fd(), PollFlags::POLLIN);
                if poll(&mut [wanted], PollTimeout::ZERO)? == 0 {
                    ready.clear_ready();
                }
                Ok(())
            };
            readable.await.map_err(|error| cannot_read(path, &error))
        })
    }
}

/// The error for a file that has an end: the kernel's log has none.
fn ended(device: &Path) -> Error {
    anyhow!("{} came to its end: it is not the kernel's log", device.display())
}

fn cannot_read(device: &Path, error: &io::Error) -> Error {
    anyhow!("cannot read {}: {error}", device.display())
}

pub(super) fn cannot_open(device: &Path, error: &io::Error) -> Error {
    let next_step = match error.kind() {
        io::ErrorKind::NotFound => "give the pod a hostPath volume for it (type CharDevice)",
        io::ErrorKind::PermissionDenied => {
            "grant CAP_SYSLOG (needed while the sysctl kernel.dmesg_restrict is 1) and access to the device (c 1:11 r)"
        }
        _ => "kills are still counted, without their detail",
    };
    anyhow!("cannot open {}: {error}; {next_step}", device.display())
}
