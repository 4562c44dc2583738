//! A tenant's objects change no pod of others: neither annotations and owners that imitate the victim's mirror pod,
//! nor its name, nor the ids of its containers in a status.

use vscaled::control::proto;

use super::{AT_FIRST, Amounts, SIDE, Scene, UID, memory};
use crate::support::amounts::{pod_manifest, vpa_manifest};
use crate::support::tenants::{NAMESPACE, Tenant};

const OWN: &str = "0a1b2c3d-0000-4000-8000-000000000012";
const WANTED: [(&str, Amounts); 1] = [("app", Amounts::doubled(20, 16))];
const NODE: &str = "{apiVersion: v1, kind: Node, name: node-1, uid: n, controller: true}";

/// A pod of the tenant with this name, UID and additional metadata, and with its own VPA.
fn tenants(name: &str, uid: &str, container: &str, metadata: &str) -> String {
    let pod = pod_manifest(name, uid, &[("app", Amounts::doubled(100, 64), Some(container))]);
    let pod = pod.replace(&format!("uid: {uid}\n"), &format!("uid: {uid}\n  {metadata}\n"));
    format!("{pod}---\n{}", vpa_manifest(name, name, &WANTED)).replace("namespace: test", "namespace: tenant")
}

fn set_of(name: &str) -> String {
    format!("{{apiVersion: apps/v1, kind: StatefulSet, name: {name}, uid: set, controller: true}}")
}

/// Replaces the owners in the manifest.
fn owned_by(manifest: &str, owners: &str) -> String {
    let line = |line: &str| match line.trim_start().starts_with("ownerReferences:") {
        true => format!("  ownerReferences: {owners}\n"),
        false => format!("{line}\n"),
    };
    manifest.lines().map(line).collect()
}

#[tokio::test]
async fn tenant_metadata_resizes_no_foreign_pod() {
    let mut scene = Scene::new();
    let own = scene.node.run("own", OWN, &[("app", Amounts::doubled(100, 64))]);
    let theirs = scene.pod.containers["app"].id.clone();
    let annotated = |name: &str| format!("annotations: {{kubernetes.io/config.{name}: {UID}}}");
    // The pod runs and has the values of its own VPA.
    let runs = tenants("own", OWN, &own.containers["app"].id, &annotated("hash"));
    scene.agent.write("a-own.yaml", &runs);
    let other = |digit: u8| format!("0a1b2c3d-0000-4000-8000-0000000000{digit}");
    let forged = tenants("forged", &other(25), &theirs, &annotated("mirror"));
    let both = tenants("both", &other(26), &theirs, &annotated("mirror"));
    for (file, text) in [
        ("a-hash", tenants("hash", &other(21), &theirs, &annotated("hash"))),
        ("a-mirror", tenants("mirror", &other(22), &theirs, &annotated("mirror"))),
        ("z-mirror", tenants("late", &other(23), &theirs, &annotated("mirror"))),
        ("z-name", tenants("web", &other(24), &theirs, &annotated("hash"))),
        ("z-forged", owned_by(&forged, &format!("[{NODE}]"))),
        ("z-both", owned_by(&both, &format!("[{NODE}, {}]", set_of("both")))),
    ] {
        scene.agent.write(&format!("{file}.yaml"), &text);
    }
    let before = scene.node.held(&scene.pod);
    scene.agent.start().await;
    scene.agent.reaches("own", "InSync").await;
    assert!(scene.node.holds(&own, &WANTED));
    for name in ["hash", "mirror", "late", "forged", "both"] {
        let pod = scene.agent.reaches(name, "NotRunning").await;
        assert_ne!(pod.uid, UID, "{name} passes for the victim");
    }
    assert_eq!(scene.node.held(&scene.pod), before);
    let request = |pod: &str| proto::ResizeRequest {
        pod: pod.to_owned(),
        ..scene.by_hand(memory("512Mi"))
    };
    for name in ["hash", "mirror", "forged", "web"] {
        let refused = scene.agent.resize(request(&format!("tenant/{name}"))).await;
        assert!(refused.is_err(), "{name}: {refused:?}");
    }

    // The agent finds only the victim by its UID, and applies the victim's own VPA.
    let wanted = [("app", Amounts::doubled(200, 96)), ("side", SIDE)];
    assert!(scene.node.holds(&scene.pod, &AT_FIRST));
    scene.recommend(&wanted);
    scene
        .agent
        .wait_for("the victim's own recommendation", || scene.holds(&wanted))
        .await;
    let change = scene.agent.resize(request(UID)).await.unwrap();
    assert_eq!((change.namespace.as_str(), change.name.as_str()), ("test", "web"));
    for change in scene.agent.history().await {
        let pod = format!("{}/{}", change.namespace, change.name);
        assert!(["test/web", "tenant/own"].contains(&pod.as_str()), "{pod}");
    }
    // The state file has only running pods.
    let saved = std::fs::read_to_string(scene.agent.state_file()).unwrap();
    for name in ["hash", "mirror", "late", "forged", "both"] {
        assert!(!saved.contains(&format!("\"name\":\"{name}\"")), "{saved}");
    }
}

