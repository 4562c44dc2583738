//! The only code that writes a value into a cgroup file.
//!
//! In comes a value; out comes the same value as the file was read back to hold it, or a [`CgroupError`]. Immediately before
//! a memory limit is lowered, the write compares it with the memory in use (on v1, with the part that the kernel cannot
//! reclaim), and on v2 once more immediately after.

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::file::{ControlFd, Dir};
use super::memory::{read_bytes, refuse_below, usage_file};
use super::{CgroupDir, CgroupError, Reason, page_size};
use crate::model::{CgroupVersion, ControlFile, Setting};

/// How often a value is written at most where another one is read back.
const MOST_WRITES: u32 = 3;

impl CgroupDir {
    /// Writes a value into its file, reads it back, and returns it as the kernel rounded it. Blocks while v1 reclaims
    /// memory for a lower limit.
    ///
    /// Errors: [`CgroupError`]. The file then holds its earlier value, except after [`Reason::Mismatch`],
    /// where another process wrote it after each try.
    pub fn write(&self, wanted: Setting) -> Result<Setting, CgroupError> {
        let kept = wanted.in_pages(page_size());
        let dir = self.dir(wanted.file().resource());
        let open = dir.open_file(wanted.file().name(), OFlag::O_RDWR | flags(wanted.file()))?;
        let from = open.setting(wanted.file())?;
        let burst = match kept {
            Setting::CpuMax(_) => self.read(ControlFile::CpuMaxBurst)?,
            _ => None,
        };
        let read_back = until_read_back(from, kept, || {
            match self.version() {
                // v1's kernel makes room for the limit in the same write, or refuses it.
                CgroupVersion::V1 => self.check_usage(from, kept)?,
                CgroupVersion::V2 => refuse_below(dir, from, kept, None)?,
            }
            write_value(dir, &open, kept)?;
            let read_back = open.setting(wanted.file())?;
            // Also where another process has written the quota meanwhile, which may be too low for the burst: the next write mends that.
            let restored = self.restore_burst(burst);
            if read_back == kept {
                restored.map(|()| read_back)
            } else {
                Ok(read_back)
            }
        })?;
        if read_back != kept {
            return Err(dir.error(wanted.file().name(), Reason::Mismatch { wanted, read_back }));
        }
        undo_below_usage(dir, &open, from, kept)?;
        Ok(read_back)
    }

    /// Restores the burst from before a write of `cpu.max`, if the kernel has divided it by 1000: before Linux 6.10 each such write
    /// takes its microseconds for nanoseconds (`cpu_max_write`, kernel/sched/core.c), also that of another process. Leaves any other
    /// value alone.
    ///
    /// Errors: [`CgroupError`].
    pub fn restore_burst(&self, before: Option<Setting>) -> Result<(), CgroupError> {
        let Some(burst) = before else { return Ok(()) };
        let divided = [1_000, 1_000_000].map(|by| burst.map_burst(|micros| micros / by));
        if !divided.contains(&burst) && self.read(burst.file())?.is_some_and(|held| divided.contains(&held)) {
            self.write(burst)?;
        }
        Ok(())
    }
}

/// Writes a value until the file holds it, at most [`MOST_WRITES`] times, and returns what is read back. While the kubelet
/// resizes a pod, the file may get the value `from` before once more. A memory limit that is neither value stays: the guard may have
/// raised it.
fn until_read_back<E>(
    from: Setting,
    wanted: Setting,
    mut write: impl FnMut() -> Result<Setting, E>,
) -> Result<Setting, E> {
    for _ in 1..MOST_WRITES {
        let read_back = write()?;
        if read_back == wanted || read_back != from && read_back.memory().is_some() {
            return Ok(read_back);
        }
    }
    write()
}

/// From Linux 6.16 a non-blocking write of `memory.max` neither reclaims nor kills when usage has just grown past it
/// (mm/memcontrol.c `memory_max_write`); older kernels ignore the flag.
fn flags(file: ControlFile) -> OFlag {
    if file == ControlFile::MemoryMax {
        OFlag::O_NONBLOCK
    } else {
        OFlag::empty()
    }
}

fn write_value(dir: &Dir, open: &ControlFd<'_>, wanted: Setting) -> Result<(), CgroupError> {
    let name = wanted.file().name();
    let mut written = open.write(&wanted.to_write());
    // v1's kernel changes no limit while a signal is pending (`mem_cgroup_resize_max`, mm/memcontrol-v1.c).
    while written == Err(Errno::EINTR) {
        written = open.write(&wanted.to_write());
    }
    match written {
        Ok(()) => Ok(()),
        Err(Errno::EINVAL) => Err(dir.error(name, Reason::Invalid { wanted })),
        Err(Errno::EBUSY) if wanted.memory().is_some() => {
            let usage = read_bytes(dir, usage_file(wanted.file()))?;
            Err(dir.error(name, Reason::Busy { wanted, usage }))
        }
        Err(errno) => Err(open.failed(errno, "write the file")),
    }
}

