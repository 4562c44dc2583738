//! What the controller makes of events and of the time.

use std::collections::BTreeSet;
use std::path::Path;

use super::passes::tests::Way;
use super::tests::{
    UID, controller, decided, decided_at, decision, growth, inventory_of, pod, request_override, view_of,
};
use super::*;
use crate::actuate::Node;
use crate::decide::{CanaryWait, PodDecision};
use crate::model::objects::annotation::MIRROR;
use crate::model::objects::{self, LimitRange, OwnerReference, Pod, PodId, ResourceQuota};
use crate::model::{Bytes, CgroupPath, ChangeRecord, LivePod, Reason};
use crate::plan::hook::{Hook, HookAction, HookMoment, HookSignal};
use crate::plan::shrink::Progress;
use crate::reconcile::overrides::Override;
use crate::reconcile::pod::Located;
use crate::reconcile::store::StateFile;
use crate::reconcile::work::OperatorRequest;
use crate::report::testing::kill_of;
use crate::sources::{KnownObjects, parse_manifests};

/// A controller with a pod that has an override, and no pass that is due.
fn enforcing(directory: &Path) -> (Controller, PodKey) {
    let mut controller = controller(directory);
    let live = LivePod {
        id: pod(),
        path: CgroupPath::new("/kubepods/podu1").unwrap(),
        containers: <_>::default(),
    };
    let key = request_override(&mut controller, live);
    let (number, resize) = (1, Box::default());
    controller.apply(&key, PodInput::OnNode(NodeEvent::PassBegan { number, resize }));
    let record = ChangeRecord::new(pod(), Cause::Sweep, Outcome::Applied);
    controller.end_pass(&key, number, Box::new(JobDone::new(record)));
    assert!(controller.pods.get(&key).unwrap().work.pending().is_none());
    (controller, key)
}

#[tokio::test]
async fn a_sweep_checks_pods_that_are_not_watched() {
    let directory = tempfile::tempdir().unwrap();
    let (mut controller, key) = enforcing(directory.path());
    let (discover, mut discoveries) = mpsc::channel(1);
    controller.node.discover = discover;
    let sweep = controller.next_sweep;
    controller.next_decisions = sweep + DECIDE_EVERY;
    controller.on_time(sweep);
    let pending = controller.pods.get(&key).unwrap().work.pending();
    assert_eq!(pending.map(|pending| &pending.cause), Some(&Cause::Sweep));
    assert!(discoveries.try_recv().is_ok());
    assert_eq!(controller.next_sweep, sweep + controller.config.sweep_interval);
}

#[tokio::test]
async fn a_kill_is_trouble_of_the_pod_that_ran() {
    let directory = tempfile::tempdir().unwrap();
    let (mut controller, key) = enforcing(directory.path());
    let mut kill = kill_of("web", 1);
    for (uid, trouble) in [("another", None), (UID, Some(kill.time))] {
        kill.facts.pod.as_mut().unwrap().uid = uid.to_owned();
        controller.take_kill(&kill);
        assert_eq!(controller.pods.get(&key).unwrap().trouble, trouble, "{uid}");
    }
}

#[tokio::test]
async fn written_files_are_compared_after_a_burst() {
    let directory = tempfile::tempdir().unwrap();
    let (mut controller, key) = enforcing(directory.path());
    controller.note_written(Some(BTreeSet::new()));
    assert_eq!(controller.files.due, None);
    let before = Instant::now();
    // The kernel has lost notices.
    controller.note_written(None);
    let due = controller.files.due.unwrap();
    assert!(due >= before + Duration::from_millis(20) && controller.files.written.contains(&key));
    controller.note_written(Some([key.clone()].into()));
    assert_eq!(controller.files.due, Some(due), "the burst began then");
    // The container may be about to run out of memory.
    let mut grown = growth(Bytes::new(256 << 20));
    grown.of.container = "side".into();
    controller.take_guard_report(grown);
    controller.note_written(Some([key].into()));
    assert!(controller.files.due.unwrap() <= Instant::now());
}

