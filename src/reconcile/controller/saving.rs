//! The state that an earlier agent saved, and the state that this one saves.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::Controller;
use crate::guard::LimitFiles;
use crate::model::objects::{Pod, PodId};
use crate::reconcile::pod::{PodState, Pods};
use crate::reconcile::store::{Restored, SavedPod, StateWriter};

/// The controller's side of the state file.
#[derive(Debug)]
pub(crate) struct Store {
    pub(super) writer: StateWriter,
    /// Whether the state has changed since the latest save.
    pub(super) dirty: bool,
    /// Saved pods that discovery has not found yet.
    unmatched: BTreeMap<String, SavedPod>,
    /// Why the saved state could not be loaded.
    restore_problem: Option<String>,
    /// The files that name the pods this agent has written to.
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

    /// Saves the state, if it has changed.
    pub(super) fn save(&mut self, pods: &Pods) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let mut saved = self.unmatched.clone();
        let of_pods = pods.values().filter_map(PodState::saved);
        saved.extend(of_pods.map(|of_pod| (of_pod.pod.uid.clone(), of_pod)));
        self.writer.save(saved);
    }

    /// Why the state may not survive a restart.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        self.restore_problem.clone().into_iter().chain(self.writer.problem())
    }

    /// The latest objects of the saved pods.
    pub(super) fn described(&self) -> Vec<Arc<Pod>> {
        let described = self.unmatched.values().filter_map(|saved| saved.described.clone());
        described.collect()
    }

    /// Takes the saved state of this pod.
    pub(super) fn take_saved(&mut self, id: &PodId) -> Option<SavedPod> {
        let saved = self.unmatched.get(&id.uid)?;
        (saved.pod == *id).then(|| self.unmatched.remove(&id.uid)).flatten()
    }
}

impl Controller {
    /// Forgets saved pods that no source describes, and the files of pods that are gone. Not before every source has answered.
    pub(super) fn forget_saved(&mut self) {
        self.store.dirty |= self.store.writer.problem().is_some();
        if !self.sources.seen {
            return;
        }
        let before = self.store.unmatched.len();
        let pods = &self.pods;
        self.store.unmatched.retain(|_, saved| {
            // The state of an earlier pod with the same name is not this pod's.
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
