//! What the controller keeps of pods whose state or node it does not know.

use std::path::Path;

use tokio::sync::watch;

use super::*;
use crate::actuate::{Grown, Node};
use crate::cgroup::{PodEntry, PodPlace};
use crate::config::tests::load;
use crate::decide::{NodePolicies, PodDecision};
use crate::feed::Feed;
use crate::guard::{LatestLimit, LatestLimits, LimitFiles};
use crate::model::objects::{LimitRange, Pod, PodId, ResourceQuota, VerticalPodAutoscaler};
use crate::model::{
    Bytes, CgroupPath, Change, ChangeRecord, KubeletVersion, LivePod, MemoryLimit, Reason, ResourceList, Setting,
    StepRecord, Target,
};
use crate::observe::audit::Audit;
use crate::observe::metrics::registry;
use crate::reconcile::history::History;
use crate::reconcile::inventory::Inventory;
use crate::reconcile::metrics::Metrics;
use crate::reconcile::overrides::Override;
use crate::reconcile::pod::Located;
use crate::reconcile::savings::Savings;
use crate::reconcile::store::{Restored, StateFile};
use crate::reconcile::work::OperatorRequest;
use crate::resize::ResizeError;
use crate::sources::{KnownObjects, Undecided, parse_manifests};

pub(super) const UID: &str = "u1";

/// A controller that knows no pod and no node.
pub(super) fn controller(directory: &Path) -> Controller {
    let mut registry = registry();
    let (limit_files, _) = LimitFiles::below(directory).unwrap();
    let file = StateFile::in_directory(directory).unwrap();
    Controller::new(
        load(&[]).unwrap(),
        NodeFacts::new(
            ResourceList::default(),
            mpsc::channel(1).0,
            watch::channel(None).0,
            Arc::default(),
        ),
        mpsc::channel(1).0,
        None,
        Store::start(file, Restored::default(), limit_files),
        GuardLink {
            guard: None,
            reports: mpsc::unbounded_channel().1,
            least_limits: Arc::default(),
            changed: BTreeSet::new(),
        },
        Publisher {
            metrics: Metrics::register(&mut registry),
            savings: Savings::register(&mut registry),
            annotator: None,
            kill_problems: Box::new(Vec::<String>::new),
            history: History::new(Feed::default(), Audit::default(), |_| {}),
        },
    )
}

pub(super) fn pod() -> PodId {
    PodId {
        uid: UID.into(),
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
    }
}

/// The inventory of a node on which this pod runs.
pub(super) fn inventory_of(pod: &PodId) -> Inventory {
    let entry = PodEntry {
        place: PodPlace {
            uid: pod.uid.clone(),
            qos: None,
        },
        containers: Vec::new(),
        path: CgroupPath::new(&format!("/kubepods/pod{}", pod.uid)).unwrap(),
    };
    Inventory::assemble(&[entry], std::slice::from_ref(pod), &[], &[])
}

fn step() -> StepRecord {
    StepRecord {
        target: Target::Pod,
        change: Change::File {
            from: Setting::MemoryMax(MemoryLimit::Bytes(1 << 20)),
            to: Setting::MemoryMax(MemoryLimit::Bytes(2 << 20)),
        },
        took: Duration::ZERO,
        error: None,
        rollback: false,
    }
}

#[tokio::test]
async fn writes_to_a_gone_pod_are_on_record() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    for steps in [Vec::new(), vec![step()]] {
        let mut record = ChangeRecord::new(pod(), Cause::Sweep, Outcome::Interrupted("it ended".to_owned()));
        record.steps = steps;
        controller.end_pass(&PodKey::new("shop", "web"), 1, Box::new(JobDone::new(record)));
    }
    let records = &controller.publisher.history.records;
    assert_eq!(records.len(), 1);
    assert_eq!((&records[0].pod, records[0].steps.len()), (&pod(), 1));
}

#[tokio::test]
async fn a_denial_of_lower_limits_is_learned() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let record = ChangeRecord::new(pod(), Cause::Sweep, Outcome::Refused("denied".to_owned()));
    let mut done = JobDone::new(record);
    let why = "Forbidden: memory limits cannot be decreased unless".to_owned();
    done.api.answer = Some(Err(ResizeError::Denied(why)));
    controller.end_pass(&PodKey::new("shop", "web"), 1, Box::new(done));
    let answers = &controller.node.answers;
    let known = answers.beside(NodePolicies::default(), KubeletVersion::RESIZES_BY_DEFAULT);
    assert_eq!(
        known.sentences(),
        ["lower memory limits in namespace shop (an API server before 1.34)"]
    );
}

