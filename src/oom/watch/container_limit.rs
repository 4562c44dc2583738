//! Decides whether a container stood at its own limit when the kernel enforced the limit of its pod. Pure except for
//! the files behind [`NodeIo`].
//!
//! A pod's limit is the sum of its containers' limits, and its sandbox uses some memory of it. So a container that uses
//! up its own limit brings its pod to the pod's limit a little earlier: in a pod of one container always. The
//! container's usage at that moment is the pod's usage less the usage of everything else in the pod now: only the
//! victim's container has lost memory since.

use super::node::NodeIo;
use super::pod_names::PodNames;
use crate::model::CgroupPath;
use crate::oom::kill::{Kill, Level};
use crate::oom::report::HitLimit;

/// A container stands at its limit if at most this fraction of the limit is free: the kernel charges
/// in batches for each CPU.
const SHARE: u64 = 25;
/// The same amount in bytes, for small limits.
const LEAST: u64 = 1 << 20;

/// The limit of the container that lost a process, if the container stood at that limit when the kernel killed at the
/// pod's limit. `is_live` says that the kill happened just now, so that the files still tell the usage.
pub(super) fn container_limit(
    kill: &Kill,
    cgroup: &CgroupPath,
    names: &PodNames,
    files: &impl NodeIo,
    is_live: bool,
) -> Option<HitLimit> {
    let pod = kill.limit.cgroup().filter(|pod| names.level(pod) == Level::Pod)?;
    let container = container_in(pod, cgroup)?;
    // A group that is larger than the container frees memory of other containers, too.
    if kill
        .group
        .as_ref()
        .is_some_and(|group| group.below(&container).is_none())
    {
        return None;
    }
    let pod_limit = kill.usage.map(|usage| usage.limit);
    let pod_limit = pod_limit.or_else(|| files.memory(pod)?.limit_bytes)?;
    let pod_usage = kill.usage.map_or(pod_limit, |usage| usage.usage);
    let is_only = names.is_only_container(pod, &container);
    let Some(memory) = files.memory(&container) else {
        // The runtime has removed the container's cgroup. The pod's usage was that of its only container.
        return is_only.then(|| HitLimit {
            cgroup: Some(container.to_string()),
            usage_bytes: Some(pod_usage),
            ..HitLimit::default()
        });
    };
    let limit = memory.limit_bytes.filter(|limit| *limit <= pod_limit)?;
    // The usage long after the kill, or after the end of the pod, tells nothing about the moment of the kill.
    let read = is_live.then(|| other_usage(pod, &container, names, files));
    let Some((others, sandbox)) = read.filter(|_| files.memory(pod).is_some()) else {
        let usage_bytes = None;
        return (is_only && limit == pod_limit).then_some(HitLimit { usage_bytes, ..memory });
    };
    let used = pod_usage.saturating_sub(others);
    let free = sandbox.saturating_add(LEAST.max(limit / SHARE));
    (used.saturating_add(free) >= limit).then_some(HitLimit {
        usage_bytes: Some(used),
        ..memory
    })
}

/// The cgroup directly in the pod's that holds this one.
fn container_in(pod: &CgroupPath, cgroup: &CgroupPath) -> Option<CgroupPath> {
    let name = cgroup.below(pod)?.split('/').find(|name| !name.is_empty())?;
    pod.child(name).ok()
}

