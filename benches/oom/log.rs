//! The kernel's log, read from its beginning or from a position.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use nix::fcntl::OFlag;

const DEVICE: &str = "/dev/kmsg";

/// The relevant content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// This process was killed.
    Killed(u32),
    /// This process was killed, and the record names its cgroup.
    Explained(u32),
    /// A process wrote this text.
    Written(String),
}

/// A record's sequence number, the kernel's timestamp, and the content.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) number: u64,
    pub(crate) stamp: Duration,
    pub(crate) content: Content,
}

/// The open log.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    buffer: Box<[u8]>,
}

impl Log {
    /// Opens the log at its oldest record.
    pub(crate) fn from_the_beginning() -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(DEVICE)?;
        Ok(Self {
            file,
            buffer: vec![0; 8192].into(),
        })
    }

    /// Opens the log after its latest record.
    pub(crate) fn from_now_on() -> anyhow::Result<Self> {
        let mut log = Self::from_the_beginning()?;
        log.file.seek(SeekFrom::End(0))?;
        Ok(log)
    }

    /// Writes a line into the log.
    pub(crate) fn write(line: &str) -> anyhow::Result<()> {
        Ok(std::fs::write(DEVICE, line)?)
    }

    /// Reads all relevant records up to now.
    pub(crate) fn read(&mut self) -> anyhow::Result<Vec<Record>> {
        let mut records = Vec::new();
        loop {
            match self.file.read(&mut self.buffer) {
                Ok(length) => records.extend(record(&String::from_utf8_lossy(&self.buffer[..length]))),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(records),
                // EPIPE: the kernel has overwritten the next record; the next read gets the oldest one that is left.
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
    let content = if priority >= 8 {
        Content::Written(line.to_owned())
    } else if let Some((_, killed)) = line.split_once("Killed process ") {
        Content::Killed(killed.split(' ').next()?.parse().ok()?)
    } else {
        let (_, pid) = line.strip_prefix("oom-kill:")?.rsplit_once(",pid=")?;
        Content::Explained(pid.split(',').next()?.parse().ok()?)
    };
    Some(Record { number, stamp, content })
}
