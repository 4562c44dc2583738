//! Between the protocol's texts and the vocabulary's amounts.

use std::collections::BTreeSet;

use super::backend::ControlError;
use super::proto;
use super::selector::Selector;
use crate::resources::quantity::{Quantity, QuantityError};
use crate::resources::{NamedRequirements, Requirements, Resource, ResourceList};

/// Longest reason a caller may give, in bytes: it is kept and shown again.
const LONGEST_REASON: usize = 1024;
/// Longest time to live in microseconds: 366 days.
const LONGEST_TTL_US: u64 = 366 * 24 * 3600 * 1_000_000;

impl From<&ResourceList> for proto::Amounts {
    fn from(list: &ResourceList) -> Self {
        Self {
            cpu: list.text(Resource::Cpu),
            memory: list.text(Resource::Memory),
        }
    }
}

impl From<&Requirements> for proto::Requirements {
    fn from(requirements: &Requirements) -> Self {
        Self {
            requests: Some((&requirements.requests).into()),
            limits: Some((&requirements.limits).into()),
        }
    }
}

/// Checks a request to resize, and reads the values it asks for; what is absent stays as it is.
///
/// # Errors
/// [`ControlError::Invalid`] naming the first field that cannot be used.
pub fn resize_values(request: &proto::ResizeRequest) -> Result<Vec<NamedRequirements>, ControlError> {
    one_or_selected(&request.pod, &request.selector, &request.namespace, &request.reason)?;
    if request.ttl_us.is_some_and(|ttl| ttl == 0 || ttl > LONGEST_TTL_US) {
        let message = "allowed are 1 µs to 366 days; leave it out to hold the values until they are released";
        return Err(invalid("ttlUs", message));
    }
    if request.containers.is_empty() {
        return Err(invalid("containers", "at least one is required"));
    }
    let mut names = BTreeSet::new();
    let mut all = Vec::with_capacity(request.containers.len());
    for (index, container) in request.containers.iter().enumerate() {
        let path = format!("containers[{index}]");
        if container.name.is_empty() {
            return Err(invalid(format!("{path}.name"), "required"));
        }
        if !names.insert(&container.name) {
            return Err(invalid(
                format!("{path}.name"),
                format!("{:?} is in the request twice", container.name),
            ));
        }
        all.push(NamedRequirements {
            name: container.name.clone(),
            resources: requirements(&path, container.values.as_ref())?,
        });
    }
    Ok(all)
}

/// Checks what every change has: one pod or a selector of several, and a reason of sensible length.
pub(super) fn one_or_selected(pod: &str, selector: &str, namespace: &str, reason: &str) -> Result<(), ControlError> {
    if pod.is_empty() && selector.is_empty() {
        let message = "required: namespace/name, a UID, or a prefix of a container id; or a selector";
        return Err(invalid("pod", message));
    }
    let narrowed = !selector.is_empty() || !namespace.is_empty();
    if !pod.is_empty() && narrowed {
        return Err(invalid("selector", "not together with a pod: leave one of them out"));
    }
    if !selector.is_empty()
        && let Err(error) = selector.parse::<Selector>()
    {
        return Err(invalid("selector", error.to_string()));
    }
    if reason.len() > LONGEST_REASON {
        let message = format!("{} bytes long: allowed are {LONGEST_REASON}", reason.len());
        return Err(invalid("reason", message));
    }
    Ok(())
}

fn requirements(path: &str, values: Option<&proto::Requirements>) -> Result<Requirements, ControlError> {
    let list = |field: &str, amounts: Option<&proto::Amounts>| {
        let path = format!("{path}.{field}");
        Ok(ResourceList {
            cpu: amount(&path, Resource::Cpu, amounts.and_then(|amounts| amounts.cpu.as_deref()))?,
            memory: amount(
                &path,
                Resource::Memory,
                amounts.and_then(|amounts| amounts.memory.as_deref()),
            )?,
        })
    };
    let requirements = Requirements {
        requests: list("requests", values.and_then(|values| values.requests.as_ref()))?,
        limits: list("limits", values.and_then(|values| values.limits.as_ref()))?,
    };
    if requirements == Requirements::default() {
        return Err(invalid(
            path,
            "asks for nothing: give a request or a limit of cpu or memory",
        ));
    }
    for resource in Resource::ALL {
        let (request, limit) = (requirements.requests.get(resource), requirements.limits.get(resource));
        if limit == Some(0) {
            return Err(invalid(
                format!("{path}.limits.{resource}"),
                "0 is no limit: give an amount above it",
            ));
        }
        if let (Some(request), Some(limit)) = (request, limit)
            && request > limit
        {
            let text = |list: ResourceList| list.text(resource).unwrap_or_default();
            let (request, limit) = (text(requirements.requests), text(requirements.limits));
            return Err(invalid(
                format!("{path}.requests.{resource}"),
                format!("{request} is above the limit of {limit}"),
            ));
        }
    }
    Ok(requirements)
}

