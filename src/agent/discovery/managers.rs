//! Reads the policies of the kubelet's CPU and memory managers from their checkpoints, or infers them from cgroups, as it does
//! whether containers may swap.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::Deserialize;

use crate::cgroup::{Cgroup, Hierarchy, PodEntry};
use crate::config::Config;
use crate::decide::NodePolicies;
use crate::model::{CgroupPath, CgroupVersion, MemoryLimit, QosClass, Resource};

/// The needed part of a checkpoint.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicyCheckpoint {
    policy_name: String,
}

/// The policy in a checkpoint of the kubelet's directory.
fn policy(kubelet_dir: &Path, file: &str) -> io::Result<String> {
    let text = fs::read(kubelet_dir.join(file))?;
    Ok(serde_json::from_slice::<PolicyCheckpoint>(&text)?.policy_name)
}

/// Reads both checkpoints from the kubelet's directory, and the cgroups of Guaranteed pods where the CPU manager's
/// checkpoint does not name a static policy. A policy that cannot be read may be static.
///
/// No policy is static where there is no kubelet: no directory of one, and no API server that it would serve. Kubelets
/// before 1.22 have no memory manager, and only the checkpoint of the other one.
pub(super) fn policies(
    config: &Config,
    hierarchy: &Hierarchy,
    scanned: &[PodEntry],
    problems: &mut Vec<String>,
) -> NodePolicies {
    let directory = &config.kubelet_dir;
    if !config.source.has_cluster() && !directory.exists() {
        return NodePolicies::default();
    }
    let limited_swap = limits_swap(hierarchy, scanned);
    let cpu = policy(directory, "cpu_manager_state");
    let memory = match policy(directory, "memory_manager_state") {
        Err(error) if error.kind() == ErrorKind::NotFound && cpu.is_ok() => Ok(String::new()),
        read => read,
    };
    let mut may_be_static = |file: &str, resource: &str, policy: io::Result<String>| match policy {
        Ok(name) => name.eq_ignore_ascii_case("static"),
        Err(error) => {
            let path = directory.join(file);
            let path = path.display();
            problems.push(format!(
                "{path}: {error}; the kubelet may have assigned {resource}, which stays as it is: make the file readable here, or set \
                 kubeletDir"
            ));
            true
        }
    };
    NodePolicies {
        limited_swap,
        static_cpu: may_be_static("cpu_manager_state", "processors to Guaranteed pods", cpu)
            || assigns_processors(hierarchy, scanned),
        static_memory: may_be_static("memory_manager_state", "memory to Guaranteed pods", memory),
    }
}

/// Whether a container of a Guaranteed pod has other processors than its pod: only a static policy does that.
fn assigns_processors(hierarchy: &Hierarchy, scanned: &[PodEntry]) -> bool {
    let mount = hierarchy.mount(Resource::Cpu);
    let cpuset = mount.with_file_name("cpuset");
    let mount = hierarchy.version().v1_or_v2(&*cpuset, mount);
    let processors = |path: &CgroupPath| fs::read_to_string(path.under(mount).join("cpuset.cpus")).unwrap_or_default();
    let guaranteed = scanned.iter().filter(|pod| pod.place.qos == Some(QosClass::Guaranteed));
    let mut containers = guaranteed.flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)));
    containers.any(|(pod, container)| {
        let own = processors(&container.path);
        !own.trim().is_empty() && own != processors(&pod.path)
    })
}

