//! Converts amounts and refusals for the protocol, and checks and parses requests.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use tonic::Status;

use super::ControlError;
use super::proto;
use super::select;
use crate::model::objects::LONGEST_LABEL;
use crate::model::{NamedRequirements, PodAmounts, Requirements, Resource, ResourceList};

/// The longest reason in bytes: the agent keeps reasons and shows them again.
const LONGEST_REASON: usize = 1024;
/// The longest selector in bytes: each requirement is checked for each pod while no other task runs.
const LONGEST_SELECTOR: usize = 4 << 10;
/// The longest life of an override: 366 days.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(366 * 24 * 3600);
/// The same in microseconds.
const LONGEST_TTL_US: u64 = LONGEST_TTL.as_secs() * 1_000_000;

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

impl From<ControlError> for Status {
    fn from(error: ControlError) -> Self {
        let message = error.to_string();
        match error {
            ControlError::NotFound(_) => Self::not_found(message),
            ControlError::Invalid(_) => Self::invalid_argument(message),
            ControlError::Refused(_) => Self::failed_precondition(message),
            ControlError::Busy(_) => Self::resource_exhausted(message),
            ControlError::Internal(_) => Self::internal(message),
        }
    }
}

/// Checks a request to resize, and parses its values. An absent value stays as it is.
///
/// Errors: [`ControlError::Invalid`] naming the first field that cannot be used.
pub fn resize_values(request: &proto::ResizeRequest) -> Result<PodAmounts, ControlError> {
    check_change(&request.pod, &request.selector, &request.namespace, &request.reason)?;
    let ttl_fits = request.ttl_us.is_none_or(|ttl| (1..=LONGEST_TTL_US).contains(&ttl));
    let allowed = "allowed are 1 µs to 366 days; leave it out to hold the values until they are released";
    ensure(ttl_fits, "ttlUs", allowed)?;
    ensure(!request.containers.is_empty(), "containers", "at least one is required")?;
    let mut names = BTreeSet::new();
    let read = |(index, container): (usize, &proto::ContainerValues)| {
        let (path, name) = (format!("containers[{index}]"), container.name.clone());
        ensure(!name.is_empty(), format!("{path}.name"), "required")?;
        at_most(LONGEST_LABEL, format!("{path}.name"), &name)?;
        let twice = format!("{name:?} is in the request twice");
        ensure(names.insert(name.clone()), format!("{path}.name"), twice)?;
        let resources = requirements(&path, container.values.clone().unwrap_or_default())?;
        Ok(NamedRequirements { name, resources })
    };
    request.containers.iter().enumerate().map(read).collect()
}

/// Checks the fields of every request for a change: one pod or a selector, and texts of bounded length, because the audit log
/// keeps the pod and the reason of a refusal.
///
/// Errors: [`ControlError::Invalid`] naming the first field that cannot be used.
pub fn check_change(pod: &str, selector: &str, namespace: &str, reason: &str) -> Result<(), ControlError> {
    let required = "required: namespace/name, a UID, or a prefix of a container id; or a selector";
    ensure(!pod.is_empty() || !selector.is_empty(), "pod", required)?;
    let narrowed = !selector.is_empty() || !namespace.is_empty();
    let one_of_both = "not together with a pod: leave one of them out";
    ensure(pod.is_empty() || !narrowed, "selector", one_of_both)?;
    at_most(select::LONGEST_NAME, "pod", pod)?;
    at_most(LONGEST_SELECTOR, "selector", selector)?;
    if !selector.is_empty() {
        select::selector(selector).map_err(|error| invalid("selector", &error))?;
    }
    at_most(LONGEST_REASON, "reason", reason)
}

fn requirements(path: &str, values: proto::Requirements) -> Result<Requirements, ControlError> {
    let list = |field: &str, amounts: Option<proto::Amounts>| {
        let read: Result<ResourceList, _> = serde_path_to_error::deserialize(json!(amounts.unwrap_or_default()));
        read.map_err(|error| invalid(&format!("{path}.{field}.{}", error.path()), &error.inner().to_string()))
    };
    let requirements = Requirements {
        requests: list("requests", values.requests)?,
        limits: list("limits", values.limits)?,
    };
    let nothing = "asks for nothing: give a request or a limit of cpu or memory";
    ensure(requirements != Requirements::default(), path, nothing)?;
    let Requirements { requests, limits } = &requirements;
    for resource in Resource::ALL {
        let field = format!("{path}.limits.{resource}");
        let no_limit = "0 is no limit: give an amount above it";
        ensure(limits.get(resource) != Some(0), field, no_limit)?;
    }
    if let Some((resource, [request, limit])) = requests.first_above(limits) {
        let above = format!("{request} is above the limit of {limit}");
        return Err(invalid(&format!("{path}.requests.{resource}"), &above));
    }
    Ok(requirements)
}

