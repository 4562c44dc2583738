//! More kills at once than the kernel logs.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const CONTAINERS: [&str; 5] = ["a", "b", "c", "d", "e"];
const EACH: usize = 10;

/// Starts fifty processes that are killed at once.
pub(super) fn start_burst(scene: &Scene) -> Vec<(&'static str, Child)> {
    let victims = (0..EACH).flat_map(|_| CONTAINERS);
    victims
        .map(|container| (container, scene.victim(&scene.cgroup(container), TOO_MUCH)))
        .collect()
}

pub(super) fn containers() -> Vec<(&'static str, Amounts)> {
    CONTAINERS.map(|name| (name, SMALL)).to_vec()
}

/// Checks that each of these victims was reported once, for its own container.
pub(super) fn check(told: &[OomKill], victims: &BTreeMap<u32, &'static str>) {
    let mut ids: Vec<&str> = told.iter().map(|kill| kill.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), told.len(), "an id was used twice");
    let mut named = Vec::new();
    for kill in told {
        if let Some(victim) = &kill.victim {
            assert_eq!(victims.get(&victim.pid).copied(), Some(container(kill)), "{kill:#?}");
            named.push(victim.pid);
        }
    }
    let all = named.len();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named.len(), all, "a process was told twice");
    for name in victims.values().copied().collect::<BTreeSet<_>>() {
        let wanted = victims.values().filter(|other| **other == name).count();
        let here = told.iter().filter(|kill| container(kill) == name).count();
        assert_eq!(here, wanted, "kills in {name}");
    }
}

#[tokio::test]
async fn fifty_kills_are_told_by_container() {
    let scene = Scene::started(&containers()).await;
    let burst = start_burst(&scene);
    let victims: BTreeMap<u32, &str> = burst.iter().map(|(name, child)| (child.id(), *name)).collect();
    burst.into_iter().for_each(|(_, child)| was_killed(child));
    let told = scene.wait_for_kills(victims.len()).await;
    check(&told, &victims);
}
