//! What pods are to say of themselves at the API server.

use jiff::Timestamp;

use super::Coordinator;
use crate::agent::applied::{APPLIED, Applied, object, outlived, says};
use crate::agent::entry::Entry;
use crate::kubernetes::Annotations;
use crate::plan::resize;

impl Coordinator {
    /// Notes every pod that says something else than it is to say. Nothing is noted while nothing is to be written.
    pub(super) fn note_applied(&self, now: Timestamp) {
        let Some(applied) = &self.applied else { return };
        let entries = self.entries.values().filter(|_| !self.options.observe_only);
        let due = entries.filter_map(|entry| Some((object(&entry.pod)?, self.due_to_say(entry, now))));
        applied.note(due.filter(|(_, annotations)| !annotations.is_empty()).collect());
    }

    /// What a pod is to say that it does not.
    fn due_to_say(&self, entry: &Entry, now: Timestamp) -> Annotations {
        let kubelet_says = self.resizer.get().is_some() && resize::supports_in_place_resize(&entry.pod);
        let boosts = outlived(entry).filter(|_| kubelet_says).map(|name| (name, None));
        let wanted = says(entry, kubelet_says, now).filter(|_| self.options.annotate);
        let is = entry.pod.metadata.annotations.get(APPLIED);
        let wanted = wanted.filter(|wanted| is != wanted.as_ref());
        boosts
            .chain(wanted.map(|wanted| (APPLIED.to_owned(), wanted)))
            .collect()
    }

    /// Why pods do not say what is applied to them.
    pub(super) fn applied_problems(&self) -> Vec<String> {
        self.applied.as_ref().map_or_else(Vec::new, Applied::problems)
    }
}
