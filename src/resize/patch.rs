//! The steps of a patch of a pod's amounts, and what admission made of them. Pure.

use crate::model::objects::{Container, Pod};
use crate::model::{Change, PodAmounts, Requirements, Resource, Step, Target};

/// The steps of a patch after which the pod's spec has the wanted amounts: one for each container that differs.
///
/// # Errors
/// A sentence, if the API server would refuse the patch because it removes an amount, or the kubelet would restart a container.
pub fn changes(pod: &Pod, wanted: &PodAmounts) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    for (of, resources) in wanted.iter() {
        // The API server would fill in the requests.
        let to = resources.with_requests();
        let from = match of {
            Some(name) => {
                let Some(container) = pod.container(name) else { continue };
                check(container, &to)?;
                container.resources
            }
            None => pod.spec.resources.unwrap_or_default(),
        };
        if from != to {
            steps.push(Step {
                target: of.into(),
                change: Change::Resize { from, to },
            });
        }
    }
    Ok(steps)
}

/// Describes how the accepted spec differs from the patch, if it does: plugins and webhooks may change what they admit.
pub fn altered(accepted: &Pod, asked: &[Step]) -> Option<String> {
    let altered = asked.iter().filter_map(|step| {
        let Change::Resize { to, .. } = &step.change else {
            return None;
        };
        let has = match &step.target {
            Target::Container(name) => accepted.container(name)?.resources,
            Target::Pod => accepted.spec.resources?,
        };
        let change = Change::Resize { from: *to, to: has };
        (has != *to).then(|| format!("{}: {change}", step.target))
    });
    let altered: Vec<String> = altered.collect();
    (!altered.is_empty()).then(|| altered.join("; "))
}

/// Whether a patch can give a container of a running pod these amounts.
fn check(container: &Container, to: &Requirements) -> Result<(), String> {
    let Container { name, resources, .. } = container;
    let fields = resources.fields().into_iter().zip(to.fields());
    for ((field, old), (_, new)) in fields.filter(|((_, old), (_, new))| old != new) {
        let old = old.unwrap_or_else(|| "unset".to_owned());
        let Some(new) = new else {
            return Err(format!(
                "container {name}: its {field} of {old} cannot be taken away from a running pod, only changed: the API server \
                 refuses that"
            ));
        };
        let of_field = |resource: &&Resource| field.ends_with(resource.name());
        let resource = Resource::ALL.iter().find(of_field).copied();
        if let Some(resource) = resource.filter(|resource| container.restarts_for(*resource)) {
            let changes =
                |other: &&Resource| resources.of(**other) != to.of(**other) && !container.restarts_for(**other);
            let alone = Resource::ALL.iter().find(changes).map_or_else(String::new, |other| {
                format!("; its {other} is not changed either: ask for {other} alone to have that now")
            });
            return Err(format!(
                "container {name}: its {field} stays {old} instead of {new}: its resizePolicy for {resource} is RestartContainer, \
                 so the kubelet would restart it, and vscaled never restarts; set NotRequired in the workload's pod template, or \
                 change the amount there and let new pods have it{alone}"
            ));
        }
    }
    Ok(())
}
