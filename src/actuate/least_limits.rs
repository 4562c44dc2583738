//! The least memory limits that every writer keeps. The guard can raise them within a millisecond.
//!
//! The guard writes before any decision, while a pass that does not know of it may run. Every pass applies the least
//! limits when it works out the values of files and stored specs, and checks them again before it updates the runtime.
//! So no pass undoes a growth of the guard. The temporary limits themselves are in the pod's state.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::model::{Bytes, NamedRequirements, Resource};

/// The least memory limits of one pod's containers, by name.
pub(super) type OfPod = BTreeMap<String, Bytes>;

/// The least memory limits of containers, by pod UID. The guard, the controller and all passes share them.
#[derive(Debug, Default)]
pub struct LeastLimits(Mutex<BTreeMap<String, OfPod>>);

impl LeastLimits {
    /// From now on no writer sets this container's limit below `to`, nor below an earlier least limit.
    pub fn raise(&self, uid: &str, container: &str, to: Bytes) {
        let mut all = self.lock();
        let least = all.entry(uid.to_owned()).or_default().entry(container.to_owned());
        least.and_modify(|least| *least = to.max(*least)).or_insert(to);
    }

    /// Replaces the least limit `from` by `to`, or removes it. Keeps a least limit other than `from`: the
    /// guard has raised it meanwhile.
    pub fn change(&self, uid: &str, container: &str, from: Option<Bytes>, to: Option<Bytes>) {
        let mut all = self.lock();
        let of_pod = all.entry(uid.to_owned()).or_default();
        if of_pod.get(container).copied() == from {
            of_pod.remove(container);
            of_pod.extend(to.map(|to| (container.to_owned(), to)));
        }
        if of_pod.is_empty() {
            all.remove(uid);
        }
    }

    /// Removes the least limits of a pod.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// The least limit of one container.
    pub fn get(&self, uid: &str, container: &str) -> Option<Bytes> {
        self.lock().get(uid)?.get(container).copied()
    }

    /// Lifts the targets of a pod's containers to their least limits, and returns those. A request that equals its limit rises
    /// with it: the pod's QoS class may depend on that.
    pub fn lift(&self, uid: &str, targets: &mut [NamedRequirements]) -> OfPod {
        let least_limits = self.of(uid);
        for target in targets {
            if let Some(least) = least_limits.get(&target.name) {
                target.resources.lift(Resource::Memory, least.get());
            }
        }
        least_limits
    }

    /// The least limits of one pod.
    pub(super) fn of(&self, uid: &str) -> OfPod {
        self.lock().get(uid).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, OfPod>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn mib(mebibytes: u64) -> Bytes {
        Bytes::new(mebibytes << 20)
    }

    #[test]
    fn a_least_limit_only_rises_until_it_is_changed_by_whoever_knows_it() {
        let least_limits = LeastLimits::default();
        least_limits.raise("u", "app", mib(200));
        least_limits.raise("u", "app", mib(100));
        assert_eq!(least_limits.of("u")["app"], mib(200));
        least_limits.change("u", "app", Some(mib(100)), None);
        assert_eq!(least_limits.of("u")["app"], mib(200), "grown meanwhile");
        least_limits.change("u", "app", Some(mib(200)), Some(mib(150)));
        least_limits.change("u", "app", Some(mib(150)), None);
        assert!(least_limits.of("u").is_empty());
    }

    #[test]
    fn only_limits_that_are_there_and_lower_are_lifted() {
        let named = |name: &str, request: Option<u64>, limit: Option<u64>| {
            let mut named = NamedRequirements {
                name: name.to_owned(),
                resources: crate::model::Requirements::default(),
            };
            named.resources.requests.memory = request.map(mib);
            named.resources.limits.memory = limit.map(mib);
            named
        };
        let mut targets = [
            named("app", Some(64), Some(128)),
            named("same", Some(128), Some(128)),
            named("higher", None, Some(512)),
            named("unlimited", Some(64), None),
        ];
        let least_limits = LeastLimits::default();
        for target in &targets {
            least_limits.raise("u", &target.name, mib(200));
        }
        least_limits.lift("u", &mut targets);
        let lifted = [
            named("app", Some(64), Some(200)),
            named("same", Some(200), Some(200)),
            named("higher", None, Some(512)),
            named("unlimited", Some(64), None),
        ];
        assert_eq!(targets, lifted);
    }
}
