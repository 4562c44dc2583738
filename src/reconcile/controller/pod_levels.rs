//! Pods whose cgroup was left below their containers, managed or not.

use super::{Controller, Event};
use crate::actuate::raise_pod_level;
use crate::model::BoundPod;
use crate::plan::LowPodLevel;
use crate::reconcile::pod::{PodInput, PodState};

impl Controller {
    /// Tells every pod whose cgroup is low, or no longer.
    pub(super) fn take_low_pod_levels(&mut self) {
        let repair = self.options.repair_pod_level && !self.options.observe_only;
        let all = &self.node.found.low_pod_levels;
        let low = |state: &PodState| all.get(&state.live.as_ref()?.id.uid).copied();
        let concerned: Vec<_> = self
            .pods
            .iter()
            .map(|(key, state)| (key.clone(), low(state), state.low_pod_level))
            .filter(|(_, low, known)| low.is_some() || known.is_some())
            .collect();
        for (key, low, _) in concerned {
            self.apply(&key, PodInput::PodLevelRead { low, repair });
        }
    }

    /// Raises the memory limit of a pod's cgroup, in no task that others wait for.
    pub(super) fn raise_pod_level(&self, key: &str, bound: BoundPod, low: LowPodLevel) {
        let Some(node) = self.node.known() else { return };
        let (key, events) = (key.to_owned(), self.passes.events());
        tokio::spawn(async move {
            let uid = bound.live().id.uid.clone();
            let raised = tokio::task::spawn_blocking(move || raise_pod_level(&node, bound.live(), low.needs)).await;
            match raised {
                Ok(raised) => {
                    if events.send(Event::PodLevelRaised(key, uid, raised)).await.is_err() {
                        tracing::debug!("the limit of a pod was raised after the agent ended");
                    }
                }
                Err(panic) => tracing::error!(pod = key, %panic, "internal error"),
            }
        });
    }

    /// The pods whose cgroup is low, one sentence each.
    pub(super) fn pod_level_problems(&self) -> impl Iterator<Item = String> {
        self.pods.values().filter_map(|state| {
            let (name, low) = (state.pod.full_name(), state.low_pod_level?);
            Some(format!(
                "pod {name}: {low}, so that the kernel kills in it before any of them reaches its own limit \
                 (kubernetes/kubernetes#138760); repairPodLevel: true has it raised"
            ))
        })
    }
}