#[tokio::test]
async fn a_mirror_pod_is_its_static_pod() {
    let mut scene = Scene::new();
    let mirrored = owned_by(&scene.pod.manifest(), &format!("[{NODE}]"));
    let annotations = format!("kubernetes.io/config.mirror: {UID}, kubernetes.io/config.hash: {UID}");
    let uid = format!("uid: {OWN}\n  annotations: {{{annotations}}}");
    scene
        .agent
        .write("pod.yaml", &mirrored.replace(&format!("uid: {UID}"), &uid));
    scene.agent.start().await;
    let pod = scene.agent.reaches("web", "NotManaged").await;
    assert_eq!(pod.uid, UID);
    scene.agent.resize(scene.by_hand(memory("256Mi"))).await.unwrap();
}

/// The number of times that the tenant rewrites all objects.
const ROUNDS: u64 = 20;
/// Running pods of others. They take turns: the agent follows ten recommendations of a pod at once, and then one each five seconds.
const PROBES: [(&str, &str); 2] = [("probe", OWN), ("probe-2", "0a1b2c3d-0000-4000-8000-000000000014")];

#[tokio::test]
async fn a_tenants_objects_change_own_pods_only() {
    let mut scene = Scene::new();
    let probes = PROBES.map(|(name, uid)| scene.node.run(name, uid, &[("app", Amounts::doubled(100, 64))]));
    for probe in &probes {
        scene.agent.write(&format!("{}.yaml", probe.name), &probe.manifest());
    }
    let stolen = [
        UID,
        OWN,
        "web",
        "probe",
        "test",
        &scene.pod.containers["app"].id,
        &probes[0].containers["app"].id,
    ];
    let mut tenant = Tenant::new(71, &stolen, &["web", "probe", "app", "side", "other"]);
    let before = scene.node.held(&scene.pod);
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    for round in 0..ROUNDS {
        let uid = |number: u64| format!("0a1b2c3d-0000-4000-8000-{:012}", 1000 * round + number);
        let pods = (0..6)
            .map(|number| tenant.pod(&uid(number), "node-1"))
            .collect::<Vec<_>>();
        let vpas = (0..3).map(|_| tenant.vpa()).collect::<Vec<_>>();
        let workloads = ["StatefulSet", "Deployment", "ReplicaSet"].map(|kind| tenant.workload(kind));
        let all = pods.iter().chain(&vpas).chain(&workloads);
        // One file sorts before the others' files and one after them.
        for (index, object) in all.enumerate() {
            let file = if index % 2 == 0 { "a" } else { "z" };
            scene.agent.write(&format!("{file}-{index}.yaml"), &object.to_string());
        }
        // The probe has the values of its own VPA, so the agent has read everything before it.
        let probe = &probes[usize::from(round % 2 == 1)];
        let wanted = [("app", Amounts::doubled(50 + 10 * (round % 7), 32 + 8 * (round % 5)))];
        let vpa = vpa_manifest(probe.name, probe.name, &wanted);
        scene.agent.write(&format!("{}-vpa.yaml", probe.name), &vpa);
        let done = || scene.node.holds(probe, &wanted);
        scene.agent.wait_for("what the probe's own VPA says", done).await;
        assert_eq!(scene.node.held(&scene.pod), before, "round {round}");
        for change in scene.agent.history().await {
            let is_theirs = change.namespace == NAMESPACE;
            let is_probe = change.namespace == "test" && PROBES.iter().any(|(name, _)| change.name == *name);
            assert!(is_probe || is_theirs, "round {round}: {change:#?}");
            assert!(
                !is_theirs || change.steps.is_empty(),
                "nothing of theirs runs: {change:#?}"
            );
        }
    }
}
