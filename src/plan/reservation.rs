//! The memory that the kubelet reserves for a pod and its containers in `memory.min` and `memory.low`. Pure.
//!
//! With MemoryQoS and `memoryReservationPolicy: TieredReservation` the kubelet writes memory requests there: of Guaranteed pods
//! into `memory.min`, of others into `memory.low` (`ResourceConfigForPod`, kubernetes `pkg/kubelet/cm/helpers_linux.go`). It
//! writes those of a pod only together with the pod's limit, so it leaves them where the agent has written the limit before.
//! A file that holds the request of its cgroup follows it, whichever of the two it is. A file that holds zero or any other
//! value is another program's and stays.

use crate::model::objects::Pod;
use crate::model::{Bytes, MemoryLimit, NodeTraits, PodAmounts, PodTree, Setting, Settings, Target};

use super::hierarchy::{in_force, memory_requests};

/// The reservations that go with the `wanted` amounts, in the files of `held` that the kubelet has written.
pub(super) fn reservations(
    pod: &Pod,
    held: &PodTree,
    wanted: &PodAmounts,
    traits: &NodeTraits,
) -> Vec<(Target, Setting)> {
    let requests = |amounts: &PodAmounts| memory_requests(pod, amounts, traits.kubelet);
    let in_pages = |request: Bytes| MemoryLimit::of_bytes(request.get()).in_pages(traits.page);
    // Until a resize is done, the files hold the requests before it or after it.
    let known = [requests(&in_force(pod)), requests(PodAmounts::NONE)];
    let mut follow = Vec::new();
    for (target, request) in requests(wanted) {
        for setting in held.get(&target).into_iter().flat_map(Settings::iter) {
            let is_kubelets = |reserved: MemoryLimit| {
                let mut known = known.iter().filter_map(|known| known.get(&target));
                !setting.is_unset() && known.any(|known| in_pages(*known) == reserved)
            };
            if setting.reserved().is_some_and(is_kubelets) {
                let reserved = in_pages(request);
                let follows = match setting {
                    Setting::MemoryMin(_) => Setting::MemoryMin(reserved),
                    _ => Setting::MemoryLow(reserved),
                };
                follow.push((target.clone(), follows));
            }
        }
    }
    follow
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{CgroupVersion, Driver};
    use crate::plan::tests::traits;

    const MIB: u64 = 1 << 20;

    /// A pod whose container `app` requests 80Mi by its spec and has the other requests in force; `side` requests 32Mi.
    fn pod(in_force: &str) -> Pod {
        let resources = |request: &str| json!({"requests": {"memory": request}, "limits": {"memory": "1Gi"}});
        let container = |name: &str, request: &str| json!({"name": name, "resources": resources(request)});
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "test", "uid": "u"},
            "spec": {"containers": [container("app", "80Mi"), container("side", "32Mi")], "overhead": {"memory": "8Mi"}},
            "status": {"containerStatuses": [{"name": "app", "resources": resources(in_force)}]},
        }))
        .unwrap()
    }

    /// The reservations once `app` requests 96Mi, where the pod and `app` hold these.
    fn after(in_force: &str, of_pod: Setting, of_app: Setting) -> Vec<String> {
        let held = PodTree {
            pod: Settings::from_iter([of_pod, Setting::MemoryMax(MemoryLimit::Max)]),
            containers: [("app".into(), Settings::from_iter([of_app]))].into(),
        };
        let wanted = json!([{"name": "app", "requests": {"memory": "96Mi"}}]);
        let wanted = serde_json::from_value(wanted).unwrap();
        let traits = traits(CgroupVersion::V2, Driver::Cgroupfs);
        let all = reservations(&pod(in_force), &held, &wanted, &traits);
        all.iter()
            .map(|(target, setting)| format!("{target} {}={setting}", setting.file()))
            .collect()
    }

    fn min(mib: u64) -> Setting {
        Setting::MemoryMin(MemoryLimit::Bytes(mib * MIB))
    }

    fn low(mib: u64) -> Setting {
        Setting::MemoryLow(MemoryLimit::Bytes(mib * MIB))
    }

    #[test]
    fn a_file_with_the_cgroups_request_follows_it() {
        let bytes = |mib: u64| (mib * MIB).to_string();
        let (of_pod, of_app) = (bytes(136), bytes(96));
        let both = [
            format!("container app memory.min={of_app}"),
            format!("pod memory.min={of_pod}"),
        ];
        let sorted = |mut all: Vec<String>| {
            all.sort();
            all
        };
        assert_eq!(sorted(after("80Mi", min(120), min(80))), both);
        // The kubelet has not written yet what the spec says.
        assert_eq!(sorted(after("64Mi", min(104), min(80))), both);
        let lows = both.map(|line| line.replace("min", "low"));
        assert_eq!(sorted(after("80Mi", low(120), low(80))), lows);
    }

    #[test]
    fn zero_and_other_programs_values_stay() {
        assert_eq!(after("80Mi", min(0), low(0)), Vec::<String>::new());
        assert_eq!(
            after("80Mi", min(60), low(40)),
            Vec::<String>::new(),
            "half of the requests"
        );
        let unbounded = Setting::MemoryMin(MemoryLimit::Max);
        assert_eq!(after("80Mi", unbounded, unbounded), Vec::<String>::new());
    }
}
