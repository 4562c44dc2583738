//! The memory limits that discovery reads for the controller.

use super::*;
use crate::guard::{LatestLimit, LatestLimits};
use crate::model::Bytes;

#[tokio::test]
async fn limits_of_an_earlier_agent_are_found_once() {
    let mut node = MadeUp::new().await;
    let to = Bytes::new(2 << 20);
    let held = LatestLimit { to, for_pod: false };
    let unsaved = &mut node.discovery.links.unsaved;
    unsaved.insert(UID.into(), vec![("a".into(), held)]);
    unsaved.insert("gone".into(), vec![("a".into(), held)]);
    node.start('a', 1, LINEAR);
    fs::write(node.pod().join("a".repeat(64)).join("memory.max"), "2097152\n").unwrap();
    let found = node.look().await.0.unsaved_limits;
    let expected = LatestLimits::from([("a".into(), held)]);
    assert_eq!(found, BTreeMap::from([(PodUid::from(UID), expected)]));
    let found = node.look().await.0.unsaved_limits;
    assert!(found.is_empty(), "the controller has them, and may have ended them");
}

#[tokio::test]
async fn a_low_pod_is_read_until_it_is_raised() {
    let mut node = MadeUp::new().await;
    node.start('a', 1, LINEAR);
    let bytes = |mebibytes: u64| Bytes::new(mebibytes << 20);
    let limit = |cgroup: &Path, mebibytes: Option<u64>| {
        let text = mebibytes.map_or("unreadable".to_owned(), |mebibytes| bytes(mebibytes).get().to_string());
        fs::write(cgroup.join("memory.max"), text + "\n").unwrap();
    };
    let pod = node.pod();
    limit(&pod.join("a".repeat(64)), Some(64));
    let described = |label: &str| {
        let metadata = format!("{{name: web, uid: {UID}, labels: {{app: {label}}}}}");
        let spec = "{containers: [{name: a, resources: {limits: {memory: 64Mi}}}]}";
        let pod = format!("{{kind: Pod, metadata: {metadata}, spec: {spec}}}");
        Arc::new(crate::sources::parse_manifests("test", &pod).unwrap().view.into())
    };
    for (label, mebibytes, is_low) in [
        ("web", Some(32), true),
        ("web", Some(48), true),
        ("web", Some(64), false),
        // A pod in order is read again once its object or its containers are others.
        ("web", Some(32), false),
        ("other", Some(32), true),
        // One that cannot be read is not in order.
        ("other", None, false),
        ("other", Some(32), true),
    ] {
        limit(&pod, mebibytes);
        node._view.send_replace(described(label));
        let low = node.look().await.0.low_pod_levels;
        let low = low.values().next().map(|low| (low.holds, low.needs));
        let expected = mebibytes.filter(|_| is_low).map(|held| (bytes(held), bytes(64)));
        assert_eq!(low, expected, "{label} {mebibytes:?}");
    }
}
