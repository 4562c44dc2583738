//! The rules of the `resize` subresource: `dropNonResizeUpdates` (kubernetes `pkg/registry/core/pod`), then
//! `ValidatePodResize` (`pkg/apis/core/validation`).

use serde_json::{Map, Value};
use vscaled::model::Requirements;
use vscaled::model::objects::Pod;

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
    if old["metadata"]["annotations"]
        .get("kubernetes.io/config.mirror")
        .is_some()
    {
        return Err(invalid("", "Forbidden: static pods cannot be resized"));
    }
    let mut new = old.clone();
    // The patch of pod-level resources follows the same rules as the patch of a container's.
    merge(&mut new["spec"], &patch["spec"])
        .map_err(|(field, message)| invalid(&format!("spec.resources.{field}"), &message))?;
    for list in ["containers", "initContainers"] {
        for change in patch["spec"][list].as_array().into_iter().flatten() {
            let there = new["spec"][list].as_array_mut().into_iter().flatten();
            let Some(container) = there.into_iter().find(|container| container["name"] == change["name"]) else {
                // A new container also needs an image.
                return Err(invalid_as(&format!(
                    "[spec.{list}[0].image: Required value, spec.{list}: Forbidden: containers may not be added or removed on resize]"
                )));
            };
            if change
                .get("resizePolicy")
                .is_some_and(|policy| *policy != container["resizePolicy"])
            {
                return Err(invalid("spec", "Forbidden: only cpu and memory resources are mutable"));
            }
            let init = list == "initContainers" && container["restartPolicy"] != "Always";
            merge(container, change)
                .map_err(|(field, message)| invalid(&format!("spec.{list}[0].resources.{field}"), &message))?;
            if init {
                return Err(invalid(
                    "spec.initContainers",
                    "Forbidden: only sidecars may be resized",
                ));
            }
            check(container).map_err(|message| invalid(&format!("spec.{list}[].resources"), &message))?;
        }
    }
    check_pod(old, &new).map_err(|message| invalid("spec", &message))?;
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
            if !["cpu", "memory"].contains(&resource.as_str()) && there.as_ref() != Some(&amount) {
                return Err((list, "Forbidden: only cpu and memory resources are mutable".to_owned()));
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
    for resource in vscaled::model::Resource::ALL {
        if has
            .limits
            .get(resource)
            .is_some_and(|limit| has.requests.amount(resource) > limit)
        {
            return Err(format!(
                "Invalid value: {resource} request must be less than or equal to its limit"
            ));
        }
    }
    Ok(())
}

fn check_pod(old: &Value, new: &Value) -> Result<(), String> {
    let pod = |value: &Value| serde_json::from_value::<Pod>(value.clone()).unwrap();
    let class = pod(old).qos_class();
    if class != pod(new).computed_qos() {
        return Err(format!(
            "Invalid value: \"{class}\": Pod QOS Class may not change as a result of resizing"
        ));
    }
    let statuses = old["status"]["containerStatuses"].as_array().into_iter().flatten();
    let running = statuses
        .into_iter()
        .find(|status| status["state"].get("running").is_some());
    if running.is_some_and(|status| status.get("resources").is_none()) {
        return Err("Forbidden: Pod running on node without support for resize".to_owned());
    }
    Ok(())
}
