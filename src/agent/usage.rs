//! Adds the use and the recommendation of each pod to an answer. The agent keeps neither.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::view;
use crate::actuate::{Node, PodHandles};
use crate::cgroup::{Cgroup, CgroupError};
use crate::control::{ControlError, proto};
use crate::model::objects::{Shared, VerticalPodAutoscaler};
use crate::model::{Bytes, CpuQuota, LivePod, MilliCpu, QUICK, Target, at_once, micros};
use crate::oom::kmsg::monotonic;
use crate::reconcile::pod::PodState;

/// Ten enforcement periods of the usual length.
const SOME_PERIODS: Duration = Duration::from_secs(1);

/// Adds to each pod the spec and the recommendation of its VPA, and its use. All lists are in the same order. A pod or
/// container that ended meanwhile has no use.
pub(super) async fn add(
    mut pods: Vec<proto::Pod>,
    live: Vec<Option<Arc<LivePod>>>,
    vpas: Vec<Option<Shared<VerticalPodAutoscaler>>>,
    node: Option<Arc<Node>>,
) -> Result<Vec<proto::Pod>, ControlError> {
    let read = tokio::task::spawn_blocking(move || {
        for ((pod, live), vpa) in pods.iter_mut().zip(live).zip(vpas) {
            vpa.iter().for_each(|vpa| recommend(pod, vpa));
            if let (Some(node), Some(live)) = (&node, live)
                && let Err(error) = read_pod(node, &live, pod)
            {
                tracing::debug!(pod = pod.name, %error, "what a pod uses is not known");
            }
        }
        pods
    });
    read.await.map_err(|panic| ControlError::Internal(panic.to_string()))
}

/// Two readings of pods, some enforcement periods apart. Takes a second.
pub(super) async fn read_twice(
    states: &[&PodState],
    quiet: SignedDuration,
    node: Option<&Arc<Node>>,
) -> Result<[Vec<proto::Pod>; 2], ControlError> {
    let read = async || {
        let now = Timestamp::now();
        let (pods, live) = states
            .iter()
            .map(|state| (view::pod(state, now, quiet), state.live.clone()))
            .unzip();
        add(pods, live, vec![None; states.len()], node.cloned()).await
    };
    let before = read().await?;
    tokio::time::sleep(SOME_PERIODS).await;
    Ok([before, read().await?])
}

fn read_pod(node: &Node, live: &LivePod, pod: &mut proto::Pod) -> Result<(), CgroupError> {
    let handles = PodHandles::open(&node.hierarchy, live)?;
    for (target, cgroup) in handles.iter() {
        let Some(usage) = CgroupError::unless_gone(usage(node, cgroup, monotonic))? else {
            continue;
        };
        match target {
            Target::Pod => pod.usage = Some(usage),
            Target::Container(name) => {
                if let Some(container) = pod.containers.iter_mut().find(|container| container.name == **name) {
                    container.usage = Some(usage);
                }
            }
        }
    }
    Ok(())
}

/// The counters and their time, from which rates are taken, are of one moment.
fn usage(node: &Node, cgroup: &Cgroup, clock: impl Fn() -> Duration) -> Result<proto::Usage, CgroupError> {
    let limits = cgroup.read_all()?;
    let (at, used) = at_once(QUICK, clock, || cgroup.usage(&node.hierarchy))?;
    let bounded = limits.cpu_max().and_then(|max| match max.quota {
        CpuQuota::Max => None,
        CpuQuota::Micros(quota) => Some((quota, max.period_us)),
    });
    let cpu = bounded.map(|(quota, period_us)| MilliCpu::new(quota.saturating_mul(1000) / period_us.max(1)));
    let burst = bounded.and_then(|(quota, _)| {
        let percent = limits.burst()?.burst_us()?.saturating_mul(100).div_ceil(quota.max(1));
        u32::try_from(percent).ok()
    });
    Ok(proto::Usage {
        burst_percent: burst,
        read_at_us: micros(at),
        cpu_us: used.cpu.map(micros),
        memory_bytes: used.memory,
        periods: used.periods.all,
        throttled_periods: used.periods.throttled,
        throttled_us: micros(used.periods.throttled_for),
        limits: Some(proto::Amounts {
            cpu: cpu.map(|limit| limit.to_string()),
            memory: limits.memory_bytes().as_ref().map(Bytes::to_string),
        }),
    })
}

