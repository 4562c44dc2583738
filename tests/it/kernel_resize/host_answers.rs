//! The kubelet's answers to resizes, and the agent's reactions. The answers come when a test says: the kubelet sleeps while the
//! agent writes, refuses what real ones only refuse to others, or fails again and again, and the watch misses a version.

use std::time::Duration;

use serde_json::{Value, json};

use super::{AT_FIRST, Amounts, LARGER, NAME, NODE, ResizeResult, SMALLER, Scene, resources};

#[tokio::test]
async fn a_patched_target_precedes_the_kubelet() {
    let scene = Scene::started().await;
    scene.api.kubelet(|kubelet| kubelet.asleep = true);
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    assert_eq!(scene.spec(), resources(LARGER[0].1));
    assert_eq!(scene.object()["metadata"]["generation"], 2);
    let history = scene.agent.history().await;
    let steps: Vec<_> = history[0]
        .steps
        .iter()
        .map(|step| (step.via.as_str(), step.level.as_str()))
        .collect();
    assert_eq!(
        (history[0].outcome.as_str(), steps[0], steps[1]),
        ("InFlight", ("resize", "container"), ("cgroup", "pod"))
    );
    assert_eq!(scene.api.calls("patch pods/resize"), 1);
    assert_eq!(scene.api.calls("dry-run pods/resize"), 0);
    let is_said = |event: &Value| event["reason"] == "ResourcesResized";
    assert!(!scene.events().iter().any(is_said), "the kubelet may still refuse");
    let mut changes = scene.agent.client().await.watch().await.unwrap();

    // The kubelet computes the same values, and the agent does not report its writes as foreign.
    scene.api.kubelet(|kubelet| kubelet.asleep = false);
    scene.confirmed(&LARGER).await;
    scene.settles(&LARGER).await;
    let done = changes.next().await.unwrap();
    assert_eq!(
        (done.outcome.as_str(), done.sequence, done.steps.len()),
        ("Applied", history[0].sequence, history[0].steps.len()),
        "the same change, once spec, status and kernel agree"
    );
    assert_eq!(scene.agent.history().await, [done]);
    scene
        .agent
        .wait_for("an Event", || scene.events().iter().any(is_said))
        .await;
    assert!(scene.node.all_run(&scene.pod));
    assert_eq!(scene.api.calls("patch pods/resize"), 1);

    // The same for lower values, at every level.
    scene.api.kubelet(|kubelet| kubelet.asleep = true);
    scene.recommend(&SMALLER);
    scene.settles(&SMALLER).await;
    scene.api.kubelet(|kubelet| kubelet.asleep = false);
    scene.confirmed(&SMALLER).await;
    assert!(!scene.agent.log().contains("another program"), "{}", scene.agent.log());
    assert_eq!(scene.api.calls("patch pods/resize"), 2);
}

#[tokio::test]
async fn a_pod_is_read_where_the_watch_missed_its_latest_version() {
    let scene = Scene::managed().await;
    let calls = || ["dry-run pods/resize", "patch pods/resize"].map(|call| scene.api.calls(call));
    assert_eq!(calls(), [0, 1]);
    scene.stall_the_watch_and_touch_the_pod();
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    // A conflict does not count.
    assert_eq!(calls(), [1, 2]);
}

/// The watch has not shown the edit when the agent patches: the API server refuses the old version, and the edit stays.
#[tokio::test]
async fn an_edit_that_the_watch_has_not_shown_stays() {
    let scene = Scene::managed().await;
    scene.stall_the_watch_and_touch_the_pod();
    let edited = Amounts::doubled(160, 90);
    scene
        .api
        .resize(NAME, &json!([{"name": "app", "resources": resources(edited)}]))
        .unwrap();
    scene.recommend(&LARGER);
    let read = || scene.api.calls("dry-run pods/resize") > 0;
    scene.agent.wait_for("the agent to read the pod", read).await;
    assert_eq!(scene.spec(), resources(edited));
    scene.api.mend();
    scene.settles(&LARGER).await;
    assert_eq!(scene.spec(), resources(LARGER[0].1));
}

#[tokio::test]
async fn nothing_is_asked_while_nothing_happens() {
    const QUIET: Duration = Duration::from_secs(3);
    let scene = Scene::managed().await;
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    scene.confirmed(&LARGER).await;
    // Events may still be queued, and the cleanup follows them.
    let silence = async || {
        let before = scene.api.all_calls();
        tokio::time::sleep(QUIET).await;
        (scene.api.all_calls() == before).then_some(())
    };
    scene.agent.until("some seconds without a call", silence).await;
}

