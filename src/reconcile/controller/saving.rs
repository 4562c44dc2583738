//! What survives a restart: what an earlier agent left, and what this one saves.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::Controller;
use crate::guard::LimitFiles;
use crate::model::objects::{Pod, PodId};
use crate::reconcile::pod::{PodState, Pods};
use crate::reconcile::store::{Restored, SavedPod, StateWriter};

/// The state file, as the controller has it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(super) writer: StateWriter,
    /// Whether a pod's saved state has changed since it was saved.
    pub(super) dirty: bool,
    /// What was loaded at the start and has not met its pod yet.
    unmatched: BTreeMap<String, SavedPod>,
    /// Why not everything could be loaded.
    restore_problem: Option<String>,
    /// Pods that are written to.
    pub(super) limit_files: Arc<LimitFiles>,
}

impl Store {
    pub(crate) fn new(writer: StateWriter, restored: Restored, limit_files: Arc<LimitFiles>) -> Self {
        Self {
            writer,
            dirty: false,
            unmatched: restored.pods,
            restore_problem: restored.problem,
            limit_files,
        }
    }

    /// Leaves what is desired to be saved, if it has changed since, or was not saved.
    pub(super) fn save(&mut self, pods: &Pods) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let mut saved = self.unmatched.clone();
        let of_pods = pods.values().filter_map(PodState::saved);
        saved.extend(of_pods.map(|of_pod| (of_pod.pod.uid.clone(), of_pod)));
        self.writer.save(saved);
    }

    /// Why not everything survives a restart.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        self.restore_problem.clone().into_iter().chain(self.writer.problem())
    }

    /// The pods for which something was saved, as they were described last.
    pub(super) fn described(&self) -> Vec<Arc<Pod>> {
        let described = self.unmatched.values().filter_map(|saved| saved.described.clone());
        described.collect()
    }

    /// What was saved for this pod, which is with the pod from now on.
    pub(super) fn take_saved(&mut self, id: &PodId) -> Option<SavedPod> {
        let saved = self.unmatched.get(&id.uid)?;
        (saved.pod == *id).then(|| self.unmatched.remove(&id.uid)).flatten()
    }
}

impl Controller {
    /// Forgets what was saved for pods that no source describes any more, and marks of pods that are gone. Not
    /// before the sources have spoken.
    pub(super) fn forget_saved(&mut self) {
        self.store.dirty |= self.store.writer.problem().is_some();
        if !self.sources.seen {
            return;
        }
        let before = self.store.unmatched.len();
        let pods = &self.pods;
        self.store.unmatched.retain(|_, saved| {
            // What was saved for an earlier pod of the name is not this one's.
            let state = pods.get(&saved.pod.to_string());
            state.is_some_and(|state| state.pod.describes(&saved.pod))
        });
        self.store.dirty |= self.store.unmatched.len() != before;
        let uids: HashSet<&str> = self
            .node
            .found
            .inventory
            .pods()
            .map(|pod| pod.id.uid.as_str())
            .collect();
        self.store.limit_files.forget_all_but(|uid| uids.contains(uid));
    }
}
