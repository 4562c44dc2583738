//! What stands, to be saved; operators are answered once it is.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Coordinator, answer};
use crate::agent::state::SavedPod;

impl Coordinator {
    /// Leaves what stands to be saved, if it has changed since. Comes last: containers do not wait for the disk.
    pub(super) fn save(&mut self) {
        if !std::mem::take(&mut self.unsaved) {
            return;
        }
        let standing = self.entries.values().filter(|entry| !entry.standing.is_empty());
        let mut pods = self.saved.clone();
        pods.extend(standing.filter_map(|entry| {
            let pod = entry.id()?;
            Some((
                pod.uid.clone(),
                SavedPod {
                    pod,
                    described: Some(Arc::clone(&entry.pod)),
                    standing: entry.standing.clone(),
                    regrets: entry.shrinking.regrets().clone(),
                },
            ))
        }));
        self.saver.save(pods);
    }

    /// Answers operators once what stands now would survive the agent: a change that was confirmed ends when it was to end.
    pub(super) fn answer_operators(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let answers = std::mem::take(&mut self.answers);
        let settled = self.saver.settled();
        tokio::spawn(async move {
            settled.await;
            for (reply, record) in answers {
                answer(reply, Ok(record));
            }
        });
    }

    /// Forgets what was saved for pods that no source describes any more, and marks of pods that are gone.
    pub(super) fn forget_saved(&mut self) {
        let entries = &self.entries;
        let before = self.saved.len();
        self.saved
            .retain(|_, saved| entries.contains_key(&saved.pod.to_string()));
        self.unsaved |= self.saved.len() != before;
        if self.seen_view {
            let uids: HashSet<&str> = self.inventory.pods().map(|pod| pod.id.uid.as_str()).collect();
            self.marked.forget_all_but(|uid| uids.contains(uid));
        }
    }
}