#[tokio::test]
async fn a_smaller_target_replaces_a_deferred_one() {
    let scene = Scene::deferred().await;
    scene.set_resize_result(ResizeResult::Done);
    scene.api.kubelet(|kubelet| kubelet.asleep = true);
    let between = [("app", Amounts::doubled(220, 100))];
    scene.recommend(&between);
    scene.settles(&between).await;
    assert_eq!(scene.spec(), resources(between[0].1));
    scene.api.kubelet(|kubelet| kubelet.asleep = false);
    scene.confirmed(&between).await;
}

#[tokio::test]
async fn a_smaller_target_in_bounds_replaces_too() {
    let scene = Scene::deferred().await;
    scene.set_resize_result(ResizeResult::Done);
    scene.api.kubelet(|kubelet| kubelet.asleep = true);
    let between = [("app", Amounts::doubled(220, 100))];
    scene.recommend_widely(&between).await;
    scene.settles(&between).await;
    assert_eq!(scene.spec(), resources(between[0].1));
}

#[tokio::test]
async fn an_infeasible_resize_is_taken_back() {
    let scene = Scene::managed().await;
    let why = "Node didn't have enough capacity: memory, requested: 9663676416, capacity: 2147483648";
    scene.set_resize_result(ResizeResult::Infeasible(why));
    scene.recommend(&LARGER);
    scene.reaches_with_detail("Infeasible", why).await;
    scene.holds_soon(&SMALLER).await;
    let patches = scene.api.calls("patch pods/resize");
    scene.set_resize_result(ResizeResult::Done);
    scene.recommend(&AT_FIRST);
    scene.settles(&AT_FIRST).await;
    assert_eq!(
        scene.api.calls("patch pods/resize"),
        patches + 1,
        "asked again for what can never be"
    );
}

#[tokio::test]
async fn a_refused_resource_leaves_the_other_alone() {
    let scene = Scene::managed().await;
    let why = "In-place resize of containers with swap is not supported.";
    scene.set_resize_result(ResizeResult::Refuses("memory", why));
    let with_cpu_of = |other: Amounts| {
        let Amounts { cpu, cpu_limit, .. } = other;
        [(
            "app",
            Amounts {
                cpu,
                cpu_limit,
                ..SMALLER[0].1
            },
        )]
    };
    scene.recommend(&LARGER);
    let cpu_alone = with_cpu_of(LARGER[0].1);
    scene.settles(&cpu_alone).await;
    scene.confirmed(&cpu_alone).await;
    let reply = scene.agent.client().await.explain(scene.pod.full_name()).await.unwrap();
    assert!(reply.notes.iter().any(|note| note.contains(why)), "{:?}", reply.notes);

    // The next recommendation is not tried in vain.
    let patches = scene.api.calls("patch pods/resize");
    scene.recommend(&AT_FIRST);
    let cpu_alone = with_cpu_of(AT_FIRST[0].1);
    scene.settles(&cpu_alone).await;
    scene.confirmed(&cpu_alone).await;
    assert_eq!(scene.api.calls("patch pods/resize"), patches + 1);
}

#[tokio::test]
async fn a_failed_kubelet_is_waited_for() {
    let scene = Scene::managed().await;
    let why = "cannot decrease memory limits: attempting to set below current usage";
    scene.set_resize_result(ResizeResult::Error(why));
    scene.recommend(&LARGER);
    scene.passes("ResizeError").await;
    scene.reaches_with_detail("Refused", why).await;
    scene.holds_soon(&LARGER).await;
    let patches = scene.api.calls("patch pods/resize");
    // The kubelet retries again and again, and no values change meanwhile.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(scene.holds(&LARGER));
    assert_eq!(scene.api.calls("patch pods/resize"), patches, "the spec was taken back");
    let history = scene.agent.history().await;
    let failures = history.iter().filter(|change| change.outcome == "ResizeError").count();
    assert_eq!(failures, 1, "{history:#?}");
    scene.set_resize_result(ResizeResult::Done);
    scene.settles(&LARGER).await;
    scene.confirmed(&LARGER).await;
}

#[tokio::test]
async fn with_unknown_room_the_kubelet_goes_first() {
    let scene = Scene::managed().await;
    scene.api.remove("nodes", NODE);
    scene.knows_capacity("(all this machine has)").await;
    scene.api.kubelet(|kubelet| kubelet.asleep = true);
    scene.recommend(&LARGER);
    scene.passes("Unanswered").await;
    assert!(scene.holds(&SMALLER));
    scene.api.kubelet(|kubelet| kubelet.asleep = false);
    scene.settles(&LARGER).await;
}
