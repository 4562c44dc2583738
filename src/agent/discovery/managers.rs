//! Reads the policies of the kubelet's CPU and memory managers from their checkpoints, or infers them from cgroups.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;

use crate::cgroup::{Hierarchy, PodEntry};
use crate::decide::StaticManagers;
use crate::model::{CgroupPath, CgroupVersion, QosClass, Resource};

/// The needed part of a checkpoint.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicyCheckpoint {
    policy_name: String,
}

/// Reads both checkpoints from the kubelet's directory, and the cgroups of Guaranteed pods where the CPU manager's
/// checkpoint does not name a static policy.
pub(super) fn static_managers(
    kubelet_dir: &Path,
    hierarchy: &Hierarchy,
    scanned: &[PodEntry],
    problems: &mut Vec<String>,
) -> StaticManagers {
    let mut is_static = |file: &str| {
        let path = kubelet_dir.join(file);
        let read = fs::read(&path).and_then(|text| Ok(serde_json::from_slice::<PolicyCheckpoint>(&text)?));
        if let Err(error) = &read
            && !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
        {
            let path = path.display();
            problems.push(format!(
                "{path}: {error}; pods with processors or memory of their own are not recognized"
            ));
        }
        read.is_ok_and(|checkpoint| checkpoint.policy_name.eq_ignore_ascii_case("static"))
    };
    StaticManagers {
        cpu: is_static("cpu_manager_state") || assigns_processors(hierarchy, scanned),
        memory: is_static("memory_manager_state"),
    }
}

/// Whether a container of a Guaranteed pod has other processors than its pod: only a static policy does that.
fn assigns_processors(hierarchy: &Hierarchy, scanned: &[PodEntry]) -> bool {
    let mount = hierarchy.mount(Resource::Cpu);
    let mount = match hierarchy.version() {
        CgroupVersion::V1 => mount.with_file_name("cpuset"),
        CgroupVersion::V2 => mount.to_owned(),
    };
    let processors = |path: &CgroupPath| fs::read_to_string(path.under(&mount).join("cpuset.cpus")).unwrap_or_default();
    let guaranteed = scanned.iter().filter(|pod| pod.place.qos == Some(QosClass::Guaranteed));
    let mut containers = guaranteed.flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)));
    containers.any(|(pod, container)| {
        let own = processors(&container.path);
        !own.trim().is_empty() && own != processors(&pod.path)
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
    fn processors_of_a_containers_own_show_the_static_policy() {
        for (processors, assigned) in [("2-3", true), ("", false)] {
            let root = tempfile::tempdir().unwrap();
            let (hierarchy, scanned) = tree(root.path(), processors);
            assert_eq!(assigns_processors(&hierarchy, &scanned), assigned, "{processors:?}");
        }
    }

    #[test]
    fn policies_are_as_the_checkpoints_name_them() {
        let directory = tempfile::tempdir().unwrap();
        let (hierarchy, scanned) = tree(directory.path(), "");
        let look = || {
            let mut problems = Vec::new();
            let managers = static_managers(directory.path(), &hierarchy, &scanned, &mut problems);
            (managers, problems)
        };
        assert_eq!(look(), (StaticManagers::default(), Vec::new()));
        let write = |file: &str, text: &str| fs::write(directory.path().join(file), text).unwrap();
        write(
            "cpu_manager_state",
            r#"{"policyName":"static","defaultCpuSet":"0-1","entries":{"u":{"app":"2-3"}},"checksum":1}"#,
        );
        write(
            "memory_manager_state",
            r#"{"policyName":"None","machineState":{},"checksum":2}"#,
        );
        let cpu = StaticManagers {
            cpu: true,
            memory: false,
        };
        assert_eq!(look(), (cpu, Vec::new()));
        write("memory_manager_state", r#"{"policyName":"Static","checksum":2}"#);
        assert!(look().0.memory);
        write("cpu_manager_state", "{");
        let (managers, problems) = look();
        assert!(!managers.cpu);
        assert!(problems[0].contains("cpu_manager_state"), "{problems:?}");
    }
}
