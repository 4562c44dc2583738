//! Any events in any order, with a real kill log: the agent loses no kill, gives none two ids, and places none in another
//! container.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::oom::report::{Role, Victim};
use crate::report::log::{Bounds, KillLog};
use crate::report::{Destination, Destinations};

/// The next event.
#[derive(Debug, Clone)]
enum Happens {
    /// The kernel kills in one of the containers, and logs the cgroup or not.
    Kill {
        container: Index,
        named: bool,
    },
    /// Another container replaces one. No id is used again.
    Replace(Index),
    /// The agent reads so many records.
    Read(usize),
    Look,
    /// Time passes, and the agent reports what is certain by then.
    Settle(u64),
    /// The kill log stores the reports.
    Commit,
    /// A receiver gets so many reports, and acknowledges so many of them.
    Deliver {
        gets: usize,
        acknowledges: usize,
    },
    /// The agent is killed, and started again; `log` says whether it can read the kernel's log then.
    Restart {
        log: bool,
    },
    /// The same in the middle of a commit: the file holds only a part of what the commit writes.
    DieCommitting {
        written: Index,
        log: bool,
    },
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        6 => (any::<Index>(), any::<bool>()).prop_map(|(container, named)| Happens::Kill { container, named }),
        1 => any::<Index>().prop_map(Happens::Replace),
        4 => (0..6_usize).prop_map(Happens::Read),
        3 => Just(Happens::Look),
        3 => (0..3000_u64).prop_map(Happens::Settle),
        2 => Just(Happens::Commit),
        2 => (0..4_usize, 0..4_usize).prop_map(|(gets, acknowledges)| Happens::Deliver { gets, acknowledges }),
        1 => any::<bool>().prop_map(|log| Happens::Restart { log }),
        1 => (any::<Index>(), any::<bool>()).prop_map(|(written, log)| Happens::DieCommitting { written, log }),
    ]
}

/// A record and the time at which the kernel logged it.
#[derive(Debug, Clone)]
struct Record {
    kill: Kill,
    time: u64,
}

struct Node {
    kernel: Kernel,
    log: Vec<Record>,
    /// How many records this agent has read.
    read: usize,
    /// The number of records that the kernel logged before this agent began.
    replayed: usize,
    now: u64,
    swept: u64,
    has_log: bool,
    attribution: Attribution,
    /// Reports that are not stored yet.
    uncommitted: Vec<OomReport>,
    unkept: Option<Vec<u8>>,
    kept: Vec<OomReport>,
    state: tempfile::TempDir,
    kills: KillLog,
    /// The ids that a receiver got.
    received: BTreeSet<String>,
}

fn open(state: &Path) -> (KillLog, crate::report::log::Recovered) {
    let (mut log, recovered) = KillLog::open(state, Bounds::default(), Destinations::from_iter([Destination::Grpc]));
    log.sync();
    (log, recovered)
}

impl Node {
    fn new(containers: &[CgroupPath]) -> Self {
        let mut kernel = Kernel::default();
        containers.iter().for_each(|path| kernel.make(path));
        let state = tempfile::tempdir().unwrap();
        let mut node = Self {
            kernel,
            log: Vec::new(),
            read: 0,
            replayed: 0,
            now: 0,
            swept: 0,
            has_log: true,
            attribution: attribution(None, 0),
            uncommitted: Vec::new(),
            unkept: None,
            kept: Vec::new(),
            kills: open(state.path()).0,
            state,
            received: BTreeSet::new(),
        };
        node.sweep();
        node.take();
        node.commit();
        node
    }

    fn kill(&mut self, path: &CgroupPath, named: bool) {
        self.now += 1;
        self.kernel.kill(path);
        let record = u64::try_from(self.log.len() + 1).unwrap();
        let pid = u32::try_from(self.log.len() + 1000).unwrap();
        let kill = kill(pid, record, named.then(|| path.clone()));
        self.log.push(Record { kill, time: self.now });
    }

    fn read(&mut self, most: usize) {
        if !self.has_log {
            return;
        }
        for (index, record) in self.log.iter().enumerate().skip(self.read).take(most) {
            self.read = index + 1;
            let number = record.kill.seq.unwrap();
            let event = Event::Kill(Box::new(record.kill.clone()));
            let told = logged(event, number, record.time, index < self.replayed);
            self.attribution
                .add_event(told, <_>::default(), at(self.now), &self.kernel);
        }
        self.take();
    }

