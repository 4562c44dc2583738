use std::time::Instant;

use super::*;
use crate::model::objects::PodId;
use crate::model::{Bytes, CgroupPath, ContainerId, ContainerName, LiveContainer, MilliCpu, NamedRequirements, Reason};
use crate::resize::{Report, Request};
use crate::sources::parse_manifests;

/// A pod of `app` and this container.
pub(super) fn pod_with(container: &str) -> Pod {
    let pod = format!(
        "
kind: Pod
metadata: {{name: web}}
spec:
  containers:
  - {{name: app, resources: {{requests: {{cpu: 100m, memory: 64Mi}}, limits: {{cpu: 200m, memory: 128Mi}}}}}}
  - {container}
"
    );
    Pod::clone(&parse_manifests("test", &pod).unwrap().view.pods[0])
}

fn pod() -> Pod {
    pod_with("{name: side, resources: {requests: {cpu: 10m}}}")
}

pub(super) fn values(name: &str, list: &str) -> PodAmounts {
    let resources = serde_json::from_str(list).unwrap();
    PodAmounts::from_iter([NamedRequirements::new(name, resources)])
}

#[test]
fn an_override_changes_only_its_names() {
    let pod = pod();
    let mut desired = DesiredState::default();
    assert_eq!(desired.targets(&pod), None);
    desired
        .set_override(
            &pod,
            Override::by_root(values("app", r#"{"limits":{"memory":"256Mi"}}"#)),
            PageSize::KIB_4,
        )
        .unwrap();
    desired
        .set_override(
            &pod,
            Override::by_root(values("app", r#"{"limits":{"cpu":"1"}}"#)),
            PageSize::KIB_4,
        )
        .unwrap();
    let targets = desired.targets(&pod).unwrap();
    assert_eq!(
        targets.containers[0].resources.limits.memory,
        Some(Bytes::new(256 << 20))
    );
    assert_eq!(targets.containers[0].resources.limits.cpu, Some(MilliCpu::new(1000)));
    assert_eq!(targets.containers[1].resources, pod.spec.containers[1].resources);
    assert!(desired.end_override().is_some());
    assert!(desired.returning);
    assert_eq!(desired.targets(&pod), Some(pod.requirements()));
}

#[test]
fn an_override_wins_until_it_ends() {
    let pod = pod();
    let mut targets = pod.requirements();
    targets.containers[0].resources.limits.cpu = Some(MilliCpu::new(300));
    let recommended = Recommended {
        vpa: Some("web".to_owned()),
        at: Timestamp::UNIX_EPOCH,
        targets: targets.clone(),
        in_force: InForce::default(),
    };
    let mut desired = DesiredState {
        recommended: Some(recommended),
        ..DesiredState::default()
    };
    desired
        .set_override(
            &pod,
            Override::by_root(values("app", r#"{"limits":{"cpu":"900m"}}"#)),
            PageSize::KIB_4,
        )
        .unwrap();
    assert_eq!(
        desired.targets(&pod).unwrap().containers[0].resources.limits.cpu,
        Some(MilliCpu::new(900))
    );
    desired.end_override();
    assert_eq!(desired.targets(&pod), Some(targets));
}

#[test]
fn what_could_not_run_is_refused_with_the_numbers() {
    let pod = pod();
    let mut desired = DesiredState::default();
    let mut refused = |name: &str, list: &str| {
        desired
            .set_override(&pod, Override::by_root(values(name, list)), PageSize::KIB_4)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused("nginx", r#"{"limits":{"cpu":"1"}}"#),
        "the pod has no container \"nginx\"; it has: app, side"
    );
    assert!(refused("app", r#"{"limits":{"cpu":"50m"}}"#).contains("cpu request 100m is above the limit 50m"));
    assert!(
        refused("side", r#"{"limits":{"memory":"100"}}"#)
            .contains("memory limit 100 is below the least the kernel holds, 4Ki")
    );
    assert!(
        refused("side", r#"{"limits":{"cpu":"5m"}}"#).contains("cpu limit 5m is below the least the kernel holds, 10m")
    );
    assert!(desired.is_empty());
}

#[test]
fn a_limit_of_zero_refuses_no_override() {
    let pod = pod_with(r#"{name: side, resources: {requests: {cpu: 0}, limits: {cpu: "0"}}}"#);
    let mut desired = DesiredState::default();
    let set = Override::by_root(values("side", r#"{"limits":{"memory":"256Mi"}}"#));
    assert_eq!(desired.set_override(&pod, set, PageSize::KIB_4), Ok(()));
    let side = desired.targets(&pod).unwrap().container("side").copied().unwrap();
    assert_eq!(side.limits.get(Resource::Cpu), Some(0));
    assert_eq!(side.limits.get(Resource::Memory), Some(256 << 20));
}

#[test]
fn the_qos_class_cannot_change() {
    let mut pod = pod();
    pod.spec.containers.truncate(1);
    let mut desired = DesiredState::default();
    let equal = r#"{"requests":{"cpu":"1","memory":"1Gi"},"limits":{"cpu":"1","memory":"1Gi"}}"#;
    let error = desired
        .set_override(&pod, Override::by_root(values("app", equal)), PageSize::KIB_4)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the pod's QoS class would change from Burstable to Guaranteed, which a running pod cannot do: keep at least one request below its limit"
    );
}

#[test]
fn only_regular_containers_that_run_are_set() {
    let mut pod = pod();
    let refused = |pod: &Pod, name: &str, list: &str| {
        let wanted = Override::by_root(values(name, list));
        DesiredState::default()
            .set_override(pod, wanted, PageSize::KIB_4)
            .unwrap_err()
            .to_string()
    };
    let mut sidecar = pod.spec.containers[1].clone();
    sidecar.name = "mesh".to_owned();
    sidecar.restart_policy = Some("Always".to_owned());
    let mut setup = sidecar.clone();
    setup.name = "setup".to_owned();
    setup.restart_policy = None;
    pod.spec.init_containers = vec![setup, sidecar];
    assert_eq!(
        refused(&pod, "setup", r#"{"limits":{"cpu":"1"}}"#),
        "container setup is an init container: vscaled resizes regular containers and sidecars only; change its resources \
         in the workload's pod template"
    );
    pod.spec.ephemeral_containers = vec!["dbg".to_owned()];
    assert_eq!(
        refused(&pod, "dbg", r#"{"limits":{"cpu":"1"}}"#),
        "container dbg is an ephemeral container: those have no resources and cannot be resized"
    );
    let of_sidecar = Override::by_root(values("mesh", r#"{"limits":{"cpu":"1"}}"#));
    DesiredState::default()
        .set_override(&pod, of_sidecar, PageSize::KIB_4)
        .unwrap();
    pod.spec.init_containers.clear();
    pod.spec.resources = serde_json::from_str(r#"{"requests":{"cpu":"300m"},"limits":{"memory":"200Mi"}}"#).unwrap();
    let limit = refused(&pod, "app", r#"{"limits":{"memory":"256Mi"}}"#);
    assert!(
        limit.starts_with("the containers would have 256Mi of memory, and the pod's own spec.resources allow 200Mi"),
        "{limit}"
    );
    let sum = refused(&pod, "side", r#"{"requests":{"cpu":"250m"}}"#);
    assert!(
        sum.contains("would have 350m of cpu") && sum.contains("allow 300m"),
        "{sum}"
    );
    pod.spec.restart_policy = "Never".to_owned();
    pod.status.container_statuses =
        serde_json::from_str(r#"[{"name": "app", "state": {"terminated": {"reason": "Completed"}}}]"#).unwrap();
    assert_eq!(
        refused(&pod, "app", r#"{"limits":{"memory":"150Mi"}}"#),
        "container app has ended and does not start again"
    );
}

/// The pod, running with these containers, by name and id.
fn live(containers: &[(&str, &str)]) -> LivePod {
    let path = CgroupPath::new("/kubepods/podu").unwrap();
    let containers = containers.iter().map(|(name, id)| {
        let (id, path) = (ContainerId::of_test(id), path.clone());
        ((*name).into(), LiveContainer { id, path })
    });
    LivePod {
        id: PodId {
            uid: "u".into(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        },
        containers: containers.collect(),
        path,
    }
}

#[test]
fn only_what_is_in_force_outlasts_a_refusal() {
    let (pod, fresh, mut asked) = (pod(), Resize::default(), Resize::default());
    let (all, earlier) = (pod.requirements(), values("app", r#"{"requests": {"cpu": "50m"}}"#));
    let report = Report {
        answer: Some(Ok(Request {
            targets: all.clone(),
            ..Request::default()
        })),
        ..Report::default()
    };
    asked.answered(&pod, &report, &Outcome::Applied, false, Instant::now());
    let recommended = |targets: &PodAmounts, in_force| {
        Some(Recommended {
            vpa: None,
            at: Timestamp::UNIX_EPOCH,
            targets: targets.clone(),
            in_force,
        })
    };
    let kept = |in_force, resize: &Resize| {
        let mut desired = DesiredState::default().with_recommended(recommended(&all, in_force));
        desired.keep_in_force(&pod, resize);
        desired.recommended
    };
    assert_eq!(kept(InForce::Nothing, &fresh), None);
    assert_eq!(kept(InForce::Nothing, &asked), recommended(&all, InForce::Nothing));
    assert_eq!(
        kept(InForce::Earlier(earlier.clone()), &fresh),
        recommended(&earlier, InForce::Recommended)
    );
    assert_eq!(
        kept(InForce::Recommended, &fresh),
        recommended(&all, InForce::Recommended)
    );
}

#[test]
fn only_the_first_recommendation_avoids_restarts() {
    let live = live(&[("app", "a1"), ("side", "s1")]);
    let recommendation = || Cause::Recommendation {
        vpa: "web".to_owned(),
        version: "7".to_owned(),
        reason: Reason::OutOfBounds,
    };
    let why = String::new;
    let mut desired = DesiredState::default();
    for (cause, outcome, restarts) in [
        (Cause::Sweep, Outcome::Applied, None),
        (recommendation(), Outcome::Unchanged, None),
        (recommendation(), Outcome::RolledBack(why()), None),
        (recommendation(), Outcome::RuntimeOwed(why()), Some(2)),
        (recommendation(), Outcome::Applied, Some(0)),
    ] {
        let record = ChangeRecord::new(live.id.clone(), cause, outcome);
        let avoided = restarts.map(|restarts| Avoided::Eviction { restarts });
        assert_eq!(desired.note_resized(&record, &live), avoided, "{:?}", record.outcome);
    }
}

#[test]
fn throttling_counts_per_hour_after_a_minute() {
    assert_eq!(per_hour(1_000_000, SignedDuration::from_secs(60)), Some(60_000_000));
    assert_eq!(per_hour(1_000_000, SignedDuration::from_hours(2)), Some(500_000));
    assert_eq!(per_hour(1_000_000, SignedDuration::from_secs(59)), None);
}

#[test]
fn a_bursts_throttling_before_outlasts_restarts() {
    let started = Timestamp::from_second(1_700_000_000).unwrap();
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "app"}]},
        "status": {"containerStatuses": [{"name": "app", "state": {"running": {"startedAt": started}}}]},
    }))
    .unwrap();
    let mut desired = DesiredState::default();
    let mut note = |id: &str, hours: i64| {
        let now = started.checked_add(SignedDuration::from_hours(hours)).unwrap();
        let throttled = ["app", "ended"].map(|name| (ContainerName::from(name), Duration::from_secs(10)));
        desired.note_bursts(&pod, &live(&[("app", id)]), throttled.into(), now);
        desired.burst_starts.clone()
    };
    let start = |id: &str, hours| BurstStart {
        id: ContainerId::of_test(id),
        at: started.checked_add(SignedDuration::from_hours(hours)).unwrap(),
        throttled_us: 10_000_000,
        before: Some(5_000_000),
    };
    assert_eq!(note("a1", 2), [(ContainerName::from("app"), start("a1", 2))].into());
    assert_eq!(note("a2", 10), [(ContainerName::from("app"), start("a2", 10))].into());
    assert!(desired.set_burst(Some(CpuBurst::ZERO)) && desired.burst_starts.is_empty());
    assert!(!desired.set_burst(Some(CpuBurst::ZERO)));
}

/// A recommendation of this cpu limit, in thousandths of a cpu.
fn recommended(vpa: &str, cpu: u64, in_force: InForce) -> Recommended {
    let mut targets = pod().requirements();
    targets.containers[0].resources.limits.cpu = Some(MilliCpu::new(cpu));
    Recommended {
        vpa: Some(vpa.to_owned()),
        at: Timestamp::UNIX_EPOCH,
        targets,
        in_force,
    }
}

fn cpu_limit(recommended: Option<&Recommended>) -> Option<u64> {
    let limits = recommended?.targets.containers[0].resources.limits;
    limits.cpu.map(MilliCpu::get)
}

#[test]
fn a_saved_recommendation_holds_until_one_is_followed() {
    use InForce::{Nothing, Recommended as Whole};
    // The saved one recommends 200, the decided one 300. It may have been requested, another one followed, amounts kept.
    for (in_force, [asked, is_followed, has_origin], decided, left) in [
        (Whole, [false, false, false], None, Some(200)),
        (Whole, [false, false, false], Some("web"), Some(200)),
        (Nothing, [false, false, false], Some("web"), None),
        (Nothing, [true, false, false], None, Some(200)),
        (Whole, [false, true, false], Some("web"), Some(200)),
        (Nothing, [false, true, false], Some("web"), Some(300)),
        (Whole, [false, true, false], Some("other"), Some(300)),
        (Whole, [false, true, true], Some("other"), None),
        (Whole, [false, true, false], None, None),
    ] {
        let case = format!("{in_force:?} {asked} {is_followed} {has_origin} {decided:?}");
        let mut desired = DesiredState {
            recommended: decided.map(|vpa| recommended(vpa, 300, Nothing)),
            ..DesiredState::default()
        };
        let saved = DesiredState {
            recommended: Some(recommended("web", 200, in_force)),
            origin: has_origin.then(|| pod().requirements()),
            burst: Some(CpuBurst::ZERO),
            ..DesiredState::default()
        };
        desired.restore(saved, asked, is_followed);
        assert_eq!(cpu_limit(desired.recommended.as_ref()), left, "{case}");
        assert_eq!(desired.burst, Some(CpuBurst::ZERO));
    }
}

#[test]
fn requests_before_are_those_of_the_first_recommendation() {
    let (pod, resize) = (pod(), Resize::default());
    let mut desired = DesiredState::default();
    let own = requests(&pod.requirements());
    for cpu in [200, 300] {
        let mut next = recommended("web", cpu, InForce::Nothing);
        next.targets.containers[0].resources.requests.cpu = Some(MilliCpu::new(cpu));
        desired.recommend(next, &pod, &resize);
        assert_eq!(desired.before, Some(own));
        desired.bring_into_force(None, true);
    }
    let recommended = desired.recommended.unwrap();
    assert_eq!(recommended.in_force, InForce::Recommended);
}

#[test]
fn a_refused_recommendation_leaves_the_one_in_force() {
    let (pod, resize) = (pod(), Resize::default());
    let earlier = recommended("web", 200, InForce::Nothing).targets;
    let mut desired = DesiredState {
        recommended: Some(recommended("web", 300, InForce::Earlier(earlier.clone()))),
        ..DesiredState::default()
    };
    desired.refuse(&earlier, &pod, &resize);
    assert_eq!(cpu_limit(desired.recommended.as_ref()), Some(300), "another one");
    let refused = recommended("web", 300, InForce::Nothing).targets;
    desired.refuse(&refused, &pod, &resize);
    assert_eq!(cpu_limit(desired.recommended.as_ref()), Some(200));
}

#[test]
fn a_pass_brings_its_own_recommendation_into_force() {
    let targets = |cpu| recommended("web", cpu, InForce::Nothing).targets;
    for (is_current, in_force) in [(true, 300), (false, 200)] {
        let mut desired = DesiredState {
            recommended: Some(recommended("web", 300, InForce::Nothing)),
            ..DesiredState::default()
        };
        desired.bring_into_force(Some(targets(200)), is_current);
        let known = desired.recommended.as_ref().and_then(Recommended::in_force);
        assert_eq!(cpu_limit(known.as_ref()), Some(in_force));
    }
}

#[test]
fn the_latest_start_is_of_any_that_lasts() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut desired = DesiredState::default();
    assert_eq!(desired.latest_start(), None);
    desired.put_override(Override {
        since: at(5),
        ..Override::by_root(PodAmounts::default())
    });
    assert_eq!(desired.latest_start(), Some(at(5)));
    for second in [3, 9] {
        let (container, why) = ("app".to_owned(), String::new());
        let given = TemporaryLimit::given(container, Resource::Cpu, (1, 2), why, at(second));
        desired.grow(given);
        assert_eq!(desired.latest_start(), Some(at(second.max(5))));
    }
}

#[test]
fn the_next_step_of_an_override_is_its_end() {
    let mut desired = DesiredState::default();
    assert!(desired.override_next_step().is_none() && desired.next_step().starts_with("Nothing"));
    desired.put_override(Override::by_root(PodAmounts::default()));
    let step = desired.override_next_step().unwrap();
    assert!(step.contains("until `vscalectl release`"), "{step}");
    desired.put_override(Override {
        until: Some(Timestamp::UNIX_EPOCH),
        ..Override::by_root(PodAmounts::default())
    });
    let step = desired.override_next_step().unwrap();
    assert!(step.contains("ends at 1970-01-01T00:00:00Z"), "{step}");
}