fn ensure(holds: bool, field: impl Into<String>, otherwise: impl Into<String>) -> Result<(), ControlError> {
    let refused = || invalid(&field.into(), &otherwise.into());
    holds.then_some(()).ok_or_else(refused)
}

fn at_most(most: usize, field: impl Into<String>, text: &str) -> Result<(), ControlError> {
    let too_long = format!("{} bytes long: allowed are {most}", text.len());
    ensure(text.len() <= most, field, too_long)
}

fn invalid(field: &str, message: &str) -> ControlError {
    ControlError::Invalid(format!("{field}: {message}"))
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
            values.containers[0].resources.requests.text(Resource::Cpu).as_deref(),
            Some("250m")
        );
        assert!(values.containers[0].resources.limits.is_empty());
    }

    #[test]
    fn each_amount_is_read_from_its_field() {
        let amounts = |cpu: &str, memory: &str| {
            Some(proto::Amounts {
                cpu: Some(cpu.to_owned()),
                memory: Some(memory.to_owned()),
            })
        };
        let sent = proto::Requirements {
            requests: amounts("250m", "64Mi"),
            limits: amounts("2", "1Gi"),
        };
        let mut request = request(None, None);
        request.containers[0].values = Some(sent.clone());
        let read = resize_values(&request).unwrap().containers[0].resources;
        let numbers = |list: ResourceList| (list.amount(Resource::Cpu), list.amount(Resource::Memory));
        assert_eq!(numbers(read.requests), (250, 64 << 20));
        assert_eq!(numbers(read.limits), (2000, 1 << 30));
        assert_eq!(proto::Requirements::from(&read), sent, "answers have the same notation");
    }

    #[test]
    fn the_longest_allowed_is_allowed() {
        let mut request = request(Some("1"), Some("1"));
        request.reason = "x".repeat(1024);
        request.pod = "x".repeat(317);
        request.containers[0].name = "x".repeat(63);
        for (ttl, fits) in [(1, true), (31_622_400_000_000, true), (31_622_400_000_001, false)] {
            request.ttl_us = Some(ttl);
            assert_eq!(resize_values(&request).is_ok(), fits, "{ttl} µs");
        }
        let selector = |length| check_change("", &"x".repeat(length), "shop", "");
        assert_eq!(selector(4096), Ok(()));
        assert!(selector(4097).is_err());
    }

    #[test]
    fn callers_learn_the_kind_of_error() {
        use tonic::Code;

        let why = || "why".to_owned();
        for (error, code) in [
            (ControlError::no_pod("shop/web", &[]), Code::NotFound),
            (invalid("pod", "required"), Code::InvalidArgument),
            (ControlError::Refused(why()), Code::FailedPrecondition),
            (ControlError::Busy(why()), Code::ResourceExhausted),
            (ControlError::Internal(why()), Code::Internal),
        ] {
            let status = Status::from(error.clone());
            assert_eq!((status.code(), status.message()), (code, error.to_string().as_str()));
        }
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
            "containers[0].requests.cpu: 2000m is above the limit of 1500m"
        );
        assert!(refusal(&request(None, Some("0"))).starts_with("containers[0].limits.cpu: 0 is no limit"));
        assert!(refusal(&request(None, None)).starts_with("containers[0]: asks for nothing"));
        assert!(with(&|request| request.pod.clear()).starts_with("pod: required"));
        assert!(with(&|request| request.pod = "x".repeat(318)).starts_with("pod: 318 bytes long: allowed are 317"));
        let name = |request: &mut proto::ResizeRequest| request.containers[0].name = "x".repeat(64);
        assert!(with(&name).starts_with("containers[0].name: 64 bytes long"));
        let both = |request: &mut proto::ResizeRequest| request.selector = "app=web".to_owned();
        assert!(with(&both).starts_with("selector: not together with a pod"));
        let broken = |request: &mut proto::ResizeRequest| {
            request.pod.clear();
            request.selector = "app=web,,".to_owned();
        };
        assert!(with(&broken).starts_with("selector: "));
        let long = |request: &mut proto::ResizeRequest| {
            request.pod.clear();
            request.selector = vec!["app"; 1025].join(",");
        };
        assert!(with(&long).starts_with("selector: 4099 bytes long"));
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
            let list = ResourceList { cpu: Some(crate::model::MilliCpu::new(milli)), memory: None };
            let sent = proto::Amounts::from(&list);
            let values = resize_values(&request(sent.cpu.as_deref(), sent.cpu.as_deref())).unwrap();
            prop_assert_eq!(values.containers[0].resources, Requirements { requests: list, limits: list });
        }
    }
}
