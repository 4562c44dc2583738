//! Restarts, deletions and other pods amid a resize: while the kubelet sleeps, the watch shows nothing, or an answer is held back.

use serde_json::json;
use vscaled::control::proto;

use super::{AT_FIRST, Amounts, BarePod, FULL, LARGER, NAME, NODE, ResizeResult, SMALLER, Scene, object, resources};

#[tokio::test]
async fn a_refusal_during_absence_is_taken_back() {
    let mut scene = Scene::managed().await;
    scene.api.kubelet(|kubelet| kubelet.asleep = true);
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    scene.agent.stop();
    scene.set_resize_result(ResizeResult::Deferred(FULL));
    scene.api.kubelet(|kubelet| kubelet.asleep = false);
    let deferred = || scene.object()["status"]["conditions"][0]["reason"] == "Deferred";
    while !deferred() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(scene.holds(&LARGER));
    scene.agent.start().await;
    scene.reaches_with_detail("Deferred", FULL).await;
    scene.holds_soon(&SMALLER).await;
}

#[tokio::test]
async fn a_pod_deleted_amid_a_resize_is_forgotten() {
    let scene = Scene::deferred().await;
    scene.api.remove("pods", NAME);
    let gone = async || scene.agent.pod(NAME).await.is_none().then_some(());
    scene.agent.until("the pod to be forgotten", gone).await;
    assert!(!scene.agent.log().contains("panic"));
}

#[tokio::test]
async fn a_namesake_is_not_resized_instead() {
    let scene = Scene::managed().await;
    // The agent has not received the new pod yet: the UID in the patch keeps the patch from the new pod.
    scene.api.fault(crate::support::apimodel::Fault {
        verb: "watch",
        resource: "pods",
        times: Some(0),
        effect: crate::support::apimodel::Effect::Stalls,
    });
    let mut other = object(&scene.pod, "web-5c4f");
    other["metadata"]["uid"] = json!("0a1b2c3d-0000-4000-8000-000000000099");
    scene.api.put("pods", other);
    scene.recommend(&LARGER);
    scene.passes("Interrupted").await;
    assert_eq!(scene.spec(), resources(AT_FIRST[0].1));
    assert!(scene.holds(&SMALLER));
}

/// A request for these limits.
pub(super) fn limits(pod: &BarePod, cpu: Option<&str>, memory: Option<&str>) -> proto::ResizeRequest {
    pod.limits_by_hand(proto::Amounts {
        cpu: cpu.map(str::to_owned),
        memory: memory.map(str::to_owned),
    })
}

#[tokio::test]
async fn an_override_outlasts_a_namespaces_first_vpa() {
    let mut scene = Scene::new().await;
    scene.api.remove("verticalpodautoscalers", "web");
    scene.start().await;
    scene
        .agent
        .resize(limits(&scene.pod, Some("500m"), None))
        .await
        .unwrap();
    // From here on, a decision needs the pod's owners, and the API server answers late.
    let answering = scene.api.hold_answers(&["get"], "replicasets", None);
    scene.recommend(&AT_FIRST);
    let asked = || scene.api.calls("get replicasets") > 0;
    scene.agent.wait_for("the owner to be asked for", asked).await;
    assert!(scene.agent.pod(NAME).await.is_some());
    answering.cancel();
    let matched = async || scene.agent.pod(NAME).await.filter(|pod| pod.vpa.is_some());
    let pod = scene.agent.until("the VPA to be matched", matched).await;
    assert!(pod.r#override.is_some(), "{pod:#?}");
    scene.agent.release(&scene.pod.full_name()).await.unwrap();
    scene.holds_soon(&AT_FIRST).await;
    assert_eq!(scene.spec(), resources(AT_FIRST[0].1));
}

#[tokio::test]
async fn an_ungranted_target_takes_no_room() {
    let mut scene = Scene::managed().await;
    let uid = "0a1b2c3d-0000-4000-8000-000000000072";
    let beside = scene.node.run("beside", uid, &AT_FIRST);
    let mut bare = object(&beside, "none");
    bare["metadata"]["ownerReferences"] = json!([]);
    scene.api.put("pods", bare);
    scene.agent.reaches("beside", "NotManaged").await;
    scene.api.allocatable(NODE, &json!({"cpu": "2", "memory": "8Gi"}));
    scene.knows_capacity("there is 2 (allocatable)").await;
    let huge = [("app", Amounts::doubled(3900, 128))];
    scene.recommend(&huge);
    scene.reaches_with_detail("Refused", "no room").await;

    let rehearse = async |cpu: &str| {
        let mut request = limits(&beside, Some("2"), None);
        request.dry_run = true;
        let values = request.containers[0].values.as_mut().unwrap();
        values.requests = Some(proto::Amounts {
            cpu: Some(cpu.to_owned()),
            memory: None,
        });
        scene.agent.resize(request).await
    };
    assert_eq!(rehearse("1800m").await.unwrap().outcome, "Planned");
    let refused = rehearse("1801m").await.unwrap_err().to_string();
    let words =
        "cpu requests would be 2001m of 2000m (allocatable): this pod 1801m instead of 100m, the 1 other pod 200m";
    assert!(refused.contains(words), "{refused}");
    // A larger node has room.
    scene.api.allocatable(NODE, &json!({"cpu": "4", "memory": "8Gi"}));
    scene.settles(&huge).await;
}
