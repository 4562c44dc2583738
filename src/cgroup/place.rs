//! The meaning of a cgroup path in a Kubernetes node's tree.
//!
//! In comes a path; out comes its level, with the pod's UID, its QoS class and the container's id. Parses the names of the
//! kubelet (`pkg/kubelet/cm/cgroup_manager_linux.go`), of containerd, CRI-O (with crun's inner cgroup) and Docker, under both
//! drivers, however deep the kubelet's own root is nested. Touches no file.

use super::kubepods::driver_of;
use crate::model::objects::PodUid;
use crate::model::{CgroupPath, ContainerId, QosClass, is_hex_digit};

/// A level of the kubelet's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The root of all pods.
    Kubepods,
    /// The parent of all burstable or all best-effort pods. The parent of all system pods (KEP-5894) counts
    /// as that of Guaranteed pods.
    Qos(QosClass),
    Pod(PodPlace),
    /// A container, a sandbox, or a cgroup inside one: a sandbox's path looks like a container's.
    Container {
        pod: PodPlace,
        id: ContainerId,
    },
    /// Another cgroup inside a pod, such as CRI-O's `crio-conmon-<id>.scope`.
    Other(PodPlace),
}

/// A pod's names in a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPlace {
    pub uid: PodUid,
    /// The pod's class, if the path shows it.
    pub qos: Option<QosClass>,
}

impl Place {
    /// Parses any path, such as one from a kernel message. The first pod in the path counts: what a container makes inside
    /// its own cgroup is of that pod, whatever its name.
    pub fn parse(path: &CgroupPath) -> Option<Self> {
        Self::parse_below(&CgroupPath::root(), path)
    }

    /// Parses a path below a known root of all pods. The first pod below the root counts, so that no container can pose as
    /// another pod by the names of cgroups that it makes inside its own.
    pub fn parse_below(kubepods: &CgroupPath, path: &CgroupPath) -> Option<Self> {
        path.below(kubepods)?;
        let segments: Vec<&str> = path.segments().collect();
        let root = kubepods.segments().count();
        let first = (root..segments.len()).find_map(|at| Some((at, pod_of(segments[at])?)));
        let Some((at, (uid, class_in_name, joined_container))) = first else {
            return level_above_pods(&segments);
        };
        let pod = PodPlace {
            uid,
            qos: class_in_name.or_else(|| class_below(segments[at.checked_sub(1)?])),
        };
        let Some(container) = joined_container.or_else(|| segments.get(at + 1).copied()) else {
            return Some(Self::Pod(pod));
        };
        Some(match container_of(container) {
            Some(id) => Self::Container { pod, id },
            None => Self::Other(pod),
        })
    }
}

/// Splits a pod's segment: `pod<uid>`, `…kubepods-burstable-pod<uid_>.slice`, or, where the kubelet uses systemd and the
/// runtime does not, `<slice>:<runtime>:<id>`. Returns the UID, the class in the name, and the container in the name.
fn pod_of(segment: &str) -> Option<(PodUid, Option<QosClass>, Option<&str>)> {
    let (name, container) = match segment.split_once(':') {
        Some((slice, container)) => (slice, Some(container)),
        None => (segment, None),
    };
    let stem = name.strip_suffix(".slice").unwrap_or(name);
    let (parent, uid) = stem.rsplit_once("pod")?;
    let uid = uid_in_cgroup_name(uid)?;
    let class = match parent.strip_suffix('-') {
        Some(parent) => class_below_slice(parent),
        None if parent.is_empty() => None,
        None => return None,
    };
    Some((uid, class, container))
}

/// The class of the pods directly below the cgroup with this name, if it is a parent of pods.
fn class_below(segment: &str) -> Option<QosClass> {
    match segment.strip_suffix(".slice") {
        Some(stem) => class_below_slice(stem),
        None => class_named(segment),
    }
}

/// As [`class_below`], for the name of a slice without `.slice`. A slice's name begins with the names of its ancestors.
fn class_below_slice(stem: &str) -> Option<QosClass> {
    let (around, name) = stem.rsplit_once('-').unwrap_or(("", stem));
    let in_kubepods = around == "kubepods" || around.ends_with("-kubepods");
    class_named(name).filter(|_| in_kubepods || name == "kubepods")
}

fn class_named(name: &str) -> Option<QosClass> {
    Some(match name {
        // System pods have a subtree of their own (KEP-5894), and count as Guaranteed.
        "kubepods" | "system" => QosClass::Guaranteed,
        "burstable" => QosClass::Burstable,
        "besteffort" => QosClass::BestEffort,
        _ => return None,
    })
}

fn level_above_pods(segments: &[&str]) -> Option<Place> {
    let name = segments.last()?;
    if driver_of(name).is_some() {
        return Some(Place::Kubepods);
    }
    let in_kubepods = name.ends_with(".slice") || segments.iter().rev().nth(1) == Some(&"kubepods");
    class_below(name).filter(|_| in_kubepods).map(Place::Qos)
}

/// The container of a segment: an id, after a runtime's name joined by `-` or `:`, with or without `.scope`.
fn container_of(segment: &str) -> Option<ContainerId> {
    let stem = segment.strip_suffix(".scope").unwrap_or(segment);
    match stem.rsplit_once(['-', ':']) {
        Some(("cri-containerd" | "crio" | "docker" | "libpod", id)) => ContainerId::parse(id),
        Some(_) => None,
        None => ContainerId::parse(stem),
    }
}

/// The UID of a pod in a cgroup's name, where systemd's rules turn dashes into underscores.
pub fn uid_in_cgroup_name(text: &str) -> Option<PodUid> {
    let is_uid = match text.len() {
        32 => text.bytes().all(is_hex_digit),
        36 => text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => matches!(byte, b'-' | b'_'),
            _ => is_hex_digit(byte),
        }),
        _ => false,
    };
    is_uid.then(|| text.replace('_', "-").into())
}

#[cfg(test)]
mod tests;
