//! Another client that edits the same pods at the same time loses nothing.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Amounts, Scene, WEB, objects};

const PODS: usize = 4;
const ROUNDS: usize = 10;
const SIDE: Amounts = Amounts::doubled(20, 32);

/// The amounts of `app` that are recommended in a round.
const fn recommended(round: usize) -> Amounts {
    if round.is_multiple_of(2) {
        Amounts::doubled(80, 48)
    } else {
        Amounts::doubled(60, 40)
    }
}

/// What the other client sets in a round, in turn, in a container that the VPA does not recommend for.
fn edit(round: usize) -> Value {
    let amount = 70 + round;
    match round % 3 {
        0 => json!([{"name": "side", "resources": {"limits": {"memory": format!("{amount}Mi")}}}]),
        1 => json!([{"name": "side", "resources": {"requests": {"cpu": format!("{}m", 20 + round)}}}]),
        _ => json!([{"name": "side", "resources": {"limits": {"cpu": format!("{amount}m")}}}]),
    }
}

fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let mut containers = pod["spec"]["containers"].as_array().unwrap().iter();
    &containers.find(|container| container["name"] == name).unwrap()["resources"]
}

/// Whether the spec has what an edit has set.
fn has(pod: &Value, edit: &Value) -> bool {
    let side = container(pod, "side");
    ["requests", "limits"].iter().all(|list| {
        let set = edit[0]["resources"][list].as_object().into_iter().flatten();
        set.into_iter()
            .all(|(resource, amount)| side[list][resource] == *amount)
    })
}

#[tokio::test]
async fn forty_edits_amid_forty_resizes_stay() {
    let Some(mut scene) = Scene::new("cluster_today::edits::forty_edits").await else {
        return;
    };
    let names: Vec<_> = (0..PODS).map(|number| format!("{WEB}{number}")).collect();
    let app = recommended(1);
    let containers = json!([
        {"name": "app", "resources": objects::resources(app)},
        {"name": "side", "resources": objects::resources(SIDE)},
    ]);
    for name in &names {
        scene.make_pod(name, &json!({"containers": containers}));
    }
    for name in &names {
        scene.runs(name).await;
    }
    scene.agent.start().await;
    scene.make_vpa("InPlaceOrRecreate");
    let mut edits: Vec<Value> = Vec::new();
    for round in 0..ROUNDS {
        scene.recommend(&[("app", recommended(round))]);
        for (number, name) in names.iter().enumerate() {
            // Another moment of each pod's resize.
            tokio::time::sleep(Duration::from_millis(number as u64)).await;
            let resize = format!("{}/{name}/resize", scene.pods());
            scene
                .today
                .api
                .answer(&resize, &json!({"spec": {"containers": edit(round)}}));
        }
        edits.push(edit(round));
        let wanted = objects::resources(recommended(round));
        for name in &names {
            let resized = || container(&scene.object(name), "app") == &wanted;
            scene.agent.wait_for(&format!("{name} to follow"), resized).await;
            let (pod, latest) = (scene.object(name), edits.iter().rev().take(3));
            for edit in latest {
                assert!(has(&pod, edit), "round {round}, {name}: {edit} is lost: {pod:#}");
            }
        }
    }
}
