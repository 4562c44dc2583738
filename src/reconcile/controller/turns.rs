//! Pods of one workload lower their memory limits in turns.

use jiff::Timestamp;

use super::Controller;
use crate::plan::shrink::{Progress, next_turns};
use crate::reconcile::pod::{PodInput, PodState};

impl Controller {
    /// Lets pods whose turn it is lower their memory limits: of one workload a few at a time, and none while one of them
    /// has its own limits back.
    pub(super) fn give_turns(&mut self, now: Timestamp) {
        let progress = |state: &PodState| state.live.as_ref().and_then(|_| state.shrink.progress(now));
        let waits = |state: &PodState| progress(state) == Some(Progress::Waits);
        if !self.pods.values().any(waits) {
            return;
        }
        let workload = |state: &PodState| {
            let recommended = state.desired.recommended.as_ref();
            let vpa = recommended.and_then(|recommended| recommended.vpa.clone());
            (state.pod.metadata.namespace.clone(), vpa)
        };
        let pods = self.pods.iter();
        let (keys, pods): (Vec<_>, Vec<_>) = pods
            .filter_map(|(key, state)| Some((key.clone(), (workload(state), progress(state)?))))
            .unzip();
        for index in next_turns(&pods) {
            self.apply(&keys[index], PodInput::TurnGiven);
        }
    }
}
