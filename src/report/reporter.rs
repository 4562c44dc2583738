//! Everything that reports, started and stopped as one.

use std::fmt;

use futures::future::{BoxFuture, FutureExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use super::destination::Destination;
use super::feed::{Ended, Feed};
use super::keeper::{self, Command};
use super::spool::{Commit, Committed, Spool};
use super::status::{DestinationStatus, Link, SpoolStatus, Status};
use crate::observe::metrics::ReportMetrics;
use crate::oom::OomReport;

/// A way to tell a destination. Each runs in a task of its own: one that hangs delays no other.
pub trait Deliver: fmt::Debug + Send + 'static {
    /// Which destination; one of those the spool was opened for.
    fn destination(&self) -> Destination;

    /// Tells it everything the feed gives, in order, until `stop` or until the feed has [`Ended`]. Failures are its own to
    /// retry.
    fn run(self: Box<Self>, feed: Feed, stop: CancellationToken) -> BoxFuture<'static, ()>;
}

/// The running tasks.
#[derive(Debug)]
pub struct Reporter {
    handle: ReporterHandle,
    stop: CancellationToken,
    keeper: JoinHandle<()>,
    deliveries: Vec<(Destination, JoinHandle<()>)>,
}

/// Where to leave reports, and where to ask how they fare. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ReporterHandle {
    commands: mpsc::Sender<Command>,
    spool: watch::Receiver<SpoolStatus>,
    links: Vec<(Destination, watch::Receiver<(Link, usize)>)>,
}

impl Reporter {
    /// Starts the keeper of the spool and a task for each destination. Deliveries end with `stop`; commits are taken until
    /// [`Self::finish`].
    #[must_use]
    pub fn start(
        spool: Spool,
        destinations: Vec<Box<dyn Deliver>>,
        metrics: &ReportMetrics,
        stop: &CancellationToken,
    ) -> Self {
        let stop = stop.child_token();
        let (link, keeper) = keeper::start(spool, metrics.clone());
        let keeper = tokio::spawn(keeper);
        let (mut links, mut deliveries) = (Vec::new(), Vec::new());
        for deliver in destinations {
            let destination = deliver.destination();
            let (feed, state) = Feed::new(destination, link.clone(), metrics.clone());
            links.push((destination, state));
            deliveries.push((destination, tokio::spawn(deliver.run(feed, stop.clone()))));
        }
        let handle = ReporterHandle {
            commands: link.commands,
            spool: link.status,
            links,
        };
        Self {
            handle,
            stop,
            keeper,
            deliveries,
        }
    }

    /// Where to leave reports.
    #[must_use]
    pub fn handle(&self) -> ReporterHandle {
        self.handle.clone()
    }

    /// Stops delivering and waits until the disk has everything; commits after this fail.
    pub async fn finish(self) {
        self.stop.cancel();
        for (destination, delivery) in self.deliveries {
            complain(destination.as_str(), delivery.await);
        }
        let (reply, finished) = oneshot::channel();
        if self.handle.commands.send(Command::Finish(reply)).await.is_ok() && finished.await.is_err() {
            tracing::error!("the spool of OOM reports did not end in order");
        }
        complain("spool", self.keeper.await);
    }
}

fn complain(task: &'static str, ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(task, %error, "reporting did not stop in order");
    }
}

impl ReporterHandle {
    /// Stores these kills and the watcher's position after them, together or not at all, and returns once they survive
    /// the end of this process ([`Committed::on_disk`]). A kill whose id was stored before is dropped. Many commits that
    /// wait at the same time are written at once. Cancelling it does not take the kills back.
    ///
    /// # Errors
    /// [`Ended`] after [`Reporter::finish`]: nothing was stored.
    pub async fn commit(&self, reports: Vec<OomReport>, checkpoint: Option<Vec<u8>>) -> Result<Committed, Ended> {
        let (reply, committed) = oneshot::channel();
        let commit = Commit { reports, checkpoint };
        self.commands
            .send(Command::Commit(commit, reply))
            .await
            .map_err(|_| Ended)?;
        committed.await.map_err(|_| Ended)
    }

    /// Whether anybody is to be told.
    #[must_use]
    pub const fn has_destinations(&self) -> bool {
        !self.links.is_empty()
    }

    /// How reporting fares now.
    #[must_use]
    pub fn status(&self) -> Status {
        let spool = self.spool.borrow().clone();
        let destinations = self.links.iter().map(|(destination, state)| {
            let (link, on_the_way) = state.borrow().clone();
            DestinationStatus {
                destination: *destination,
                link,
                owed: spool.owed(*destination),
                on_the_way,
            }
        });
        Status {
            destinations: destinations.collect(),
            spool,
        }
    }
    /// Waits until something about the status changes. Cancel-safe: what changes meanwhile is noticed by the next call.
    ///
    /// # Errors
    /// [`Ended`] once nothing changes any more.
    pub async fn changed(&mut self) -> Result<(), Ended> {
        let links = self.links.iter_mut().map(|(_, state)| state.changed().boxed());
        let changes = links.chain([self.spool.changed().boxed()]);
        let (changed, _, _) = futures::future::select_all(changes).await;
        changed.map_err(|_| Ended)
    }
}
