//! Which pods' files were written, and when to look at them.

use std::time::Duration;

use tokio::time::Instant;

use super::Controller;
use crate::reconcile::pod::PodState;
use crate::reconcile::watching::Written;

/// Writes come in bursts, and a pass is one: wait for the end of the burst before looking at what was written.
const SETTLE: Duration = Duration::from_millis(20);

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
