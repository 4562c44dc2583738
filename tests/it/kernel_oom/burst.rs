//! More kills at once than the kernel logs: all of them are reported, each for its own container.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::process::Child;
use std::time::Duration;

use tokio::time::timeout;
use vscaled::model::CgroupPath;
use vscaled::oom::counters::Reading;
use vscaled::oom::join::{CounterDelta, Joiner, OomKill, Progress};
use vscaled::oom::kmsg::{KmsgReader, LogEvent, Notice, monotonic};
use vscaled::oom::numbers::Numbers;
use vscaled::oom::{Confidence, Event};

use super::pod::{TestPod, was_killed};
use super::{PATIENCE, caught_up};

const PODS: usize = 4;
const KILLS_EACH: usize = 8;
const SWEEP: Duration = Duration::from_millis(200);

/// The counters of the pods' containers, with a time shortly before each last read.
struct Counters<'a> {
    pods: &'a [TestPod],
    known: Vec<(Reading, Duration)>,
}

impl<'a> Counters<'a> {
    fn new(pods: &'a [TestPod]) -> Self {
        let first = |pod: &TestPod| {
            let before = monotonic();
            (pod.kills(&pod.container), before)
        };
        let known = pods.iter().map(first).collect();
        Self { pods, known }
    }

    fn sweep(&mut self, joiner: &mut Joiner) -> Vec<OomKill> {
        let mut told = Vec::new();
        for (pod, (known, after)) in self.pods.iter().zip(&mut self.known) {
            let before = monotonic();
            let now = pod.kills(&pod.container);
            if let Some(kills) = NonZeroU64::new(now.count.kills - known.count.kills) {
                told.extend(joiner.counted(CounterDelta {
                    cgroup: pod.container.clone(),
                    after: *after,
                    by: monotonic(),
                    numbers: Numbers::ANY,
                    kills,
                    again: 0,
                }));
            }
            (*known, *after) = (now, before);
        }
        told
    }

    fn read_since(&self) -> Duration {
        self.known.iter().map(|(_, before)| *before).min().unwrap()
    }
}

/// The reports of a burst.
struct Told {
    kills: Vec<OomKill>,
    /// Whether records were lost: the lab's kernel has a small log and one processor.
    lost_records: bool,
}

/// Reads log and counters until `wanted` kills of ours are reported and nothing is pending.
async fn follow(
    reader: &mut KmsgReader,
    counters: &mut Counters<'_>,
    wanted: usize,
    is_ours: impl Fn(&OomKill) -> bool,
) -> Told {
    let mut joiner = Joiner::new(true);
    let mut told: Vec<OomKill> = Vec::new();
    let mut lost_records = false;
    let mut sweep = monotonic();
    while told.iter().filter(|kill| is_ours(kill)).count() < wanted || joiner.is_waiting() {
        let now = monotonic();
        if now >= sweep {
            told.extend(counters.sweep(&mut joiner));
            sweep = now + SWEEP;
        }
        if let Ok(notice) = timeout(sweep.saturating_sub(now), reader.next()).await {
            match notice.expect("the reader to go on") {
                Notice::Event(LogEvent {
                    event: Event::Kill(kill),
                    place,
                    ..
                }) => told.extend(joiner.logged(place, *kill, None)),
                Notice::Lost => lost_records = true,
                Notice::Event(_) => {}
            }
        }
        let log = reader.read_up_to().unwrap_or_default();
        let counters = counters.read_since();
        told.extend(joiner.decide_up_to(Progress { log, counters }));
    }
    Told {
        kills: told,
        lost_records,
    }
}

#[tokio::test]
async fn a_burst_is_told_once_by_container() {
    let pods: Vec<TestPod> = (0..PODS).map(|_| TestPod::new()).collect();
    pods.iter().for_each(TestPod::limit_container);
    let mut counters = Counters::new(&pods);
    let mut reader = caught_up();
    let started: Vec<(&CgroupPath, Child)> = (0..KILLS_EACH)
        .flat_map(|_| pods.iter().map(|pod| (&pod.container, pod.start())))
        .collect();
    let places: BTreeMap<u32, &CgroupPath> = started.iter().map(|(path, child)| (child.id(), *path)).collect();
    // Other processes on this machine may be killed too. Their reports name none of these containers.
    let is_ours = |kill: &OomKill| {
        kill.cgroup
            .as_ref()
            .is_some_and(|path| pods.iter().any(|pod| pod.container == *path))
    };
    let told = timeout(PATIENCE, follow(&mut reader, &mut counters, places.len(), is_ours))
        .await
        .expect("all kills to be told");
    started.into_iter().for_each(|(_, child)| was_killed(child));
    let ours: Vec<&OomKill> = told.kills.iter().filter(|kill| is_ours(kill)).collect();
    for pod in &pods {
        let here = ours
            .iter()
            .filter(|kill| kill.cgroup.as_ref() == Some(&pod.container))
            .count();
        assert_eq!(here, KILLS_EACH, "{}", pod.container);
    }
    for kill in &ours {
        match kill.confidence {
            Confidence::Ambiguous => assert!(!kill.processes.is_empty()),
            Confidence::CounterAlone => assert!(told.lost_records, "a kill was not logged"),
            _ => {
                let pid = kill.victim().unwrap().pid;
                assert_eq!(places.get(&pid).copied(), kill.cgroup.as_ref(), "{pid}");
            }
        }
    }
}
