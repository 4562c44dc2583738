//! The objects that sources know.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{HorizontalPodAutoscaler, LimitRange, Node, Owner, Pod, ResourceQuota, Shared, VerticalPodAutoscaler};

/// The known pods and objects of a namespace, or of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownObjects {
    /// The pods that are bound to this node.
    pub pods: Vec<Arc<Pod>>,
    pub owners: Vec<Shared<Owner>>,
    pub vpas: Vec<Shared<VerticalPodAutoscaler>>,
    pub limit_ranges: Vec<Shared<LimitRange>>,
    pub hpas: Vec<Shared<HorizontalPodAutoscaler>>,
    pub quotas: Vec<Shared<ResourceQuota>>,
    /// By UID, the pods that cannot be decided about.
    pub undecided_pods: BTreeMap<String, Undecided>,
    /// None in a namespace.
    pub node: Option<Node>,
}

impl KnownObjects {
    /// How many objects these are, pods included.
    pub fn count(&self) -> usize {
        let of_pods = self.pods.len() + self.owners.len() + self.vpas.len();
        of_pods + self.limit_ranges.len() + self.hpas.len() + self.quotas.len()
    }
}

/// Why a pod cannot be decided about: not all objects about it are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undecided {
    /// One has not arrived.
    Awaited,
    /// One is refused until a change of rules, or cannot be read. That does not mean that there is none. Another source may have the
    /// pod's VPA.
    Refused,
}
