//! Requests and limits of all parts of a pod.

use serde::{Deserialize, Serialize};

use super::{NamedRequirements, Requirements, Resource};

/// Requests and limits of a pod's containers, and of the pod as a whole.
///
/// Files have them as one list, in which the pod as a whole comes last, with an empty name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<NamedRequirements>", into = "Vec<NamedRequirements>")]
pub struct PodAmounts {
    /// Regular containers, then sidecars, both in the spec's order.
    pub containers: Vec<NamedRequirements>,
    /// The pod's own amounts (`spec.resources`), if its kubelet can resize them. Few pods have some, so they are boxed.
    pub pod: Option<Box<Requirements>>,
}

impl PodAmounts {
    pub const NONE: &'static Self = &Self {
        containers: Vec::new(),
        pod: None,
    };

    pub const fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.pod.is_none()
    }

    /// The amounts of the container of that name, or without a name those of the pod as a whole.
    pub fn get(&self, container: Option<&str>) -> Option<&Requirements> {
        let mut all = self.iter();
        all.find(|(of, _)| *of == container).map(|(_, resources)| resources)
    }

    /// As [`Self::get`].
    pub fn get_mut(&mut self, container: Option<&str>) -> Option<&mut Requirements> {
        let mut all = self.iter_mut();
        all.find(|(of, _)| *of == container).map(|(_, resources)| resources)
    }

    /// The amounts of the container of that name.
    pub fn container(&self, name: &str) -> Option<&Requirements> {
        self.get(Some(name))
    }

    /// A container's limit, in bytes or thousandths of a cpu. `None` without one: a limit of zero bounds nothing.
    pub fn limit(&self, container: &str, resource: Resource) -> Option<u64> {
        self.container(container)?.limits.nonzero().get(resource)
    }

    /// The amounts of each container with its name, then those of the pod as a whole.
    pub fn iter(&self) -> impl Iterator<Item = (Option<&str>, &Requirements)> {
        let containers = self.containers.iter();
        let containers = containers.map(|NamedRequirements { name, resources }| (Some(&**name), resources));
        containers.chain(self.pod.as_deref().map(|pod| (None, pod)))
    }

    /// As [`Self::iter`].
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Option<&str>, &mut Requirements)> {
        let containers = self.containers.iter_mut();
        let containers = containers.map(|NamedRequirements { name, resources }| (Some(&**name), resources));
        containers.chain(self.pod.as_deref_mut().map(|pod| (None, pod)))
    }

    /// Whether these and the `other` amounts are equal where both have some. Unset equals zero, and a limit without a request
    /// equals one with an equal request.
    pub fn same(&self, other: &Self) -> bool {
        self.iter().all(|(of, own)| {
            let other = other.get(of);
            other.is_none_or(|other| other.amounts() == own.amounts())
        })
    }

    /// Whether the `other` amounts have each of these that is set. At a resize, and in its dry run, the API server fills in amounts
    /// that are unset (`mergePodResourceRequirements`, kubernetes `plugin/pkg/admission/limitranger`; `DefaultPodLevelResources`,
    /// `pkg/api/pod/util.go`).
    pub fn are_in(&self, other: &Self) -> bool {
        self.iter().all(|(of, own)| {
            other.get(of).is_none_or(|other| {
                let mut pairs = own.amounts().into_iter().zip(other.amounts());
                pairs.all(|(own, other)| own == 0 || own == other)
            })
        })
    }
}

/// The amounts of these containers alone.
impl FromIterator<NamedRequirements> for PodAmounts {
    fn from_iter<T: IntoIterator<Item = NamedRequirements>>(containers: T) -> Self {
        let containers = containers.into_iter().collect();
        Self { containers, pod: None }
    }
}

impl From<Vec<NamedRequirements>> for PodAmounts {
    fn from(mut containers: Vec<NamedRequirements>) -> Self {
        let pod = containers.extract_if(.., |named| named.name.is_empty()).last();
        let pod = pod.map(|named| Box::new(named.resources));
        Self { containers, pod }
    }
}

