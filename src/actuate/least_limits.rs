//! The least memory limits that every writer keeps. The guard can raise them within a millisecond.
//!
//! The guard writes before any decision, while a pass that does not know of it may run. Every pass applies the least
//! limits when it works out the values of files and stored specs, checks them again before it updates the runtime, and after each
//! write raises a limit again that the guard has raised meanwhile. So no pass undoes a growth of the guard. The temporary limits
//! themselves are in the pod's state.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use crate::model::objects::PodUid;
use crate::model::{Bytes, ContainerName, PodAmounts, Resource};

/// The least memory limits of one pod's containers, by name.
pub(super) type OfPod = BTreeMap<ContainerName, Bytes>;

/// The least memory limits of containers. The guard, the controller and all passes share them.
#[derive(Debug, Default)]
pub struct LeastLimits(Mutex<Parts>);

/// The two parts of the least limits. The higher limit of a container counts.
#[derive(Debug, Default, Clone)]
struct Parts {
    /// The temporary limits in the state of each pod, by UID.
    temporary: BTreeMap<PodUid, OfPod>,
    /// The limits that the guard gave and whose report the controller does not have yet, with UID and container.
    given: BTreeSet<(PodUid, ContainerName, Bytes)>,
}

impl LeastLimits {
    /// From now on no writer sets this container's limit below `to`, nor below an earlier least limit.
    pub fn raise(&self, uid: &PodUid, container: &str, to: Bytes) {
        let mut parts = self.0.lock();
        parts.given.insert((uid.clone(), container.into(), to));
    }

    /// Ends a raise: the pod's state has the limit now, or no state will have it. Keeps raises to other limits: an earlier one
    /// may not be reported yet, a later one has happened meanwhile.
    pub fn end_raise(&self, uid: &PodUid, container: &str, to: Bytes) {
        let mut parts = self.0.lock();
        let all = &mut parts.given;
        all.retain(|(of, name, given)| (of, name.as_str(), *given) != (uid, container, to));
    }

    /// Replaces the temporary limits of these pods.
    pub fn set(&self, temporary: BTreeMap<PodUid, BTreeMap<ContainerName, Bytes>>) {
        let mut parts = self.0.lock();
        parts.temporary.extend(temporary);
        parts.temporary.retain(|_, limits| !limits.is_empty());
    }

    /// The least limit of one container.
    pub fn get(&self, uid: &PodUid, container: &str) -> Option<Bytes> {
        self.of(uid).remove(container)
    }

    /// Lifts the targets of a pod's containers to their least limits, and returns those. A request that equals its limit rises
    /// with it: the pod's QoS class may depend on that.
    pub fn lift(&self, uid: &PodUid, targets: &mut PodAmounts) -> OfPod {
        let least_limits = self.of(uid);
        for (name, least) in &least_limits {
            if let Some(target) = targets.get_mut(Some(name)) {
                target.lift(Resource::Memory, least.get());
            }
        }
        least_limits
    }

    /// The least limits of one pod.
    pub(super) fn of(&self, uid: &PodUid) -> OfPod {
        let parts = self.0.lock();
        let mut limits = parts.temporary.get(uid).cloned().unwrap_or_default();
        for (_, container, given) in parts.given.iter().filter(|(of, ..)| of == uid) {
            let least = limits.entry(container.clone()).or_default();
            *least = (*least).max(*given);
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NamedRequirements, Requirements};

    /// For a simulation that continues in several ways.
    impl Clone for LeastLimits {
        fn clone(&self) -> Self {
            Self(Mutex::new(self.0.lock().clone()))
        }
    }

    const fn mib(mebibytes: u64) -> Bytes {
        Bytes::new(mebibytes << 20)
    }

    #[test]
    fn a_least_limit_rises_until_it_is_replaced() {
        let least_limits = LeastLimits::default();
        let set = |to: Option<u64>| {
            let limits = to.map(|to| ("app".into(), mib(to)));
            least_limits.set([("u".into(), limits.into_iter().collect())].into());
        };
        least_limits.raise(&"u".into(), "app", mib(200));
        least_limits.raise(&"u".into(), "app", mib(100));
        assert_eq!(least_limits.of(&"u".into())["app"], mib(200));
        set(Some(100));
        least_limits.end_raise(&"u".into(), "app", mib(100));
        assert_eq!(least_limits.of(&"u".into())["app"], mib(200), "grown meanwhile");
        set(Some(200));
        least_limits.end_raise(&"u".into(), "app", mib(200));
        assert_eq!(least_limits.of(&"u".into())["app"], mib(200), "the state has it");
        set(Some(150));
        assert_eq!(least_limits.of(&"u".into())["app"], mib(150));
        set(None);
        assert!(least_limits.of(&"u".into()).is_empty());
    }

    #[test]
    fn an_unsaved_limit_ends_in_any_state() {
        let least_limits = LeastLimits::default();
        // The guard raises the limit after its pod has left the view.
        least_limits.set([("u".into(), BTreeMap::new())].into());
        least_limits.raise(&"u".into(), "app", mib(200));
        least_limits.end_raise(&"u".into(), "app", mib(200));
        assert!(least_limits.of(&"u".into()).is_empty());
        // The guard cannot write a limit, while the controller ends the one before.
        let before = [("app".into(), mib(100))].into();
        least_limits.set([("u".into(), before)].into());
        least_limits.raise(&"u".into(), "app", mib(200));
        least_limits.set([("u".into(), BTreeMap::new())].into());
        least_limits.end_raise(&"u".into(), "app", mib(200));
        assert!(least_limits.of(&"u".into()).is_empty());
    }

    #[test]
    fn a_failed_growth_keeps_the_one_before() {
        let least_limits = LeastLimits::default();
        let least = || least_limits.get(&"u".into(), "app");
        // The controller does not have the report of the first growth when the second one fails.
        least_limits.raise(&"u".into(), "app", mib(160));
        least_limits.raise(&"u".into(), "app", mib(200));
        least_limits.end_raise(&"u".into(), "app", mib(200));
        assert_eq!(least(), Some(mib(160)));
        least_limits.end_raise(&"u".into(), "app", mib(160));
        assert_eq!(least(), None);
    }

    #[test]
    fn only_limits_that_are_there_and_lower_are_lifted() {
        let named = |name: &str, request: Option<u64>, limit: Option<u64>| {
            let mut named = NamedRequirements::new(name, Requirements::default());
            named.resources.requests.memory = request.map(mib);
            named.resources.limits.memory = limit.map(mib);
            named
        };
        let mut targets = PodAmounts::from_iter([
            named("app", Some(64), Some(128)),
            named("same", Some(128), Some(128)),
            named("higher", None, Some(512)),
            named("unlimited", Some(64), None),
        ]);
        let least_limits = LeastLimits::default();
        for target in &targets.containers {
            least_limits.raise(&"u".into(), &target.name, mib(200));
        }
        least_limits.lift(&"u".into(), &mut targets);
        let lifted = [
            named("app", Some(64), Some(200)),
            named("same", Some(200), Some(200)),
            named("higher", None, Some(512)),
            named("unlimited", Some(64), None),
        ];
        assert_eq!(targets.containers, lifted);
    }
}
