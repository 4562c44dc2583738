//! The scenarios that were recorded, done again with this API server and this kubelet. `resize_recordings` does them
//! with the models, which so are held to both.

use serde_json::{Value, json};

use super::{LEAST_FOR_GENERATIONS, LEAST_FOR_POD_LEVEL, Scene, kubelet_minor};
use crate::resize_recordings::{Scenario, Stage, stage};
use crate::support::skipped;

/// The pods of recorded scenarios that end by the memory that a process holds at some moment.
const TIMED: &str = "hold";

#[tokio::test]
async fn the_api_server_and_the_kubelet_answer_as_recorded() {
    const NAME: &str = "cluster_today::recorded::the_api_server";
    if kubelet_minor() < LEAST_FOR_GENERATIONS {
        return skipped(NAME, "this kubelet does not say which generation it has seen");
    }
    let Some(scene) = Scene::new(NAME).await else { return };
    let mut running = String::new();
    for scenario in Scenario::all() {
        let is_pod_level = !scenario.before["spec"]["resources"].is_null();
        let kills = scenario.actions.iter().any(|action| action.killed.is_some());
        if scenario.pod == TIMED || kills || is_pod_level && kubelet_minor() < LEAST_FOR_POD_LEVEL {
            continue;
        }
        if running != scenario.pod {
            running.clone_from(&scenario.pod);
            scene.runs_alone(&scenario).await;
        }
        scene.repeat(&scenario).await;
    }
}

impl Scene {
    /// Runs the pod of a scenario, with what it is refused by and what is in its way.
    async fn runs_alone(&self, scenario: &Scenario) {
        for kind in ["pods", "resourcequotas", "limitranges"] {
            let all = format!("{}/{kind}", self.collection("api/v1"));
            self.today.api.remove_all(&all).unwrap();
        }
        let mut spec = scenario.before["spec"].clone();
        // Recorded are only the fields that a resize is about.
        spec["restartPolicy"] = json!("Always");
        self.make_pod_of(&scenario.pod, &json!([]), &spec);
        match scenario.pod.as_str() {
            "def" => {
                let resources = json!({"requests": {"cpu": "600m"}});
                let spec = json!({"containers": [{"name": "b", "resources": resources}]});
                self.make_pod_of("beside", &json!([]), &spec);
                self.runs("beside").await;
            }
            "quota" => {
                let hard = json!({"limits.memory": "150Mi"});
                self.make_quota("q", &hard, &json!({"limits.memory": "96Mi"}));
            }
            "lr" => {
                let limits = json!([{"type": "Container", "max": {"memory": "128Mi"}}]);
                self.apply("v1", "LimitRange", "l", json!({}), &json!({"spec": {"limits": limits}}));
            }
            _ => {}
        }
        self.runs(&scenario.pod).await;
        let settled = || {
            let pod = self.object(&scenario.pod);
            let (spec, seen, conditions, allocated, actual) = stage(&pod["metadata"]["generation"], &pod);
            spec == seen && conditions.is_empty() && allocated && actual
        };
        self.agent.wait_for("the pod's status to be complete", settled).await;
    }

    async fn repeat(&self, scenario: &Scenario) {
        let about = &scenario.scenario;
        let recorded = scenario.stages();
        // A pod that was killed in the recording has a request more.
        let shift = generation(&self.object(&scenario.pod)) - scenario.before["generation"].as_i64().unwrap();
        let recorded: Vec<Stage> = recorded
            .into_iter()
            .map(|(spec, seen, conditions, allocated, actual)| {
                (spec + shift, seen + shift, conditions, allocated, actual)
            })
            .collect();
        let mut seen: Vec<Stage> = Vec::new();
        for action in &scenario.actions {
            if let Some(did) = &action.did {
                assert_eq!(did, "the other pod is deleted");
                let deferred = recorded
                    .iter()
                    .position(|stage| stage.2.iter().any(|of| of.1 == "Deferred"))
                    .expect("what waits for room was deferred");
                self.comes_to(scenario, &recorded[..=deferred], &mut seen).await;
                self.delete(&self.pods(), "beside");
                continue;
            }
            let path = format!("{}/{}/resize", self.pods(), scenario.pod);
            let answer = self.today.api.answer(&path, action.patch.as_ref().unwrap());
            let code = answer["code"].as_u64().unwrap_or(200);
            assert_eq!(code, u64::from(action.code.unwrap()), "{about}: {answer}");
            if code != 200 {
                let wanted = action.answer.as_ref().unwrap();
                assert_eq!(answer["reason"], wanted["reason"], "{about}");
                let cpus = self.allocatable_cpu();
                let wanted = wanted["message"].as_str().unwrap();
                let wanted = wanted.replace("allocatable: 1000", &format!("allocatable: {cpus}"));
                assert_eq!(answer["message"], json!(wanted), "{about}");
            }
        }
        if !recorded.is_empty() {
            self.comes_to(scenario, &recorded, &mut seen).await;
        }
    }

    /// Looks at the pod until it is where the recording ended. What is seen on the way was recorded, in that order.
    async fn comes_to(&self, scenario: &Scenario, recorded: &[Stage], seen: &mut Vec<Stage>) {
        let last = recorded.last().unwrap();
        let what = format!("{}: {last:?}", scenario.scenario);
        self.agent
            .until(&what, async || {
                let pod = self.object(&scenario.pod);
                let now = stage(&pod["metadata"]["generation"], &pod);
                if seen.last() != Some(&now) {
                    seen.push(now);
                }
                (seen.last() == Some(last)).then_some(())
            })
            .await;
        let conditions = |stages: &[Stage]| {
            let mut all: Vec<_> = stages.iter().map(|stage| (stage.0, stage.2.clone())).collect();
            all.dedup();
            all
        };
        let (seen, recorded) = (conditions(seen), conditions(recorded));
        // How far the first of two requests comes depends on the kubelet's speed.
        if scenario
            .actions
            .iter()
            .filter(|action| action.code == Some(200))
            .count()
            > 1
        {
            return;
        }
        let mut rest = recorded.iter();
        let in_order = seen.iter().all(|one| rest.any(|other| other == one));
        assert!(in_order, "{what}: {seen:#?} were recorded as {recorded:#?}");
    }
}

fn generation(pod: &Value) -> i64 {
    pod["metadata"]["generation"].as_i64().unwrap()
}
