//! The checks of the API server that the agent repeats for objects from files.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::model::Requirements;
use crate::model::objects::{
    Container, LONGEST_LABEL, LONGEST_SUBDOMAIN, Pod, StartupBoost, VerticalPodAutoscaler, is_label, is_subdomain,
};

/// The words of a VPA's policy for a container. Upstream's definition of the kind allows no others.
const POLICY_WORDS: [(&str, &[&str]); 2] = [
    ("mode", &["Auto", "Off"]),
    ("controlledValues", &["RequestsAndLimits", "RequestsOnly"]),
];

/// Checks name and namespace of an object, and the words of a VPA's policies, which the decisions read as their defaults
/// where they are unknown.
pub(super) fn check_texts(document: &Value) -> Result<(), String> {
    // The decoder refuses what is no text.
    let text = |pointer, absent| document.pointer(pointer).map_or(absent, Value::as_str);
    let check_name = |name| check_format("metadata.name", name, true);
    text("/metadata/name", Some("")).map_or(Ok(()), check_name)?;
    let check_namespace = |name| check_format("metadata.namespace", name, false);
    text("/metadata/namespace", None).map_or(Ok(()), check_namespace)?;
    let policies = document.pointer("/spec/resourcePolicy/containerPolicies");
    for (index, policy) in policies.and_then(Value::as_array).into_iter().flatten().enumerate() {
        for (field, allowed) in POLICY_WORDS {
            if let Some(word) = policy[field].as_str().filter(|word| !allowed.contains(word)) {
                let (word, allowed) = (word.chars().take(80).collect::<String>(), allowed.join(" and "));
                let path = format!("spec.resourcePolicy.containerPolicies[{index}].{field}");
                return Err(format!("{path}: {word:?} is unknown: allowed are {allowed}"));
            }
        }
    }
    Ok(())
}

/// Checks a name (RFC 1123): a subdomain or a label. Names become parts of paths, log lines and Events.
fn check_format(field: &str, name: &str, dots: bool) -> Result<(), String> {
    let (is_name, longest, parts) = if dots {
        (is_subdomain(name), LONGEST_SUBDOMAIN, ", in parts joined by '.'")
    } else {
        (is_label(name), LONGEST_LABEL, "")
    };
    let message = if name.is_empty() {
        "required, and not empty".to_owned()
    } else if !is_name {
        let shown: String = name.chars().take(80).collect();
        format!("{shown:?} is no name: allowed are up to {longest} of a-z, 0-9 and, not first or last, '-'{parts}")
    } else {
        return Ok(());
    };
    Err(format!("{field}: {message}"))
}

/// Checks that container names are unique and that no request exceeds its limit.
pub(super) fn check_pod(pod: &Pod) -> Result<(), String> {
    if pod.spec.containers.is_empty() {
        return Err("spec.containers: at least one is required".to_owned());
    }
    let mut names = BTreeSet::new();
    let lists = [
        ("containers", &pod.spec.containers),
        ("initContainers", &pod.spec.init_containers),
    ];
    for (list, containers) in lists {
        for (index, Container { name, resources, .. }) in containers.iter().enumerate() {
            let path = format!("spec.{list}[{index}]");
            check_format(&format!("{path}.name"), name, false)?;
            if !names.insert(name) {
                return Err(format!(
                    "{path}.name: {name:?} is taken by another container of the pod"
                ));
            }
            check_requirements(&format!("{path}.resources"), resources)?;
        }
    }
    let mut pod_level = pod.spec.resources.iter();
    pod_level.try_for_each(|resources| check_requirements("spec.resources", resources))
}

fn check_requirements(path: &str, Requirements { requests, limits }: &Requirements) -> Result<(), String> {
    match requests.first_above(limits) {
        None => Ok(()),
        Some((resource, [request, limit])) => Err(format!(
            "{path}.requests.{resource}: {request} is above the limit of {limit}"
        )),
    }
}

/// Checks the target, the bounds and the startup boosts of a VPA.
pub(super) fn check_vpa(vpa: &VerticalPodAutoscaler) -> Result<(), String> {
    let target = vpa.spec.target_ref.as_ref();
    if target.is_none_or(|target| target.kind.is_empty() || target.name.is_empty()) {
        let message = "spec.targetRef: required, with the kind and name of a workload in the same namespace";
        return Err(message.to_owned());
    }
    check_boost("spec.startupBoost", vpa.spec.startup_boost.as_ref())?;
    for (index, policy) in vpa.policies().iter().enumerate() {
        let path = format!("spec.resourcePolicy.containerPolicies[{index}]");
        check_boost(&format!("{path}.startupBoost"), policy.startup_boost.as_ref())?;
        if let Some((resource, [min, max])) = policy.min_allowed.first_above(&policy.max_allowed) {
            return Err(format!(
                "{path}.minAllowed.{resource}: {min} is above maxAllowed, which is {max}"
            ));
        }
    }
    Ok(())
}

