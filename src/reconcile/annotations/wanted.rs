//! The annotations that a pod should have. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::model::objects::annotation::BOOST_PREFIX;
use crate::model::objects::{Pod, PodId};
use crate::model::{NamedRequirements, Requirements};
use crate::plan::{lift_kept, resize};
use crate::reconcile::pod::PodState;

/// The value of the annotation, where it is known: `None` until a pass has shown what the pod holds, and while
/// another process keeps changing its values. `Some(None)` is no annotation: the kubelet reports the values
/// (`by_kubelet`), or nothing is applied.
pub(crate) fn applied_text(state: &PodState, by_kubelet: bool, now: Timestamp) -> Option<Option<String>> {
    state.live.as_ref()?;
    if by_kubelet {
        return Some(None);
    }
    let Some(mut applied) = state.desired.targets(&state.pod) else {
        return Some(None);
    };
    let known = state.drift.in_sync && state.drift.writers.all_paused(now).next().is_none();
    if !known {
        return None;
    }
    lift_kept(&state.holds(now), &mut applied);
    text(&applied).map(Some)
}

/// The annotations of startup boosts that the pod's spec does not have any more, as the API server shows it. They stay
/// where no kubelet resizes in place: the spec keeps the boost, and only the annotation has the amounts from before.
pub(crate) fn ended_boosts(state: &PodState) -> impl Iterator<Item = String> {
    let pod = &state.pod;
    let targets = state.desired.targets(pod);
    let shown = targets.is_none_or(|targets| resize::same(&targets, &pod.requirements()));
    let done = state
        .decision
        .boosts
        .done
        .iter()
        .filter(move |_| shown && resize::supports_in_place_resize(pod));
    let annotations = done.map(|container| format!("{BOOST_PREFIX}{container}"));
    annotations.filter(|name| pod.metadata.annotations.contains_key(name))
}

/// The pod at the API server; `None` for a pod without a UID, which only a manifest describes.
pub(crate) fn pod_ref(pod: &Pod) -> Option<PodId> {
    let uid = &pod.metadata.uid;
    (!uid.is_empty()).then(|| pod.id_with(uid))
}

/// `{"app":{"requests":{"cpu":"300m"},"limits":{"cpu":"600m"}}}`, a container after the other by name, so that the same
/// is always written the same.
fn text(applied: &[NamedRequirements]) -> Option<String> {
    let containers: BTreeMap<&str, &Requirements> = applied
        .iter()
        .map(|named| (named.name.as_str(), &named.resources))
        .collect();
    serde_json::to_string(&containers)
        .inspect_err(|error| tracing::error!(%error, "what is applied cannot be written as JSON"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_say_their_requests_and_limits_as_manifests_do() {
        let named = |name: &str, resources: &str| NamedRequirements {
            name: name.to_owned(),
            resources: serde_json::from_str(resources).unwrap(),
        };
        let app = r#"{"requests":{"cpu":"300m","memory":"128Mi"},"limits":{"cpu":"2","memory":"1Gi"}}"#;
        let side = r#"{"requests":{"cpu":"10m"},"limits":{}}"#;
        let said = text(&[named("side", side), named("app", app)]).unwrap();
        assert_eq!(said, format!(r#"{{"app":{app},"side":{side}}}"#));
    }
}
