//! Whether the node has room for what is recommended to pods whose kubelet does not look: in come what the node has and
//! what all its pods request, with what stands for them; out comes a refusal with the numbers, or none. Pure.
//!
//! Where the kubelet resizes in place, a pass looks before it asks ([`super::resizing`]), and the kubelet after it.

use super::Coordinator;
use crate::agent::entry::Entry;
use crate::agent::standing::Recommended;
use crate::objects::Pod;
use crate::plan::resize::{self, NoRoom};
use crate::plan::{KubeletVersion, pod_requests};
use crate::resources::{Resource, ResourceList};

/// The node's room while recommendations are followed.
#[derive(Debug)]
pub(super) struct Room {
    /// None where no Node object says it: then nothing is refused.
    allocatable: Option<ResourceList>,
    /// What all pods take together.
    taken: ResourceList,
    kubelet: KubeletVersion,
    /// Whether kubelets that resize in place are asked to.
    asks: bool,
    /// Whether somebody takes less now.
    made: bool,
}

impl Room {
    /// Lets a pod have what is recommended to it, unless it would take more than the node has left for it.
    ///
    /// # Errors
    /// [`NoRoom`] with the numbers.
    pub(super) fn admit(&mut self, entry: &Entry, wanted: &Recommended) -> Result<(), NoRoom> {
        let pod = &entry.pod;
        if self.asks && resize::speaks(pod) {
            return Ok(());
        }
        let mut standing = entry.standing.clone();
        standing.recommended = Some(wanted.clone());
        let before = takes(entry, self.asks, self.kubelet);
        let after = pod_requests(pod, &standing.targets(pod).unwrap_or_default(), self.kubelet);
        let others = difference(self.taken, before);
        if let Some(allocatable) = self.allocatable {
            resize::Room { allocatable, others }.check_growth(before, after)?;
        }
        self.made |= Resource::ALL
            .iter()
            .any(|resource| after.amount(*resource) < before.amount(*resource));
        self.taken = sum(others, after);
        Ok(())
    }

    /// Whether somebody takes less than when it was looked at first.
    pub(super) const fn was_made(&self) -> bool {
        self.made
    }
}

impl Coordinator {
    /// The node's room with what stands for its pods now.
    pub(super) fn room(&self) -> Room {
        let kubelet = self
            .node
            .as_ref()
            .map_or(KubeletVersion::NEWEST, |node| node.traits.kubelet);
        let asks = self.resizer.is_some();
        let all = self.entries.values().map(|entry| takes(entry, asks, kubelet));
        Room {
            allocatable: self.view.node.as_ref().map(|node| node.status.allocatable),
            taken: all.fold(ResourceList::default(), sum),
            kubelet,
            asks,
            made: false,
        }
    }
}

/// What a pod takes of the node, as far as is known. One that has ended takes nothing.
pub(super) fn takes(entry: &Entry, asks: bool, kubelet: KubeletVersion) -> ResourceList {
    if has_ended(&entry.pod) {
        return ResourceList::default();
    }
    let standing = || {
        let targets = entry.standing.targets(&entry.pod).unwrap_or_default();
        pod_requests(&entry.pod, &targets, kubelet)
    };
    if !(asks && resize::speaks(&entry.pod)) {
        return standing();
    }
    let reserved = resize::reserved(&entry.pod, kubelet);
    let asked = entry.standing.asked.as_ref();
    let unseen = asked.filter(|asked| entry.pod.metadata.generation < asked.generation);
    match (unseen, entry.work.running) {
        (Some(asked), _) => larger(reserved, pod_requests(&entry.pod, &asked.targets, kubelet)),
        (None, Some(_)) => larger(reserved, standing()),
        (None, None) => reserved,
    }
}

/// Whether none of a pod's containers will run again.
pub(super) fn has_ended(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

fn each(one: ResourceList, other: ResourceList, with: fn(u64, u64) -> u64) -> ResourceList {
    let mut all = ResourceList::default();
    for resource in Resource::ALL {
        all.set(resource, Some(with(one.amount(resource), other.amount(resource))));
    }
    all
}

pub(super) fn sum(one: ResourceList, other: ResourceList) -> ResourceList {
    each(one, other, u64::saturating_add)
}

pub(super) fn difference(one: ResourceList, other: ResourceList) -> ResourceList {
    each(one, other, u64::saturating_sub)
}

pub(super) fn larger(one: ResourceList, other: ResourceList) -> ResourceList {
    each(one, other, u64::max)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::decide::PodDecision;
    use crate::resources::{Bytes, MilliCpu, NamedRequirements, Requirements};

    const fn list(cpu: u64, memory: u64) -> ResourceList {
        ResourceList {
            cpu: Some(MilliCpu::new(cpu)),
            memory: Some(Bytes::new(memory)),
        }
    }

    fn requesting(requests: ResourceList) -> Vec<NamedRequirements> {
        vec![NamedRequirements {
            name: "app".to_owned(),
            resources: Requirements {
                requests,
                ..Requirements::default()
            },
        }]
    }

    fn recommended(requests: ResourceList) -> Recommended {
        Recommended {
            vpa: Some("web".to_owned()),
            at: Timestamp::UNIX_EPOCH,
            targets: requesting(requests),
        }
    }

    /// A pod whose spec requests that.
    fn entry(requests: ResourceList) -> Entry {
        let mut pod = Pod::default();
        pod.spec.containers = vec![crate::objects::Container {
            name: "app".to_owned(),
            resources: requesting(requests)[0].resources,
            ..Default::default()
        }];
        let decision = PodDecision::undecided(&pod);
        Entry::new(Arc::new(pod), decision)
    }

    /// A node with 1000 of both, on which pods take that.
    const fn room(taken: ResourceList) -> Room {
        Room {
            allocatable: Some(list(1000, 1000)),
            taken,
            kubelet: KubeletVersion::NEWEST,
            asks: false,
            made: false,
        }
    }

    #[test]
    fn what_is_recommended_must_fit_beside_what_others_request() {
        let entry = entry(list(100, 100));
        let mut room = room(list(900, 900));
        let refused = room.admit(&entry, &recommended(list(201, 100))).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the node has no room: the pod is to request 201m of cpu, 200m of 1 are left by other pods, which request 800m"
        );
        assert_eq!(room.admit(&entry, &recommended(list(200, 200))), Ok(()));
        assert_eq!(room.taken, list(1000, 1000), "from now on it is taken");
    }

    #[test]
    fn what_stands_counts_and_not_the_spec() {
        let mut grown = entry(list(100, 100));
        grown.standing.recommended = Some(recommended(list(600, 600)));
        assert_eq!(takes(&grown, false, KubeletVersion::NEWEST), list(600, 600));
        let mut room = room(list(1100, 1100));
        assert_eq!(
            room.admit(&grown, &recommended(list(550, 600))),
            Ok(()),
            "less always fits"
        );
        assert!(room.was_made());
    }

    #[test]
    fn a_pod_that_has_ended_takes_nothing() {
        let mut ended = entry(list(100, 100));
        Arc::make_mut(&mut ended.pod).status.phase = "Succeeded".to_owned();
        assert!(takes(&ended, false, KubeletVersion::NEWEST).is_empty());
    }

    #[test]
    fn a_node_that_nobody_describes_refuses_nothing() {
        let mut room = Room {
            allocatable: None,
            ..room(list(900, 900))
        };
        assert_eq!(room.admit(&entry(list(1, 1)), &recommended(list(9000, 9000))), Ok(()));
    }
}
