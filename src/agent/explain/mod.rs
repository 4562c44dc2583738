//! Explains one pod: compares each amount from the recommendation to the API's report, and each value at each level from
//! the spec to the kernel's file (`values`).

mod values;

use jiff::Timestamp;

use super::{usage, view};
use crate::actuate::{KnownFrom, Node, hook_problems, stored_specs};
use crate::control::{ControlError, proto};
use crate::decide::Note;
use crate::model::objects::Pod;
use crate::model::{KubeletVersion, NamedRequirements, NodeTraits, Requirements, Resource};
use crate::plan::hierarchy;
use crate::reconcile::controller::PodSnapshot;

/// Reads the kernel's files, systemd's properties and the runtime's stored specs, and compares all values.
pub(super) async fn explain(snapshot: PodSnapshot) -> Result<proto::ExplainReply, ControlError> {
    let now = Timestamp::now();
    let reason = snapshot.state.decision.reason;
    let in_words = format!("{reason}: {}", reason.meaning());
    let mut notes = vec![in_words];
    notes.extend(snapshot.state.decision.notes.iter().map(ToString::to_string));
    let node = snapshot.node.as_deref();
    notes.extend(node.and_then(|node| assumed_kubelet(node, &snapshot.state.pod)));
    let mut reply = proto::ExplainReply {
        notes,
        next: view::next(&snapshot.state, now),
        changes: snapshot.changes.iter().map(|record| view::change(record)).collect(),
        pod: Some(view::pod(&snapshot.state, now, snapshot.quiet)),
        values: Vec::new(),
        amounts: amounts(&snapshot),
    };
    if let (Some(node), Some(live)) = (snapshot.node.clone(), &snapshot.state.live) {
        let hooks = hook_problems(&node, &snapshot.state.pod, live, snapshot.hooks_forbidden_by).await;
        reply.notes.extend(hooks);
        let specs = stored_specs(&node, live).await;
        let side_by_side = tokio::task::spawn_blocking(move || values::values(&node, &snapshot, &specs)).await;
        reply.values = side_by_side.map_err(|panic| ControlError::Internal(panic.to_string()))??;
    }
    Ok(reply)
}

/// A note that the agent only assumes the kubelet's version, for a pod whose values depend on it.
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

/// Two rows for each regular container and sidecar.
fn amounts(snapshot: &PodSnapshot) -> Vec<proto::Amount> {
    let (pod, desired) = (&snapshot.state.pod, &snapshot.state.desired);
    let wanted = desired.targets(pod);
    let decided = desired.recommended.as_ref().map(|recommended| &*recommended.targets);
    let mut rows = Vec::new();
    for container in pod.running_containers() {
        let name = container.name.as_str();
        let status = pod.container_status(name);
        let recommended = snapshot.vpa.as_ref().and_then(|vpa| usage::recommendation(vpa, name));
        for resource in Resource::ALL {
            rows.push(proto::Amount {
                container: name.to_owned(),
                resource: resource.to_string(),
                lower_bound: recommended.and_then(|bounds| bounds.lower_bound.text(resource)),
                target: recommended.and_then(|bounds| bounds.target.text(resource)),
                upper_bound: recommended.and_then(|bounds| bounds.upper_bound.text(resource)),
                spec: Some(pair(&container.resources, resource)),
                decided: decided.and_then(|decided| of(decided, name, resource)),
                wanted: wanted.as_deref().and_then(|wanted| of(wanted, name, resource)),
                allocated: status.and_then(|status| status.allocated_resources?.text(resource)),
                in_force: status.and_then(|status| Some(pair(&status.resources?, resource))),
                rules: rules(snapshot, name, resource),
            });
        }
    }
    rows
}

/// The notes of the decision about this amount.
fn rules(snapshot: &PodSnapshot, name: &str, resource: Resource) -> Vec<String> {
    let is_about = |note: &&Note| {
        let (container, of) = note.about();
        of == Some(resource) && container.is_none_or(|container| container == name)
    };
    let notes = snapshot.state.decision.notes.iter();
    notes.filter(is_about).map(ToString::to_string).collect()
}

fn of(list: &[NamedRequirements], name: &str, resource: Resource) -> Option<proto::RequestAndLimit> {
    let named = list.iter().find(|named| named.name == name)?;
    Some(pair(&named.resources, resource))
}

fn pair(requirements: &Requirements, resource: Resource) -> proto::RequestAndLimit {
    proto::RequestAndLimit {
        request: requirements.requests.text(resource),
        limit: requirements.limits.text(resource),
    }
}
