//! What pods are to say of themselves at the API server.

use jiff::Timestamp;

use super::Coordinator;
use crate::agent::applied::{APPLIED, Applied, object, says};
use crate::agent::entry::Entry;
use crate::kubernetes::PodRef;
use crate::plan::resize;

impl Coordinator {
    /// Notes every pod that says something else than it is to say. Nothing is noted while nothing is to be written.
    pub(super) fn note_applied(&self, now: Timestamp) {
        let Some(applied) = &self.applied else { return };
        let writes = self.options.annotate && !self.options.observe_only;
        let entries = self.entries.values().filter(|_| writes);
        applied.note(entries.filter_map(|entry| self.due_to_say(entry, now)).collect());
    }

    /// A pod that says something else than it is to say, and that.
    fn due_to_say(&self, entry: &Entry, now: Timestamp) -> Option<(PodRef, Option<String>)> {
        let kubelet_says = self.resizer.is_some() && resize::speaks(&entry.pod);
        let wanted = says(entry, kubelet_says, now)?;
        let is = entry.pod.metadata.annotations.get(APPLIED);
        (is != wanted.as_ref()).then_some(())?;
        Some((object(&entry.pod)?, wanted))
    }

    /// Why pods do not say what is applied to them.
    pub(super) fn applied_problems(&self) -> Vec<String> {
        self.applied.as_ref().map_or_else(Vec::new, Applied::problems)
    }
}
