use std::cell::RefCell;

use proptest::prelude::*;
use proptest::sample::Index;

use super::super::testing::{Kernel, container, root};
use super::*;

/// A kernel that kills after each read of a counter.
struct Busy<'a> {
    kernel: &'a Kernel,
    victims: RefCell<Vec<CgroupPath>>,
}

impl CounterTree for Busy<'_> {
    fn read(&self, cgroup: &CgroupPath) -> Result<Option<Reading>> {
        let reading = self.kernel.read(cgroup);
        if let Some(victim) = self.victims.borrow_mut().pop() {
            self.kernel.kill(&victim);
        }
        reading
    }

    fn children(&self, cgroup: &CgroupPath) -> Vec<CgroupPath> {
        self.kernel.children(cgroup)
    }

    fn machine_kills(&self) -> Option<u64> {
        self.kernel.machine_kills()
    }
}

/// A kernel whose lists of cgroups are kept until a counter is found gone.
#[derive(Default)]
struct Listed {
    kernel: Kernel,
    lists: RefCell<BTreeMap<CgroupPath, Vec<CgroupPath>>>,
}

impl CounterTree for Listed {
    fn read(&self, cgroup: &CgroupPath) -> Result<Option<Reading>> {
        let reading = self.kernel.read(cgroup)?;
        if reading.is_none() {
            self.lists.take();
        }
        Ok(reading)
    }

    fn children(&self, cgroup: &CgroupPath) -> Vec<CgroupPath> {
        let mut lists = self.lists.borrow_mut();
        let list = lists.entry(cgroup.clone());
        list.or_insert_with(|| self.kernel.children(cgroup)).clone()
    }

    fn machine_kills(&self) -> Option<u64> {
        self.kernel.machine_kills()
    }
}

fn kill_counters(counting: CgroupVersion) -> KillCounters {
    KillCounters::new(counting, root(), &[])
}

/// The rises of a sweep, by cgroup.
fn risen(sweep: Sweep) -> Vec<(CgroupPath, u64)> {
    assert!(sweep.failed.is_none());
    let rises = sweep.rises.into_iter().map(|(cgroup, rise)| (cgroup, rise.kills));
    rises.collect()
}

fn restarted(kill_counters: &KillCounters) -> KillCounters {
    let saved = serde_json::to_string(&kill_counters.saved()).unwrap();
    let saved: Vec<SavedCounter> = serde_json::from_str(&saved).unwrap();
    KillCounters::new(kill_counters.version, kill_counters.root.clone(), &saved)
}

#[test]
fn a_kill_shows_in_the_innermost_cgroup() {
    let mut kernel = Kernel::default();
    [container(0, 1), container(0, 2), container(1, 1)]
        .iter()
        .for_each(|path| kernel.make(path));
    let mut kill_counters = kill_counters(CgroupVersion::V2);
    assert_eq!(risen(kill_counters.sweep(&kernel, Duration::ZERO)), []);
    kernel.kill(&container(0, 1));
    kernel.kill(&container(0, 1));
    assert_eq!(
        risen(kill_counters.sweep(&kernel, Duration::ZERO)),
        [(container(0, 1), 2)]
    );
    kernel.kill(&container(0, 1));
    kernel.remove(&container(0, 1));
    let pod = container(0, 1).parent().unwrap();
    assert_eq!(risen(kill_counters.sweep(&kernel, Duration::ZERO)), [(pod.clone(), 1)]);
    kernel.kill(&container(0, 2));
    kernel.remove(&pod);
    assert_eq!(
        risen(kill_counters.sweep(&kernel, Duration::ZERO)),
        [(pod.parent().unwrap(), 1)]
    );
}

#[test]
fn a_kill_shows_in_a_cgroup_that_replaced_another() {
    let mut tree = Listed::default();
    tree.kernel.make(&container(0, 1));
    tree.kernel.make(&container(0, 2));
    let mut kill_counters = kill_counters(CgroupVersion::V2);
    for (killed, next) in [(container(0, 1), container(0, 3)), (container(0, 3), container(0, 4))] {
        tree.kernel.kill(&killed);
        assert_eq!(risen(kill_counters.sweep(&tree, Duration::ZERO)), [(killed, 1)]);
        tree.kernel.remove(&container(0, 2));
        tree.kernel.make(&next);
    }
}

