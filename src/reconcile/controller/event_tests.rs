//! What the controller makes of events and of the time.

use std::collections::BTreeSet;
use std::path::Path;

use super::tests::{UID, controller, growth, pod, request_override, view_of};
use super::*;
use crate::decide::{CanaryWait, PodDecision};
use crate::model::objects::annotation::MIRROR;
use crate::model::objects::{OwnerReference, Pod};
use crate::model::{Bytes, CgroupPath, ChangeRecord, LivePod};
use crate::reconcile::store::StateFile;
use crate::report::testing::kill_of;
use crate::resize::Answer;

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
    controller.apply(&key, PodInput::PassBegan { number, resize });
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
    let due: [fn(&mut Controller); 5] = [
        |controller| controller.decides = true,
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
            done.api.answer = Answer::Accepted(serde_json::from_value(request).unwrap());
        }
        controller.end_pass(&PodKey::new("shop", "web"), 1, Box::new(done));
        assert!(controller.passes.busy.is_empty());
        assert_eq!(discoveries.try_recv().is_ok(), is_stale || systemd_failed);
        assert_eq!(controller.endpoint.refusals, if is_accepted { 0 } else { 3 });
    }
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
