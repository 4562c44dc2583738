//! The thread: waits for whatever happens first, hands it to the desk, and hands on what the desk tells.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::accounts::Counting;
use super::checkpoint::CheckpointError;
use super::clock::Clock;
use super::desk::{Desk, Told};
use super::hint::{Hint, Sign};
use super::log_side::LogSide;
use super::node::{NodeFiles, kills_on_machine};
use super::outlet::{Batch, Closed, Outlet};
use super::roster::Residents;
use super::schedule::{Schedule, Upkeep};
use super::start::{Links, WatchOptions};
use super::surroundings::Glimpse;
use crate::actuate::ChangeRecord;
use crate::oom::join::Progress;
use crate::oom::kmsg::{BootId, Notice, Origin};
use crate::oom::parse::Event;
use crate::plan::CgroupVersion;

/// Notices taken in before anything else is done. What `/proc` knows of a victim does not last.
const AT_ONCE: usize = 256;
/// Where the log explains kills, counters may be looked at a little later: one look then serves a whole burst.
const LOG_EXPLAINS: Duration = Duration::from_millis(100);
/// Kills that wait for counters wait this long for the tree to be found.
const TREE_WITHIN: Duration = Duration::from_secs(30);
/// How often to try again to hand on what nobody takes.
const RETRY: Duration = Duration::from_millis(100);

/// The thread's own memory.
#[derive(Debug)]
pub(super) struct Watcher {
    clock: Clock,
    desk: Desk,
    files: NodeFiles,
    log: LogSide,
    hint: Hint,
    schedule: Schedule,
    upkeep: Upkeep,
    counting: Option<Counting>,
    /// A moment before the latest look at the counters.
    looked: Duration,
    /// How often any process was killed on the machine, as of the two latest looks.
    on_machine: [Option<u64>; 2],
    outlet: Outlet,
    residents: watch::Receiver<Arc<Residents>>,
    changes: Option<broadcast::Receiver<Arc<ChangeRecord>>>,
    problems: watch::Sender<Vec<String>>,
    /// Problems of the start, and the latest of the counters and of the hint.
    lasting: Option<String>,
    counters_problem: Option<String>,
    hint_problem: Option<String>,
    stop: CancellationToken,
}

impl Watcher {
    pub(super) fn new(options: WatchOptions, boot: BootId, clock: Clock, links: Links) -> Self {
        let now = clock.now();
        let WatchOptions {
            kmsg,
            node_name,
            checkpoint,
        } = options;
        let mut lasting = None;
        let desk = Desk::new(boot.clone(), node_name.clone(), checkpoint.as_deref(), now).unwrap_or_else(|error| {
            lasting = Some(begins_anew(&error));
            Desk::beginning(boot, node_name, now)
        });
        Self {
            clock,
            desk,
            files: NodeFiles::new(),
            log: LogSide::new(kmsg),
            hint: Hint::default(),
            schedule: Schedule::new(now.monotonic),
            upkeep: Upkeep::default(),
            counting: None,
            looked: Duration::ZERO,
            on_machine: [None; 2],
            outlet: Outlet::new(links.batches),
            residents: links.residents,
            changes: Some(links.changes),
            problems: links.problems,
            lasting,
            counters_problem: None,
            hint_problem: None,
            stop: links.stop,
        }
    }