#[test]
fn only_new_cgroups_kills_are_news() {
    for (counting, local) in [(CgroupVersion::V2, false), (CgroupVersion::V1, true)] {
        let mut kernel = Kernel::default();
        kernel.local = local;
        kernel.make(&container(0, 1));
        kernel.kill(&container(0, 1));
        let mut kill_counters = kill_counters(counting);
        kill_counters.start_at_current(&kernel, Duration::ZERO);
        assert_eq!(risen(kill_counters.sweep(&kernel, Duration::ZERO)), []);
        kernel.make(&container(1, 1));
        kernel.kill(&container(1, 1));
        let mut kill_counters = restarted(&kill_counters);
        assert_eq!(
            risen(kill_counters.sweep(&kernel, Duration::ZERO)),
            [(container(1, 1), 1)]
        );
    }
}

#[test]
fn a_cgroup_of_the_same_name_is_new() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    (0..3).for_each(|_| kernel.kill(&container(0, 1)));
    let mut kill_counters = kill_counters(CgroupVersion::V2);
    kill_counters.start_at_current(&kernel, Duration::ZERO);
    kernel.remove(&container(0, 1));
    kernel.make(&container(0, 1));
    (0..4).for_each(|_| kernel.kill(&container(0, 1)));
    assert_eq!(
        risen(restarted(&kill_counters).sweep(&kernel, Duration::ZERO)),
        [(container(0, 1), 4)]
    );
    assert_eq!(
        risen(kill_counters.sweep(&kernel, Duration::ZERO)),
        [(container(0, 1), 4)]
    );
}

#[test]
fn a_counter_that_falls_is_another_cgroups() {
    let mut kernel = Kernel::default();
    kernel.local = true;
    kernel.make(&container(0, 1));
    (0..3).for_each(|_| kernel.kill(&container(0, 1)));
    let mut kill_counters = kill_counters(CgroupVersion::V1);
    kill_counters.start_at_current(&kernel, Duration::ZERO);
    assert_eq!(risen(kill_counters.sweep(&kernel, Duration::ZERO)), []);
    kernel.replace(&container(0, 1));
    (0..2).for_each(|_| kernel.kill(&container(0, 1)));
    assert_eq!(
        risen(kill_counters.sweep(&kernel, Duration::ZERO)),
        [(container(0, 1), 2)]
    );
    assert_eq!(
        risen(restarted(&kill_counters).sweep(&kernel, Duration::ZERO)),
        [(container(0, 1), 2)],
        "not told yet"
    );
}

#[test]
fn an_uncounted_kill_hides_no_later_one() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut kill_counters = kill_counters(CgroupVersion::V2);
    kernel.kill(&container(0, 1));
    kill_counters.mark_reported(&container(0, 1));
    kill_counters.mark_reported(&container(0, 1));
    assert_eq!(
        risen(kill_counters.sweep(&kernel, Duration::ZERO)),
        [(container(0, 1), 1)]
    );
    let mut kill_counters = restarted(&kill_counters);
    kernel.kill(&container(0, 1));
    assert_eq!(
        risen(kill_counters.sweep(&kernel, Duration::ZERO)),
        [(container(0, 1), 1)]
    );
}

/// The same kills by counter and by record.
#[test]
fn kills_reported_twice_hide_none_from_the_next() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut kill_counters = kill_counters(CgroupVersion::V2);
    kernel.kill(&container(0, 1));
    assert_eq!(
        risen(kill_counters.sweep(&kernel, Duration::ZERO)),
        [(container(0, 1), 1)]
    );
    (0..3).for_each(|_| kill_counters.mark_reported(&container(0, 1)));
    assert_eq!(risen(kill_counters.sweep(&kernel, Duration::ZERO)), []);
    let mut kill_counters = restarted(&kill_counters);
    kernel.remove(&container(0, 1));
    kernel.make(&container(0, 2));
    (0..2).for_each(|_| kernel.kill(&container(0, 2)));
    assert_eq!(
        risen(kill_counters.sweep(&kernel, Duration::ZERO)),
        [(container(0, 2), 2)]
    );
}

