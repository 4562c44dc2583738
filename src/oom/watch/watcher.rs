//! The actor: waits for the log, the counters, the pods and the clock, feeds the attribution, and sends what it reports.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::runtime::Builder;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::attribution::Attribution;
use super::checkpoint::Checkpoint;
use super::kernel_log::KernelLog;
use super::kill_counters::CounterScope;
use super::node::{NodeFiles, ProcProbe};
use super::pod_names::NodePods;
use super::schedule::{ContainerRefresh, Schedule, rest};
use super::wake_up::{WakeUp, WakeUpReason};
use crate::model::{CgroupVersion, ChangeRecord};
use crate::oom::clock::{Moment, monotonic};
use crate::oom::counters::machine_kill_count;
use crate::oom::join::Progress;
use crate::oom::kmsg::{BootId, Notice, Origin};
use crate::oom::parse::Event;
use crate::oom::report::OomReport;

/// Notices taken in before anything else is done. What `/proc` knows of a victim does not last.
const AT_ONCE: usize = 256;
/// Kills that wait for counters wait this long for the tree to be found.
const TREE_WITHIN: Duration = Duration::from_secs(30);
/// How often to look again how far the log can be read while something waits for that, and whether there
/// is room for a batch.
const AGAIN: Duration = Duration::from_millis(50);
/// Deciding what belongs together takes one in so many moments at most: where much does, each line and each look that is new
/// would have all of it decided again.
const DECIDING_SHARE: u32 = 10;

/// The state of the actor.
#[derive(Debug)]
struct Watcher {
    attribution: Attribution,
    files: NodeFiles,
    log: KernelLog,
    wake_up: WakeUp,
    schedule: Schedule,
    refresh: ContainerRefresh,
    sweeps: Sweeps,
    /// Before that nothing is decided.
    decide_from: Duration,
    /// Whether to send a checkpoint although there is nothing to report.
    ticked: bool,
    problems: Problems,
    links: Links,
}

/// Nobody takes reports any more.
#[derive(Debug, PartialEq, Eq)]
struct Closed;

/// The state of sweeping the counters.
#[derive(Debug, Default)]
struct Sweeps {
    /// What the counters count, once the tree is known.
    scope: Option<CounterScope>,
    /// A moment before the latest sweep.
    latest: Option<Duration>,
    /// When to stop waiting for the tree to be found.
    tree_due: Duration,
    /// How often any process was killed on the machine, as of the two latest sweeps.
    on_machine: [Option<u64>; 2],
}

/// What is degraded, in words.
#[derive(Debug, Default)]
struct Problems {
    checkpoint: Option<String>,
    counters: Option<String>,
    wake_up: Option<String>,
}

impl Watcher {
    fn new(boot: BootId, mut links: Links) -> Self {
        let now = monotonic();
        let left = links
            .checkpoint
            .take()
            .map(|left| Checkpoint::decode(&left, boot.clone()));
        let mut problems = Problems::default();
        let left = left.transpose().unwrap_or_else(|error| {
            let problem = format!("{error}; kills from before this start are not told");
            tracing::error!("{problem}");
            problems.checkpoint = Some(problem);
            None
        });
        Self {
            attribution: Attribution::new(boot, links.node_name.clone(), left, now),
            files: NodeFiles::new(),
            log: KernelLog::new(links.kmsg.clone()),
            wake_up: WakeUp::default(),
            schedule: Schedule::new(now),
            refresh: ContainerRefresh::default(),
            sweeps: Sweeps {
                tree_due: now + TREE_WITHIN,
                ..Sweeps::default()
            },
            decide_from: Duration::ZERO,
            ticked: false,
            problems,
            links,
        }
    }

    /// Watches until told to stop, or nobody takes reports.
    async fn run(mut self) {
        self.set_node_pods();
        while self.work() != Err(Closed) {
            let wake = self.next_wake().saturating_sub(monotonic());
            // Cancel-safe: every branch but the last two says so of itself, and those only tell that it is time.
            tokio::select! {
                biased;
                notice = self.log.next() => self.handle_notices(notice),
                told = self.wake_up.notified() => self.handle_wake_up(told),
                changed = self.links.residents.changed() => match changed {
                    Ok(()) => self.set_node_pods(),
                    // The agent is ending.
                    Err(_) => return,
                },
                change = next_change(&mut self.links.changes) => self.attribution.own_writes().record(&change),
                () = tokio::time::sleep(wake) => {}
                () = self.links.stop.cancelled() => return,
            }
        }
    }

    fn handle_notices(&mut self, first: Result<Notice>) {
        // Of two things that wait, a container that started came before a kill in it.
        if self.links.residents.has_changed().unwrap_or(false) {
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
            // What was told of the log is in the counters, and must not be told from there.
            self.sweep();
            let now = Moment::now();
            self.log.close(&error, now.monotonic);
            self.attribution.log_ended(now, &self.files);
        }
    }

