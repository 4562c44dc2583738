//! Requests and limits of one container or pod.

use serde::{Deserialize, Serialize};

use super::{Bytes, MilliCpu, Resource};

/// Amounts of cpu and memory; an absent key is unset, which is not the same as zero. Other resources are not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ResourceList {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<MilliCpu>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
}

impl ResourceList {
    /// Whether neither resource is set.
    pub const fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none()
    }

    /// The amount as a plain number (thousandths of a cpu, bytes), if set.
    pub fn get(&self, resource: Resource) -> Option<u64> {
        match resource {
            Resource::Cpu => self.cpu.map(MilliCpu::get),
            Resource::Memory => self.memory.map(Bytes::get),
        }
    }

    /// The amount as a plain number, zero if unset: what upstream's arithmetic sees.
    pub fn amount(&self, resource: Resource) -> u64 {
        self.get(resource).unwrap_or(0)
    }

    /// Sets or unsets a resource from a plain number (thousandths of a cpu, bytes), saturating.
    pub fn set(&mut self, resource: Resource, amount: Option<u64>) {
        match resource {
            Resource::Cpu => self.cpu = amount.map(MilliCpu::new),
            Resource::Memory => self.memory = amount.map(Bytes::new),
        }
    }

    /// The first resource of which this list has more than the other, with both amounts as quantities.
    pub fn first_above(&self, other: &Self) -> Option<(Resource, String, String)> {
        Resource::ALL.into_iter().find_map(|resource| {
            let above = self.get(resource)? > other.get(resource)?;
            let amounts = above.then(|| self.text(resource).zip(other.text(resource)));
            amounts.flatten().map(|(own, other)| (resource, own, other))
        })
    }

    /// The amount written as a quantity, if set.
    pub fn text(&self, resource: Resource) -> Option<String> {
        match resource {
            Resource::Cpu => self.cpu.map(|cpu| cpu.to_string()),
            Resource::Memory => self.memory.map(|memory| memory.to_string()),
        }
    }
}

/// Requests and limits, as in `pod.spec.containers[].resources`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Requirements {
    #[serde(default)]
    pub requests: ResourceList,
    /// What may be used at most.
    #[serde(default)]
    pub limits: ResourceList,
}

impl Requirements {
    /// Lifts a limit that is there to at least this much (thousandths of a cpu, bytes), and a request that equals it with
    /// it: where the pod's QoS class depends on both being the same, they stay so.
    pub fn lift(&mut self, resource: Resource, least: u64) {
        let Some(limit) = self.limits.get(resource).filter(|limit| *limit < least) else {
            return;
        };
        if self.requests.get(resource) == Some(limit) {
            self.requests.set(resource, Some(least));
        }
        self.limits.set(resource, Some(least));
    }

    /// Takes the amounts of `other` where it has any.
    pub fn overlay(&mut self, other: &Self) {
        for (list, other) in [(&mut self.requests, other.requests), (&mut self.limits, other.limits)] {
            list.cpu = other.cpu.or(list.cpu);
            list.memory = other.memory.or(list.memory);
        }
    }

    /// Every amount with its name, written as a quantity.
    pub fn fields(&self) -> [(&'static str, Option<String>); 4] {
        [
            ("requests.cpu", self.requests.text(Resource::Cpu)),
            ("requests.memory", self.requests.text(Resource::Memory)),
            ("limits.cpu", self.limits.text(Resource::Cpu)),
            ("limits.memory", self.limits.text(Resource::Memory)),
        ]
    }
}

/// Requests and limits of one named container, or of the pod as a whole (`spec.resources`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedRequirements {
    /// The container's name in the pod spec; the pod as a whole has none, and comes last in a list.
    pub name: String,
    #[serde(flatten)]
    pub resources: Requirements,
}

impl NamedRequirements {
    /// Those of the pod as a whole.
    pub const fn of_pod(resources: Requirements) -> Self {
        Self {
            name: String::new(),
            resources,
        }
    }

    pub const fn is_of_pod(&self) -> bool {
        self.name.is_empty()
    }

    /// Those of the containers, and those of the pod as a whole where the list has them.
    pub fn split(list: &[Self]) -> (&[Self], Option<&Requirements>) {
        match list.split_last() {
            Some((last, containers)) if last.is_of_pod() => (containers, Some(&last.resources)),
            _ => (list, None),
        }
    }
}