/// A growth of a container of the pod.
pub(super) fn growth(to: Bytes) -> Report {
    let of = Guarded {
        pod: pod(),
        container: "app".into(),
    };
    let event = GuardEvent::Grew {
        used: to,
        to,
        why: String::new(),
        for_pod: false,
        grown: Box::new(Grown {
            from: None,
            outcome: Outcome::Applied,
            steps: vec![step()],
            took: Duration::ZERO,
            systemd_failed: false,
        }),
    };
    Report { of, event }
}

#[tokio::test]
async fn a_grown_limit_leaves_with_its_pod() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let to = Bytes::new(2 << 20);
    controller.guard.least_limits.raise(&UID.into(), "app", to);
    controller.take_guard_report(growth(to));
    assert_eq!(controller.guard.least_limits.get(&UID.into(), "app"), None);
    assert_eq!(controller.publisher.history.records.len(), 1);
}

/// Requests an override for the pod that runs here.
pub(super) fn request_override(controller: &mut Controller, live: LivePod) -> PodKey {
    let manifest = format!(
        "kind: Pod
metadata: {{name: web, namespace: shop, uid: {}}}
spec: {{containers: [{{name: app, resources: {{limits: {{memory: 64Mi}}}}}}]}}
",
        live.id.uid
    );
    controller
        .pods
        .add(&parse_manifests("test", &manifest).unwrap().view.pods[0]);
    let key = PodKey::new("shop", "web");
    let located = Located {
        live: Some(Arc::new(live)),
        saved: None,
        unsaved_limits: None,
    };
    controller.apply(&key, PodInput::Located(Box::new(located)));
    let request = OperatorRequest::Override(Override {
        uid: 0,
        pid: 1,
        reason: String::new(),
        since: Timestamp::UNIX_EPOCH,
        until: None,
        values: serde_json::from_str(r#"[{"name": "app", "limits": {"memory": "128Mi"}}]"#).unwrap(),
    });
    controller.apply(&key, PodInput::Requested { id: 7, request });
    key
}

#[tokio::test]
async fn an_override_is_saved_before_it_is_written() {
    let [directory, root] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut controller = controller(directory.path());
    let (events, mut ended) = mpsc::channel(1);
    controller.passes = Passes::new(events);
    controller.node.found.node = Some(Arc::new(Node::on_files(root.path())));
    request_override(&mut controller, LivePod::on_files(["app"]));
    controller.start_passes();
    let early = tokio::time::timeout(Duration::from_millis(200), ended.recv()).await;
    assert!(
        early.is_err(),
        "a killed agent would leave values that its successor does not know"
    );
    controller.store.save();
    assert!(matches!(ended.recv().await, Some(Event::PassEnded { .. })));
}

#[tokio::test]
async fn an_override_that_cannot_be_saved_is_refused() {
    let [directory, root] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut controller = controller(directory.path());
    let (events, mut ended) = mpsc::channel(1);
    controller.passes = Passes::new(events);
    controller.node.found.node = Some(Arc::new(Node::on_files(root.path())));
    let key = request_override(&mut controller, LivePod::on_files(["app"]));
    // A directory in the place of the file beside makes the write fail, also for root.
    std::fs::create_dir(directory.path().join("state.json.new")).unwrap();
    controller.start_passes();
    controller.store.save();
    let event = ended.recv().await.unwrap();
    controller.take_event(event);
    let state = controller.pods.get(&key).unwrap();
    assert_eq!(
        (state.work.requests().count(), state.desired.overridden.is_some()),
        (0, false)
    );
    let record = controller.publisher.history.records.back().unwrap();
    let outcome = &record.outcome;
    assert!(
        matches!(outcome, Outcome::Refused(why) if why.contains("stateDir")),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn an_answer_says_that_the_state_is_unsaved() {
    for saved in [Ok(()), Err("the disk is full".to_owned())] {
        let (reply, answer) = oneshot::channel();
        let mut requests = requests::Requests::default();
        let record = ChangeRecord::new(pod(), Cause::Sweep, Outcome::Applied);
        requests.ended.push((reply, Arc::new(record)));
        requests.answer_once(std::future::ready(saved.clone())).await;
        let (_, unsaved) = answer.await.unwrap().unwrap();
        assert_eq!(unsaved, saved.err());
    }
}

#[tokio::test]
async fn an_agent_that_comes_to_observe_refuses_what_waits() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let live = LivePod {
        id: pod(),
        path: CgroupPath::new("/kubepods/podu1").unwrap(),
        containers: <_>::default(),
    };
    let key = request_override(&mut controller, live);
    let waits = |controller: &Controller| {
        let state = controller.pods.get(&key).unwrap();
        (state.work.requests().count(), state.desired.overridden.is_some())
    };
    controller.start_passes();
    assert_eq!(waits(&controller), (1, true), "the node is not known");
    controller.config.observe_only = true;
    controller.start_passes();
    assert_eq!(waits(&controller), (0, false));
}

#[tokio::test]
async fn the_state_is_saved_before_passes_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    request_override(&mut controller, LivePod::on_files(["app"]));
    controller.passes.busy.insert(UID.into());
    let (events, inbox) = mpsc::channel(1);
    let state = directory.path().join("state.json");
    let saves = async move {
        for _ in 0..1000 {
            if state.exists() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The pass ends.
        drop(events);
        state.exists()
    };
    let ((), is_saved) = tokio::join!(controller.finish(inbox), saves);
    assert!(is_saved, "an agent that is killed now would lose the override");
}

#[tokio::test]
async fn pods_follow_a_clock_that_is_set() {
    let next: [fn(&mut Controller); 3] = [
        |controller| controller.on_time(Instant::now()),
        |controller| controller.take_event(Event::ApiServerReturned),
        // What is new is of the clock that was set.
        |controller| controller.take_guard_report(growth(Bytes::ZERO)),
    ];
    for next in next {
        let directory = tempfile::tempdir().unwrap();
        let mut controller = controller(directory.path());
        let (key, at) = (PodKey::new("shop", "web"), Timestamp::now());
        controller.pods.add(&view_of(&["shop/web"]).pods[0]);
        let (target, lowered) = (Target::Pod, false);
        controller.apply(&key, PodInput::OnNode(NodeEvent::Killed { target, at, lowered }));
        let hours = SignedDuration::from_hours(5);
        controller.clocks.wall = controller.clocks.wall.checked_add(hours).unwrap();
        next(&mut controller);
        let trouble = controller.pods.get(&key).and_then(|state| state.trouble).unwrap();
        let off = trouble.duration_since(at) + hours;
        assert!(off.unsigned_abs() < Duration::from_secs(60), "{off}");
    }
}

#[tokio::test]
async fn the_state_of_an_earlier_namesake_goes() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let key = request_override(&mut controller, LivePod::on_files(["app"]));
    let mut earlier = controller.pods.get(&key).unwrap().saved().unwrap();
    earlier.pod.uid = "earlier".into();
    controller
        .store
        .restored
        .pods
        .insert(earlier.pod.uid.clone(), earlier.into());
    let manifest = "{kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: app}]}}";
    let unidentified = parse_manifests("test", manifest).unwrap().view;
    controller.apply(&key, PodInput::Described(Arc::clone(&unidentified.pods[0])));
    controller.sources.seen = true;
    controller.forget_saved();
    assert!(controller.store.restored.pods.is_empty());
}

#[tokio::test]
async fn ended_temporary_limits_begin_no_way_back() {
    let uid = "0a1b2c3d-0000-4000-8000-000000000001";
    let manifest = format!(
        "{{kind: Pod, metadata: {{name: web, namespace: shop, uid: {uid}}}, \
         spec: {{containers: [{{name: app, resources: {{limits: {{memory: 64Mi}}}}}}]}}}}"
    );
    let view = parse_manifests("test", &manifest).unwrap().view;
    let running = PodId {
        uid: uid.into(),
        ..pod()
    };
    let held = LatestLimit {
        to: Bytes::new(128 << 20),
        for_pod: false,
    };
    for (held, is_lost, returns) in [
        // The values of a VPA that is gone stay.
        (LatestLimits::new(), false, false),
        (LatestLimits::new(), true, true),
        ([("app".into(), held)].into(), false, true),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let mut controller = controller(directory.path());
        controller.store.restored.problem = is_lost.then(String::new);
        controller.pods.add(&view.pods[0]);
        let found = &mut controller.node.found;
        found.inventory = inventory_of(&running);
        found.unsaved_limits.insert(uid.into(), held);
        controller.match_live();
        let state = controller.pods.get(&PodKey::new("shop", "web")).unwrap();
        assert_eq!((state.live.is_some(), state.desired.has_amounts()), (true, returns));
    }
}

#[tokio::test]
async fn no_mark_is_removed_before_the_node_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    controller.sources.seen = true;
    let marks = Arc::clone(&controller.store.limit_files);
    marks.note_written(&UID.into()).await;
    controller.forget_saved();
    // The thread removes a mark before it writes the next one.
    marks.note_written(&"last".into()).await;
    assert!(directory.path().join("lent").join(UID).exists());
}