    fn handle_notice(&mut self, notice: Notice) {
        match notice {
            Notice::Event(event) => {
                let probe = match (&event.event, event.origin) {
                    (Event::Kill(kill), Origin::Live) => self.files.probe(kill),
                    _ => ProcProbe::NONE,
                };
                self.attribution.add_event(event, probe, Moment::now(), &self.files);
            }
            Notice::Lost(loss) => {
                tracing::warn!(?loss, "a part of the kernel's log is lost; looking at all counters");
                self.schedule.request(monotonic());
            }
            Notice::CaughtUp => {}
        }
    }

    fn handle_wake_up(&mut self, told: io::Result<WakeUpReason>) {
        let now = monotonic();
        match told {
            Ok(WakeUpReason::Expected) => self.schedule.expect(now),
            Ok(WakeUpReason::Counted) | Err(_) => self.schedule.request(now),
        }
        if let Err(error) = told {
            self.problems.wake_up = Some(error.to_string());
        }
    }

    fn set_node_pods(&mut self) {
        let residents = Arc::clone(&self.links.residents.borrow_and_update());
        self.attribution.set_node_pods(&residents, monotonic());
        let Some((counting, root)) = self.files.set_node_pods(&residents, monotonic()) else {
            return;
        };
        if self.sweeps.scope.replace(counting).is_none() {
            self.schedule.request(monotonic());
        }
        self.attribution.set_tree(counting, &root, NodeFiles::is_namespaced());
        self.refresh.request(monotonic());
    }

    /// Does for containers that are new what takes a look at each of them, if it is time to.
    fn refresh_containers(&mut self) {
        let from = monotonic();
        if self.refresh.due().is_none_or(|due| due > from) {
            return;
        }
        let residents = Arc::clone(&self.links.residents.borrow());
        let again = self.files.find_init_processes(from);
        self.problems.wake_up = self.register_wake_ups(&residents);
        self.refresh.completed(from, monotonic(), again);
    }

    /// Has the kernel say when to look at the counters. Returns what is missing for that, in words.
    fn register_wake_ups(&mut self, residents: &NodePods) -> Option<String> {
        const OTHERWISE: &str = "kills that the kernel's log does not tell are found within a second";
        let (hierarchy, root) = residents.tree.as_ref()?;
        if hierarchy.version() == CgroupVersion::V1 {
            let containers = residents.pods.iter().flat_map(|pod| pod.containers.values());
            let ordered = self
                .wake_up
                .register(hierarchy, containers.map(|container| &container.path));
            return ordered.err().map(|error| {
                format!("the kernel does not say when memory runs out in every container ({error}): {OTHERWISE}")
            });
        }
        let below = self.sweeps.scope == Some(CounterScope::Below);
        let counter = self.files.top_counter(root).filter(|_| below)?;
        self.wake_up.watch(&counter).err().map(|error| {
            format!(
                "{} is not watched ({error}; fs.inotify.max_user_watches and max_user_instances): {OTHERWISE}",
                counter.display()
            )
        })
    }

    /// Does what is due, and hands on what is to be told.
    fn work(&mut self) -> Result<(), Closed> {
        let now = Moment::now();
        if let Some(numbering) = self.log.open(self.attribution.position(), now.monotonic) {
            self.attribution.log_began(numbering, now.monotonic);
        }
        if self.attribution.waits_for_counters() {
            self.schedule.request(now.monotonic);
        }
        self.refresh_containers();
        if self.schedule.next() <= now.monotonic {
            self.sweep_if_needed();
            self.attribution.own_writes().forget(now.wall);
            self.publish_problems();
            self.ticked = true;
        }
        if self.attribution.is_waiting() {
            // How far it is read decides what can be told.
            self.log.wake();
            if let Some(first) = self.log.next_now().transpose() {
                self.handle_notices(first);
            }
        }
        let knows_counters = self.sweeps.latest.is_some() || now.monotonic > self.sweeps.tree_due;
        if let (Some(log), true, true) = (self.log.read_up_to(), knows_counters, self.decide_from <= now.monotonic) {
            // Where there are no counters, there is nothing to wait for.
            let counters = self
                .sweeps
                .scope
                .map_or(now.monotonic, |_| self.sweeps.latest.unwrap_or_default());
            let progress = Progress { log, counters };
            self.attribution.set_offset(self.log.offset());
            let from = monotonic();
            self.attribution.decide(progress, now, &self.files);
            let to = monotonic();
            self.decide_from = to + rest(to.saturating_sub(from), DECIDING_SHARE);
        }
        self.attribution.release(Moment::now(), &self.files);
        self.send_batch()
    }

    /// Looks at the counters, unless nothing at all was killed on the machine since the look before the last: a kill rises
    /// the machine's counter a little before its cgroup's.
    fn sweep_if_needed(&mut self) {
        let now = monotonic();
        let kills = machine_kill_count();
        let [before, last] = self.sweeps.on_machine;
        self.sweeps.on_machine = [last, kills];
        let is_quiet = kills.is_some() && [before, last] == [kills; 2];
        if is_quiet && self.sweeps.latest.is_some() && !self.attribution.waits_for_counters() {
            self.schedule.completed(now, monotonic());
            if !self.schedule.is_expecting() {
                self.files.close_counters();
            }
            return;
        }
        self.sweep();
        if last != kills {
            // What is killed in one place is often followed by others. The sooner each is looked for, the surer it is which.
            self.log.wake();
            self.schedule.expect(monotonic());
        }
    }

