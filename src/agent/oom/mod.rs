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
use tokio::sync::{mpsc, watch};

use self::published::{KillMetrics, Published, ToController};
use self::recorder::{PATIENCE, Recorder};
use super::start::Channels;
use crate::config::Config;
use crate::oom::watch::{Links, NodePods, start};
use crate::report::Reporter;
use crate::report::log::Recovered;

pub(super) use published::Kills;

/// So many batches may wait for the recorder; kills that do not fit wait with the watcher.
const BATCHES: usize = 64;

/// The running watcher, as the rest of the agent sees it.
#[derive(Debug)]
pub(super) struct KillWatch {
    pub(super) kills: Kills,
    pub(super) problems: Vec<watch::Receiver<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl KillWatch {
    /// Waits for the end of the thread. The caller has cancelled [`Channels::stop`].
    pub(super) async fn finish(self) {
        let join = move || self.thread.map(JoinHandle::join).transpose();
        if !matches!(tokio::task::spawn_blocking(join).await, Ok(Ok(_))) {
            tracing::error!("the watcher of kills panicked");
        }
    }
}

/// Starts to watch for kills. An agent that cannot watch does everything else, and reports a problem. The log has the
/// content from an earlier agent.
pub(super) fn watch_for_kills(
    config: &Config,
    channels: &Channels,
    node_pods: watch::Receiver<Arc<NodePods>>,
    reporter: Reporter,
    recovered: Recovered,
    registry: &mut Registry,
) -> KillWatch {
    let (batches, taken) = mpsc::channel(BATCHES);
    let (problems, watcher_problems) = watch::channel(Vec::new());
    let published = Published {
        kills: watch::Sender::new(recovered.latest.into()),
        changes: channels.changes.clone(),
        controller: ToController::new(channels.events.clone()),
        metrics: KillMetrics::register(registry),
        audit: channels.audit.clone(),
    };
    let kills = published.kills.subscribe();
    let store = move |reports, checkpoint| {
        let reporter = reporter.clone();
        async move { reporter.commit(reports, Some(checkpoint)).await }.boxed()
    };
    let recorder = Recorder {
        store,
        patience: PATIENCE,
        published,
        node_pods: node_pods.clone(),
        problem: watch::Sender::default(),
    };
    let recorder_problems = recorder.problem.subscribe();
    let watching = start(
        Links {
            kmsg: config.kmsg.clone(),
            node_name: config.node_name.clone(),
            checkpoint: recovered.checkpoint,
            pods: node_pods,
            changes: channels.records.listen(),
            batches,
            problems: problems.clone(),
            stop: channels.stop.clone(),
        },
        recorder.run(taken),
    );
    let thread = watching.inspect_err(|error| {
        tracing::error!(%error, "OOM kills are not reported");
        problems.send_replace(vec![format!("OOM kills are not reported: {error}")]);
    });
    KillWatch {
        kills,
        problems: vec![watcher_problems, recorder_problems],
        thread: thread.ok(),
    }
}
