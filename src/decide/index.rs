//! Finds workloads, VPAs, LimitRanges and HPAs by namespace and name.
//!
//! An index borrows one view of the node, so that a decision about one pod costs a few lookups.
//! The LimitRanges of a namespace are merged (`limit_range_calculator.go`, autoscaler `pkg/utils/limitrange`).

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};

use super::capping::scale;
use crate::model::objects::{
    HorizontalPodAutoscaler, KnownObjects, LimitRange, LimitRangeItem, ObjectMeta, Owner, Pod, Shared,
    VerticalPodAutoscaler, WorkloadKey,
};
use crate::model::{Requirements, Resource};

/// Workloads, VPAs, LimitRanges and HPAs of all namespaces.
#[derive(Debug, Default)]
pub struct Index<'a> {
    pub(super) namespaces: HashMap<&'a str, Namespace<'a>>,
}

#[derive(Debug, Default)]
pub(super) struct Namespace<'a> {
    pub(super) workloads: HashMap<WorkloadKey<'a>, Workload<'a>>,
    pub(super) limits: Limits<'a>,
}

/// A workload, and what scales it.
#[derive(Debug, Default)]
pub(super) struct Workload<'a> {
    pub(super) owner: Option<&'a Owner>,
    /// The VPAs that target the workload, the strongest first.
    pub(super) vpas: Vec<&'a VerticalPodAutoscaler>,
    pub(super) hpas: Vec<&'a HorizontalPodAutoscaler>,
}

impl<'a> Index<'a> {
    /// Of two workloads of one kind and name, the last counts.
    pub fn new(objects: impl IntoIterator<Item = &'a KnownObjects>) -> Self {
        let mut index = Self::default();
        for known in objects {
            for owner in &known.owners {
                index.workload(&owner.metadata, WorkloadKey::from(&**owner)).owner = Some(owner);
            }
            for vpa in &known.vpas {
                if let Some(target) = &vpa.spec.target_ref {
                    index.workload(&vpa.metadata, target.into()).vpas.push(vpa);
                }
            }
            for hpa in &known.hpas {
                let target = &hpa.spec.scale_target_ref;
                index.workload(&hpa.metadata, target.into()).hpas.push(hpa);
            }
            for range in &known.limit_ranges {
                let namespace = index.namespaces.entry(&range.metadata.namespace).or_default();
                namespace.limits.add(range);
            }
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
    fn workload(&mut self, of: &'a ObjectMeta, key: WorkloadKey<'a>) -> &mut Workload<'a> {
        let namespace = self.namespaces.entry(&of.namespace).or_default();
        namespace.workloads.entry(key).or_default()
    }

    /// The VPAs that control nothing, because no workload is their target, and no object names their target as its owner.
    ///
    /// This is meaningful only for a complete set of objects, such as a file: a node does not know every workload.
    pub fn without_target<'v>(
        &self,
        vpas: &'v [Shared<VerticalPodAutoscaler>],
        pods: &'v [impl Borrow<Pod>],
    ) -> impl Iterator<Item = &'v VerticalPodAutoscaler> {
        let workloads = self.namespaces.values().flat_map(|known| known.workloads.values());
        let owners = workloads.filter_map(|workload| Some(&workload.owner?.metadata));
        let owned = pods.iter().map(|pod| &pod.borrow().metadata).chain(owners);
        let referred =
            owned.filter_map(|owned| Some((owned.namespace.as_str(), WorkloadKey::from(owned.controller()?))));
        let referred: HashSet<_> = referred.filter(|(_, owner)| owner.known.is_none()).collect();
        let is_there = |vpa: &VerticalPodAutoscaler| {
            let namespace = vpa.metadata.namespace.as_str();
            vpa.spec.target_ref.as_ref().is_some_and(|target| {
                let target = WorkloadKey::from(target);
                let known = self.namespaces.get(namespace);
                let workload = known.and_then(|known| known.workloads.get(&target));
                workload.is_some_and(|workload| workload.owner.is_some()) || referred.contains(&(namespace, target))
            })
        };
        let idle: Vec<_> = vpas.iter().map(|vpa| &**vpa).filter(|vpa| !is_there(vpa)).collect();
        idle.into_iter()
    }
}

/// The LimitRanges of a namespace.
#[derive(Debug, Default)]
pub(super) struct Limits<'a> {
    /// The bounds of all lists together, by the kind of object.
    pub(super) container: LimitRangeItem,
    pub(super) pod: LimitRangeItem,
    /// The amounts that each LimitRange gives to containers without them, with its name.
    pub(super) defaults: Vec<(&'a str, Requirements)>,
    /// Every list of bounds, with the name of its LimitRange.
    pub(super) items: Vec<(&'a str, &'a LimitRangeItem)>,
}

impl<'a> Limits<'a> {
    /// Tightens the bounds by another LimitRange of the namespace.
    pub(super) fn add(&mut self, range: &'a LimitRange) {
        for item in &range.spec.limits {
            match item.kind.as_str() {
                "Container" => self.container.add(item),
                "Pod" => self.pod.add(item),
                _ => continue,
            }
            self.items.push((&range.metadata.name, item));
        }
        let defaults = range.container_defaults();
        self.defaults
            .extend(defaults.map(|defaults| (&*range.metadata.name, defaults)));
    }
}

impl LimitRangeItem {
    /// The highest minimum and the lowest maximum count. The last list of defaults replaces the one before.
    fn add(&mut self, item: &Self) {
        self.min = self.min.combine(item.min, u64::max);
        self.max = self.max.combine(item.max, u64::min);
        self.max_ratio = self.max_ratio.min(item.max_ratio);
        if !item.default.is_empty() {
            self.default = item.default;
        }
    }

    /// The amount within the minimum and the maximum. A maximum of zero bounds nothing.
    pub(super) fn hold(&self, resource: Resource, amount: u64) -> u64 {
        let max = self.max.get(resource).filter(|max| *max > 0);
        amount.max(self.min.amount(resource)).min(max.unwrap_or(u64::MAX))
    }

    /// The limit within the minimum, the maximum, and the highest ratio to the request.
    pub(super) fn hold_limit(&self, resource: Resource, limit: u64, request: Option<u64>) -> u64 {
        self.hold(resource, limit).min(self.highest_beside(resource, request))
    }

    /// The limit that the highest ratio allows beside a request.
    pub(super) fn highest_beside(&self, resource: Resource, request: Option<u64>) -> u64 {
        let highest = self.max_ratio.get(resource).zip(request);
        let highest = highest.map(|(ratio, request)| scale(request, ratio.into(), 1000, u128::div_euclid));
        highest.unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MilliCpu, ResourceList};

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
            ..LimitRangeItem::default()
        });
        range
    }

    #[test]
    fn the_tightest_bounds_and_the_last_default_count() {
        let mut without_default = range("Container", 1, 3000, 0);
        without_default.spec.limits[0].default = ResourceList::default();
        let ranges = [
            range("Container", 100, 2000, 500),
            range("Container", 50, 1500, 300),
            range("PersistentVolumeClaim", 1000, 1000, 1000),
            without_default,
        ];
        let mut limits = Limits::default();
        ranges.iter().for_each(|range| limits.add(range));
        assert_eq!(
            limits.container,
            LimitRangeItem {
                min: cpu(100),
                max: cpu(1500),
                default: cpu(300),
                ..LimitRangeItem::default()
            }
        );
        assert_eq!(limits.pod, LimitRangeItem::default());
    }
}
