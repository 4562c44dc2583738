//! The cost at the API server of recommendations for many pods or for an hour. The model counts calls, and holds answers back
//! until all calls that come at once are there.

use serde_json::json;
use vscaled::control::proto;
use vscaled::model::CgroupPath;
use vscaled::model::quantity::Quantity;

use super::{APP, LARGER, NAME, NODE, SMALLER, Scene, objects, vpa};
use crate::support::amounts::Amounts;
use crate::support::http;

/// Pods besides the scene's.
const OTHERS: usize = 24;
/// The numbers in docs/api-server.md: calls at once about one namespace, and about all.
const AT_ONCE: usize = 8;
const OF_ALL: usize = 10;

/// Creates another pod of the workload and returns its container's cgroup.
pub(super) fn another(scene: &Scene, number: usize) -> CgroupPath {
    let (uid, id) = (
        format!("0a1b2c3d-0000-4000-8000-{number:012x}"),
        format!("{number:064x}"),
    );
    let mut pod = scene.object();
    pod["metadata"]["name"] = json!(format!("web-{number}"));
    pod["metadata"]["uid"] = json!(uid);
    pod["status"]["containerStatuses"][0]["containerID"] = json!(format!("containerd://{id}"));
    scene.api.put("pods", pod);
    scene.node.cgroups().make(&format!("kubepods/burstable/pod{uid}/{id}"))
}

#[tokio::test]
async fn many_pods_are_patched_a_few_at_a_time() {
    let mut scene = Scene::new().await;
    scene.api.allocatable(NODE, &json!({"cpu": "400", "memory": "800Gi"}));
    let mut containers: Vec<_> = (1000..1000 + OTHERS).map(|number| another(&scene, number)).collect();
    containers.push(scene.pod.containers["app"].cgroup.clone());
    scene.start().await;
    let cgroups = scene.node.cgroups();
    let all_hold = |target: [(&str, Amounts); 1]| {
        let settings = target[0].1.settings(cgroups.version());
        containers.iter().all(|container| cgroups.holds(container, &settings))
    };
    scene.recommend(&SMALLER);
    scene
        .agent
        .wait_for("all pods to be resized", || all_hold(SMALLER))
        .await;
    scene.agent.reaches(NAME, "InSync").await;

    let answering = scene.api.hold_answers(&["patch"], "pods/resize", None);
    scene.recommend(&LARGER);
    let asked = || scene.api.under_way().0 == AT_ONCE;
    scene.agent.wait_for("so many to be asked for", asked).await;
    let all_at_work = async || {
        let pods = scene.agent.get().await.pods;
        pods.iter().all(|pod| pod.state == "Working").then_some(())
    };
    scene.agent.until("all pods to be worked on", all_at_work).await;
    answering.cancel();
    scene
        .agent
        .wait_for("all pods to be resized", || all_hold(LARGER))
        .await;
    let most = scene.api.under_way().1;
    assert!((AT_ONCE..=OF_ALL).contains(&most), "{most}");
}

