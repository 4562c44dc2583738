//! The kernel's log, read from its beginning or from where it was left.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use nix::fcntl::OFlag;

const DEVICE: &str = "/dev/kmsg";

/// What a record says that is of use here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// This process was killed.
    Killed(u32),
    /// This process was killed, and the record names its cgroup.
    Explained(u32),
    /// Something that was written there by a process.
    Written(String),
}

/// A record's number, the kernel's stamp, and what it says.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) number: u64,
    pub(crate) stamp: Duration,
    pub(crate) said: Said,
}

/// The open log.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    buffer: Box<[u8]>,
}

impl Log {
    /// Opens it at its oldest record.
    pub(crate) fn from_the_beginning() -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(DEVICE)?;
        Ok(Self {
            file,
            buffer: vec![0; 8192].into(),
        })
    }

    /// Opens it behind its latest record.
    pub(crate) fn from_now_on() -> anyhow::Result<Self> {
        let mut log = Self::from_the_beginning()?;
        log.file.seek(SeekFrom::End(0))?;
        Ok(log)
    }

    /// Writes a line into it.
    pub(crate) fn write(line: &str) -> anyhow::Result<()> {
        Ok(std::fs::write(DEVICE, line)?)
    }

    /// Everything of use that is there now and was not read yet.
    pub(crate) fn read(&mut self) -> anyhow::Result<Vec<Record>> {
        let mut records = Vec::new();
        loop {
            match self.file.read(&mut self.buffer) {
                Ok(length) => records.extend(record(&String::from_utf8_lossy(&self.buffer[..length]))),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(records),
                // EPIPE: what was to be read next is overwritten; the next read gets the oldest that is left.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn record(text: &str) -> Option<Record> {
    let (prefix, text) = text.split_once(';')?;
    let mut fields = prefix.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let number = fields.next()?.parse().ok()?;
    let stamp = Duration::from_micros(fields.next()?.parse().ok()?);
    let line = text.lines().next()?;
    let said = if priority >= 8 {
        Said::Written(line.to_owned())
    } else if let Some((_, killed)) = line.split_once("Killed process ") {
        Said::Killed(killed.split(' ').next()?.parse().ok()?)
    } else {
        let (_, pid) = line.strip_prefix("oom-kill:")?.rsplit_once(",pid=")?;
        Said::Explained(pid.split(',').next()?.parse().ok()?)
    };
    Some(Record { number, stamp, said })
}
