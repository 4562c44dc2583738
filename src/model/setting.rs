//! The value of one cgroup file, and the set of values that a cgroup holds.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use super::kernel::{CpuMax, CpuQuota, CpuShares, CpuWeight, MemoryLimit, PageSize};
use super::{Bytes, Resource};

/// One line for each file: its variant, the type of its value, the resource, the file's name in the cgroup's directory,
/// and what the value means.
macro_rules! control_files {
    ($($version:ident { $($file:ident($value:ty), $resource:ident, $name:literal, $about:literal;)* })*) => {
        /// A cgroup file that vscaled reads and writes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, derive_more::Display)]
        pub enum ControlFile {
            $($(
                #[doc = concat!(stringify!($version), " `", $name, "`: ", $about, ".")]
                #[display($name)]
                #[serde(rename = $name)]
                $file,
            )*)*
        }

        impl ControlFile {
            $(
                #[doc = concat!("Every file of cgroup ", stringify!($version), ".")]
                pub const $version: &[Self] = &[$(Self::$file,)*];
            )*

            /// The file's name in the cgroup's directory.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$file => $name,)*)* }
            }

            /// The resource that the file's value bounds or divides.
            pub const fn resource(self) -> Resource {
                match self { $($(Self::$file => Resource::$resource,)*)* }
            }
        }

        /// The value of one file. Prints as the kernel shows it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Setting {
            $($($file($value),)*)*
        }

        impl Setting {
            /// The file that has this value.
            pub const fn file(&self) -> ControlFile {
                match self { $($(Self::$file(_) => ControlFile::$file,)*)* }
            }
        }

        impl fmt::Display for Setting {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    // v1 has numbers for no bound.
                    Self::CfsQuota(CpuQuota::Max) => f.write_str("-1"),
                    Self::MemoryLimit(MemoryLimit::Max) | Self::MemswLimit(MemoryLimit::Max) => {
                        write!(f, "{}", MemoryLimit::V1_MAX)
                    }
                    $($(Self::$file(value) => write!(f, "{value}"),)*)*
                }
            }
        }
    };
}

control_files! {
    V2 {
        CpuMax(CpuMax), Cpu, "cpu.max", "quota and period";
        CpuMaxBurst(u64), Cpu, "cpu.max.burst", "microseconds of unused quota that may be spent in one period; from Linux 5.14";
        CpuWeight(CpuWeight), Cpu, "cpu.weight", "weight among siblings";
        MemoryHigh(MemoryLimit), Memory, "memory.high", "use of memory above which processes are slowed down, if anything set one";
        MemoryMax(MemoryLimit), Memory, "memory.max", "memory limit";
        MemoryMin(MemoryLimit), Memory, "memory.min", "memory that the kernel never reclaims, if anything set one";
        MemoryLow(MemoryLimit), Memory, "memory.low", "memory that the kernel reclaims last, if anything set one";
    }
    V1 {
        CpuShares(CpuShares), Cpu, "cpu.shares", "weight among siblings";
        CfsQuota(CpuQuota), Cpu, "cpu.cfs_quota_us", "quota";
        CfsPeriod(u64), Cpu, "cpu.cfs_period_us", "period in microseconds";
        CfsBurst(u64), Cpu, "cpu.cfs_burst_us", "microseconds of unused quota that may be spent in one period; from Linux 5.14";
        MemoryLimit(MemoryLimit), Memory, "memory.limit_in_bytes", "memory limit";
        MemswLimit(MemoryLimit), Memory, "memory.memsw.limit_in_bytes", "limit of memory and swap together; absent without swap accounting";
    }
}

impl ControlFile {
    /// The file of that name, if vscaled knows it.
    pub fn named(name: &str) -> Option<Self> {
        let mut files = Self::V2.iter().chain(Self::V1).copied();
        files.find(|file| file.name() == name)
    }
}

/// The content of a cgroup file is not a value of that file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a value of {file}")]
pub struct ParseSettingError {
    pub file: ControlFile,
    pub text: String,
}

