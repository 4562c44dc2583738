//! The actor: waits for the log, the counters, the pods and the clock, feeds the attribution, and sends its reports.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::runtime::Builder;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::attribution::Attribution;
use super::checkpoint::Checkpoint;
use super::node::NodeFiles;
use super::pod_names::NodePods;
use super::schedule::{SHARE, Schedule, TICK, rest};
use super::wake_up::{WakeUp, WakeUpReason};
use crate::feed::FeedListener;
use crate::model::{CgroupVersion, ChangeRecord};
use crate::oom::clock::{Moment, monotonic};
use crate::oom::counters::machine_kill_count;
use crate::oom::join::{LATEST, Progress};
use crate::oom::kmsg::{BootId, KmsgReader, Notice};
use crate::oom::parse::Event;
use crate::oom::report::OomReport;

/// The watcher handles this many notices in a row: a victim is in `/proc` for a moment only.
const AT_ONCE: usize = 256;
/// A watcher that has not reached the log's end for seconds reads so many times in a row.
const READS: usize = 16;
/// Kills wait this long for the agent to find the tree of cgroups.
const TREE_WITHIN: Duration = Duration::from_secs(30);
/// While kills or reports wait, the watcher checks this often whether the log is read further and whether there
/// is room for a batch.
const CHECK_AGAIN: Duration = Duration::from_millis(50);
/// Deciding takes at most one in so many moments: in a flood, each line and each sweep leads to a new decision about
/// all kills of the flood.
const DECIDING_SHARE: u32 = 10;

/// The state of the actor.
#[derive(Debug)]
struct Watcher {
    attribution: Attribution,
    files: NodeFiles,
    log: KmsgReader,
    wake_up: WakeUp,
    schedule: Schedule,
    /// When to refresh containers: at once after a change, but at most a fiftieth of the time.
    refresh: Option<Duration>,
    refresh_from: Duration,
    /// When to stop waiting for the tree of cgroups.
    tree_due: Duration,
    /// The machine's count of kills at the latest sweep.
    machine_kills: Option<u64>,
    /// When to decide again.
    decide_from: Duration,
    /// Whether to send a checkpoint even without reports.
    ticked: bool,
    problems: Problems,
    links: Links,
}

/// The degraded parts, in words.
#[derive(Debug, Default)]
struct Problems {
    checkpoint: Option<String>,
    counters: Option<String>,
    wake_up: Option<String>,
}

impl Watcher {
    fn new(boot: BootId, mut links: Links) -> Self {
        let now = monotonic();
        let left = links.checkpoint.take();
        let left = left.map(|left| Checkpoint::decode(&left, boot.clone()));
        let mut problems = Problems::default();
        let left = left.transpose().unwrap_or_else(|error| {
            let problem = format!("{error}; kills from before this start are not reported");
            tracing::error!("{problem}");
            problems.checkpoint = Some(problem);
            None
        });
        Self {
            attribution: Attribution::new(boot, links.node_name.clone(), left, now),
            files: NodeFiles::new(),
            log: KmsgReader::new(links.kmsg.clone()),
            wake_up: WakeUp::default(),
            schedule: Schedule::new(now),
            refresh: None,
            refresh_from: Duration::ZERO,
            tree_due: now + TREE_WITHIN,
            machine_kills: None,
            decide_from: Duration::ZERO,
            ticked: false,
            problems,
            links,
        }
    }

    /// Watches until the agent stops, or the receiver of batches is gone.
    async fn run(mut self) {
        self.set_node_pods();
        while self.work() {
            let wake = self.next_wake().saturating_sub(monotonic());
            // Cancel-safe: each branch but the last two is documented so, and those two carry no value.
            tokio::select! {
                biased;
                notice = self.log.next() => self.handle_notices(notice),
                reason = self.wake_up.notified() => self.handle_wake_up(reason),
                changed = self.links.pods.changed() => match changed {
                    Ok(()) => self.set_node_pods(),
                    // The agent is ending.
                    Err(_) => return,
                },
                // The agent blames no kill on changes that were lost. None: the agent is ending.
                Some((change, _)) = self.links.changes.next() => {
                    self.attribution.own_writes.record(&change, Moment::now());
                }
                () = tokio::time::sleep(wake) => {}
                () = self.links.stop.cancelled() => return,
            }
        }
    }

