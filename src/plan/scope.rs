//! Which of a pod's values the agent has a reason to write, and which cpu quotas of a pod its kubelet enforces. Pure.
//!
//! A kubelet sets no quota if it is configured so (`cpuCFSQuota: false`), and none for a container with processors of its own
//! and for that container's pod (static CPU manager policy, `DisableCPUQuotaWithExclusiveCPUs`). Such a cgroup is unbounded
//! from the beginning although the spec declares a limit. If a quota was bounded once and is not any more, another process
//! has removed it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::{
    ControlFile, CpuQuota, CpuShares, CpuWeight, LivePod, PodAmounts, PodTree, PodValues, Resource, Setting, Settings,
    Target,
};

/// The values of a pod that vscaled may write. All others belong to the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WriteScope {
    /// The resources for which the agent has ever wanted other amounts than the spec's.
    pub resources: BTreeSet<Resource>,
    pub quotas: Quotas,
}

impl WriteScope {
    /// Every resource, with unknown quotas.
    pub fn all() -> Self {
        Self {
            resources: Resource::ALL.into(),
            quotas: Quotas::default(),
        }
    }

    /// Adds the resources for which other amounts than the spec's are wanted.
    pub fn widen(&mut self, spec: &PodAmounts, wanted: &PodAmounts) {
        for (of, wanted) in wanted.iter() {
            let spec = spec.get(of);
            let differs = |resource: &Resource| spec.map(|spec| spec.of(*resource)) != Some(wanted.of(*resource));
            self.resources.extend(Resource::ALL.into_iter().filter(differs));
        }
    }

    /// Drops the values of `wanted` that vscaled may not write.
    pub fn restrict(&self, wanted: &mut PodValues) {
        let files = ControlFile::V2.iter().chain(ControlFile::V1).copied();
        for file in files.filter(|file| !self.resources.contains(&file.resource())) {
            let PodTree { pod, containers } = &mut wanted.tree;
            for settings in containers.values_mut().chain([pod]) {
                settings.remove(file);
            }
            for spec in wanted.specs.values_mut() {
                spec.forget(file);
            }
        }
    }
}

/// Whether the kubelet enforces the quotas of a pod's cgroups: by the id of their container, and by `pod` for the pod's own cgroup. An
/// unknown quota counts as enforced.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quotas(BTreeMap<String, bool>);

/// The key of the pod's own cgroup. No container has it: ids are hexadecimal.
const POD: &str = "pod";

impl Quotas {
    /// Learns from one of the pod's cgroups: compares its files with the values that a kubelet which
    /// enforces quotas would have written.
    pub fn learn(&mut self, live: &LivePod, target: &Target, held: &Settings, declared: &Settings) {
        let quota = |settings: &Settings| settings.cpu_max().map(|max| max.quota);
        let enforced = match (quota(held), quota(declared), self.known(live, target)) {
            (Some(CpuQuota::Micros(_)), ..) => true,
            (Some(CpuQuota::Max), Some(CpuQuota::Micros(_)), None) => is_default(held) && !is_default(declared),
            _ => return,
        };
        let key = key(live, target).map(str::to_owned);
        self.0.extend(key.map(|key| (key, enforced)));
    }

    /// Takes over newer entries, and drops containers that have ended.
    pub fn update(&mut self, newer: Self, live: &LivePod) {
        self.0.extend(newer.0);
        let runs = |id: &str| live.containers.values().any(|container| *container.id == *id);
        self.0.retain(|key, _| key == POD || runs(key));
    }

    /// Whether the kubelet enforces the quota of this cgroup.
    pub fn enforced(&self, live: &LivePod, target: &Target) -> bool {
        self.known(live, target).unwrap_or(true)
    }

    fn known(&self, live: &LivePod, target: &Target) -> Option<bool> {
        self.0.get(key(live, target)?).copied()
    }
}

fn key<'a>(live: &'a LivePod, target: &Target) -> Option<&'a str> {
    match target {
        Target::Pod => Some(POD),
        Target::Container(name) => Some(live.containers.get(name)?.id.as_str()),
    }
}

