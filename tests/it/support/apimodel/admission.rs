//! Admission of a pod that has passed validation: the plugins `PodResize` of 1.36, `LimitRanger` and `ResourceQuota`,
//! with the messages of recorded API servers.

use serde_json::{Value, json};
use vscaled::model::{Requirements, Resource, ResourceList};

use super::store::{Refusal, Store};

/// Checks whether the pod may change from `old` to `new`.
pub(super) fn admit(store: &Store, old: &Value, new: &Value) -> Result<(), Refusal> {
    let name = new["metadata"]["name"].as_str().unwrap();
    let forbidden = |why: String| Refusal {
        code: 403,
        reason: "Forbidden",
        message: format!("pods \"{name}\" is forbidden: {why}"),
    };
    let refused = node_capacity(store, new)
        .or_else(|| limit_range(store, new))
        .or_else(|| quota(store, old, new));
    refused.map_or(Ok(()), |why| Err(forbidden(why)))
}

/// Refuses requests above the capacity of the whole node.
fn node_capacity(store: &Store, new: &Value) -> Option<String> {
    let node = store.find("nodes", new["spec"]["nodeName"].as_str()?)?;
    let has = list(&node["status"]["allocatable"]);
    Resource::ALL.into_iter().find_map(|resource| {
        let (asked, has) = (sum(new, "requests", resource), has.get(resource)?);
        (asked > has).then(|| {
            format!("node didn't have enough allocatable resources: {resource}, requested: {asked}, allocatable: {has}")
        })
    })
}

fn limit_range(store: &Store, new: &Value) -> Option<String> {
    let namespace = &new["metadata"]["namespace"];
    let is_here = |range: &&Value| [namespace, &Value::Null].contains(&&range["metadata"]["namespace"]);
    let items = store
        .all("limitranges")
        .filter(is_here)
        .flat_map(|range| range["spec"]["limits"].as_array().into_iter().flatten());
    let mut items = items.filter(|item| item["type"] == "Container");
    items.find_map(|item| {
        let max = list(&item["max"]);
        let containers = new["spec"]["containers"].as_array()?.iter();
        let limits = containers.map(|container| list(&container["resources"]["limits"]));
        limits.into_iter().find_map(|limits| {
            Resource::ALL.into_iter().find_map(|resource| {
                let (limit, max) = (limits.get(resource)?, max.get(resource)?);
                let quantity = |amount| resource.quantity(amount);
                (limit > max).then(|| {
                    format!(
                        "maximum {resource} usage per Container is {}, but limit is {}",
                        quantity(max),
                        quantity(limit)
                    )
                })
            })
        })
    })
}

fn quota(store: &Store, old: &Value, new: &Value) -> Option<String> {
    store.all("resourcequotas").find_map(|quota| {
        let name = quota["metadata"]["name"].as_str()?;
        ["limits", "requests"].into_iter().find_map(|kind| {
            Resource::ALL.into_iter().find_map(|resource| {
                let key = format!("{kind}.{resource}");
                let hard = list(&json!({resource.to_string(): quota["spec"]["hard"].get(&key)?})).get(resource)?;
                let more = sum(new, kind, resource)
                    .checked_sub(sum(old, kind, resource))
                    .filter(|more| *more > 0)?;
                let used: u64 = store.all("pods").map(|pod| sum(pod, kind, resource)).sum();
                let quantity = |amount| resource.quantity(amount);
                (used + more > hard).then(|| {
                    format!(
                        "exceeded quota: {name}, requested: {key}={}, used: {key}={}, limited: {key}={}",
                        quantity(more),
                        quantity(used),
                        quantity(hard)
                    )
                })
            })
        })
    })
}

pub(super) fn list(amounts: &Value) -> ResourceList {
    if amounts.is_null() {
        return ResourceList::default();
    }
    serde_json::from_value::<Requirements>(json!({"limits": amounts}))
        .unwrap()
        .limits
}

/// The sum over all containers of a pod.
fn sum(pod: &Value, kind: &str, resource: Resource) -> u64 {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    containers
        .map(|container| list(&container["resources"][kind]).amount(resource))
        .sum()
}
