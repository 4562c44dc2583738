//! Reports into the spool, for whoever is configured to get them, and into the file that operators' list is read from.
//!
//! The spool comes first: an agent that ends between the two finds the same kills again, under the same ids, and the spool
//! knows them already. The checkpoint that is gone on from is the file's. One thing can make that another id: the kernel's
//! log could not be read before the end and can be read after it, so that a kill known by its counter alone is found by its
//! record. Receivers then get the kills of that one commit twice; the other order would lose them.

use std::sync::Arc;

use super::file::FileLedger;
use crate::oom::OomReport;
use crate::oom::ledger::{Ledger, LedgerError};
use crate::report::ReporterHandle;

/// Both.
#[derive(Debug)]
pub(super) struct Delivered {
    pub(super) file: FileLedger,
    pub(super) reporter: ReporterHandle,
}

impl Ledger for Delivered {
    async fn commit(&mut self, reports: &[Arc<OomReport>], checkpoint: &[u8]) -> Result<(), LedgerError> {
        if !reports.is_empty() && self.reporter.has_destinations() {
            let reports = reports.iter().map(|report| OomReport::clone(report)).collect();
            let stored = self.reporter.commit(reports, None).await;
            stored.map_err(|error| LedgerError(format!("the spool of reports: {error}")))?;
        }
        self.file.commit(reports, checkpoint).await
    }
}