#[tokio::test]
async fn whatever_is_due_first_wakes_the_controller() {
    let due: [fn(&mut Controller); 6] = [
        |controller| controller.decides = true,
        |controller| controller.store.due = Some(Instant::now()),
        |controller| controller.files.due = Some(Instant::now()),
        |controller| controller.endpoint.retry_at = Some(Instant::now()),
        |controller| controller.next_sweep = Instant::now(),
        |controller| controller.next_decisions = Instant::now(),
    ];
    for (number, due) in due.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let mut controller = controller(directory.path());
        due(&mut controller);
        assert!(controller.next_wake() <= Instant::now(), "{number}");
    }
    let directory = tempfile::tempdir().unwrap();
    let (mut controller, key) = enforcing(directory.path());
    let mut ends = Box::new(controller.pods.get(&key).unwrap().decision.clone());
    ends.boosts.next_end = Some(Timestamp::UNIX_EPOCH);
    let took = Duration::ZERO;
    controller.apply(&key, PodInput::Decided { decision: ends, took });
    assert!(controller.next_wake() <= Instant::now());
}

#[tokio::test]
async fn an_observing_agent_saves_no_wait_for_others() {
    let directory = tempfile::tempdir().unwrap();
    let (mut controller, key) = enforcing(directory.path());
    let mut waits = Box::new(controller.pods.get(&key).unwrap().decision.clone());
    waits.canary.waits = Some(CanaryWait {
        since: Timestamp::UNIX_EPOCH,
        targets: <_>::default(),
    });
    for observes in [false, true, false] {
        waits.canary.is_observed = observes;
        let (decision, took) = (waits.clone(), Duration::ZERO);
        controller.apply(&key, PodInput::Decided { decision, took });
        controller.store.save();
        controller.store.saved().await.unwrap();
        let file = StateFile::in_directory(directory.path()).unwrap();
        let saved: Vec<_> = file.load().unwrap().pods.into_values().collect();
        assert_eq!((saved.len(), saved[0].waits.is_none()), (1, observes));
    }
}

#[tokio::test]
async fn an_ended_pass_tells_what_it_found() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let (discover, mut discoveries) = mpsc::channel(1);
    controller.node.discover = discover;
    controller.endpoint.refusals = 3;
    for (is_stale, systemd_failed, is_accepted) in [(false, false, false), (true, false, true), (false, true, true)] {
        controller.passes.busy.insert(UID.into());
        let mut done = JobDone::new(ChangeRecord::new(pod(), Cause::Sweep, Outcome::Applied));
        (done.stale, done.systemd_failed) = (is_stale, systemd_failed);
        if is_accepted {
            let request = serde_json::json!({"targets": [], "generation": 2, "held": []});
            done.api.answer = Some(Ok(serde_json::from_value(request).unwrap()));
        }
        controller.end_pass(&PodKey::new("shop", "web"), 1, Box::new(done));
        assert!(controller.passes.busy.is_empty());
        assert_eq!(discoveries.try_recv().is_ok(), is_stale || systemd_failed);
        assert_eq!(controller.endpoint.refusals, if is_accepted { 0 } else { 3 });
    }
}