    fn sweep(&mut self) {
        let before = monotonic();
        if self.sweeps.scope.is_some() {
            let failed = self.attribution.sweep(before, &self.files, Moment::now);
            self.sweeps.latest = Some(before);
            self.problems.counters =
                failed.map(|error| format!("{error}; kills there are told by the kernel's log only"));
        }
        self.schedule.completed(before, monotonic());
    }

    /// Hands on what is to be told, without waiting: what nobody takes goes with what comes next.
    fn send_batch(&mut self) -> Result<(), Closed> {
        // What is only a checkpoint is not worth a write of its own at once.
        let is_checkpoint_due = self.ticked && self.sweeps.latest.is_some();
        if !self.attribution.has_reports() && !is_checkpoint_due {
            return Ok(());
        }
        let room = match self.links.batches.try_reserve() {
            Ok(room) => room,
            Err(TrySendError::Full(())) => return Ok(()),
            Err(TrySendError::Closed(())) => return Err(Closed),
        };
        self.ticked = false;
        match self.attribution.next_checkpoint().map(|checkpoint| checkpoint.encode()) {
            Some(Ok(checkpoint)) => room.send(Batch {
                reports: self.attribution.drain_reports(),
                checkpoint,
            }),
            Some(Err(error)) => tracing::error!(%error, "which kills were told is not kept"),
            None => {}
        }
        Ok(())
    }

    fn publish_problems(&self) {
        let Problems {
            checkpoint,
            counters,
            wake_up,
        } = &self.problems;
        let all = [
            self.log.problem(),
            checkpoint.as_ref(),
            counters.as_ref(),
            wake_up.as_ref(),
        ];
        let all = all.into_iter().flatten().cloned().collect();
        self.links.problems.send_replace(all);
    }

    fn next_wake(&self) -> Duration {
        let waits = self.attribution.is_waiting() || self.attribution.has_reports();
        let now = monotonic();
        let again = Some(self.decide_from).filter(|from| *from > now);
        let due = [
            waits.then(|| again.unwrap_or(now + AGAIN)),
            self.log.try_at(),
            self.attribution.next_release(now),
            self.refresh.due(),
        ];
        due.into_iter().flatten().fold(self.schedule.next(), Duration::min)
    }
}

/// The next change of the agent's own; none once the agent is ending. Those that were missed
/// are blamed for nothing. Cancel-safe.
async fn next_change(changes: &mut broadcast::Receiver<Arc<ChangeRecord>>) -> Arc<ChangeRecord> {
    loop {
        match changes.recv().await {
            Ok(change) => return change,
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// What the thread begins with, and what it is connected to.
#[derive(Debug)]
pub struct Links {
    pub kmsg: PathBuf,
    /// The node's name, for reports.
    pub node_name: String,
    /// What the agent before this one left.
    pub checkpoint: Option<Vec<u8>>,
    /// Who lives on the node.
    pub residents: watch::Receiver<Arc<NodePods>>,
    pub changes: broadcast::Receiver<Arc<ChangeRecord>>,
    /// Where reports go. When it is closed, the thread ends.
    pub batches: mpsc::Sender<Batch>,
    /// What is degraded, one sentence each.
    pub problems: watch::Sender<Vec<String>>,
    pub stop: CancellationToken,
}

/// Reports, and what to keep with them.
#[derive(Debug, Default)]
pub struct Batch {
    /// The reports, oldest first; none where only the checkpoint is news.
    pub reports: Vec<OomReport>,
    /// What a later [`start`](start()) goes on from, once these reports are safe.
    pub checkpoint: Vec<u8>,
}

/// Starts the thread, which also runs `taker`: whoever takes the batches, so that the way there leads past
/// nobody else. The thread ends when it was told to and `taker` has ended. A checkpoint that cannot be read is
/// reported, and watching begins anew.
///
/// Errors: no boot id, so that no kill could be told apart from one of another boot; no thread or event loop.
pub fn start(links: Links, taker: impl Future<Output = ()> + Send + 'static) -> Result<JoinHandle<()>> {
    const NO_THREAD: &str = "cannot start the thread that watches for kills";
    let boot = BootId::current()?;
    // Whoever takes the batches has a thread of its own: looks at the counters follow each other closely after a kill.
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("oom-reports")
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| anyhow!("{NO_THREAD}: {error}"))?;
    let watcher = Watcher::new(boot, links);
    let thread = thread::Builder::new().name("oom".to_owned()).spawn(move || {
        runtime.block_on(async {
            let taker = tokio::spawn(taker);
            watcher.run().await;
            if let Err(error) = taker.await {
                tracing::error!(%error, "reports of kills were not taken to the end");
            }
        });
    });
    thread.map_err(|error| anyhow!("{NO_THREAD}: {error}"))
}
