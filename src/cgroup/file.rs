//! One directory of one hierarchy, held open, and the files in it.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, fstat};

use super::dir::State;
use super::{CgroupError, Reason};

/// Room for the longest value of a file that is read here: two 20-digit numbers.
const LONGEST: usize = 64;

/// A directory's number in its file system: a cgroup's identity. kernfs does not use a number again soon, and on
/// 64-bit kernels it carries a generation (fs/kernfs/dir.c `__kernfs_new_node`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Inode {
    device: u64,
    number: u64,
}

impl Inode {
    /// The number alone: unique within one mount.
    pub(super) const fn number(self) -> u64 {
        self.number
    }
}

/// A directory of a hierarchy. Its descriptor keeps meaning the same cgroup, whatever becomes of its path.
#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    inode: Inode,
    path: PathBuf,
}

impl Dir {
    pub(super) fn open(path: PathBuf) -> Result<Self, CgroupError> {
        let opened = open(
            &path,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .and_then(|fd| Ok((fstat(&fd)?, fd)));
        match opened {
            Ok((stat, fd)) => Ok(Self {
                fd,
                inode: Inode {
                    device: stat.st_dev,
                    number: stat.st_ino,
                },
                path,
            }),
            Err(Errno::ENOENT | Errno::ENODEV) => Err(CgroupError {
                file: path,
                reason: Reason::Vanished,
            }),
            Err(errno) => Err(CgroupError {
                file: path,
                reason: refused(errno, "open the directory"),
            }),
        }
    }

    pub(super) const fn inode(&self) -> Inode {
        self.inode
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still is this directory.
    pub(super) fn state(&self) -> Result<State, CgroupError> {
        match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (self.inode.device, self.inode.number) => Ok(State::Alive),
            Ok(_) => Ok(State::Recreated),
            Err(error) => match errno_of(&error) {
                Errno::ENOENT | Errno::ENODEV => Ok(State::Removed),
                errno => Err(CgroupError {
                    file: self.path.clone(),
                    reason: refused(errno, "look at the directory"),
                }),
            },
        }
    }

    /// Opens a file as it is: it is neither created nor truncated.
    pub(super) fn open_file(&self, name: &'static str, flags: OFlag) -> Result<ControlFd<'_>, CgroupError> {
        let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(ControlFd {
                dir: self,
                name,
                file: File::from(fd),
            }),
            Err(errno) => Err(self.failed(name, errno, "open the file")),
        }
    }

    /// An error about a file. When the cgroup is gone its files are "absent" (ENOENT) or dead (ENODEV).
    pub(super) fn failed(&self, name: &str, errno: Errno, call: &'static str) -> CgroupError {
        let reason = match errno {
            Errno::ENOENT | Errno::ENODEV => match self.state() {
                Ok(State::Removed) => Reason::Vanished,
                Ok(State::Recreated) => Reason::Recreated,
                Ok(State::Alive) if errno == Errno::ENOENT => Reason::Absent,
                Ok(State::Alive) => Reason::Io { call, errno },
                Err(error) => return error,
            },
            errno => refused(errno, call),
        };
        self.error(name, reason)
    }

    pub(super) fn error(&self, name: &str, reason: Reason) -> CgroupError {
        let file = self.path.join(name);
        CgroupError { file, reason }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An open file of a cgroup.
#[derive(Debug)]
pub(super) struct ControlFd<'d> {
    dir: &'d Dir,
    name: &'static str,
    file: File,
}

impl AsFd for ControlFd<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The first line of a file, without allocating.
#[derive(Debug)]
pub(super) struct Line {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Line {
    /// The text. Control files hold ASCII; anything else is not a value of theirs, and neither is an empty text.
    pub(super) fn text(&self) -> &str {
        let bytes = &self.bytes[..self.length];
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        str::from_utf8(line).unwrap_or_default()
    }
}

impl ControlFd<'_> {
    /// The file alone, to be kept.
    pub(super) fn into_file(self) -> File {
        self.file
    }

    /// Reads the file from its beginning, which makes the kernel print the value anew.
    pub(super) fn read(&self) -> Result<Line, CgroupError> {
        let mut line = Line {
            bytes: [0; LONGEST],
            length: 0,
        };
        while line.length < LONGEST {
            match self.file.read_at(&mut line.bytes[line.length..], line.length as u64) {
                Ok(0) => break,
                Ok(read) => line.length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.dir.failed(self.name, errno_of(&error), "read the file")),
            }
        }
        Ok(line)
    }

    /// Reads all of the file.
    pub(super) fn text(&self) -> Result<String, CgroupError> {
        let mut text = String::new();
        match (&self.file).read_to_string(&mut text) {
            Ok(_) => Ok(text),
            Err(error) => Err(self.dir.failed(self.name, errno_of(&error), "read the file")),
        }
    }

    /// Writes a value in one call, as the kernel wants it. The newline ends it for a plain file that held more.
    pub(super) fn write(&self, value: &str) -> Result<(), Errno> {
        let line = format!("{value}\n");
        match self.file.write_at(line.as_bytes(), 0) {
            Ok(written) if written == line.len() => Ok(()),
            Ok(_) => Err(Errno::EIO),
            Err(error) => Err(errno_of(&error)),
        }
    }
}

/// Reasons that any call may have.
pub(super) const fn refused(errno: Errno, call: &'static str) -> Reason {
    match errno {
        Errno::EROFS => Reason::ReadOnly,
        Errno::EACCES | Errno::EPERM => Reason::Denied(errno),
        errno => Reason::Io { call, errno },
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO))
}
