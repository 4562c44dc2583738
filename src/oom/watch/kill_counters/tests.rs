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

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>> {
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

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>> {
        let mut lists = self.lists.borrow_mut();
        if let Some(list) = lists.get(cgroup) {
            return Ok(list.clone());
        }
        let list = self.kernel.children(cgroup)?;
        lists.insert(cgroup.clone(), list.clone());
        Ok(list)
    }

    fn machine_kills(&self) -> Option<u64> {
        self.kernel.machine_kills()
    }
}

/// The counters of an agent that goes on where another one ended, which reported no kill.
fn kill_counters(counting: CgroupVersion) -> KillCounters {
    KillCounters::new(counting, root(), &[], false)
}

/// The counters of an agent that has just started on this node.
fn started(counting: CgroupVersion, kernel: &Kernel) -> KillCounters {
    let mut started = KillCounters::new(counting, root(), &[], true);
    assert_eq!(risen(started.sweep(kernel, Duration::ZERO)), []);
    started
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
    KillCounters::new(kill_counters.version, kill_counters.root.clone(), &saved, false)
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
        let mut kill_counters = started(counting, &kernel);
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
    let mut kill_counters = started(CgroupVersion::V2, &kernel);
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
    let mut kill_counters = started(CgroupVersion::V1, &kernel);
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
    kill_counters.mark_reported(&container(0, 1), false);
    kill_counters.mark_reported(&container(0, 1), false);
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
    (0..3).for_each(|_| kill_counters.mark_reported(&container(0, 1), false));
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
    let mut local = started(CgroupVersion::V1, &kernel);
    kernel.kill(&inner);
    assert_eq!(risen(local.sweep(&kernel, Duration::ZERO)), [(inner.clone(), 1)]);
    assert_eq!(local.counted_in(&CgroupPath::new("/system.slice").unwrap()), None);
}

#[test]
fn kills_wait_for_a_counter_that_failed() {
    let [first, second] = [container(0, 1), container(0, 2)];
    let (pod, gone) = (first.parent().unwrap(), container(0, 3));
    let mut kernel = Kernel::default();
    [&first, &second].iter().for_each(|path| kernel.make(path));
    let mut kill_counters = kill_counters(CgroupVersion::V2);
    let mut both = |unreadable: Option<&CgroupPath>, unlisted: Option<&CgroupPath>| {
        kernel.make(&gone);
        [&first, &second, &gone].iter().for_each(|path| kernel.kill(path));
        kernel.remove(&gone);
        kernel.unreadable.extend(unreadable.cloned());
        kernel.unlisted.extend(unlisted.cloned());
        let sweep = kill_counters.sweep(&kernel, Duration::ZERO);
        assert!(sweep.failed.is_some());
        kernel.unreadable.clear();
        kernel.unlisted.clear();
        let later = risen(kill_counters.sweep(&kernel, Duration::ZERO));
        assert_eq!(risen(kill_counters.sweep(&kernel, Duration::ZERO)), []);
        (
            sweep.rises.into_iter().map(|(cgroup, _)| cgroup).collect::<Vec<_>>(),
            later,
        )
    };
    let [one, two, three] = [&first, &second, &pod].map(|path| (path.clone(), 1));
    assert_eq!(
        both(Some(&first), None),
        (vec![second.clone()], vec![one.clone(), three.clone()])
    );
    let all = vec![one, two, three];
    assert_eq!(both(Some(&pod), None), (Vec::new(), all.clone()));
    assert_eq!(both(None, Some(&pod)), (Vec::new(), all.clone()));
    assert_eq!(both(None, Some(&root())), (Vec::new(), all));
}

