//! Limits of memory that no field of CRI carries, and that a runtime may change whenever it is told of others.
//!
//! In comes a cgroup's directory; out comes what these files hold, to be put back. They exist on cgroup v2 only.

use std::collections::BTreeMap;
use std::path::Path;

use nix::fcntl::OFlag;

use super::CgroupError;
use super::file::{Dir, if_present};

/// Each file, and the value of it that nobody chose.
const FILES: [(&str, &str); 2] = [("memory.swap.max", "0"), ("memory.high", "max")];

/// The files of one cgroup, held open: the same one whatever becomes of its path.
#[derive(Debug)]
pub struct UncarriedLimits(Dir);

impl UncarriedLimits {
    /// Opens the cgroup at this path of the file system.
    ///
    /// Errors: [`Vanished`](super::Reason::Vanished) when there is none.
    pub fn open(directory: &Path) -> Result<Self, CgroupError> {
        Dir::open(directory.to_owned()).map(Self)
    }

    pub fn directory(&self) -> &Path {
        self.0.path()
    }

    /// The number that makes this cgroup that one and no later one of the same path.
    pub const fn number(&self) -> u64 {
        self.0.inode().number()
    }

    /// What the files hold that somebody chose, by name.
    ///
    /// Errors: [`CgroupError`] of a file that is there and cannot be read.
    pub fn chosen(&self) -> Result<BTreeMap<String, String>, CgroupError> {
        let mut chosen = BTreeMap::new();
        for (name, unchosen) in FILES {
            if let Some(value) = self.read(name)?.filter(|value| value != unchosen) {
                chosen.insert(name.to_owned(), value);
            }
        }
        Ok(chosen)
    }

    /// Gives the files the values they had, where they have others now; returns whether any had.
    /// Other files are left alone.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be written.
    pub fn put_back(&self, values: &BTreeMap<String, String>) -> Result<bool, CgroupError> {
        let mut changed = false;
        for (name, _) in FILES {
            let Some(value) = values.get(name) else { continue };
            if self.read(name)?.is_some_and(|held| held != *value) {
                self.0.open_file(name, OFlag::O_WRONLY)?.set(value)?;
                changed = true;
            }
        }
        Ok(changed)
    }

    fn read(&self, name: &'static str) -> Result<Option<String>, CgroupError> {
        let open = self.0.open_file(name, OFlag::O_RDONLY);
        let text = if_present(open.and_then(|open| open.text()))?;
        Ok(text.map(|text| text.trim().to_owned()))
    }
}
