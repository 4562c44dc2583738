//! Overrides that operators set, checked against the pod and laid over its other targets. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::Refusals;
use crate::model::objects::Pod;
use crate::model::{Cause, ControlError, NamedRequirements, PageSize, PodAmounts, QosClass, Resource, ResourceList};

/// Values that an operator set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Override {
    /// The caller's user id.
    pub(crate) uid: u32,
    pub(crate) pid: i32,
    pub(crate) reason: String,
    pub(crate) since: Timestamp,
    /// The end of the override; `None` is until released.
    pub(crate) until: Option<Timestamp>,
    /// The values set; an absent one follows the VPA or the spec.
    pub(crate) values: PodAmounts,
}

impl Override {
    /// The cause of a pass that brings these values.
    pub(crate) fn cause(&self) -> Cause {
        let (uid, pid, reason) = (self.uid, self.pid, self.reason.clone());
        Cause::Operator { uid, pid, reason }
    }

    /// Begin and end.
    pub(crate) fn dates(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        [&mut self.since].into_iter().chain(&mut self.until)
    }

    /// Errors: [`ControlError::Invalid`] if the pod has no such container, or never one that can be resized.
    pub(crate) fn check_names(&self, pod: &Pod) -> Result<(), ControlError> {
        check_names(pod, &self.values).map_err(|message| ControlError::Invalid(format!("containers: {message}")))
    }

    /// Whether a pod with these amounts has every value of the override.
    pub(crate) fn is_in(&self, amounts: &PodAmounts) -> bool {
        overlay(amounts.clone(), &self.values).same(amounts)
    }
}

#[cfg(test)]
impl Override {
    /// Values that root sets until they are released, without a reason.
    pub(crate) fn by_root(values: PodAmounts) -> Self {
        Self {
            uid: 0,
            pid: 1,
            reason: String::new(),
            since: Timestamp::UNIX_EPOCH,
            until: None,
            values,
        }
    }
}

/// `values` where they are set, `base` elsewhere.
pub(crate) fn overlay(mut base: PodAmounts, values: &PodAmounts) -> PodAmounts {
    for value in &values.containers {
        match base.get_mut(Some(&value.name)) {
            Some(resources) => *resources = value.resources.or(*resources),
            None => base.containers.push(value.clone()),
        }
    }
    base
}

pub(crate) fn check_names(pod: &Pod, values: &PodAmounts) -> Result<(), String> {
    let values = &values.containers;
    let Some(value) = values.iter().find(|value| pod.container(&value.name).is_none()) else {
        let ended = values.iter().find(|value| pod.has_completed(&value.name));
        let why = ended.map(|ended| format!("container {} has ended and does not start again", ended.name));
        return why.map_or(Ok(()), Err);
    };
    let (name, mut init) = (&value.name, pod.spec.init_containers.iter());
    if pod.spec.ephemeral_containers.contains(name) {
        return Err(format!(
            "container {name} is an ephemeral container: those have no resources and cannot be resized"
        ));
    }
    if init.any(|container| container.name == *name) {
        return Err(format!(
            "container {name} is an init container: vscaled resizes regular containers and sidecars only; change its resources in \
             the workload's pod template"
        ));
    }
    let known: Vec<&str> = pod.running_containers().map(|container| &*container.name).collect();
    Err(format!(
        "the pod has no container {name:?}; it has: {}",
        known.join(", ")
    ))
}

/// Refuses values of a resource that the kubelet resizes in no pod like this one.
pub(crate) fn check_refusals(pod: &Pod, values: &PodAmounts, refusals: &Refusals) -> Result<(), String> {
    for resource in Resource::ALL {
        for NamedRequirements { name, resources } in &values.containers {
            let text = |list: ResourceList| list.text(resource);
            let request = text(resources.requests).map(|text| ("requests", text, refusals.of(pod, name, resource)));
            let limit = || Some(("limits", text(resources.limits)?, refusals.of_limit(pod, resource)));
            if let Some((list, text, Some(why))) = request.or_else(limit) {
                return Err(format!(
                    "container {name}: {list}.{resource} {text} is refused: {why}; change the workload's pod template"
                ));
            }
        }
    }
    Ok(())
}

pub(crate) fn check_result(pod: &Pod, values: &PodAmounts, result: &PodAmounts, page: PageSize) -> Result<(), String> {
    let is_set = |container: &&NamedRequirements| values.container(&container.name).is_some();
    let mut set = result.containers.iter().filter(is_set);
    set.try_for_each(|NamedRequirements { name, resources }| {
        let why = resources.below_least(page);
        why.map_or(Ok(()), |why| Err(format!("container {name}: {why}")))
    })?;
    if let Some((resource, wanted, allowed)) = pod.exceeded_by(result) {
        let [wanted, allowed] = resource.quantities([wanted, allowed]);
        return Err(format!(
            "the containers would have {wanted} of {resource}, and the pod's own spec.resources allow {allowed}, which vscaled leaves \
             as they are: set at most that, or change spec.resources in the workload's pod template"
        ));
    }
    let (before, after) = (pod.qos_class(), pod.qos_with(result));
    if pod.spec.resources.is_some() || before == after {
        return Ok(());
    }
    let hint = match before {
        QosClass::Guaranteed => "set requests and limits to the same values",
        QosClass::Burstable => "keep at least one request below its limit",
        QosClass::BestEffort => "its containers can have neither requests nor limits",
    };
    Err(format!(
        "the pod's QoS class would change from {before} to {after}, which a running pod cannot do: {hint}"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::decide::NodePolicies;
    use crate::model::KubeletVersion;

    #[test]
    fn containers_never_resized_are_invalid_input() {
        let spec = json!({"containers": [{"name": "app"}], "ephemeralContainers": [{"name": "dbg"}]});
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        let check = |name: &str| {
            let values = serde_json::from_value(json!([{"name": name, "limits": {"cpu": "1"}}])).unwrap();
            Override::by_root(values).check_names(&pod)
        };
        assert_eq!(check("app"), Ok(()));
        for name in ["dbg", "nginx"] {
            assert!(matches!(check(name), Err(ControlError::Invalid(_))), "{name}");
        }
    }

    #[test]
    fn a_limit_alone_is_set_beside_swap() {
        let resources = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}});
        let spec = json!({"containers": [{"name": "app", "resources": resources}]});
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        let policies = NodePolicies {
            limited_swap: true,
            ..NodePolicies::default()
        };
        let refusals = Refusals::default().beside(policies, KubeletVersion::NEWEST);
        let set = |values: &str| {
            let values: PodAmounts = serde_json::from_str(values).unwrap();
            check_refusals(&pod, &values, &refusals)
        };
        assert_eq!(set(r#"[{"name": "app", "limits": {"memory": "3Gi"}}]"#), Ok(()));
        let refused = set(r#"[{"name": "app", "requests": {"memory": "2Gi"}}]"#).unwrap_err();
        let words = "container app: requests.memory 2Gi is refused: the kubelet resizes it in no container";
        assert!(refused.starts_with(words), "{refused}");
    }
}