impl From<PodAmounts> for Vec<NamedRequirements> {
    fn from(PodAmounts { mut containers, pod }: PodAmounts) -> Self {
        containers.extend(pod.map(|pod| NamedRequirements::new("", *pod)));
        containers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_in_those_that_were_filled_in() {
        let amounts = |list: &str| -> PodAmounts { serde_json::from_str(&format!("[{list}]")).unwrap() };
        let own = amounts(r#"{"name":"app","requests":{"cpu":"100m"}},{"name":"","requests":{"memory":"1Gi"}}"#);
        let filled_in = amounts(
            r#"{"name":"app","requests":{"cpu":"100m"},"limits":{"memory":"1Gi"}},{"name":"","requests":{"memory":"1Gi"},"limits":{"memory":"2Gi"}}"#,
        );
        assert!(own.are_in(&filled_in) && !filled_in.are_in(&own));
        let other = amounts(r#"{"name":"app","requests":{"cpu":"200m"}}"#);
        assert!(!own.are_in(&other));
    }

    #[test]
    fn files_have_the_pod_last_and_without_a_name() {
        let list = r#"[{"name":"app","requests":{"cpu":"100m"},"limits":{}},{"name":"","requests":{},"limits":{"memory":"1Gi"}}]"#;
        let amounts: PodAmounts = serde_json::from_str(list).unwrap();
        let names: Vec<_> = amounts.iter().map(|(of, _)| of).collect();
        assert_eq!(names, [Some("app"), None]);
        assert_eq!(
            amounts.pod.as_ref().unwrap().limits.get(Resource::Memory),
            Some(1 << 30)
        );
        assert_eq!(serde_json::to_string(&amounts).unwrap(), list);
    }

    #[test]
    fn amounts_are_found_by_container() {
        let amounts = |list: &str| -> PodAmounts { serde_json::from_str(&format!("[{list}]")).unwrap() };
        let mut own = amounts(
            r#"{"name":"app","limits":{"cpu":"100m","memory":"1Ki"}},{"name":"side","limits":{"cpu":"200m"}},{"name":"","limits":{"cpu":"300m"}}"#,
        );
        assert_eq!(own.limit("app", Resource::Cpu), Some(100));
        assert_eq!(own.limit("app", Resource::Memory), Some(1024));
        assert_eq!(own.limit("side", Resource::Cpu), Some(200));
        assert_eq!(own.limit("other", Resource::Cpu), None);
        let unlimited = amounts(r#"{"name":"app","limits":{"cpu":"0"}}"#);
        assert_eq!(unlimited.limit("app", Resource::Cpu), None);
        assert_eq!(own.get(None).unwrap().limits.get(Resource::Cpu), Some(300));
        own.get_mut(Some("side")).unwrap().lift(Resource::Cpu, 250);
        assert_eq!(
            (own.limit("app", Resource::Cpu), own.limit("side", Resource::Cpu)),
            (Some(100), Some(250))
        );
        assert!(!own.is_empty() && PodAmounts::NONE.is_empty() && !amounts(r#"{"name":""}"#).is_empty());
    }

    #[test]
    fn equal_amounts_are_the_same_however_written() {
        let amounts = |list: &str| -> PodAmounts { serde_json::from_str(&format!("[{list}]")).unwrap() };
        let limited = amounts(r#"{"name":"app","limits":{"cpu":"1"}}"#);
        for (other, same) in [
            (
                r#"{"name":"app","requests":{"cpu":"1","memory":"0"},"limits":{"cpu":"1000m"}}"#,
                true,
            ),
            (r#"{"name":"side","limits":{"cpu":"2"}}"#, true),
            (
                r#"{"name":"app","requests":{"cpu":"500m"},"limits":{"cpu":"1"}}"#,
                false,
            ),
            (r#"{"name":"app","limits":{"cpu":"2"}}"#, false),
        ] {
            assert_eq!(limited.same(&amounts(other)), same, "{other}");
        }
    }
}
