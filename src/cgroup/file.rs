//! One directory of one hierarchy, held open, and the files in it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, fstat};

use super::{CgroupError, Reason};
use crate::model::{ControlFile, Setting};

/// Room for most files of several lines, `memory.stat` included.
const LONGEST_TEXT: usize = 4096;

/// A directory's device and inode number, which identify a cgroup. kernfs does not reuse a number soon, and on 64-bit
/// kernels the number carries a generation (fs/kernfs/dir.c `__kernfs_new_node`).
pub(super) type Inode = (u64, u64);

/// A directory of a hierarchy. The descriptor always means the same cgroup, even if the path now leads to another one.
#[derive(Debug)]
pub struct Dir {
    pub(super) fd: OwnedFd,
    pub(super) inode: Inode,
    path: PathBuf,
}

impl Dir {
    /// Opens the cgroup that is at this path of the file system now.
    ///
    /// Errors: [`Reason::Vanished`] when there is no cgroup.
    pub fn open(path: PathBuf) -> Result<Self, CgroupError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        match open(&path, flags, Mode::empty()).and_then(|fd| Ok((fstat(&fd)?, fd))) {
            Ok((stat, fd)) => Ok(Self {
                fd,
                inode: (stat.st_dev, stat.st_ino),
                path,
            }),
            Err(errno) => Err(CgroupError {
                file: path,
                reason: refused(errno, "open the directory"),
            }),
        }
    }

    /// The inode number, which no later cgroup of the same path has.
    pub const fn number(&self) -> u64 {
        self.inode.1
    }

    /// The path when the directory was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the path still leads to this directory.
    pub(super) fn check(&self) -> Result<(), CgroupError> {
        let reason = match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.inode => return Ok(()),
            Ok(_) => Reason::Recreated,
            Err(error) => refused(errno_of(&error), "look at the directory"),
        };
        let file = self.path.clone();
        Err(CgroupError { file, reason })
    }

    /// Opens an existing file. Neither creates nor truncates it.
    pub(super) fn open_file(&self, name: &'static str, flags: OFlag) -> Result<ControlFd<'_>, CgroupError> {
        let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let opened = openat(&self.fd, name, flags, Mode::empty());
        let file = opened
            .map_err(|errno| self.failed(name, errno, "open the file"))?
            .into();
        Ok(ControlFd { dir: self, name, file })
    }

    /// The whole content of a file; `None` where there is no such file.
    pub(super) fn text(&self, name: &'static str) -> Result<Option<String>, CgroupError> {
        let open = self.open_file(name, OFlag::O_RDONLY);
        if_present(open.and_then(|open| open.text()))
    }

    /// The error for an errno about a file. Files of a removed cgroup answer ENOENT or ENODEV.
    pub(super) fn failed(&self, name: &str, errno: Errno, call: &'static str) -> CgroupError {
        let reason = match (errno, self.check()) {
            (errno, _) if !is_gone(errno) => refused(errno, call),
            (_, Err(error)) if !error.is_gone() => return error,
            (_, Err(gone)) => gone.reason,
            (Errno::ENOENT, Ok(())) => Reason::Absent,
            (errno, Ok(())) => Reason::Io { call, errno },
        };
        self.error(name, reason)
    }

    pub(super) fn error(&self, name: &str, reason: Reason) -> CgroupError {
        let file = self.path.join(name);
        CgroupError { file, reason }
    }
}

/// An open file of a cgroup.
#[derive(Debug)]
pub(super) struct ControlFd<'d> {
    dir: &'d Dir,
    name: &'static str,
    pub(super) file: File,
}