fn amount<T: From<Quantity>>(path: &str, resource: Resource, text: Option<&str>) -> Result<Option<T>, ControlError> {
    text.map(Quantity::parse)
        .transpose()
        .map(|quantity| quantity.map(T::from))
        .map_err(|error: QuantityError| invalid(format!("{path}.{resource}"), error.to_string()))
}

fn invalid(field: impl Into<String>, message: impl Into<String>) -> ControlError {
    ControlError::Invalid {
        field: field.into(),
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(cpu_request: Option<&str>, cpu_limit: Option<&str>) -> proto::ResizeRequest {
        let amounts = |cpu: Option<&str>| {
            Some(proto::Amounts {
                cpu: cpu.map(str::to_owned),
                memory: None,
            })
        };
        proto::ResizeRequest {
            pod: "shop/web".to_owned(),
            containers: vec![proto::ContainerValues {
                name: "app".to_owned(),
                values: Some(proto::Requirements {
                    requests: amounts(cpu_request),
                    limits: amounts(cpu_limit),
                }),
            }],
            ..proto::ResizeRequest::default()
        }
    }

    fn refusal(request: &proto::ResizeRequest) -> String {
        resize_values(request).unwrap_err().to_string()
    }

    #[test]
    fn amounts_are_read_and_absent_ones_stay_absent() {
        let values = resize_values(&request(Some("250m"), None)).unwrap();
        assert_eq!(
            values[0].resources.requests.text(Resource::Cpu).as_deref(),
            Some("250m")
        );
        assert!(values[0].resources.limits.is_empty());
    }

    #[test]
    fn every_refusal_names_its_field() {
        let with = |change: &dyn Fn(&mut proto::ResizeRequest)| {
            let mut request = request(Some("1"), Some("2"));
            change(&mut request);
            refusal(&request)
        };
        assert!(
            refusal(&request(Some("1x"), None)).starts_with("containers[0].requests.cpu: \"1x\" is not a quantity")
        );
        assert!(refusal(&request(Some("-1"), None)).starts_with("containers[0].requests.cpu: \"-1\" is negative"));
        assert_eq!(
            refusal(&request(Some("2"), Some("1500m"))),
            "containers[0].requests.cpu: 2 is above the limit of 1500m"
        );
        assert!(refusal(&request(None, Some("0"))).starts_with("containers[0].limits.cpu: 0 is no limit"));
        assert!(refusal(&request(None, None)).starts_with("containers[0]: asks for nothing"));
        assert!(with(&|request| request.pod.clear()).starts_with("pod: required"));
        let both = |request: &mut proto::ResizeRequest| request.selector = "app=web".to_owned();
        assert!(with(&both).starts_with("selector: not together with a pod"));
        let broken = |request: &mut proto::ResizeRequest| {
            request.pod.clear();
            request.selector = "app=web,,".to_owned();
        };
        assert!(with(&broken).starts_with("selector: "));
        assert!(with(&|request| request.containers.clear()).starts_with("containers: at least one"));
        assert!(with(&|request| request.containers[0].name.clear()).starts_with("containers[0].name: required"));
        assert!(with(&|request| request.reason = "x".repeat(1025)).starts_with("reason: 1025 bytes long"));
        assert!(with(&|request| request.ttl_us = Some(0)).starts_with("ttlUs: allowed are"));
        assert!(with(&|request| request.ttl_us = Some(u64::MAX)).starts_with("ttlUs: allowed are"));
        let twice = |request: &mut proto::ResizeRequest| request.containers.push(request.containers[0].clone());
        assert!(with(&twice).starts_with("containers[1].name: \"app\" is in the request twice"));
    }

    proptest! {
        #[test]
        fn what_is_sent_is_what_is_read(milli in 1_u64..=i64::MAX as u64) {
            let list = ResourceList { cpu: Some(crate::resources::MilliCpu::new(milli)), memory: None };
            let sent = proto::Amounts::from(&list);
            let values = resize_values(&request(sent.cpu.as_deref(), sent.cpu.as_deref())).unwrap();
            prop_assert_eq!(values[0].resources, Requirements { requests: list, limits: list });
        }
    }
}
