//! What the controller has the guard watch, and what it keeps of limits that the guard grew.

use std::path::Path;

use super::tests::controller;
use super::*;
use crate::actuate::Node;
use crate::decide::{Ceiling, PodDecision};
use crate::guard::LatestLimits;
use crate::model::{Bytes, CgroupPath, LivePod, ResourceList};
use crate::reconcile::pod::Located;
use crate::sources::parse_manifests;

/// Three pods with a memory request of 32Mi and a limit of 64Mi each. The quota of the first two leaves 100Mi of limits.
const PODS: [&str; 3] = ["shop/db", "shop/web", "bank/api"];
const QUOTA: &str = "---
{kind: ResourceQuota, metadata: {name: team, namespace: shop}, spec: {hard: {limits.memory: 228Mi}},
 status: {hard: {limits.memory: 228Mi}, used: {limits.memory: 128Mi}}}
";

/// A controller of these pods, which run here. A VPA lets their limits grow to 1Gi.
fn guarding(directory: &Path, root: &Path) -> Controller {
    let mut controller = controller(directory);
    controller.node.found.node = Some(Arc::new(Node::on_files(root)));
    let manifests = PODS.map(|pod| {
        let (namespace, name) = pod.split_once('/').unwrap();
        let metadata = format!("{{name: {name}, namespace: {namespace}, uid: {name}}}");
        let resources = "{requests: {memory: 32Mi}, limits: {memory: 64Mi}}";
        let spec = format!("{{containers: [{{name: app, resources: {resources}}}]}}");
        format!("---\n{{kind: Pod, metadata: {metadata}, spec: {spec}}}\n")
    });
    let view = parse_manifests("test", &(manifests.concat() + QUOTA)).unwrap().view;
    for pod in &view.pods {
        controller.pods.add(pod);
        let live = LivePod {
            id: pod.id_with(&pod.metadata.uid),
            ..LivePod::on_files(["app"])
        };
        let located = Located {
            live: Some(Arc::new(live)),
            saved: None,
            unsaved_limits: None,
        };
        controller.apply(&pod.key(), PodInput::Located(Box::new(located)));
        let mut decision = Box::new(PodDecision::undecided(pod));
        decision.ceilings.push(Ceiling {
            container: "app".to_owned(),
            limits: ResourceList {
                cpu: None,
                memory: Some(Bytes::new(1 << 30)),
            },
        });
        let took = Duration::ZERO;
        controller.apply(&pod.key(), PodInput::Decided { decision, took });
    }
    controller.sources.view = Arc::new(view.into());
    controller.guard.changed.clear();
    controller
}

/// A pod of a list with its highest limit and its claim, in MiB.
type Row = (String, Option<u64>, Option<u64>);

/// The next list where this pod has changed.
fn listed(controller: &mut Controller, namespace: &str, name: &str) -> Vec<Row> {
    controller.guard.changed.insert(PodKey::new(namespace, name));
    let Watchlist { pods, claims, .. } = controller.next_watchlist().unwrap();
    assert!(pods.keys().eq(claims.keys()));
    let rows = pods.iter().map(|(key, pod)| {
        let highest = pod.as_ref().and_then(|pod| pod.containers[0].memory);
        let claim = claims[key].as_ref().map(|claim| {
            assert_eq!(claim.path, CgroupPath::new("/pod").unwrap());
            claim.request.get() >> 20
        });
        (key.to_string(), highest.map(|highest| highest.get() >> 20), claim)
    });
    rows.collect()
}

fn row(pod: &str, highest: Option<u64>, claim: Option<u64>) -> Row {
    (pod.to_owned(), highest, claim)
}

#[tokio::test]
async fn the_guard_gets_changes_and_who_shares_quotas() {
    let [directory, root] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut controller = guarding(directory.path(), root.path());
    assert!(controller.next_watchlist().is_none(), "nothing has changed");
    let bank = [row("bank/api", Some(1024), Some(32))];
    assert_eq!(listed(&mut controller, "bank", "api"), bank);
    assert!(controller.next_watchlist().is_none());
    // Half of what the quota leaves to each.
    let shop = ["shop/db", "shop/web"].map(|pod| row(pod, Some(114), Some(32)));
    assert_eq!(listed(&mut controller, "shop", "web"), shop);
    let gone = [row("bank/gone", None, None)];
    assert_eq!(listed(&mut controller, "bank", "gone"), gone);
}

#[tokio::test]
async fn pods_that_never_grow_claim_their_requests() {
    let without: [fn(&mut Config); 2] = [|config| config.guard = false, |config| config.observe_only = true];
    for (number, without) in without.into_iter().enumerate() {
        let [directory, root] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut controller = guarding(directory.path(), root.path());
        without(&mut controller.config);
        let bank = [row("bank/api", None, Some(32))];
        assert_eq!(listed(&mut controller, "bank", "api"), bank, "{number}");
    }
}

#[tokio::test]
async fn the_guard_gets_its_settings() {
    let [directory, root] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut controller = guarding(directory.path(), root.path());
    // The size of the memory is unknown at first.
    for memory in [None, Some(1000)] {
        controller.node.machine.memory = memory.map(Bytes::new);
        controller.watch_all();
        let Watchlist { settings, pods, .. } = controller.next_watchlist().unwrap();
        let part = |percent| Bytes::new(memory.unwrap_or_default() / 100 * percent);
        let expected = guard::Settings {
            reserve: part(5),
            budget: Budget {
                pod: part(25),
                node: part(50),
            },
            quiet: Duration::from_secs(600),
        };
        assert_eq!((settings, pods.len()), (expected, PODS.len()));
    }
}

#[tokio::test]
async fn changes_wait_for_the_node_not_the_guard() {
    let [directory, root] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut controller = guarding(directory.path(), root.path());
    let node = controller.node.found.node.take();
    controller.watch_all();
    assert!(controller.next_watchlist().is_none());
    controller.node.found.node = node;
    assert_eq!(
        controller.next_watchlist().map(|list| list.pods.len()),
        Some(PODS.len())
    );
    controller.watch_all();
    controller.update_guard();
    assert!(controller.guard.changed.is_empty(), "its thread could not be started");
}

#[tokio::test]
async fn limits_in_no_state_file_wait_for_their_pod() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    for uid in ["first", "second"] {
        let mut found = Discovered::default();
        found.unsaved_limits.insert(uid.into(), LatestLimits::new());
        controller.take_discovered(found);
    }
    let kept = controller.node.found.unsaved_limits.keys().map(ToString::to_string);
    assert_eq!(kept.collect::<Vec<_>>(), ["first", "second"]);
}
