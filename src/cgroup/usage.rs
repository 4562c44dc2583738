//! A cgroup's use of cpu and memory.
//!
//! No file stays open: a node has thousands of them.

use std::fs;
use std::time::Duration;

use super::memory::field;
use super::{Cgroup, CgroupDir, CgroupError, Hierarchy};
use crate::model::{CgroupVersion, Resource};

/// One reading of a cgroup's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since the cgroup was made; `None` where the kernel does not count it.
    pub cpu: Option<Duration>,
    /// Bytes in use without inactive file pages, which the kernel reclaims first.
    pub memory: u64,
    pub periods: Periods,
}

/// The counters of a cpu limit's enforcement periods (`cpu.stat`), which only rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Periods {
    /// Periods in which a process of the cgroup ran.
    pub all: u64,
    /// Those of them in which the kernel throttled the cgroup.
    pub throttled: u64,
}

impl Cgroup {
    /// Reads the counters once.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn usage(&self, hierarchy: &Hierarchy) -> Result<Usage, CgroupError> {
        let [inactive, _] = self.outer().file_pages()?;
        Ok(Usage {
            periods: self.periods()?,
            cpu: self.cpu_time(hierarchy)?,
            memory: self.outer().memory_usage()?.get().saturating_sub(inactive),
        })
    }

    /// Reads the counters of enforcement periods.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn periods(&self) -> Result<Periods, CgroupError> {
        let (mut all, mut throttled) = (0, 0);
        for dir in self.dirs() {
            let stat = dir.dir(Resource::Cpu).text("cpu.stat")?.unwrap_or_default();
            // Both of crun's cgroups have the quota, and either may hit it first.
            all = all.max(field(&stat, "nr_periods").unwrap_or_default());
            throttled += field(&stat, "nr_throttled").unwrap_or_default();
        }
        let throttled = throttled.min(all);
        Ok(Periods { all, throttled })
    }

    fn cpu_time(&self, hierarchy: &Hierarchy) -> Result<Option<Duration>, CgroupError> {
        let cpu = self.outer().dir(Resource::Cpu);
        if self.outer().version() == CgroupVersion::V2 {
            let stat = cpu.text("cpu.stat")?;
            return Ok(stat.and_then(|stat| field(&stat, "usage_usec").map(Duration::from_micros)));
        }
        let nanoseconds = cpu.text("cpuacct.usage")?.or_else(|| {
            // Few machines mount v1's accounting and cpu controller at different places.
            let mount = hierarchy.mount(Resource::Cpu).with_file_name("cpuacct");
            fs::read_to_string(self.path().under(&mount).join("cpuacct.usage")).ok()
        });
        Ok(nanoseconds.and_then(|text| text.trim().parse().ok().map(Duration::from_nanos)))
    }
}

impl CgroupDir {
    /// Bytes of file pages, which the kernel reclaims before it kills. Without swap it can reclaim nothing else.
    ///
    /// Errors: [`CgroupError`].
    pub fn reclaimable(&self) -> Result<u64, CgroupError> {
        let [inactive, active] = self.file_pages()?;
        Ok(inactive.saturating_add(active))
    }

    /// Bytes of inactive and of active file pages.
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