impl Setting {
    /// Parses the content of a file.
    ///
    /// Errors: [`ParseSettingError`] if the text is not a value of that file.
    pub fn parse(file: ControlFile, text: &str) -> Result<Self, ParseSettingError> {
        let text = text.trim();
        let number = || text.parse().ok();
        let memory =
            |unbounded| bound(text, unbounded).map(|bytes| bytes.map_or(MemoryLimit::Max, MemoryLimit::of_bytes));
        let parsed = match file {
            ControlFile::CpuMax => text.split_once(' ').and_then(|(micros, period)| {
                // A kernel may add fields.
                let period_us = period.split(' ').next()?.parse().ok()?;
                let quota = quota(micros, "max")?;
                Some(Self::CpuMax(CpuMax { quota, period_us }))
            }),
            ControlFile::CpuMaxBurst => number().map(Self::CpuMaxBurst),
            ControlFile::CpuWeight => number().map(CpuWeight::new).map(Self::CpuWeight),
            ControlFile::MemoryHigh => memory("max").map(Self::MemoryHigh),
            ControlFile::MemoryMax => memory("max").map(Self::MemoryMax),
            ControlFile::MemoryMin => memory("max").map(Self::MemoryMin),
            ControlFile::MemoryLow => memory("max").map(Self::MemoryLow),
            ControlFile::CpuShares => number().map(CpuShares::new).map(Self::CpuShares),
            ControlFile::CfsQuota => quota(text, "-1").map(Self::CfsQuota),
            ControlFile::CfsPeriod => number().map(Self::CfsPeriod),
            ControlFile::CfsBurst => number().map(Self::CfsBurst),
            ControlFile::MemoryLimit => memory("-1").map(Self::MemoryLimit),
            ControlFile::MemswLimit => memory("-1").map(Self::MemswLimit),
        };
        parsed.ok_or_else(|| ParseSettingError {
            file,
            text: text.to_owned(),
        })
    }

    /// The value that the kernel keeps when the agent writes this one: memory limits are whole pages.
    #[must_use]
    pub const fn in_pages(self, page: PageSize) -> Self {
        match self {
            Self::MemoryHigh(limit) => Self::MemoryHigh(limit.in_pages(page)),
            Self::MemoryMax(limit) => Self::MemoryMax(limit.in_pages(page)),
            Self::MemoryMin(least) => Self::MemoryMin(least.in_pages(page)),
            Self::MemoryLow(least) => Self::MemoryLow(least.in_pages(page)),
            Self::MemoryLimit(limit) => Self::MemoryLimit(limit.in_pages(page)),
            Self::MemswLimit(limit) => Self::MemswLimit(limit.in_pages(page)),
            Self::CpuMax(_) | Self::CpuMaxBurst(_) | Self::CpuWeight(_) | Self::CpuShares(_) => self,
            Self::CfsQuota(_) | Self::CfsPeriod(_) | Self::CfsBurst(_) => self,
        }
    }

    /// The text to write into the file. It differs from the printed form only for v1's "no bound", which v1 shows as a number.
    pub fn to_write(self) -> String {
        match self {
            Self::MemoryLimit(MemoryLimit::Max) | Self::MemswLimit(MemoryLimit::Max) => "-1".to_owned(),
            other => other.to_string(),
        }
    }

    /// The microseconds of burst, if this is a burst.
    pub const fn burst_us(self) -> Option<u64> {
        match self {
            Self::CpuMaxBurst(micros) | Self::CfsBurst(micros) => Some(micros),
            _ => None,
        }
    }

    /// The same file with another burst, if this is a burst.
    #[must_use]
    pub fn map_burst(self, burst_us: impl FnOnce(u64) -> u64) -> Self {
        match self {
            Self::CpuMaxBurst(micros) => Self::CpuMaxBurst(burst_us(micros)),
            Self::CfsBurst(micros) => Self::CfsBurst(burst_us(micros)),
            other => other,
        }
    }

    /// The memory that is reserved, if this is a reservation.
    pub const fn reserved(self) -> Option<MemoryLimit> {
        match self {
            Self::MemoryMin(least) | Self::MemoryLow(least) => Some(least),
            _ => None,
        }
    }

