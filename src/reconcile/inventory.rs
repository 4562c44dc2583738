//! The pods and containers that run on the node, and their cgroups. Pure.
//!
//! Three sources describe them: the runtime's lists (names), the cgroup tree (places) and, without a runtime, the container
//! ids in the status of manifests. A container counts when its cgroup exists and one source has its name; a sandbox has a
//! cgroup and no container name. Of two containers with one name the later one counts: the other has ended, and the runtime
//! has not removed its cgroup yet. A pod counts also without containers: its limit must be right before a container that
//! crashed for want of memory starts again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use crate::cgroup::PodEntry;
use crate::model::objects::{Pod, PodId, PodUid, pod_of_uid};
use crate::model::{ContainerName, LivePod};
use crate::runtime::ListedContainer;

/// The running pods of the node, by the UID in their cgroup's name; `None` for a pod that no source names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Inventory {
    pods: BTreeMap<PodUid, Option<Arc<LivePod>>>,
}

impl Inventory {
    /// Combines the cgroup tree with the names from the runtime and from manifests. `pods` and `listed`
    /// are empty without a runtime.
    pub(crate) fn assemble(
        scanned: &[PodEntry],
        pods: &[PodId],
        listed: &[ListedContainer],
        manifests: &[Arc<Pod>],
    ) -> Self {
        let mut known: HashMap<&str, PodNames<'_>> = HashMap::new();
        for pod in manifests.iter().filter(|pod| !pod.cgroup_uid().is_empty()) {
            known.entry(pod.cgroup_uid()).or_default().objects.push(pod);
        }
        for pod in pods {
            known.entry(&pod.uid).or_default().id = Some(pod);
        }
        for container in listed {
            let of_pod = known.entry(&container.pod.uid).or_default();
            of_pod.id = Some(&container.pod);
            of_pod.listed.push(container);
        }
        let mut inventory = Self::default();
        for entry in scanned {
            let uid = &entry.place.uid;
            let Some((id, containers)) = known.get(&**uid).and_then(|known| known.names(uid)) else {
                inventory.pods.insert(uid.clone(), None);
                continue;
            };
            let mut live: Vec<_> = entry
                .containers
                .iter()
                .filter_map(|container| {
                    let (name, age) = containers.get(container.id.as_str())?;
                    Some((ContainerName::from(*name), *age, container.clone()))
                })
                .collect();
            // Of two containers with one name, the later one stays.
            live.sort_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
            let containers = live.into_iter().map(|(name, _, live)| (name, live)).collect();
            let path = entry.path.clone();
            let pod = Arc::new(LivePod { id, path, containers });
            inventory.pods.insert(uid.clone(), Some(pod));
        }
        inventory
    }

    /// Takes the pods that are the same as earlier from there: the state of a pod and the thread of kills hold them, too.
    pub(crate) fn sharing(mut self, earlier: &[Arc<LivePod>]) -> Self {
        for earlier in earlier {
            if let Some(Some(pod)) = self.pods.get_mut(&earlier.id.uid)
                && pod == earlier
            {
                *pod = Arc::clone(earlier);
            }
        }
        self
    }

    pub(crate) fn pods(&self) -> impl Iterator<Item = &Arc<LivePod>> {
        self.pods.values().flatten()
    }

    /// The pod with this UID in its cgroup's name, if a source names it.
    pub(crate) fn live(&self, uid: &str) -> Option<&Arc<LivePod>> {
        self.pods.get(uid)?.as_ref()
    }

    /// Whether a pod with this UID has a cgroup.
    pub(crate) fn has_cgroup(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// The live pod that an object describes ([`Pod::describes`]).
    pub(crate) fn find(&self, pod: &Pod) -> Option<&Arc<LivePod>> {
        match pod.cgroup_uid() {
            "" => self.pods().find(|live| pod.describes(&live.id)),
            uid => self.live(uid).filter(|live| pod.describes(&live.id)),
        }
    }
}

/// The names that sources give to the pod with one UID. No source names containers of another pod.
#[derive(Default)]
struct PodNames<'a> {
    /// The name of the pod in the runtime.
    id: Option<&'a PodId>,
    /// The containers of the pod in the runtime.
    listed: Vec<&'a ListedContainer>,
    objects: Vec<&'a Arc<Pod>>,
}

