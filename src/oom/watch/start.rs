//! Starting the thread: what it is given, and what it is connected to.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::pod_names::NodePods;
use super::watcher::Watcher;
use crate::model::ChangeRecord;
use crate::oom::kmsg::{BootId, KmsgError};
use crate::oom::report::OomReport;

/// What to watch, and from where on.
#[derive(Debug, Clone)]
pub struct WatchOptions {
    pub kmsg: PathBuf,
    /// The node's name, for reports.
    pub node_name: String,
    /// What the agent before this one left.
    pub checkpoint: Option<Vec<u8>>,
}

/// What the thread is connected to.
#[derive(Debug)]
pub struct Links {
    /// Who lives on the node.
    pub residents: watch::Receiver<Arc<NodePods>>,
    pub changes: broadcast::Receiver<Arc<ChangeRecord>>,
    /// Where reports go. When it is closed, the thread ends.
    pub batches: mpsc::Sender<Batch>,
    /// What is degraded, one sentence each.
    pub problems: watch::Sender<Vec<String>>,
    pub stop: CancellationToken,
}

/// Reports, and what to keep with them.
#[derive(Debug, Default)]
pub struct Batch {
    /// The reports, oldest first; none where only the checkpoint is news.
    pub reports: Vec<OomReport>,
    /// What a later [`start`](start()) goes on from, once these reports are safe.
    pub checkpoint: Vec<u8>,
}

/// The thread could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No boot id or clock: no kill could be told apart from one of another boot.
    #[error(transparent)]
    Boot(#[from] KmsgError),
    /// No thread or event loop could be made.
    #[error("cannot start the thread that watches for kills: {0}")]
    Thread(#[from] io::Error),
}

/// Starts the thread, which also runs `taker`: whoever takes the batches, so that the way there leads past
/// nobody else. The thread ends when it was told to and `taker` has ended. A checkpoint that cannot be read is
/// reported, and watching begins anew.
pub fn start(
    options: WatchOptions,
    links: Links,
    taker: impl Future<Output = ()> + Send + 'static,
) -> Result<JoinHandle<()>, StartError> {
    let boot = BootId::current()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let watcher = Watcher::new(options, boot, links);
    let thread = thread::Builder::new().name("oom".to_owned()).spawn(move || {
        runtime.block_on(async {
            let taker = tokio::spawn(taker);
            watcher.run().await;
            if let Err(error) = taker.await {
                tracing::error!(%error, "reports of kills were not taken to the end");
            }
        });
    })?;
    Ok(thread)
}