/// Whether a container has a part of the node's swap: only `LimitedSwap` gives one. Other kubelets leave none, or all. From 1.18 crun
/// has systemd allow the scope as much swap as memory, and the container's part in its inner cgroup.
fn limits_swap(hierarchy: &Hierarchy, scanned: &[PodEntry]) -> bool {
    let burstable = scanned.iter().filter(|pod| pod.place.qos == Some(QosClass::Burstable));
    hierarchy.version() == CgroupVersion::V2
        && burstable.flat_map(|pod| &pod.containers).any(|container| {
            let cgroup = Cgroup::open(hierarchy, &container.path);
            let limit = cgroup.and_then(|cgroup| cgroup.swap_limit());
            limit.is_ok_and(|limit| matches!(limit, MemoryLimit::Bytes(1..)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Kubepods;

    /// A Guaranteed pod of one container with these processors, on plain files.
    fn tree(root: &Path, processors: &str) -> (Hierarchy, Vec<PodEntry>) {
        let pod = "kubepods/pod0a1b2c3d-0000-4000-8000-000000000041";
        let container = root.join(pod).join("a".repeat(64));
        fs::create_dir_all(&container).unwrap();
        for directory in container.ancestors().take(4) {
            fs::write(directory.join("cgroup.controllers"), "cpu memory\n").unwrap();
            fs::write(directory.join("cpuset.cpus"), "\n").unwrap();
        }
        fs::write(container.join("cpuset.cpus"), format!("{processors}\n")).unwrap();
        let hierarchy = Hierarchy::of_tree(root).unwrap();
        let kubepods = Kubepods::at(CgroupPath::new("/kubepods").unwrap()).unwrap();
        let scanned = kubepods.scan(&hierarchy).unwrap();
        assert_eq!(scanned[0].containers.len(), 1);
        (hierarchy, scanned)
    }

    #[test]
    fn exclusive_processors_show_the_static_policy() {
        for (processors, assigned) in [("2-3", true), ("", false)] {
            let root = tempfile::tempdir().unwrap();
            let (hierarchy, mut scanned) = tree(root.path(), processors);
            assert_eq!(assigns_processors(&hierarchy, &scanned), assigned, "{processors:?}");
            scanned[0].place.qos = Some(QosClass::Burstable);
            assert!(
                !assigns_processors(&hierarchy, &scanned),
                "only Guaranteed pods are assigned any"
            );
            scanned[0].place.qos = Some(QosClass::Guaranteed);
            let of_pod = scanned[0].path.under(hierarchy.mount(Resource::Cpu));
            fs::write(of_pod.join("cpuset.cpus"), format!("{processors}\n")).unwrap();
            assert!(!assigns_processors(&hierarchy, &scanned), "they are the pod's");
        }
    }

    /// A directory for the checkpoints and the tree of a pod.
    struct Node {
        directory: tempfile::TempDir,
        hierarchy: Hierarchy,
        scanned: Vec<PodEntry>,
    }

    impl Node {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let (hierarchy, scanned) = tree(&directory.path().join("cgroup"), "");
            Self {
                directory,
                hierarchy,
                scanned,
            }
        }

        fn write(&self, file: &str, text: &str) {
            fs::create_dir_all(self.directory.path().join("kubelet")).unwrap();
            fs::write(self.directory.path().join("kubelet").join(file), text).unwrap();
        }

        /// Whether the managers of cpu and of memory are static, and the problems.
        fn managers(&self, source: &str) -> ([bool; 2], Vec<String>) {
            let directory = self.directory.path().join("kubelet");
            let directory = format!("--kubelet-dir={}", directory.display());
            let config = crate::config::tests::load(&[source, &directory, "--node-name=n"]).unwrap();
            let mut problems = Vec::new();
            let policies = policies(&config, &self.hierarchy, &self.scanned, &mut problems);
            ([policies.static_cpu, policies.static_memory], problems)
        }
    }

    const CLUSTER: &str = "--source=kubernetes";
    const MANIFESTS: &str = "--source=directory";

    #[test]
    fn policies_are_as_the_checkpoints_name_them() {
        let node = Node::new();
        node.write(
            "cpu_manager_state",
            r#"{"policyName":"static","defaultCpuSet":"0-1","entries":{"u":{"app":"2-3"}},"checksum":1}"#,
        );
        node.write(
            "memory_manager_state",
            r#"{"policyName":"None","machineState":{},"checksum":2}"#,
        );
        for source in [CLUSTER, MANIFESTS] {
            assert_eq!(node.managers(source), ([true, false], Vec::new()));
        }
        node.write("memory_manager_state", r#"{"policyName":"Static","checksum":2}"#);
        node.write("cpu_manager_state", r#"{"policyName":"none","checksum":1}"#);
        assert_eq!(node.managers(CLUSTER), ([false, true], Vec::new()));
    }

    #[test]
    fn a_policy_that_cannot_be_read_may_be_static() {
        let node = Node::new();
        let (managers, problems) = node.managers(CLUSTER);
        assert_eq!((managers, problems.len()), ([true, true], 2), "{problems:?}");
        assert!(problems[0].contains("cpu_manager_state: No such file"), "{problems:?}");
        node.write("memory_manager_state", r#"{"policyName":"None"}"#);
        for unreadable in ["{", r#"{"policyName":1}"#] {
            node.write("cpu_manager_state", unreadable);
            let (managers, problems) = node.managers(MANIFESTS);
            assert_eq!((managers, problems.len()), ([true, false], 1), "{problems:?}");
            assert!(problems[0].contains("set kubeletDir"), "{problems:?}");
        }
    }

    #[test]
    fn without_a_kubelet_nothing_is_assigned() {
        assert_eq!(Node::new().managers(MANIFESTS), ([false, false], Vec::new()));
    }

    #[test]
    fn a_part_of_the_swap_shows_limited_swap() {
        for (swap, limited) in [("65536\n", true), ("0\n", false), ("max\n", false)] {
            let root = tempfile::tempdir().unwrap();
            let (hierarchy, mut scanned) = tree(root.path(), "");
            let mount = hierarchy.mount(Resource::Memory);
            fs::write(scanned[0].containers[0].path.under(mount).join("memory.swap.max"), swap).unwrap();
            assert!(
                !limits_swap(&hierarchy, &scanned),
                "Guaranteed pods have no swap of their own"
            );
            scanned[0].place.qos = Some(QosClass::Burstable);
            assert_eq!(limits_swap(&hierarchy, &scanned), limited, "{swap:?}");
        }
    }

    #[test]
    fn the_swap_of_cruns_inner_cgroup_counts() {
        let root = tempfile::tempdir().unwrap();
        let (hierarchy, mut scanned) = tree(root.path(), "");
        scanned[0].place.qos = Some(QosClass::Burstable);
        let scope = scanned[0].path.child("crio-a.scope").unwrap();
        let outer = scope.under(hierarchy.mount(Resource::Memory));
        let inner = outer.join("container");
        fs::create_dir_all(&inner).unwrap();
        scanned[0].containers[0].path = scope;
        for (of_scope, of_container, limited) in [
            ("67108864\n", "0\n", false),
            ("67108864\n", "65536\n", true),
            ("max\n", "65536\n", true),
            ("max\n", "max\n", false),
        ] {
            fs::write(outer.join("memory.swap.max"), of_scope).unwrap();
            fs::write(inner.join("memory.swap.max"), of_container).unwrap();
            let found = limits_swap(&hierarchy, &scanned);
            assert_eq!(found, limited, "{of_scope:?} {of_container:?}");
        }
    }

    #[test]
    fn old_kubelets_have_one_checkpoint() {
        let node = Node::new();
        node.write("cpu_manager_state", r#"{"policyName":"none"}"#);
        assert_eq!(node.managers(CLUSTER), ([false, false], Vec::new()));
    }
}