/// Takes a lowered `memory.max` back when usage grew past it between the check and the write: the kernel would kill at the
/// next allocation. v1's kernel refuses a limit below usage, so v1 needs no such check.
fn undo_below_usage(dir: &Dir, open: &ControlFd<'_>, from: Setting, wanted: Setting) -> Result<(), CgroupError> {
    if wanted.file() != ControlFile::MemoryMax {
        return Ok(());
    }
    let Err(below_usage) = refuse_below(dir, from, wanted, None) else {
        return Ok(());
    };
    write_value(dir, open, from)?;
    Err(below_usage)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::cgroup::Hierarchy;
    use crate::model::{CgroupPath, CpuWeight, MemoryLimit};

    fn max(mebibytes: u64) -> Setting {
        Setting::MemoryMax(MemoryLimit::Bytes(mebibytes << 20))
    }

    fn high(mebibytes: u64) -> Setting {
        Setting::MemoryHigh(MemoryLimit::Bytes(mebibytes << 20))
    }

    /// A v2 cgroup of plain files that uses 8 MiB of 16.
    fn cgroup(root: &Path) -> CgroupDir {
        fs::write(root.join("cgroup.controllers"), "cpu memory\n").unwrap();
        fs::create_dir(root.join("app")).unwrap();
        for (name, mebibytes) in [("memory.max", 16), ("memory.high", 16), ("memory.current", 8)] {
            fs::write(root.join("app").join(name), format!("{}\n", mebibytes << 20)).unwrap();
        }
        let hierarchy = Hierarchy::of_tree(root).unwrap();
        CgroupDir::open(&hierarchy, &CgroupPath::new("/app").unwrap()).unwrap()
    }

    #[test]
    fn a_value_that_is_written_back_is_written_again() {
        let weight = |weight| Setting::CpuWeight(CpuWeight::new(weight));
        for (from, wanted, read, writes) in [
            (weight(7), weight(10), vec![weight(10)], 1),
            (weight(7), weight(10), vec![weight(7), weight(10)], 2),
            (weight(7), weight(10), vec![weight(8), weight(7), weight(10)], 3),
            (weight(7), weight(10), vec![weight(7); 4], 3),
            (max(8), max(16), vec![max(8), max(16)], 2),
            // The guard has raised it.
            (max(8), max(16), vec![max(24), max(16)], 1),
        ] {
            let mut values = read.iter();
            let held = until_read_back(from, wanted, || values.next().copied().ok_or(()));
            assert_eq!(held.ok(), read.get(writes - 1).copied(), "{read:?}");
            assert_eq!(values.len(), read.len() - writes, "{read:?}");
        }
    }

    #[test]
    fn a_limit_below_grown_use_is_taken_back() {
        for (from, wanted, is_taken_back) in [
            (max(16), max(8), false),
            (max(16), max(7), true),
            (max(4), max(7), false),
            (high(16), high(7), false),
        ] {
            let root = tempfile::tempdir().unwrap();
            let cgroup = cgroup(root.path());
            let (dir, file) = (cgroup.memory_dir(), wanted.file());
            let open = dir.open_file(file.name(), OFlag::O_RDWR).unwrap();
            write_value(dir, &open, wanted).unwrap();
            let kept = undo_below_usage(dir, &open, from, wanted);
            assert_eq!(kept.is_err(), is_taken_back, "{file} {wanted}: {kept:?}");
            assert_eq!(open.setting(file), Ok(if is_taken_back { from } else { wanted }));
        }
    }

    #[test]
    fn a_burst_outlasts_a_write_of_its_quota() {
        let root = tempfile::tempdir().unwrap();
        let cgroup = cgroup(root.path());
        let set = |name: &str, text: &str| fs::write(root.path().join("app").join(name), text).unwrap();
        set("cpu.max", "50000 100000\n");
        let quota = Setting::parse(ControlFile::CpuMax, "40000 100000").unwrap();
        assert_eq!(cgroup.write(quota), Ok(quota), "a kernel without bursts");
        // As one or two writes of the quota leave it, or another process.
        let restored = [25_000, 25_999, 25_000_000].map(|before| (before, before));
        for (before, after) in restored.into_iter().chain([(0, 25), (26_000, 25)]) {
            set("cpu.max.burst", "25\n");
            cgroup.restore_burst(Some(Setting::CpuMaxBurst(before))).unwrap();
            let burst = Setting::CpuMaxBurst(after);
            assert_eq!(cgroup.write(quota).and(cgroup.read(burst.file())), Ok(Some(burst)));
        }
    }

    #[test]
    fn a_write_keeps_whole_pages_above_use() {
        let root = tempfile::tempdir().unwrap();
        let cgroup = cgroup(root.path());
        let odd = Setting::MemoryMax(MemoryLimit::Bytes(20_000_001));
        let written = cgroup.write(odd).unwrap();
        assert_eq!((written, written == odd), (odd.in_pages(page_size()), false));
        let refused = cgroup.write(max(7)).unwrap_err().reason;
        let [usage, wanted] = [8 << 20, 7 << 20];
        assert_eq!(refused, Reason::BelowUsage { usage, wanted });
        assert_eq!(cgroup.read(ControlFile::MemoryMax), Ok(Some(written)));
        assert_eq!(cgroup.write(max(8)), Ok(max(8)));
    }
}
