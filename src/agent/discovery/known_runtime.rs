//! The runtime that was found, and who it is now.

use std::sync::Arc;

use crate::model::objects::PodId;
use crate::runtime::{ContainerRuntime, Cri, Listing, RuntimeError, RuntimeInfo};

/// The runtime that was found.
#[derive(Debug)]
pub(super) struct KnownRuntime {
    pub(super) cri: Arc<Cri>,
    pub(super) info: RuntimeInfo,
    /// It was lost, or may have been: whoever answers now may be an upgrade of it.
    pub(super) doubted: bool,
}

impl KnownRuntime {
    pub(super) fn new(cri: &Arc<Cri>, info: RuntimeInfo) -> Self {
        Self {
            cri: Arc::clone(cri),
            info,
            doubted: false,
        }
    }

    pub(super) fn name_and_version(&self) -> String {
        format!("{} {}", self.info.name, self.info.version)
    }

    /// Its pods and their running containers; in doubt, after it has said who it is.
    pub(super) async fn list(&mut self) -> Result<(Vec<PodId>, Listing), RuntimeError> {
        if self.doubted {
            let info = self.cri.info().await?;
            if info != self.info {
                tracing::info!(
                    runtime = info.name,
                    version = info.version,
                    "the runtime is another one now"
                );
                self.info = info;
            }
            self.doubted = false;
        }
        Ok((self.cri.list_pods().await?, self.cri.list_containers().await?))
    }
}