    fn handle_notices(&mut self, first: Result<Notice>) {
        // A container starts before the kernel kills in it, so take the new containers before the kills.
        if self.links.pods.has_changed().unwrap_or(false) {
            self.set_node_pods();
            self.refresh_containers();
        }
        let mut next = first.map(Some);
        for left in (0..AT_ONCE).rev() {
            let Ok(Some(notice)) = next else { break };
            self.handle_notice(notice);
            next = if left > 0 { self.log.next_now() } else { Ok(None) };
        }
        if let Err(error) = next {
            // The counters also show logged kills: read them before the log is closed.
            self.sweep();
            let now = Moment::now();
            self.log.close(&error, now.monotonic);
            self.attribution.log_ended(now, &self.files);
        }
    }

    fn handle_notice(&mut self, notice: Notice) {
        match notice {
            Notice::Event(event) => {
                let probe = match &event.event {
                    Event::Kill(kill) if !event.replayed => self.files.probe(kill),
                    _ => <_>::default(),
                };
                self.attribution.add_event(event, probe, Moment::now(), &self.files);
            }
            Notice::Lost => {
                tracing::warn!("a part of the kernel's log is lost: reading all counters of kills");
                self.schedule.request(monotonic());
            }
        }
    }

    fn handle_wake_up(&mut self, reason: io::Result<WakeUpReason>) {
        let now = monotonic();
        match reason {
            Ok(WakeUpReason::Expected) => return self.schedule.expect(now),
            Ok(WakeUpReason::Counted) => {}
            Err(error) => self.problems.wake_up = Some(error.to_string()),
        }
        self.schedule.request(now);
    }

    fn set_node_pods(&mut self) {
        let pods = Arc::clone(&self.links.pods.borrow_and_update());
        self.attribution.names.update(&pods, monotonic());
        let Some((version, root)) = self.files.set_node_pods(&pods, monotonic()) else {
            return;
        };
        if self.attribution.tree.as_ref().is_none_or(|tree| tree.root != root) {
            self.schedule.request(monotonic());
            self.attribution.set_tree(version, &root, NodeFiles::is_namespaced());
        }
        let at = self.refresh_from.max(monotonic());
        self.refresh = Some(self.refresh.map_or(at, |due| due.min(at)));
    }

    /// Finds the first processes of new containers and registers wake-ups for them, if a refresh is due.
    fn refresh_containers(&mut self) {
        let from = monotonic();
        if self.refresh.is_none_or(|due| due > from) {
            return;
        }
        let pods = Arc::clone(&self.links.pods.borrow());
        let again = self.files.find_init_processes(from);
        self.problems.wake_up = self.register_wake_ups(&pods);
        let to = monotonic();
        self.refresh = again.then(|| to + TICK);
        self.refresh_from = to + rest(to.saturating_sub(from), SHARE);
    }

    /// Registers for the kernel's notifications about counters. Returns a problem, in words.
    fn register_wake_ups(&mut self, node: &NodePods) -> Option<String> {
        const OTHERWISE: &str = "kills that the kernel's log does not show are found within a second";
        let (hierarchy, root) = node.tree.as_ref()?;
        if hierarchy.version() == CgroupVersion::V1 {
            let containers = node.pods.iter().flat_map(|pod| pod.containers.values());
            let paths = containers.map(|container| &container.path);
            return self.wake_up.register(hierarchy, paths).err().map(|error| {
                format!(
                    "the kernel cannot notify vscaled of every container that runs out of memory ({error}): {OTHERWISE}"
                )
            });
        }
        let counter = self.files.counter_file(root)?;
        self.wake_up.watch(&counter).err().map(|error| {
            format!(
                "{} is not watched ({error}; fs.inotify.max_user_watches and max_user_instances): {OTHERWISE}",
                counter.display()
            )
        })
    }

    /// Does everything that is due, and sends a batch. Returns false when the receiver of batches is gone.
    fn work(&mut self) -> bool {
        let now = Moment::now();
        self.attribution.joiner.has_log |= self.log.open(now.monotonic);
        if self.attribution.joiner.has_kills_waiting() {
            self.schedule.request(now.monotonic);
        }
        self.refresh_containers();
        if self.schedule.next() <= now.monotonic {
            self.sweep_if_needed();
            self.attribution.own_writes.forget(now.monotonic);
            self.publish_problems();
            self.ticked = true;
        }
        if self.attribution.joiner.is_waiting() || self.attribution.has_group_pending() {
            self.read_log(now.monotonic);
        }
        if self.decide_from <= now.monotonic {
            self.decide(now);
        }
        let read = self.log.read_up_to().unwrap_or_default();
        // By the time before the log was read: a log that was not read since is not stuck.
        self.attribution.release(now, read, &self.files);
        self.send_batch()
    }

