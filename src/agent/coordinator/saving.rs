//! What stands, to be saved; operators are answered once it is.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Coordinator, answer};
use crate::agent::entry::Entry;
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
            let pod = entry.last_lived.clone()?;
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

    /// Forgets what was saved for pods that no source describes any more, and marks of pods that are gone. Not before the
    /// sources have spoken.
    pub(super) fn forget_saved(&mut self) {
        if !self.seen_view {
            return;
        }
        let entries = &self.entries;
        let before = self.saved.len();
        self.saved.retain(|_, saved| {
            entries
                .get(&saved.pod.to_string())
                .is_some_and(|entry| is_of(saved, entry))
        });
        self.unsaved |= self.saved.len() != before;
        let uids: HashSet<&str> = self.inventory.pods().map(|pod| pod.id.uid.as_str()).collect();
        self.marked.forget_all_but(|uid| uids.contains(uid));
    }
}

/// Whether it was saved for this pod, and not for another that had the name before. A manifest may name no UID.
fn is_of(saved: &SavedPod, entry: &Entry) -> bool {
    entry.pod.describes(&saved.pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::PodDecision;
    use crate::model::objects::{Pod, PodId};

    #[test]
    fn what_was_saved_for_an_earlier_pod_of_the_name_is_not_this_ones() {
        let entry = |uid: &str| {
            let mut pod = Pod::default();
            pod.metadata.uid = uid.to_owned();
            pod.metadata.namespace = "shop".to_owned();
            pod.metadata.name = "db-0".to_owned();
            let decision = PodDecision::undecided(&pod);
            Entry::new(Arc::new(pod), decision)
        };
        let saved = SavedPod {
            pod: PodId {
                uid: "u1".to_owned(),
                namespace: "shop".to_owned(),
                name: "db-0".to_owned(),
            },
            described: None,
            standing: Default::default(),
            regrets: Default::default(),
        };
        assert!(is_of(&saved, &entry("u1")) && is_of(&saved, &entry("")));
        assert!(!is_of(&saved, &entry("u2")));
    }
}
