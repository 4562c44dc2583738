//! Limits of memory that no field of CRI carries, and that a runtime may change whenever it is told of others.
//!
//! In comes a cgroup's directory; out comes what these files hold, to be put back. They exist on cgroup v2 only.

use std::collections::BTreeMap;

use nix::fcntl::OFlag;

use super::CgroupError;
use super::file::Dir;

/// Each file, and the value of it that nobody chose.
const FILES: [(&str, &str); 2] = [("memory.swap.max", "0"), ("memory.high", "max")];

impl Dir {
    /// What the files hold that somebody chose, by name.
    ///
    /// Errors: [`CgroupError`] of a file that is there and cannot be read.
    pub fn uncarried_limits(&self) -> Result<BTreeMap<String, String>, CgroupError> {
        let mut chosen = BTreeMap::new();
        for (name, unchosen) in FILES {
            if let Some(text) = self.text(name)?.filter(|text| text.trim() != unchosen) {
                chosen.insert(name.to_owned(), text.trim().to_owned());
            }
        }
        Ok(chosen)
    }

    /// Gives the files the values they had, where they have others now; returns whether any had.
    /// Other files are left alone.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be written.
    pub fn put_back_limits(&self, values: &BTreeMap<String, String>) -> Result<bool, CgroupError> {
        let mut changed = false;
        for (name, _) in FILES {
            let Some(value) = values.get(name) else { continue };
            if self.text(name)?.is_some_and(|text| text.trim() != value) {
                self.open_file(name, OFlag::O_WRONLY)?.set(value)?;
                changed = true;
            }
        }
        Ok(changed)
    }
}
