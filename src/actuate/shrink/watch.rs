//! Watches a pod after its limits were lowered, apart from any pass.
//!
//! Reads, and never writes: what goes wrong is told to whoever asked, and undone by a pass like any other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Lowering;
use crate::actuate::handles::PodHandles;
use crate::actuate::node::Node;
use crate::cgroup::CgroupError;
use crate::model::{LivePod, Target};
use crate::plan::shrink::{Trouble, Watch, WatchStep};

/// All watches of a node together take one in so many moments of one processor,
const SHARE: u32 = 4;
/// unless a look would be later than this for it.
const LATEST: Duration = Duration::from_secs(1);

/// The end of the watch after a shrink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing went wrong until the end.
    Kept,
    /// Something went wrong in this cgroup.
    Trouble(Target, Trouble),
    /// All of the cgroups ended, or one cannot be read.
    Gone,
}

/// The watched cgroups of one pod.
#[derive(Debug)]
struct Watched {
    handles: PodHandles,
    watches: Vec<(Target, Watch)>,
}

#[derive(Debug)]
enum Look {
    /// Not before then; this one took so long.
    Again(Box<Watched>, Instant, Duration),
    End(Verdict),
}

/// Watches until something goes wrong or the time is over. Ends at once when it is dropped.
pub async fn watch(node: Arc<Node>, live: Arc<LivePod>, lowered: Vec<Lowering>) -> Verdict {
    let watching = node.concurrency.watch();
    let first = tokio::task::spawn_blocking(move || match PodHandles::open(&node.hierarchy, &live) {
        Ok(handles) => read_once(Box::new(Watched {
            handles,
            watches: watches(lowered),
        })),
        Err(error) => Look::End(gone(&error)),
    });
    let mut next = first.await;
    loop {
        match next {
            Ok(Look::Again(watched, at, took)) => {
                let at = at.max(Instant::now() + pause(took, watching.count()));
                tokio::time::sleep_until(at.into()).await;
                next = tokio::task::spawn_blocking(move || read_once(watched)).await;
            }
            Ok(Look::End(verdict)) => return verdict,
            Err(error) => {
                tracing::error!(%error, "watching after a shrink ended early");
                return Verdict::Gone;
            }
        }
    }
}

/// How long one of so many watches rests after a look that took so long.
fn pause(took: Duration, watches: u32) -> Duration {
    took.saturating_mul(SHARE).saturating_mul(watches).min(LATEST)
}

fn watches(lowered: Vec<Lowering>) -> Vec<(Target, Watch)> {
    let now = Instant::now();
    let watch = |lowering: Lowering| {
        let watch = Watch::new(lowering.to, now, lowering.before);
        (lowering.target, watch)
    };
    lowered.into_iter().map(watch).collect()
}

/// Reads each cgroup once. One that has ended is left out from then on.
fn read_once(mut watched: Box<Watched>) -> Look {
    let began = Instant::now();
    let mut next = None::<Instant>;
    let mut left = Vec::with_capacity(watched.watches.len());
    for (target, mut watch) in watched.watches {
        let Some(cgroup) = watched.handles.get(&target) else {
            continue;
        };
        let reading = match cgroup.outer().watch_reading() {
            Ok(reading) => reading,
            Err(error) if error.is_gone() => continue,
            Err(error) => return Look::End(gone(&error)),
        };
        match watch.next(&reading, Instant::now()) {
            WatchStep::LookAt(at) => next = Some(next.map_or(at, |next| next.min(at))),
            WatchStep::RaiseAgain(trouble) => return Look::End(Verdict::Trouble(target, trouble)),
            WatchStep::Done => {}
        }
        left.push((target, watch));
    }
    watched.watches = left;
    match next {
        Some(at) => Look::Again(watched, at, began.elapsed()),
        None if watched.watches.is_empty() => Look::End(Verdict::Gone),
        None => Look::End(Verdict::Kept),
    }
}

fn gone(error: &CgroupError) -> Verdict {
    if !error.is_gone() {
        tracing::warn!(%error, "a lowered limit is not watched any more");
    }
    Verdict::Gone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_watches_look_less_often_and_none_looks_too_late() {
        let took = Duration::from_micros(100);
        assert_eq!(pause(took, 1), took * 4);
        assert_eq!(pause(took, 1000), Duration::from_millis(400));
        assert_eq!(pause(Duration::from_millis(30), 110), LATEST);
        assert_eq!(pause(Duration::MAX, u32::MAX), LATEST);
    }
}