/// The pods about which the controller decides at this event.
pub(super) fn decided_at(controller: &mut Controller, event: impl FnOnce(&mut Controller)) -> Vec<String> {
    for key in controller.pods.keys_of(|_| true) {
        let silent = decision(&controller.pods.get(&key).unwrap().pod, Reason::SourcesSilent);
        controller.apply(&key, silent);
    }
    event(controller);
    let decided = controller
        .pods
        .keys_of(|state| state.decision.reason != Reason::SourcesSilent);
    decided.iter().map(ToString::to_string).collect()
}

/// The pods about which the controller decides when this view arrives.
pub(super) fn decided(controller: &mut Controller, view: &KnownObjects) -> Vec<String> {
    let view = Arc::new(view.clone().into());
    decided_at(controller, |controller| controller.take_view(view, Vec::new()))
}

/// The input of a decision with this reason.
pub(super) fn decision(pod: &Pod, reason: Reason) -> PodInput {
    let mut decision = Box::new(PodDecision::undecided(pod));
    decision.reason = reason;
    let took = Duration::ZERO;
    PodInput::Decided { decision, took }
}

/// A view of these pods, by namespace and name.
pub(super) fn view_of(pods: &[&str]) -> KnownObjects {
    let manifests = pods.iter().map(|pod| {
        let (namespace, name) = pod.split_once('/').unwrap();
        let metadata = format!("{{name: {name}, namespace: {namespace}, uid: {name}}}");
        format!("---\n{{kind: Pod, metadata: {metadata}, spec: {{containers: [{{name: c}}]}}}}\n")
    });
    let manifests: Vec<_> = manifests.collect();
    parse_manifests("test", &manifests.concat()).unwrap().view
}