/// Adds the VPA's spec, and its recommendation for each container.
fn recommend(pod: &mut proto::Pod, vpa: &VerticalPodAutoscaler) {
    pod.vpa_spec = Some(serde_json::json!(vpa.spec).to_string());
    for container in &mut pod.containers {
        let bounds = vpa.recommendation_for(&container.name);
        container.recommendation = bounds.map(|bounds| proto::Recommendation {
            lower_bound: Some((&bounds.lower_bound).into()),
            target: Some((&bounds.target).into()),
            upper_bound: Some((&bounds.upper_bound).into()),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::sources::parse_manifests;

    /// A cgroup of this directory with a quota of half a processor and a burst of a quarter of it.
    fn cgroup(directory: &Path, memory: u64) {
        fs::create_dir_all(directory).unwrap();
        for (file, text) in [
            ("cpu.max", "50000 100000\n".to_owned()),
            ("cpu.max.burst", "12500\n".to_owned()),
            ("memory.max", "134217728\n".to_owned()),
            ("memory.current", format!("{memory}\n")),
            ("memory.stat", "anon 1\ninactive_file 4096\nactive_file 2\n".to_owned()),
            (
                "cpu.stat",
                "usage_usec 5000\nnr_periods 10\nnr_throttled 3\nthrottled_usec 700\n".to_owned(),
            ),
        ] {
            fs::write(directory.join(file), text).unwrap();
        }
    }

    #[test]
    fn use_and_limits_are_those_of_each_cgroup() {
        let root = tempfile::tempdir().unwrap();
        let node = Node::on_files(root.path());
        cgroup(&root.path().join("pod"), 12_288);
        cgroup(&root.path().join("pod/app"), 8192);
        let mut pod = proto::Pod {
            containers: vec![proto::Container {
                name: "app".to_owned(),
                ..proto::Container::default()
            }],
            ..proto::Pod::default()
        };
        read_pod(&node, &LivePod::on_files(["app"]), &mut pod).unwrap();
        let read = |usage: &Option<proto::Usage>| proto::Usage {
            read_at_us: 0,
            ..usage.clone().unwrap()
        };
        let expected = proto::Usage {
            read_at_us: 0,
            cpu_us: Some(5000),
            memory_bytes: 4096,
            periods: 10,
            throttled_periods: 3,
            throttled_us: 700,
            burst_percent: Some(25),
            limits: Some(proto::Amounts {
                cpu: Some("500m".to_owned()),
                memory: Some("128Mi".to_owned()),
            }),
        };
        assert_eq!(read(&pod.containers[0].usage), expected);
        let of_pod = proto::Usage {
            memory_bytes: 8192,
            ..expected
        };
        assert_eq!(read(&pod.usage), of_pod);

        for (file, text) in [("cpu.max", "max 100000\n"), ("memory.max", "max\n")] {
            fs::write(root.path().join("pod/app").join(file), text).unwrap();
        }
        read_pod(&node, &LivePod::on_files(["app"]), &mut pod).unwrap();
        let unlimited = read(&pod.containers[0].usage);
        assert_eq!(
            (unlimited.limits, unlimited.burst_percent),
            (Some(proto::Amounts::default()), None)
        );
    }

    #[test]
    fn a_counter_has_the_time_of_its_reading() {
        let root = tempfile::tempdir().unwrap();
        let (node, ms) = (Node::on_files(root.path()), Duration::from_millis);
        let directory = root.path().join("pod/app");
        cgroup(&directory, 8192);
        let handles = PodHandles::open(&node.hierarchy, &LivePod::on_files(["app"])).unwrap();
        let app = handles.get(&Target::Container("app".into())).unwrap();
        // The thread waits for ten seconds after the first reading, and the container runs all the time.
        let calls = std::cell::Cell::new(0);
        let clock = || {
            calls.set(calls.get() + 1);
            if calls.get() == 1 {
                return ms(1000);
            }
            let stat = "usage_usec 10005000\nnr_periods 110\nnr_throttled 3\nthrottled_usec 700\n";
            fs::write(directory.join("cpu.stat"), stat).unwrap();
            ms(11_000)
        };
        let read = usage(&node, app, clock).unwrap();
        assert_eq!((read.read_at_us, read.cpu_us), (11_000_000, Some(10_005_000)));
    }

    #[test]
    fn a_recommendation_keeps_its_bounds_apart() {
        let manifest = "{kind: VerticalPodAutoscaler, metadata: {name: web}, spec: {targetRef: {kind: Deployment, name: web}}, status: \
            {recommendation: {containerRecommendations: [{containerName: app, lowerBound: {cpu: 100m}, target: {cpu: 200m}, upperBound: \
            {cpu: 300m}}]}}}";
        let view = parse_manifests("test", manifest).unwrap().view;
        let named = |name: &str| proto::Container {
            name: name.to_owned(),
            ..proto::Container::default()
        };
        let mut pod = proto::Pod {
            containers: vec![named("app"), named("side")],
            ..proto::Pod::default()
        };
        recommend(&mut pod, &view.vpas[0]);
        let cpu = |amounts: Option<proto::Amounts>| amounts.and_then(|amounts| amounts.cpu).unwrap_or_default();
        let recommended = pod.containers[0].recommendation.clone().unwrap();
        let bounds = [recommended.lower_bound, recommended.target, recommended.upper_bound].map(cpu);
        assert_eq!(bounds, ["100m", "200m", "300m"]);
        assert_eq!(pod.containers[1].recommendation, None);
        assert!(pod.vpa_spec.unwrap().contains("\"targetRef\""));
    }
}
