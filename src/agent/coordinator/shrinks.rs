//! What follows after memory limits were lowered.

use jiff::Timestamp;

use super::Coordinator;
use crate::actuate::Cause;
use crate::actuate::shrink::Verdict;
use crate::agent::shrinking::{Ended, WatchId};
use crate::observe::metrics::ShrinkOutcome;

impl Coordinator {
    /// A watch ended. Where something went wrong, a pass raises the limits again, and they stay so for a while.
    pub(super) fn take_watched(&mut self, id: &WatchId, verdict: Verdict) {
        let Some(entry) = self.entries.get_mut(&id.key) else {
            return;
        };
        let now = Timestamp::now();
        match entry.shrinking.watch_ended(id.number, verdict, now) {
            None => {}
            Some(Ended::Kept) => {
                self.metrics.shrunk(ShrinkOutcome::Kept);
                self.unsaved = true;
            }
            Some(Ended::Undone(why)) => {
                tracing::warn!(pod = id.key, why, again = ?entry.shrinking.again(), "a shrink is undone");
                self.metrics.shrunk(ShrinkOutcome::Undone);
                entry.start_over();
                entry.ask(Cause::Regret { why }, true);
                self.unsaved = true;
            }
        }
    }

    /// Tries again what was undone long enough ago.
    pub(super) fn try_shrinks_again(&mut self, now: Timestamp) {
        for entry in self.entries.values_mut() {
            if entry.shrinking.is_due(now) {
                entry.start_over();
                entry.ask(Cause::Retry, true);
            }
        }
    }
}
