//! Startup boosts, as VPA's webhook leaves them on pods.

mod hostile;
mod properties;
mod several;

use jiff::SignedDuration;

use super::*;
use crate::decide::decide_pod;
use crate::model::objects::annotation::{ACT, BOOST_PREFIX, CANARY, CPU_LIMIT, IGNORE};
use crate::model::objects::{
    ContainerPolicy, ContainerStatus, CpuBoost, PodCondition, ResourcePolicy, StartupBoost, UpdateMode, UpdatePolicy,
};
use crate::model::{Action, MilliCpu, Reason};

/// What the container of [`WEB`] had before its boost.
const BEFORE: &str = r#"{"requests":{"cpu":"100m","memory":"100Mi"},"limits":{"cpu":"300m","memory":"300Mi"}}"#;

fn annotate(pod: &mut Pod, container: &str, before: &str) {
    let name = format!("{BOOST_PREFIX}{container}");
    pod.metadata.annotations.insert(name, before.to_owned());
}

fn ready(pod: &mut Pod, since: Option<Timestamp>) {
    pod.status.conditions = vec![PodCondition {
        kind: "Ready".to_owned(),
        status: "True".to_owned(),
        last_transition_time: since,
        ..PodCondition::default()
    }];
}

fn for_seconds(seconds: i64) -> Option<StartupBoost> {
    let cpu = CpuBoost {
        kind: "Factor".to_owned(),
        factor: Some(10),
        duration_seconds: Some(seconds),
        ..CpuBoost::default()
    };
    Some(StartupBoost { cpu: Some(cpu) })
}