    fn sweep(&mut self) {
        self.now += 1;
        sweep(&mut self.attribution, &self.kernel, self.now);
        self.swept = self.now;
        self.now += 1;
        self.take();
    }

    fn decide(&mut self, after: u64) {
        self.now += after;
        // The joiner does not wait for a log that is stuck. This one is not.
        if self.has_log && self.log.get(self.read).is_some_and(|next| self.now - next.time > 1000) {
            self.read(usize::MAX);
        }
        // The watcher also sweeps once a second, and at once when a kill waits.
        if self.attribution.joiner.has_kills_waiting() || self.now - self.swept > 1000 {
            self.sweep();
        }
        // The watcher decides nothing before it has read the old part of the log.
        if self.read >= self.replayed || !self.has_log {
            let log = self.log.get(self.read).map_or(self.now, |next| next.time - 1);
            let known = Progress {
                log: if self.has_log { ms(log) } else { Duration::MAX },
                counters: ms(self.swept),
            };
            self.attribution.decide(known, at(self.now), &self.kernel);
        }
        self.take();
    }

    /// Takes the reports. The watcher also does this after every event.
    fn take(&mut self) {
        self.attribution.release(at(self.now), ms(self.now), &self.kernel);
        let reports = std::mem::take(&mut self.attribution.reports);
        self.uncommitted.extend(reports);
        if let Some(checkpoint) = self.attribution.next_checkpoint() {
            self.unkept = Some(checkpoint.encode().unwrap());
        }
    }

    fn commit(&mut self) {
        let reports = self.uncommitted.iter().cloned().map(Into::into).collect();
        self.kills.commit(reports, self.unkept.take());
        assert!(!self.kills.is_in_memory_only());
        self.kept.append(&mut self.uncommitted);
    }

    fn deliver(&mut self, most: usize, acknowledged: usize) {
        let pending = self.kills.next_for(Destination::Grpc, 0, most, |_, _| true);
        self.received
            .extend(pending.iter().map(|one| one.report.id().into_owned()));
        let numbers: Vec<u64> = pending.iter().take(acknowledged).map(|one| one.number).collect();
        self.kills.acknowledge(Destination::Grpc, &numbers);
    }

    fn die_committing(&mut self, written: Index, log: bool) {
        let file = self.state.path().join("kills.log");
        let length = || std::fs::metadata(&file).unwrap().len();
        let before = length();
        self.commit();
        let written = written.index(usize::try_from(length() - before).unwrap() + 1);
        let kept = std::fs::File::options().write(true).open(&file).unwrap();
        kept.set_len(before + u64::try_from(written).unwrap()).unwrap();
        self.restart(log);
    }

    fn restart(&mut self, log: bool) {
        self.uncommitted.clear();
        self.unkept = None;
        self.now += 10;
        // This gives back the lock of the file.
        self.kills = open(tempfile::tempdir().unwrap().path()).0;
        let (kills, recovered) = open(self.state.path());
        assert_eq!(recovered.problem, None);
        self.kills = kills;
        self.kept = recovered.latest.iter().map(|kill| OomReport::clone(kill)).collect();
        self.has_log = log;
        self.attribution = attribution_of(recovered.checkpoint.as_deref(), self.now);
        if log {
            self.attribution.joiner.has_log = true;
        }
        (self.read, self.replayed) = (0, self.log.len());
        self.swept = 0;
        // The watcher sweeps before it decides.
        self.sweep();
    }

    fn finish(&mut self) {
        if !self.has_log {
            self.restart(true);
        }
        for _ in 0..2 {
            self.read(usize::MAX);
            self.sweep();
            self.decide(10_000);
        }
        self.commit();
        self.deliver(usize::MAX, usize::MAX);
    }
}

