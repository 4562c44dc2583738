//! What the node's pods take of it, and whether it has room for what is recommended to those whose kubelet does not look.
//! Pure.
//!
//! In come what the node has and what stands for its pods; out comes a refusal with the numbers, or none. Where the kubelet
//! resizes in place, a pass looks before it asks ([`super::resizing`]), and the kubelet after it. What an operator wants is
//! looked at before it stands ([`crate::agent::capacity`]).

use super::Coordinator;
use crate::agent::capacity::Headroom;
use crate::agent::entry::Entry;
use crate::agent::standing::Recommended;
use crate::model::objects::Pod;
use crate::model::{KubeletVersion, Resource, ResourceList};
use crate::plan::{Account, Capacity, NoRoom, Room, larger, pod_requests, resize};

/// Lets recommendations in as far as there is room, one after the other.
#[derive(Debug)]
pub(super) struct Admission {
    /// None where no Node object says it: then nothing is refused.
    capacity: Option<Capacity>,
    account: Account,
    kubelet: KubeletVersion,
    /// Whether kubelets that resize in place are asked to.
    asks: bool,
    /// Whether somebody takes less now.
    made: bool,
}

impl Admission {
    /// Whether a pod may have what is recommended to it: not if it would take more than the node has left for it.
    ///
    /// # Errors
    /// [`NoRoom`] with the numbers.
    pub(super) fn check(&self, entry: &Entry, wanted: &Recommended) -> Result<(), NoRoom> {
        let (pod, Some(capacity)) = (&entry.pod, self.capacity) else {
            return Ok(());
        };
        if self.asks && resize::supports_in_place_resize(pod) {
            return Ok(());
        }
        let mut standing = entry.standing.clone();
        standing.recommended = Some(wanted.clone());
        let before = self.takes(entry);
        let after = pod_requests(pod, &standing.targets(pod).unwrap_or_default(), self.kubelet);
        let others = self.account.others(before);
        Room { capacity, others }.check(before, after)
    }

    /// What a pod takes.
    pub(super) fn takes(&self, entry: &Entry) -> ResourceList {
        takes(entry, self.asks, self.kubelet)
    }

    /// Something else stands for a pod that took as much as `before`.
    pub(super) fn changed(&mut self, before: ResourceList, entry: &Entry) {
        let after = self.takes(entry);
        self.made |= Resource::ALL
            .iter()
            .any(|resource| after.amount(*resource) < before.amount(*resource));
        self.account.change(before, after);
    }

    /// Whether somebody takes less than when it was looked at first.
    pub(super) const fn made_room(&self) -> bool {
        self.made
    }
}

impl Coordinator {
    /// The node's room with what stands for its pods now.
    pub(super) fn admission(&self) -> Admission {
        let (kubelet, asks) = (self.kubelet(), self.resizer.get().is_some());
        Admission {
            capacity: Capacity::of(self.view.node.as_ref()),
            account: account(self.entries.values().map(|entry| &**entry), asks, kubelet),
            kubelet,
            asks,
            made: false,
        }
    }

    /// What the node has for one of its pods, whose values an operator sets.
    pub(super) fn headroom(&self, key: &str) -> Headroom {
        let (kubelet, asks) = (self.kubelet(), self.resizer.get().is_some());
        let all = account(self.entries.values().map(|entry| &**entry), asks, kubelet);
        let own = self.entries.get(key);
        let takes = own.map_or_else(ResourceList::default, |entry| takes(entry, asks, kubelet));
        Headroom {
            room: Room {
                capacity: Capacity::of_node_or(self.view.node.as_ref(), self.machine),
                others: all.others(takes),
            },
            takes,
            kubelet,
            managers: self.managers(),
        }
    }

    /// Whose rules say what pods request.
    pub(super) fn kubelet(&self) -> KubeletVersion {
        let node = self.node.as_ref();
        node.map_or(KubeletVersion::NEWEST, |node| node.traits.kubelet)
    }
}

