//! Finds workloads, VPAs, LimitRanges and HPAs by namespace and name.
//!
//! An index borrows one view of the node, so that a decision about one pod costs a few lookups.
//! The LimitRanges of a namespace are merged (`limit_range_calculator.go`, autoscaler `pkg/utils/limitrange`).

use crate::model::ResourceList;
use crate::model::objects::{
    HorizontalPodAutoscaler, LimitRange, LimitRangeItem, ObjectMeta, Owner, OwnerKind, TargetRef, VerticalPodAutoscaler,
};
use std::collections::HashMap;

/// Workloads, VPAs, LimitRanges and HPAs of all namespaces.
#[derive(Debug, Default)]
pub struct Index<'a> {
    namespaces: HashMap<&'a str, Namespace<'a>>,
}

/// A workload's kind and name.
type Key<'a> = (OwnerKind, &'a str);

#[derive(Debug, Default)]
pub(super) struct Namespace<'a> {
    workloads: HashMap<Key<'a>, Workload<'a>>,
    pub(super) limits: Limits,
}

/// A workload, and what scales it.
#[derive(Debug, Default)]
pub(super) struct Workload<'a> {
    owner: Option<&'a Owner>,
    /// The VPAs that target the workload, the strongest first.
    pub(super) vpas: Vec<&'a VerticalPodAutoscaler>,
    pub(super) hpas: Vec<&'a HorizontalPodAutoscaler>,
}

impl<'a> Index<'a> {
    /// Of two workloads of one kind and name, the last counts.
    pub fn new(
        owners: &'a [Owner],
        vpas: &'a [VerticalPodAutoscaler],
        limit_ranges: &'a [LimitRange],
        hpas: &'a [HorizontalPodAutoscaler],
    ) -> Self {
        let mut index = Self::default();
        for owner in owners {
            let key = (owner.kind, owner.metadata.name.as_str());
            index.workload(&owner.metadata, key).owner = Some(owner);
        }
        for vpa in vpas {
            if let Some(key) = vpa.spec.target_ref.as_ref().and_then(key) {
                index.workload(&vpa.metadata, key).vpas.push(vpa);
            }
        }
        for hpa in hpas {
            if let Some(key) = key(&hpa.spec.scale_target_ref) {
                index.workload(&hpa.metadata, key).hpas.push(hpa);
            }
        }
        for range in limit_ranges {
            let namespace = index.namespaces.entry(&range.metadata.namespace).or_default();
            namespace.limits.add(range);
        }
        let namespaces = index.namespaces.values_mut();
        for workload in namespaces.flat_map(|namespace| namespace.workloads.values_mut()) {
            // `Stronger` (autoscaler `pkg/utils/vpa/api.go`): the older, then the smaller name.
            let vpas = &mut workload.vpas;
            vpas.sort_by_key(|vpa| (vpa.metadata.creation_timestamp, &vpa.metadata.name));
        }
        index
    }

    /// The entry of a workload in the namespace of an object.
    fn workload(&mut self, of: &'a ObjectMeta, key: Key<'a>) -> &mut Workload<'a> {
        let namespace = self.namespaces.entry(&of.namespace).or_default();
        namespace.workloads.entry(key).or_default()
    }

    pub(super) fn namespace(&self, name: &str) -> Option<&Namespace<'a>> {
        self.namespaces.get(name)
    }

    /// The VPAs that control nothing, because their target is absent or of an unknown kind.
    ///
    /// This is meaningful only for a complete set of objects, such as a file: a node does not know every workload.
    pub fn without_target(&self, vpas: &'a [VerticalPodAutoscaler]) -> impl Iterator<Item = &'a VerticalPodAutoscaler> {
        vpas.iter().filter(|vpa| {
            let target = vpa.spec.target_ref.as_ref().and_then(key);
            let owner = target.and_then(|(kind, name)| self.namespace(&vpa.metadata.namespace)?.owner(kind, name));
            owner.is_none()
        })
    }
}

/// The workload that an autoscaler targets, if its kind is known. The API version does not matter, as upstream.
fn key(target: &TargetRef) -> Option<Key<'_>> {
    Some((OwnerKind::named(&target.kind)?, &target.name))
}

impl<'a> Namespace<'a> {
    pub(super) fn owner(&self, kind: OwnerKind, name: &str) -> Option<&'a Owner> {
        self.workloads.get(&(kind, name))?.owner
    }

    pub(super) fn workload(&self, owner: &'a Owner) -> Option<&Workload<'a>> {
        self.workloads.get(&(owner.kind, owner.metadata.name.as_str()))
    }
}

/// Bounds for one type of object. An absent amount bounds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bounds {
    pub(super) min: ResourceList,
    pub(super) max: ResourceList,
    pub(super) default: ResourceList,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Limits {
    pub(super) container: Bounds,
    pub(super) pod: Bounds,
}

impl Limits {
    /// Tightens the bounds by another LimitRange of the namespace.
    pub(super) fn add(&mut self, range: &LimitRange) {
        for item in &range.spec.limits {
            match item.kind.as_str() {
                "Container" => self.container.add(item),
                "Pod" => self.pod.add(item),
                _ => {}
            }
        }
    }
}

impl Bounds {
    /// The highest minimum and the lowest maximum count. The last list of defaults replaces the one before.
    fn add(&mut self, item: &LimitRangeItem) {
        self.min = self.min.combine(item.min, u64::max);
        self.max = self.max.combine(item.max, u64::min);
        if !item.default.is_empty() {
            self.default = item.default;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MilliCpu;

    fn cpu(milli: u64) -> ResourceList {
        ResourceList {
            cpu: Some(MilliCpu::new(milli)),
            memory: None,
        }
    }

    fn range(kind: &str, min: u64, max: u64, default: u64) -> LimitRange {
        let mut range = LimitRange::default();
        range.spec.limits.push(LimitRangeItem {
            kind: kind.to_owned(),
            min: cpu(min),
            max: cpu(max),
            default: cpu(default),
        });
        range
    }

    #[test]
    fn the_tightest_bounds_and_the_last_default_count() {
        let mut limits = Limits::default();
        limits.add(&range("Container", 100, 2000, 500));
        limits.add(&range("Container", 50, 1500, 300));
        limits.add(&range("PersistentVolumeClaim", 1000, 1000, 1000));
        let mut without_default = range("Container", 1, 3000, 0);
        without_default.spec.limits[0].default = ResourceList::default();
        limits.add(&without_default);
        assert_eq!(
            limits.container,
            Bounds {
                min: cpu(100),
                max: cpu(1500),
                default: cpu(300)
            }
        );
        assert_eq!(limits.pod, Bounds::default());
    }
}
