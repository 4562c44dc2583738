//! One killed process, as the kernel's log describes it.

use crate::cgroup::{Place, PodPlace};
use crate::model::{CgroupPath, ContainerId};

pub use super::proto::Level;
use super::report::ReportedMemory;

/// One killed process, with everything that the kernel's lines say about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kill {
    /// Its id in the host's pid namespace.
    pub pid: u32,
    /// The name of its command: at most 15 bytes that the process chose, possibly none.
    pub comm: String,
    pub limit: Limit,
    /// Its cgroup; `None` when the kernel did not say. The other victims of a group kill were in the group or below, so
    /// they have the group here.
    pub task_cgroup: Option<CgroupPath>,
    /// The cgroup with `memory.oom.group` set that the kernel killed as a whole. The log names the group of the first
    /// victim only after that kill, see [`Event::Again`](super::Event::Again).
    pub group: Option<CgroupPath>,
    /// Usage and limit of the cgroup whose limit was hit; `None` when the kernel did not say, or the
    /// node had no memory left.
    pub usage: Option<LimitUsage>,
    pub memory: ReportedMemory,
    /// `oom_score_adj`, since Linux 5.4.
    pub oom_score_adj: Option<i32>,
    /// Its user, since Linux 5.4.
    pub uid: Option<u32>,
    /// The task that allocated, or that lowered a limit, by its id in the host's pid namespace. A task that writes
    /// `memory.max` needs memory of that cgroup, too.
    pub invoker: Option<u32>,
    /// The number of the record with the kill.
    pub seq: Option<u64>,
    /// The time of that record, in microseconds of the kernel's clock since boot.
    pub timestamp_us: Option<u64>,
}

/// The cgroup whose limit was hit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Limit {
    Cgroup(CgroupPath),
    /// No limit: the node had no memory left, or none in the part of it that a cpuset or memory policy allows.
    Node,
    /// The kernel held the report back (it prints ten in five seconds), or the log lost it.
    #[default]
    Unknown,
}

/// Usage and limit of a cgroup when its limit was hit, in bytes. The kernel logs both in kibibytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitUsage {
    pub usage: u64,
    pub limit: u64,
}

impl Level {
    /// All levels, the unspecified one first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..).map_while(|level| Self::try_from(level).ok())
    }

    /// The level of a cgroup with this place.
    pub(super) fn of(cgroup: &CgroupPath, place: Option<&Place>) -> Self {
        match place {
            _ if *cgroup == CgroupPath::root() => Self::Node,
            Some(Place::Container { .. }) => Self::Container,
            Some(Place::Pod(_)) => Self::Pod,
            Some(Place::Qos(_)) => Self::Qos,
            Some(Place::Kubepods) => Self::Kubepods,
            Some(Place::Other(_)) | None => Self::Other,
        }
    }
}

impl Limit {
    /// The level of this limit.
    pub fn level(&self) -> Level {
        match self {
            Self::Cgroup(path) => Level::of(path, Place::parse(path).as_ref()),
            Self::Node => Level::Node,
            Self::Unknown => Level::Unspecified,
        }
    }

    /// The cgroup with this limit.
    pub const fn cgroup(&self) -> Option<&CgroupPath> {
        match self {
            Self::Cgroup(path) => Some(path),
            Self::Node | Self::Unknown => None,
        }
    }
}

impl Kill {
    /// The pod and container of the process, from the names of cgroups. The kernel shows `/` for a task that was
    /// already exiting. Then the cgroup whose limit was hit stands in: the victim was in that one or below.
    pub fn victim(&self) -> (Option<PodPlace>, Option<ContainerId>) {
        let task = self.task_cgroup.as_ref().filter(|path| **path != CgroupPath::root());
        pod_and_container(task.or_else(|| self.limit.cgroup()).and_then(Place::parse))
    }
}

/// The pod and the container of a cgroup with this place.
pub(super) fn pod_and_container(place: Option<Place>) -> (Option<PodPlace>, Option<ContainerId>) {
    match place {
        Some(Place::Container { pod, id }) => (Some(pod), Some(id)),
        Some(Place::Pod(pod) | Place::Other(pod)) => (Some(pod), None),
        Some(Place::Kubepods | Place::Qos(_)) | None => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77";

    fn level(path: &str) -> Level {
        Limit::Cgroup(CgroupPath::new(path).unwrap()).level()
    }

    #[test]
    fn the_level_comes_from_the_limits_cgroup() {
        let id = "a1".repeat(32);
        assert_eq!(level(&format!("/kubepods/burstable/pod{UID}/{id}")), Level::Container);
        assert_eq!(
            level(&format!("/kubepods/pod{UID}/crio-{id}.scope/container")),
            Level::Container
        );
        assert_eq!(level(&format!("/kubepods/pod{UID}")), Level::Pod);
        assert_eq!(level("/kubepods.slice/kubepods-besteffort.slice"), Level::Qos);
        assert_eq!(level("/kubelet/kubepods"), Level::Kubepods);
        assert_eq!(level("/system.slice/ssh.service"), Level::Other);
        assert_eq!(level(&format!("/kubepods/pod{UID}/crio-conmon-{id}")), Level::Other);
        assert_eq!(level("/"), Level::Node);
        assert_eq!(Limit::Node.level(), Level::Node);
        assert_eq!(Limit::Unknown.level(), Level::Unspecified);
    }

    #[test]
    fn an_exiting_task_is_found_by_its_limit() {
        let id = "a1".repeat(32);
        let path = |text: &str| CgroupPath::new(text).unwrap();
        let mut kill = Kill {
            pid: 7,
            comm: String::new(),
            limit: Limit::Cgroup(path(&format!("/kubepods/pod{UID}/{id}"))),
            task_cgroup: Some(CgroupPath::root()),
            group: None,
            usage: None,
            memory: ReportedMemory::default(),
            oom_score_adj: None,
            uid: None,
            invoker: None,
            seq: None,
            timestamp_us: None,
        };
        let (pod, container) = kill.victim();
        assert_eq!((pod.unwrap().uid.as_str(), container.unwrap().as_str()), (UID, &*id));
        kill.task_cgroup = Some(path("/elsewhere"));
        assert_eq!(kill.victim(), (None, None));
    }
}
