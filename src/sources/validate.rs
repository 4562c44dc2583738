//! What the API server would have refused: checked here because a file has no API server in front of it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::model::objects::{Container, Pod, StartupBoost, VerticalPodAutoscaler};
use crate::model::{Requirements, Resource};

/// The length of names that stand between dots: of namespaces and containers.
const LONGEST_LABEL: usize = 63;

/// A field that cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Invalid {
    pub(super) field: String,
    pub(super) message: String,
}

/// The name is one that the API server gives out, and so is the namespace, if there is one.
pub(super) fn check_names(document: &Value) -> Result<(), Invalid> {
    for (pointer, field, longest, dots) in [
        ("/metadata/name", "metadata.name", 253, true),
        ("/metadata/namespace", "metadata.namespace", LONGEST_LABEL, false),
    ] {
        match document.pointer(pointer).and_then(Value::as_str) {
            Some(name) => check_format(field, name, longest, dots)?,
            None if dots => check_format(field, "", longest, dots)?,
            None => {}
        }
    }
    Ok(())
}

/// What names consist of (RFC 1123): they stand in paths, log lines and Events.
fn check_format(field: &str, name: &str, longest: usize, dots: bool) -> Result<(), Invalid> {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-') || (dots && byte == b'.');
    let message = if name.is_empty() {
        "required, and not empty".to_owned()
    } else if name.len() > longest || !name.bytes().all(allowed) || name.starts_with('-') || name.ends_with('-') {
        let shown: String = name.chars().take(80).collect();
        let dot = if dots { ", '.'" } else { "" };
        format!("{shown:?} is no name: allowed are up to {longest} of a-z, 0-9{dot} and, not first or last, '-'")
    } else {
        return Ok(());
    };
    Err(Invalid {
        field: field.to_owned(),
        message,
    })
}

/// Containers have names of their own, and requests no larger than limits.
pub(super) fn check_pod(pod: &Pod) -> Result<(), Invalid> {
    if pod.spec.containers.is_empty() {
        return Err(Invalid {
            field: "spec.containers".to_owned(),
            message: "at least one is required".to_owned(),
        });
    }
    let mut names = BTreeSet::new();
    for (list, containers) in [
        ("containers", &pod.spec.containers),
        ("initContainers", &pod.spec.init_containers),
    ] {
        for (index, container) in containers.iter().enumerate() {
            let path = format!("spec.{list}[{index}]");
            check_name(&path, container, &mut names)?;
            check_requirements(&format!("{path}.resources"), &container.resources)?;
        }
    }
    pod.spec
        .resources
        .as_ref()
        .map_or(Ok(()), |pod_level| check_requirements("spec.resources", pod_level))
}

fn check_name<'a>(path: &str, container: &'a Container, names: &mut BTreeSet<&'a str>) -> Result<(), Invalid> {
    let field = format!("{path}.name");
    check_format(&field, &container.name, LONGEST_LABEL, false)?;
    if !names.insert(&container.name) {
        let message = format!("{:?} is taken by another container of the pod", container.name);
        return Err(Invalid { field, message });
    }
    Ok(())
}

fn check_requirements(path: &str, resources: &Requirements) -> Result<(), Invalid> {
    for resource in Resource::ALL {
        if let (Some(request), Some(limit)) = (resources.requests.get(resource), resources.limits.get(resource))
            && request > limit
        {
            let text = |list: crate::model::ResourceList| list.text(resource).unwrap_or_default();
            let (request, limit) = (text(resources.requests), text(resources.limits));
            return Err(Invalid {
                field: format!("{path}.requests.{resource}"),
                message: format!("{request} is above the limit of {limit}"),
            });
        }
    }
    Ok(())
}

