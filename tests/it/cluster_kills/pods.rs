//! Events on pods.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Scene;
use crate::support::cluster::User;

#[tokio::test]
async fn a_kill_is_an_event_on_its_pod() {
    let Some(scene) = Scene::started("cluster_kills::pods::a_kill_is_an_event_on_its_pod").await else {
        return;
    };
    let pod = &scene.cluster.pod;
    scene.kill(pod, 1);
    let event = scene.wait_for_kill_events(pod, 1).await.remove(0);
    assert_eq!(
        event["involvedObject"],
        json!({"apiVersion": "v1", "kind": "Pod", "namespace": "test", "name": pod.name, "uid": pod.uid,
            "fieldPath": "spec.containers{app}"})
    );
    assert_eq!((&event["type"], &event["count"]), (&json!("Warning"), &json!(1)));
    assert_eq!(event["source"], json!({"component": "vscaled", "host": "node-1"}));
    assert_eq!(event["firstTimestamp"], event["lastTimestamp"]);
    let told = scene
        .cluster
        .agent
        .client()
        .await
        .oom_list(pod.uid.to_owned())
        .await
        .unwrap();
    let message = event["message"].as_str().unwrap();
    // The kernel logs few kills in a period, and other processes on the machine may have used up the limit.
    let killed = match &told.kills[0].victim {
        Some(victim) => format!("The kernel killed \"sh\" (pid {})", victim.pid),
        None => "The kernel killed a process: ".to_owned(),
    };
    assert!(message.starts_with(&killed), "{message}");
    let cause = "the container reached its memory limit of 128Mi";
    assert_eq!(message.contains(cause), told.kills[0].level == "container", "{message}");
    let described = scene
        .cluster
        .cluster
        .kubectl(&["--namespace=test", "describe", "pod", pod.name], "");
    assert!(
        described.contains("OOMKilled") && described.contains("vscaled"),
        "{described}"
    );
}

#[tokio::test]
async fn a_flood_is_told_whole_in_few_events() {
    let Some(scene) = Scene::started("cluster_kills::pods::a_flood_is_told_whole_in_few_events").await else {
        return;
    };
    let pod = &scene.cluster.pod;
    let begun = std::time::Instant::now();
    scene.kill(pod, 40);
    let events = scene.wait_for_kill_events(pod, 40).await;
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    assert!(events.len() <= 11 + seconds / 60, "ten, and one a minute: {events:#?}");
    let names: BTreeSet<_> = events
        .iter()
        .map(|event| event["metadata"]["name"].to_string())
        .collect();
    assert_eq!(names.len(), events.len());
    scene.has_no_pending_report().await;
}

#[tokio::test]
async fn a_missing_right_loses_nothing() {
    let Some(mut scene) = Scene::new("cluster_kills::pods::a_right_that_is_missing_is_named") else {
        return;
    };
    let rules = std::fs::read_to_string("deploy/base/rbac.yaml").unwrap();
    let without = rules.replace("resources: [events]", "resources: [nothing]");
    assert_ne!(rules, without);
    scene.cluster.cluster.kubectl(&["apply", "--filename=-"], &without);
    scene.start().await;
    let pod = &scene.cluster.pod;
    scene.kill(pod, 2);
    let rule = "{apiGroups: [\"\"], resources: [events], verbs: [create]}";
    let problem = scene
        .cluster
        .agent
        .reports(&["pod-events", "lacks the rule", rule])
        .await;
    let checks = scene.cluster.agent.client().await.doctor().await.unwrap().checks;
    // The waiting time in the message changes.
    assert!(
        checks.iter().any(|check| check.found.contains(rule)),
        "{problem}: {checks:#?}"
    );
    scene.cluster.cluster.kubectl(&["apply", "--filename=-"], &rules);
    scene.wait_for_kill_events(pod, 2).await;
    scene.has_no_pending_report().await;
}

#[tokio::test]
async fn a_kill_in_a_namespace_that_is_gone_is_told_about_the_node() {
    let Some(scene) = Scene::started("cluster_kills::pods::a_kill_in_a_namespace_that_is_gone").await else {
        return;
    };
    let cluster = &scene.cluster.cluster;
    // The namespace stays in Terminating, and the API server accepts no new objects in it.
    cluster.kubectl(&["delete", "namespace", "test", "--wait=false"], "");
    let probe = ["--namespace=test", "create", "configmap", "probe", "--dry-run=server"];
    let refused = || cluster.try_kubectl(User::Admin, &probe, "").is_err();
    scene
        .cluster
        .agent
        .wait_for("the namespace to be closed", refused)
        .await;
    let pod = &scene.cluster.pod;
    scene.kill(pod, 1);
    // The kernel may kill other processes on the machine, outside of this node's pods.
    let words = format!("Pod test/{}, container app: The kernel killed", pod.name);
    let ours = |event: &Value| event["message"].as_str().unwrap().starts_with(&words);
    let about_node = async || {
        let list = cluster.get("/api/v1/namespaces/default/events");
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .find(|event| ours(event))
            .cloned()
    };
    let event = scene.cluster.agent.until("an Event about the node", about_node).await;
    assert_eq!(
        event["involvedObject"],
        json!({"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"})
    );
    scene.has_no_pending_report().await;
}