/// Two workloads with one and with two containers each follow two recommendations. An updater that evicts would have
/// restarted all three containers at least once.
#[tokio::test]
async fn avoided_restarts_count_containers_once() {
    const PAIR: &str = "0a1b2c3d-0000-4000-8000-000000000072";
    let mut scene = Scene::new().await;
    let pair = scene.node.run("db-1-y", PAIR, &[("app", APP), ("side", APP)]);
    scene.api.put("deployments", objects::workload("db", "db", None));
    scene
        .api
        .put("replicasets", objects::workload("db-1", "db", Some("db")));
    scene.api.put("pods", objects::running_pod(&pair, "db", "db-1", NODE));
    scene.agent.set("--http-address", "127.0.0.1:0");
    scene.start().await;
    let recommend = |scene: &Scene, amounts: Amounts| {
        scene.recommend(&[("app", amounts)]);
        let both = [("app", amounts), ("side", amounts)];
        scene.api.put("verticalpodautoscalers", objects::vpa("db", &both));
    };
    let avoided = async |scene: &Scene, evictions: u64| {
        let counted = async || {
            let reply = scene.agent.client().await.report(None).await.ok()?;
            (reply.total.as_ref()?.avoided_evictions == evictions).then_some(reply)
        };
        let reply = scene.agent.until("the evictions", counted).await;
        let by_workload = reply.workloads.iter().map(|one| {
            let name = &one.workload.as_ref().unwrap().name;
            (format!("{}/{name}", one.namespace), one.avoided_restarts)
        });
        let total = reply.total.as_ref().unwrap().avoided_restarts;
        (by_workload.collect::<Vec<_>>(), total)
    };
    let truth = (vec![("test/db".to_owned(), 2), ("test/web".to_owned(), 1)], 3);
    recommend(&scene, SMALLER[0].1);
    assert_eq!(avoided(&scene, 2).await, truth);
    recommend(&scene, LARGER[0].1);
    assert_eq!(avoided(&scene, 4).await, truth, "they were replaced already");
    let (_, metrics) = http::get(scene.agent.http_address().await, "/metrics").unwrap();
    assert!(metrics.contains("\nvscaled_avoided_restarts_total 3\n"), "{metrics}");
    // The values by workload follow after two minutes.
    for workload in ["web", "db"] {
        let labels = format!("{{namespace=\"test\",workload=\"Deployment/{workload}\"}}");
        let line = format!("\nvscaled_workload_avoided_restarts_total{labels} 0\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
    // The next agent does not count them again either, and knows the requests from before.
    scene.agent.stop();
    scene.agent.start().await;
    scene.agent.reaches(NAME, "InSync").await;
    scene.agent.reaches(pair.name, "InSync").await;
    let reply = scene.agent.client().await.report(None).await.unwrap();
    let total = reply.total.unwrap();
    let memory = |amounts: Option<proto::Amounts>| amounts.unwrap().memory.unwrap();
    assert_eq!(
        [total.requested_before, total.requested].map(memory),
        ["192Mi", "384Mi"]
    );
    recommend(&scene, SMALLER[0].1);
    let none = truth.0.iter().map(|(name, _)| (name.clone(), 0)).collect();
    assert_eq!(avoided(&scene, 2).await, (none, 0));
}

/// The target rises by a third within the hour, and fluctuates. After ten changes the agent follows one each five seconds.
#[tokio::test]
async fn an_ordinary_hour_makes_few_events() {
    let scene = Scene::managed().await;
    for (minute, wavers) in (0..60).step_by(3).zip([0, 3, 1].into_iter().cycle()) {
        let target = SMALLER[0].1.memory + minute / 2 + wavers;
        let mut vpa = vpa(&SMALLER);
        let recommended = &mut vpa["status"]["recommendation"]["containerRecommendations"][0];
        for (bound, percent) in [("lowerBound", 85), ("target", 100), ("upperBound", 130)] {
            recommended[bound]["memory"] = json!(format!("{}Ki", (target << 10) * percent / 100));
        }
        scene.api.put("verticalpodautoscalers", vpa);
        let wanted = format!("{}Ki", target << 10);
        let heard = async || {
            let reply = scene.agent.client().await.explain(scene.pod.full_name()).await.ok()?;
            let mut targets = reply.amounts.iter().filter_map(|amount| amount.target.as_deref());
            targets.any(|target| is_same(target, &wanted)).then_some(())
        };
        scene.agent.until("the recommendation to be heard of", heard).await;
        scene.agent.reaches(NAME, "InSync").await;
    }
    assert!(scene.api.calls("patch pods/resize") > 1, "the hour changes nothing");
    let events = scene.events();
    let told: u64 = events.iter().map(|event| event["count"].as_u64().unwrap_or(1)).sum();
    assert!((2..=5).contains(&told), "{told}: {events:#?}");
}

fn is_same(one: &str, other: &str) -> bool {
    Quantity::parse(one) == Quantity::parse(other)
}
