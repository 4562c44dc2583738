//! A cgroup's use of cpu and of memory with its parts; and the rule that no memory limit is set below use.
//!
//! No file stays open: a node has thousands of them.

use std::fs;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::file::{Dir, if_present};
use super::{Cgroup, CgroupDir, CgroupError, Hierarchy, Reason};
use crate::model::{
    Bytes, CgroupVersion, ControlFile, MemoryLimit, MemoryReading, PageSize, Reclaim, Resource, Setting, WatchReading,
};

/// v2's file through which the kernel reclaims memory on request (from Linux 5.19).
const RECLAIM: &str = "memory.reclaim";
/// v1's counters of charges that a limit refused: of this cgroup and the one around it, without swap and with it.
const REFUSED_CHARGES: [&str; 4] = [
    "memory.failcnt",
    "memory.memsw.failcnt",
    "../memory.failcnt",
    "../memory.memsw.failcnt",
];

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
    /// How long the kernel throttled the cgroup, summed up over processors.
    pub throttled_for: Duration,
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
        let mut sum = Periods::default();
        for dir in self.dirs() {
            let stat = dir.dir(Resource::Cpu).text("cpu.stat")?.unwrap_or_default();
            // Both of crun's cgroups have the quota, and either may hit it first.
            sum.all = sum.all.max(field(&stat, "nr_periods").unwrap_or_default());
            sum.throttled += field(&stat, "nr_throttled").unwrap_or_default();
            let on_v1 = field(&stat, "throttled_time").map(Duration::from_nanos);
            let time = on_v1.or_else(|| field(&stat, "throttled_usec").map(Duration::from_micros));
            sum.throttled_for += time.unwrap_or_default();
        }
        sum.throttled = sum.throttled.min(sum.all);
        Ok(sum)
    }

    /// The memory in use, with the counters of kills and stalls.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn watch_reading(&self) -> Result<WatchReading, CgroupError> {
        // v1 counts a kill in its victim's cgroup alone, and does not account for pressure.
        let (counter, counting, stalls) = match self.outer().version() {
            CgroupVersion::V1 => ("memory.oom_control", 2, None),
            CgroupVersion::V2 => ("memory.events", 1, self.outer().memory_dir().text("memory.pressure")?),
        };
        let mut kills = 0;
        for dir in self.dirs().take(counting) {
            let counters = dir.memory_dir().text(counter)?.unwrap_or_default();
            kills += field(&counters, "oom_kill").unwrap_or_default();
        }
        Ok(WatchReading {
            memory: self.outer().memory_reading()?,
            kills,
            stalled: stalls.as_deref().and_then(full_stall),
        })
    }

    /// How often the limits of this cgroup and of the one around it have refused a charge (v1): the kernel then reclaims. Of a pod and
    /// its container with the same limit, the pod's refuses, and crun's inner cgroup before its scope; of memory and of memory with
    /// swap, the latter (`try_charge_memcg`, mm/memcontrol.c). A scope with an inner cgroup counts twice.
    ///
    /// Errors: [`CgroupError`].
    pub fn refused_charges(&self) -> Result<u64, CgroupError> {
        let mut sum = 0_u64;
        for dir in self.dirs() {
            for name in REFUSED_CHARGES {
                let count = if_present(read_bytes(dir.memory_dir(), name))?;
                sum = sum.saturating_add(count.unwrap_or_default());
            }
        }
        Ok(sum)
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
    /// Bytes in use now, page cache and kernel memory included.
    ///
    /// Errors: [`CgroupError`]; [`Reason::Absent`] on the root of v2.
    pub fn memory_usage(&self) -> Result<Bytes, CgroupError> {
        read_bytes(self.memory_dir(), usage_file(limit_file(self.version()))).map(Bytes::new)
    }

    /// Refuses a lower memory limit that the kernel could not make room for now by reclaiming. A pass checks its whole plan
    /// with this before the first step.
    ///
    /// Errors: [`Reason::BelowUsage`], or a file cannot be read.
    pub fn check_usage(&self, current: Setting, wanted: Setting) -> Result<(), CgroupError> {
        refuse_below(self.dir(wanted.file().resource()), current, wanted, Some(self))
    }

    /// The memory in use, and its parts.
    ///
    /// Errors: [`CgroupError`]; [`Absent`](super::Reason::Absent) on the root of v2.
    pub fn memory_reading(&self) -> Result<MemoryReading, CgroupError> {
        // In this order: memory that is charged between the two reads counts as held, not as evictable.
        let stat = self.dir(Resource::Memory).text("memory.stat")?.unwrap_or_default();
        let (version, usage) = (self.version(), self.memory_usage()?);
        let peak = version.v1_or_v2("memory.max_usage_in_bytes", "memory.peak");
        let peak = if_present(read_bytes(self.memory_dir(), peak))?.map(Bytes::new);
        Ok(MemoryReading::new(version, page_size(), usage, peak, &stat))
    }

    /// How the kernel can be made to reclaim this cgroup's memory.
    pub fn reclaim_way(&self) -> Result<Reclaim, CgroupError> {
        if self.version() == CgroupVersion::V1 {
            return Ok(Reclaim::ByTheWrite);
        }
        let file = if_present(self.dir(Resource::Memory).open_file(RECLAIM, OFlag::O_WRONLY))?;
        Ok(file.map_or(Reclaim::Never, |_| Reclaim::OnRequest))
    }

    /// Has the kernel reclaim up to this many bytes: less is no error. Changes no limit. Blocks while the kernel reclaims.
    ///
    /// Errors: [`CgroupError`]; [`Absent`](super::Reason::Absent) on v1 and before Linux 5.19.
    pub fn reclaim(&self, bytes: Bytes) -> Result<(), CgroupError> {
        let file = self.dir(Resource::Memory).open_file(RECLAIM, OFlag::O_WRONLY)?;
        match file.write(&bytes.get().to_string()) {
            // EAGAIN: the kernel reclaimed less. EINTR: a signal came.
            Ok(()) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(errno) => Err(file.failed(errno, "write the file")),
        }
    }

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

/// Refuses a memory limit that is lower than `current` and lower than the memory in use, caches included. With the cgroup, memory
/// that the kernel can evict does not count as in use. Raising is always allowed, even to a limit that is still too low.
pub(super) fn refuse_below(
    dir: &Dir,
    current: Setting,
    wanted: Setting,
    cgroup: Option<&CgroupDir>,
) -> Result<(), CgroupError> {
    let (before, after) = (current.memory(), wanted.memory());
    let Some(MemoryLimit::Bytes(bytes)) = after.filter(|after| before.is_some_and(|before| *after < before)) else {
        return Ok(());
    };
    // In this order: memory that is charged between the two reads counts as held, not as evictable.
    let reading = cgroup.map(CgroupDir::memory_reading).transpose()?;
    let usage = read_bytes(dir, usage_file(wanted.file()))?;
    let held = reading.map_or(usage, |reading| {
        let usage = Bytes::new(usage);
        MemoryReading { usage, ..reading }.held().get()
    });
    if bytes < held {
        let reason = Reason::BelowUsage { usage, wanted: bytes };
        return Err(dir.error(wanted.file().name(), reason));
    }
    Ok(())
}

/// The file of a cgroup's memory limit.
pub(super) fn limit_file(version: CgroupVersion) -> ControlFile {
    version.v1_or_v2(ControlFile::MemoryLimit, ControlFile::MemoryMax)
}

/// The file that counts the memory which a limit bounds.
pub(super) fn usage_file(limit: ControlFile) -> &'static str {
    match limit {
        ControlFile::MemswLimit => "memory.memsw.usage_in_bytes",
        ControlFile::MemoryLimit => "memory.usage_in_bytes",
        _ => "memory.current",
    }
}

