//! An agent that another one replaces amid resizes of several pods, as in an upgrade and a downgrade: the next takes over what is
//! under way from the state file, takes nothing back, and asks for nothing twice.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::faults::OTHER;
use super::{APP, LARGER, Scene, WEB};
use crate::support::cluster::objects;

const PODS: usize = 4;

/// What agents of version 0.1 wrote about a pod (`tests/data/state/0.1`), and about its targets.
const FIELDS_0_1: [&str; 4] = ["pod", "described", "standing", "regrets"];
const TARGETS_0_1: [&str; 8] = [
    "recommended",
    "overridden",
    "returning",
    "leases",
    "origin",
    "asked",
    "asking",
    "scope",
];

/// How an agent ends, and which version the next one, or the one before, is.
#[derive(Debug)]
struct Replacement {
    signal: Signal,
    /// Whether the state file has no more fields than version 0.1 knows.
    is_of_0_1: bool,
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_replaced_amid_resizes_takes_nothing_back() {
    let Some(mut scene) = Scene::new("cluster_today::upgrades::replaced").await else {
        return;
    };
    let names: Vec<_> = (0..PODS).map(|number| format!("{WEB}{number}")).collect();
    let spec = json!({"containers": [{"name": "app", "resources": objects::resources(APP)}]});
    for name in &names {
        scene.make_pod(name, &spec);
    }
    let mut before = Vec::new();
    for name in &names {
        before.push(scene.runs(name).await);
    }
    scene.agent.start().await;
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&[("app", LARGER)]);
    for pod in &before {
        scene.settles(pod, LARGER).await;
    }
    for (amounts, signal, is_of_0_1) in [
        (OTHER, Signal::SIGTERM, false),
        (LARGER, Signal::SIGKILL, false),
        (OTHER, Signal::SIGTERM, true),
        (LARGER, Signal::SIGKILL, true),
    ] {
        let how = Replacement { signal, is_of_0_1 };
        let generations: Vec<_> = names.iter().map(|name| generation(&scene.object(name))).collect();
        let is_asked_for = || {
            let mut all = names.iter().zip(&generations);
            all.any(|(name, earlier)| generation(&scene.object(name)) > *earlier)
        };
        scene.recommend(&[("app", amounts)]);
        scene
            .agent
            .wait_for("the first resize to be asked for", is_asked_for)
            .await;
        scene.replace_agent(&how).await;
        for pod in &before {
            scene.settles(pod, amounts).await;
        }
        // To ask, to take back and to ask again are three. An agent that ends while it makes room for a lower memory limit leaves that
        // limit to the next, which asks for it alone.
        let most = if amounts.memory < LARGER.memory { 2 } else { 1 };
        for (name, earlier) in names.iter().zip(&generations) {
            let requests = generation(&scene.object(name)) - earlier;
            assert!((1..=most).contains(&requests), "{name}: {requests} requests: {how:?}");
        }
    }
}

impl Scene {
    async fn replace_agent(&mut self, how: &Replacement) {
        match how.signal {
            Signal::SIGTERM => self.agent.stop(),
            _ => self.agent.kill(),
        }
        let path = self.agent.state_file();
        let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let pods = state["pods"].as_object_mut().unwrap();
        assert_eq!(pods.len(), PODS, "{how:?}");
        if how.is_of_0_1 {
            for pod in pods.values_mut() {
                keep(pod, &FIELDS_0_1);
                keep(&mut pod["standing"], &TARGETS_0_1);
            }
            fs::write(&path, state.to_string()).unwrap();
        }
        self.agent.start().await;
    }
}

fn keep(object: &mut Value, fields: &[&str]) {
    let object = object.as_object_mut().unwrap();
    object.retain(|field, _| fields.contains(&field.as_str()));
}

fn generation(pod: &Value) -> i64 {
    pod["metadata"]["generation"].as_i64().unwrap()
}
