//! A `memory.high` that a foreign writer sets keeps its proportion to the limit.

use vscaled::model::{CgroupVersion, ControlFile, MemoryLimit, Setting, Settings};

use super::{AT_FIRST, Amounts, Scene};
use crate::support::skipped;

const SMALLER: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 40)), ("side", Amounts::doubled(50, 32))];
const LARGER: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 300)), ("side", Amounts::doubled(50, 32))];

/// The `memory.high` of `app`, and its limit.
fn held(scene: &Scene) -> (MemoryLimit, MemoryLimit) {
    let app = &scene.node.held(&scene.pod)["app"];
    (memory_high(app).unwrap(), app.memory_limit().unwrap())
}

fn memory_high(held: &Settings) -> Option<MemoryLimit> {
    match held.get(ControlFile::MemoryHigh) {
        Some(Setting::MemoryHigh(limit)) => Some(limit),
        _ => None,
    }
}

/// Nine tenths of a limit, in bytes.
fn nine_tenths(limit: MemoryLimit) -> u64 {
    bytes(limit) / 10 * 9
}

fn bytes(limit: MemoryLimit) -> u64 {
    match limit {
        MemoryLimit::Bytes(bytes) => bytes,
        MemoryLimit::Max => panic!("bounded"),
    }
}

#[tokio::test]
async fn memory_high_follows_its_limit() {
    let scene = Scene::started().await;
    if scene.node.cgroups().version() == CgroupVersion::V1 {
        skipped("memory_high", "cgroup v1 has none");
        return;
    }
    let page = vscaled::cgroup::page_size();
    let high = MemoryLimit::Bytes(nine_tenths(held(&scene).1)).in_pages(page);
    let app = &scene.pod.containers["app"].cgroup;
    scene.node.cgroups().put(app, Setting::MemoryHigh(high));
    for targets in [&LARGER, &SMALLER, &AT_FIRST] {
        scene.recommend(targets);
        scene.settles(targets).await;
        let (high, limit) = held(&scene);
        // The first value was rounded, and a limit may be five times as large as another.
        let off = bytes(high).abs_diff(nine_tenths(limit));
        assert!(off <= 8 * page.get(), "{targets:?}: {high:?} of {limit:?}");
    }
    let all = scene.node.held(&scene.pod);
    let others = all.iter().filter(|(name, _)| !matches!(**name, "app"));
    assert!(
        others
            .map(|(_, held)| memory_high(held))
            .all(|high| high == Some(MemoryLimit::Max))
    );
    let history = scene.agent.history().await;
    let growth = history
        .iter()
        .find(|change| change.steps.iter().any(|step| step.file == "memory.high"));
    let files: Vec<_> = growth.unwrap().steps.iter().map(|step| step.file.as_str()).collect();
    let of_app = files.iter().position(|file| *file == "memory.high").unwrap();
    assert_eq!(files.get(of_app + 1), Some(&"memory.max"), "{files:?}");
}
