//! Which pods and containers live on the node, and where their cgroups are.
//!
//! Pure assembly of three views of the same thing: the runtime's lists (names), the cgroup tree (places) and, where no
//! runtime can be asked, the container ids in the manifests' status. A container counts when its cgroup is there and
//! somebody can name it; a sandbox has a cgroup and no container name. Of two of the same name the one that was started
//! later counts: the other has ended, and the runtime has not come to clear it away. A pod counts without containers, too:
//! its limit must be right before a container that crashed for want of memory starts again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use crate::actuate::{LiveContainer, LivePod, PodId};
use crate::cgroup::PodEntry;
use crate::objects::{ContainerStatus, Pod};
use crate::runtime::{ListedContainer, RuntimePod};

/// The node's pods, by UID.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Inventory {
    pods: BTreeMap<String, Arc<LivePod>>,
    uids_by_name: HashMap<(String, String), String>,
}

impl Inventory {
    /// Puts the views together. `pods` and `listed` are empty when there is no runtime to ask.
    #[must_use]
    pub(super) fn assemble(
        scanned: Vec<PodEntry>,
        pods: &[RuntimePod],
        listed: &[ListedContainer],
        manifests: &[Arc<Pod>],
    ) -> Self {
        let names = Names::gather(pods, listed, manifests);
        let mut inventory = Self::default();
        for entry in scanned {
            let uid = entry.place.uid.as_str();
            let Some(id) = names.pods.get(uid) else { continue };
            let mut live: Vec<(&Named<'_>, LiveContainer)> = entry
                .containers
                .into_iter()
                .filter_map(|container| {
                    let container_id = container.place.id.as_str();
                    let named = names.containers.get(container_id).filter(|named| named.uid == uid)?;
                    let live = LiveContainer {
                        id: container_id.to_owned(),
                        path: container.path,
                    };
                    Some((named, live))
                })
                .collect();
            // The last of a name stays.
            live.sort_by_key(|(named, _)| named.age);
            let live = live.into_iter().map(|(named, live)| (named.name.to_owned(), live));
            let pod = Arc::new(LivePod {
                id: id.clone(),
                containers: live.collect(),
                path: entry.path,
            });
            inventory
                .uids_by_name
                .insert((id.namespace.clone(), id.name.clone()), uid.to_owned());
            inventory.pods.insert(uid.to_owned(), pod);
        }
        inventory
    }

    /// Every pod.
    pub(super) fn pods(&self) -> impl Iterator<Item = &Arc<LivePod>> {
        self.pods.values()
    }

    /// The live pod a manifest describes: of the same UID, or of the same name where the manifest has no UID.
    #[must_use]
    pub(super) fn find(&self, pod: &Pod) -> Option<&Arc<LivePod>> {
        let uid = match pod.cgroup_uid() {
            "" => self
                .uids_by_name
                .get(&(pod.metadata.namespace.clone(), pod.metadata.name.clone()))?,
            uid => uid,
        };
        self.pods.get(uid)
    }
}

/// What everything is called.
#[derive(Default)]
struct Names<'a> {
    /// Pods by UID.
    pods: HashMap<&'a str, PodId>,
    /// Containers by id.
    containers: HashMap<&'a str, Named<'a>>,
}

/// A container that somebody can name.
struct Named<'a> {
    /// The pod's.
    uid: &'a str,
    name: &'a str,
    /// How often it was started before, and when this time.
    age: (u32, Option<Timestamp>),
}

impl<'a> Names<'a> {
    /// The runtime's word comes last and wins over a manifest's, which may be old.
    fn gather(pods: &'a [RuntimePod], listed: &'a [ListedContainer], manifests: &'a [Arc<Pod>]) -> Self {
        let mut names = Self::default();
        for pod in manifests.iter().filter(|pod| !pod.cgroup_uid().is_empty()) {
            let uid = pod.cgroup_uid();
            names.pod(uid, &pod.metadata.namespace, &pod.metadata.name);
            let statuses = pod
                .status
                .container_statuses
                .iter()
                .chain(&pod.status.init_container_statuses);
            let named = statuses.filter_map(|status| {
                let named = Named {
                    uid,
                    name: &status.name,
                    age: (0, None),
                };
                Some((bare_id(status)?, named))
            });
            names.containers.extend(named);
        }
        for pod in pods {
            names.pod(&pod.uid, &pod.namespace, &pod.name);
        }
        for container in listed {
            names.pod(&container.pod_uid, &container.pod_namespace, &container.pod_name);
            let named = Named {
                uid: &container.pod_uid,
                name: &container.name,
                age: (container.restart_count, container.created_at),
            };
            names.containers.insert(&container.id, named);
        }
        names
    }

