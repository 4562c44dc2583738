//! Memory use against its limit, read again and again at the cost of a few system calls.
//!
//! The files stay open. In comes an open cgroup; out come numbers, or [`Reason::Vanished`] once the cgroup is gone.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use nix::fcntl::OFlag;

use super::file::{Dir, is_gone, read_from_start, refused};
use super::limits::{limit_file, usage_file};
use super::{Cgroup, CgroupDir, CgroupError, Hierarchy, Reason};
use crate::model::{CgroupVersion, MemoryLimit, Resource, Setting};

/// More than any kernel prints into `memory.stat` or `cpu.stat`.
const LONGEST: usize = 8192;

/// The memory of one cgroup, and what bounds it.
#[derive(Debug)]
pub struct MemoryMeter {
    memory: UsageMeter,
    /// Of crun's inner cgroup, too, where there is one.
    limits: Vec<OpenFile>,
}

/// The memory of one cgroup without its limits.
#[derive(Debug)]
pub struct UsageMeter {
    version: CgroupVersion,
    usage: OpenFile,
    stat: OpenFile,
}

/// How often a cgroup's cpu limit held it back.
#[derive(Debug)]
pub struct ThrottleMeter(Vec<OpenFile>);

/// What one reading of a cgroup's counters found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Time on processors since the cgroup was made; `None` where the kernel does not count it.
    pub cpu: Option<Duration>,
    /// Bytes in use without inactive pages of files, which the kernel takes back first.
    pub memory: u64,
    /// Enforcement periods of the cpu limit in which anything ran.
    pub periods: u64,
    /// Those of them that were throttled.
    pub throttled: u64,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    path: PathBuf,
}

impl MemoryMeter {
    /// Opens the files that are read again and again.
    pub fn open(cgroup: &Cgroup) -> Result<Self, CgroupError> {
        let memory = UsageMeter::open(cgroup.outer())?;
        let limit = limit_file(memory.version).name();
        let limits = cgroup
            .dirs()
            .map(|dir| OpenFile::open(dir.dir(Resource::Memory), limit));
        let limits = limits.collect::<Result<_, _>>()?;
        Ok(Self { memory, limits })
    }

    /// Bytes in use, page cache and kernel memory included.
    pub fn usage(&self) -> Result<u64, CgroupError> {
        self.memory.usage.number()
    }

    /// The limit in bytes that binds; `None` where there is none.
    pub fn limit(&self) -> Result<Option<u64>, CgroupError> {
        let mut binding = None;
        for limit in &self.limits {
            let setting = Setting::parse(limit_file(self.memory.version), limit.text(&mut [0; 64])?)
                .map_err(|error| limit.error(Reason::Unreadable(error)))?;
            if let Some(MemoryLimit::Bytes(bytes)) = setting.memory() {
                binding = Some(binding.map_or(bytes, |other: u64| other.min(bytes)));
            }
        }
        Ok(binding)
    }

    /// Bytes of pages of files, which the kernel takes back rather than kill. Without swap nothing else can be.
    pub fn reclaimable(&self) -> Result<u64, CgroupError> {
        self.memory.pages_of_files()
    }
}

impl UsageMeter {
    /// Opens the files that are read again and again.
    pub fn open(dir: &CgroupDir) -> Result<Self, CgroupError> {
        let (version, memory) = (dir.version(), dir.dir(Resource::Memory));
        Ok(Self {
            version,
            usage: OpenFile::open(memory, usage_file(limit_file(version)))?,
            stat: OpenFile::open(memory, "memory.stat")?,
        })
    }

    /// Bytes in use without pages of files: on the node they count as available.
    pub fn used(&self) -> Result<u64, CgroupError> {
        Ok(self.usage.number()?.saturating_sub(self.pages_of_files()?))
    }

    fn pages_of_files(&self) -> Result<u64, CgroupError> {
        Ok(sum_of(self.stat.text(&mut [0; LONGEST])?, &keys_of_files(self.version)))
    }
}

impl ThrottleMeter {
    /// Opens the files that are read again and again.
    pub fn open(cgroup: &Cgroup) -> Result<Self, CgroupError> {
        let stats = cgroup
            .dirs()
            .map(|dir| OpenFile::open(dir.dir(Resource::Cpu), "cpu.stat"));
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

impl Cgroup {
    /// Reads the counters once.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn usage(&self, hierarchy: &Hierarchy) -> Result<Usage, CgroupError> {
        let stat = self.outer().dir(Resource::Memory).text("memory.stat")?;
        let [inactive, _] = keys_of_files(self.outer().version());
        let inactive = sum_of(&stat.unwrap_or_default(), &[inactive]);
        let (periods, throttled) = ThrottleMeter::open(self)?.periods()?;
        Ok(Usage {
            cpu: self.cpu_time(hierarchy)?,
            memory: self.outer().memory_usage()?.get().saturating_sub(inactive),
            periods,
            throttled,
        })
    }

    fn cpu_time(&self, hierarchy: &Hierarchy) -> Result<Option<Duration>, CgroupError> {
        let cpu = self.outer().dir(Resource::Cpu);
        if self.outer().version() == CgroupVersion::V2 {
            let stat = cpu.text("cpu.stat")?;
            return Ok(stat.map(|stat| Duration::from_micros(sum_of(&stat, &["usage_usec "]))));
        }
        let nanoseconds = cpu.text("cpuacct.usage")?.or_else(|| {
            // Few machines mount v1's accounting apart from its cpu controller.
            let mount = hierarchy.mount(Resource::Cpu).with_file_name("cpuacct");
            fs::read_to_string(self.path().under(&mount).join("cpuacct.usage")).ok()
        });
        Ok(nanoseconds.and_then(|text| text.trim().parse().ok().map(Duration::from_nanos)))
    }
}

/// What `memory.stat` calls pages of files, the inactive ones first. v1 has what is in cgroups below under names of its own.
const fn keys_of_files(version: CgroupVersion) -> [&'static str; 2] {
    match version {
        CgroupVersion::V1 => ["total_inactive_file ", "total_active_file "],
        CgroupVersion::V2 => ["inactive_file ", "active_file "],
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

impl OpenFile {
    fn open(dir: &Dir, name: &'static str) -> Result<Self, CgroupError> {
        let file = dir.open_file(name, OFlag::O_RDONLY)?.into_file();
        let path = dir.path().join(name);
        Ok(Self { file, path })
    }

    fn text<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b str, CgroupError> {
        match read_from_start(&self.file, buffer) {
            Ok(text) => Ok(text.trim_end()),
            Err(errno) if is_gone(errno) => Err(self.error(Reason::Vanished)),
            Err(errno) => Err(self.error(refused(errno, "read the file"))),
        }
    }

    fn number(&self) -> Result<u64, CgroupError> {
        let mut buffer = [0; 64];
        let text = self.text(&mut buffer)?;
        text.parse()
            .map_err(|_| self.error(Reason::NotANumber(text.to_owned())))
    }

    fn error(&self, reason: Reason) -> CgroupError {
        let file = self.path.clone();
        CgroupError { file, reason }
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