/// The rules of VPA's own definition (`StartupBoost`, autoscaler `pkg/apis/autoscaling.k8s.io/v1`).
fn check_boost(path: &str, boost: Option<&StartupBoost>) -> Result<(), String> {
    let Some(cpu) = boost.and_then(|boost| boost.cpu.as_ref()) else {
        return Ok(());
    };
    let wrong = match (cpu.kind.as_str(), cpu.factor, cpu.quantity) {
        ("Factor", Some(1..), Some(_)) => Some("quantity: must not be set where the type is Factor".to_owned()),
        ("Factor", Some(1..), None) | ("Quantity", None, Some(_)) => None,
        ("Factor", Some(factor), _) => Some(format!("factor: {factor} is below 1")),
        ("Factor", None, _) => Some("factor: required where the type is Factor".to_owned()),
        ("Quantity", Some(_), _) => Some("factor: must not be set where the type is Quantity".to_owned()),
        ("Quantity", None, None) => Some("quantity: required where the type is Quantity".to_owned()),
        (other, ..) => Some(format!("type: {other:?} is neither Factor nor Quantity")),
    };
    let negative = cpu.duration_seconds.filter(|seconds| *seconds < 0);
    let wrong = wrong.or(negative.map(|seconds| format!("durationSeconds: {seconds} is below 0")));
    wrong.map_or(Ok(()), |wrong| Err(format!("{path}.cpu.{wrong}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boost(cpu: &str) -> Result<(), String> {
        let vpa = format!(
            r#"{{"spec": {{"targetRef": {{"kind": "Deployment", "name": "web"}}, "resourcePolicy": {{"containerPolicies":
            [{{"containerName": "app", "startupBoost": {{"cpu": {cpu}}}}}]}}}}}}"#
        );
        check_vpa(&serde_json::from_str(&vpa).unwrap())
    }

    #[test]
    fn a_policy_with_an_unknown_word_is_refused() {
        let refused = |policy: &str| {
            let vpa = format!(
                r#"{{"metadata": {{"name": "web"}}, "spec": {{"resourcePolicy": {{"containerPolicies": [{{}}, {policy}]}}}}}}"#
            );
            check_texts(&serde_json::from_str(&vpa).unwrap())
        };
        refused(r#"{"mode": "Off", "controlledValues": "RequestsOnly"}"#).unwrap();
        let path = "spec.resourcePolicy.containerPolicies[1]";
        let of_mode = format!("{path}.mode: \"off\" is unknown: allowed are Auto and Off");
        assert_eq!(refused(r#"{"mode": "off"}"#), Err(of_mode));
        let of_values = refused(r#"{"controlledValues": "Requests"}"#).unwrap_err();
        assert!(
            of_values.ends_with("allowed are RequestsAndLimits and RequestsOnly"),
            "{of_values}"
        );
    }

    #[test]
    fn every_container_and_the_pod_are_checked() {
        let checked = |spec: &str| {
            let pod = format!(r#"{{"metadata": {{"name": "web"}}, "spec": {spec}}}"#);
            check_pod(&serde_json::from_str(&pod).unwrap())
        };
        let above = r#"{"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}"#;
        for (spec, refused) in [
            (r#"{"containers": []}"#, "spec.containers: at least one is required"),
            (
                r#"{"containers": [{"name": "a"}], "initContainers": [{"name": "a"}]}"#,
                "spec.initContainers[0].name: \"a\" is taken by another container of the pod",
            ),
            (
                &format!(
                    r#"{{"containers": [{{"name": "a"}}], "initContainers": [{{"name": "b", "resources": {above}}}]}}"#
                ),
                "spec.initContainers[0].resources.requests.cpu: 2 is above the limit of 1",
            ),
            (
                &format!(r#"{{"containers": [{{"name": "a"}}], "resources": {above}}}"#),
                "spec.resources.requests.cpu: 2 is above the limit of 1",
            ),
        ] {
            assert_eq!(checked(spec), Err(refused.to_owned()));
        }
        let equal = above.replace('2', "1");
        checked(&format!(r#"{{"containers": [{{"name": "a", "resources": {equal}}}]}}"#)).unwrap();
    }

    #[test]
    fn names_have_a_length_and_an_alphabet() {
        let longest = "a".repeat(63);
        for name in [longest.as_str(), "0-a", "a"] {
            check_format("name", name, false).unwrap();
        }
        for name in ["", &"a".repeat(64), "-a", "a-", "a.b", "A", "a_b", "\u{e9}"] {
            assert!(check_format("name", name, false).is_err(), "{name}");
        }
        check_format("name", "a.b", true).unwrap();
        for name in ["..", "a..b", "a.", "a.-b"] {
            let refused = check_format("name", name, true).unwrap_err();
            assert!(refused.ends_with("'-', in parts joined by '.'"), "{refused}");
        }
    }

    #[test]
    fn a_minimum_is_not_above_its_maximum() {
        let checked = |min: &str| {
            let bounds = format!(
                r#"{{"containerName": "*", "minAllowed": {{"memory": "{min}"}}, "maxAllowed": {{"memory": "1Gi"}}}}"#
            );
            let policies = format!(r#"{{"containerPolicies": [{bounds}]}}"#);
            let target = r#"{"kind": "Deployment", "name": "web"}"#;
            let vpa = format!(r#"{{"spec": {{"targetRef": {target}, "resourcePolicy": {policies}}}}}"#);
            check_vpa(&serde_json::from_str(&vpa).unwrap())
        };
        checked("1Gi").unwrap();
        let refused =
            "spec.resourcePolicy.containerPolicies[0].minAllowed.memory: 2Gi is above maxAllowed, which is 1Gi";
        assert_eq!(checked("2Gi"), Err(refused.to_owned()));
        let vpa = serde_json::from_str(r#"{"spec": {"targetRef": {"kind": "Deployment", "name": ""}}}"#).unwrap();
        assert!(check_vpa(&vpa).unwrap_err().starts_with("spec.targetRef: required"));
    }

    #[test]
    fn a_startup_boost_has_one_amount_and_an_end() {
        boost(r#"{"type": "Factor", "factor": 2, "durationSeconds": 10}"#).unwrap();
        boost(r#"{"type": "Quantity", "quantity": "500m"}"#).unwrap();
        let refused = |cpu: &str| {
            let invalid = boost(cpu).unwrap_err();
            invalid.replace("spec.resourcePolicy.containerPolicies[0].startupBoost.cpu.", "")
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
