//! Memory use against its limit, read again and again at the cost of a few system calls.
//!
//! The files stay open. In comes an open cgroup; out come numbers, or [`Reason::Vanished`] once the cgroup is gone.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::file::{Dir, refused};
use super::{Cgroup, CgroupDir, CgroupError, Controller, Reason};
use crate::model::{CgroupVersion, ControlFile, MemoryLimit, Setting};

/// More than any kernel prints into `memory.stat` or `memory.events`.
const LONGEST: usize = 8192;

/// The memory of one cgroup, and what bounds it.
#[derive(Debug)]
pub struct MemoryMeter {
    version: CgroupVersion,
    usage: Open,
    stat: Open,
    /// Of crun's inner cgroup, too, where there is one.
    limits: Vec<Open>,
}

/// The memory of one cgroup alone: for those of which nothing else matters.
#[derive(Debug)]
pub struct UsageMeter {
    version: CgroupVersion,
    usage: Open,
    stat: Open,
}

/// How often a cgroup's cpu limit held it back.
#[derive(Debug)]
pub struct ThrottleMeter(Vec<Open>);

/// A file that stays open.
#[derive(Debug)]
struct Open {
    file: File,
    path: PathBuf,
}

impl MemoryMeter {
    /// Opens the files.
    ///
    /// Errors: [`CgroupError`] of the first that cannot be opened.
    pub fn open(cgroup: &Cgroup) -> Result<Self, CgroupError> {
        let outer = cgroup.outer();
        let limit = limit_file(outer.version());
        let limits = cgroup
            .dirs()
            .map(|dir| Open::of(dir.dir(Controller::Memory), limit.name()));
        Ok(Self {
            version: outer.version(),
            usage: Open::of(outer.dir(Controller::Memory), usage_file(outer.version()))?,
            stat: Open::of(outer.dir(Controller::Memory), "memory.stat")?,
            limits: limits.collect::<Result<_, _>>()?,
        })
    }

    /// Bytes in use, page cache and kernel memory included.
    pub fn usage(&self) -> Result<u64, CgroupError> {
        self.usage.number()
    }

    /// The limit that binds; `None` where there is none.
    pub fn limit(&self) -> Result<Option<u64>, CgroupError> {
        let mut binding = None;
        for limit in &self.limits {
            let setting = Setting::parse(limit_file(self.version), limit.text(&mut [0; 64])?)
                .map_err(|error| limit.error(Reason::Unreadable(error)))?;
            if let Some(MemoryLimit::Bytes(bytes)) = setting.memory() {
                binding = Some(binding.map_or(bytes, |other: u64| other.min(bytes)));
            }
        }
        Ok(binding)
    }

    /// Bytes of pages of files, which the kernel takes back rather than kill. Without swap nothing else can be.
    pub fn reclaimable(&self) -> Result<u64, CgroupError> {
        pages_of_files(&self.stat, self.version)
    }
}

fn pages_of_files(stat: &Open, version: CgroupVersion) -> Result<u64, CgroupError> {
    let mut buffer = [0; LONGEST];
    let keys = match version {
        CgroupVersion::V1 => ["total_inactive_file ", "total_active_file "],
        CgroupVersion::V2 => ["inactive_file ", "active_file "],
    };
    Ok(sum_of(stat.text(&mut buffer)?, &keys))
}

impl ThrottleMeter {
    /// Opens the files.
    ///
    /// Errors: [`CgroupError`] of the first that cannot be opened.
    pub fn open(cgroup: &Cgroup) -> Result<Self, CgroupError> {
        let stats = cgroup.dirs().map(|dir| Open::of(dir.dir(Controller::Cpu), "cpu.stat"));
        stats.collect::<Result<_, _>>().map(Self)
    }

    /// How many periods there were in which the cgroup had anything to run, and in how many of them it was throttled.
    pub fn periods(&self) -> Result<(u64, u64), CgroupError> {
        let (mut all, mut throttled) = (0, 0);
        for stat in &self.0 {
            let mut buffer = [0; 1024];
            let text = stat.text(&mut buffer)?;
            // Both of crun's cgroups have the quota, and either may hit it first.
            all = all.max(sum_of(text, &["nr_periods "]));
            throttled += sum_of(text, &["nr_throttled "]);
        }
        Ok((all, throttled.min(all)))
    }
}

/// The sum of the values of these keys, of which each ends in a space.
fn sum_of(text: &str, keys: &[&str]) -> u64 {
    let values = text.lines().filter_map(|line| {
        let value = keys.iter().find_map(|key| line.strip_prefix(key))?;
        value.trim().parse::<u64>().ok()
    });
    values.fold(0, u64::saturating_add)
}

impl UsageMeter {
    /// Opens the files.
    ///
    /// Errors: [`CgroupError`] of the first that cannot be opened.
    pub fn open(dir: &CgroupDir) -> Result<Self, CgroupError> {
        let version = dir.version();
        Ok(Self {
            version,
            usage: Open::of(dir.dir(Controller::Memory), usage_file(version))?,
            stat: Open::of(dir.dir(Controller::Memory), "memory.stat")?,
        })
    }

    /// Bytes in use without pages of files: on the node they count as available.
    pub fn used(&self) -> Result<u64, CgroupError> {
        let usage = self.usage.number()?;
        Ok(usage.saturating_sub(pages_of_files(&self.stat, self.version)?))
    }
}

const fn limit_file(version: CgroupVersion) -> ControlFile {
    match version {
        CgroupVersion::V1 => ControlFile::MemoryLimit,
        CgroupVersion::V2 => ControlFile::MemoryMax,
    }
}

pub(super) const fn usage_file(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V1 => "memory.usage_in_bytes",
        CgroupVersion::V2 => "memory.current",
    }
}

impl Open {
    fn of(dir: &Dir, name: &'static str) -> Result<Self, CgroupError> {
        let file = dir.open_file(name, OFlag::O_RDONLY)?.into_file();
        Ok(Self {
            file,
            path: dir.path().join(name),
        })
    }

    /// What the file holds, as much of it as there is room for.
    fn text<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b str, CgroupError> {
        let mut length = 0;
        while length < buffer.len() {
            match self.file.read_at(&mut buffer[length..], length as u64) {
                Ok(0) => break,
                Ok(read) => length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        // These files hold ASCII; anything else is not a value of theirs, and neither is an empty text.
        Ok(str::from_utf8(&buffer[..length]).unwrap_or_default().trim_end())
    }

    fn number(&self) -> Result<u64, CgroupError> {
        let mut buffer = [0; 64];
        let text = self.text(&mut buffer)?;
        text.parse()
            .map_err(|_| self.error(Reason::NotANumber(text.to_owned())))
    }

    fn failed(&self, error: &io::Error) -> CgroupError {
        self.error(match Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO)) {
            Errno::ENOENT | Errno::ENODEV => Reason::Vanished,
            errno => refused(errno, "read the file"),
        })
    }

    fn error(&self, reason: Reason) -> CgroupError {
        CgroupError {
            file: self.path.clone(),
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_files_count_as_reclaimable() {
        let v2 = "anon 1000\nfile 700\ninactive_anon 900\nactive_file 100\ninactive_file 200\nslab_reclaimable 50\n";
        assert_eq!(sum_of(v2, &["inactive_file ", "active_file "]), 300);
        let v1 = "inactive_file 1\nactive_file 2\ntotal_inactive_file 30\ntotal_active_file 40\n";
        assert_eq!(sum_of(v1, &["total_inactive_file ", "total_active_file "]), 70);
    }
}
