//! Promise: the models of the API server and the kubelet in the resize tests answer as real ones did, in what they have.
//! `tests/data/kubelet-resize-watch` has the recording; its README says how to make it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::apimodel::ApiModel;

const NODE: &str = "node-1";

#[derive(Deserialize)]
struct Recording {
    scenarios: Vec<Scenario>,
}

/// What was done to a pod, and what followed. `cluster_today::recorded` does the same in a real cluster.
#[derive(Deserialize)]
pub(crate) struct Scenario {
    pub(crate) scenario: String,
    pub(crate) pod: String,
    pub(crate) before: Value,
    pub(crate) actions: Vec<Action>,
    watch: Vec<Seen>,
}

#[derive(Deserialize)]
pub(crate) struct Action {
    pub(crate) patch: Option<Value>,
    pub(crate) did: Option<String>,
    /// A killed container. Its end is not a stage of a resize, although the recording shows it.
    pub(crate) killed: Option<String>,
    pub(crate) code: Option<u16>,
    pub(crate) answer: Option<Value>,
}

#[derive(Deserialize)]
struct Seen {
    pod: Value,
}

impl Scenario {
    /// All scenarios, in their order.
    pub(crate) fn all() -> Vec<Self> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kubelet-resize-watch/v2-1.36.json");
        let recording: Recording = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!(recording.scenarios.len(), 19);
        recording.scenarios
    }

    /// The stages that were recorded.
    pub(crate) fn stages(&self) -> Vec<Stage> {
        distinct(self.watch.iter().map(|seen| stage(&seen.pod["generation"], &seen.pod)))
    }
}

/// The progress of a resize: the spec's generation, the status's observed generation, the resize conditions, and
/// whether the allocated and actual resources equal the spec's, for the container and for the pod as a whole if it
/// has any.
pub(crate) type Stage = (i64, i64, Vec<(String, String, String)>, bool, bool);

pub(crate) fn stage(generation: &Value, pod: &Value) -> Stage {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let status = &pod["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions = conditions.filter(|condition| text(&condition["type"]).starts_with("PodResize"));
    let conditions = conditions.map(|condition| {
        let (kind, reason) = (text(&condition["type"]), text(&condition["reason"]));
        (kind, reason, text(&condition["message"]))
    });
    let container = &pod["spec"]["containers"][0];
    let has = &status["containerStatuses"][0];
    let pod_level = pod["spec"].get("resources");
    (
        generation.as_i64().unwrap(),
        status["observedGeneration"].as_i64().unwrap(),
        conditions.collect(),
        has["allocatedResources"] == container["resources"]["requests"]
            && pod_level.is_none_or(|spec| status["allocatedResources"] == spec["requests"]),
        has["resources"] == container["resources"]
            && pod_level.is_none_or(|spec| status["resources"]["limits"] == spec["limits"]),
    )
}

fn distinct(stages: impl Iterator<Item = Stage>) -> Vec<Stage> {
    let mut all: Vec<Stage> = stages.collect();
    all.dedup();
    all
}

/// Whether the model has what this is about. Room on the node, quotas and LimitRanges (403) and sidecars are left to
/// `cluster_today::recorded`.
fn is_modelled(scenario: &Scenario) -> bool {
    let is = |action: &Action| {
        let of_sidecars = |patch: &Value| patch["spec"]["initContainers"].is_array();
        action.did.is_none() && action.code != Some(403) && !action.patch.as_ref().is_some_and(of_sidecars)
    };
    scenario.actions.iter().all(is)
}

/// The model with the pod before the resize.
async fn before(scenario: &Scenario) -> ApiModel {
    let api = ApiModel::start(NODE, &json!({"cpu": "1", "memory": "2Gi"})).await;
    let mut pod = scenario.before.clone();
    pod["metadata"] = json!({
        "name": scenario.pod, "namespace": "default", "uid": "u", "annotations": {}, "generation": pod["generation"],
    });
    pod["spec"]["nodeName"] = NODE.into();
    api.put("pods", pod);
    api
}

/// Every stage of the pod until its kubelet has finished.
async fn settled(api: &ApiModel, name: &str, last: Option<&Stage>, generation: i64) -> Vec<Stage> {
    loop {
        let states = api.states("pods", name);
        let later = states
            .iter()
            .filter(|pod| pod["metadata"]["generation"].as_i64() > Some(generation));
        let stages = distinct(later.map(|pod| stage(&pod["metadata"]["generation"], pod)));
        if stages.last() == last {
            return stages;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn replay(scenario: &Scenario) {
    let about = &scenario.scenario;
    let api = before(scenario).await;
    let generation = scenario.before["generation"].as_i64().unwrap();
    let recorded = scenario.stages();
    for action in &scenario.actions {
        if action.killed.is_some() {
            continue;
        }
        let (patch, code) = (action.patch.as_ref().unwrap(), action.code.unwrap());
        match api.patch_resize(&scenario.pod, patch) {
            Ok(()) => assert_eq!(code, 200, "{about}"),
            Err(refusal) => {
                let answer = action.answer.as_ref().unwrap();
                assert_eq!(
                    json!([refusal.code, refusal.reason, refusal.message]),
                    json!([code, answer["reason"], answer["message"]]),
                    "{about}"
                );
            }
        }
    }
    // Two requests in a row: the progress of the first depends on the kubelet's speed.
    let recorded = match scenario
        .actions
        .iter()
        .filter(|action| action.code == Some(200))
        .count()
    {
        2.. => recorded[recorded.len() - 1..].to_vec(),
        _ => recorded,
    };
    let ended = settled(&api, &scenario.pod, recorded.last(), generation);
    let stages = tokio::time::timeout(Duration::from_secs(20), ended).await;
    let mut stages = stages.unwrap_or_else(|_| {
        let states = api.states("pods", &scenario.pod);
        panic!("{about}: never came to {:?}: {states:#?}", recorded.last())
    });
    stages.drain(..stages.len() - recorded.len().min(stages.len()));
    assert_eq!(stages, recorded, "{about}");
}

#[tokio::test]
async fn the_made_up_api_server_and_kubelet_answer_as_recorded() {
    let modelled: Vec<_> = Scenario::all().into_iter().filter(is_modelled).collect();
    assert_eq!(modelled.len(), 14);
    for scenario in modelled {
        replay(&scenario).await;
    }
}