/// What all pods take that have not ended.
pub(super) fn account<'a>(entries: impl Iterator<Item = &'a Entry>, asks: bool, kubelet: KubeletVersion) -> Account {
    entries
        .filter(|entry| !has_ended(&entry.pod))
        .map(|entry| takes(entry, asks, kubelet))
        .collect()
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
    if !(asks && resize::supports_in_place_resize(&entry.pod)) {
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
fn has_ended(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::decide::PodDecision;
    use crate::model::{Bytes, MilliCpu, NamedRequirements, Requirements};
    use crate::plan::CapacityFrom;

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
        pod.spec.containers = vec![crate::model::objects::Container {
            name: "app".to_owned(),
            resources: requesting(requests)[0].resources,
            ..Default::default()
        }];
        let decision = PodDecision::undecided(&pod);
        Entry::new(Arc::new(pod), decision)
    }

    /// A node with 1000 of both, of which the first pod takes so much and another so much.
    fn admission(own: ResourceList, other: ResourceList) -> Admission {
        Admission {
            capacity: Some(Capacity {
                amounts: list(1000, 1000),
                from: CapacityFrom::Allocatable,
            }),
            account: [own, other].into_iter().collect(),
            kubelet: KubeletVersion::NEWEST,
            asks: false,
            made: false,
        }
    }

    #[test]
    fn what_is_recommended_must_fit_beside_what_others_request() {
        let mut entry = entry(list(100, 100));
        let mut admission = admission(list(100, 100), list(800, 800));
        let refused = admission.check(&entry, &recommended(list(201, 100))).unwrap_err();
        assert_eq!((refused.before, refused.left()), (100, 200));
        let fits = recommended(list(200, 200));
        assert_eq!(admission.check(&entry, &fits), Ok(()));
        let before = admission.takes(&entry);
        entry.standing.recommended = Some(fits);
        admission.changed(before, &entry);
        let others = admission.account.others(list(800, 800));
        assert_eq!(others.take, list(200, 200), "from now on it is taken");
        assert!(!admission.made_room());
    }

    #[test]
    fn what_stands_counts_and_not_the_spec() {
        let mut grown = entry(list(100, 100));
        grown.standing.recommended = Some(recommended(list(600, 600)));
        let mut admission = admission(list(600, 600), list(500, 500));
        let before = admission.takes(&grown);
        assert_eq!(before, list(600, 600));
        let less = recommended(list(550, 600));
        assert_eq!(admission.check(&grown, &less), Ok(()), "less always fits");
        grown.standing.recommended = Some(less);
        admission.changed(before, &grown);
        assert!(admission.made_room());
    }

    #[test]
    fn what_a_pod_goes_back_to_is_taken_as_well() {
        let mut shrunk = entry(list(700, 700));
        shrunk.standing.recommended = Some(recommended(list(100, 100)));
        let mut admission = admission(list(100, 100), list(200, 200));
        let before = admission.takes(&shrunk);
        shrunk.standing.let_go();
        admission.changed(before, &shrunk);
        let other = entry(list(200, 200));
        let refused = admission.check(&other, &recommended(list(301, 200))).unwrap_err();
        assert_eq!(refused.left(), 300);
    }

    #[test]
    fn a_pod_that_has_ended_takes_nothing() {
        let mut ended = entry(list(100, 100));
        Arc::make_mut(&mut ended.pod).status.phase = "Succeeded".to_owned();
        assert!(takes(&ended, false, KubeletVersion::NEWEST).is_empty());
        let others = account([&ended].into_iter(), false, KubeletVersion::NEWEST);
        assert_eq!(others, Account::default());
    }

    #[test]
    fn a_node_that_nobody_describes_refuses_nothing() {
        let admission = Admission {
            capacity: None,
            ..admission(list(1, 1), list(900, 900))
        };
        let wanted = recommended(list(9000, 9000));
        assert_eq!(admission.check(&entry(list(1, 1)), &wanted), Ok(()));
    }
}