/// Whether the shares are those that the kernel gives a new cgroup. One that was set idle has none.
fn is_default(settings: &Settings) -> bool {
    let defaults = [
        Setting::CpuShares(CpuShares::new(1024)),
        Setting::CpuWeight(CpuWeight::new(100)),
    ];
    settings.iter().any(|held| defaults.contains(&held))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerId, CpuMax, CriResources};

    fn cgroup(shares: u64, milli: Option<u64>) -> Settings {
        let max = CpuMax::of_limit(milli.map(crate::model::MilliCpu::new), 100_000);
        Settings::from_iter([
            Setting::CpuShares(CpuShares::new(shares)),
            Setting::CfsQuota(max.quota),
            Setting::CfsPeriod(max.period_us),
        ])
    }

    /// The values of a pod and its container, restricted to these resources: the files of both, and the container's stored spec.
    fn restricted(resources: &[Resource]) -> (Vec<&'static str>, CriResources) {
        let files = || {
            let files = [
                ("cpu.max", "20000 100000"),
                ("cpu.weight", "39"),
                ("memory.max", "4096"),
            ];
            let setting = |(file, value)| Setting::parse(ControlFile::named(file).unwrap(), value).unwrap();
            files.map(setting).into_iter().collect::<Settings>()
        };
        let mut wanted = PodValues {
            tree: PodTree {
                pod: files(),
                containers: [("app".into(), files())].into(),
            },
            specs: [("app".into(), SPEC)].into(),
        };
        let scope = WriteScope {
            resources: resources.iter().copied().collect(),
            ..WriteScope::default()
        };
        scope.restrict(&mut wanted);
        let names = |settings: &Settings| settings.iter().map(|setting| setting.file().name()).collect::<Vec<_>>();
        assert_eq!(names(&wanted.tree.pod), names(&wanted.tree.containers["app"]));
        (names(&wanted.tree.pod), wanted.specs["app"])
    }

    const SPEC: CriResources = CriResources {
        cpu_shares: Some(1024),
        cpu_quota: Some(20_000),
        cpu_period: Some(100_000),
        memory_limit_in_bytes: Some(4096),
    };

    #[test]
    fn a_resource_outside_the_scope_is_left_alone() {
        assert_eq!(
            restricted(&Resource::ALL),
            (vec!["cpu.max", "cpu.weight", "memory.max"], SPEC)
        );
        let memory = CriResources {
            memory_limit_in_bytes: SPEC.memory_limit_in_bytes,
            ..CriResources::default()
        };
        assert_eq!(restricted(&[Resource::Memory]), (vec!["memory.max"], memory));
        let cpu = CriResources {
            memory_limit_in_bytes: None,
            ..SPEC
        };
        assert_eq!(restricted(&[Resource::Cpu]), (vec!["cpu.max", "cpu.weight"], cpu));
        assert_eq!(restricted(&[]), (Vec::new(), CriResources::default()));
    }

    #[test]
    fn amounts_beside_the_spec_widen_the_scope() {
        let amounts = |cpu: &str, memory: &str| {
            let list =
                format!(r#"[{{"name": "app", "requests": {{"cpu": "{cpu}"}}, "limits": {{"memory": "{memory}"}}}}]"#);
            serde_json::from_str::<PodAmounts>(&list).unwrap()
        };
        let (spec, mut scope) = (amounts("100m", "64Mi"), WriteScope::default());
        let mut widened = |wanted: &PodAmounts| {
            scope.widen(&spec, wanted);
            Vec::from_iter(scope.resources.iter().copied())
        };
        assert_eq!(widened(&amounts("100m", "64Mi")), []);
        assert_eq!(widened(&amounts("100m", "65Mi")), [Resource::Memory]);
        assert_eq!(
            widened(&amounts("100m", "64Mi")),
            [Resource::Memory],
            "it was wanted once"
        );
        assert_eq!(widened(&amounts("101m", "64Mi")), Resource::ALL);
    }

    fn enforced(history: &[Settings], declared: &Settings) -> bool {
        let (live, target) = (LivePod::on_files(["c"]), Target::from(Some("c")));
        let mut quotas = Quotas::default();
        for held in history {
            quotas.learn(&live, &target, held, declared);
        }
        quotas.enforced(&live, &target)
    }

    #[test]
    fn a_missing_quota_is_not_enforced() {
        let declared = cgroup(102, Some(200));
        assert!(!enforced(&[cgroup(102, None)], &declared));
        assert!(!enforced(&[cgroup(51, None), cgroup(1024, None)], &declared));
        let mut idle = cgroup(1024, None);
        idle.remove(ControlFile::CpuShares);
        assert!(!enforced(&[idle], &declared));
        assert!(
            enforced(&[cgroup(102, Some(200)), cgroup(102, None)], &declared),
            "taken away"
        );
        assert!(enforced(
            &[cgroup(102, None), cgroup(102, Some(200)), cgroup(102, None)],
            &declared
        ));
    }

    #[test]
    fn a_limit_that_nobody_declares_says_nothing() {
        assert!(enforced(&[cgroup(102, None)], &cgroup(102, None)));
    }

    #[test]
    fn a_new_cgroup_still_gets_its_quota() {
        assert!(enforced(&[cgroup(1024, None)], &cgroup(102, Some(200))));
        assert!(
            !enforced(&[cgroup(1024, None)], &cgroup(1024, Some(2000))),
            "set up with just that"
        );
    }

    #[test]
    fn what_is_known_of_a_container_ends_with_it() {
        let (live, later) = (LivePod::on_files(["old"]), LivePod::on_files(["new"]));
        let (mut known, mut newer) = (Quotas::default(), Quotas::default());
        let old = Target::from(Some("old"));
        known.learn(&live, &old, &cgroup(102, None), &cgroup(102, Some(200)));
        newer.learn(&live, &Target::Pod, &cgroup(102, None), &cgroup(102, Some(200)));
        known.update(newer, &later);
        assert!(known.enforced(&live, &old) && !known.enforced(&later, &Target::Pod));
    }

    #[test]
    fn newer_entries_replace_older_ones() {
        let (live, app) = (LivePod::on_files(["c"]), Target::from(Some("c")));
        let declared = cgroup(102, Some(200));
        let learned = |target: &Target, held: &Settings| {
            let mut quotas = Quotas::default();
            quotas.learn(&live, target, held, &declared);
            quotas
        };
        let mut known = learned(&Target::Pod, &cgroup(102, None));
        for (held, is_enforced) in [(cgroup(102, None), false), (declared.clone(), true)] {
            known.update(learned(&app, &held), &live);
            assert_eq!(known.enforced(&live, &app), is_enforced);
            assert!(!known.enforced(&live, &Target::Pod), "nothing new of the pod");
        }
    }

    #[test]
    fn a_container_named_pod_is_not_the_pod() {
        let (mut live, named) = (LivePod::on_files(["pod", "app"]), Target::from(Some("pod")));
        live.containers.get_mut("pod").unwrap().id = ContainerId::of_test("0a1b");
        let mut quotas = Quotas::default();
        quotas.learn(&live, &named, &cgroup(102, None), &cgroup(102, Some(200)));
        let without_cgroup = Target::from(Some("side"));
        quotas.learn(&live, &without_cgroup, &cgroup(102, None), &cgroup(102, Some(200)));
        assert!(!quotas.enforced(&live, &named) && quotas.enforced(&live, &Target::Pod));
    }

    #[test]
    fn files_have_the_pod_beside_container_ids() {
        let text = r#"{"resources":[],"quotas":{"0a1b":false,"pod":true}}"#;
        let scope: WriteScope = serde_json::from_str(text).unwrap();
        assert_eq!(
            scope.quotas.0,
            [("0a1b".to_owned(), false), (POD.to_owned(), true)].into()
        );
        assert_eq!(serde_json::to_string(&scope).unwrap(), text);
        let unknown = r#"{"resources":[],"quotas":{}}"#;
        let scope: WriteScope = serde_json::from_str(unknown).unwrap();
        assert_eq!(serde_json::to_string(&scope).unwrap(), unknown);
    }
}
