//! Finds the names of the pods and containers of cgroups, also of those that ended a short time ago.
//!
//! In comes the agent's inventory, again and again; out come names and levels for the paths in the kernel's log. A
//! cgroup that the inventory knows as a container's belongs to that container with everything inside, whatever the
//! names there: containers choose the names of the cgroups they make. Only other paths are read by their form. Pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::cgroup::{Hierarchy, Place};
use crate::model::objects::PodId;
use crate::model::{CgroupPath, ContainerName, LivePod};
use crate::oom::kill::{Level, pod_and_container};
use crate::oom::report::{ReportedContainer, ReportedPod};

/// How long to remember the names of a pod that is gone: the agent may still report a kill in it.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The hierarchy of cgroups and the pods on the node: the agent's inventory.
#[derive(Debug, Clone, Default)]
pub struct NodePods {
    /// The mounts and the root of all pods, once the agent knows them.
    pub tree: Option<(Hierarchy, CgroupPath)>,
    pub pods: Vec<Arc<LivePod>>,
}

/// The pod or container of a cgroup.
#[derive(Debug, Clone)]
struct KnownCgroup {
    pod: Arc<LivePod>,
    /// The container's name; none for the pod's own cgroup.
    container: Option<ContainerName>,
    /// The time since which it is gone.
    gone: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct PodNames {
    root: Option<CgroupPath>,
    cgroups: HashMap<CgroupPath, KnownCgroup>,
}

/// The pod and container that a cgroup belongs to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) pod: Option<ReportedPod>,
    pub(super) container: Option<ReportedContainer>,
    /// Whether the agent may still learn a missing name.
    pub(super) unnamed: bool,
}

impl PodNames {
    /// Replaces the pods on the node.
    pub(super) fn update(&mut self, node: &NodePods, now: Duration) {
        self.root = node.tree.as_ref().map(|(_, root)| root.clone());
        for known in self.cgroups.values_mut() {
            known.gone.get_or_insert(now);
        }
        for pod in &node.pods {
            let known = |container| KnownCgroup {
                pod: Arc::clone(pod),
                container,
                gone: None,
            };
            self.cgroups.insert(pod.path.clone(), known(None));
            for (name, container) in &pod.containers {
                self.cgroups.insert(container.path.clone(), known(Some(name.clone())));
            }
        }
        self.cgroups
            .retain(|_, known| known.gone.is_none_or(|gone| now.saturating_sub(gone) < REMEMBERED));
    }

    /// The pod and container of a cgroup.
    pub(super) fn owner(&self, cgroup: &CgroupPath) -> Owner {
        let known = self.known(cgroup);
        let pod = known.map(|known| {
            let PodId { uid, namespace, name } = known.pod.id.clone();
            let uid = uid.to_string();
            ReportedPod { namespace, name, uid }
        });
        let live = known.and_then(|known| known.pod.containers.get_key_value(known.container.as_ref()?));
        if let Some((name, live)) = live {
            let (name, id) = (name.to_string(), live.id.to_string());
            let container = Some(ReportedContainer { name, id });
            return Owner {
                pod,
                container,
                unnamed: false,
            };
        }
        let (Some(place), container) = pod_and_container(self.place(cgroup)) else {
            return Owner::default();
        };
        Owner {
            unnamed: pod.is_none() || container.is_some(),
            pod: pod.or_else(|| {
                Some(ReportedPod {
                    uid: place.uid.to_string(),
                    ..ReportedPod::default()
                })
            }),
            container: container.map(|id| ReportedContainer {
                name: String::new(),
                id: id.as_str().to_owned(),
            }),
        }
    }

    /// The name of the container that this cgroup is of.
    pub(super) fn container(&self, cgroup: &CgroupPath) -> Option<&str> {
        self.cgroups.get(cgroup)?.container.as_deref()
    }

    /// Whether the pod has only this container. Two containers of the same name are one that restarted.
    pub(super) fn is_only_container(&self, pod: &CgroupPath, container: &CgroupPath) -> bool {
        let cgroups = self.cgroups.keys();
        let in_pod = cgroups.filter(|path| path.parent().as_ref() == Some(pod));
        let mut containers = in_pod.filter_map(|path| self.container(path));
        self.container(container)
            .is_some_and(|only| containers.all(|other| other == only))
    }

    /// The level of a cgroup whose limit was hit.
    pub(super) fn level(&self, cgroup: &CgroupPath) -> Level {
        if self.known(cgroup).is_some_and(|known| known.container.is_some()) {
            return Level::Container;
        }
        Level::of(cgroup, self.place(cgroup).as_ref())
    }