/// A VPA names its workload, its bounds are not inverted, and its startup boosts are such as its API takes.
pub(super) fn check_vpa(vpa: &VerticalPodAutoscaler) -> Result<(), Invalid> {
    if vpa
        .spec
        .target_ref
        .as_ref()
        .is_none_or(|target| target.kind.is_empty() || target.name.is_empty())
    {
        let message = "required, with the kind and name of a workload in the same namespace".to_owned();
        return Err(Invalid {
            field: "spec.targetRef".to_owned(),
            message,
        });
    }
    let policies = vpa
        .spec
        .resource_policy
        .iter()
        .flat_map(|policy| &policy.container_policies);
    check_boost("spec.startupBoost", vpa.spec.startup_boost.as_ref())?;
    for (index, policy) in policies.enumerate() {
        let field = format!("spec.resourcePolicy.containerPolicies[{index}].startupBoost");
        check_boost(&field, policy.startup_boost.as_ref())?;
        for resource in Resource::ALL {
            if let (Some(min), Some(max)) = (policy.min_allowed.get(resource), policy.max_allowed.get(resource))
                && min > max
            {
                let text = |list: crate::model::ResourceList| list.text(resource).unwrap_or_default();
                let (min, max) = (text(policy.min_allowed), text(policy.max_allowed));
                return Err(Invalid {
                    field: format!("spec.resourcePolicy.containerPolicies[{index}].minAllowed.{resource}"),
                    message: format!("{min} is above maxAllowed, which is {max}"),
                });
            }
        }
    }
    Ok(())
}

/// As the rules of VPA's own definition have it (`StartupBoost`, autoscaler `pkg/apis/autoscaling.k8s.io/v1`).
fn check_boost(path: &str, boost: Option<&StartupBoost>) -> Result<(), Invalid> {
    let Some(cpu) = boost.and_then(|boost| boost.cpu.as_ref()) else {
        return Ok(());
    };
    let invalid = |field: &str, message: String| Invalid {
        field: format!("{path}.cpu.{field}"),
        message,
    };
    match cpu.kind.as_str() {
        "Factor" => match cpu.factor {
            Some(1..) if cpu.quantity.is_none() => {}
            Some(1..) => {
                return Err(invalid(
                    "quantity",
                    "must not be set where the type is Factor".to_owned(),
                ));
            }
            Some(factor) => return Err(invalid("factor", format!("{factor} is below 1"))),
            None => return Err(invalid("factor", "required where the type is Factor".to_owned())),
        },
        "Quantity" if cpu.factor.is_some() => {
            return Err(invalid(
                "factor",
                "must not be set where the type is Quantity".to_owned(),
            ));
        }
        "Quantity" if cpu.quantity.is_none() => {
            return Err(invalid("quantity", "required where the type is Quantity".to_owned()));
        }
        "Quantity" => {}
        other => return Err(invalid("type", format!("{other:?} is neither Factor nor Quantity"))),
    }
    match cpu.duration_seconds {
        Some(seconds @ ..0) => Err(invalid("durationSeconds", format!("{seconds} is below 0"))),
        Some(0..) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boost(cpu: &str) -> Result<(), Invalid> {
        let vpa = format!(
            r#"{{"spec": {{"targetRef": {{"kind": "Deployment", "name": "web"}}, "resourcePolicy": {{"containerPolicies":
            [{{"containerName": "app", "startupBoost": {{"cpu": {cpu}}}}}]}}}}}}"#
        );
        check_vpa(&serde_json::from_str(&vpa).unwrap())
    }

    #[test]
    fn a_startup_boost_says_how_much_in_one_way_and_for_how_long() {
        boost(r#"{"type": "Factor", "factor": 2, "durationSeconds": 10}"#).unwrap();
        boost(r#"{"type": "Quantity", "quantity": "500m"}"#).unwrap();
        let refused = |cpu: &str| {
            let invalid = boost(cpu).unwrap_err();
            let field = invalid
                .field
                .replace("spec.resourcePolicy.containerPolicies[0].startupBoost.cpu.", "");
            format!("{field}: {}", invalid.message)
        };
        assert_eq!(refused(r#"{"type": "Factor", "factor": 0}"#), "factor: 0 is below 1");
        assert_eq!(
            refused(r#"{"type": "Factor"}"#),
            "factor: required where the type is Factor"
        );
        assert_eq!(
            refused(r#"{"type": "Factor", "factor": 2, "quantity": "1"}"#),
            "quantity: must not be set where the type is Factor"
        );
        assert_eq!(
            refused(r#"{"type": "Quantity", "factor": 2, "quantity": "1"}"#),
            "factor: must not be set where the type is Quantity"
        );
        assert_eq!(
            refused(r#"{"type": "Quantity"}"#),
            "quantity: required where the type is Quantity"
        );
        assert_eq!(
            refused(r#"{"type": "Twice"}"#),
            "type: \"Twice\" is neither Factor nor Quantity"
        );
        assert_eq!(
            refused(r#"{"type": "Quantity", "quantity": "1", "durationSeconds": -1}"#),
            "durationSeconds: -1 is below 0"
        );
    }
}