#[test]
fn a_kill_in_doubt_stays_so_after_a_restart() {
    let (other, alive, gone) = (container(0, 1), container(0, 2), container(1, 1));
    let mut node = Node::new(&[other.clone(), alive.clone(), gone.clone()]);
    node.kill(&other, false);
    node.decide(1815);
    node.kill(&gone, false);
    node.kernel.remove(&gone);
    node.kernel.make(&container(1, 3));
    node.kill(&alive, false);
    node.sweep();
    node.kill(&alive, true);
    node.decide(820);
    node.kill(&alive, false);
    // The first two kills may change places: one is reported for both rises, and the other one a moment later.
    [2354, 1306, 692].into_iter().for_each(|after| node.decide(after));
    node.commit();
    let told: Vec<&str> = node.kept.iter().map(|report| &*report.id).collect();
    assert_eq!(told, ["b007-time-4", "b007-time-1", "b007-time-3"]);
    node.restart(true);
    node.finish();
    let first = node.kept.iter().find(|report| report.id == "b007-time-2").unwrap();
    assert_eq!((&first.victim, first.confidence), (&None, Confidence::Ambiguous));
}

#[test]
fn kills_in_removed_containers_have_own_ids() {
    let (other, gone) = (container(0, 1), container(0, 2));
    let mut node = Node::new(&[other.clone(), gone.clone(), container(1, 1)]);
    node.kill(&gone, false);
    node.restart(false);
    node.kill(&gone, false);
    node.decide(999);
    node.kernel.remove(&gone);
    node.kernel.make(&container(0, 3));
    node.kill(&other, false);
    node.decide(999);
    node.kill(&other, false);
    node.decide(999);
    node.commit();
    node.finish();
    assert_eq!(node.kept.len(), 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_story_tells_each_kill_once(story in proptest::collection::vec(happens(), 0..80)) {
        let mut containers = [container(0, 1), container(0, 2), container(1, 1)];
        let mut made = 2;
        let mut node = Node::new(&containers);
        let mut places = BTreeMap::new();
        for happens in story {
            match happens {
                Happens::Kill { container, named } => {
                    let path = &containers[container.index(containers.len())];
                    node.kill(path, named);
                    places.insert(node.log.last().unwrap().kill.pid, path.clone());
                }
                Happens::Replace(at) => {
                    let at = at.index(containers.len());
                    node.kernel.remove(&containers[at]);
                    made += 1;
                    containers[at] = container(at / 2, made);
                    node.kernel.make(&containers[at]);
                }
                Happens::Read(most) => node.read(most),
                Happens::Look => node.sweep(),
                Happens::Settle(after) => node.decide(after),
                Happens::Commit => node.commit(),
                Happens::Deliver { gets, acknowledges } => node.deliver(gets, acknowledges),
                Happens::Restart { log } => node.restart(log),
                Happens::DieCommitting { written, log } => node.die_committing(written, log),
            }
        }
        node.finish();
        let mut told = node.kept;
        let kept: BTreeSet<String> = told.iter().map(|report| report.id.clone()).collect();
        prop_assert_eq!(&node.received, &kept, "received under other ids than those that are kept");
        prop_assert_eq!(told.len(), places.len(), "{:#?}", told);
        for report in &told {
            if let (Some(victim), Some(cgroup)) = (&report.victim, &report.cgroup) {
                let cgroup = CgroupPath::new(cgroup).unwrap();
                prop_assert!(places[&victim.pid].below(&cgroup).is_some(), "{:#?}", report);
            }
        }
        told.sort_by(|a, b| a.id.cmp(&b.id));
        prop_assert!(told.windows(2).all(|two| two[0].id != two[1].id), "{:#?}", told);
        let mut pids: Vec<u32> = told.iter().filter_map(|report| Some(report.victim.as_ref()?.pid)).collect();
        pids.sort_unstable();
        prop_assert!(pids.windows(2).all(|two| two[0] != two[1]));
    }
}

#[test]
fn a_report_has_all_facts_of_the_victim() {
    let (mut kernel, mut attribution) = (Kernel::default(), attribution(None, 0));
    kernel.make(&container(0, 1));
    sweep(&mut attribution, &kernel, 1);
    kernel.kill(&container(0, 1));
    let memory = ReportedMemory {
        anon_rss_bytes: 3 << 20,
        ..ReportedMemory::default()
    };
    let killed = Kill {
        comm: "worker-1".to_owned(),
        memory,
        oom_score_adj: Some(-5),
        uid: Some(1000),
        ..kill(7, 40, Some(container(0, 1)))
    };
    let event = logged(Event::Kill(Box::new(killed)), number(40), 10, false);
    attribution.add_event(event, (None, Role::Child), at(10), &kernel);
    let told = finish(&mut attribution, &kernel, 20);
    let victim = Victim {
        pid: 7,
        comm: "worker-1".to_owned(),
        role: Role::Child.into(),
        memory: Some(memory),
        oom_score_adj: Some(-5),
        uid: Some(1000),
    };
    assert_eq!(told[0].victim, Some(victim));
    let facts = &told[0].facts;
    assert_eq!((facts.node.as_str(), facts.level), ("n1", Level::Container));
}

#[test]
fn candidates_at_several_levels_have_none() {
    let names = PodNames::default();
    let of = |limits: &[&Limit]| {
        let kill = |limit: &&Limit| Kill {
            limit: Limit::clone(limit),
            ..Kill::default()
        };
        let possible = OomKill {
            cgroup: None,
            confidence: Confidence::Ambiguous,
            processes: limits.iter().map(|limit| Arc::new(kill(limit))).collect(),
            record: None,
            at: ms(0),
        };
        level(&possible, &names)
    };
    let app = Limit::Cgroup(container(0, 1));
    let pod = Limit::Cgroup(container(0, 1).parent().unwrap());
    assert_eq!(of(&[&app, &app]), Level::Container);
    assert_eq!(of(&[&pod]), Level::Pod);
    assert_eq!(of(&[&app, &pod, &app]), Level::Unspecified);
    assert_eq!(of(&[&Limit::Node, &Limit::Node]), Level::Node);
    assert_eq!(of(&[]), Level::Unspecified);
}

#[test]
fn a_pods_group_is_whole_with_its_containers() {
    let (mut kernel, mut attribution) = (Kernel::default(), attribution(None, 0));
    kernel.make(&container(0, 1));
    attribution.names.update(&node_with(&container(0, 1)), ms(0));
    sweep(&mut attribution, &kernel, 1);
    kernel.kill(&container(0, 1));
    let mut victim = kill(7, 40, Some(container(0, 1)));
    victim.group = container(0, 1).parent();
    live(&mut attribution, &kernel, victim, 10);
    attribution.release(at(10), ms(10), &kernel);
    assert_eq!(attribution.reports.len(), 1);
}

/// The thread had to wait after it took the time, and read the log, with the kill and what came after it, only then.
#[test]
fn a_kill_after_the_decision_time_is_dated() {
    let (mut kernel, mut attribution) = (Kernel::default(), attribution(None, 0));
    kernel.make(&container(0, 1));
    attribution.names.update(&node_with(&container(0, 1)), ms(0));
    sweep(&mut attribution, &kernel, 1);
    kernel.kill(&container(0, 1));
    // It waits for the counters, because no cgroup is known.
    live(&mut attribution, &kernel, kill(7, 40, None), 9000);
    sweep(&mut attribution, &kernel, 9001);
    kernel.remove(&container(0, 1));
    let known = Progress {
        log: ms(10_000),
        counters: ms(10_000),
    };
    attribution.decide(known, at(10), &kernel);
    attribution.release(at(10_000), ms(9010), &kernel);
    assert_eq!(attribution.reports, [], "the next lines may name its group");
    attribution.release(at(10_000), ms(9020), &kernel);
    let times = attribution.reports.iter().map(|report| report.time);
    assert_eq!(times.collect::<Vec<_>>(), [at(9000).wall]);
}

#[test]
fn a_group_goes_on_after_the_decision_time() {
    let (mut kernel, mut attribution) = (Kernel::default(), attribution(None, 0));
    kernel.make(&container(0, 1));
    for (pid, time) in [(7, 9000), (8, 9015)] {
        let mut victim = kill(pid, time, Some(container(0, 1)));
        victim.group = container(0, 1).parent();
        let joined = OomKill {
            cgroup: Some(container(0, 1)),
            confidence: Confidence::Exact,
            processes: Arc::from([Arc::new(victim)]),
            record: None,
            at: ms(time),
        };
        attribution.add_kill(joined, at(10), &kernel);
    }
    // The kernel logs the first victim again.
    attribution.add_duplicate(3, container(0, 1), ms(10));
    let groups: Vec<_> = attribution
        .pending
        .iter()
        .map(|group| (&*group.pids, group.last))
        .collect();
    assert_eq!(groups, [(&[7, 8][..], ms(9015))]);
}
