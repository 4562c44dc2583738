//! OOM kills, from the watcher ([`crate::oom::watch`]) to the log and to operators.
//!
//! The thread of the watcher finds kills and runs the [`recorder`], which stores them in the log ([`crate::report::log`]) with
//! the checkpoint after them, then publishes them ([`published`]).

pub(crate) mod published;
mod recorder;

use std::sync::Arc;
use std::thread::JoinHandle;

use futures::future::FutureExt;
use prometheus_client::registry::Registry;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::published::{KillMetrics, Published};
use self::recorder::{PATIENCE, Recorder};
use crate::config::Config;
use crate::control::proto;
use crate::model::ChangeRecord;
use crate::observe::audit::Audit;
use crate::oom::watch::{Links, NodePods, start};
use crate::reconcile::controller::Event;
use crate::report::Reporter;
use crate::report::log::Recovered;

pub(super) use published::Kills;

/// So many batches may wait for the recorder; kills that do not fit wait with the watcher.
const BATCHES: usize = 64;

/// The channels and handles that watching for kills needs.
#[derive(Debug)]
pub(super) struct OomLinks {
    pub(super) node_pods: watch::Receiver<Arc<NodePods>>,
    pub(super) records: broadcast::Receiver<Arc<ChangeRecord>>,
    pub(super) changes: broadcast::Sender<Arc<proto::Change>>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) stop: CancellationToken,
    pub(super) audit: Audit,
    pub(super) reporter: Reporter,
    /// The content of the log from an earlier agent.
    pub(super) recovered: Recovered,
}

/// The running watcher, as the rest of the agent sees it.
#[derive(Debug)]
pub(super) struct KillWatch {
    pub(super) kills: Kills,
    pub(super) problems: Vec<watch::Receiver<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl KillWatch {
    /// Waits for the end of the thread. The caller has cancelled [`OomLinks::stop`].
    pub(super) async fn finish(self) {
        let join = move || self.thread.map(JoinHandle::join).transpose();
        if !matches!(tokio::task::spawn_blocking(join).await, Ok(Ok(_))) {
            tracing::error!("the watcher of kills panicked");
        }
    }
}

/// Starts to watch for kills. An agent that cannot watch does everything else, and reports a problem.
pub(super) fn watch_for_kills(config: &Config, links: OomLinks, registry: &mut Registry) -> KillWatch {
    let (batches, taken) = mpsc::channel(BATCHES);
    let (problems, watcher_problems) = watch::channel(Vec::new());
    let published = Published {
        kills: watch::Sender::new(links.recovered.latest.into()),
        changes: links.changes,
        events: links.events,
        metrics: KillMetrics::register(registry),
        audit: links.audit,
    };
    let kills = published.kills.subscribe();
    let reporter = links.reporter;
    let store = move |reports, checkpoint| {
        let reporter = reporter.clone();
        async move { reporter.commit(reports, Some(checkpoint)).await }.boxed()
    };
    let recorder = Recorder {
        store,
        patience: PATIENCE,
        published,
        node_pods: links.node_pods.clone(),
        problem: watch::Sender::default(),
    };
    let recorder_problems = recorder.problem.subscribe();
    let watching = start(
        Links {
            kmsg: config.kmsg.clone(),
            node_name: config.node_name.clone(),
            checkpoint: links.recovered.checkpoint,
            pods: links.node_pods,
            changes: links.records,
            batches,
            problems: problems.clone(),
            stop: links.stop,
        },
        recorder.run(taken),
    );
    let thread = match watching {
        Ok(thread) => Some(thread),
        Err(error) => {
            tracing::error!(%error, "kills are not seen");
            problems.send_replace(vec![format!("kills are not seen: {error}")]);
            None
        }
    };
    KillWatch {
        kills,
        problems: vec![watcher_problems, recorder_problems],
        thread,
    }
}
