//! A pod's or a container's cgroup, and crun's inner cgroup with it.
//!
//! Under systemd, crun keeps a container's processes in a cgroup named `container` below the scope and writes the limits
//! there, while systemd puts the same limits on the scope. The scope's weight competes with other containers; of the two
//! limits the tighter one binds. So the agent writes both, in the order that never binds more than either the old or the new
//! value, and reads the value that binds.

use super::memory::limit_file;
use super::{CgroupDir, CgroupError, Hierarchy};
use crate::model::{CgroupPath, CgroupVersion, ControlFile, MemoryLimit, Setting, Settings};

/// The name of the cgroup crun makes below a scope (crun `cgroup-systemd.c`, `find_systemd_subgroup`).
const INNER: &str = "container";

/// A cgroup to resize: one, or a scope with crun's inner one.
#[derive(Debug)]
pub struct Cgroup {
    outer: CgroupDir,
    inner: Option<CgroupDir>,
}

impl Cgroup {
    /// Opens the cgroup at a path: a pod's, a container's, or crun's inner one, which stands for the scope around it.
    ///
    /// Errors: [`CgroupError`]; [`Reason::Vanished`](super::Reason::Vanished) when there is none.
    pub fn open(hierarchy: &Hierarchy, path: &CgroupPath) -> Result<Self, CgroupError> {
        let scope = scope_around(path);
        let outer = CgroupDir::open(hierarchy, scope.as_ref().unwrap_or(path))?;
        let inner = match outer.path().child(INNER) {
            // Runtimes other than crun have none.
            Ok(inner) if is_scope(outer.path()) => CgroupError::unless_gone(CgroupDir::open(hierarchy, &inner))?,
            Ok(_) | Err(_) => None,
        };
        Ok(Self { outer, inner })
    }

    /// The cgroup's directories, the outer one first.
    pub fn dirs(&self) -> impl Iterator<Item = &CgroupDir> {
        std::iter::once(&self.outer).chain(&self.inner)
    }

    /// The path of the pod's slice, or the container's scope or directory.
    pub const fn path(&self) -> &CgroupPath {
        self.outer.path()
    }

    /// The outer directory, which counts memory use and holds the freezer.
    pub const fn outer(&self) -> &CgroupDir {
        &self.outer
    }

    /// Reads the values that bind: of two limits the tighter, of two weights the outer; the larger reservation; and the larger
    /// burst, because quotas must not go below either burst.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn read_all(&self) -> Result<Settings, CgroupError> {
        let outer = self.outer.read_all()?;
        match &self.inner {
            None => Ok(outer),
            Some(inner) => Ok(binding(outer, &inner.read_all()?)),
        }
    }

    /// Whether the kernel refuses every weight, as [`CgroupDir::is_idle`] of either cgroup.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn is_idle(&self) -> Result<bool, CgroupError> {
        self.dirs()
            .try_fold(false, |is_idle, dir| Ok(is_idle || dir.is_idle()?))
    }

    /// The memory limit that binds.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn memory_limit(&self) -> Result<MemoryLimit, CgroupError> {
        self.tightest(|dir| Ok(dir.read(limit_file(dir.version()))?.and_then(Setting::memory)))
    }

    /// The memory use above which the kernel slows processes down; unbounded on v1.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn memory_high(&self) -> Result<MemoryLimit, CgroupError> {
        match self.outer.version() {
            CgroupVersion::V1 => Ok(MemoryLimit::Max),
            CgroupVersion::V2 => self.tightest(|dir| match dir.read(ControlFile::MemoryHigh)? {
                Some(Setting::MemoryHigh(high)) => Ok(Some(high)),
                _ => Ok(None),
            }),
        }
    }

    /// The limit of swap that binds; unbounded on v1, which has a limit of memory and swap together.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn swap_limit(&self) -> Result<MemoryLimit, CgroupError> {
        self.tightest(|dir| {
            let text = dir.memory_dir().text("memory.swap.max")?;
            Ok(text.and_then(|text| text.trim().parse().ok().map(MemoryLimit::Bytes)))
        })
    }

    fn tightest(
        &self,
        limit: impl Fn(&CgroupDir) -> Result<Option<MemoryLimit>, CgroupError>,
    ) -> Result<MemoryLimit, CgroupError> {
        self.dirs().try_fold(MemoryLimit::Max, |binding, dir| {
            Ok(limit(dir)?.map_or(binding, |limit| limit.min(binding)))
        })
    }

    /// Writes a value, to the outer cgroup first when it grows and last when it shrinks. If the second write fails, the
    /// outer cgroup is the looser of the two and binds nothing; the next pass finds and repairs it.
    ///
    /// Errors: [`CgroupError`] of the write that failed.
    pub fn write(&self, wanted: Setting) -> Result<Setting, CgroupError> {
        let Some(inner) = &self.inner else {
            return self.outer.write(wanted);
        };
        let current = self.outer.read(wanted.file())?;
        // Runtimes set these values in the inner cgroup alone. Of two cgroups, one without such a value gets none, nor does an idle one
        // a weight.
        let is_weight = matches!(wanted, Setting::CpuWeight(_) | Setting::CpuShares(_));
        let [unset, inner_unset] =
            [current, inner.read(wanted.file())?].map(|held| held.map_or(is_weight, Setting::is_unset));
        if unset != inner_unset {
            return if unset { inner } else { &self.outer }.write(wanted);
        }
        let outer_first = current.is_some_and(|current| loosens(current, wanted));
        let (first, second) = if outer_first {
            (&self.outer, inner)
        } else {
            (inner, &self.outer)
        };
        first.write(wanted)?;
        second.write(wanted)
    }
}

