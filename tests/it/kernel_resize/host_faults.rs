//! An API server that refuses with any code, does not answer, or answers late, in a chosen call; a watch that shows nothing.

use std::time::Duration;

use serde_json::json;

use super::{Amounts, LARGER, NAME, SMALLER, Scene, resources};
use crate::support::apimodel::{Effect, Fault};

pub(super) fn patches(times: Option<u32>, effect: Effect) -> Fault {
    Fault {
        verb: "patch",
        resource: "pods/resize",
        times,
        effect,
    }
}

#[tokio::test]
async fn a_webhook_decides_with_any_code() {
    for (code, reason) in [(400, "BadRequest"), (404, "NotFound"), (405, "MethodNotAllowed")] {
        let scene = Scene::managed().await;
        let message = "admission webhook \"quota.example.com\" denied the request: ask finance";
        scene
            .api
            .fault(patches(None, Effect::Says(code, reason, message, None)));
        scene.recommend(&LARGER);
        scene.reaches_with_detail("Refused", "ask finance").await;
        assert!(scene.holds(&SMALLER));
        assert!(!scene.agent.log().contains("does not resize pods in place"));
    }
}

#[tokio::test]
async fn a_conflict_is_tried_again() {
    let scene = Scene::managed().await;
    let message = "the object has been modified; please apply your changes to the latest version and try again";
    scene
        .api
        .fault(patches(Some(1), Effect::Says(409, "Conflict", message, None)));
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    assert_eq!(scene.spec(), resources(LARGER[0].1));
}

#[tokio::test]
async fn an_api_server_that_asks_for_a_pause_gets_it() {
    let scene = Scene::managed().await;
    let asked = scene.api.calls("patch pods/resize");
    scene
        .api
        .fault(patches(Some(1), Effect::Says(429, "TooManyRequests", "later", Some(3))));
    let from = std::time::Instant::now();
    scene.recommend(&LARGER);
    scene.reaches_with_detail("Refused", "429").await;
    scene.settles(&LARGER).await;
    assert!(from.elapsed() >= Duration::from_secs(3), "after {:?}", from.elapsed());
    assert_eq!(scene.api.calls("patch pods/resize"), asked + 2);
}

#[tokio::test]
async fn a_slow_api_server_keeps_nobody_else_waiting() {
    let scene = Scene::managed().await;
    scene.api.fault(patches(Some(1), Effect::Slow(Duration::from_secs(2))));
    scene.recommend(&LARGER);
    // Meanwhile the agent answers calls, and the current values stay.
    scene.agent.reaches(NAME, "Working").await;
    assert!(scene.holds(&SMALLER));
    scene.settles(&LARGER).await;
}

#[tokio::test]
async fn a_stalled_watch_costs_only_time() {
    let scene = Scene::managed().await;
    scene.stall_the_watch();
    scene.recommend(&LARGER);
    // The answer to the patch is enough for the fast path.
    scene.settles(&LARGER).await;
    scene.confirmed(&LARGER).await;
    scene.api.mend();
    scene.recommend(&SMALLER);
    scene.settles(&SMALLER).await;
}

#[tokio::test]
async fn an_early_recommendation_ignores_an_override() {
    let scene = Scene::managed().await;
    let request = super::host_others::limits(&scene.pod, Some("800m"), None);
    scene.agent.resize(request).await.unwrap();
    let by_hand = [(
        "app",
        Amounts {
            cpu_limit: Some(800),
            ..SMALLER[0].1
        },
    )];
    scene.settles(&by_hand).await;
    scene.confirmed(&by_hand).await;
    scene.api.fault(Fault {
        verb: "watch",
        resource: "pods",
        times: Some(0),
        effect: Effect::Stalls,
    });
    scene.agent.release(&scene.pod.full_name()).await.unwrap();
    scene.holds_soon(&SMALLER).await;
    scene.recommend(&LARGER);
    scene.holds_soon(&LARGER).await;
    scene.api.mend();
    scene.settles(&LARGER).await;
    assert_eq!(scene.spec(), resources(LARGER[0].1));
}

#[tokio::test]
async fn admissions_change_is_what_the_pod_gets() {
    let scene = Scene::managed().await;
    let rounded = [("app", Amounts::doubled(400, 160))];
    let admitted = json!({"spec": {"containers": [{"name": "app", "resources": resources(rounded[0].1)}]}});
    scene.api.fault(patches(None, Effect::Alters(admitted)));
    scene.api.kubelet(|kubelet| kubelet.asleep = true);
    scene.recommend_widely(&LARGER).await;
    let change = scene.passes("Refused").await;
    assert!(change.reason.contains("limits.memory 256Mi → 320Mi"), "{change:#?}");
    scene.api.kubelet(|kubelet| kubelet.asleep = false);
    scene.confirmed(&rounded).await;
    scene.settles(&rounded).await;
    let refused = (256_u64 << 20).to_string();
    let history = scene.agent.history().await;
    let mut steps = history.iter().flat_map(|change| &change.steps);
    assert!(
        steps.all(|step| step.to != refused),
        "the kernel was given what nobody accepted"
    );
    assert_eq!(scene.spec(), resources(rounded[0].1));
}

/// A LimitRange that came later denies every request that leaves the pod's amounts as they are.
#[tokio::test]
async fn a_rule_may_deny_the_present_amounts_alone() {
    let scene = Scene::managed().await;
    scene.stall_the_watch_and_touch_the_pod();
    let message = "pods \"web-5c4f-x\" is forbidden: minimum memory usage per Container is 128Mi, but request is 96Mi";
    scene.api.fault(Fault {
        verb: "dry-run",
        ..patches(None, Effect::Says(403, "Forbidden", message, None))
    });
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
}
