//! The rules of the `resize` subresource for the amounts of containers and of the pod: `dropNonResizeUpdates` (kubernetes
//! `pkg/registry/core/pod`), then `ValidatePodResize` (`pkg/apis/core/validation`).

use serde_json::{Map, Value};
use vscaled::model::objects::Pod;
use vscaled::model::{Requirements, Resource};

use super::store::Refusal;

/// The pod after the patch; status and version are unchanged.
pub(super) fn resized(old: &Value, patch: &Value) -> Result<Value, Refusal> {
    let name = old["metadata"]["name"].as_str().unwrap();
    let invalid_as = |what: &str| Refusal {
        code: 422,
        reason: "Invalid",
        message: format!("Pod \"{name}\" is invalid: {what}"),
    };
    let invalid = |field: &str, message: &str| invalid_as(&format!("{field}: {message}"));
    if let Some(version) = patch["metadata"].get("resourceVersion")
        && *version != old["metadata"]["resourceVersion"]
    {
        let message = "the object has been modified; please apply your changes to the latest version and try again";
        return Err(Refusal {
            code: 409,
            reason: "Conflict",
            message: format!("Operation cannot be fulfilled on pods \"{name}\": {message}"),
        });
    }
    if let Some(uid) = patch["metadata"].get("uid")
        && *uid != old["metadata"]["uid"]
    {
        return Err(invalid(
            "metadata.uid",
            &format!("Invalid value: {uid}: field is immutable"),
        ));
    }
    let mut new = old.clone();
    // The patch of pod-level resources follows the same rules as the patch of a container's.
    merge(&mut new["spec"], &patch["spec"])
        .map_err(|(field, message)| invalid(&format!("spec.resources.{field}"), &message))?;
    for change in patch["spec"]["containers"].as_array().into_iter().flatten() {
        let there = new["spec"]["containers"].as_array_mut().into_iter().flatten();
        let Some(container) = there.into_iter().find(|container| container["name"] == change["name"]) else {
            // A new container also needs an image.
            return Err(invalid_as(
                "[spec.containers[0].image: Required value, spec.containers: Forbidden: containers may not be added or removed on resize]",
            ));
        };
        merge(container, change)
            .map_err(|(field, message)| invalid(&format!("spec.containers[0].resources.{field}"), &message))?;
        check(container).map_err(|message| invalid("spec.containers[].resources", &message))?;
    }
    let pod = |value: &Value| serde_json::from_value::<Pod>(value.clone()).unwrap();
    let class = pod(old).qos_class();
    if class != pod(&new).computed_qos() {
        let message = format!("Invalid value: \"{class}\": Pod QOS Class may not change as a result of resizing");
        return Err(invalid("spec", &message));
    }
    Ok(new)
}

/// Merges the lists of amounts into a container's.
fn merge(container: &mut Value, change: &Value) -> Result<(), (&'static str, String)> {
    for list in ["requests", "limits"] {
        let amounts: Map<String, Value> = change["resources"][list].as_object().cloned().unwrap_or_default();
        for (resource, amount) in amounts {
            let there = container["resources"][list].get(&resource).cloned();
            if amount.is_null() && there.is_some() {
                return Err((list, format!("Forbidden: resource {list} cannot be removed")));
            }
            if !amount.is_null() && !means_the_same(&resource, there.as_ref(), &amount) {
                container["resources"][list][resource] = amount;
            }
        }
    }
    Ok(())
}

/// Whether two quantities are equal. A quantity has several spellings, and the store keeps the first one.
fn means_the_same(resource: &str, one: Option<&Value>, other: &Value) -> bool {
    let list = |amount: &Value| {
        let list = serde_json::json!({"requests": {resource: amount}});
        serde_json::from_value::<Requirements>(list).unwrap()
    };
    one.is_some_and(|one| list(one) == list(other))
}

/// Checks that no request exceeds its limit.
fn check(container: &Value) -> Result<(), String> {
    let has: Requirements =
        serde_json::from_value(container["resources"].clone()).map_err(|error| error.to_string())?;
    let exceeds = |resource: &Resource| {
        let limit = has.limits.get(*resource);
        limit.is_some_and(|limit| has.requests.amount(*resource) > limit)
    };
    Resource::ALL.into_iter().find(exceeds).map_or(Ok(()), |resource| {
        Err(format!(
            "Invalid value: {resource} request must be less than or equal to its limit"
        ))
    })
}