/// [`WEB`] with ten times the cpu, as it is boosted for this long once it is ready. It is not ready yet, and its memory is
/// what is recommended.
fn boosted(seconds: i64) -> KnownObjects {
    let mut view = view(WEB);
    view.vpas[0].spec.startup_boost = for_seconds(seconds);
    let pod = pod_of(&mut view);
    annotate(pod, "app", BEFORE);
    let resources = &mut pod.spec.containers[0].resources;
    resources.requests = serde_json::from_str(r#"{"cpu": "1", "memory": "200Mi"}"#).unwrap();
    resources.limits = serde_json::from_str(r#"{"cpu": "3", "memory": "600Mi"}"#).unwrap();
    view
}

fn ready_for(mut view: KnownObjects, seconds: i64) -> KnownObjects {
    ready(pod_of(&mut view), Some(now() - SignedDuration::from_secs(seconds)));
    view
}

fn set_mode(view: &mut KnownObjects, mode: UpdateMode) {
    view.vpas[0].spec.update_policy = Some(UpdatePolicy {
        update_mode: Some(mode),
        ..UpdatePolicy::default()
    });
}

#[test]
fn a_boost_lasts_beyond_readiness() {
    let decision = decide_one(&boosted(30));
    assert_eq!(
        (decision.reason, cpu(&decision, "app")),
        (Reason::StartupBoost, "1/3".into())
    );
    assert_eq!(decision.boosts, crate::decide::Boosts::default());
    assert_eq!(
        notes(&decision),
        ["app: cpu keeps its startup boost until the pod has been ready for 30 s"]
    );

    let decision = decide_one(&ready_for(boosted(30), 29));
    assert_eq!(
        (decision.reason, cpu(&decision, "app")),
        (Reason::StartupBoost, "1/3".into())
    );
    assert_eq!(decision.boosts.next_end, Some(now() + SignedDuration::from_secs(1)));
    assert_eq!(
        notes(&decision),
        ["app: cpu keeps its startup boost until 2026-03-01T12:00:01Z"]
    );

    let decision = decide_one(&ready_for(boosted(30), 30));
    assert_eq!(
        (decision.reason, cpu(&decision, "app")),
        (Reason::StartupBoostEnded, "200m/600m".into()),
        "what is recommended, and three times that as it was before the boost"
    );
    assert_eq!(decision.boosts, crate::decide::Boosts::default(), "not yet taken back");
}

#[test]
fn without_duration_readiness_ends_a_boost() {
    let mut view = boosted(0);
    let boost = view.vpas[0].spec.startup_boost.as_mut().unwrap();
    boost.cpu.as_mut().unwrap().duration_seconds = None;
    assert_eq!(
        notes(&decide_one(&view)),
        ["app: cpu keeps its startup boost until the pod is ready"]
    );
    let decision = decide_one(&ready_for(view, -5));
    assert_eq!(decision.reason, Reason::StartupBoostEnded, "whatever the clocks say");
    let mut view = boosted(30);
    ready(pod_of(&mut view), None);
    assert_eq!(
        decide_one(&view).reason,
        Reason::StartupBoostEnded,
        "since when is not known"
    );
    let mut view = ready_for(boosted(30), 60);
    pod_of(&mut view).status.conditions[0].status = "False".to_owned();
    assert_eq!(decide_one(&view).reason, Reason::StartupBoost);
}

#[test]
fn the_duration_of_a_containers_own_policy_counts_first() {
    let mut view = ready_for(boosted(30), 60);
    let policy = ContainerPolicy {
        container_name: "*".to_owned(),
        startup_boost: for_seconds(90),
        ..ContainerPolicy::default()
    };
    view.vpas[0].spec.resource_policy = Some(ResourcePolicy {
        pod_policy: None,
        container_policies: vec![policy],
    });
    assert_eq!(decide_one(&view).reason, Reason::StartupBoost);
    let policies = &mut view.vpas[0].spec.resource_policy.as_mut().unwrap().container_policies;
    policies[0]
        .startup_boost
        .as_mut()
        .unwrap()
        .cpu
        .as_mut()
        .unwrap()
        .duration_seconds = None;
    assert_eq!(decide_one(&view).reason, Reason::StartupBoostEnded);
}

#[test]
fn memory_and_other_containers_move_while_a_boost_lasts() {
    let mut view = boosted(30);
    let pod = pod_of(&mut view);
    pod.spec.containers[0].resources.requests.memory = Some(crate::model::Bytes::new(100 << 20));
    let mut other = pod.spec.containers[0].clone();
    other.name = "side".to_owned();
    pod.spec.containers.push(other);
    let said = &mut view.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations;
    let mut side = said[0].clone();
    side.container_name = "side".to_owned();
    said.push(side);
    let decision = decide_one(&view);
    assert_eq!(
        (decision.action(), decision.reason),
        (Action::Resize, Reason::OutOfBounds)
    );
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("1/3".into(), "200Mi/1200Mi".into())
    );
    assert_eq!(cpu(&decision, "side"), "200m/600m");
}

#[test]
fn the_end_of_a_boost_moves_nothing_else() {
    let mut view = ready_for(boosted(30), 30);
    let resources = &mut pod_of(&mut view).spec.containers[0].resources;
    resources.requests.memory = Some(crate::model::Bytes::new(190 << 20));
    let decision = decide_one(&view);
    assert_eq!(decision.reason, Reason::StartupBoostEnded);
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("200m/600m".into(), "190Mi/600Mi".into()),
        "its memory is in range"
    );
}

/// Its end would be a resize too.
#[test]
fn a_boost_beside_huge_pages_stays() {
    let mut view = ready_for(boosted(30), 30);
    let pod = pod_of(&mut view);
    pod.spec.has_huge_pages = true;
    pod.status.container_statuses = vec![ContainerStatus {
        name: "app".to_owned(),
        resources: Some(pod.spec.containers[0].resources),
        ..ContainerStatus::default()
    }];
    let decision = decide_one(&view);
    assert_eq!(
        (decision.reason, decision.change()),
        (Reason::KubeletRefuses, None),
        "{:?}",
        decision.notes
    );
    assert!(decision.boosts.done.is_empty(), "its annotation is still needed");
}

#[test]
fn a_boost_that_ends_before_a_canary_is_noted_once() {
    let mut view = ready_for(boosted(30), 30);
    view.vpas[0].metadata.uid = "vpa-1".to_owned();
    for (annotation, value) in [(CANARY, "10%"), (CPU_LIMIT, "request*2")] {
        let of_vpa = &mut view.vpas[0].metadata.annotations;
        of_vpa.insert(annotation.to_owned(), value.to_owned());
    }
    let pod = pod_of(&mut view);
    pod.metadata.uid = canary::uid(false);
    pod.spec.containers[0].resources.requests.memory = Some(crate::model::Bytes::new(100 << 20));
    let decision = decide_one(&view);
    assert_eq!(
        (decision.reason, cpu(&decision, "app")),
        (Reason::StartupBoostEnded, "200m/400m".into())
    );
    let limits = notes(&decision).into_iter().filter(|note| note.contains(CPU_LIMIT));
    assert_eq!(
        limits.collect::<Vec<_>>(),
        ["app: cpu limit becomes 400m: vscaled.io/cpu-limit of the VPA"]
    );
}