impl ControlFd<'_> {
    /// The file's first line.
    pub(super) fn line(&self) -> Result<String, CgroupError> {
        let mut text = self.text()?;
        text.truncate(text.find('\n').unwrap_or(text.len()));
        Ok(text)
    }

    /// Reads once, from this byte on. Returns 0 at the end of the file.
    fn read(&self, buffer: &mut [u8], from: usize) -> Result<usize, CgroupError> {
        loop {
            match self.file.read_at(buffer, from as u64) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read.map_err(|error| self.failed(errno_of(&error), "read the file")),
            }
        }
    }

    /// Reads and parses the file's value.
    pub(super) fn setting(&self, file: ControlFile) -> Result<Setting, CgroupError> {
        Setting::parse(file, &self.line()?)
            .map_err(|error| self.dir.error(self.name, Reason::Unreadable(format!(": {error}"))))
    }

    pub(super) fn text(&self) -> Result<String, CgroupError> {
        // On the stack: the allocator returns a page of heap to the kernel at once, which costs more than the read.
        let (mut buffer, mut text) = ([0; LONGEST_TEXT], Vec::new());
        loop {
            let read = self.read(&mut buffer, text.len())?;
            text.extend_from_slice(&buffer[..read]);
            // A kernel file is one record, of which a read returns all that the buffer has room for.
            if read < buffer.len() {
                return Ok(String::from_utf8_lossy(&text).into_owned());
            }
        }
    }

    /// Writes a value in one call, as the kernel requires. In a plain file the newline ends a value that is
    /// shorter than the earlier content.
    pub(super) fn write(&self, value: &str) -> Result<(), Errno> {
        let line = format!("{value}\n");
        match self.file.write_at(line.as_bytes(), 0) {
            Ok(written) if written == line.len() => Ok(()),
            Ok(_) => Err(Errno::EIO),
            Err(error) => Err(errno_of(&error)),
        }
    }

    /// Writes a value and turns a refusal into an error.
    pub(super) fn set(&self, value: &str) -> Result<(), CgroupError> {
        self.write(value).map_err(|errno| self.failed(errno, "write the file"))
    }

    pub(super) fn failed(&self, errno: Errno, call: &'static str) -> CgroupError {
        self.dir.failed(self.name, errno, call)
    }
}

/// `None` where the cgroup does not have the file, or the kernel does not keep it (EOPNOTSUPP: `memsw` without swap
/// accounting, pressure that is switched off).
pub(super) fn if_present<T>(read: Result<T, CgroupError>) -> Result<Option<T>, CgroupError> {
    const OFF: Errno = Errno::EOPNOTSUPP;
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.reason, Reason::Absent | Reason::Io { errno: OFF, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The names of the directories in a directory; none if it is gone.
pub(super) fn directories_in(path: &Path) -> io::Result<Vec<OsString>> {
    // kernfs counts a directory's own two links and one for each directory in it (`kernfs_refresh_inode`). Reading the count
    // is quicker than listing the directory's forty files.
    if fs::metadata(path).is_ok_and(|directory| directory.nlink() == 2) {
        return Ok(Vec::new());
    }
    let named =
        |entry: io::Result<fs::DirEntry>| match entry.and_then(|entry| Ok((entry.file_type()?, entry.file_name()))) {
            Ok((kind, name)) => kind.is_dir().then_some(Ok(name)),
            Err(error) if is_gone(errno_of(&error)) => None,
            Err(error) => Some(Err(error)),
        };
    match fs::read_dir(path).and_then(|entries| entries.filter_map(named).collect()) {
        Err(error) if is_gone(errno_of(&error)) => Ok(Vec::new()),
        listed => listed,
    }
}

/// Whether the errno is one that a removed cgroup answers.
pub(super) const fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENODEV)
}

/// The reason for an errno that any call about a directory may return.
pub(super) const fn refused(errno: Errno, call: &'static str) -> Reason {
    match errno {
        errno if is_gone(errno) => Reason::Vanished,
        Errno::EROFS => Reason::ReadOnly,
        Errno::EACCES | Errno::EPERM => Reason::Denied(errno),
        errno => Reason::Io { call, errno },
    }
}

pub(super) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_no_missing_cgroup() {
        let root = tempfile::tempdir().unwrap();
        let [path, earlier] = ["app", "earlier"].map(|name| root.path().join(name));
        fs::create_dir(&path).unwrap();
        let dir = Dir::open(path.clone()).unwrap();
        let reason = || dir.open_file("cpu.max", OFlag::O_RDONLY).map(drop).unwrap_err().reason;
        assert_eq!((reason(), dir.text("cpu.max")), (Reason::Absent, Ok(None)));
        fs::rename(&path, &earlier).unwrap();
        assert_eq!(reason(), Reason::Vanished);
        assert!(dir.text("cpu.max").unwrap_err().is_gone());
        fs::create_dir(&path).unwrap();
        assert_eq!(reason(), Reason::Recreated);
        fs::remove_dir(&path).unwrap();
        assert_eq!(Dir::open(path).map(drop).unwrap_err().reason, Reason::Vanished);
    }

    #[test]
    fn a_text_ends_where_its_file_ends() {
        let directory = tempfile::tempdir().unwrap();
        let dir = Dir::open(directory.path().to_owned()).unwrap();
        for length in [0, 1, LONGEST_TEXT - 1, LONGEST_TEXT, LONGEST_TEXT + 1, 3 * LONGEST_TEXT] {
            let text = "a".repeat(length);
            fs::write(directory.path().join("memory.stat"), &text).unwrap();
            assert_eq!(dir.text("memory.stat"), Ok(Some(text)), "{length}");
        }
    }
}
