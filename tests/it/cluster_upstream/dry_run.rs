//! What `vscalectl decide` lets pass, a real API server accepts (`dryRun=All`): the same made-up pods, in a namespace each with
//! its LimitRanges.

use fastrand::Rng;
use http::Method;
use serde_json::{Map, Value, json};

use super::{Case, ours, seed};
use crate::support::cluster::{ApiServer, Release, User};

const PODS: usize = 150;

/// Creates the case's objects as the API server keeps them, and takes over what it made of them.
fn create(cluster: &ApiServer, case: &mut Case, random: &mut Rng) {
    let namespace = case.pod["metadata"]["namespace"].as_str().unwrap().to_owned();
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let post = |path: &str, object: &Value| {
        cluster.request_as(&cluster.kubeconfig(User::Admin), Method::POST, path, Some(object))
    };
    post(
        "/api/v1/namespaces",
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
    )
    .unwrap();
    let mut status = case.pod["status"].clone();
    for (index, container) in case.pod["spec"]["containers"].as_array().unwrap().iter().enumerate() {
        let of_container = &mut status["containerStatuses"][index];
        of_container["resources"] = container["resources"].clone();
        of_container["state"] = json!({"running": {"startedAt": super::before(60)}});
    }
    // A pod is there before the LimitRanges, which it may break.
    post(&pods, &case.pod).unwrap();
    cluster.put_status(&pods, "p", &status);
    case.pod = cluster.get(&format!("{pods}/p"));
    case.limit_ranges.retain_mut(|range| {
        if random.f64() < 0.3 {
            let resource = super::RESOURCES[random.usize(..2)];
            range["spec"]["limits"][0]["maxLimitRequestRatio"] = json!({resource: "2.5"});
        }
        // Of those that contradict themselves, the API server wants none. It fills in defaults.
        let kept = post(&format!("/api/v1/namespaces/{namespace}/limitranges"), range);
        kept.is_ok_and(|kept| {
            *range = serde_json::from_str(&kept).unwrap();
            true
        })
    });
}

/// The patch that brings about a decision.
fn patch(decision: &Value) -> Value {
    let containers = decision["containers"].as_array().unwrap().iter();
    let containers = containers.map(|container| {
        let lists = ["requests", "limits"].map(|list| (list.to_owned(), container[list].clone()));
        let set = lists.into_iter().filter(|(_, list)| list.is_object());
        json!({"name": container["name"], "resources": set.collect::<Map<_, _>>()})
    });
    json!({"spec": {"containers": containers.collect::<Vec<_>>()}})
}

#[test]
fn no_decision_is_refused_by_the_api_server() {
    let name = "cluster_upstream::dry_run::no_decision_is_refused_by_the_api_server";
    let Some(cluster) = ApiServer::start(Release::Today, name) else {
        return;
    };
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
    let size = json!({"cpu": "1k", "memory": "4Ti"});
    cluster.put_status("/api/v1/nodes", "n", &json!({"capacity": size, "allocatable": size}));
    let seed = seed();
    let mut random = Rng::with_seed(seed);
    let mut cases: Vec<Case> = (0..PODS).map(|number| Case::draw(&mut random, number)).collect();
    for case in &mut cases {
        create(&cluster, case, &mut random);
    }
    let (mut resized, mut within_ranges, mut refused) = (0, 0, Vec::new());
    for (case, decision) in cases.iter().zip(ours(&cases)) {
        let mut notes = decision["notes"].as_array().into_iter().flatten();
        // A rule that the pod breaks already, or that the VPA's policy breaks, is named and holds nothing up.
        let is_named = notes.any(|note| note.as_str().unwrap().contains(" of LimitRange "));
        if decision["action"] != "resize" || is_named {
            continue;
        }
        let namespace = case.pod["metadata"]["namespace"].as_str().unwrap();
        let path = format!("/api/v1/namespaces/{namespace}/pods/p/resize?dryRun=All");
        let answer = cluster.answer(&path, &patch(&decision));
        if answer["kind"] == "Pod" {
            resized += 1;
            within_ranges += usize::from(!case.limit_ranges.is_empty());
        } else {
            let ranges = &case.limit_ranges;
            refused.push(format!(
                "{}\n{decision}\n{}\n{ranges:?}",
                answer["message"], case.pod["spec"]["containers"]
            ));
        }
    }
    let number = refused.len();
    assert!(
        refused.is_empty(),
        "VSCALED_SEED={seed}: {number} refused, such as {}",
        refused[0]
    );
    assert!(
        resized > 30 && within_ranges > 5,
        "VSCALED_SEED={seed}: {resized} resized, {within_ranges} of them with LimitRanges"
    );
}