#[tokio::test]
async fn an_unserved_resize_is_tried_after_a_pause() {
    let directory = tempfile::tempdir().unwrap();
    let (mut controller, key) = enforcing(directory.path());
    let resizes = "
kind: Pod
metadata: {name: web, namespace: shop, uid: u1}
spec: {containers: [{name: app, resources: {limits: {memory: 64Mi}}}]}
status: {containerStatuses: [{name: app, resources: {limits: {memory: 64Mi}}}]}
";
    let resizes = Arc::clone(&parse_manifests("test", resizes).unwrap().view.pods[0]);
    controller.apply(&key, PodInput::Described(resizes));
    let (number, resize) = (2, Box::default());
    controller.apply(&key, PodInput::OnNode(NodeEvent::PassBegan { number, resize }));
    controller.endpoint.resizer = Some(Arc::new(Way));
    let mut done = JobDone::new(ChangeRecord::new(pod(), Cause::Kubelet, Outcome::Applied));
    done.api.unsupported = true;
    controller.end_pass(&key, number, Box::new(done));
    let end = controller.endpoint.retry_at.unwrap();
    (controller.next_sweep, controller.next_decisions) = (end + DECIDE_EVERY, end + DECIDE_EVERY);
    let mut due_at = |now: Instant| {
        controller.on_time(now);
        let pending = controller.pods.get(&key).unwrap().work.pending();
        pending.map(|pending| pending.cause.clone())
    };
    assert_eq!(due_at(end - Duration::from_millis(1)), None);
    assert_eq!(due_at(end), Some(Cause::Retry));
}

#[tokio::test]
async fn only_a_listed_namespace_has_hooks() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    controller.config.hooks = vec!["shop".to_owned()];
    let view = view_of(&["other/cache", "shop/web"]);
    let mut mirror = Pod::clone(&view.pods[1]);
    mirror.metadata.annotations.insert(MIRROR.to_owned(), "hash".to_owned());
    mirror.metadata.owner_references = vec![OwnerReference {
        kind: "Node".to_owned(),
        ..OwnerReference::default()
    }];
    let pods = [Arc::clone(&view.pods[0]), Arc::clone(&view.pods[1]), Arc::new(mirror)];
    let is_allowed = pods.map(|pod| {
        let decision = PodDecision::undecided(&pod);
        controller.hooks_forbidden_by(&PodState::new(pod, decision)).is_none()
    });
    assert_eq!(is_allowed, [false, true, false]);
    controller.config.guard = false;
    assert_eq!(controller.quiet(), SignedDuration::ZERO, "nothing grows");
}

/// A pod of this namespace and name, whose container has 64Mi.
fn manifest(namespace: &str, name: &str, uid: &str) -> Arc<Pod> {
    let metadata = format!("{{name: {name}, namespace: {namespace}, uid: {uid}}}");
    let manifest = format!(
        "{{kind: Pod, metadata: {metadata}, spec: {{containers: [{{name: app, resources: {{limits: {{memory: 64Mi}}}}}}]}}}}"
    );
    Arc::clone(&parse_manifests("test", &manifest).unwrap().view.pods[0])
}

#[tokio::test]
async fn a_change_elsewhere_retries_no_waiting_pod() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let web = PodKey::new("shop", "web");
    let mut view = NodeView::from(view_of(&["bank/db", "shop/web"]));
    let mut is_retried = |namespace: &str, change: fn(&mut KnownObjects)| {
        let mut known = KnownObjects::clone(&view.namespaces[namespace]);
        change(&mut known);
        view.namespaces.insert(namespace.to_owned(), Arc::new(known));
        if let Some(pod) = controller.pods.get(&web).map(|state| Arc::clone(&state.pod)) {
            controller.apply(&web, decision(&pod, Reason::OutOfBounds));
            let full = PodInput::Followed {
                refused: Some("no room".to_owned()),
                cause: None,
                delay: Duration::ZERO,
            };
            controller.apply(&web, full);
        }
        controller.take_view(Arc::new(view.clone()), Vec::new());
        controller.pods.get(&web).unwrap().decision.reason != Reason::OutOfBounds
    };
    assert!(is_retried("bank", |_| {}), "the first view");
    let has_range = |known: &mut KnownObjects| known.limit_ranges.push(LimitRange::default().into());
    assert!(!is_retried("bank", has_range), "there is no more room than before");
    assert!(
        is_retried("bank", |known| known.pods.clear()),
        "a pod has left the node"
    );
    let has_quota = |known: &mut KnownObjects| known.quotas.push(ResourceQuota::default().into());
    assert!(is_retried("shop", has_quota), "the objects of its own namespace");
}

