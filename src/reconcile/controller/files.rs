//! Which pods' files were written, and when to look at them.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::Controller;
use crate::actuate::PodHandles;
use crate::reconcile::pod::PodState;
use crate::reconcile::watching::{Watching, Written};

/// Writes come in bursts, and a pass is one: wait for the end of the burst before looking at what was written.
const SETTLE: Duration = Duration::from_millis(20);

/// The watch of all files, and the pods whose files were written lately.
#[derive(Debug)]
pub(super) struct Files {
    watching: Watching,
    written: BTreeSet<String>,
    due: Option<Instant>,
}

impl Files {
    pub(super) fn new() -> Self {
        Self {
            watching: Watching::new(),
            written: BTreeSet::new(),
            due: None,
        }
    }

    /// Waits until somebody writes. Cancel-safe.
    pub(super) async fn written(&mut self) -> Written {
        self.watching.written().await
    }

    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The pods whose files are to be looked at now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<String> {
        let due = self.due.take_if(|at| *at <= now).is_some();
        let written = due.then(|| std::mem::take(&mut self.written));
        written.into_iter().flatten().collect()
    }

    /// Watches a pod's files; returns whether that is new.
    pub(super) fn watch(&mut self, key: &str, handles: &PodHandles) -> bool {
        self.watching.watch(key, handles)
    }

    pub(super) fn forget(&mut self, key: &str) {
        self.watching.forget(key);
    }
}

impl Controller {
    /// Files were written: by somebody else, or by a pass. They are looked at once the writer is done.
    pub(super) fn note_written(&mut self, written: Written) {
        match written {
            Written::Pods(pods) => self.files.written.extend(pods),
            Written::PerhapsAll => {
                let all = self.pods.keys_of(|state| !state.desired.is_empty());
                self.files.written.extend(all);
            }
        }
        if self.files.written.is_empty() {
            return;
        }
        // With a temporary limit somebody may be about to run out of memory: the rest of the burst is looked at afterwards.
        let urgent = |key: &String| self.pods.get(key).is_some_and(PodState::has_temporary_memory);
        let wait = if self.files.written.iter().any(urgent) {
            Duration::ZERO
        } else {
            SETTLE
        };
        let at = Instant::now() + wait;
        self.files.due = Some(self.files.due.map_or(at, |known| known.min(at)));
    }
}
