//! The values of a pod's cgroups and of the runtime's stored specs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{ControlFile, PageSize, Setting, Settings};

/// A cgroup of one of the two levels that vscaled writes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(tag = "level", content = "name", rename_all = "lowercase")]
pub enum Target {
    #[display("pod")]
    Pod,
    /// The cgroup of the container of that name.
    #[display("container {_0}")]
    Container(String),
}

impl Target {
    /// The level in one word.
    pub const fn level(&self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Container(_) => "container",
        }
    }

    /// The container's name, if this is a container's cgroup.
    pub fn container(&self) -> Option<&str> {
        match self {
            Self::Pod => None,
            Self::Container(name) => Some(name),
        }
    }
}

/// The settings of a pod's cgroup and of its containers' cgroups, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodTree {
    pub pod: Settings,
    /// The running containers' cgroups, with sidecars and without the sandbox.
    pub containers: BTreeMap<String, Settings>,
}

impl PodTree {
    /// What the cgroup of that target holds, if it exists.
    pub fn get(&self, target: &Target) -> Option<&Settings> {
        match target {
            Target::Pod => Some(&self.pod),
            Target::Container(name) => self.containers.get(name),
        }
    }

    /// Sets a value, if that cgroup exists.
    pub fn set(&mut self, target: &Target, setting: Setting) {
        let cgroup = match target {
            Target::Pod => Some(&mut self.pod),
            Target::Container(name) => self.containers.get_mut(name),
        };
        if let Some(settings) = cgroup {
            settings.insert(setting);
        }
    }

    /// The values that the kernel keeps when the agent writes these.
    #[must_use]
    pub fn in_pages(&self, page: PageSize) -> Self {
        let containers = self.containers.iter();
        Self {
            pod: self.pod.in_pages(page),
            containers: containers
                .map(|(name, files)| (name.clone(), files.in_pages(page)))
                .collect(),
        }
    }

    /// These values, overwritten by those of `newer`. Drops cgroups that only `newer` has.
    #[must_use]
    pub fn overlaid(mut self, newer: &Self) -> Self {
        for setting in newer.pod.iter() {
            self.pod.insert(setting);
        }
        for (name, cgroup) in &mut self.containers {
            for setting in newer.containers.get(name).into_iter().flat_map(Settings::iter) {
                cgroup.insert(setting);
            }
        }
        self
    }
}

/// The values of a pod's cgroups, and the runtime's stored specs of its containers: either the observed
/// values or the desired ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodValues {
    /// The cgroup files. An absent observed value does not exist. The agent leaves a file without a desired value alone.
    pub tree: PodTree,
    /// The runtime's stored specs by container name. An absent observed spec is unknown.
    pub specs: BTreeMap<String, CriResources>,
}

/// A container's stored spec in the runtime, in CRI's terms. `None` means "not specified".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CriResources {
    /// `cpu_shares`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_shares: Option<i64>,
    /// `cpu_quota` in microseconds. −1 is unbounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<i64>,
    /// `cpu_period` in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_period: Option<i64>,
    /// `memory_limit_in_bytes`. −1 is unbounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_in_bytes: Option<i64>,
}

impl CriResources {
    /// Unsets the field that corresponds to a file. Quota and period belong together.
    pub fn forget(&mut self, file: ControlFile) {
        match file {
            ControlFile::CpuMax | ControlFile::CfsQuota | ControlFile::CfsPeriod => {
                (self.cpu_quota, self.cpu_period) = (None, None);
            }
            ControlFile::CpuWeight | ControlFile::CpuShares => self.cpu_shares = None,
            ControlFile::MemoryMax | ControlFile::MemoryLimit => self.memory_limit_in_bytes = None,
            ControlFile::MemoryHigh | ControlFile::MemswLimit | ControlFile::CpuMaxBurst | ControlFile::CfsBurst => {}
        }
    }

    /// Every field with its name in CRI, as text.
    pub fn fields(&self) -> [(&'static str, Option<String>); 4] {
        let fields = [
            ("cpu_shares", self.cpu_shares),
            ("cpu_quota", self.cpu_quota),
            ("cpu_period", self.cpu_period),
            ("memory_limit_in_bytes", self.memory_limit_in_bytes),
        ];
        fields.map(|(name, value)| (name, value.map(|value| value.to_string())))
    }
}