#[tokio::test]
async fn room_that_an_input_gives_is_tried() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let [db, web] = [PodKey::new("bank", "db"), PodKey::new("shop", "web")];
    let mut view = NodeView::from(view_of(&["bank/db", "shop/web"]));
    controller.take_view(Arc::new(view.clone()), Vec::new());
    let reaches: [fn(&mut Controller, &PodKey); 3] = [
        |_, _| {},
        |controller, key| controller.apply(key, PodInput::TimePassed),
        |controller, _| controller.decides = true,
    ];
    for (number, reach) in reaches.into_iter().enumerate() {
        let pod = Arc::clone(&controller.pods.get(&web).unwrap().pod);
        controller.apply(&web, decision(&pod, Reason::OutOfBounds));
        reach(&mut controller, &db);
        let known = Arc::make_mut(view.namespaces.get_mut("bank").unwrap());
        known.limit_ranges.push(LimitRange::default().into());
        controller.take_view(Arc::new(view.clone()), Vec::new());
        let is_retried = controller.pods.get(&web).unwrap().decision.reason != Reason::OutOfBounds;
        assert_eq!(is_retried, number > 0, "{number}");
    }
}

#[tokio::test]
async fn a_pod_without_room_is_tried_after_changes() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    controller.endpoint.resizer = Some(Arc::new(Way));
    let uid = "0a1b2c3d-0000-4000-8000-000000000001";
    let view = KnownObjects {
        pods: vec![manifest("shop", "web", uid)],
        ..KnownObjects::default()
    };
    let running = PodId {
        uid: uid.into(),
        ..pod()
    };
    controller.node.found.inventory = inventory_of(&running);
    controller.take_view(Arc::new(view.clone().into()), Vec::new());
    let key = view.pods[0].key();
    let values = serde_json::from_str(r#"[{"name": "app", "limits": {"memory": "128Mi"}}]"#).unwrap();
    let request = OperatorRequest::Override(Override::by_root(values));
    controller.apply(&key, PodInput::Requested { id: 7, request });
    for (number, outcome, no_room) in [
        (1, Outcome::Applied, false),
        (2, Outcome::Refused("full".to_owned()), true),
    ] {
        controller.apply(&key, PodInput::Check(Check::Swept));
        let resize = Box::default();
        controller.apply(&key, PodInput::OnNode(NodeEvent::PassBegan { number, resize }));
        let mut done = JobDone::new(ChangeRecord::new(running.clone(), Cause::Sweep, outcome));
        done.api.no_room = no_room;
        controller.end_pass(&key, number, Box::new(done));
    }
    let mut due_after = |view: KnownObjects| {
        controller.take_view(Arc::new(view.into()), Vec::new());
        let pending = controller.pods.get(&key).unwrap().work.pending();
        pending.map(|pending| pending.cause.clone())
    };
    assert_eq!(due_after(view.clone()), None, "the node is as full as before");
    let mut another = view;
    another.pods.push(manifest("shop", "db", "db"));
    assert_eq!(due_after(another), Some(Cause::Retry));
}

#[tokio::test]
async fn a_kubelet_that_started_again_may_resize() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let view = view_of(&["shop/web"]);
    let mut is_known = |ready: Option<&str>| {
        let (pod, words) = (&view.pods[0], "Resize is not supported.");
        controller.node.answers.learn(pod, &[Resource::Cpu], words);
        let mut node = objects::Node::default();
        let condition = |since| serde_json::json!({"type": "Ready", "lastTransitionTime": since});
        let conditions: Vec<_> = ready.map(condition).into_iter().collect();
        node.status.conditions = serde_json::from_value(conditions.into()).unwrap();
        let next = KnownObjects {
            node: Some(node),
            ..view.clone()
        };
        controller.take_view(Arc::new(next.into()), Vec::new());
        !controller.node.answers.sentences().is_empty()
    };
    assert!(is_known(None));
    let [first, second] = ["2026-03-01T11:00:00Z", "2026-03-01T12:00:00Z"].map(Some);
    for (ready, expected) in [(first, false), (first, true), (second, false), (None, true)] {
        assert_eq!(is_known(ready), expected, "{ready:?}");
    }
}

