//! What fails in the middle leaves every limit where it was.

use std::sync::Arc;

use tempfile::TempDir;
use vscaled::actuate::{Node, Outcome, reconcile};
use vscaled::plan::{Driver, NodeTraits};
use vscaled::resources::MemoryLimit;

use super::room::{job, node};
use super::{ROOMY, roomy};
use crate::support::bare::BareNode;
use crate::systemd_units::fake_bus::ended_systemd;

/// Makes the pod's cgroup one that would be systemd's.
const UID: &str = "0123.slice";

#[tokio::test]
async fn a_pod_is_not_left_below_its_container_when_systemd_is_gone() {
    let Some(systemd) = ended_systemd() else { return };
    let mut bare = BareNode::new();
    let pod = bare.run("web", UID, &[("app", roomy(ROOMY))]);
    let state = TempDir::new().unwrap();
    let node = node(&bare, &state);
    let node = Node {
        traits: NodeTraits {
            driver: Driver::Systemd,
            ..node.traits
        },
        units: Some(Arc::new(systemd)),
        ..node
    };
    let done = reconcile(Arc::new(node), Box::new(job(&pod, 100))).await;
    assert!(matches!(done.outcome, Outcome::RolledBack { .. }), "{done:#?}");
    let held = bare.held(&pod);
    for level in ["app", "pod"] {
        let limit = held[level].memory_limit();
        assert_eq!(limit, Some(MemoryLimit::Bytes(ROOMY << 20)), "{level}");
    }
}