    /// Watches until told to stop, or nobody takes reports.
    pub(super) async fn run(mut self) {
        self.take_residents();
        loop {
            if self.work() == Err(Closed) {
                return;
            }
            let wake = self.clock.instant(self.next_wake());
            // Cancel-safe: every branch but the last two says so of itself, and those only tell that it is time.
            tokio::select! {
                biased;
                notice = self.log.next() => self.take_notices(notice),
                told = self.hint.told() => self.take_hint(told),
                changed = self.residents.changed() => match changed {
                    Ok(()) => self.take_residents(),
                    // The agent is ending.
                    Err(_) => return,
                },
                change = next_change(&mut self.changes) => self.desk.own_writes().record(&change),
                () = tokio::time::sleep_until(wake) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    fn take_notices(&mut self, first: Option<Notice>) {
        // Of two things that wait, a container that started came before a kill in it.
        if self.residents.has_changed().unwrap_or(false) {
            self.take_residents();
            self.keep_up();
        }
        let Some(first) = first else {
            // What was told of the log is in the counters, and must not be told from there.
            self.look();
            let now = self.clock.now();
            self.log.ended(now.monotonic);
            self.desk.log_ended(now, &self.files);
            return;
        };
        self.take_notice(first);
        for _ in 0..AT_ONCE {
            match self.log.next_now() {
                Some(notice) => self.take_notice(notice),
                None => break,
            }
        }
    }

    fn take_notice(&mut self, notice: Notice) {
        match notice {
            Notice::Event {
                event,
                seq: record,
                logged,
                at: wall,
                origin,
            } => {
                let glimpse = match (&event, origin) {
                    (Event::Kill(kill), Origin::Live) => self.files.glimpse(kill),
                    _ => Glimpse::NONE,
                };
                let told = Told {
                    event,
                    record,
                    logged,
                    wall,
                    origin,
                };
                self.desk.take_event(told, glimpse, self.clock.now(), &self.files);
            }
            Notice::Lost(loss) => {
                tracing::warn!(?loss, "a part of the kernel's log is lost; looking at all counters");
                self.schedule.ask(self.clock.monotonic());
            }
            Notice::CaughtUp => self.log.caught_up(),
            Notice::UpTo(moment) => self.log.read_up_to(moment),
        }
    }

    fn take_hint(&mut self, told: io::Result<Sign>) {
        let now = self.clock.monotonic();
        match told {
            _ if self.log.is_open() => self.schedule.ask(now + LOG_EXPLAINS),
            Ok(Sign::Expected) => self.schedule.expect(now),
            Ok(Sign::Counted) | Err(_) => self.schedule.ask(now),
        }
        if let Err(error) = told {
            self.hint_problem = Some(error.to_string());
        }
    }

    fn take_residents(&mut self) {
        let residents = Arc::clone(&self.residents.borrow_and_update());
        self.desk.take_residents(&residents, self.clock.now());
        let Some((counting, root)) = self.files.take_residents(&residents, self.clock.monotonic()) else {
            return;
        };
        if self.counting.replace(counting).is_none() {
            self.schedule.ask(self.clock.monotonic());
        }
        self.desk.take_tree(counting, &root, NodeFiles::is_namespaced());
        self.upkeep.ask(self.clock.monotonic());
    }

    /// Does for containers that are new what takes a look at each of them, if it is time to.
    fn keep_up(&mut self) {
        let from = self.clock.monotonic();
        if self.upkeep.due().is_none_or(|due| due > from) {
            return;
        }
        let residents = Arc::clone(&self.residents.borrow());
        let again = self.files.seek(from);
        self.hint_problem = self.listen(&residents);
        self.upkeep.looked(from, self.clock.monotonic(), again);
    }

    /// Has the kernel say when to look at the counters. Returns what is missing for that, in words.
    fn listen(&mut self, residents: &Residents) -> Option<String> {
        const OTHERWISE: &str = "kills that the kernel's log does not tell are found within a second";
        let (hierarchy, root) = residents.tree.as_ref()?;
        if hierarchy.version() == CgroupVersion::V1 {
            let containers = residents.pods.iter().flat_map(|pod| pod.containers.values());
            let ordered = self.hint.order(hierarchy, containers.map(|container| &container.path));
            return ordered.err().map(|error| {
                format!("the kernel does not say when memory runs out in every container ({error}): {OTHERWISE}")
            });
        }
        let below = self.counting == Some(Counting::Below);
        let counter = self.files.top_counter(root).filter(|_| below)?;
        self.hint.watch(&counter).err().map(|error| {
            format!(
                "{} is not watched ({error}; fs.inotify.max_user_watches and max_user_instances): {OTHERWISE}",
                counter.display()
            )
        })
    }

    /// Does what is due, and hands on what is to be told.
    fn work(&mut self) -> Result<(), Closed> {
        let now = self.clock.now();
        if self.log.open(self.desk.position(), now.monotonic) {
            self.desk.log_began();
        }
        if self.desk.waits_for_counters() {
            self.schedule.ask(now.monotonic);
        }
        self.keep_up();
        let ticked = self.schedule.next() <= now.monotonic;
        if ticked {
            self.look_if_needed();
            self.desk.own_writes().forget(now.wall);
            self.tell_problems();
        }
        let knows_counters = self.looked > Duration::ZERO || self.clock.elapsed() > TREE_WITHIN;
        if self.log.is_caught_up() && knows_counters {
            let progress = Progress {
                log: self.log.progress(),
                // Where there are none, there is nothing to wait for.
                counters: self.counting.map_or(now.monotonic, |_| self.looked),
            };
            self.desk.settle(progress, now, &self.files);
        }
        self.desk.release(self.clock.now(), &self.files);
        self.hand_on(ticked)
    }

    /// Looks at the counters, unless nothing at all was killed on the machine since the look before the last: a kill rises
    /// the machine's counter a little before its cgroup's.
    fn look_if_needed(&mut self) {
        let now = self.clock.monotonic();
        if self.counting == Some(Counting::Local) {
            let kills = kills_on_machine();
            let quiet = kills.is_some() && self.on_machine == [kills; 2] && !self.desk.waits_for_counters();
            self.on_machine = [self.on_machine[1], kills];
            if quiet {
                self.schedule.looked(now, self.clock.monotonic());
                return;
            }
        }
        self.look();
    }

    fn look(&mut self) {
        let before = self.clock.monotonic();
        if self.counting.is_some() {
            let clock = self.clock;
            let failed = self.desk.look(before, &self.files, || clock.now());
            self.looked = before;
            self.counters_problem =
                failed.map(|error| format!("{error}; kills there are told by the kernel's log only"));
        }
        self.schedule.looked(before, self.clock.monotonic());
    }

    fn hand_on(&mut self, ticked: bool) -> Result<(), Closed> {
        let reports = self.desk.take_reports();
        // What is only a checkpoint is not worth a write of its own at once.
        if !reports.is_empty() || (ticked && self.looked > Duration::ZERO) {
            match self.desk.take_checkpoint().map(|checkpoint| checkpoint.encode()) {
                Some(Ok(checkpoint)) => return self.outlet.send(Batch { reports, checkpoint }),
                Some(Err(error)) => tracing::error!(%error, "which kills were told is not kept"),
                None => {}
            }
        }
        self.outlet.flush()
    }

    fn tell_problems(&self) {
        let log = self.log.problem().map(str::to_owned);
        let all = [
            log,
            self.lasting.clone(),
            self.files.problem(),
            self.counters_problem.clone(),
            self.hint_problem.clone(),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        self.problems.send_if_modified(|told| {
            let changed = *told != all;
            *told = all;
            changed
        });
    }

    fn next_wake(&mut self) -> Duration {
        let now = self.clock.monotonic();
        let asked = if self.desk.is_waiting() {
            self.log.ask(now)
        } else {
            None
        };
        let retry = self.outlet.is_blocked().then_some(now + RETRY);
        [
            asked,
            retry,
            self.log.try_at(),
            self.desk.next_release(now),
            Some(self.schedule.next()),
            self.upkeep.due(),
        ]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(now)
    }
}

fn begins_anew(error: &CheckpointError) -> String {
    let problem = format!("{error}; kills from before this start are not told");
    tracing::error!("{problem}");
    problem
}

/// The next change of the agent's own. Those that were missed are blamed for nothing. Cancel-safe.
async fn next_change(changes: &mut Option<broadcast::Receiver<Arc<ChangeRecord>>>) -> Arc<ChangeRecord> {
    while let Some(receiver) = changes {
        match receiver.recv().await {
            Ok(change) => return change,
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => *changes = None,
        }
    }
    std::future::pending().await
}
