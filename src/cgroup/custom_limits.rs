//! Memory limits and reservations that CRI has no field for, and that a runtime may change whenever it updates other limits.
//!
//! In comes a cgroup's directory; out come the values of these files, so that the caller can put them back. The files exist on
//! cgroup v2 only.

use std::collections::BTreeMap;

use nix::fcntl::OFlag;

use super::CgroupError;
use super::file::Dir;

/// Each file and its default value.
const FILES: [(&str, &str); 4] = [
    ("memory.swap.max", "0"),
    ("memory.high", "max"),
    ("memory.min", "0"),
    ("memory.low", "0"),
];
/// The one that a pass does not change with the memory limit or the request.
const SWAP: &str = FILES[0].0;
/// The memory limit that the values go with.
const LIMIT: &str = "memory.max";

impl Dir {
    /// The values that differ from the defaults, by file name, and the memory limit beside them.
    ///
    /// Errors: [`CgroupError`] of an existing file that cannot be read.
    pub fn custom_limits(&self) -> Result<BTreeMap<String, String>, CgroupError> {
        let mut chosen = BTreeMap::new();
        for (name, default) in FILES {
            if let Some(text) = self.text(name)?.filter(|text| text.trim() != default) {
                chosen.insert(name.to_owned(), text.trim().to_owned());
            }
        }
        if !chosen.is_empty() {
            let limit = self.text(LIMIT)?.map(|text| text.trim().to_owned());
            chosen.extend(limit.map(|limit| (LIMIT.to_owned(), limit)));
        }
        Ok(chosen)
    }

    /// These earlier values, as far as they are still in force: with another memory limit, a pass has changed the others.
    /// Earlier versions noted no limit: their values all count.
    ///
    /// Errors: [`CgroupError`] if the limit cannot be read.
    pub fn still_custom(&self, mut earlier: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, CgroupError> {
        let limit = earlier.get(LIMIT).map(String::as_str);
        if limit.is_some() && self.text(LIMIT)?.as_deref().map(str::trim) != limit {
            earlier.retain(|name, _| name == SWAP);
        }
        Ok(earlier)
    }

    /// Writes these values into the files that hold other values now; returns whether any did. Leaves files that
    /// are not named here alone.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be written.
    pub fn restore_limits(&self, values: &BTreeMap<String, String>) -> Result<bool, CgroupError> {
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
