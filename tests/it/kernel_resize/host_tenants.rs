//! A tenant's pod that claims to be another's: no PATCH and no write reaches a pod of others. The forged objects have UIDs and
//! statuses that a real API server lets no tenant choose.

use serde_json::{Value, json};

use super::{AT_FIRST, Amounts, LARGER, NAME, NODE, Scene, UID, object, resources, vpa, workload};
use crate::support::bare::BarePod;
use crate::support::policy::{AGENT, Policy, Request};
use crate::support::tenants::{NAMESPACE, Tenant};

const OWN: &str = "0a1b2c3d-0000-4000-8000-000000000072";
const OTHER: &str = "0a1b2c3d-0000-4000-8000-000000000073";

#[tokio::test]
async fn no_patch_goes_to_a_pod_of_another_namespace() {
    let mut scene = Scene::new().await;
    let own = scene.node.run("own", OWN, &AT_FIRST);
    for (kind, object) in [
        ("deployments", workload("web", None)),
        ("replicasets", workload("web-5c4f", Some("web"))),
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
    // The kubelet model would write the victim's cgroups for any pod with this UID.
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
    // The pod has the values of its own VPA.
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

/// The number of times that the tenant rewrites all objects.
const ROUNDS: u64 = 20;
/// The tenant's running pods. They take turns: the agent follows ten recommendations of a pod at once, and then one each five seconds.
const OWNED: [(&str, &str); 2] = [("own", OWN), ("own-2", "0a1b2c3d-0000-4000-8000-000000000074")];

/// Whether a pod is one of the tenant's that run.
fn is_owned(namespace: &str, name: &str) -> bool {
    namespace == NAMESPACE && OWNED.iter().any(|(own, _)| name == *own)
}

/// Moves an object into the tenant's namespace.
fn tenants(mut object: Value) -> Value {
    object["metadata"]["namespace"] = NAMESPACE.into();
    object
}

#[tokio::test]
async fn a_tenant_reaches_own_pods_only_at_the_server() {
    let mut scene = Scene::new().await;
    let owned = OWNED.map(|(name, uid)| scene.node.run(name, uid, &AT_FIRST));
    let replicas_of = |own: &BarePod| format!("{}-1", own.name);
    // The tenant's running pods have workloads and VPAs of their own; the forged ones belong to Deployment `web`.
    for own in &owned {
        scene.api.put("pods", tenants(object(own, &replicas_of(own))));
        scene.api.put("replicasets", tenants(workload(&replicas_of(own), None)));
    }
    scene.api.put("deployments", tenants(workload("web", None)));
    let replicas = workload("web-5c4f", Some("web"));
    scene.api.put("replicasets", tenants(replicas));
    scene.api.kubelet(|kubelet| kubelet.writes = None);
    let theirs = &scene.pod.containers["app"].id;
    let stolen = [UID, UID, UID, UID, NAME, "test", theirs];
    let mut tenant = Tenant::new(72, &stolen, &[NAME, "web", "app", "a", "z"]);
    let before = (scene.object(), scene.node.held(&scene.pod));
    scene.agent.start().await;
    scene.agent.reaches(NAME, "NotManaged").await;
    for round in 0..ROUNDS {
        let uid = |number: u64| format!("0a1b2c3d-0000-4000-8000-{:012}", 1000 * (round + 1) + number);
        for number in 0..3 {
            let forged = tenant.pod_of(&uid(number), NODE, "ReplicaSet", "web-5c4f");
            scene.api.put("pods", forged);
            scene.api.put("pods", tenant.pod(&uid(10 + number), NODE));
            scene.api.put("verticalpodautoscalers", tenant.vpa());
        }
        let own = &owned[usize::from(round % 2 == 1)];
        let ours = Amounts::doubled(110 + 10 * (round % 7), 64 + 8 * (round % 5));
        scene.api.put("verticalpodautoscalers", tenants(vpa(&[("app", ours)])));
        let last = tenants(object(own, &replicas_of(own)));
        let marker = format!("round-{round}");
        scene.api.put("pods", of_round(last, &marker, &uid(99)));
        scene.agent.reaches(&marker, "NotRunning").await;
        // The running pod has the values of its own VPA, so the agent has read everything before it.
        let wanted = [("app", ours)];
        let mut for_own = tenants(vpa(&wanted));
        for_own["metadata"]["name"] = format!("z-{}", own.name).into();
        for_own["spec"]["targetRef"] = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replicas_of(own)});
        scene.api.put("verticalpodautoscalers", for_own);
        let done = || scene.node.holds_as_specified(own, &wanted);
        scene.agent.wait_for("what the own pod's VPA says", done).await;
        scene.api.remove("pods", &format!("{NAMESPACE}/{marker}"));
        assert_eq!(scene.node.held(&scene.pod), before.1, "round {round}");
        assert_eq!(scene.object(), before.0, "round {round}: nobody patched the victim");
        for change in scene.agent.history().await {
            assert!(is_owned(&change.namespace, &change.name), "round {round}: {change:#?}");
        }
    }
    assert!(
        scene.api.calls("patch pods/resize") > 0,
        "the tenant's own pod is resized"
    );
    let policy = Policy::shipped("vscaled-events");
    let said = || !scene.events().is_empty();
    scene.agent.wait_for("an Event about an own pod", said).await;
    for event in scene.events() {
        let [namespace, name] = ["namespace", "name"].map(|part| event["involvedObject"][part].as_str().unwrap());
        assert!(is_owned(namespace, name), "{event}");
        assert_eq!(event["metadata"]["namespace"], NAMESPACE, "{event}");
        let made = Request {
            user: AGENT,
            node: Some(NODE),
            operation: "CREATE",
            subresource: None,
            before: Value::Null,
            after: event.clone(),
        };
        assert_eq!(policy.refusals(&made), Vec::<String>::new(), "{event}");
    }
    // The victim has the values of its own VPA.
    scene.recommend(&LARGER);
    scene.holds_soon(&LARGER).await;
}

/// A pod of this name and UID that does not run. Once the agent reports it, the agent has read everything before it.
fn of_round(mut pod: Value, name: &str, uid: &str) -> Value {
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["uid"] = uid.into();
    pod
}
