//! VPA's own programs and metrics-server beside the agent.

use http::Method;
use serde_json::{Value, json};
use vscaled::model::quantity::Quantity;

use super::{APP, GREEDY, LARGER, Scene, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::{Components, objects};

/// Less than the recommender recommends at least.
fn little() -> Value {
    json!({"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stock_recommenders_loop_is_closed() {
    let Some(mut scene) = Scene::new("cluster_today::pairing::what_metrics_server_measures").await else {
        return;
    };
    let mut autoscaler = Components::new(&scene.today.api);
    autoscaler.launch_metrics_server(&scene.today.api);
    autoscaler.launch_recommender(&scene.today.api);

    let app = json!({"name": "app", "resources": little()});
    let side = json!({"name": "side", "resources": little()});
    let workloads = [
        ("one", "InPlaceOrRecreate", json!({"containers": [app]})),
        ("several", "InPlace", json!({"containers": [app, side]})),
    ];
    let mut pods = Vec::new();
    for (name, mode, spec) in &workloads {
        scene.make_member(name, spec);
        scene.make_vpa_of(name, mode);
        pods.push(scene.runs(&format!("{name}-5c4f-x")).await);
    }
    scene.agent.start().await;
    scene
        .agent
        .wait_for("metrics", || autoscaler.measures(&scene.today.api, "several-5c4f-x"))
        .await;
    for ((name, _, spec), before) in workloads.iter().zip(&pods) {
        let pod = scene.is_within_bounds(name).await;
        nothing_restarted(before, &pod);
        let count = spec["containers"].as_array().unwrap().len();
        assert_eq!(scene.recommended(name).len(), count, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vpas_programs_agree_with_the_agent() {
    let Some(mut scene) = Scene::new("cluster_today::pairing::the_stock_updater").await else {
        return;
    };
    // It removes the annotations of boosts.
    scene.today.api.grant("deploy/overlays/boost");
    let mut vpa = Components::new(&scene.today.api);
    vpa.launch_admission_controller(&scene.today.api);
    let boost = json!({"startupBoost": {"cpu": {"type": "Factor", "factor": 3, "durationSeconds": 0}}});
    for (workload, mode, annotations) in [
        ("one", "InPlaceOrRecreate", json!({})),
        ("two", "InPlace", json!({})),
        ("theirs", "InPlace", json!({"vscaled.io/act": "false"})),
    ] {
        scene.make_workload(workload, &format!("{workload}-5c4f"));
        scene.make_vpa_with(workload, mode, &annotations, &boost);
        scene.recommend_for(workload, &[("app", LARGER)]);
    }
    scene.agent.start().await;
    let boosted = || {
        scene.create_member("one", "?dryRun=All")["spec"]["containers"][0]["resources"] == objects::resources(BOOSTED)
    };
    scene.agent.wait_for("the webhook to give boosts", boosted).await;

    // The agent ends the first boost, the updater those of pods that the agent leaves alone.
    let mut pods = vec![scene.start_member("one").await];
    vpa.launch_updater(&scene.today.api);
    pods.push(scene.start_member("two").await);
    pods.push(scene.start_member("theirs").await);

    let rounds = [APP, Amounts::doubled(150, 80), LARGER];
    for amounts in rounds {
        for workload in ["one", "two"] {
            scene.recommend_for(workload, &[("app", amounts)]);
        }
        for before in &pods[..2] {
            let name = before["metadata"]["name"].as_str().unwrap();
            scene.is_resized(name, "app", &objects::resources(amounts)).await;
            scene.agent.reaches(name, "InSync").await;
        }
    }
    // Neither takes back what the other did.
    let now: Vec<_> = pods
        .iter()
        .map(|pod| scene.object(pod["metadata"]["name"].as_str().unwrap()))
        .collect();
    let loops = vpa.updater_loops().expect("the updater has metrics");
    let looked = || vpa.updater_loops() > Some(loops + 1);
    scene.agent.wait_for("the updater to look again", looked).await;
    for (before, now) in pods.iter().zip(&now) {
        let pod = scene.object(now["metadata"]["name"].as_str().unwrap());
        assert_eq!(pod["metadata"]["generation"], now["metadata"]["generation"]);
        nothing_restarted(before, &pod);
    }
    scene.today.api.grant("deploy/base");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_without_a_status_raises_the_recommendation() {
    let Some(mut scene) = Scene::new("cluster_today::pairing::a_kill").await else {
        return;
    };
    let mut vpa = Components::new(&scene.today.api);
    vpa.launch_recommender(&scene.today.api);
    scene.agent.set("--report-vpa-events", "true");
    scene.starts_watching_kills().await;
    // The recommender takes the request of a container that ended, and what an Event says of one that runs on.
    let cases = [("child", "64Mi"), ("whole", "300Mi")];
    for (workload, request) in cases {
        let resources = json!({"requests": {"cpu": "10m", "memory": request}, "limits": {"memory": "300Mi"}});
        let app = json!({"name": "app", "resources": resources, "command": ["/bin/sh", "-c", GREEDY]});
        scene.make_member(workload, &json!({"containers": [app]}));
        scene.make_vpa_of(workload, "Off");
    }
    for (workload, _) in cases {
        let pod = scene.runs(&format!("{workload}-5c4f-x")).await;
        let recommended = || scene.recommends_memory(workload).is_some();
        scene.agent.wait_for("a first recommendation", recommended).await;
        assert!(scene.recommends_memory(workload) < Some(LIMIT), "{workload}");
        if workload == "child" {
            // As with the kubelet's singleProcessOOMKill.
            let cgroup = scene.cgroup(&pod, "app").under("/sys/fs/cgroup".as_ref());
            std::fs::write(cgroup.join("memory.oom.group"), "0").unwrap();
        }
        scene.signal(&pod, "app");
    }
    for (workload, _) in cases {
        let raised = || scene.recommends_memory(workload) > Some(LIMIT);
        scene.agent.wait_for("the recommendation to rise", raised).await;
    }
    let told = |workload: &str| scene.events(&format!("{workload}-5c4f-x"), "Evicted").len();
    assert_eq!(cases.map(|(workload, _)| told(workload)), [1, 0]);
}

/// What the webhook gives three times the recommended cpu.
const BOOSTED: Amounts = Amounts {
    cpu: 600,
    cpu_limit: Some(1200),
    ..LARGER
};

/// The memory limit of killed containers in bytes.
const LIMIT: u64 = 300 << 20;

impl Scene {
    /// Creates a pod of a workload, as its controller does, and returns the answer.
    fn create_member(&self, workload: &str, query: &str) -> Value {
        let replica_set = format!("{workload}-5c4f");
        let owners = self.owned("ReplicaSet", "replicasets", &replica_set);
        let spec = json!({"containers": [{"name": "app", "resources": objects::resources(APP)}]});
        let pod = self.pod(&format!("{replica_set}-x"), workload, &owners, &spec);
        self.today.api.send(Method::POST, &(self.pods() + query), &pod)
    }

    /// Creates a pod that starts with a boost, and waits until that has ended.
    async fn start_member(&self, workload: &str) -> Value {
        let created = self.create_member(workload, "");
        assert_eq!(
            created["spec"]["containers"][0]["resources"],
            objects::resources(BOOSTED)
        );
        let name = created["metadata"]["name"].as_str().unwrap();
        let pod = self.is_resized(name, "app", &objects::resources(LARGER)).await;
        let is_boosted = || self.object(name)["metadata"]["annotations"]["vpaCpuStartupBoost/app"].is_string();
        self.agent.wait_for("the boost to end", || !is_boosted()).await;
        pod
    }

    /// The bytes that are recommended for the container of a workload.
    fn recommends_memory(&self, workload: &str) -> Option<u64> {
        let recommended = self.recommended(workload);
        let target = recommended.first()?["target"]["memory"].as_str()?;
        Some(Quantity::parse(target).unwrap().value())
    }

    /// Creates a pod of a workload.
    fn make_member(&self, workload: &str, spec: &Value) {
        let replica_set = format!("{workload}-5c4f");
        self.make_workload(workload, &replica_set);
        let owners = self.owned("ReplicaSet", "replicasets", &replica_set);
        self.make_pod_labelled(&format!("{replica_set}-x"), workload, &owners, spec);
    }

    /// What the VPA of a workload recommends for each container.
    fn recommended(&self, workload: &str) -> Vec<Value> {
        let vpa = self.today.api.get(&format!("{}/{workload}", self.vpas()));
        let all = vpa["status"]["recommendation"]["containerRecommendations"].as_array();
        all.cloned().unwrap_or_default()
    }

    /// Waits until a pod's requests are within the bounds that are recommended, in spec and status.
    async fn is_within_bounds(&self, workload: &str) -> Value {
        let name = format!("{workload}-5c4f-x");
        let has = || {
            let pod = self.object(&name);
            let recommended = self.recommended(workload);
            let containers = pod["spec"]["containers"].as_array()?;
            let holds = |container: &Value| {
                let mut all = recommended.iter();
                let bounds = all.find(|of| of["containerName"] == container["name"])?;
                let within = |resource: &str| {
                    let amount =
                        |list: &Value| Quantity::parse(list[resource].as_str().unwrap()).unwrap().milli_value();
                    let request = amount(&container["resources"]["requests"]);
                    (amount(&bounds["lowerBound"])..=amount(&bounds["upperBound"])).contains(&request)
                };
                Some(within("cpu") && within("memory"))
            };
            let all = containers.iter().all(|container| holds(container) == Some(true));
            (all && super::is_settled(&pod)).then_some(pod)
        };
        let what = format!("{name} to have what is recommended");
        self.agent.until(&what, async || has()).await
    }
}
