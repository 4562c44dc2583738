//! Where reports of kills are kept until they are delivered, together with how far the watcher is.

use std::sync::Arc;

use super::report::OomReport;

/// Keeps reports. One commit keeps all of its reports and its checkpoint, or nothing of it, whenever the agent ends.
pub trait Ledger: Send + 'static {
    /// Keeps these reports and the checkpoint that counts them as told. A report with an id that is kept already is the
    /// same report, and not kept twice.
    fn commit(
        &mut self,
        reports: &[Arc<OomReport>],
        checkpoint: &[u8],
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;
}

/// A commit that was not kept.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LedgerError(pub String);
