//! Moves the part of a pass that deals with the kernel along: threads that may block, a lane of the kernel's for as long
//! as there is something to do, and the time it waits in between.

use std::sync::Arc;

use super::foreign::ForeignWriters;
use super::job::{Job, JobDone};
use super::node::Node;
use super::pass::{Errand, KernelPass, Pass, Progress};

/// All of it: until every file holds what it should, or nothing more can be done.
pub(super) async fn apply(node: &Arc<Node>, job: Box<Job>) -> Result<Box<KernelPass>, Box<JobDone>> {
    written(drive(node, start(node, job, Errand::Apply).await?).await?)
}

/// All of it, and less is in use afterwards than the limits allow, as far as the kernel can be asked for that.
pub(super) async fn apply_and_press(node: &Arc<Node>, job: Box<Job>) -> Result<Box<KernelPass>, Box<JobDone>> {
    written(drive(node, start(node, job, Errand::Press).await?).await?)
}

/// Until there is room for every lower limit. Nothing is written; the pass can [`write()`] then.
pub(super) async fn prepare(node: &Arc<Node>, job: Box<Job>) -> Result<Box<Pass>, Box<JobDone>> {
    match drive(node, start(node, job, Errand::MakeRoom).await?).await? {
        Reached::Room(pass) => Ok(pass),
        Reached::End(kernel) => {
            let stale = kernel.is_stale();
            Err(Box::new(kernel.into_done(stale)))
        }
    }
}

/// Writes what room was made for.
pub(super) async fn write(node: &Arc<Node>, pass: Box<Pass>) -> Result<Box<KernelPass>, Box<JobDone>> {
    let next = Arc::clone(node);
    let progress = on_a_lane(node, move || pass.to_write().advance(&next)).await?;
    written(drive(node, progress).await?)
}

/// Makes room for the lower memory limits of a pass and writes none of them: whoever owns them (a kubelet that is to be
/// asked for a resize) finds less in use than they allow. The outcome is [`Outcome::Unchanged`] once there is room, and
/// [`Outcome::Refused`] with the numbers where there cannot be.
///
/// [`Outcome::Unchanged`]: crate::model::Outcome::Unchanged
/// [`Outcome::Refused`]: crate::model::Outcome::Refused
pub async fn make_room(node: Arc<Node>, job: Job) -> JobDone {
    match prepare(&node, Box::new(job)).await {
        Ok(pass) => pass.into_abandoned(),
        Err(done) => *done,
    }
}

/// How far a pass got.
enum Reached {
    /// There is room, and it was not to do more.
    Room(Box<Pass>),
    End(Box<KernelPass>),
}

fn written(reached: Reached) -> Result<Box<KernelPass>, Box<JobDone>> {
    match reached {
        Reached::End(kernel) => Ok(kernel),
        Reached::Room(pass) => Err(Box::new(pass.into_abandoned())),
    }
}

async fn start(node: &Arc<Node>, job: Box<Job>, errand: Errand) -> Result<Progress, Box<JobDone>> {
    let first = Arc::clone(node);
    on_a_lane(node, move || {
        Pass::begin(&first, *job, errand).and_then(|pass| pass.advance(&first))
    })
    .await
}

async fn drive(node: &Arc<Node>, mut progress: Progress) -> Result<Reached, Box<JobDone>> {
    loop {
        match progress {
            Progress::Ended(kernel) => return Ok(Reached::End(kernel)),
            Progress::Prepared(pass) => return Ok(Reached::Room(pass)),
            Progress::Waits(pass, until) => {
                tokio::time::sleep_until(until.into()).await;
                let next = Arc::clone(node);
                progress = on_a_lane(node, move || pass.advance(&next)).await?;
            }
        }
    }
}

async fn on_a_lane(
    node: &Node,
    work: impl FnOnce() -> Result<Progress, Box<JobDone>> + Send + 'static,
) -> Result<Progress, Box<JobDone>> {
    let _lane = node.concurrency.kernel().await;
    let span = tracing::Span::current();
    match tokio::task::spawn_blocking(move || span.in_scope(work)).await {
        Ok(progress) => progress,
        Err(panic) => {
            let reason = format!("internal error: {panic}");
            Err(Box::new(JobDone::failed(reason, ForeignWriters::default())))
        }
    }
}