#[tokio::test]
async fn other_bounds_and_refusals_decide_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let all = ["other/cache", "shop/web"];
    let mut view = view_of(&all);
    assert_eq!(decided(&mut controller, &view), all);
    let mut range = LimitRange::default();
    range.metadata.namespace = "other".to_owned();
    view.limit_ranges.push(range.into());
    assert_eq!(decided(&mut controller, &view), ["other/cache"]);
    let (denial, now) = ("memory limits cannot be decreased", Timestamp::now());
    let learn = |controller: &mut Controller, at| controller.node.answers.learn_denial("shop", denial, at);
    assert!(learn(&mut controller, now));
    assert_eq!(decided(&mut controller, &view), all);
    assert!(decided(&mut controller, &view).is_empty());
    assert!(!learn(&mut controller, now + SignedDuration::from_secs(1)));
    assert!(decided(&mut controller, &view).is_empty(), "it is known");
}

#[tokio::test]
async fn an_undecided_pod_costs_no_other_a_decision() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let all = ["bank/own", "shop/web"];
    let mut view = view_of(&all);
    assert_eq!(decided(&mut controller, &view), all);
    view.undecided_pods.insert("own".to_owned(), Undecided::Awaited);
    assert!(decided(&mut controller, &view).is_empty());
    view.undecided_pods.clear();
    assert_eq!(decided(&mut controller, &view), ["bank/own"], "it has come to be known");
}

