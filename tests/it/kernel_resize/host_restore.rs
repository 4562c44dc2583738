//! Removing vscaled from a node whose kubelet resizes in place writes no pod for what others say of it. `cluster_today::answers`
//! takes back a request that a real kubelet has deferred.

use serde_json::json;
use vscaled::control::proto;

use super::{AT_FIRST, Amounts, FULL, LARGER, NAME, SMALLER, Scene, UID, resources};
use crate::support::apimodel::ResizeResult;

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_pods_annotations_restore_nothing() {
    let mut scene = Scene::started().await;
    scene.agent.stop();
    let applied = json!({"app": resources(LARGER[0].1)}).to_string();
    scene.api.change("pods", NAME, |pod| {
        pod["metadata"]["annotations"]["vscaled.io/applied"] = applied.clone().into();
    });
    scene.set_resize_result(ResizeResult::Infeasible(FULL));
    scene
        .api
        .resize(NAME, &json!([{"name": "app", "resources": resources(LARGER[0].1)}]))
        .unwrap();
    let other: [(&str, Amounts); 1] = [("app", Amounts::doubled(80, 48))];
    let version = scene.node.cgroups().version();
    scene
        .node
        .put(&scene.pod.containers["app"].cgroup, &other[0].1.settings(version));
    let held = scene.node.held(&scene.pod);
    for arguments in [&[][..], &["--yes", "--no-watch"]] {
        let (code, shown, error) = scene.agent.restore(arguments);
        assert_eq!(code, Some(1), "{shown}{error}");
        assert!(
            shown.contains("left as they are") && shown.contains(&format!("test/{NAME}")),
            "{shown}"
        );
        assert_eq!(scene.node.held(&scene.pod), held, "{AT_FIRST:?}");
    }
    let annotations = &scene.object()["metadata"]["annotations"];
    assert_eq!(annotations["vscaled.io/applied"], applied, "{UID}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_leaves_the_spec_and_a_recommendation_stays() {
    let mut scene = Scene::managed().await;
    let request = super::host_others::limits(&scene.pod, None, Some("256Mi"));
    scene.agent.resize(request).await.unwrap();
    assert_eq!(scene.spec()["limits"]["memory"], "256Mi");
    scene.agent.stop();
    let (code, shown, error) = scene.agent.restore(&["--yes", "--no-watch"]);
    assert_eq!(code, Some(0), "{shown}{error}");
    assert_eq!(scene.spec(), resources(SMALLER[0].1), "{shown}");
    assert!(scene.holds(&SMALLER), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_critical_pod_gets_its_requests_back() {
    let mut scene = Scene::new().await;
    scene
        .api
        .change("pods", NAME, |pod| pod["spec"]["priority"] = json!(2_000_000_000));
    scene.start().await;
    let mut request = super::host_others::limits(&scene.pod, None, None);
    request.containers[0].values = Some(proto::Requirements {
        requests: Some(proto::Amounts {
            cpu: Some("50m".to_owned()),
            memory: None,
        }),
        limits: None,
    });
    scene.agent.resize(request).await.unwrap();
    let lowered = Amounts {
        cpu: 50,
        ..AT_FIRST[0].1
    };
    scene.confirmed(&[("app", lowered)]).await;
    scene.agent.stop();
    let (code, shown, error) = scene.agent.restore(&["--yes", "--no-watch"]);
    assert_eq!(code, Some(0), "{shown}{error}");
    assert_eq!(scene.spec(), resources(AT_FIRST[0].1), "{shown}");
    assert!(scene.holds(&AT_FIRST), "{shown}");
}