/// The scope around crun's inner cgroup, if the path is that of one.
pub(super) fn scope_around(path: &CgroupPath) -> Option<CgroupPath> {
    let parent = path.parent()?;
    (path.name() == Some(INNER) && is_scope(&parent)).then_some(parent)
}

fn is_scope(path: &CgroupPath) -> bool {
    path.name().is_some_and(|name| name.ends_with(".scope"))
}

/// Whether writing `wanted` over `current` lets more through.
fn loosens(current: Setting, wanted: Setting) -> bool {
    match (current, wanted) {
        (Setting::CpuMax(current), Setting::CpuMax(wanted)) => wanted.allows(current),
        (Setting::CfsQuota(current), Setting::CfsQuota(wanted)) => wanted >= current,
        // With the quota as it is, a shorter period is a larger share.
        (Setting::CfsPeriod(current), Setting::CfsPeriod(wanted)) => wanted <= current,
        (_, Setting::MemoryMax(_) | Setting::MemoryLimit(_) | Setting::MemswLimit(_)) => {
            wanted.memory() >= current.memory()
        }
        (_, Setting::CpuMax(_) | Setting::CfsQuota(_) | Setting::CfsPeriod(_) | Setting::MemoryHigh(_)) => true,
        (_, Setting::MemoryMin(_) | Setting::MemoryLow(_)) => wanted.reserved() >= current.reserved(),
        (_, Setting::CpuWeight(_) | Setting::CpuShares(_) | Setting::CpuMaxBurst(_) | Setting::CfsBurst(_)) => true,
    }
}

fn binding(mut binding: Settings, inner: &Settings) -> Settings {
    let both = binding.cpu_max().zip(inner.cpu_max());
    let cpu_binds = both.is_some_and(|(outer, inner)| outer.allows(inner));
    for setting in inner.iter() {
        let outer = binding.get(setting.file());
        let binds = match setting {
            Setting::CpuMax(_) | Setting::CfsQuota(_) | Setting::CfsPeriod(_) => cpu_binds,
            Setting::CpuMaxBurst(_) | Setting::CfsBurst(_) => setting.burst_us() > outer.and_then(Setting::burst_us),
            Setting::MemoryMin(_) | Setting::MemoryLow(_) => setting.reserved() > outer.and_then(Setting::reserved),
            Setting::CpuWeight(_) | Setting::CpuShares(_) => false,
            Setting::MemoryHigh(limit) => matches!(outer, Some(Setting::MemoryHigh(outer)) if limit < outer),
            Setting::MemoryMax(limit) | Setting::MemoryLimit(limit) | Setting::MemswLimit(limit) => {
                limit < outer.and_then(Setting::memory).unwrap_or(MemoryLimit::Max)
            }
        };
        if binds {
            binding.insert(setting);
        }
    }
    binding
}

#[cfg(test)]
mod tests;
