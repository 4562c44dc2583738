//! From who lives on the node to who needs a pass.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::mpsc;

use super::guarding::raise_floors;
use super::unnoted::take_over;
use super::{Coordinator, Refreshed};
use crate::actuate::Node;
use crate::agent::entry::Entry;
use crate::agent::state::SavedPod;
use crate::decide::{PodDecision, StaticManagers};
use crate::model::{Cause, Reason};

impl Coordinator {
    pub(super) fn take_refreshed(&mut self, refreshed: Refreshed) {
        let managers = self.managers();
        self.take_node(refreshed.node);
        self.inventory = refreshed.inventory;
        if self.node_problems != refreshed.problems {
            for problem in &refreshed.problems {
                tracing::warn!("{problem}");
            }
            self.node_problems = refreshed.problems;
        }
        if self.node.is_some() && self.seen_view {
            self.starting.clear();
        }
        if self.managers() != managers || self.view.pods.len() != self.entries.len() {
            // Of pods of one name, the one that lives counts, and that may be another one now.
            self.decide_all(Timestamp::now());
        }
        self.match_live();
        let back = refreshed.runtime_answers && !self.runtime_answers;
        self.runtime_answers = refreshed.runtime_answers;
        if back {
            self.pay_debts();
        }
    }

    /// The sources know nothing yet. If that is because something is wrong with them, what stood when the agent before
    /// ended goes on to stand; else it waits for what they say, which may be something else.
    pub(super) fn take_silence(&mut self, problems: Vec<String>) {
        self.source_problems = problems;
        if self.source_problems.is_empty() || self.seen_view {
            return;
        }
        for saved in self.saved.values() {
            let Some(pod) = &saved.described else { continue };
            let entry = || Box::new(Entry::new(Arc::clone(pod), PodDecision::undecided(pod)));
            self.entries.entry(pod.full_name()).or_insert_with(entry);
        }
        if !self.entries.is_empty() {
            let problem = "until the sources answer, what stood when the agent last ended counts";
            self.source_problems.push(problem.to_owned());
        }
        self.match_live();
    }

    /// Plans from now on for this node, by the rules of the kubelet that the Node object states. Where that changes what
    /// pods should hold, nobody else has changed it.
    pub(super) fn take_node(&mut self, node: Option<Arc<Node>>) {
        // A view without the Node object does not take back what an earlier one stated.
        let before = self.node.as_ref().and_then(|before| before.known_kubelet());
        let stated = self.view.kubelet_version().or(before);
        let node = node.map(|node| node.with_stated_kubelet(stated));
        let earlier = std::mem::replace(&mut self.node, node);
        self.unwatched |= earlier.is_some() != self.node.is_some();
        if let (Some(earlier), Some(node)) = (earlier, &self.node)
            && earlier.traits != node.traits
        {
            if earlier.traits.kubelet != node.traits.kubelet {
                // One whose version was only assumed has not changed.
                self.resizer
                    .start_over(earlier.known_kubelet().map(|_| Timestamp::now()));
            }
            tracing::info!(kubelet = %node.traits.kubelet, "the node is another than before: every pod is planned anew");
            self.unwatched = true;
            for entry in self.entries.values_mut().filter(|entry| !entry.standing.is_empty()) {
                entry.start_over();
                entry.ask(Cause::Sweep, true);
            }
        }
    }

    /// What the kubelet assigns to pods for good.
    pub(super) fn managers(&self) -> StaticManagers {
        self.node.as_ref().map(|node| node.managers).unwrap_or_default()
    }

    /// Has the node looked at.
    pub(super) fn ask_refresh(&self) {
        // A full channel means that a look at the node is due anyway.
        if let Err(mpsc::error::TrySendError::Closed(())) = self.refresh.try_send(()) {
            tracing::debug!("the node is not looked at any more: shutting down");
        }
    }

    /// The runtime is back: tells it at once what it is owed.
    fn pay_debts(&mut self) {
        for entry in self.entries.values_mut().filter(|entry| entry.owed) {
            entry.reset_retries();
            entry.ask(Cause::Retry, true);
        }
    }

    /// Tells every entry where its pod lives now, and asks for a pass where that is news.
    pub(super) fn match_live(&mut self) {
        let mut decide_again = false;
        for (key, entry) in &mut self.entries {
            let live = self.inventory.find(&entry.pod);
            let earlier = std::mem::replace(&mut entry.live, live.cloned());
            if earlier.as_ref() == live {
                continue;
            }
            self.unwatched = true;
            let first = earlier.is_none();
            entry.handles = None;
            let before = earlier.as_deref();
            entry.shrinking.live_changed(before, live.map(AsRef::as_ref));
            entry.start_over();
            self.watching.forget(key);
            let Some(live) = live else {
                entry.leave();
                continue;
            };
            if entry.settle_at(&live.id) {
                // What stood for the earlier pod is none of this one's business.
                decide_again = true;
                self.unsaved = true;
            }
            let mut cause = Cause::ContainerStarted;
            let saved = self.saved.get(&live.id.uid).is_some_and(|saved| saved.pod == live.id);
            if first
                && saved
                && let Some(saved) = self.saved.remove(&live.id.uid)
            {
                decide_again = true;
                cause = Cause::AgentStarted;
                adopt(entry, saved);
            }
            // Without a loan, what an intact state file says of the pod is all there is to know.
            let lost = self.restore_problem.is_some();
            if let Some(lent) = self.marked.take(&live.id.uid).filter(|lent| lost || !lent.is_empty()) {
                take_over(entry, &lent, self.node.as_deref(), Timestamp::now());
                cause = Cause::AgentStarted;
                self.unsaved = true;
            }
            if matches!(cause, Cause::AgentStarted) {
                raise_floors(&self.floors, &live.id.uid, &entry.standing.leases);
            }
            if !entry.standing.is_empty() {
                entry.ask(cause, true);
            }
        }
        if decide_again {
            // What was in force before the restart is what bounds and ratios are measured against.
            self.decide_all(Timestamp::now());
        }
    }
}

/// Takes over what stood before the agent was restarted. An operator's override always counts; of recommendations the
/// newer one does.
fn adopt(entry: &mut Entry, saved: SavedPod) {
    entry.standing.overridden = saved.standing.overridden;
    entry.standing.returning = saved.standing.returning;
    entry.shrinking.remember(saved.regrets, Timestamp::now());
    entry.standing.leases = saved.standing.leases;
    entry.standing.origin = saved.standing.origin;
    entry.standing.asked = saved.standing.asked;
    entry.standing.asking = saved.standing.asking;
    entry.standing.scope = saved.standing.scope;
    let unasked = entry.decision.reason == Reason::SourcesSilent;
    let not_followed = entry.decision.change().is_none() || entry.too_much.is_some();
    if unasked || (entry.decision.vpa.is_some() && not_followed) {
        entry.standing.recommended = saved.standing.recommended;
    } else if let (Some(now), Some(before)) = (&mut entry.standing.recommended, saved.standing.recommended)
        && now.vpa == before.vpa
    {
        // Decide again against what was in force: a difference too small to act on stays unacted on.
        *now = before;
    }
}