    fn pod(&mut self, uid: &'a str, namespace: &str, name: &str) {
        let id = PodId {
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        self.pods.insert(uid, id);
    }
}

/// The id without the runtime's scheme in front.
fn bare_id(status: &ContainerStatus) -> Option<&str> {
    let id = status
        .container_id
        .rsplit_once("://")
        .map_or(status.container_id.as_str(), |(_, id)| id);
    (!id.is_empty()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{CgroupPath, ContainerEntry, ContainerId, ContainerPlace, PodPlace, PodUid};
    use crate::sources::parse_manifests;

    const UID: &str = "6c4b2d1e-0000-4000-8000-00000000000a";

    fn id(letter: char) -> String {
        letter.to_string().repeat(64)
    }

    fn scanned(ids: &[String]) -> Vec<PodEntry> {
        let path = CgroupPath::new(&format!("/kubepods/burstable/pod{UID}")).unwrap();
        let container = |id: &String| ContainerEntry {
            place: ContainerPlace {
                id: ContainerId::parse(id).unwrap(),
                runtime: None,
                inside: String::new(),
            },
            path: CgroupPath::new(&format!("{path}/{id}")).unwrap(),
        };
        let place = PodPlace {
            uid: PodUid::in_cgroup_name(UID).unwrap(),
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
            pod_uid: uid.to_owned(),
            pod_name: "web".to_owned(),
            pod_namespace: "default".to_owned(),
            sandbox_id: id_of_sandbox(),
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
    fn the_runtime_names_what_the_tree_holds_and_sandboxes_are_left_out() {
        let inventory = Inventory::assemble(
            scanned(&[id('a'), id_of_sandbox()]),
            &[],
            &[listed(&id('a'), "app", UID)],
            &[],
        );
        let by_name = inventory.find(&manifest("", "")[0]).unwrap();
        assert_eq!(by_name.id.uid, UID);
        assert_eq!(by_name.containers.keys().collect::<Vec<_>>(), ["app"]);
        assert!(inventory.find(&manifest(UID, "")[0]).is_some());
    }

    #[test]
    fn of_two_containers_of_a_name_the_one_that_was_started_later_counts() {
        let again = ListedContainer {
            restart_count: 1,
            ..listed(&id('a'), "app", UID)
        };
        let lists = [again, listed(&id('b'), "app", UID)];
        for order in [[id('a'), id('b')], [id('b'), id('a')]] {
            let inventory = Inventory::assemble(scanned(&order), &[], &lists, &[]);
            assert_eq!(
                inventory.find(&manifest(UID, "")[0]).unwrap().containers["app"].id,
                id('a')
            );
        }
    }

    #[test]
    fn without_a_runtime_the_manifests_name_containers() {
        let manifests = manifest(UID, &format!("containerd://{}", id('b')));
        let inventory = Inventory::assemble(scanned(&[id('a'), id('b')]), &[], &[], &manifests);
        assert_eq!(inventory.find(&manifests[0]).unwrap().containers["app"].id, id('b'));
    }

    #[test]
    fn a_pod_whose_containers_are_all_down_lives_all_the_same() {
        let pod = RuntimePod {
            uid: UID.to_owned(),
            name: "web".to_owned(),
            namespace: "default".to_owned(),
        };
        let inventory = Inventory::assemble(scanned(&[id_of_sandbox()]), &[pod], &[], &[]);
        assert!(inventory.find(&manifest("", "")[0]).unwrap().containers.is_empty());
    }

    #[test]
    fn another_pod_of_the_same_name_is_not_the_one() {
        let other = "11111111-0000-4000-8000-00000000000a";
        let inventory = Inventory::assemble(scanned(&[id('a')]), &[], &[listed(&id('a'), "app", UID)], &[]);
        assert!(inventory.find(&manifest(other, "")[0]).is_none());
        let mislabelled = Inventory::assemble(scanned(&[id('a')]), &[], &[listed(&id('a'), "app", other)], &[]);
        assert!(mislabelled.find(&manifest(UID, "")[0]).is_none());
    }
}
