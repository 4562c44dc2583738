//! The agent from its start to its end. It stops its tasks in this order: the controller, the control socket, the watcher of
//! kills, the receivers, the audit log.

use std::fs::File;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::oom::KillWatch;
use super::start::start;
use super::state_directory::{StateDirectory, on_disk};
use crate::config::{Config, MEND_API_VERSION, RunArguments};
use crate::observe::log::LogFilter;
use crate::reconcile::controller::Event;
use crate::report::Reporter;

/// The longest wait for the disk at the end of the agent, for each log.
pub(super) const DISK_GRACE: Duration = Duration::from_secs(5);
/// The longest wait for the end of an earlier agent: a pod that is deleted by force overlaps with its successor.
const OTHERS_END: Duration = Duration::from_secs(5);

/// The tasks of an agent that has started, as far as its end waits for them.
pub(super) struct Running {
    pub(super) events: mpsc::Sender<Event>,
    pub(super) controller: JoinHandle<()>,
    pub(super) control: JoinHandle<()>,
    pub(super) oom: KillWatch,
    pub(super) reporter: Reporter,
    pub(super) audit_writer: Option<JoinHandle<()>>,
    /// Of the state directory. No other process writes limits or the state before the end of this one.
    pub(super) lock: File,
}

/// Runs the agent until SIGTERM or SIGINT, and reloads its configuration on SIGHUP. It finishes the steps in progress, and leaves
/// limits as they are.
///
/// Errors: the agent cannot start. It has written nothing then.
pub async fn run(mut config: Config, arguments: RunArguments, log: LogFilter) -> Result<()> {
    let (interrupted, mut hangup) = interruption()?;
    if let Some(file) = arguments.outdated_file() {
        tracing::warn!(file = %file.display(), "the configuration is of vscaled.io/v1alpha1: {MEND_API_VERSION}");
    }
    let directory = config.state_dir.clone();
    let opening = on_disk(move || {
        let state = StateDirectory::open(&directory, "run", OTHERS_END)?;
        state.save_first();
        Ok(state)
    });
    let Some(state) = interrupted.run_until_cancelled(opening).await.transpose()? else {
        return Ok(());
    };
    let stop = CancellationToken::new();
    let running = start(&config, &arguments, state, &stop).await?;
    while interrupted.run_until_cancelled(hangup.recv()).await.is_some() {
        let Some(reloaded) = reload(&config, &arguments, &log) else {
            continue;
        };
        config = reloaded;
        let event = Event::Config(Box::new(config.clone()));
        if running.events.send(event).await.is_err() {
            break;
        }
    }
    stop.cancel();
    running.finish().await;
    tracing::info!("stopped; limits stay as they are");
    Ok(())
}

/// Returns a token that SIGTERM or SIGINT cancels, and the SIGHUPs. From now on none of these signals ends the process, so a terminal that
/// is gone interrupts nothing.
///
/// Errors: the kernel refuses a handler.
pub(super) fn interruption() -> Result<(CancellationToken, Signal)> {
    let receive = |kind| signal(kind).context("cannot receive signals");
    let mut terminate = receive(SignalKind::terminate())?;
    let mut interrupt = receive(SignalKind::interrupt())?;
    let hangup = receive(SignalKind::hangup())?;
    let interrupted = CancellationToken::new();
    let token = interrupted.clone();
    tokio::spawn(async move {
        // Cancel-safe: only the first signal counts.
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        token.cancel();
    });
    Ok((interrupted, hangup))
}

/// The configuration as its file and the environment have it now; `None` where that is not valid.
fn reload(config: &Config, arguments: &RunArguments, log: &LogFilter) -> Option<Config> {
    let reload = config.reload(arguments).inspect_err(|error| {
        tracing::error!(%error, "not reloaded; the earlier configuration stays in force");
    });
    let reload = reload.ok()?;
    tracing::info!(applied = ?reload.applied, needs_restart = ?reload.needs_restart, "reloaded");
    if let Err(error) = log.set(&reload.config.log_level) {
        tracing::error!(%error, "the log level stays as it was");
    }
    Some(reload.config)
}

impl Running {
    /// Waits until everything has stopped. The caller has cancelled the token that the tasks share.
    async fn finish(self) {
        for (name, ended) in [
            ("controller", self.controller.await),
            ("control socket", self.control.await),
        ] {
            if let Err(error) = ended {
                tracing::error!(task = name, %error, "did not stop cleanly");
            }
        }
        self.oom.finish().await;
        self.reporter.finish(DISK_GRACE).await;
        if let Some(problem) = finish_audit(self.audit_writer, DISK_GRACE).await {
            tracing::warn!("{problem}");
        }
        // A thread may still write to a slow disk: only the end of the process releases the lock.
        std::mem::forget(self.lock);
    }
}

/// Waits at most `patience` for the last lines of the audit log, if there is one. Returns why it may lack some, in a sentence.
pub(super) async fn finish_audit(writer: Option<JoinHandle<()>>, patience: Duration) -> Option<String> {
    match tokio::time::timeout(patience, writer?).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("the audit log may not be complete: {error}")),
        Err(_) => Some("the audit log may lack its last lines: the disk is too slow".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn a_disk_that_hangs_delays_no_end() {
        let written = finish_audit(Some(tokio::spawn(ready(()))), Duration::from_secs(60));
        assert_eq!(written.await, None);
        let slow = finish_audit(Some(tokio::spawn(pending())), Duration::ZERO)
            .await
            .unwrap();
        assert!(slow.ends_with("the disk is too slow"), "{slow}");
    }
}