/// A container's restart count, and when it was created.
type Age = (u32, Option<Timestamp>);
/// The names and ages of containers, by id.
type Containers<'a> = HashMap<&'a str, (&'a str, Age)>;

impl<'a> PodNames<'a> {
    /// The pod with this UID in its cgroup's name, and its containers' names by id. The runtime's name of the pod wins:
    /// only an object that describes the same pod adds container names.
    fn names(&self, uid: &str) -> Option<(PodId, Containers<'a>)> {
        let id = match self.id {
            Some(id) => id.clone(),
            None => pod_of_uid(self.objects.iter().copied(), uid)?.id_with(uid),
        };
        let described = self.objects.iter().filter(|pod| pod.describes(&id));
        let statuses = described.flat_map(|pod| pod.statuses());
        let named = statuses.filter_map(|status| Some((status.bare_id()?, (&*status.name, (0, None)))));
        let listed = self.listed.iter().map(|container| {
            let age = (container.restart_count, container.created_at);
            (&*container.id, (&*container.name, age))
        });
        let containers = named.chain(listed).collect();
        Some((id, containers))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::cgroup::{PodPlace, uid_in_cgroup_name};
    use crate::model::objects::{ContainerStatus, OwnerReference};
    use crate::model::{CgroupPath, ContainerId, LiveContainer};
    use crate::sources::parse_manifests;

    const UID: &str = "6c4b2d1e-0000-4000-8000-00000000000a";

    fn id(letter: char) -> String {
        letter.to_string().repeat(64)
    }

    fn scanned(ids: &[String]) -> Vec<PodEntry> {
        let path = CgroupPath::new(&format!("/kubepods/burstable/pod{UID}")).unwrap();
        let container = |id: &String| LiveContainer {
            id: ContainerId::parse(id).unwrap(),
            path: CgroupPath::new(&format!("{path}/{id}")).unwrap(),
        };
        let place = PodPlace {
            uid: uid_in_cgroup_name(UID).unwrap(),
            qos: None,
        };
        vec![PodEntry {
            place,
            containers: ids.iter().map(container).collect(),
            path,
        }]
    }

    fn listed(id: &str, name: &str, uid: &str) -> ListedContainer {
        ListedContainer {
            id: id.to_owned(),
            name: name.to_owned(),
            pod: PodId {
                uid: uid.into(),
                name: "web".to_owned(),
                namespace: "default".to_owned(),
            },
            restart_count: 0,
            created_at: None,
        }
    }

    fn id_of_sandbox() -> String {
        id('0')
    }

    fn manifest(uid: &str, container_id: &str) -> Vec<Arc<Pod>> {
        let text = format!(
            "kind: Pod\nmetadata: {{name: web, uid: \"{uid}\"}}\nspec: {{containers: [{{name: app}}]}}\n\
             status: {{containerStatuses: [{{name: app, containerID: \"{container_id}\"}}]}}"
        );
        parse_manifests("test", &text).unwrap().view.pods
    }

    #[test]
    fn the_runtime_names_cgroups_not_sandboxes() {
        let inventory = Inventory::assemble(
            &scanned(&[id('a'), id_of_sandbox()]),
            &[],
            &[listed(&id('a'), "app", UID)],
            &[],
        );
        let by_name = inventory.find(&manifest("", "")[0]).unwrap();
        assert_eq!(by_name.id.uid.as_str(), UID);
        assert_eq!(by_name.containers.keys().collect::<Vec<_>>(), ["app"]);
        assert!(inventory.find(&manifest(UID, "")[0]).is_some());
    }

    #[test]
    fn the_later_container_of_a_name_counts() {
        let again = ListedContainer {
            restart_count: 1,
            ..listed(&id('a'), "app", UID)
        };
        let lists = [again, listed(&id('b'), "app", UID)];
        for order in [[id('a'), id('b')], [id('b'), id('a')]] {
            let inventory = Inventory::assemble(&scanned(&order), &[], &lists, &[]);
            assert_eq!(
                inventory.find(&manifest(UID, "")[0]).unwrap().containers["app"]
                    .id
                    .as_str(),
                id('a')
            );
        }
    }

    #[test]
    fn without_a_runtime_the_manifests_name_containers() {
        let manifests = manifest(UID, &format!("containerd://{}", id('b')));
        let inventory = Inventory::assemble(&scanned(&[id('a'), id('b')]), &[], &[], &manifests);
        assert_eq!(
            inventory.find(&manifests[0]).unwrap().containers["app"].id.as_str(),
            id('b')
        );
    }

    #[test]
    fn a_pod_without_running_containers_lives() {
        let pod = PodId {
            uid: UID.into(),
            name: "web".to_owned(),
            namespace: "default".to_owned(),
        };
        let inventory = Inventory::assemble(&scanned(&[id_of_sandbox()]), &[pod], &[], &[]);
        assert!(inventory.find(&manifest("", "")[0]).unwrap().containers.is_empty());
    }

    #[test]
    fn a_nameless_pod_has_its_cgroup() {
        let inventory = Inventory::assemble(&scanned(&[id('a')]), &[], &[], &[]);
        assert_eq!(inventory.pods().count(), 0);
        assert!(inventory.has_cgroup(UID) && !inventory.has_cgroup("another"));
    }

    #[test]
    fn another_pod_of_the_same_name_is_not_the_one() {
        let other = "11111111-0000-4000-8000-00000000000a";
        let inventory = Inventory::assemble(&scanned(&[id('a')]), &[], &[listed(&id('a'), "app", UID)], &[]);
        assert!(inventory.find(&manifest(other, "")[0]).is_none());
        let mislabelled = Inventory::assemble(&scanned(&[id('a')]), &[], &[listed(&id('a'), "app", other)], &[]);
        assert!(mislabelled.find(&manifest(UID, "")[0]).is_none());
    }

    /// Pods of a tenant who knows the victim's UID, name and container id, and may write everything but a UID.
    fn tenants() -> impl Strategy<Value = Arc<Pod>> {
        let victims = || select(vec![UID.to_owned(), id('a'), "web".to_owned(), "default".to_owned()]);
        let annotation = select(&["config.mirror", "config.hash", "config.source", "other"][..]);
        let owners = vec(select(&["Node", "Pod", "StatefulSet"][..]), 0..3);
        let statuses = vec((victims(), select(vec![id('a'), id('b'), id_of_sandbox()])), 0..3);
        let own_uid = select(&["", "22222222-0000-4000-8000-00000000000a"][..]);
        (vec((annotation, victims()), 0..3), owners, statuses, victims(), own_uid).prop_map(
            |(annotations, owners, statuses, name, uid)| {
                let mut pod = Pod::default();
                pod.metadata.namespace = "tenant".to_owned();
                pod.metadata.name = name;
                pod.metadata.uid = uid.to_owned();
                let annotation = |(name, value)| (format!("kubernetes.io/{name}"), value);
                pod.metadata.annotations = annotations.into_iter().map(annotation).collect();
                let owner = |kind: &str| OwnerReference {
                    kind: kind.to_owned(),
                    uid: UID.to_owned(),
                    ..OwnerReference::default()
                };
                pod.metadata.owner_references = owners.into_iter().map(owner).collect();
                let status = |(name, container_id)| ContainerStatus {
                    name,
                    container_id,
                    ..ContainerStatus::default()
                };
                pod.status.container_statuses = statuses.into_iter().map(status).collect();
                Arc::new(pod)
            },
        )
    }

    proptest! {
        #[test]
        fn a_tenant_claims_no_foreign_pod(
            tenants in vec(tenants(), 1..4),
            runtime in any::<bool>(),
            first in any::<bool>(),
        ) {
            let victim = manifest(UID, &format!("containerd://{}", id('a')));
            let (mut before, mut after) = (tenants.clone(), victim.clone());
            if first {
                std::mem::swap(&mut before, &mut after);
            }
            let manifests = [before, after].concat();
            let listed = [listed(&id('a'), "app", UID)];
            let listed = if runtime { &listed[..] } else { &[] };
            let inventory = Inventory::assemble(&scanned(&[id('a'), id_of_sandbox()]), &[], listed, &manifests);
            for tenant in &tenants {
                prop_assert!(inventory.find(tenant).is_none());
            }
            let live = inventory.find(&victim[0]).unwrap();
            prop_assert_eq!(live.containers.keys().collect::<Vec<_>>(), ["app"]);
            prop_assert_eq!(live.containers["app"].id.as_str(), id('a'));
        }
    }
}
