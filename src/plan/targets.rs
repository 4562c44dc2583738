//! The values that every cgroup and stored spec of a running pod should hold. Pure.
//!
//! A pass writes these values, and `explain` shows them.

use super::burst::bursts;
use super::hierarchy::{hierarchy, in_force};
use super::reservation::reservations;
use super::scope::WriteScope;
use super::shrink::Holds;
use crate::model::objects::Pod;
use crate::model::{
    BoundPod, CpuBurst, Driver, LivePod, MemoryLimit, NodeTraits, PodAmounts, PodTree, PodValues, Resource, Settings,
    Target,
};

/// The targets of a running pod, and the values among them that the agent writes.
#[derive(Debug, Clone)]
pub struct PodTargets {
    pub bound: BoundPod,
    /// The amounts that the pass gives the pod.
    pub amounts: PodAmounts,
    /// Whether the agent removes limits that the pod does not declare, rather than leaves them alone.
    pub lift_undeclared: bool,
    /// Whether the kubelet does not know of the targets, and so restarts containers with its own amounts.
    pub kubelet_unasked: bool,
    pub scope: WriteScope,
    /// The burst of each cgroup in percent of its quota. None leaves bursts alone.
    pub burst: Option<CpuBurst>,
    /// Limits that the agent keeps for now although lower ones are wanted.
    pub holds: Holds,
}

impl PodTargets {
    /// The values that the pod's files and stored specs should hold, given the present ones of its files.
    pub fn values(&mut self, held: &PodTree, traits: &NodeTraits) -> PodValues {
        let mut amounts = self.amounts.clone();
        lift_kept(&self.holds, &mut amounts);
        let (pod, live) = (self.bound.object(), self.bound.live());
        // The pod's files show which quotas the kubelet enforces.
        let in_force = hierarchy(pod, &in_force(pod), traits);
        let declared = in_force.created().tree;
        for target in held.targets() {
            if let (Some(held), Some(declared)) = (held.get(&target), declared.get(&target)) {
                self.scope.quotas.learn(live, &target, held, declared);
            }
        }
        let enforced = |target: &Target| self.scope.quotas.enforced(live, target);
        let mut hierarchy = hierarchy(pod, &amounts, traits)
            .keeping(&self.holds)
            .beside(held, enforced)
            .rounding_like(held, &in_force);
        if self.kubelet_unasked {
            hierarchy = hierarchy.admitting(pod);
        }
        let mut values = hierarchy.values(self.lift_undeclared);
        for (target, reserved) in reservations(pod, held, &self.amounts, traits) {
            values.tree.set(&target, reserved);
        }
        self.scope.restrict(&mut values);
        if let Some(burst) = self.burst {
            // runc before 1.3 writes quotas as they are, also with systemd, and the kernel refuses one below the burst.
            let driver = Driver::Cgroupfs;
            let spec = super::hierarchy(pod, PodAmounts::NONE, &NodeTraits { driver, ..*traits });
            let spec = spec.beside(held, enforced).created().tree;
            for (target, burst) in bursts(burst, pod, held, &values.tree, &spec) {
                values.tree.set(&target, burst);
            }
        }
        if without_cgroup(pod, live).is_some() {
            values.tree.pod = Settings::default();
        }
        values
    }
}

/// The container that runs without a cgroup of its own, in a virtual machine for example. The pod's cgroup then holds more than
/// its containers, and the agent does not write it.
pub fn without_cgroup<'a>(pod: &'a Pod, live: &LivePod) -> Option<&'a str> {
    let mut containers = pod.running_containers().map(|container| container.name.as_str());
    let runs = |name: &str| {
        pod.container_status(name)
            .is_some_and(|status| status.state.running.is_some())
    };
    containers.find(|name| runs(name) && !live.containers.contains_key(*name))
}

