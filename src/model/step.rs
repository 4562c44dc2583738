//! One write of a plan: whose values it changes, what it changes, and through what.

use std::collections::BTreeSet;
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
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

    /// Every value this concerns, as text: its name, what it is, and what it should be; none where it is not set.
    fn values(&self) -> Vec<(&'static str, Option<String>, Option<String>)> {
        fn fields<T: ToString, const N: usize>(
            from: [(&'static str, Option<T>); N],
            to: [(&'static str, Option<T>); N],
        ) -> Vec<(&'static str, Option<String>, Option<String>)> {
            let text = |value: Option<T>| value.map(|value| value.to_string());
            let both = from.into_iter().zip(to);
            both.map(|((name, from), (_, to))| (name, text(from), text(to)))
                .collect()
        }
        let text = |settings: &Settings, file| settings.get(file).map(|setting| setting.to_string());
        match self {
            Self::File { from, to } => vec![(to.file().name(), Some(from.to_string()), Some(to.to_string()))],
            Self::Unit { from, to } => {
                let files: BTreeSet<_> = from.iter().chain(to.iter()).map(|setting| setting.file()).collect();
                let values = files.into_iter();
                values
                    .map(|file| (file.name(), text(from, file), text(to, file)))
                    .collect()
            }
            Self::Spec { from, to } => fields(from.fields(), to.fields()),
            Self::Resize { from, to } => fields(from.fields(), to.fields()),
        }
    }

    /// What is replaced and by what, as text: `cpu.max=20000 100000, memory.max=134217728` where there can be several
    /// values, the value alone where there is one file.
    pub fn texts(&self) -> (String, String) {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (name, from, to) in self.values() {
            let named = |value| match self {
                Self::File { .. } => value,
                _ => format!("{name}={value}"),
            };
            before.extend(from.map(named));
            after.extend(to.map(named));
        }
        (before.join(", "), after.join(", "))
    }
}

impl fmt::Display for Change {
    /// `cpu.weight 39 → 79`; several are parted by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_resize = matches!(self, Self::Resize { .. });
        let changes = self.values().into_iter().filter_map(|(name, from, to)| {
            let to = to.as_ref().filter(|_| !is_resize || from != to)?;
            Some(format!("{name} {} → {to}", from.as_deref().unwrap_or("unset")))
        });
        f.write_str(&changes.collect::<Vec<_>>().join(", "))
    }
}
