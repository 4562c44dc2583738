//! From what sources say to what stands.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::Coordinator;
use crate::actuate::Cause;
use crate::agent::entry::Entry;
use crate::agent::standing::Recommended;
use crate::decide::{self, Action, Reason};
use crate::objects::Pod;
use crate::sources::NodeView;

impl Coordinator {
    pub(super) fn take_view(&mut self, view: Arc<NodeView>, problems: Vec<String>) {
        self.view = view;
        self.seen_view = true;
        self.metrics.source_problems(problems.len());
        self.source_problems = problems;
        self.decide_all(Timestamp::now());
        self.match_live();
        // Manifests may name containers that nobody could name before.
        self.ask_refresh();
    }

    /// Decides for every pod of the view; those that left the view are no longer ours.
    pub(super) fn decide_all(&mut self, now: Timestamp) {
        let view = Arc::clone(&self.view);
        let index = decide::Index::new(&view.owners, &view.vpas, &view.limit_ranges, &view.hpas);
        let mut gone: BTreeMap<String, Entry> = std::mem::take(&mut self.entries);
        for pod in &view.pods {
            let key = pod.full_name();
            let known = gone
                .remove(&key)
                .filter(|entry| entry.pod.cgroup_uid() == pod.cgroup_uid());
            let in_force = known
                .as_ref()
                .and_then(|entry| entry.standing.recommended.as_ref())
                .map(|standing| &*standing.targets);
            let decision = decide::decide_pod(pod, &index, now, &self.options.decide, in_force);
            if known
                .as_ref()
                .is_none_or(|entry| entry.decision.reason != decision.reason)
            {
                self.metrics.decided(&decision);
            }
            let entry = match known {
                Some(mut entry) => {
                    entry.pod = unchanged_or_new(&entry.pod, pod);
                    entry.decision = decision;
                    entry
                }
                None => Entry::new(Arc::new(pod.clone()), decision),
            };
            self.entries.insert(key, entry);
        }
        for (key, entry) in gone {
            self.watching.forget(&key);
            if !entry.standing.is_empty() {
                tracing::info!(
                    pod = key,
                    "no longer described by any source; its values are left as they are"
                );
            }
        }
        self.follow_decisions(now);
    }

    /// Turns decisions into what stands, and asks for passes where that changed.
    pub(super) fn follow_decisions(&mut self, now: Timestamp) {
        for entry in self.entries.values_mut() {
            let decision = &entry.decision;
            let before = entry.standing.targets(&entry.pod);
            match (&decision.vpa, decision.action()) {
                (Some(vpa), Action::Resize) => {
                    entry.standing.recommended = Some(Recommended {
                        vpa: vpa.clone(),
                        at: now,
                        targets: decision.containers.clone(),
                    });
                }
                (_, Action::None | Action::Skip) if lets_go(decision.reason) => entry.standing.recommended = None,
                (_, Action::Resize | Action::None | Action::Skip) => {}
            }
            let after = entry.standing.targets(&entry.pod);
            if before == after {
                continue;
            }
            self.unsaved = true;
            entry.foreign.forget();
            entry.holds = false;
            entry.reset_retries();
            if let (Some(vpa), Some(_)) = (entry.decision.vpa.clone(), &after) {
                entry.ask(Cause::Recommendation { vpa }, true, None);
            }
        }
    }
}

/// Whether a decision ends what an earlier recommendation left standing: nobody asks for these values any more.
const fn lets_go(reason: Reason) -> bool {
    matches!(reason, Reason::NoVpa | Reason::NotActedOn | Reason::Ignored)
}

/// Keeps the old allocation when a pod did not change.
fn unchanged_or_new(old: &Arc<Pod>, new: &Pod) -> Arc<Pod> {
    if **old == *new {
        Arc::clone(old)
    } else {
        Arc::new(new.clone())
    }
}