#[test]
fn a_counter_that_keeps_failing_hides_no_kill() {
    let [first, second] = [container(0, 1), container(0, 2)];
    for (starts, told) in [(false, vec![(first.parent().unwrap(), 1)]), (true, Vec::new())] {
        let mut kernel = Kernel::default();
        [&first, &second].iter().for_each(|path| kernel.make(path));
        kernel.unreadable.insert(first.clone());
        (0..2).for_each(|_| kernel.kill(&first));
        let mut kill_counters = KillCounters::new(CgroupVersion::V2, root(), &[], starts);
        // The kernel's log had one of them.
        kill_counters.mark_reported(&first, false);
        let mut risen_at = |at: u64| {
            let mut sweep = kill_counters.sweep(&kernel, Duration::from_secs(at));
            sweep.failed = None;
            risen(sweep)
        };
        assert_eq!([0, 59, 60].map(&mut risen_at), [Vec::new(), Vec::new(), told]);
        kernel.kill(&second);
        assert_eq!(risen_at(61), [(second.clone(), 1)]);
    }
}

#[test]
fn an_error_at_the_start_makes_no_news() {
    for (counting, local) in [(CgroupVersion::V2, false), (CgroupVersion::V1, true)] {
        let mut kernel = Kernel::default();
        kernel.local = local;
        kernel.make(&container(0, 1));
        kernel.kill(&container(0, 1));
        kernel.unreadable.insert(container(0, 1));
        let mut kill_counters = KillCounters::new(counting, root(), &[], true);
        let sweep = kill_counters.sweep(&kernel, Duration::ZERO);
        assert!(sweep.failed.is_some() && sweep.rises.is_empty());
        kernel.unreadable.clear();
        assert_eq!(risen(kill_counters.sweep(&kernel, Duration::ZERO)), []);
        kernel.kill(&container(0, 1));
        assert_eq!(
            risen(kill_counters.sweep(&kernel, Duration::ZERO)),
            [(container(0, 1), 1)]
        );
    }
}

#[test]
fn a_sweep_that_failed_is_not_quiet() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut kill_counters = kill_counters(CgroupVersion::V2);
    let mut quiet_after = |kernel: &Kernel| {
        kill_counters.sweep(kernel, Duration::ZERO);
        kill_counters.quiet_at
    };
    assert_eq!([(); 3].map(|()| quiet_after(&kernel)), [None, Some(0), Some(0)]);
    kernel.kill(&container(0, 1));
    kernel.unreadable.insert(container(0, 1));
    assert_eq!([(); 3].map(|()| quiet_after(&kernel)), [None; 3]);
    kernel.unreadable.clear();
    assert_eq!([(); 2].map(|()| quiet_after(&kernel)), [None, Some(1)]);
}

/// An event between two sweeps.
#[derive(Debug, Clone)]
enum Happens {
    Kill(Index),
    Remake(Index),
    Look,
    LookWhileKilling(Vec<Index>),
    /// Some cgroups cannot be read, and others not listed.
    LookInVain(Vec<Index>, Vec<Index>),
    Restart,
}

fn cgroups() -> impl Strategy<Value = Vec<Index>> {
    proptest::collection::vec(any::<Index>(), 0..3)
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => any::<Index>().prop_map(Happens::Kill),
        1 => any::<Index>().prop_map(Happens::Remake),
        3 => Just(Happens::Look),
        2 => proptest::collection::vec(any::<Index>(), 1..12).prop_map(Happens::LookWhileKilling),
        2 => (cgroups(), cgroups()).prop_map(|(unreadable, unlisted)| Happens::LookInVain(unreadable, unlisted)),
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
                Happens::LookInVain(unreadable, unlisted) => {
                    let each = containers.iter().flat_map(|path| [path.clone(), path.parent().unwrap()]);
                    let each: Vec<_> = each.chain([root()]).collect();
                    let of = |places: Vec<Index>| places.iter().map(|at| each[at.index(each.len())].clone()).collect();
                    (kernel.unreadable, kernel.unlisted) = (of(unreadable), of(unlisted));
                    let mut sweep = kill_counters.sweep(&kernel, now);
                    sweep.failed = None;
                    kernel.unreadable.clear();
                    kernel.unlisted.clear();
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
                (0..kills).for_each(|_| kill_counters.mark_reported(&cgroup, false));
            }
        }
        prop_assert_eq!(shown, killed);
    }
}