    /// Whether this is the value of a file that nothing has set, of those that neither Kubernetes nor a runtime always sets.
    pub const fn is_unset(self) -> bool {
        matches!(
            self,
            Self::CpuMaxBurst(0)
                | Self::CfsBurst(0)
                | Self::MemoryHigh(MemoryLimit::Max)
                | Self::MemoryMin(MemoryLimit::Bytes(0))
                | Self::MemoryLow(MemoryLimit::Bytes(0))
        )
    }

    /// The quota, if this is one.
    pub const fn quota(self) -> Option<CpuQuota> {
        match self {
            Self::CpuMax(CpuMax { quota, .. }) | Self::CfsQuota(quota) => Some(quota),
            _ => None,
        }
    }

    /// The memory limit, if this is one.
    pub const fn memory(self) -> Option<MemoryLimit> {
        match self {
            Self::MemoryMax(limit) | Self::MemoryLimit(limit) | Self::MemswLimit(limit) => Some(limit),
            _ => None,
        }
    }
}

/// A number, or no bound.
fn bound(text: &str, unbounded: &str) -> Option<Option<u64>> {
    let number = || text.parse().ok().map(Some);
    if text == unbounded { Some(None) } else { number() }
}

fn quota(text: &str, unbounded: &str) -> Option<CpuQuota> {
    bound(text, unbounded).map(|micros| micros.map_or(CpuQuota::Max, CpuQuota::Micros))
}

impl Serialize for Setting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The values that a cgroup holds, or should hold: at most one for each file. The agent leaves absent files alone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Settings(BTreeMap<ControlFile, Setting>);

impl Settings {
    /// The value of a file, if it is set.
    pub fn get(&self, file: ControlFile) -> Option<Setting> {
        self.0.get(&file).copied()
    }

    /// The values that the kernel keeps when the agent writes these.
    #[must_use]
    pub fn in_pages(&self, page: PageSize) -> Self {
        self.iter().map(|setting| setting.in_pages(page)).collect()
    }

    /// Sets the value of its file.
    pub fn insert(&mut self, setting: Setting) {
        self.0.insert(setting.file(), setting);
    }

    /// Removes a file's value and returns it.
    pub fn remove(&mut self, file: ControlFile) -> Option<Setting> {
        self.0.remove(&file)
    }

    /// All values, in the order of [`ControlFile`].
    pub fn iter(&self) -> impl Iterator<Item = Setting> {
        self.0.values().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The cpu bound, from `cpu.max` or from v1's two files.
    pub fn cpu_max(&self) -> Option<CpuMax> {
        if let Some(Setting::CpuMax(max)) = self.get(ControlFile::CpuMax) {
            return Some(max);
        }
        match (self.get(ControlFile::CfsQuota), self.get(ControlFile::CfsPeriod)) {
            (Some(Setting::CfsQuota(quota)), Some(Setting::CfsPeriod(period_us))) => Some(CpuMax { quota, period_us }),
            _ => None,
        }
    }

    /// The burst, from `cpu.max.burst` or `cpu.cfs_burst_us`.
    pub fn burst(&self) -> Option<Setting> {
        self.get(ControlFile::CpuMaxBurst)
            .or_else(|| self.get(ControlFile::CfsBurst))
    }

    /// The memory limit, from `memory.max` or `memory.limit_in_bytes`.
    pub fn memory_limit(&self) -> Option<MemoryLimit> {
        self.get(ControlFile::MemoryMax)
            .or_else(|| self.get(ControlFile::MemoryLimit))
            .and_then(Setting::memory)
    }

    /// The memory limit in bytes, if it is bounded.
    pub fn memory_bytes(&self) -> Option<Bytes> {
        self.memory_limit().and_then(MemoryLimit::bounded)
    }
}

impl FromIterator<Setting> for Settings {
    fn from_iter<I: IntoIterator<Item = Setting>>(settings: I) -> Self {
        Self(settings.into_iter().map(|setting| (setting.file(), setting)).collect())
    }
}

#[cfg(test)]
mod tests;
