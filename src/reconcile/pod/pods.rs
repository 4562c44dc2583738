//! All pods of the node, by namespace and name, and in queues by what they wait for. Outside of this file only
//! [`PodState::apply`] can change a pod's state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

use super::{Effect, Now, PodInput, PodState};
use crate::decide::PodDecision;
use crate::model::objects::{Pod, PodKey};

#[derive(Debug, Default)]
pub(crate) struct Pods {
    pods: BTreeMap<PodKey, Box<PodState>>,
    timers: BTreeSet<(Instant, PodKey)>,
    dates: BTreeSet<(Timestamp, PodKey)>,
    active: BTreeSet<PodKey>,
    /// The pods that other inputs than decisions have reached since their latest decision.
    pub(crate) changed: BTreeSet<PodKey>,
}

impl Pods {
    pub(crate) fn get(&self, key: &PodKey) -> Option<&PodState> {
        self.pods.get(key).map(|state| &**state)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&PodKey, &PodState)> {
        self.pods.iter().map(|(key, state)| (key, &**state))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &PodState> + Clone {
        self.pods.values().map(|state| &**state)
    }

    pub(crate) fn keys_of(&self, fits: impl Fn(&PodState) -> bool) -> Vec<PodKey> {
        let fitting = self.iter().filter(|(_, state)| fits(state));
        fitting.map(|(key, _)| key.clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }

    /// When the first input from the clock is due, on the monotonic clock and on the wall clock.
    pub(crate) fn wakes_at(&self) -> (Option<Instant>, Option<Timestamp>) {
        let (timer, date) = (self.timers.first(), self.dates.first());
        (timer.map(|(at, _)| *at), date.map(|(at, _)| *at))
    }

    /// The pods for which an input from the clock is due.
    pub(crate) fn woken(&self, now: Instant, wall: Timestamp) -> BTreeSet<PodKey> {
        let timers = self.timers.iter().take_while(|(at, _)| *at <= now);
        let dates = self.dates.iter().take_while(|(at, _)| *at <= wall);
        let keys = timers.map(|(_, key)| key).chain(dates.map(|(_, key)| key));
        keys.cloned().collect()
    }

    /// The pods with a pass that may begin, and those that lower memory limits or wait for their turn to.
    pub(crate) fn active(&self) -> impl Iterator<Item = (&PodKey, &PodState)> {
        self.active.iter().filter_map(move |key| Some((key, self.get(key)?)))
    }

    /// Applies an input to one pod, and drops the pod after the last input; without a pod of that name there are no effects.
    pub(crate) fn apply(&mut self, key: &PodKey, input: PodInput, now: Now) -> Vec<Effect> {
        use PodInput::{Decided, Described, Followed, Removed, StillNoRoom};
        let is_last = matches!(input, Removed);
        let is_decision = matches!(input, Described(_) | Decided { .. } | Followed { .. } | StillNoRoom(_));
        let Some(state) = self.pods.get_mut(key) else {
            return Vec::new();
        };
        if !is_decision {
            self.changed.insert(key.clone());
        }
        let before = state.wakes_at();
        let effects = state.apply(input, now);
        let after = state.wakes_at();
        requeue(&mut self.timers, key, [before.0, after.0]);
        requeue(&mut self.dates, key, [before.1, after.1]);
        if state.work.is_due(now.instant) || state.shrink.progress(now.wall).is_some() {
            self.active.insert(key.clone());
        } else {
            self.active.remove(key);
        }
        if is_last {
            self.pods.remove(key);
        }
        effects
    }

    /// Adds a pod, unless there is one of that name.
    pub(crate) fn add(&mut self, pod: &Arc<Pod>) {
        let new = || Box::new(PodState::new(Arc::clone(pod), PodDecision::undecided(pod)));
        self.pods.entry(pod.key()).or_insert_with(new);
    }
}

/// Moves a pod from one time in a queue to another.
fn requeue<T: Ord>(queue: &mut BTreeSet<(T, PodKey)>, key: &PodKey, [before, after]: [Option<T>; 2]) {
    if before != after {
        if let Some(before) = before {
            queue.remove(&(before, key.clone()));
        }
        queue.extend(after.map(|at| (at, key.clone())));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{Bytes, Reason};
    use crate::sources::parse_manifests;

    const POD: &str = "
kind: Pod
metadata: {name: web, namespace: shop, uid: u1}
spec: {containers: [{name: app, resources: {limits: {memory: 64Mi}}}]}
";

    fn active(pods: &Pods) -> Vec<PodKey> {
        pods.active().map(|(key, _)| key.clone()).collect()
    }

    #[test]
    fn a_pod_is_queued_until_its_time_has_come() {
        let (mut pods, now, delay) = (Pods::default(), Now::read(), Duration::from_secs(20));
        let later = Now {
            instant: now.instant + delay,
            wall: now.wall + delay,
            ..now
        };
        let view = parse_manifests("test", POD).unwrap().view;
        let (pod, key) = (&view.pods[0], &view.pods[0].key());
        pods.add(pod);
        let mut decision = Box::new(PodDecision::undecided(pod));
        decision.boosts.next_end = Some(later.wall);
        decision.reason = Reason::OutOfBounds;
        decision.amounts.containers[0].resources.limits.memory = Some(Bytes::new(128 << 20));
        let took = Duration::ZERO;
        pods.apply(key, PodInput::Decided { decision, took }, now);
        assert_eq!(pods.wakes_at(), (None, Some(later.wall)));
        assert!(pods.woken(now.instant, now.wall).is_empty());
        assert_eq!(pods.woken(now.instant, later.wall), BTreeSet::from([key.clone()]));

        let followed = PodInput::Followed {
            refused: None,
            cause: None,
            delay,
        };
        pods.apply(key, followed, now);
        assert_eq!((pods.wakes_at().0, active(&pods)), (Some(later.instant), vec![]));
        assert_eq!(pods.woken(later.instant, now.wall), BTreeSet::from([key.clone()]));
        pods.apply(key, PodInput::TimePassed, later);
        assert_eq!((pods.wakes_at().0, active(&pods)), (None, vec![key.clone()]));

        pods.apply(key, PodInput::Removed, later);
        assert_eq!((pods.len(), pods.wakes_at()), (0, (None, None)));
        assert!(pods.active.is_empty());
    }

    #[test]
    fn a_pod_that_waits_for_its_turn_is_active() {
        let (mut pods, now, took) = (Pods::default(), Now::read(), Duration::ZERO);
        let view = parse_manifests("test", POD).unwrap().view;
        let (pod, key) = (&view.pods[0], &view.pods[0].key());
        pods.add(pod);
        let mut decision = Box::new(PodDecision::undecided(pod));
        decision.reason = Reason::OutOfBounds;
        decision.amounts.containers[0].resources.limits.memory = Some(Bytes::new(32 << 20));
        pods.apply(key, PodInput::Decided { decision, took }, now);
        assert!(active(&pods).is_empty());
        let followed = PodInput::Followed {
            refused: None,
            cause: None,
            delay: Duration::from_secs(20),
        };
        pods.apply(key, followed, now);
        assert!(!pods.get(key).unwrap().work.is_due(now.instant));
        assert_eq!(active(&pods), std::slice::from_ref(key));
    }
}