/// The usage in bytes of a pod's other cgroups, and of those among them that are no containers. The latter is 0 while
/// the agent does not know the containers.
fn other_usage(pod: &CgroupPath, container: &CgroupPath, names: &PodNames, files: &impl NodeIo) -> (u64, u64) {
    let (mut all, mut sandbox) = (0_u64, 0_u64);
    for other in files.children(pod).into_iter().filter(|other| other != container) {
        let Some(memory) = files.memory(&other) else { continue };
        let usage = memory.usage_bytes.unwrap_or(0);
        all = all.saturating_add(usage);
        if memory.limit_bytes.is_none() && names.container(container).is_some() && names.container(&other).is_none() {
            sandbox = sandbox.saturating_add(usage);
        }
    }
    (all, sandbox)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::pod_names::NodePods;
    use super::super::testing::{Kernel, container};
    use super::*;
    use crate::model::objects::PodId;
    use crate::model::{LiveContainer, LivePod};
    use crate::oom::parse_log;

    const MIB: u64 = 1 << 20;

    /// A pod of these containers, each with its limit and usage in mebibytes, and a sandbox that uses one.
    struct Scene {
        kernel: Kernel,
        names: PodNames,
    }

    fn pod() -> CgroupPath {
        container(0, 0).parent().unwrap()
    }

    fn memory(cgroup: &CgroupPath, limit: Option<u64>, usage: u64) -> HitLimit {
        HitLimit {
            cgroup: Some(cgroup.to_string()),
            limit_bytes: limit.map(|limit| limit * MIB),
            usage_bytes: Some(usage * MIB),
            peak_bytes: None,
        }
    }

    fn scene(containers: &[(Option<u64>, u64)]) -> Scene {
        let mut kernel = Kernel::default();
        let sandbox = container(0, 0);
        kernel.make(&sandbox);
        let used = memory(&sandbox, None, 1);
        kernel.memory.insert(sandbox, used);
        let mut live = BTreeMap::new();
        for (number, (limit, usage)) in (1..).zip(containers) {
            let path = container(0, number);
            kernel.make(&path);
            kernel.memory.insert(path.clone(), memory(&path, *limit, *usage));
            live.insert(
                format!("c{number}"),
                LiveContainer {
                    id: format!("{number:064x}"),
                    path,
                },
            );
        }
        let live = LivePod {
            id: PodId {
                uid: "u".to_owned(),
                namespace: "n".to_owned(),
                name: "p".to_owned(),
            },
            path: pod(),
            containers: live,
        };
        let mut names = PodNames::default();
        names.update(
            &NodePods {
                tree: None,
                pods: vec![Arc::new(live)],
            },
            Duration::ZERO,
        );
        Scene { kernel, names }
    }

    /// A kill in the first container when the pod's usage is at its limit, in mebibytes.
    fn kill_at(pod_limit: u64) -> Kill {
        let log = format!(
            "memory: usage {kib}kB, limit {kib}kB, failcnt 1\n\
             oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={},task_memcg={},\
             task=x,pid=7,uid=0\n\
             Memory cgroup out of memory: Killed process 7 (x) total-vm:4kB, anon-rss:3kB, file-rss:2kB, shmem-rss:0kB\n",
            pod(),
            container(0, 1),
            kib = pod_limit * 1024,
        );
        let [kill] = parse_log(log.as_bytes()).try_into().unwrap();
        kill
    }

    fn found(scene: &Scene, pod_limit: u64, is_live: bool) -> Option<Option<u64>> {
        let kill = kill_at(pod_limit);
        assert_eq!(kill.usage.unwrap().limit, pod_limit * MIB);
        let found = container_limit(&kill, &container(0, 1), &scene.names, &scene.kernel, is_live)?;
        assert_eq!(found.cgroup.as_deref(), Some(container(0, 1).as_str()));
        Some(found.limit_bytes.map(|limit| limit / MIB))
    }

    #[test]
    fn the_only_container_of_a_pod_stands_at_its_own_limit() {
        // The kernel has already freed its memory.
        assert_eq!(found(&scene(&[(Some(64), 0)]), 64, true), Some(Some(64)));
        assert_eq!(found(&scene(&[(Some(64), 0)]), 64, false), Some(Some(64)));
    }

    #[test]
    fn so_does_one_of_several_where_the_pods_limit_is_the_sum_of_theirs() {
        assert_eq!(
            found(&scene(&[(Some(64), 10), (Some(64), 63)]), 128, true),
            Some(Some(64))
        );
        let three = [(Some(100), 0), (Some(50), 50), (Some(50), 49)];
        assert_eq!(found(&scene(&three), 200, true), Some(Some(100)));
    }

    #[test]
    fn a_pods_limit_that_others_used_up_stays_the_pods() {
        let pod_limit_below_the_sum = [(Some(64), 0), (Some(64), 60)];
        assert_eq!(found(&scene(&pod_limit_below_the_sum), 100, true), None);
        let with_an_unlimited_one = [(Some(128), 0), (None, 100)];
        assert_eq!(found(&scene(&with_an_unlimited_one), 128, true), None);
        assert_eq!(
            found(&scene(&[(None, 0), (Some(64), 10)]), 128, true),
            None,
            "it has none"
        );
        assert_eq!(
            found(&scene(&[(Some(256), 0)]), 128, true),
            None,
            "its own is not what held it back"
        );
    }

    #[test]
    fn long_after_the_kill_only_the_pod_of_one_container_is_certain() {
        assert_eq!(found(&scene(&[(Some(64), 0), (Some(64), 63)]), 128, false), None);
    }

    #[test]
    fn a_container_that_is_gone_was_all_there_was_in_its_pod_or_is_not_known() {
        let mut one = scene(&[(Some(64), 0)]);
        one.kernel.remove(&container(0, 1));
        assert_eq!(found(&one, 64, true), Some(None));
        let mut two = scene(&[(Some(64), 0), (Some(64), 63)]);
        two.kernel.remove(&container(0, 1));
        assert_eq!(found(&two, 128, true), None);
    }

    #[test]
    fn a_containers_own_kill_and_a_group_beyond_it_are_left_alone() {
        let one = scene(&[(Some(64), 0)]);
        let limit = |kill: &Kill| container_limit(kill, &container(0, 1), &one.names, &one.kernel, true);
        let mut kill = kill_at(64);
        kill.group = Some(pod());
        assert_eq!(limit(&kill), None);
        kill.group = Some(container(0, 1));
        assert!(limit(&kill).is_some());
        kill.limit = crate::oom::Limit::Cgroup(container(0, 1));
        assert_eq!(limit(&kill), None);
    }
}
