//! The paths of a pod's cgroups.
//!
//! Input: the driver, the runtime, the class and the ids. Output: the paths that the kubelet and the runtime would make, below
//! a controller's mount (v1) or the unified mount (v2). Discovery finds the paths that a node really has. Nothing here reads
//! a file system.

use crate::model::{Driver, QosClass, RuntimeKind};

/// The path of a pod's cgroup, below `root` (the kubelet's `--cgroup-root`; `/` unless configured).
///
/// `NewCgroupName`, `ToSystemd` and `ToCgroupfs` (kubernetes `pkg/kubelet/cm/cgroup_manager_linux.go`).
pub fn pod_cgroup_path(driver: Driver, root: &str, qos: QosClass, uid: &str) -> String {
    let class = match qos {
        QosClass::Guaranteed => None,
        QosClass::Burstable => Some("burstable"),
        QosClass::BestEffort => Some("besteffort"),
    };
    let pod = format!("pod{uid}");
    let parts = root
        .split('/')
        .filter(|part| !part.is_empty())
        .chain(["kubepods"])
        .chain(class)
        .chain([pod.as_str()]);
    match driver {
        Driver::Cgroupfs => parts.fold(String::new(), |path, part| path + "/" + part),
        Driver::Systemd => slice_path(parts),
    }
}

/// A slice's path names every slice above it (systemd.slice(5)). Dashes separate the levels, so dashes
/// within a level become underscores.
fn slice_path<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut unit = String::new();
    parts.fold(String::new(), |path, part| {
        let separator = if unit.is_empty() { "" } else { "-" };
        unit += &format!("{separator}{}", part.replace('-', "_"));
        format!("{path}/{unit}.slice")
    })
}

/// The name of a container's cgroup in its pod's.
///
/// A runtime may keep the processes one level further down (crun under systemd: `container`).
pub fn container_cgroup_name(driver: Driver, runtime: RuntimeKind, id: &str) -> String {
    match (driver, runtime) {
        (Driver::Systemd, RuntimeKind::Containerd) => format!("cri-containerd-{id}.scope"),
        (Driver::Systemd, RuntimeKind::Docker) => format!("docker-{id}.scope"),
        (Driver::Systemd, RuntimeKind::Crio) => format!("crio-{id}.scope"),
        (Driver::Cgroupfs, RuntimeKind::Crio) => format!("crio-{id}"),
        (Driver::Cgroupfs, RuntimeKind::Containerd | RuntimeKind::Docker) => id.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6c4b2d1e-58ff-4d36-9d5c-0a6f4c9f2a11";

    #[test]
    fn cgroupfs_keeps_the_uid_as_it_is() {
        let path = |qos| pod_cgroup_path(Driver::Cgroupfs, "/", qos, UID);
        assert_eq!(path(QosClass::Guaranteed), format!("/kubepods/pod{UID}"));
        assert_eq!(path(QosClass::Burstable), format!("/kubepods/burstable/pod{UID}"));
        assert_eq!(path(QosClass::BestEffort), format!("/kubepods/besteffort/pod{UID}"));
    }

    #[test]
    fn systemd_slices_name_every_level_above_them() {
        assert_eq!(
            pod_cgroup_path(Driver::Systemd, "", QosClass::Burstable, "1234-ab-cd"),
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_ab_cd.slice"
        );
        assert_eq!(
            pod_cgroup_path(Driver::Systemd, "/", QosClass::Guaranteed, "1234-ab-cd"),
            "/kubepods.slice/kubepods-pod1234_ab_cd.slice"
        );
    }

    #[test]
    fn a_kubelet_in_a_container_has_its_own_root() {
        assert_eq!(
            pod_cgroup_path(Driver::Cgroupfs, "/kubelet", QosClass::BestEffort, "u"),
            "/kubelet/kubepods/besteffort/podu"
        );
        assert_eq!(
            pod_cgroup_path(Driver::Systemd, "/kubelet", QosClass::BestEffort, "u"),
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-podu.slice"
        );
    }

    #[test]
    fn container_names_follow_driver_and_runtime() {
        let names = [
            (Driver::Cgroupfs, RuntimeKind::Containerd, "0a1b"),
            (Driver::Cgroupfs, RuntimeKind::Docker, "0a1b"),
            (Driver::Cgroupfs, RuntimeKind::Crio, "crio-0a1b"),
            (Driver::Systemd, RuntimeKind::Containerd, "cri-containerd-0a1b.scope"),
            (Driver::Systemd, RuntimeKind::Docker, "docker-0a1b.scope"),
            (Driver::Systemd, RuntimeKind::Crio, "crio-0a1b.scope"),
        ];
        for (driver, runtime, name) in names {
            assert_eq!(container_cgroup_name(driver, runtime, "0a1b"), name);
        }
    }
}