#[test]
fn without_a_recommendation_the_origin_returns() {
    type Change = fn(&mut KnownObjects);
    let cases: [(&str, Change); 4] = [
        ("no recommendation yet", |view| {
            view.vpas[0].status.recommendation = None;
        }),
        ("the container's mode is Off", |view| {
            let policy = ContainerPolicy {
                container_name: "app".to_owned(),
                mode: Some("Off".to_owned()),
                ..ContainerPolicy::default()
            };
            view.vpas[0].spec.resource_policy = Some(ResourcePolicy {
                pod_policy: None,
                container_policies: vec![policy],
            });
        }),
        ("cpu is not controlled", |view| {
            let policy = ContainerPolicy {
                container_name: "app".to_owned(),
                controlled_resources: Some(vec!["memory".to_owned()]),
                ..ContainerPolicy::default()
            };
            view.vpas[0].spec.resource_policy = Some(ResourcePolicy {
                pod_policy: None,
                container_policies: vec![policy],
            });
        }),
        ("the VPA's mode is Off", |view| set_mode(view, UpdateMode::Off)),
    ];
    for (case, change) in cases {
        let mut view = ready_for(boosted(0), 1);
        change(&mut view);
        let decision = decide_one(&view);
        assert_eq!(decision.reason, Reason::StartupBoostEnded, "{case}");
        assert_eq!(cpu(&decision, "app"), "100m/300m", "{case}");
        assert_eq!(memory(&decision, "app"), "200Mi/600Mi", "{case}");
        let resources = decision.amounts.containers[0].resources;
        pod_of(&mut view).spec.containers[0].resources = resources;
        let decision = decide_one(&view);
        assert_ne!(decision.action(), Action::Resize, "{case}");
        assert_eq!(decision.boosts.done, ["app"], "{case}");
    }
}

#[test]
fn mode_initial_recommends_from_creation() {
    let mut view = ready_for(boosted(0), 1);
    set_mode(&mut view, UpdateMode::Initial);
    let decision = decide_one(&view);
    assert_eq!(
        (decision.reason, cpu(&decision, "app")),
        (Reason::StartupBoostEnded, "200m/600m".into())
    );
    pod_of(&mut view).metadata.annotations.clear();
    assert_eq!(decide_one(&view).reason, Reason::NotActedOn);
}

#[test]
fn boosts_that_others_are_to_end_are_left_alone() {
    let reason = |change: fn(&mut KnownObjects), options: &Options| {
        let mut view = ready_for(boosted(0), 1);
        change(&mut view);
        decide(&view.pods, &index(&view), now(), options)[0].reason
    };
    let ours = Options::default();
    let act = |view: &mut KnownObjects| {
        let annotations = &mut view.vpas[0].metadata.annotations;
        annotations.insert(ACT.to_owned(), "false".to_owned());
    };
    assert_eq!(reason(act, &ours), Reason::NotActedOn);
    let ignore = |view: &mut KnownObjects| {
        let annotations = &mut pod_of(view).metadata.annotations;
        annotations.insert(IGNORE.to_owned(), "true".to_owned());
    };
    assert_eq!(reason(ignore, &ours), Reason::Ignored);
    let in_place = Options {
        modes: vec![UpdateMode::InPlace],
        ..Options::default()
    };
    assert_eq!(
        reason(|_| {}, &in_place),
        Reason::NotActedOn,
        "mode Recreate is another's"
    );
    assert_eq!(
        reason(|view| set_mode(view, UpdateMode::Off), &in_place),
        Reason::StartupBoostEnded
    );
    let none = Options {
        modes: Vec::new(),
        ..Options::default()
    };
    assert_eq!(
        reason(|view| set_mode(view, UpdateMode::Off), &none),
        Reason::NotActedOn
    );
    assert_eq!(reason(|view| view.vpas.clear(), &ours), Reason::NoVpa);
}