    /// Reads a path by its form. Below the node's root of all pods the outermost pod in the path counts. If the agent
    /// knows that root, a path elsewhere belongs to no pod.
    fn place(&self, cgroup: &CgroupPath) -> Option<Place> {
        match &self.root {
            Some(root) => Place::parse_below(root, cgroup),
            None => Place::parse(cgroup),
        }
    }

    /// The outermost known container that this cgroup belongs to, or else the pod.
    fn known(&self, cgroup: &CgroupPath) -> Option<&KnownCgroup> {
        let outwards = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent);
        let mut known: Vec<_> = outwards.filter_map(|path| self.cgroups.get(&path)).collect();
        let containers = known.iter().take_while(|known| known.container.is_some()).count();
        known.truncate(containers.max(1));
        known.pop()
    }
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;

    use super::*;
    use crate::model::{ContainerId, LiveContainer};

    const UID: &str = "6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77";
    const OTHER: &str = "11111111-7a55-4d6b-9c3e-2f0b8a9d1c77";

    fn path(text: &str) -> CgroupPath {
        CgroupPath::new(text).unwrap()
    }

    fn container(letter: &str) -> CgroupPath {
        path(&format!("/kubepods/burstable/pod{UID}/{}", letter.repeat(64)))
    }

    fn node_with(pods: Vec<Arc<LivePod>>) -> NodePods {
        let mounts = tempfile::tempdir().unwrap();
        for name in ["cpu", "memory"] {
            std::fs::create_dir(mounts.path().join(name)).unwrap();
        }
        let hierarchy = Hierarchy::of_tree(mounts.path()).unwrap();
        NodePods {
            tree: Some((hierarchy, path("/kubepods"))),
            pods,
        }
    }

    fn web() -> Arc<LivePod> {
        let live = LiveContainer {
            id: ContainerId::of_test(&"a".repeat(64)),
            path: container("a"),
        };
        Arc::new(LivePod {
            id: PodId {
                uid: UID.into(),
                namespace: "default".to_owned(),
                name: "web".to_owned(),
            },
            path: container("a").parent().unwrap(),
            containers: IndexMap::from([("app".into(), live)]),
        })
    }

    fn names_of(names: &PodNames, cgroup: &CgroupPath) -> (String, String, bool) {
        let whose = names.owner(cgroup);
        let pod = whose.pod.map(|pod| pod.name).unwrap_or_default();
        (
            pod,
            whose.container.map(|of| of.name).unwrap_or_default(),
            whose.unnamed,
        )
    }

    #[test]
    fn a_container_cannot_pass_for_another() {
        let mut names = PodNames::default();
        names.update(&node_with(vec![web()]), Duration::ZERO);
        let inner = path(&format!("{}/kubepods/pod{OTHER}/{}", container("a"), "b".repeat(64)));
        assert_eq!(names_of(&names, &inner), ("web".to_owned(), "app".to_owned(), false));
        assert_eq!(names.level(&inner), Level::Container);
        let elsewhere = path(&format!("/user.slice/kubepods/pod{UID}/{}", "a".repeat(64)));
        assert_eq!(names.owner(&elsewhere), Owner::default());
        assert_eq!(names.level(&elsewhere), Level::Other);
    }

    #[test]
    fn unknown_cgroups_have_ids_of_their_path() {
        let mut names = PodNames::default();
        names.update(&node_with(vec![web()]), Duration::ZERO);
        let whose = names.owner(&container("b"));
        assert!(whose.unnamed);
        assert_eq!(whose.pod.unwrap().name, "web");
        assert_eq!(whose.container.unwrap().id, "b".repeat(64));
        let stranger = names.owner(&path(&format!("/kubepods/pod{OTHER}")));
        assert!(stranger.unnamed && stranger.pod.unwrap().uid == OTHER);
        assert_eq!(names.level(&path("/kubepods")), Level::Kubepods);
        assert_eq!(names.level(&path("/kubepods/burstable")), Level::Qos);
    }

    #[test]
    fn the_departed_are_remembered_for_a_while() {
        let mut names = PodNames::default();
        names.update(&node_with(vec![web()]), Duration::ZERO);
        names.update(&node_with(Vec::new()), Duration::from_secs(1));
        assert_eq!(
            names_of(&names, &container("a")),
            ("web".to_owned(), "app".to_owned(), false)
        );
        names.update(&node_with(Vec::new()), REMEMBERED + Duration::from_secs(1));
        assert_eq!(names_of(&names, &container("a")), (String::new(), String::new(), true));
    }
}
