//! Whether a pod's files and its runtime hold what they should, and who else changes them. Pure.

use crate::actuate::ForeignWriters;

/// What the latest pass left.
#[derive(Debug, Clone, Default)]
pub(crate) struct DriftState {
    /// Whether the latest pass left every file as it should be: then a file that differs was changed by somebody else.
    pub(crate) in_sync: bool,
    /// Whether the runtime's stored spec could not be updated yet.
    pub(crate) runtime_sync_pending: bool,
    /// Who else changes its values.
    pub(crate) writers: ForeignWriters,
    /// Why the latest pass did not simply succeed; empty where it did.
    pub(crate) last_reason: String,
}

impl DriftState {
    /// What should be there is something else now.
    pub(crate) fn forget(&mut self) {
        self.writers.forget();
        self.in_sync = false;
    }
}