#[tokio::test]
async fn a_new_configuration_concerns_every_pod() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let all = ["other/cache", "shop/web"];
    assert_eq!(decided(&mut controller, &view_of(&all)), all);
    controller.guard.changed.clear();
    let mut config = Box::new(controller.config.clone());
    config.sweep_interval = Duration::from_secs(1);
    let latest = Instant::now() + config.sweep_interval;
    let configured = |controller: &mut Controller| controller.take_event(Event::Config(config));
    assert_eq!(decided_at(&mut controller, configured), all);
    assert_eq!(controller.guard.changed.len(), all.len());
    assert!(controller.next_sweep >= latest && controller.next_sweep <= Instant::now() + Duration::from_secs(1));
}

#[tokio::test]
async fn a_container_runs_one_hook_at_a_time() {
    let [directory, root] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut controller = controller(directory.path());
    let (events, mut ended) = mpsc::channel(1);
    controller.passes = Passes::new(events);
    controller.node.found.node = Some(Arc::new(Node::on_files(root.path())));
    let run = HookRun {
        number: 1,
        container: "app".into(),
        live: LivePod::on_files(["app"]).containers["app"].clone(),
        moment: HookMoment::AfterGrow,
        hook: Hook {
            action: HookAction::Signal(HookSignal::SigHup),
            wait: Duration::from_secs(60),
            memory: Bytes::ZERO,
        },
        old: 1,
        new: 2,
    };
    for _ in 0..2 {
        controller.run_hook(&PodKey::new("shop", "web"), Box::new(run.clone()));
    }
    let mut has_first_ended = false;
    for _ in 0..2 {
        let event = ended.recv().await.unwrap();
        let Event::HookEnded { end, is_only, .. } = &event else {
            panic!("only hooks run");
        };
        let why = if *is_only {
            "no container runtime"
        } else {
            "another hook still runs"
        };
        assert!(end.how.as_ref().unwrap_err().contains(why), "{end:?}");
        has_first_ended |= is_only;
        controller.take_event(event);
        assert_eq!(controller.passes.hooked.is_empty(), has_first_ended);
    }
}

#[tokio::test]
async fn three_pods_of_a_workload_shrink_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    for (namespace, name) in [
        ("other", "a"),
        ("shop", "a"),
        ("shop", "b"),
        ("shop", "c"),
        ("shop", "d"),
    ] {
        let pod = manifest(namespace, name, name);
        controller.pods.add(&pod);
        let id = PodId {
            uid: format!("{namespace}-{name}").into(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let live = LivePod {
            id,
            path: CgroupPath::new("/kubepods/pod").unwrap(),
            containers: <_>::default(),
        };
        let located = Located {
            live: Some(Arc::new(live)),
            saved: None,
            unsaved_limits: None,
        };
        controller.apply(&pod.key(), PodInput::Located(Box::new(located)));
        let mut decision = Box::new(PodDecision::undecided(&pod));
        (decision.reason, decision.vpa) = (Reason::OutOfBounds, Some("web".to_owned()));
        decision.amounts.containers[0].resources.limits.memory = Some(Bytes::new(32 << 20));
        let took = Duration::ZERO;
        controller.apply(&pod.key(), PodInput::Decided { decision, took });
        let followed = PodInput::Followed {
            refused: None,
            cause: None,
            delay: Duration::from_secs(20),
        };
        controller.apply(&pod.key(), followed);
    }
    let now = Timestamp::now();
    let tried = |controller: &Controller| {
        let tried = |state: &PodState| state.shrink.progress(now) == Some(Progress::Tried);
        let keys = controller.pods.keys_of(tried);
        keys.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(tried(&controller).is_empty());
    controller.begin_shrink_turns(now);
    assert_eq!(tried(&controller), ["other/a", "shop/a", "shop/b", "shop/c"]);
}
