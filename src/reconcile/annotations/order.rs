//! The order of patches. Pure.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::WantedAnnotations;
use crate::model::objects::PodId;

/// When recently patched pods may be patched again. A pod that still needs its annotations then was changed by another
/// client, or its patch was lost.
#[derive(Debug, Default)]
pub(crate) struct PatchOrder {
    next: BTreeMap<PodId, Instant>,
}

impl PatchOrder {
    /// The next pod to patch, and when.
    pub(crate) fn next(&mut self, notes: &WantedAnnotations, now: Instant) -> Option<(Instant, PodId)> {
        self.next.retain(|_, next| *next > now);
        let due = |pod| self.next.get(pod).copied().unwrap_or(now);
        let first = notes.keys().map(|pod| (due(pod), pod)).min()?;
        Some((first.0, first.1.clone()))
    }

    /// Keeps a pod from being patched before `next`.
    pub(crate) fn not_before(&mut self, pod: PodId, next: Instant) {
        self.next.insert(pod, next);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::kubernetes::Annotations;

    const SOON: Duration = Duration::from_secs(5);

    fn pod(name: &str) -> PodId {
        PodId {
            uid: name.to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        }
    }

    fn notes(names: &[&str]) -> WantedAnnotations {
        names.iter().map(|name| (pod(name), Annotations::new())).collect()
    }

    #[test]
    fn a_pod_is_patched_at_once_and_then_not_for_a_while() {
        let (mut order, now) = (PatchOrder::default(), Instant::now());
        let noted = notes(&["web"]);
        assert_eq!(order.next(&noted, now), Some((now, pod("web"))));
        order.not_before(pod("web"), now + SOON);
        assert_eq!(order.next(&noted, now), Some((now + SOON, pod("web"))));
        let later = now + SOON;
        assert_eq!(order.next(&noted, later), Some((later, pod("web"))));
    }

    #[test]
    fn a_pod_that_has_to_wait_does_not_keep_the_others_waiting() {
        let (mut order, now) = (PatchOrder::default(), Instant::now());
        let noted = notes(&["api", "web"]);
        order.not_before(pod("api"), now + SOON);
        assert_eq!(order.next(&noted, now), Some((now, pod("web"))));
    }

    #[test]
    fn nothing_is_kept_of_pods_that_are_gone() {
        let (mut order, now) = (PatchOrder::default(), Instant::now());
        order.not_before(pod("web"), now + SOON);
        assert_eq!(order.next(&WantedAnnotations::new(), now + SOON), None);
        assert!(order.next.is_empty());
    }
}
