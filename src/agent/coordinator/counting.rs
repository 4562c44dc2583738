//! How everything stands, for the metrics and for what pods say of themselves.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Coordinator;
use crate::agent::metrics::ProblemKind;

/// Everything is counted at most this often.
const COUNT_AGAIN: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Counts how pods stand and what is degraded, and has pods say what is applied to them, at most once a second.
    pub(super) fn count(&mut self, now: Instant) {
        if now < self.next_count {
            return;
        }
        self.next_count = now + COUNT_AGAIN;
        let state = self.restore_problem.iter().chain(&self.saver.problem()).count();
        self.metrics.problems(&[
            (
                ProblemKind::Manifests,
                self.source_problems.len() + self.applied_problems().len(),
            ),
            (ProblemKind::Node, self.node_problems.len()),
            (ProblemKind::State, state),
            (ProblemKind::Kills, self.kill_problems().count()),
        ]);
        let entries = self.entries.values().map(|entry| &**entry);
        self.metrics.standing(entries, Timestamp::now());
        self.note_applied(Timestamp::now());
    }
}