pub(super) fn read_bytes(dir: &Dir, name: &'static str) -> Result<u64, CgroupError> {
    let text = dir.open_file(name, OFlag::O_RDONLY)?.line()?;
    let content = || Reason::Unreadable(format!(" {text:?}: not a number of bytes"));
    text.parse().map_err(|_| dir.error(name, content()))
}

/// The unit in which this kernel keeps memory limits.
pub fn page_size() -> PageSize {
    PageSize::new(procfs::page_size()).unwrap_or(PageSize::KIB_4)
}

/// The value of a field in a file of `name value` lines.
fn field(text: &str, name: &str) -> Option<u64> {
    let fields = text.lines().filter_map(|line| line.split_once(' '));
    let (_, value) = fields.into_iter().find(|(field, _)| *field == name)?;
    value.trim().parse().ok()
}

/// For how long all tasks were stalled at once, in `full avg10=… avg60=… avg300=… total=MICROSECONDS`.
fn full_stall(text: &str) -> Option<Duration> {
    let full = text.lines().find(|line| line.starts_with("full "))?;
    let (_, total) = full.rsplit_once("total=")?;
    total.trim().parse().ok().map(Duration::from_micros)
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
    use std::path::Path;

    use super::*;
    use crate::model::CgroupPath;

    #[test]
    fn counters_and_stalls_are_read() {
        let events = "low 0\nhigh 0\nmax 17\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(field(events, "oom_kill"), Some(1));
        assert_eq!(
            field("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill"),
            Some(3)
        );
        assert_eq!(field(events, "sock_throttled"), None);
        let pressure =
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=1200\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=850\n";
        assert_eq!(full_stall(pressure), Some(Duration::from_micros(850)));
        assert_eq!(full_stall("some avg10=0.00 total=1\n"), None);
    }

    /// A container's cgroup of this version, as plain files.
    fn cgroup(root: &Path, version: CgroupVersion, files: &[(&str, &str)]) -> (Hierarchy, Cgroup) {
        let directories = match version {
            CgroupVersion::V1 => vec!["cpu/app", "memory/app"],
            CgroupVersion::V2 => vec!["app"],
        };
        for directory in &directories {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        if version == CgroupVersion::V2 {
            fs::write(root.join("cgroup.controllers"), "cpu memory\n").unwrap();
        }
        for (name, text) in files {
            let directory = if name.starts_with("cpu") {
                directories[0]
            } else {
                directories[directories.len() - 1]
            };
            fs::write(root.join(directory).join(name), text).unwrap();
        }
        let hierarchy = Hierarchy::of_tree(root).unwrap();
        let cgroup = Cgroup::open(&hierarchy, &CgroupPath::new("/app").unwrap()).unwrap();
        (hierarchy, cgroup)
    }

    #[test]
    fn both_versions_count_in_their_units() {
        let v1 = [
            ("cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_time 2500000000\n"),
            ("cpuacct.usage", "1500000\n"),
            ("memory.usage_in_bytes", "9000\n"),
            ("memory.max_usage_in_bytes", "9500\n"),
            ("memory.stat", "total_inactive_file 2000\ntotal_active_file 500\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        ];
        let v2 = [
            (
                "cpu.stat",
                "usage_usec 1500\nnr_periods 10\nnr_throttled 4\nthrottled_usec 2500000\n",
            ),
            ("memory.current", "9000\n"),
            ("memory.peak", "9500\n"),
            ("memory.stat", "inactive_file 2000\nactive_file 500\n"),
            ("memory.events", "oom 4\noom_kill 3\n"),
            (
                "memory.pressure",
                "some avg10=0.00 total=9\nfull avg10=0.00 total=850\n",
            ),
        ];
        let usage = Usage {
            cpu: Some(Duration::from_micros(1500)),
            memory: 7000,
            periods: Periods {
                all: 10,
                throttled: 4,
                throttled_for: Duration::from_millis(2500),
            },
        };
        let stalled = Some(Duration::from_micros(850));
        for (version, files, stalled) in [(CgroupVersion::V1, v1, None), (CgroupVersion::V2, v2, stalled)] {
            let root = tempfile::tempdir().unwrap();
            let (hierarchy, cgroup) = cgroup(root.path(), version, &files);
            assert_eq!(cgroup.usage(&hierarchy), Ok(usage), "{version:?}");
            let reading = cgroup.watch_reading().unwrap();
            assert_eq!((reading.kills, reading.stalled), (3, stalled), "{version:?}");
            assert_eq!(reading.memory.peak, Some(Bytes::new(9500)), "{version:?}");
            assert_eq!(cgroup.outer().reclaimable(), Ok(2500), "{version:?}");
        }
    }

    #[test]
    fn refused_charges_count_in_both_cgroups() {
        let files = [
            ("memory.failcnt", "1\n"),
            ("memory.memsw.failcnt", "2\n"),
            ("../memory.failcnt", "4\n"),
            ("../memory.memsw.failcnt", "8\n"),
        ];
        let refused = |files: &[(&str, &str)]| {
            let root = tempfile::tempdir().unwrap();
            let (_, cgroup) = cgroup(root.path(), CgroupVersion::V1, files);
            cgroup.refused_charges()
        };
        assert_eq!(refused(&files), Ok(15));
        assert_eq!(refused(&files[..1]), Ok(1), "a kernel without accounting of swap");
    }

    #[test]
    fn v1_counts_in_cruns_inner_cgroup_alone() {
        let root = tempfile::tempdir().unwrap();
        let scope = root.path().join("memory/crio-a.scope");
        let inner = scope.join("container");
        fs::create_dir_all(root.path().join("cpu/crio-a.scope/container")).unwrap();
        for (directory, refused, kills) in [(&scope, "0\n", "oom_kill 0\n"), (&inner, "7\n", "oom_kill 2\n")] {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("memory.failcnt"), refused).unwrap();
            fs::write(directory.join("memory.oom_control"), kills).unwrap();
            fs::write(directory.join("memory.usage_in_bytes"), "0\n").unwrap();
        }
        let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
        let cgroup = Cgroup::open(&hierarchy, &CgroupPath::new("/crio-a.scope").unwrap()).unwrap();
        assert_eq!(cgroup.refused_charges(), Ok(7));
        assert_eq!(cgroup.watch_reading().unwrap().kills, 2);
    }

    #[test]
    fn v1_may_count_cpu_time_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let (hierarchy, cgroup) = cgroup(root.path(), CgroupVersion::V1, &[]);
        assert_eq!(cgroup.cpu_time(&hierarchy), Ok(None));
        fs::create_dir_all(root.path().join("cpuacct/app")).unwrap();
        fs::write(root.path().join("cpuacct/app/cpuacct.usage"), "1500\n").unwrap();
        assert_eq!(cgroup.cpu_time(&hierarchy), Ok(Some(Duration::from_nanos(1500))));
    }

    #[test]
    fn a_swap_limit_counts_swapped_memory() {
        let files = [
            ("memory.usage_in_bytes", "1000\n"),
            ("memory.memsw.usage_in_bytes", "5000\n"),
            ("memory.stat", "total_inactive_file 500\n"),
        ];
        let root = tempfile::tempdir().unwrap();
        let (_, cgroup) = cgroup(root.path(), CgroupVersion::V1, &files);
        let refused = |file: fn(MemoryLimit) -> Setting, wanted| {
            let [current, wanted] = [8192, wanted].map(|bytes| file(MemoryLimit::Bytes(bytes)));
            cgroup
                .outer()
                .check_usage(current, wanted)
                .err()
                .map(|error| error.reason)
        };
        assert_eq!(refused(Setting::MemoryLimit, 500), None, "the kernel drops the cache");
        let [usage, wanted] = [1000, 499];
        assert_eq!(
            refused(Setting::MemoryLimit, wanted),
            Some(Reason::BelowUsage { usage, wanted })
        );
        assert_eq!(refused(Setting::MemswLimit, 4500), None);
        let [usage, wanted] = [5000, 4499];
        assert_eq!(
            refused(Setting::MemswLimit, wanted),
            Some(Reason::BelowUsage { usage, wanted })
        );
        assert_eq!(refused(Setting::MemswLimit, 9000), None, "a higher limit");
    }

    #[test]
    fn each_kernel_reclaims_in_its_way() {
        let [v1, v2] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let way = |(_, cgroup): &(Hierarchy, Cgroup)| cgroup.outer().reclaim_way();
        assert_eq!(way(&cgroup(v1.path(), CgroupVersion::V1, &[])), Ok(Reclaim::ByTheWrite));
        assert_eq!(way(&cgroup(v2.path(), CgroupVersion::V2, &[])), Ok(Reclaim::Never));
        let newer = cgroup(v2.path(), CgroupVersion::V2, &[(RECLAIM, "")]);
        assert_eq!(way(&newer), Ok(Reclaim::OnRequest));
        newer.1.outer().reclaim(Bytes::new(1 << 20)).unwrap();
        assert_eq!(
            fs::read_to_string(v2.path().join("app").join(RECLAIM)).unwrap(),
            "1048576\n"
        );
    }

    #[test]
    fn only_pages_of_files_count_as_reclaimable() {
        let v2 = "anon 1000\nfile 700\ninactive_anon 900\nactive_file 100\ninactive_file 200\nslab_reclaimable 50\n";
        assert_eq!(file_pages(CgroupVersion::V2, v2), [200, 100]);
        let v1 = "inactive_file 1\nactive_file 2\ntotal_inactive_file 30\ntotal_active_file 40\n";
        assert_eq!(file_pages(CgroupVersion::V1, v1), [30, 40]);
    }
}
