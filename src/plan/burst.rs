//! The bursts of a pod's cgroups, which neither Kubernetes nor a runtime sets. Pure.
//!
//! A burst is a part of the quota that the cgroup has after the pass. It is also a part of the quota in the spec, if that is
//! lower: the kernel refuses a quota below the burst (`tg_set_cfs_bandwidth`, kernel/sched/core.c), so a kubelet could not write
//! the lower quota that another client has requested. While the kubelet reports that it could not write a quota there is none: the
//! kubelet tries the same quota again, also after the spec has got a higher one.

use crate::model::objects::Pod;
use crate::model::{CpuBurst, PodTree, Setting, Settings, Target};

/// The bursts of the cgroups in `held` whose kernel has bursts. `wanted` are the values that the pass writes, `spec` those that
/// follow from the spec.
pub fn bursts(burst: CpuBurst, pod: &Pod, held: &PodTree, wanted: &PodTree, spec: &PodTree) -> Vec<(Target, Setting)> {
    let quota = |tree: &PodTree, target: &Target| tree.get(target).and_then(Settings::cpu_max).map(|max| max.quota);
    let follows_spec = pod.resizes_in_place();
    let burst = if failed(pod) { CpuBurst::ZERO } else { burst };
    let of = |target: Target| {
        let file = held.get(&target)?.burst()?;
        let after = quota(wanted, &target).or_else(|| quota(held, &target))?;
        let requested = quota(spec, &target).filter(|_| follows_spec);
        let beside = burst.beside(requested.map_or(after, |requested| requested.min(after)));
        Some((target, file.map_burst(|_| beside)))
    };
    held.targets().filter_map(of).collect()
}

/// Whether the kubelet reports that it could not write amounts, of whichever generation of the spec.
fn failed(pod: &Pod) -> bool {
    let mut conditions = pod.status.conditions.iter();
    conditions.any(|condition| {
        condition.kind == "PodResizeInProgress" && condition.status == "True" && condition.reason == "Error"
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{CpuMax, CpuQuota, MilliCpu};

    /// A cgroup with this quota in thousandths of a cpu, and no burst yet.
    fn cgroup(milli: Option<u64>) -> Settings {
        let max = CpuMax::of_limit(milli.map(MilliCpu::new), 100_000);
        Settings::from_iter([Setting::CpuMax(max), Setting::CpuMaxBurst(0)])
    }

    fn tree(pod: Option<u64>, app: Option<u64>) -> PodTree {
        PodTree {
            pod: cgroup(pod),
            containers: [("app".into(), cgroup(app))].into(),
        }
    }

    fn given(burst: &str, resizes: bool, [held, wanted, spec]: [&PodTree; 3]) -> Vec<u64> {
        // Only a kubelet that resizes reports resources.
        let resources = if resizes {
            json!({"requests": {"cpu": "100m"}})
        } else {
            json!(null)
        };
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"containers": [{"name": "app"}]},
            "status": {"containerStatuses": [{"name": "app", "resources": resources}]},
        }))
        .unwrap();
        let given = bursts(burst.parse().unwrap(), &pod, held, wanted, spec);
        given.iter().filter_map(|(_, setting)| setting.burst_us()).collect()
    }

    #[test]
    fn a_burst_is_part_of_the_new_quota() {
        let (held, wanted) = (tree(Some(500), Some(400)), tree(Some(1000), Some(900)));
        assert_eq!(
            given("50%", false, [&held, &PodTree::default(), &wanted]),
            [25_000, 20_000]
        );
        assert_eq!(given("50%", false, [&held, &wanted, &held]), [50_000, 45_000]);
        assert_eq!(given("100%", false, [&held, &wanted, &held]), [100_000, 90_000]);
        assert_eq!(given("0%", false, [&held, &wanted, &held]), [0, 0]);
        let unbounded = tree(None, Some(400));
        assert_eq!(given("50%", false, [&unbounded, &unbounded, &unbounded]), [0, 20_000]);
    }

    #[test]
    fn a_lower_quota_in_the_spec_bounds_the_burst() {
        let (held, spec) = (tree(Some(1000), Some(900)), tree(Some(500), Some(400)));
        assert_eq!(
            given("100%", true, [&held, &PodTree::default(), &spec]),
            [50_000, 40_000]
        );
        assert_eq!(
            given("100%", true, [&spec, &PodTree::default(), &held]),
            [50_000, 40_000]
        );
    }

    #[test]
    fn a_failed_kubelet_finds_no_burst() {
        let held = tree(Some(1000), Some(900));
        for (status, reason, expected) in [
            ("True", "Error", [0, 0]),
            ("True", "", [100_000, 90_000]),
            ("False", "Error", [100_000, 90_000]),
        ] {
            let mut pod = Pod::default();
            pod.metadata.generation = 3;
            pod.status.conditions = serde_json::from_value(json!([{
                "type": "PodResizeInProgress", "status": status, "reason": reason, "observedGeneration": 2,
            }]))
            .unwrap();
            let given = bursts("100%".parse().unwrap(), &pod, &held, &held, &held);
            let given: Vec<_> = given.iter().map(|(_, burst)| burst.burst_us()).collect();
            assert_eq!(given, expected.map(Some), "{status} {reason}");
        }
    }

    #[test]
    fn a_kernel_without_bursts_gets_none() {
        let held = PodTree {
            pod: Settings::from_iter([Setting::CpuMax(CpuMax {
                quota: CpuQuota::Micros(50_000),
                period_us: 100_000,
            })]),
            ..PodTree::default()
        };
        assert_eq!(given("50%", false, [&held, &held, &held]), <[u64; 0]>::default());
    }
}
