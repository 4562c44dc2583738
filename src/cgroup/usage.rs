//! What a cgroup uses now, of its cpu and of its memory.
//!
//! No file stays open: a node has thousands of them.

use std::fs;
use std::time::Duration;

use super::memory::field;
use super::{Cgroup, CgroupDir, CgroupError, Hierarchy};
use crate::model::{CgroupVersion, Resource};

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

impl Cgroup {
    /// Reads the counters once.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn usage(&self, hierarchy: &Hierarchy) -> Result<Usage, CgroupError> {
        let [inactive, _] = self.outer().file_pages()?;
        let (periods, throttled) = self.periods()?;
        Ok(Usage {
            cpu: self.cpu_time(hierarchy)?,
            memory: self.outer().memory_usage()?.get().saturating_sub(inactive),
            periods,
            throttled,
        })
    }

    /// How many periods there were in which the cgroup had anything to run, and in how many of them it was throttled.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn periods(&self) -> Result<(u64, u64), CgroupError> {
        let (mut all, mut throttled) = (0, 0);
        for dir in self.dirs() {
            let stat = dir.dir(Resource::Cpu).text("cpu.stat")?.unwrap_or_default();
            // Both of crun's cgroups have the quota, and either may hit it first.
            all = all.max(field(&stat, "nr_periods").unwrap_or_default());
            throttled += field(&stat, "nr_throttled").unwrap_or_default();
        }
        Ok((all, throttled.min(all)))
    }

    fn cpu_time(&self, hierarchy: &Hierarchy) -> Result<Option<Duration>, CgroupError> {
        let cpu = self.outer().dir(Resource::Cpu);
        if self.outer().version() == CgroupVersion::V2 {
            let stat = cpu.text("cpu.stat")?;
            return Ok(stat.and_then(|stat| field(&stat, "usage_usec").map(Duration::from_micros)));
        }
        let nanoseconds = cpu.text("cpuacct.usage")?.or_else(|| {
            // Few machines mount v1's accounting apart from its cpu controller.
            let mount = hierarchy.mount(Resource::Cpu).with_file_name("cpuacct");
            fs::read_to_string(self.path().under(&mount).join("cpuacct.usage")).ok()
        });
        Ok(nanoseconds.and_then(|text| text.trim().parse().ok().map(Duration::from_nanos)))
    }
}

impl CgroupDir {
    /// Bytes of pages of files, which the kernel takes back rather than kill. Without swap nothing else can be.
    ///
    /// Errors: [`CgroupError`].
    pub fn reclaimable(&self) -> Result<u64, CgroupError> {
        let [inactive, active] = self.file_pages()?;
        Ok(inactive.saturating_add(active))
    }

    /// Bytes of inactive and of active pages of files.
    fn file_pages(&self) -> Result<[u64; 2], CgroupError> {
        let stat = self.dir(Resource::Memory).text("memory.stat")?.unwrap_or_default();
        Ok(file_pages(self.version(), &stat))
    }
}

fn file_pages(version: CgroupVersion, stat: &str) -> [u64; 2] {
    let keys = match version {
        CgroupVersion::V1 => ["total_inactive_file", "total_active_file"],
        CgroupVersion::V2 => ["inactive_file", "active_file"],
    };
    keys.map(|key| field(stat, key).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_files_count_as_reclaimable() {
        let v2 = "anon 1000\nfile 700\ninactive_anon 900\nactive_file 100\ninactive_file 200\nslab_reclaimable 50\n";
        assert_eq!(file_pages(CgroupVersion::V2, v2), [200, 100]);
        let v1 = "inactive_file 1\nactive_file 2\ntotal_inactive_file 30\ntotal_active_file 40\n";
        assert_eq!(file_pages(CgroupVersion::V1, v1), [30, 40]);
    }
}
