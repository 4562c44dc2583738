//! Watches a pod after its limits were lowered, apart from any pass.
//!
//! Only reads. The controller gets the verdict, and a pass like any other raises the limit again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Lowering;
use crate::actuate::handles::PodHandles;
use crate::actuate::node::Node;
use crate::cgroup::CgroupError;
use crate::model::{LivePod, QUICK, Target, at_once};
use crate::plan::shrink::{Trouble, Watch, WatchStep};

/// The divisor of the part of one processor that all watches of a node together use.
const SHARE: u32 = 4;
/// The longest interval between two readings, even if the watches then use more.
const LATEST: Duration = Duration::from_secs(1);

/// The end of the watch after a shrink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The containers ran well until the end.
    Kept,
    /// The lower limit harmed this cgroup.
    Trouble(Target, Trouble),
    /// All of the cgroups ended, or one cannot be read at the end.
    Gone,
}

impl From<CgroupError> for Verdict {
    fn from(error: CgroupError) -> Self {
        if !error.is_gone() {
            tracing::warn!(%error, "a lowered memory limit is no longer watched");
        }
        Self::Gone
    }
}

/// The watched cgroups of one pod.
#[derive(Debug)]
struct WatchedPod {
    handles: PodHandles,
    watches: Vec<(Target, Watch)>,
}

/// When to read again, and how long this reading took.
type WatchTurn = Result<(Box<WatchedPod>, Instant, Duration), Verdict>;

/// Watches until the limit does harm or the time is over. Ends at once when it is dropped.
pub async fn watch(node: Arc<Node>, live: Arc<LivePod>, lowered: Vec<Lowering>) -> Verdict {
    let counted = Arc::clone(&node.concurrency.watches);
    let mut reading = tokio::task::spawn_blocking(move || {
        let now = Instant::now();
        let handles = PodHandles::open(&node.hierarchy, &live)?;
        let watch = |lowering: Lowering| (lowering.target, Watch::new(lowering.to, now, lowering.before));
        let watches = lowered.into_iter().map(watch).collect();
        read_once(Box::new(WatchedPod { handles, watches }))
    });
    loop {
        let (pod, next, took) = match reading.await {
            Ok(Ok(again)) => again,
            Ok(Err(verdict)) => return verdict,
            Err(error) => {
                tracing::error!(%error, "watching after a shrink ended early");
                return Verdict::Gone;
            }
        };
        let next = next.max(Instant::now() + pause(took, Arc::strong_count(&counted) - 1));
        tokio::time::sleep_until(next.into()).await;
        reading = tokio::task::spawn_blocking(move || read_once(pod));
    }
}

/// How long one of so many watches rests after a reading that took so long.
fn pause(took: Duration, watches: usize) -> Duration {
    let watches = u32::try_from(watches).unwrap_or(u32::MAX);
    took.saturating_mul(SHARE).saturating_mul(watches).min(LATEST)
}

/// Reads each cgroup once. Leaves out a cgroup that has ended from then on.
fn read_once(mut pod: Box<WatchedPod>) -> WatchTurn {
    let began = Instant::now();
    let mut next = None::<Instant>;
    for (target, mut watch) in std::mem::take(&mut pod.watches) {
        let Some(cgroup) = pod.handles.get(&target) else {
            continue;
        };
        // At once: a rate between two readings would be too high by the time that the thread had to wait between the first and its time.
        let read = CgroupError::unless_gone(at_once(QUICK, Instant::now, || cgroup.watch_reading()));
        let step = match read {
            Ok(Some((at, reading))) => watch.next(&reading, at),
            Ok(None) => continue,
            Err(error) => {
                // Such as for want of a descriptor: a later reading may succeed.
                tracing::debug!(cgroup = %target, %error, "a lowered memory limit cannot be watched now");
                WatchStep::LookAt(began + watch.pace(began).ok_or(error)?)
            }
        };
        match step {
            WatchStep::LookAt(at) => next = Some(next.map_or(at, |next| next.min(at))),
            WatchStep::RaiseAgain(trouble) => return Err(Verdict::Trouble(target, trouble)),
            WatchStep::Done => {}
        }
        pod.watches.push((target, watch));
    }
    match next {
        Some(at) => Ok((pod, at, began.elapsed())),
        None if pod.watches.is_empty() => Err(Verdict::Gone),
        None => Err(Verdict::Kept),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::model::Bytes;
    use crate::observe::log::LogFormat;
    use crate::observe::log::tests::logged;
    use crate::plan::shrink::{Before, WATCH_PERIOD};

    #[test]
    fn a_failed_reading_ends_no_watch() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("pod/app");
        fs::create_dir_all(&directory).unwrap();
        let (node, live) = (Node::on_files(root.path()), LivePod::on_files(["app"]));
        let began_before = |before: Duration| {
            let began = Instant::now().checked_sub(before).unwrap();
            let watch = Watch::new(Bytes::new(1 << 20), began, Before::of_test());
            Box::new(WatchedPod {
                handles: PodHandles::open(&node.hierarchy, &live).unwrap(),
                watches: vec![(Target::Container("app".into()), watch)],
            })
        };
        // It is no number.
        fs::write(directory.join("memory.current"), "?\n").unwrap();
        let (began, mut read) = (began_before(Duration::ZERO), None);
        let line = logged(LogFormat::Json, "debug", |_| read = Some(read_once(began)));
        assert_eq!(line.matches(r#""target":"#).count(), 1, "{line}");
        let (pod, ..) = read.unwrap().unwrap();
        assert_eq!(read_once(began_before(WATCH_PERIOD)).unwrap_err(), Verdict::Gone);
        fs::write(directory.join("memory.current"), "4096\n").unwrap();
        let (pod, ..) = read_once(pod).unwrap();
        assert_eq!(pod.watches.len(), 1);
    }

    #[test]
    fn many_watches_look_less_often_and_none_looks_too_late() {
        let took = Duration::from_micros(100);
        assert_eq!(pause(took, 1), took * 4);
        assert_eq!(pause(took, 1000), Duration::from_millis(400));
        assert_eq!(pause(Duration::from_millis(30), 110), LATEST);
        assert_eq!(pause(Duration::MAX, usize::MAX), LATEST);
    }
}
