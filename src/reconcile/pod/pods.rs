//! All pods of the node, by namespace and name. Outside of this file only [`PodState::apply`] can change a pod's state.
//!
//! After each input an index has what the pod waits for: its alarms, whether a pass is due, whether it takes part in turns. So
//! the controller finds the pods that something is due for without a look at the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

use super::{Effect, Now, PodInput, PodState};
use crate::decide::PodDecision;
use crate::model::objects::Pod;

#[derive(Debug, Default)]
pub(crate) struct Pods {
    states: BTreeMap<String, Box<PodState>>,
    alarms: Alarms<Instant>,
    wall_alarms: Alarms<Timestamp>,
    due: BTreeSet<String>,
    shrinking: BTreeSet<String>,
}

impl Pods {
    pub(crate) fn get(&self, key: &str) -> Option<&PodState> {
        self.states.get(key).map(|state| &**state)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &PodState)> {
        self.states.iter().map(|(key, state)| (key, &**state))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &PodState> + Clone {
        self.states.values().map(|state| &**state)
    }

    /// The keys of the pods that fit.
    pub(crate) fn keys_of(&self, fits: impl Fn(&PodState) -> bool) -> Vec<String> {
        let fitting = self.states.iter().filter(|(_, state)| fits(state));
        fitting.map(|(key, _)| key.clone()).collect()
    }

    /// The pods for which a pass is due that may begin, and which run here.
    pub(crate) fn due(&self) -> impl Iterator<Item = (&String, &PodState)> {
        self.due.iter().filter_map(|key| Some((key, self.get(key)?)))
    }

    /// The pods whose memory limits come down, wait for their turn, or went up again after harm.
    pub(crate) fn shrinking(&self) -> impl Iterator<Item = (&String, &PodState)> {
        self.shrinking.iter().filter_map(|key| Some((key, self.get(key)?)))
    }

    /// The pods that wait for a time that has come.
    pub(crate) fn woken(&self, now: Instant, wall: Timestamp) -> BTreeSet<String> {
        let woken = self.alarms.up_to(now).chain(self.wall_alarms.up_to(wall));
        woken.cloned().collect()
    }

    /// The next time that a pod waits for, on each clock.
    pub(crate) fn wakes_at(&self) -> (Option<Instant>, Option<Timestamp>) {
        (self.alarms.next(), self.wall_alarms.next())
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// Applies an input to one pod, and drops the pod after the last input; without a pod of that name there are no effects.
    pub(crate) fn apply(&mut self, key: &str, input: PodInput, now: Now) -> Vec<Effect> {
        let is_last = matches!(input, PodInput::Removed);
        let state = self.states.get_mut(key);
        let effects = state.map_or_else(Vec::new, |state| state.apply(input, now));
        if is_last {
            self.states.remove(key);
        }
        self.index(key, now);
        effects
    }

    /// Adds a pod, unless there is one of that name.
    pub(crate) fn add(&mut self, pod: &Arc<Pod>) {
        let new = || Box::new(PodState::new(Arc::clone(pod), PodDecision::undecided(pod)));
        self.states.entry(pod.full_name()).or_insert_with(new);
    }

    /// Updates what the pod waits for.
    fn index(&mut self, key: &str, now: Now) {
        let state = self.states.get(key);
        let (at, wall_at) = state.map(|state| state.wakes_at(now.instant)).unwrap_or_default();
        self.alarms.set(key, at);
        self.wall_alarms.set(key, wall_at);
        let lives = state.filter(|state| state.live.is_some());
        let is_due = lives.is_some_and(|state| state.work.is_due(now.instant));
        let shrinks = lives.is_some_and(|state| state.shrink.progress(now.wall).is_some());
        for (pods, is_in) in [(&mut self.due, is_due), (&mut self.shrinking, shrinks)] {
            if !is_in {
                pods.remove(key);
            } else if !pods.contains(key) {
                pods.insert(key.to_owned());
            }
        }
    }
}

/// The next time that each pod waits for.
#[derive(Debug)]
struct Alarms<T> {
    in_order: BTreeSet<(T, String)>,
    of_pod: BTreeMap<String, T>,
}

impl<T> Default for Alarms<T> {
    fn default() -> Self {
        Self {
            in_order: BTreeSet::new(),
            of_pod: BTreeMap::new(),
        }
    }
}

impl<T: Ord + Copy> Alarms<T> {
    fn set(&mut self, key: &str, at: Option<T>) {
        if self.of_pod.get(key) == at.as_ref() {
            return;
        }
        if let Some((key, before)) = self.of_pod.remove_entry(key) {
            self.in_order.remove(&(before, key));
        }
        if let Some(at) = at {
            self.in_order.insert((at, key.to_owned()));
            self.of_pod.insert(key.to_owned(), at);
        }
    }

    fn next(&self) -> Option<T> {
        self.in_order.first().map(|(at, _)| *at)
    }

    fn up_to(&self, now: T) -> impl Iterator<Item = &String> {
        let woken = self.in_order.iter().take_while(move |(at, _)| *at <= now);
        woken.map(|(_, key)| key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::objects::PodId;
    use crate::model::{Cause, CgroupPath, LivePod};

    fn live() -> Arc<LivePod> {
        Arc::new(LivePod {
            id: PodId {
                uid: "u1".to_owned(),
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
            },
            path: CgroupPath::new("/kubepods/podu1").unwrap(),
            containers: <_>::default(),
        })
    }

    #[test]
    fn the_index_has_what_a_pod_waits_for() {
        let (mut pods, now) = (Pods::default(), Now::read());
        let pod = Arc::new(Pod::default());
        let key = pod.full_name();
        pods.add(&pod);
        let state = pods.states.get_mut(&key).unwrap();
        let later = Duration::from_secs(20);
        state.work.request_pass_after(Cause::AgentStarted, later, now.instant);
        state.live = Some(live());
        pods.apply(&key, PodInput::FilesWritten, now);
        assert_eq!(pods.wakes_at(), (Some(now.instant + later), None));
        assert!(pods.due().next().is_none() && pods.woken(now.instant, now.wall).is_empty());

        let then = Now {
            instant: now.instant + later,
            ..now
        };
        assert!(pods.woken(then.instant, then.wall).contains(&key));
        pods.apply(&key, PodInput::TimePassed, then);
        assert_eq!(pods.due().count(), 1);
        assert_eq!(pods.wakes_at(), (None, None));

        pods.states.get_mut(&key).unwrap().live = None;
        pods.apply(&key, PodInput::FilesWritten, then);
        assert_eq!(pods.due().count(), 0, "it runs nowhere");

        pods.states.get_mut(&key).unwrap().shrink.retry_at = Some(now.wall);
        pods.apply(&key, PodInput::FilesWritten, then);
        assert_eq!(pods.wakes_at(), (None, Some(now.wall)));
        pods.apply(&key, PodInput::Removed, then);
        assert!(pods.woken(then.instant, then.wall).is_empty() && pods.len() == 0);
    }
}