#[test]
fn an_unreadable_annotation_ends_the_boost() {
    let mut view = ready_for(boosted(0), 1);
    annotate(pod_of(&mut view), "app", "{\"requests\":{\"cpu\":\"much\"}}");
    let decision = decide_one(&view);
    assert_eq!(
        (decision.reason, cpu(&decision, "app")),
        (Reason::StartupBoostEnded, "200m/600m".into())
    );
    view.vpas[0].status.recommendation = None;
    let decision = decide_one(&view);
    assert_eq!(
        (decision.action(), decision.reason),
        (Action::Skip, Reason::BoostUnreadable)
    );
    assert_eq!(decision.boosts.done, [""; 0], "somebody has to see to it");
    let said = notes(&decision).join("\n");
    assert!(said.contains("annotation vpaCpuStartupBoost/app should hold"), "{said}");
    annotate(
        pod_of(&mut view),
        "app",
        r#"{"requests":{"cpu":"2"},"limits":{"cpu":"1"}}"#,
    );
    let said = notes(&decide_one(&view)).join("\n");
    assert!(said.contains("the cpu request 2 is above the limit 1"), "{said}");
}

#[test]
fn an_added_request_stays() {
    let mut view = ready_for(boosted(0), 1);
    set_mode(&mut view, UpdateMode::Off);
    annotate(pod_of(&mut view), "app", "{}");
    let decision = decide_one(&view);
    assert_eq!(
        (decision.reason, cpu(&decision, "app")),
        (Reason::AtTarget, "1/3".into())
    );
    assert_eq!(decision.boosts.done, ["app"]);
    assert!(
        notes(&decision)
            .iter()
            .any(|note| note.contains("cpu stays as its startup boost left it"))
    );
}

#[test]
fn a_mark_without_container_ends_at_the_start() {
    let mut view = boosted(0);
    annotate(pod_of(&mut view), "gone", BEFORE);
    assert_eq!(decide_one(&view).boosts.done, [""; 0]);
    assert_eq!(decide_one(&ready_for(view, 1)).boosts.done, ["gone"]);
}

#[test]
fn a_boost_that_needs_a_restart_stays() {
    let mut view = ready_for(boosted(0), 1);
    pod_of(&mut view).spec.containers[0].resize_policy =
        serde_json::from_str(r#"[{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]"#).unwrap();
    let decision = decide_one(&view);
    assert_eq!(
        (decision.reason, cpu(&decision, "app")),
        (Reason::RestartRequired, "1/3".into())
    );
    assert_eq!(decision.boosts.done, [""; 0]);
}

#[test]
fn a_resize_under_way_ends_no_boost() {
    let mut view = boosted(30);
    let pod = pod_of(&mut view);
    let mut has = pod.spec.containers[0].resources;
    has.limits.cpu = Some(MilliCpu::new(2000));
    pod.status.container_statuses = vec![ContainerStatus {
        name: "app".to_owned(),
        resources: Some(has),
        ..ContainerStatus::default()
    }];
    let decision = decide_one(&view);
    assert_eq!(
        (decision.reason, cpu(&decision, "app")),
        (Reason::StartupBoost, "1/3".into())
    );
}

#[test]
fn the_record_says_a_boost_ended() {
    let view = ready_for(boosted(0), 1);
    let ended = decide_one(&view);
    let later = decide_pod(
        &view.pods[0],
        &index(&view),
        now(),
        &Options::default(),
        Some(&ended.amounts).into(),
    );
    assert_eq!((later.action(), cpu(&later, "app")), (Action::None, "200m/600m".into()));
    let mut raised = view.clone();
    let said = &mut raised.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations;
    said[0].target.cpu = Some(MilliCpu::new(210));
    let near = decide_pod(
        &raised.pods[0],
        &index(&raised),
        now(),
        &Options::default(),
        Some(&ended.amounts).into(),
    );
    assert_eq!(
        near.reason,
        Reason::InRange,
        "what is near enough is left alone, as ever"
    );
    let mut unready = view;
    pod_of(&mut unready).status.conditions.clear();
    let unready = decide_pod(
        &unready.pods[0],
        &index(&unready),
        now(),
        &Options::default(),
        Some(&ended.amounts).into(),
    );
    assert_eq!(
        (unready.action(), cpu(&unready, "app")),
        (Action::None, "200m/600m".into()),
        "no second boost"
    );
}