    /// Reads the log. A watcher that did not run for seconds reads up to the end, unless the log grows as fast: it must
    /// not report a kill by its counter alone while the record is there.
    fn read_log(&mut self, now: Duration) {
        self.log.wake();
        for _ in 0..READS {
            if let Some(first) = self.log.next_now().transpose() {
                self.handle_notices(first);
            }
            let read = self.log.read_up_to();
            if read.is_some_and(|read| now <= read.saturating_add(LATEST)) {
                return;
            }
        }
    }

    /// Reports the kills that are certain by now, if both sides are known.
    fn decide(&mut self, now: Moment) {
        let counters = match (self.attribution.swept, &self.attribution.tree) {
            (Some(swept), _) => swept.latest_after,
            (None, _) if now.monotonic <= self.tree_due => return,
            (None, Some(_)) => Duration::ZERO,
            // A node without counters has none to wait for.
            (None, None) => now.monotonic,
        };
        let Some(log) = self.log.read_up_to() else { return };
        let from = monotonic();
        tracing::trace!(?log, ?counters, "kills up to the earlier of these times are decided");
        self.attribution.decide(Progress { log, counters }, now, &self.files);
        let to = monotonic();
        self.decide_from = to + rest(to.saturating_sub(from), DECIDING_SHARE);
    }

    /// Reads the counters, unless the kernel killed no process on the machine since the sweep before the last. The
    /// kernel raises the machine's counter a little before the cgroup's.
    fn sweep_if_needed(&mut self) {
        let now = monotonic();
        let kills = machine_kill_count();
        let last = std::mem::replace(&mut self.machine_kills, kills);
        let quiet_at = self.attribution.tree.as_ref().and_then(|tree| tree.quiet_at);
        if quiet_at.is_some() && quiet_at == kills && !self.attribution.joiner.has_kills_waiting() {
            self.schedule.completed(now, monotonic());
            if !self.schedule.is_expecting() {
                self.files.close_counters();
            }
            return;
        }
        self.sweep();
        if last != kills {
            // Kills come in bursts. Frequent sweeps show which kill was in which cgroup.
            self.log.wake();
            self.schedule.expect(monotonic());
        }
    }

    fn sweep(&mut self) {
        let before = monotonic();
        let failed = self.attribution.sweep(before, &self.files, Moment::now);
        if failed.is_some() {
            // The process may have too few descriptors for the next sweep.
            self.files.close_counters();
        }
        self.problems.counters = failed.map(|error| format!("{error}; kills there are found in the kernel's log only"));
        self.schedule.completed(before, monotonic());
    }

    /// Sends reports and checkpoint without waiting: if the channel is full, they go with the next batch. Returns false
    /// when the receiver is gone.
    fn send_batch(&mut self) -> bool {
        // A checkpoint without reports is sent once a second at most, because each batch costs a write to disk.
        let is_checkpoint_due = self.ticked && self.attribution.swept.is_some();
        if self.attribution.reports.is_empty() && !is_checkpoint_due {
            return true;
        }
        let room = match self.links.batches.try_reserve() {
            Ok(room) => room,
            Err(TrySendError::Full(())) => {
                tracing::debug!("reports of kills wait: the recorder has no room");
                return true;
            }
            Err(TrySendError::Closed(())) => return false,
        };
        self.ticked = false;
        match self.attribution.next_checkpoint().map(|checkpoint| checkpoint.encode()) {
            Some(Ok(checkpoint)) => room.send(Batch {
                reports: std::mem::take(&mut self.attribution.reports),
                checkpoint,
            }),
            Some(Err(error)) => tracing::error!(%error, "the checkpoint of kills cannot be saved"),
            None => {}
        }
        true
    }

    fn publish_problems(&self) {
        let of = &self.problems;
        let all = [&self.log.problem, &of.checkpoint, &of.counters, &of.wake_up];
        let all = all.into_iter().flatten().cloned().collect();
        self.links.problems.send_replace(all);
    }

    fn next_wake(&self) -> Duration {
        let waits = self.attribution.joiner.is_waiting() || !self.attribution.reports.is_empty();
        let now = monotonic();
        let again = Some(self.decide_from).filter(|from| *from > now);
        let due = [
            waits.then(|| again.unwrap_or(now + CHECK_AGAIN)),
            self.log.due(),
            self.attribution.next_release(now),
            self.refresh,
        ];
        due.into_iter().flatten().fold(self.schedule.next(), Duration::min)
    }
}

