//! Finds workloads, VPAs, LimitRanges and HPAs by namespace and name.
//!
//! An index borrows one view of the node, so that a decision about one pod costs a few lookups.

use std::collections::HashMap;

use super::limit_range::Limits;
use crate::model::objects::{HorizontalPodAutoscaler, LimitRange, Owner, OwnerKind, VerticalPodAutoscaler};

/// Workloads, VPAs, LimitRanges and HPAs of all namespaces.
#[derive(Debug, Default)]
pub struct Index<'a> {
    namespaces: HashMap<&'a str, Namespace<'a>>,
}

/// A workload's kind and name.
type Key<'a> = (OwnerKind, &'a str);

#[derive(Debug, Default)]
pub(super) struct Namespace<'a> {
    owners: HashMap<Key<'a>, &'a Owner>,
    /// The VPAs of each target, the strongest first.
    vpas: HashMap<Key<'a>, Vec<&'a VerticalPodAutoscaler>>,
    hpas: HashMap<Key<'a>, Vec<&'a HorizontalPodAutoscaler>>,
    pub(super) limits: Limits,
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
            index.entry(&owner.metadata.namespace).owners.insert(key, owner);
        }
        for vpa in vpas {
            if let Some(key) = target(vpa) {
                let namespace = index.entry(&vpa.metadata.namespace);
                namespace.vpas.entry(key).or_default().push(vpa);
            }
        }
        for range in limit_ranges {
            index.entry(&range.metadata.namespace).limits.add(range);
        }
        for hpa in hpas {
            let reference = &hpa.spec.scale_target_ref;
            if let Some(kind) = OwnerKind::named(&reference.kind) {
                let namespace = index.entry(&hpa.metadata.namespace);
                namespace.hpas.entry((kind, &reference.name)).or_default().push(hpa);
            }
        }
        for namespace in index.namespaces.values_mut() {
            for vpas in namespace.vpas.values_mut() {
                // `Stronger` (autoscaler `pkg/utils/vpa/api.go`): the older, then the smaller name.
                vpas.sort_by_key(|vpa| (vpa.metadata.creation_timestamp, &vpa.metadata.name));
            }
        }
        index
    }

    fn entry(&mut self, namespace: &'a str) -> &mut Namespace<'a> {
        self.namespaces.entry(namespace).or_default()
    }

    pub(super) fn namespace(&self, name: &str) -> Option<&Namespace<'a>> {
        self.namespaces.get(name)
    }

    /// The VPAs that control nothing, because their target is absent or of an unknown kind.
    ///
    /// This is meaningful only for a complete set of objects, such as a file: a node does not know every workload.
    pub fn without_target(&self, vpas: &'a [VerticalPodAutoscaler]) -> impl Iterator<Item = &'a VerticalPodAutoscaler> {
        vpas.iter().filter(|vpa| {
            let owner = target(vpa).and_then(|(kind, name)| self.namespace(&vpa.metadata.namespace)?.owner(kind, name));
            owner.is_none()
        })
    }
}

/// The workload that a VPA targets, if its kind is known. The API version does not matter, as upstream.
fn target(vpa: &VerticalPodAutoscaler) -> Option<Key<'_>> {
    let target = vpa.spec.target_ref.as_ref()?;
    Some((OwnerKind::named(&target.kind)?, &target.name))
}

impl<'a> Namespace<'a> {
    pub(super) fn owner(&self, kind: OwnerKind, name: &str) -> Option<&'a Owner> {
        self.owners.get(&(kind, name)).copied()
    }

    /// The VPAs that target a workload, the strongest first.
    pub(super) fn vpas_of(&self, owner: &'a Owner) -> &[&'a VerticalPodAutoscaler] {
        self.vpas
            .get(&(owner.kind, owner.metadata.name.as_str()))
            .map_or(&[], Vec::as_slice)
    }

    /// The horizontal autoscalers that scale a workload.
    pub(super) fn hpas_of(&self, owner: &'a Owner) -> &[&'a HorizontalPodAutoscaler] {
        self.hpas
            .get(&(owner.kind, owner.metadata.name.as_str()))
            .map_or(&[], Vec::as_slice)
    }
}
