//! One write of a plan: whose values it changes, what it changes, and through what.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::tree::{CriResources, Target};
use crate::model::{Bytes, ControlFile, CpuQuota, MemoryLimit, Requirements, Setting, Settings};

/// How a step is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, derive_more::Display)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// A patch of the pod's `resize` subresource.
    Resize,
    /// `UpdateContainerResources`: the runtime's stored spec agrees afterwards.
    Cri,
    /// One write to one cgroup file.
    Cgroup,
    /// `SetUnitProperties`: systemd's own record agrees afterwards.
    Systemd,
}

/// The change that one step makes, from one value to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    File {
        from: Setting,
        to: Setting,
    },
    /// systemd's properties of a unit, for these files. v1's quota and period come together: systemd keeps their ratio.
    Unit {
        /// What the files hold now.
        from: Settings,
        to: Settings,
    },
    /// Requests and limits of a container in the pod spec, through the API server.
    Resize {
        /// What the spec has now.
        from: Requirements,
        to: Requirements,
    },
    /// Fields of the runtime's stored spec; only those that change are set.
    Spec {
        /// What the runtime has stored in these fields.
        from: CriResources,
        to: CriResources,
    },
}

impl Change {
    /// Every cgroup file this changes, with what it holds now and what it should hold, in the order to write them. Of v1's
    /// quota and period one comes first with which the share is, in between, not below both ends: it would be below what
    /// containers have. `memory.high` goes up before its limit, and down after it.
    pub fn files(&self) -> Vec<(Setting, Setting)> {
        match self {
            Self::File { from, to } => vec![(*from, *to)],
            Self::Unit { from, to } => {
                let mut files: Vec<_> = to.iter().filter_map(|to| Some((from.get(to.file())?, to))).collect();
                files.sort_by_key(|(from, to)| comes_last(*from, *to));
                files
            }
            Self::Spec { .. } | Self::Resize { .. } => Vec::new(),
        }
    }
}

/// Whether v1's quota comes down, whatever its period does, or `memory.high`, whatever the limit does.
fn comes_last(from: Setting, to: Setting) -> bool {
    match (from, to) {
        (Setting::CfsQuota(CpuQuota::Micros(from)), Setting::CfsQuota(CpuQuota::Micros(to))) => to < from,
        (Setting::CfsQuota(CpuQuota::Max), Setting::CfsQuota(CpuQuota::Micros(_))) => true,
        (Setting::MemoryHigh(from), Setting::MemoryHigh(to)) => to < from,
        _ => false,
    }
}

/// One write, in its place in the order.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{target} through {}: {change}", self.change.via())]
pub struct Step {
    pub target: Target,
    pub change: Change,
}

impl Change {
    /// Whether this is written to the kernel's files, directly or through systemd.
    pub const fn is_kernels(&self) -> bool {
        match self {
            Self::File { .. } | Self::Unit { .. } => true,
            Self::Resize { .. } | Self::Spec { .. } => false,
        }
    }

    /// How this is carried out.
    pub const fn via(&self) -> Via {
        match self {
            Self::File { .. } => Via::Cgroup,
            Self::Unit { .. } => Via::Systemd,
            Self::Spec { .. } => Via::Cri,
            Self::Resize { .. } => Via::Resize,
        }
    }

    /// The file, where a single one is written.
    pub const fn file(&self) -> Option<ControlFile> {
        match self {
            Self::File { to, .. } => Some(to.file()),
            Self::Unit { .. } | Self::Spec { .. } | Self::Resize { .. } => None,
        }
    }

    /// The limit of memory alone that this writes to a cgroup: the file, the limit before and after.
    pub fn memory_limit(&self) -> Option<(ControlFile, MemoryLimit, MemoryLimit)> {
        let files = self.files().into_iter();
        let mut limits = files.filter(|(_, to)| to.file() != ControlFile::MemswLimit);
        limits.find_map(|(from, to)| Some((to.file(), from.memory()?, to.memory()?)))
    }

    /// The limit of memory alone that this lowers in a cgroup, before and after.
    pub fn lowered_memory(&self) -> Option<(MemoryLimit, Bytes)> {
        let (_, from, to) = self.memory_limit()?;
        let lower = to.bounded().filter(|_| to < from)?;
        Some((from, lower))
    }

    /// What is replaced and by what, as text: `cpu.max=20000 100000, memory.max=134217728` where there are several values,
    /// the value alone where there is one file.
    pub fn texts(&self) -> (String, String) {
        match self {
            Self::File { from, to } => (from.to_string(), to.to_string()),
            Self::Unit { from, to } => (files(from), files(to)),
            Self::Spec { from, to } => (named(from.fields()), named(to.fields())),
            Self::Resize { from, to } => (named(from.fields()), named(to.fields())),
        }
    }
}

fn files(settings: &Settings) -> String {
    named(settings.iter().map(|setting| (setting.file().name(), Some(setting))))
}

/// The values that are set, such as `requests.cpu=100m, limits.cpu=200m`.
fn named<T: fmt::Display>(values: impl IntoIterator<Item = (&'static str, Option<T>)>) -> String {
    let set = values.into_iter();
    let texts = set.filter_map(|(name, value)| Some(format!("{name}={}", value?)));
    texts.collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Change {
    /// `cpu.weight 39 → 79`; several are parted by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { from, to } => write!(f, "{} {from} → {to}", to.file()),
            Self::Unit { from, to } => {
                let values = to.iter().map(|new| (new.file().name(), from.get(new.file()), new));
                write_changes(f, values)
            }
            Self::Spec { from, to } => {
                let fields = from.fields().into_iter().zip(to.fields());
                write_changes(f, fields.filter_map(|((name, old), (_, new))| Some((name, old, new?))))
            }
            Self::Resize { from, to } => {
                let fields = from.fields().into_iter().zip(to.fields());
                let changed = fields.filter(|((_, old), (_, new))| old != new);
                write_changes(f, changed.filter_map(|((name, old), (_, new))| Some((name, old, new?))))
            }
        }
    }
}

fn write_changes<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    changes: impl Iterator<Item = (&'static str, Option<T>, T)>,
) -> fmt::Result {
    for (index, (name, old, new)) in changes.enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        match old {
            Some(old) => write!(f, "{comma}{name} {old} → {new}")?,
            None => write!(f, "{comma}{name} unset → {new}")?,
        }
    }
    Ok(())
}
