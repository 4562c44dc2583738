//! Kills for want of memory, from the watcher ([`crate::oom::watch`]) to everybody who is told.
//!
//! The watcher's thread finds kills and hands them to the [`keeper`], on the same thread: it has them kept ([`crate::oom::ledger`]),
//! then tells of them: the list for operators, watchers at the socket, metrics, the log and the audit log. What is told is kept, so
//! that a restart tells nothing twice; a disk that takes nothing, or takes its time, delays that by a second at most.

mod clerk;
mod delivered;
mod file;
mod keeper;
mod published;
mod view;

use std::path::PathBuf;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::delivered::Delivered;
use self::file::FileLedger;
use self::keeper::{Keeper, Patience};
use self::published::Published;
use crate::actuate::ChangeRecord;
use crate::control::proto;
use crate::observe::audit::Audit;
use crate::observe::metrics::KillMetrics;
use crate::oom::watch::{Links, Residents, WatchOptions, start};
use crate::report::ReporterHandle;

pub(super) use published::Kills;
pub(super) use view::{is_of, kill};

/// Batches that may wait for the keeper; what does not fit waits with the watcher.
const BATCHES: usize = 64;

/// What is configured.
#[derive(Debug)]
pub(super) struct OomOptions {
    pub(super) kmsg: PathBuf,
    pub(super) node_name: String,
    pub(super) state_dir: PathBuf,
}

/// What it is connected to.
#[derive(Debug)]
pub(super) struct OomLinks {
    pub(super) residents: watch::Receiver<Arc<Residents>>,
    pub(super) records: broadcast::Receiver<Arc<ChangeRecord>>,
    /// Where operators watch.
    pub(super) changes: broadcast::Sender<Arc<proto::Change>>,
    pub(super) stop: CancellationToken,
    /// Where they are written down beside changes.
    pub(super) audit: Audit,
    /// Who delivers reports to where they are configured to go.
    pub(super) reporter: ReporterHandle,
}

/// What others see of it.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) kills: Kills,
    /// What is degraded.
    pub(super) problems: Vec<watch::Receiver<Vec<String>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watched {
    /// Waits for the end of the thread, which must have been told to stop.
    pub(super) async fn finish(self) {
        let Some(thread) = self.thread else { return };
        match tokio::task::spawn_blocking(move || thread.join()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => tracing::error!("the watcher of kills panicked"),
            Err(error) => tracing::error!(%error, "the watcher of kills is not waited for"),
        }
    }
}

/// Starts to watch. An agent that cannot watch still does everything else, and says so.
pub(super) fn watch_for_kills(options: OomOptions, links: OomLinks, registry: &mut Registry) -> Watched {
    let (file, restored) = FileLedger::open(&options.state_dir);
    let ledger = Delivered {
        file,
        reporter: links.reporter,
    };
    let (batches, taken) = mpsc::channel(BATCHES);
    let (problems, watcher_problems) = watch::channel(Vec::new());
    let (published, kills) = Published::new(
        KillMetrics::register(registry),
        links.changes,
        links.audit,
        restored.reports,
    );
    let (keeper, keeper_problems) = Keeper::new(ledger, Patience::default(), published, links.residents.clone());
    let watching = start(
        WatchOptions {
            kmsg: options.kmsg,
            node_name: options.node_name,
            checkpoint: restored.checkpoint,
        },
        Links {
            residents: links.residents,
            changes: links.records,
            batches,
            problems: problems.clone(),
            stop: links.stop,
        },
        keeper.run(taken),
    );
    let thread = match watching {
        Ok(thread) => Some(thread),
        Err(error) => {
            tracing::error!(%error, "kills are not seen");
            problems.send_replace(vec![format!("kills are not seen: {error}")]);
            None
        }
    };
    let (opening, opening_problem) = watch::channel(restored.problem.into_iter().collect());
    drop(opening);
    Watched {
        kills,
        problems: vec![watcher_problems, keeper_problems, opening_problem],
        thread,
    }
}
