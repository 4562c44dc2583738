//! A pod's cgroups as a kubelet and a runtime would have made them, below a root of the demo's own.
//!
//! In comes the pod's manifest; out come directories in every hierarchy, with the values that the planner says such a
//! pod is created with. Cgroups that were there before are looked at and never written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::DemoError;
use crate::actuate::{LiveContainer, LivePod, PodHandles, PodId};
use crate::cgroup::{Cgroup, CgroupDir, CgroupPath, Controller, Hierarchy};
use crate::objects::Pod;
use crate::plan::{
    CgroupVersion, Driver, KubeletVersion, NodeTraits, PodTree, RuntimeKind, Target, container_cgroup_name, hierarchy,
    pod_cgroup_path,
};
use crate::resources::{Bytes, Setting, Settings};
use crate::runtime::weight;

/// The pod's cgroups, held open.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) pod: Pod,
    pub(super) traits: NodeTraits,
    pub(super) path: CgroupPath,
    handles: PodHandles,
}

/// What a node is like on which a kubelet made the tree.
pub(super) const fn traits(version: CgroupVersion) -> NodeTraits {
    NodeTraits {
        version,
        driver: Driver::Cgroupfs,
        runtime: RuntimeKind::Containerd,
        container_weight: weight::ASSUMED,
        kubelet: KubeletVersion::NEWEST,
    }
}

/// Where the hierarchies are: once, or once for each controller.
pub(super) fn mounts(hierarchy: &Hierarchy) -> Vec<PathBuf> {
    let mut mounts: Vec<PathBuf> = Controller::ALL
        .map(|controller| hierarchy.mount(controller).to_owned())
        .into();
    mounts.dedup();
    mounts
}

/// The root of all pods below the demo's root.
pub(super) fn kubepods(root: &CgroupPath) -> Result<CgroupPath, DemoError> {
    child(root, "kubepods")
}

fn child(parent: &CgroupPath, name: &str) -> Result<CgroupPath, DemoError> {
    parent
        .child(name)
        .map_err(|error| DemoError::Unexpected(error.to_string()))
}

impl Tree {
    /// Makes the cgroups of `pod` below `root`, which must not exist, and gives them their values.
    ///
    /// # Errors
    /// [`DemoError`] says what is missing on this machine, and what to do.
    pub(super) fn build(on: &Hierarchy, root: &CgroupPath, pod: Pod) -> Result<Self, DemoError> {
        let traits = traits(on.version());
        let live = place(root, &pod, &traits)?;
        let containers = live.containers.values().map(|container| &container.path);
        for path in [&live.path].into_iter().chain(containers) {
            make_with_parents(on, root, path)?;
        }
        let handles = PodHandles::open(on, &live)?;
        let created = hierarchy(&pod, &[], &traits).created().tree;
        if let Some(class) = live.path.parent() {
            give_class_weight(&Cgroup::open(on, &class)?, &created)?;
        }
        for (target, cgroup) in handles.iter() {
            for setting in created.get(&target).into_iter().flat_map(Settings::iter) {
                cgroup.write(setting).map(drop)?;
            }
        }
        Ok(Self {
            pod,
            traits,
            path: live.path,
            handles,
        })
    }

    /// What every file holds now.
    pub(super) fn read(&self) -> Result<PodTree, DemoError> {
        Ok(self.handles.read()?)
    }

    /// A container's cgroup.
    pub(super) fn container(&self, name: &str) -> Result<&CgroupDir, DemoError> {
        let cgroup = self.handles.get(&Target::Container(name.to_owned()));
        cgroup
            .map(Cgroup::outer)
            .ok_or_else(|| DemoError::Unexpected(format!("no container {name}")))
    }

    /// Every directory, with the name of its container.
    pub(super) fn directories(&self) -> impl Iterator<Item = (String, &Path)> {
        self.handles.iter().flat_map(|(target, cgroup)| {
            let name = match target {
                Target::Pod => "pod".to_owned(),
                Target::Container(name) => name,
            };
            Controller::ALL.map(|controller| (name.clone(), cgroup.outer().directory(controller)))
        })
    }

    /// How much memory a container uses now.
    pub(super) fn memory_in_use(&self, name: &str) -> Result<Bytes, DemoError> {
        Ok(self.container(name)?.memory_usage()?)
    }
}

/// Where the pod's cgroups belong.
fn place(root: &CgroupPath, pod: &Pod, traits: &NodeTraits) -> Result<LivePod, DemoError> {
    let path = pod_cgroup_path(traits.driver, root.as_str(), pod.qos_class(), pod.cgroup_uid());
    let path = CgroupPath::new(&path).map_err(|error| DemoError::Unexpected(error.to_string()))?;
    let mut containers = BTreeMap::new();
    for status in &pod.status.container_statuses {
        let id = status.container_id.trim_start_matches("containerd://").to_owned();
        let path = child(&path, &container_cgroup_name(traits.driver, traits.runtime, &id))?;
        containers.insert(status.name.clone(), LiveContainer { id, path });
    }
    let id = PodId {
        uid: pod.cgroup_uid().to_owned(),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
    };
    Ok(LivePod { id, path, containers })
}

/// v2: whether the top cgroup hands the controllers down. Changing that would change the machine.
pub(super) fn check_delegation(on: &Hierarchy) -> Result<(), DemoError> {
    if on.version() == CgroupVersion::V1 {
        return Ok(());
    }
    let mount = on.mount(Controller::Cpu);
    let file = mount.join("cgroup.subtree_control");
    let handed_down = fs::read_to_string(&file).map_err(DemoError::file("read", &file))?;
    let has = |controller: Controller| handed_down.split_whitespace().any(|name| name == controller.name());
    let missing: Vec<String> = Controller::ALL
        .into_iter()
        .filter(|controller| !has(*controller))
        .map(|missing| format!("+{missing}"))
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(DemoError::NotDelegated {
            mount: mount.to_owned(),
            missing: missing.join(" "),
        })
    }
}

/// Makes a cgroup below `root` with those in between, `root` included. Parents hand the controllers down.
fn make_with_parents(on: &Hierarchy, root: &CgroupPath, path: &CgroupPath) -> Result<(), DemoError> {
    let mut next = root.clone();
    make(on, &next)?;
    for name in path.below(root).unwrap_or_default().split('/') {
        if on.version() == CgroupVersion::V2 {
            let file = next.under(on.mount(Controller::Cpu)).join("cgroup.subtree_control");
            fs::write(&file, "+cpu +memory").map_err(DemoError::file("hand controllers down", &file))?;
        }
        next = child(&next, name)?;
        make(on, &next)?;
    }
    Ok(())
}

fn make(on: &Hierarchy, path: &CgroupPath) -> Result<(), DemoError> {
    for directory in mounts(on).iter().map(|mount| path.under(mount)) {
        match fs::create_dir(&directory) {
            Err(source) if source.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(DemoError::Make {
                    path: directory,
                    source,
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// The kubelet gives a class the cpu requests of all its pods together: here, of the only one.
fn give_class_weight(class: &Cgroup, pod: &PodTree) -> Result<(), DemoError> {
    let weight = |setting: &Setting| matches!(setting, Setting::CpuShares(_) | Setting::CpuWeight(_));
    pod.pod
        .iter()
        .filter(weight)
        .try_for_each(|setting| Ok(class.write(setting).map(drop)?))
}