#[test]
fn inner_cgroups_belong_to_their_container() {
    let inner = container(0, 1).child("init.scope").unwrap();
    let mut kernel = Kernel::default();
    kernel.make(&inner);
    kernel.kill(&inner);
    let mut below = kill_counters(CgroupVersion::V2);
    assert_eq!(below.counted_in(&inner), Some(container(0, 1)));
    assert_eq!(risen(below.sweep(&kernel, Duration::ZERO)), [(container(0, 1), 1)]);
    kernel.local = true;
    let mut local = kill_counters(CgroupVersion::V1);
    local.start_at_current(&kernel, Duration::ZERO);
    kernel.kill(&inner);
    assert_eq!(risen(local.sweep(&kernel, Duration::ZERO)), [(inner.clone(), 1)]);
    assert_eq!(local.counted_in(&CgroupPath::new("/system.slice").unwrap()), None);
}

/// An event between two sweeps.
#[derive(Debug, Clone)]
enum Happens {
    Kill(Index),
    Remake(Index),
    Look,
    LookWhileKilling(Vec<Index>),
    Restart,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => any::<Index>().prop_map(Happens::Kill),
        1 => any::<Index>().prop_map(Happens::Remake),
        3 => Just(Happens::Look),
        2 => proptest::collection::vec(any::<Index>(), 1..12).prop_map(Happens::LookWhileKilling),
        1 => Just(Happens::Restart),
    ]
}

proptest! {
    #[test]
    fn every_kill_shows_once(story in proptest::collection::vec(happens(), 0..60)) {
        let containers = [container(0, 1), container(0, 2), container(1, 1), container(1, 2)];
        let mut kernel = Kernel::default();
        containers.iter().for_each(|path| kernel.make(path));
        let mut kill_counters = kill_counters(CgroupVersion::V2);
        let (mut killed, mut shown) = (0, 0);
        for (at, happens) in story.into_iter().chain([Happens::Look, Happens::Look]).enumerate() {
            let now = Duration::from_secs(u64::try_from(at).unwrap());
            let sweep = match happens {
                Happens::Kill(at) => {
                    kernel.kill(&containers[at.index(containers.len())]);
                    killed += 1;
                    continue;
                }
                Happens::Remake(at) => {
                    let path = &containers[at.index(containers.len())];
                    kernel.remove(path);
                    kernel.make(path);
                    continue;
                }
                Happens::Restart => {
                    kill_counters = restarted(&kill_counters);
                    continue;
                }
                Happens::Look => kill_counters.sweep(&kernel, now),
                Happens::LookWhileKilling(victims) => {
                    let victims: Vec<_> = victims.iter().map(|at| containers[at.index(containers.len())].clone()).collect();
                    let before = victims.len();
                    let busy = Busy { kernel: &kernel, victims: RefCell::new(victims) };
                    let sweep = kill_counters.sweep(&busy, now);
                    killed += u64::try_from(before - busy.victims.borrow().len()).unwrap();
                    sweep
                }
            };
            let numbers = sweep.numbers;
            for (cgroup, kills) in risen(sweep) {
                shown += kills;
                let killed = kernel.killed.borrow();
                let meant = killed.iter().zip(1..).filter(|(path, number)| {
                    (numbers.first..=numbers.last).contains(number) && path.below(&cgroup).is_some()
                });
                prop_assert!(u64::try_from(meant.count()).unwrap() >= kills, "{:?}: {} in {}", numbers, kills, cgroup);
                (0..kills).for_each(|_| kill_counters.mark_reported(&cgroup));
            }
        }
        prop_assert_eq!(shown, killed);
    }
}
