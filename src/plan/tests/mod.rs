//! What plans look like, by example, and what holds for all of them.

mod hierarchy;
mod properties;
mod steps;
mod trees;

use crate::model::{CgroupVersion, Driver, KubeletVersion, NodeTraits, PageSize, RuntimeKind, WeightFormula};

/// A node with containerd and the newest kubelet.
pub(super) fn traits(version: CgroupVersion, driver: Driver) -> NodeTraits {
    NodeTraits {
        version,
        driver,
        runtime: RuntimeKind::Containerd,
        container_weight: WeightFormula::Quadratic,
        kubelet: KubeletVersion::NEWEST,
        page: PageSize::KIB_4,
    }
}