/// Raises the wanted limits of containers to those that the agent keeps for now. The pod's limit follows from them.
pub fn lift_kept(holds: &Holds, wanted: &mut PodAmounts) {
    for (target, limit) in holds {
        if let (Target::Container(name), MemoryLimit::Bytes(limit)) = (target, limit)
            && let Some(resources) = wanted.get_mut(Some(name))
        {
            resources.lift(Resource::Memory, *limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use indexmap::IndexMap;
    use serde_json::json;

    use super::*;
    use crate::model::objects::PodId;
    use crate::model::{
        Bytes, CgroupPath, CgroupVersion, ContainerId, ContainerName, ControlFile, CpuMax, CpuWeight, LiveContainer,
        MilliCpu, ResourceList, Setting,
    };
    use crate::plan::WriteScope;
    use crate::plan::tests::traits;

    /// A pod of two containers in a sandbox; the second runs or does not, and has a cgroup or not.
    fn targets(runs: bool, cgroup: bool) -> PodTargets {
        let container = |name: &str| json!({"name": name, "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}}});
        let state = |runs: bool| if runs { json!({"running": {}}) } else { json!({}) };
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "test", "uid": "u"},
            "spec": {"containers": [container("app"), container("side")], "runtimeClassName": "kata"},
            "status": {"containerStatuses": [
                {"name": "app", "state": state(true)},
                {"name": "side", "state": state(runs)},
            ]},
        }))
        .unwrap();
        let path = CgroupPath::new("/kubepods/podu").unwrap();
        let names = ["app", "side"].into_iter().filter(|name| *name == "app" || cgroup);
        let containers = names.map(|name| {
            let container = LiveContainer {
                id: ContainerId::of_test(name),
                path: path.clone(),
            };
            (ContainerName::from(name), container)
        });
        let live = LivePod {
            id: PodId {
                uid: "u".into(),
                namespace: "test".to_owned(),
                name: "web".to_owned(),
            },
            path: path.clone(),
            containers: containers.collect::<IndexMap<_, _>>(),
        };
        PodTargets {
            amounts: pod.requirements(),
            bound: BoundPod::new(&Arc::new(pod), &Arc::new(live)).unwrap(),
            lift_undeclared: false,
            kubelet_unasked: false,
            scope: WriteScope::all(),
            burst: None,
            holds: Holds::default(),
        }
    }

    /// The values beside empty cgroups.
    fn values(mut targets: PodTargets) -> PodValues {
        let names = targets.bound.live().containers.keys();
        let held = PodTree {
            pod: Settings::default(),
            containers: names.map(|name| (name.clone(), Settings::default())).collect(),
        };
        targets.values(&held, &traits(CgroupVersion::V2, Driver::Cgroupfs))
    }

    #[test]
    fn an_unenforced_quota_stays_off() {
        let cgroup = |quota: &str| {
            let quota = Setting::parse(ControlFile::CpuMax, quota).unwrap();
            Settings::from_iter([quota, Setting::CpuWeight(CpuWeight::new(59))])
        };
        let containers = [("app", cgroup("max 100000")), ("side", cgroup("10000 50000"))];
        let mut held = PodTree {
            pod: cgroup("max 100000"),
            containers: containers.map(|(name, cgroup)| (name.into(), cgroup)).into(),
        };
        let mut targets = targets(true, true);
        let tree = targets.values(&held, &traits(CgroupVersion::V2, Driver::Cgroupfs)).tree;
        let quota = |cgroup: &Settings| cgroup.get(ControlFile::CpuMax).map(|quota| quota.to_string());
        assert_eq!((quota(&tree.pod), quota(&tree.containers["app"])), (None, None));
        assert_eq!(quota(&tree.containers["side"]).as_deref(), Some("25000 50000"));
        held.pod = cgroup("20000 20000");
        let tree = targets.values(&held, &traits(CgroupVersion::V2, Driver::Cgroupfs)).tree;
        assert_eq!(quota(&tree.pod).as_deref(), Some("20000 20000"), "each period stays");
    }

    #[test]
    fn only_a_return_removes_undeclared_limits() {
        for (lift_undeclared, expected) in [(false, [None, None]), (true, [Some("max 100000"), Some("max")])] {
            let mut targets = targets(true, true);
            targets.lift_undeclared = lift_undeclared;
            targets.amounts.containers[0].resources.limits = ResourceList::default();
            let app = values(targets).tree.containers["app"].clone();
            let limits = [ControlFile::CpuMax, ControlFile::MemoryMax].map(|file| app.get(file));
            let limits = limits.map(|limit| limit.map(|limit| limit.to_string()));
            assert_eq!(limits, expected.map(|limit| limit.map(str::to_owned)));
        }
    }

    #[test]
    fn a_resource_out_of_scope_is_not_wanted() {
        let mut targets = targets(true, true);
        targets.scope.resources = [Resource::Memory].into();
        let PodValues { tree, specs } = values(targets);
        for cgroup in [&tree.pod, &tree.containers["app"]] {
            let files: Vec<_> = cgroup.iter().map(|setting| setting.file()).collect();
            assert_eq!(files, [ControlFile::MemoryMax]);
        }
        assert_eq!((specs["app"].cpu_quota, specs["app"].cpu_shares), (None, None));
    }

    #[test]
    fn an_unasked_kubelet_may_restart_its_containers() {
        for (kubelet_unasked, quota) in [(false, "20000"), (true, "50000")] {
            let mut targets = targets(true, true);
            targets.kubelet_unasked = kubelet_unasked;
            for container in &mut targets.amounts.containers {
                container.resources.limits.cpu = Some(MilliCpu::new(100));
            }
            let traits = traits(CgroupVersion::V1, Driver::Cgroupfs);
            let tree = targets.values(&PodTree::default(), &traits).tree;
            let of_pod = tree.pod.get(ControlFile::CfsQuota).unwrap();
            assert_eq!(of_pod.to_string(), quota);
        }
    }

    #[test]
    fn bursts_and_reservations_follow_the_targets() {
        let mut targets = targets(true, true);
        targets.amounts.containers[0].resources.limits.memory = Some(Bytes::new(96 << 20));
        let reserved = |mebibytes: u64| Setting::MemoryMin(MemoryLimit::Bytes(mebibytes << 20));
        let held = PodTree {
            pod: Settings::from_iter([Setting::CpuMaxBurst(0)]),
            containers: [(
                "app".into(),
                Settings::from_iter([Setting::CpuMaxBurst(0), reserved(64)]),
            )]
            .into(),
        };
        let mut given = |burst: Option<&str>| {
            targets.burst = burst.map(|burst| burst.parse().unwrap());
            let tree = targets.values(&held, &traits(CgroupVersion::V2, Driver::Cgroupfs)).tree;
            let app = &tree.containers["app"];
            assert_eq!(app.get(ControlFile::MemoryMin), Some(reserved(96)));
            [tree.pod.burst(), app.burst()]
        };
        assert_eq!(given(None), [None, None]);
        let expected = [50_000, 25_000].map(|burst| Some(Setting::CpuMaxBurst(burst)));
        assert_eq!(given(Some("50%")), expected);
    }

    #[test]
    fn a_burst_is_no_larger_than_an_exact_quota() {
        let mut targets = targets(false, false);
        let mut pod = Pod::clone(targets.bound.object());
        pod.spec.containers[0].resources.limits.cpu = Some(MilliCpu::new(255));
        pod.status.container_statuses[0].resources = Some(pod.spec.containers[0].resources);
        targets.amounts = pod.requirements();
        targets.bound = BoundPod::new(&Arc::new(pod), targets.bound.live()).unwrap();
        targets.burst = Some("100%".parse().unwrap());
        let before = CpuMax::of_limit(Some(MilliCpu::new(500)), 100_000);
        let app = Settings::from_iter([Setting::CpuMax(before), Setting::CpuMaxBurst(0)]);
        let held = PodTree {
            pod: Settings::default(),
            containers: [("app".into(), app)].into(),
        };
        let tree = targets.values(&held, &traits(CgroupVersion::V2, Driver::Systemd)).tree;
        let app = &tree.containers["app"];
        let quota = app.get(ControlFile::CpuMax).map(|quota| quota.to_string());
        assert_eq!(quota.as_deref(), Some("26000 100000"));
        assert_eq!(app.burst(), Some(Setting::CpuMaxBurst(25_500)));
    }

    #[test]
    fn a_kept_limit_stays_on_all_levels() {
        let mut targets = targets(true, true);
        let kept = MemoryLimit::Bytes(96 << 20);
        targets.holds.insert(Target::Container("app".into()), kept);
        let PodValues { tree, specs } = values(targets);
        let cgroups = [&tree.pod, &tree.containers["app"], &tree.containers["side"]];
        let limits = cgroups.map(|cgroup| cgroup.memory_bytes().map(Bytes::get));
        assert_eq!(limits, [160, 96, 64].map(|mib| Some(mib << 20)));
        assert_eq!(specs["app"].memory_limit_in_bytes, Some(96 << 20));
    }

    #[test]
    fn without_a_cgroup_the_pod_level_is_left() {
        assert_eq!(values(targets(true, false)).tree.pod, Settings::default());
        for (runs, cgroup) in [(true, true), (false, false), (false, true)] {
            let tree = values(targets(runs, cgroup)).tree;
            assert_ne!(tree.pod, Settings::default(), "{runs} {cgroup}");
            assert_ne!(tree.containers["app"], Settings::default());
        }
    }
}
