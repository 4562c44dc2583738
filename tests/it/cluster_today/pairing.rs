//! VPA's own recommender and metrics-server beside the agent.

use serde_json::{Value, json};
use vscaled::model::quantity::Quantity;

use super::{Scene, nothing_restarted};
use crate::support::cluster::Autoscaler;

/// Less than the recommender recommends at least.
fn little() -> Value {
    json!({"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_metrics_server_measures_and_the_stock_recommender_recommends_is_applied() {
    let Some(mut scene) = Scene::alone("cluster_today::pairing").await else {
        return;
    };
    let mut autoscaler = Autoscaler::new(&scene.today.api);
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

impl Scene {
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
