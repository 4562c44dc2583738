//! All pods of the node, by namespace and name. Outside of this file only [`PodState::apply`] can change a pod's state.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Effect, Now, PodInput, PodState};
use crate::decide::PodDecision;
use crate::model::objects::{Pod, PodKey};

#[derive(Debug, Default)]
pub(crate) struct Pods(BTreeMap<PodKey, Box<PodState>>);

impl Pods {
    pub(crate) fn get(&self, key: &PodKey) -> Option<&PodState> {
        self.0.get(key).map(|state| &**state)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&PodKey, &PodState)> {
        self.0.iter().map(|(key, state)| (key, &**state))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &PodState> + Clone {
        self.0.values().map(|state| &**state)
    }

    pub(crate) fn keys_of(&self, fits: impl Fn(&PodState) -> bool) -> Vec<PodKey> {
        let fitting = self.0.iter().filter(|(_, state)| fits(state));
        fitting.map(|(key, _)| key.clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Applies an input to one pod, and drops the pod after the last input; without a pod of that name there are no effects.
    pub(crate) fn apply(&mut self, key: &PodKey, input: PodInput, now: Now) -> Vec<Effect> {
        let is_last = matches!(input, PodInput::Removed);
        let state = self.0.get_mut(key);
        let effects = state.map_or_else(Vec::new, |state| state.apply(input, now));
        if is_last {
            self.0.remove(key);
        }
        effects
    }

    /// Adds a pod, unless there is one of that name.
    pub(crate) fn add(&mut self, pod: &Arc<Pod>) {
        let new = || Box::new(PodState::new(Arc::clone(pod), PodDecision::undecided(pod)));
        self.0.entry(pod.key()).or_insert_with(new);
    }
}
