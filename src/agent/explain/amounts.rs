//! Each container's cpu and memory, from the recommendation to what the API reports. Pure.

use crate::control::proto;
use crate::model::objects::ContainerRecommendation;
use crate::model::{NamedRequirements, Requirements, Resource};
use crate::reconcile::controller::PodSnapshot;

/// Two rows for each regular container and sidecar.
pub(super) fn amounts(snapshot: &PodSnapshot) -> Vec<proto::Amount> {
    let wanted = snapshot.state.desired.targets(&snapshot.state.pod);
    let decided = snapshot
        .state
        .desired
        .recommended
        .as_ref()
        .map(|recommended| &*recommended.targets);
    let mut rows = Vec::new();
    for container in snapshot.state.pod.running_containers() {
        let name = container.name.as_str();
        let status = snapshot.state.pod.container_status(name);
        for resource in Resource::ALL {
            let recommended = recommendation(snapshot, name);
            let bound = |pick: fn(&ContainerRecommendation) -> &crate::model::ResourceList| {
                recommended.and_then(|said| pick(said).text(resource))
            };
            rows.push(proto::Amount {
                container: name.to_owned(),
                resource: resource.to_string(),
                lower_bound: bound(|said| &said.lower_bound),
                target: bound(|said| &said.target),
                upper_bound: bound(|said| &said.upper_bound),
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

fn recommendation<'a>(snapshot: &'a PodSnapshot, name: &str) -> Option<&'a ContainerRecommendation> {
    let recommendation = snapshot.vpa.as_ref()?.status.recommendation.as_ref()?;
    let mut said = recommendation.container_recommendations.iter();
    said.find(|said| said.container_name == name)
}

/// What the rules did to this amount.
fn rules(snapshot: &PodSnapshot, name: &str, resource: Resource) -> Vec<String> {
    let about = |note: &&crate::decide::Note| {
        let (container, of) = note.about();
        of == Some(resource) && container.is_none_or(|container| container == name)
    };
    snapshot
        .state
        .decision
        .notes
        .iter()
        .filter(about)
        .map(ToString::to_string)
        .collect()
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
