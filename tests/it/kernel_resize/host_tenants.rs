//! A tenant's pod that claims to be another's: no PATCH and no write leaves the tenant's own pods.

use serde_json::json;

use super::{AT_FIRST, Amounts, LARGER, NAME, NODE, Scene, UID, object, resources, vpa, workload};

const OWN: &str = "0a1b2c3d-0000-4000-8000-000000000072";
const OTHER: &str = "0a1b2c3d-0000-4000-8000-000000000073";

#[tokio::test]
async fn no_patch_goes_to_a_pod_of_another_namespace() {
    let mut scene = Scene::new().await;
    let own = scene.node.run("own", OWN, &AT_FIRST);
    for (kind, object) in [
        ("deployments", workload("web", None)),
        ("replicasets", workload("web-5c4f", Some(("Deployment", "web")))),
        ("verticalpodautoscalers", vpa(&LARGER)),
    ] {
        let mut object = object;
        object["metadata"]["namespace"] = "tenant".into();
        scene.api.put(kind, object);
    }
    let mirror = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "n", "controller": true}]);
    for (name, uid, annotation, owners) in [
        ("own", OWN, "kubernetes.io/config.hash", None),
        ("hash", OTHER, "kubernetes.io/config.hash", None),
        ("mirror", OTHER, "kubernetes.io/config.mirror", None),
        ("forged", OTHER, "kubernetes.io/config.mirror", Some(&mirror)),
    ] {
        let pod = if name == "own" { &own } else { &scene.pod };
        let mut object = object(pod, "web-5c4f");
        let metadata = &mut object["metadata"];
        metadata["name"] = name.into();
        metadata["namespace"] = "tenant".into();
        metadata["uid"] = uid.into();
        metadata["annotations"][annotation] = UID.into();
        if let Some(owners) = owners {
            metadata["ownerReferences"] = owners.clone();
        }
        scene.api.put("pods", object);
    }
    // The kubelet of the model would write the victim's cgroups for whichever pod it sees.
    scene.api.kubelet(|kubelet| kubelet.writes = None);
    let before = (scene.object(), scene.node.held(&scene.pod));
    scene.agent.start().await;
    let asked = || {
        let pod = scene.api.get("pods", "own").unwrap();
        pod["spec"]["containers"][0]["resources"] == resources(LARGER[0].1)
    };
    scene.agent.wait_for("the tenant's own pod to be resized", asked).await;
    for name in ["hash", "mirror", "forged"] {
        scene.agent.reaches(name, "NotRunning").await;
        let pod = scene.api.get("pods", name).unwrap();
        assert_eq!(pod["metadata"]["generation"], 1, "{pod}");
    }
    assert_eq!(scene.node.held(&scene.pod), before.1);
    assert_eq!(scene.object()["metadata"], before.0["metadata"], "nothing was patched");
    assert_eq!(scene.spec(), resources(AT_FIRST[0].1));
    // It has what its own VPA says, as ever.
    let wanted: [(&str, Amounts); 1] = [("app", Amounts::doubled(200, 96))];
    scene.recommend(&wanted);
    scene.settles(&wanted).await;
    let patched: Vec<_> = scene
        .agent
        .history()
        .await
        .iter()
        .map(|change| change.name.clone())
        .collect();
    assert!(
        patched.iter().all(|name| ["own", NAME].contains(&name.as_str())),
        "{patched:?}"
    );
}
