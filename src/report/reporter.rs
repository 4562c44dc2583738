//! The task of the log and those of the destinations, started and stopped as one.

use std::fmt;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use super::destination::Destination;
use super::log::task::{self, LogLink};
use super::log::{Commit, Committed, KillLog};
use super::metrics::ReportMetrics;
use super::queue::{Ended, ReportQueue};
use super::status::{DestinationStatus, Link, Status};
use crate::oom::OomReport;

/// A way to a destination. Each runs in a task of its own: one that hangs delays no other.
pub trait Deliver: fmt::Debug + Send + 'static {
    /// One of the destinations the log was opened for.
    fn destination(&self) -> Destination;

    /// Delivers everything in the queue, in order, until the queue has [`Ended`]. Retries failures itself. At the end of the
    /// agent it is dropped at any await: what is not acknowledged then is delivered again by the next agent.
    fn run(self: Box<Self>, queue: ReportQueue) -> BoxFuture<'static, ()>;
}

/// The running tasks of reporting.
#[derive(Debug)]
pub struct Reporter {
    handle: ReporterHandle,
    stop: CancellationToken,
    log: JoinHandle<()>,
    deliveries: Vec<(Destination, JoinHandle<Option<()>>)>,
}

/// Stores kills, and knows the state of reporting. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ReporterHandle {
    log: LogLink,
    links: Vec<(Destination, watch::Receiver<Link>)>,
}

impl Reporter {
    /// Starts the task of the log and a task for each destination. Deliveries end with `stop`;
    /// commits are taken until [`Self::finish`].
    #[must_use]
    pub fn start(
        log: KillLog,
        destinations: Vec<Box<dyn Deliver>>,
        metrics: &ReportMetrics,
        stop: &CancellationToken,
    ) -> Self {
        let stop = stop.child_token();
        let (link, log) = task::start(log, metrics.clone());
        let log = tokio::spawn(log);
        let (mut links, mut deliveries) = (Vec::new(), Vec::new());
        for deliver in destinations {
            let destination = deliver.destination();
            let (queue, state) = ReportQueue::new(destination, link.clone(), metrics.clone());
            links.push((destination, state));
            deliveries.push((
                destination,
                tokio::spawn(stop.clone().run_until_cancelled_owned(deliver.run(queue))),
            ));
        }
        Self {
            handle: ReporterHandle { log: link, links },
            stop,
            log,
            deliveries,
        }
    }

    /// Stores kills, and knows the state of reporting.
    pub fn handle(&self) -> ReporterHandle {
        self.handle.clone()
    }

    /// Stops the deliveries and waits until the disk has everything; commits after this fail.
    pub async fn finish(self) {
        self.stop.cancel();
        for (destination, delivery) in self.deliveries {
            log_failure(destination.as_str(), delivery.await.map(drop));
        }
        let finished = self.handle.log.call(|task| task.finishing = true).await;
        // Why it ended already is told below.
        finished.unwrap_or(());
        log_failure("log", self.log.await);
    }
}

fn log_failure(task: &'static str, ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(task, %error, "reporting did not stop in order");
    }
}

impl ReporterHandle {
    /// Stores these kills and the position of the watcher after them, together or not at all, and returns once they survive
    /// the end of this process ([`Committed::on_disk`]). A kill with the id of a stored one is dropped. Cancelling it does not
    /// take the kills back.
    ///
    /// Errors: [`Ended`] after [`Reporter::finish`]: nothing was stored.
    pub async fn commit(&self, reports: Vec<Arc<OomReport>>, checkpoint: Option<Vec<u8>>) -> Result<Committed, Ended> {
        self.log.call(|task| task.commit(Commit { reports, checkpoint })).await
    }

    /// The state of reporting now.
    pub fn status(&self) -> Status {
        let log = self.log.status.borrow().clone();
        let destinations = self.links.iter().map(|(destination, link)| DestinationStatus {
            destination: *destination,
            link: link.borrow().clone(),
            pending: log.pending_for(*destination),
        });
        Status {
            destinations: destinations.collect(),
            log,
        }
    }

    /// Waits until the status changes. Cancel-safe: the next call notices what changes meanwhile.
    ///
    /// Errors: [`Ended`] once nothing changes any more.
    pub async fn changed(&mut self) -> Result<(), Ended> {
        let links = self.links.iter_mut().map(|(_, state)| state.changed().boxed());
        let changes = links.chain([self.log.status.changed().boxed()]);
        let (changed, _, _) = futures::future::select_all(changes).await;
        changed.map_err(|_| Ended)
    }
}