#[tokio::test]
async fn an_undecided_change_waits_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let mut view = view_of(&["shop/db"]);
    controller.take_view(Arc::new(view.clone().into()), Vec::new());
    let db = PodKey::new("shop", "db");
    controller.apply(&db, decision(&view.pods[0], Reason::OutOfBounds));
    let full = PodInput::Followed {
        refused: Some("no room".to_owned()),
        cause: None,
        delay: Duration::ZERO,
    };
    controller.apply(&db, full);
    view.undecided_pods.insert("db".to_owned(), Undecided::Awaited);
    controller.take_view(Arc::new(view.into()), Vec::new());
    let state = controller.pods.get(&db).unwrap();
    assert_eq!(state.decision.reason, Reason::OutOfBounds);
    assert!(state.no_room.is_some(), "it is not followed either");
}

#[tokio::test]
async fn a_returned_api_server_is_asked_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let view = view_of(&["shop/web"]);
    for _ in 0..2 {
        let denial = "pods with pod-level resources";
        assert!(
            controller.node.answers.learn_denial("shop", denial, Timestamp::now()),
            "it is known still"
        );
        assert_eq!(decided(&mut controller, &view), ["shop/web"]);
        let returns = |controller: &mut Controller| controller.take_event(Event::ApiServerReturned);
        assert_eq!(decided_at(&mut controller, returns), ["shop/web"]);
    }
}

#[tokio::test]
async fn an_event_decides_about_the_pods_it_concerns() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let all = ["other/cache", "shop/db", "shop/web"];
    let mut view = view_of(&all);
    assert_eq!(decided(&mut controller, &view), all);
    assert!(decided(&mut controller, &view).is_empty());

    let labels = &mut Arc::make_mut(&mut view.pods[2]).metadata.labels;
    labels.insert("app".to_owned(), "web".to_owned());
    assert_eq!(decided(&mut controller, &view), ["shop/web"], "another object");
    let mut vpa = VerticalPodAutoscaler::default();
    vpa.metadata.namespace = "shop".to_owned();
    view.vpas.push(vpa.into());
    assert_eq!(decided(&mut controller, &view), ["shop/db", "shop/web"]);

    controller.apply(&PodKey::new("other", "cache"), PodInput::Check(Check::FilesWritten));
    assert_eq!(decided(&mut controller, &view), ["other/cache"], "another input");

    let db = PodKey::new("shop", "db");
    controller.apply(&db, decision(&view.pods[1], Reason::OutOfBounds));
    let full = PodInput::Followed {
        refused: Some("no room".to_owned()),
        cause: None,
        delay: Duration::ZERO,
    };
    controller.apply(&db, full);
    let mut quota = ResourceQuota::default();
    quota.metadata.namespace = "shop".to_owned();
    view.quotas.push(quota.into());
    assert_eq!(decided(&mut controller, &view), ["shop/db"], "it waited for room");

    let trouble = |controller: &mut Controller| {
        controller.apply(&db, decision(&view.pods[1], Reason::NoTrouble));
        let kill = PodInput::OnNode(NodeEvent::Killed {
            target: Target::Pod,
            at: Timestamp::now(),
            lowered: false,
        });
        controller.apply(&db, kill);
        controller.on_time(Instant::now());
    };
    assert_eq!(decided_at(&mut controller, trouble), ["shop/db"], "it had trouble");
    assert_ne!(controller.pods.get(&db).unwrap().decision.reason, Reason::NoTrouble);

    controller.config.observe_only = true;
    assert_eq!(decided(&mut controller, &view), all);
    assert!(decided(&mut controller, &view).is_empty());

    // Some decisions depend on the time alone.
    let minute = |controller: &mut Controller| controller.on_time(controller.next_decisions);
    assert_eq!(decided_at(&mut controller, minute), all);
}

#[tokio::test]
async fn other_quotas_concern_the_guard() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let mut view = view_of(&["shop/web"]);
    let mut is_stale = |view: &KnownObjects| {
        controller.guard.changed.clear();
        controller.take_view(Arc::new(view.clone().into()), Vec::new());
        !controller.guard.changed.is_empty()
    };
    is_stale(&view);
    let mut quota = ResourceQuota::default();
    quota.metadata.namespace = "shop".to_owned();
    view.quotas.push(quota.into());
    assert!(is_stale(&view));
    assert!(!is_stale(&view));
}