/// Configuration and channels of the thread.
#[derive(Debug)]
pub struct Links {
    pub kmsg: PathBuf,
    /// The node's name, for reports.
    pub node_name: String,
    /// The checkpoint of the last batch of an earlier agent.
    pub checkpoint: Option<Vec<u8>>,
    pub pods: watch::Receiver<Arc<NodePods>>,
    pub changes: FeedListener<Arc<ChangeRecord>>,
    /// The thread ends when this channel closes.
    pub batches: mpsc::Sender<Batch>,
    /// The degraded parts, one sentence each.
    pub problems: watch::Sender<Vec<String>>,
    pub stop: CancellationToken,
}

/// Reports and the checkpoint to store with them.
#[derive(Debug, Default)]
pub struct Batch {
    /// The reports, oldest first; none if only the checkpoint has changed.
    pub reports: Vec<OomReport>,
    /// [`Links::checkpoint`] of the next agent, once these reports are stored.
    pub checkpoint: Vec<u8>,
}

/// Starts the thread. Its event loop also runs `receiver`, the receiver of the batches, so that reports wait for no
/// other task. The thread ends when the agent stops and `receiver` has ended. The watcher reports a checkpoint that
/// cannot be read, and begins without one.
///
/// Errors: the boot has no id, which the ids of kills need; the thread or the event loop cannot start.
pub fn start(links: Links, receiver: impl Future<Output = ()> + Send + 'static) -> Result<JoinHandle<()>> {
    let boot = BootId::current()?;
    let event_loop = || Builder::new_current_thread().enable_all().build();
    let start = || -> io::Result<JoinHandle<()>> {
        let (watching, receiving) = (event_loop()?, event_loop()?);
        let watcher = Watcher::new(boot, links);
        // The receiver has a thread of its own, because the watcher is busy with sweeps after a kill.
        let received = thread::Builder::new().name("oom-reports".to_owned());
        let received = received.spawn(move || receiving.block_on(receiver))?;
        thread::Builder::new().name("oom".to_owned()).spawn(move || {
            watching.block_on(watcher.run());
            if received.join().is_err() {
                tracing::error!("the thread that stores kills panicked");
            }
        })
    };
    start().map_err(|error| anyhow!("cannot start the threads that watch for kills: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::root;
    use super::*;
    use crate::feed::Feed;

    /// A watcher whose recorder has room for one batch.
    fn watcher(checkpoint: Option<Vec<u8>>) -> (Watcher, mpsc::Receiver<Batch>) {
        let (batches, taken) = mpsc::channel(1);
        let links = Links {
            kmsg: "/dev/null".into(),
            node_name: "n1".to_owned(),
            checkpoint,
            pods: watch::channel(Arc::default()).1,
            changes: Feed::default().listen(),
            batches,
            problems: watch::Sender::default(),
            stop: CancellationToken::new(),
        };
        (Watcher::new(BootId("b007".to_owned()), links), taken)
    }

    #[test]
    fn reports_leave_with_their_checkpoint() {
        let (mut watcher, mut taken) = watcher(None);
        let change_checkpoint = |watcher: &mut Watcher| {
            watcher.attribution.set_tree(CgroupVersion::V2, &root(), false);
            watcher.sweep();
        };
        watcher.ticked = true;
        assert!(
            watcher.send_batch() && taken.try_recv().is_err(),
            "no counter was read yet"
        );
        change_checkpoint(&mut watcher);
        assert!(watcher.send_batch());
        change_checkpoint(&mut watcher);
        watcher.attribution.reports.push(OomReport::default());
        assert!(watcher.send_batch());
        assert_eq!(watcher.attribution.reports.len(), 1, "there is no room");
        let first = taken.try_recv().unwrap();
        assert!(first.reports.is_empty() && !first.checkpoint.is_empty());
        assert!(watcher.send_batch());
        let second = taken.try_recv().unwrap();
        assert!(second.reports.len() == 1 && !second.checkpoint.is_empty());
        assert!(watcher.attribution.reports.is_empty());
        watcher.ticked = true;
        assert!(watcher.send_batch() && taken.try_recv().is_err(), "nothing has changed");
        drop(taken);
        watcher.ticked = true;
        assert!(!watcher.send_batch(), "the agent ends");
    }

    #[test]
    fn an_unreadable_checkpoint_is_a_problem() {
        let (watcher, _taken) = watcher(Some(b"nonsense".to_vec()));
        watcher.publish_problems();
        let problems = watcher.links.problems.borrow().join("; ");
        assert!(
            problems.ends_with("kills from before this start are not reported"),
            "{problems}"
        );
    }
}
