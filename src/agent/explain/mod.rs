//! Everything about one pod side by side: each amount from the recommendation to what the API reports (`amounts`), and
//! each value at each level from the spec to the kernel's file (`values`).

mod amounts;
mod values;

use jiff::Timestamp;

use super::view;
use crate::actuate::{KnownFrom, Node, stored_specs};
use crate::control::{ControlError, proto};
use crate::model::objects::Pod;
use crate::model::{KubeletVersion, NodeTraits};
use crate::plan::hierarchy;
use crate::reconcile::controller::PodSnapshot;

/// Reads the kernel's files, systemd's properties and the runtime's stored specs, and puts everything side by side.
pub(super) async fn explain(snapshot: PodSnapshot) -> Result<proto::ExplainReply, ControlError> {
    let now = Timestamp::now();
    let reason = snapshot.state.decision.reason;
    let in_words = format!("{reason}: {}", reason.meaning());
    let notes = snapshot.state.decision.notes.iter().map(ToString::to_string);
    let notes = notes.chain(
        snapshot
            .node
            .as_ref()
            .and_then(|node| assumed_kubelet(node, &snapshot.state.pod)),
    );
    let mut reply = proto::ExplainReply {
        notes: std::iter::once(in_words).chain(notes).collect(),
        next: view::next(&snapshot.state, now),
        changes: snapshot.changes.iter().map(|record| view::change(record)).collect(),
        pod: Some(view::pod(&snapshot.state, now, snapshot.quiet)),
        values: Vec::new(),
        amounts: amounts::amounts(&snapshot),
    };
    if let (Some(node), Some(live)) = (snapshot.node.clone(), &snapshot.state.live) {
        let specs = stored_specs(&node, live).await;
        let side_by_side = tokio::task::spawn_blocking(move || values::values(&node, &snapshot, &specs)).await;
        reply.values = side_by_side.map_err(|panic| ControlError::Internal(panic.to_string()))??;
    }
    Ok(reply)
}

/// Says that the kubelet's version is only assumed, for a pod whose values depend on it.
fn assumed_kubelet(node: &Node, pod: &Pod) -> Option<String> {
    let by = |kubelet| {
        let traits = NodeTraits { kubelet, ..node.traits };
        hierarchy(pod, &[], &traits).created()
    };
    let matters = by(KubeletVersion::OLDEST) != by(node.traits.kubelet);
    (node.kubelet_from == KnownFrom::Inferred && matters).then(|| {
        format!(
            "the pod's values follow the rules of kubelet {}, which is assumed: no source has the Node object; set \
             kubeletVersion where that is wrong",
            node.traits.kubelet
        )
    })
}
