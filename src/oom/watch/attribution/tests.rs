mod story;

use jiff::Timestamp;

use super::super::pod_names::NodePods;
use super::super::testing::{Kernel, container, root};
use super::events::MOST_CANDIDATES;
use super::*;
use crate::oom::join::LogPlace;
use crate::oom::kill::Kill;
use crate::oom::kmsg::{LogEvent, record_number};
use crate::oom::numbers::Numbers;
use crate::oom::parse::Event;
use crate::oom::report::Confidence;
use crate::oom::{Limit, ReportedMemory};

/// Whether an event is replayed.
const LIVE: bool = false;
const REPLAYED: bool = true;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn at(milliseconds: u64) -> Moment {
    Moment {
        monotonic: ms(milliseconds),
        wall: Timestamp::from_millisecond(1_000_000_000 + i64::try_from(milliseconds).unwrap()).unwrap(),
    }
}

fn boot() -> BootId {
    BootId("b007".to_owned())
}

/// An attribution that knows the tree and reads the log.
fn attribution(checkpoint: Option<&[u8]>, now: u64) -> Attribution {
    let mut attribution = attribution_of(checkpoint, now);
    attribution.joiner.has_log = true;
    attribution
}

/// An attribution that knows the tree.
fn attribution_of(checkpoint: Option<&[u8]>, now: u64) -> Attribution {
    let left = checkpoint.map(|bytes| Checkpoint::decode(bytes, boot()).unwrap());
    let mut attribution = Attribution::new(boot(), "n1".to_owned(), left, ms(now));
    attribution.set_tree(CgroupVersion::V2, &root(), false);
    attribution
}

/// The number of a kill's record at this time.
fn number(timestamp_us: u64) -> u64 {
    record_number(timestamp_us, 1)
}

fn kill(pid: u32, record: u64, task: Option<CgroupPath>) -> Kill {
    Kill {
        pid,
        comm: "x".to_owned(),
        limit: task.clone().map_or(Limit::Unknown, Limit::Cgroup),
        task_cgroup: task,
        group: None,
        usage: None,
        memory: ReportedMemory::default(),
        oom_score_adj: None,
        uid: None,
        invoker: None,
        seq: Some(number(record)),
        timestamp_us: Some(record),
    }
}

fn logged(event: Event, seq: u64, time: u64, replayed: bool) -> LogEvent {
    LogEvent {
        event,
        seq,
        place: LogPlace {
            // A replayed record was not read at once.
            is_exact: !replayed,
            time: ms(time),
            numbers: Numbers::ANY,
        },
        replayed,
    }
}

fn live(attribution: &mut Attribution, kernel: &Kernel, kill: Kill, time: u64) {
    let record = kill.seq.unwrap();
    let event = Event::Kill(Box::new(kill));
    attribution.add_event(logged(event, record, time, LIVE), <_>::default(), at(time), kernel);
}

fn sweep(attribution: &mut Attribution, kernel: &Kernel, time: u64) {
    assert!(attribution.sweep(ms(time), kernel, || at(time)).is_none());
}

/// All reports, once no more can come.
fn finish(attribution: &mut Attribution, kernel: &Kernel, time: u64) -> Vec<OomReport> {
    sweep(attribution, kernel, time);
    let known = Progress {
        log: ms(time + 1000),
        counters: ms(time + 1000),
    };
    attribution.decide(known, at(time + 1000), kernel);
    attribution.release(at(time + 10_000), ms(time + 10_000), kernel);
    std::mem::take(&mut attribution.reports)
}

/// The kernel kills in two containers and logs only the kill in the first, whose counter cannot be read.
#[test]
fn a_kill_is_not_placed_while_a_counter_cannot_be_read() {
    let [first, second] = [container(0, 0), container(1, 0)];
    let mut kernel = Kernel::default();
    kernel.local = true;
    kernel.make(&first);
    kernel.make(&second);
    let mut attribution = Attribution::new(boot(), "n1".to_owned(), None, ms(0));
    attribution.set_tree(CgroupVersion::V1, &root(), false);
    attribution.joiner.has_log = true;
    sweep(&mut attribution, &kernel, 100);
    kernel.unreadable.insert(first.clone());
    kernel.kill(&first);
    kernel.kill(&second);
    live(&mut attribution, &kernel, kill(7, 1, None), 150);
    for time in [200, 9000] {
        assert!(attribution.sweep(ms(time), &kernel, || at(time)).is_some());
        let counters = attribution.swept.unwrap().latest_after;
        let log = ms(time);
        attribution.decide(Progress { log, counters }, at(time), &kernel);
    }
    attribution.release(at(20_000), ms(20_000), &kernel);
    let told = std::mem::take(&mut attribution.reports);
    assert!(!told.is_empty());
    assert!(told.iter().all(|report| report.victim.is_none()), "{told:?}");
}

fn checkpoint(attribution: &mut Attribution) -> Vec<u8> {
    attribution.unsaved = true;
    attribution.next_checkpoint().unwrap().encode().unwrap()
}

#[test]
fn a_named_kill_in_a_container_is_immediate() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut attribution = attribution(None, 0);
    sweep(&mut attribution, &kernel, 1);
    kernel.kill(&container(0, 1));
    live(&mut attribution, &kernel, kill(7, 40, Some(container(0, 1))), 10);
    attribution.release(at(10), ms(10), &kernel);
    assert_eq!(
        std::mem::take(&mut attribution.reports),
        [],
        "nobody knows its name yet"
    );
    attribution.names.update(&node_with(&container(0, 1)), ms(11));
    attribution.release(at(11), ms(11), &kernel);
    let told = std::mem::take(&mut attribution.reports);
    assert_eq!(told.len(), 1);
    assert_eq!((&*told[0].id, told[0].time), ("b007-time-40", at(10).wall));
    assert_eq!(told[0].facts.container.as_ref().unwrap().name, "app");
    assert_eq!(told[0].facts.limit.limit_bytes, Some(64 << 20));
    live(&mut attribution, &kernel, kill(8, 50, Some(container(0, 1))), 20);
    kernel.kill(&container(0, 1));
    attribution.release(at(20), ms(20), &kernel);
    assert_eq!(std::mem::take(&mut attribution.reports).len(), 1);
    assert_eq!(finish(&mut attribution, &kernel, 30), []);
}

#[test]
fn a_kill_lists_some_candidates() {
    let mut kernel = Kernel::default();
    let places = [container(0, 1), container(0, 2)];
    places.iter().for_each(|place| kernel.make(place));
    let mut attribution = attribution(None, 0);
    sweep(&mut attribution, &kernel, 1);
    for number in 0..100 {
        kernel.kill(&places[usize::from(number % 2 == 1)]);
        live(
            &mut attribution,
            &kernel,
            kill(1000 + number, 40 + u64::from(number), None),
            10,
        );
    }
    let told = finish(&mut attribution, &kernel, 20);
    assert_eq!(told.len(), 100);
    for told in told {
        assert_eq!((told.candidates.len(), told.more_candidates), (MOST_CANDIDATES, 84));
    }
}

#[test]
fn a_set_clock_changes_only_times_of_kills() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut attribution = attribution(None, 0);
    sweep(&mut attribution, &kernel, 1);
    let mut told = Vec::new();
    for (record, hours) in [(40, 0), (50, -1), (60, 24)] {
        kernel.kill(&container(0, 1));
        let stepped = |milliseconds| {
            let moment = at(milliseconds);
            let wall = moment.wall + jiff::SignedDuration::from_hours(hours);
            Moment { wall, ..moment }
        };
        let now = record;
        let event = Event::Kill(Box::new(kill(7, record, Some(container(0, 1)))));
        let wall = stepped(now).wall;
        let event = logged(event, number(record), now, LIVE);
        attribution.add_event(event, <_>::default(), stepped(now), &kernel);
        assert!(attribution.sweep(ms(now + 1), &kernel, || stepped(now + 1)).is_none());
        attribution.release(stepped(now + 20_000), ms(now + 20_000), &kernel);
        let reports = std::mem::take(&mut attribution.reports);
        assert_eq!(reports.iter().map(|report| report.time).collect::<Vec<_>>(), [wall]);
        told.extend(reports);
    }
    assert_eq!(finish(&mut attribution, &kernel, 50_000), [], "nothing is told twice");
    assert_eq!(told.len(), 3);
}

fn node_with(path: &CgroupPath) -> NodePods {
    use crate::model::objects::PodId;
    use crate::model::{ContainerId, LiveContainer, LivePod};
    let pod = LivePod {
        id: PodId {
            uid: "u".into(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        },
        path: path.parent().unwrap(),
        containers: indexmap::IndexMap::from([(
            "app".into(),
            LiveContainer {
                id: ContainerId::of_test("i"),
                path: path.clone(),
            },
        )]),
    };
    NodePods {
        tree: None,
        pods: vec![Arc::new(pod)],
    }
}

#[test]
fn a_group_is_told_once_it_is_whole() {
    let mut kernel = Kernel::default();
    let group = container(0, 1);
    kernel.make(&group);
    kernel.groups.insert(group.clone());
    kernel.processes.insert(group.clone(), vec![7, 8]);
    let mut first = attribution(None, 0);
    first.names.update(&node_with(&group), ms(0));
    sweep(&mut first, &kernel, 1);
    kernel.kill(&group);
    live(&mut first, &kernel, kill(7, 40, Some(group.clone())), 10);
    first.release(at(10), ms(10), &kernel);
    assert_eq!(
        std::mem::take(&mut first.reports),
        [],
        "one of its processes is still there"
    );
    kernel.kill(&group);
    kernel.kill(&group);
    kernel.processes.insert(group.clone(), Vec::new());
    live(&mut first, &kernel, kill(8, 42, Some(group.clone())), 12);
    first.release(at(12), ms(12), &kernel);
    assert_eq!(
        std::mem::take(&mut first.reports),
        [],
        "a kill was counted that was not logged yet"
    );
    let again = Event::Again {
        pid: 7,
        group: group.clone(),
    };
    first.add_event(logged(again, number(43), 13, LIVE), <_>::default(), at(13), &kernel);
    first.release(at(13), ms(13), &kernel);
    let told = std::mem::take(&mut first.reports);
    assert_eq!((told.len(), &told[0].group), (1, &vec![7, 8]));
    assert_eq!(finish(&mut first, &kernel, 20), []);
    let saved = checkpoint(&mut first);
    let mut next = attribution(Some(&saved), 5000);
    assert_eq!(finish(&mut next, &kernel, 5001), []);
}

/// The agent reads the log so late that the container is gone. An earlier kill there was none of the group.
#[test]
fn a_group_that_is_gone_is_one_kill() {
    let group = container(0, 1);
    let groups = |kills: &[(u32, u64)], again: bool| {
        let mut kernel = Kernel::default();
        kernel.make(&group);
        let mut attribution = attribution(None, 0);
        attribution.names.update(&node_with(&group), ms(0));
        sweep(&mut attribution, &kernel, 1);
        (0..kills.len() + usize::from(again)).for_each(|_| kernel.kill(&group));
        kernel.remove(&group);
        for &(pid, time) in kills {
            let mut kill = kill(pid, time * 1000 + u64::from(pid), Some(group.clone()));
            kill.group = (pid == 8).then(|| group.clone());
            live(&mut attribution, &kernel, kill, time);
        }
        if again {
            let group = group.clone();
            let second = logged(Event::Again { pid: 7, group }, number(3_000_000), 2020, LIVE);
            attribution.add_event(second, <_>::default(), at(2020), &kernel);
        }
        let reports = finish(&mut attribution, &kernel, 2030).into_iter();
        reports.map(|report| report.group).collect::<Vec<_>>()
    };
    let earlier = [(6, 2000), (7, 2010), (8, 2010)];
    assert_eq!(groups(&earlier, true), [Vec::<u32>::new(), vec![7, 8]]);
    let seconds_before = [(6, 10), (8, 2010)];
    assert_eq!(groups(&seconds_before, false), [Vec::<u32>::new(), Vec::new()]);
}

/// Through syslog(2) the agent reads the log twice a second, here between the lines of two victims.
#[test]
fn a_group_that_is_gone_is_read_to_its_end() {
    for is_gone_at_once in [false, true] {
        let mut kernel = Kernel::default();
        let group = container(0, 1);
        kernel.make(&group);
        let mut attribution = attribution(None, 0);
        attribution.names.update(&node_with(&group), ms(0));
        sweep(&mut attribution, &kernel, 1);
        (0..2).for_each(|_| kernel.kill(&group));
        if is_gone_at_once {
            kernel.remove(&group);
        } else {
            kernel.groups.insert(group.clone());
        }
        live(&mut attribution, &kernel, kill(7, 40, Some(group.clone())), 10);
        kernel.remove(&group);
        attribution.release(at(500), ms(29), &kernel);
        assert!(attribution.has_group_pending(), "the log is not read up to 30 ms");
        let second = Kill {
            group: Some(group.clone()),
            ..kill(8, 41, Some(group))
        };
        live(&mut attribution, &kernel, second, 510);
        attribution.release(at(5529), ms(509), &kernel);
        assert_eq!(attribution.reports, [], "more lines may follow");
        attribution.release(at(5530), ms(509), &kernel);
        let told = std::mem::take(&mut attribution.reports);
        assert_eq!((told.len(), &told[0].group), (1, &vec![7, 8]), "of a log that is stuck");
    }
}

#[test]
fn no_report_waits_for_ever() {
    let cgroup = container(0, 1);
    let told_at = |is_group: bool, is_gone: bool, due: u64, moments: [u64; 2]| {
        let mut kernel = Kernel::default();
        kernel.make(&cgroup);
        let mut attribution = attribution(None, 0);
        if is_group {
            kernel.groups.insert(cgroup.clone());
            kernel.processes.insert(cgroup.clone(), vec![7, 8]);
            attribution.names.update(&node_with(&cgroup), ms(0));
        }
        sweep(&mut attribution, &kernel, 1);
        kernel.kill(&cgroup);
        live(&mut attribution, &kernel, kill(7, 40, Some(cgroup.clone())), 10);
        if is_gone {
            kernel.remove(&cgroup);
        }
        assert_eq!(attribution.next_release(ms(10)), Some(ms(due)));
        moments.map(|moment| {
            attribution.release(at(moment), ms(moment), &kernel);
            std::mem::take(&mut attribution.reports).len()
        })
    };
    assert_eq!(told_at(false, false, 2010, [2009, 2010]), [0, 1], "of an unknown pod");
    assert_eq!(told_at(true, true, 12, [29, 30]), [0, 1], "of a group that is gone");
    assert_eq!(told_at(true, false, 12, [1009, 1010]), [0, 1], "of a group that lives");
}

#[test]
fn kills_between_two_agents_are_marked() {
    let path = container(0, 1);
    let saved = |kernel: &Kernel| {
        let mut first = attribution(None, 0);
        sweep(&mut first, kernel, 1);
        checkpoint(&mut first)
    };
    let marks = |reports: Vec<OomReport>| reports.iter().map(|report| report.while_down).collect::<Vec<_>>();
    for (continues, replayed, is_marked) in [(true, REPLAYED, true), (true, LIVE, false), (false, REPLAYED, false)] {
        let mut kernel = Kernel::default();
        kernel.make(&path);
        let saved = saved(&kernel);
        let mut next = attribution(continues.then_some(saved.as_slice()), 5000);
        kernel.kill(&path);
        let killed = Event::Kill(Box::new(kill(7, 6000, Some(path.clone()))));
        let killed = logged(killed, number(6000), 6000, replayed);
        next.add_event(killed, <_>::default(), at(6001), &kernel);
        assert_eq!(marks(finish(&mut next, &kernel, 6002)), [is_marked], "{continues}");
    }
    for (swept_before, is_marked) in [(false, true), (true, false)] {
        let mut kernel = Kernel::default();
        kernel.make(&path);
        let mut next = attribution_of(Some(&saved(&kernel)), 5000);
        if swept_before {
            sweep(&mut next, &kernel, 5001);
        }
        kernel.kill(&path);
        assert_eq!(marks(finish(&mut next, &kernel, 5002)), [is_marked], "by its counter");
    }
}

#[test]
fn earlier_kills_of_another_tree_are_no_news() {
    let other = |path: CgroupPath| CgroupPath::new(&format!("/kubelet{path}")).unwrap();
    let mut kernel = Kernel::default();
    for path in [container(0, 1), other(container(0, 1))] {
        kernel.make(&path);
        kernel.kill(&path);
    }
    let mut attribution = attribution(None, 0);
    assert_eq!(finish(&mut attribution, &kernel, 1), []);
    for (tree, at) in [(other(root()), 10_000), (root(), 20_000)] {
        attribution.set_tree(CgroupVersion::V2, &tree, false);
        assert_eq!(finish(&mut attribution, &kernel, at), [], "{tree}");
    }
    kernel.kill(&container(0, 1));
    sweep(&mut attribution, &kernel, 30_000);
    assert_eq!(finish(&mut attribution, &kernel, 35_000).len(), 1);
}

#[test]
fn a_kill_in_an_own_write_is_blamed() {
    for (invoker, is_blamed) in [(99, true), (98, false)] {
        let mut kernel = Kernel::default();
        kernel.make(&container(0, 1));
        kernel.own_threads.insert(99);
        let mut attribution = attribution(None, 0);
        sweep(&mut attribution, &kernel, 1);
        kernel.kill(&container(0, 1));
        let killed = Kill {
            invoker: Some(invoker),
            ..kill(7, 40, Some(container(0, 1)))
        };
        live(&mut attribution, &kernel, killed, 10);
        let told = finish(&mut attribution, &kernel, 20);
        let blamed: Vec<bool> = told.iter().map(|report| report.own_write.is_some()).collect();
        assert_eq!(blamed, [is_blamed]);
    }
}

#[test]
fn a_lost_log_doubles_no_kill() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut attribution = attribution(None, 0);
    sweep(&mut attribution, &kernel, 1);
    kernel.kill(&container(0, 1));
    live(&mut attribution, &kernel, kill(7, 40, Some(container(0, 1))), 10);
    sweep(&mut attribution, &kernel, 20);
    attribution.log_ended(at(20), &kernel);
    kernel.kill(&container(0, 1));
    let told = finish(&mut attribution, &kernel, 100);
    let known: Vec<Confidence> = told.iter().map(|report| report.confidence).collect();
    assert_eq!(known, [Confidence::Exact, Confidence::CounterAlone]);
    // The agent opens the log again and reads it from the beginning.
    attribution.joiner.has_log = true;
    let second = Event::Kill(Box::new(kill(8, 41, Some(container(0, 1)))));
    attribution.add_event(
        logged(second, number(41), 99, REPLAYED),
        <_>::default(),
        at(200),
        &kernel,
    );
    assert_eq!(finish(&mut attribution, &kernel, 300), []);
}

#[test]
fn a_late_record_is_no_kill_after_restart() {
    for is_gone in [false, true] {
        let mut kernel = Kernel::default();
        kernel.make(&container(0, 1));
        let mut first = attribution(None, 0);
        sweep(&mut first, &kernel, 1);
        kernel.kill(&container(0, 1));
        sweep(&mut first, &kernel, 20);
        let told = finish(&mut first, &kernel, 3000);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].confidence, Confidence::CounterAlone);
        let saved = checkpoint(&mut first);
        if is_gone {
            kernel.remove(&container(0, 1));
        }
        let mut next = attribution(Some(&saved), 5000);
        live(&mut next, &kernel, kill(7, 40, Some(container(0, 1))), 9000);
        assert_eq!(finish(&mut next, &kernel, 9100), []);
        assert!(next.checkpoint.records.is_reported(number(40)));
    }
}

#[test]
fn numbers_of_the_device_are_not_continued() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut first = attribution(None, 0);
    sweep(&mut first, &kernel, 1);
    let saved = String::from_utf8(checkpoint(&mut first)).unwrap();
    let saved = saved.replace("\"upTo\":null", "\"upTo\":39");
    assert!(saved.contains("\"upTo\":39"), "{saved}");
    kernel.kill(&container(0, 1));
    let mut next = attribution(Some(saved.as_bytes()), 5000);
    let logged_before = Event::Kill(Box::new(kill(7, 40, Some(container(0, 1)))));
    let logged_before = logged(logged_before, number(40), 40, REPLAYED);
    next.add_event(logged_before, <_>::default(), at(5001), &kernel);
    sweep(&mut next, &kernel, 5002);
    let told = finish(&mut next, &kernel, 9000);
    let known: Vec<Confidence> = told.iter().map(|report| report.confidence).collect();
    assert_eq!(known, [Confidence::CounterAlone]);
}

/// By the log's clock, the kill was after the start of the agent that finds it again.
#[test]
fn a_kill_with_a_number_of_the_device_is_not_repeated() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut first = attribution(None, 0);
    sweep(&mut first, &kernel, 1);
    kernel.kill(&container(0, 1));
    let killed = kill(7, 40, Some(container(0, 1)));
    live(&mut first, &kernel, killed.clone(), 10);
    assert_eq!(finish(&mut first, &kernel, 20).len(), 1);
    let saved = String::from_utf8(checkpoint(&mut first)).unwrap();
    let of_device = saved.replace(&number(40).to_string(), "39");
    assert_ne!(of_device, saved);
    let mut saved = of_device.into_bytes();
    for start in [5000, 50_000] {
        let mut next = attribution(Some(&saved), start);
        let event = Event::Kill(Box::new(killed.clone()));
        let replayed = logged(event, number(40), start + 1, REPLAYED);
        next.add_event(replayed, <_>::default(), at(start + 1), &kernel);
        assert_eq!(finish(&mut next, &kernel, start + 2), []);
        saved = checkpoint(&mut next);
    }
}

#[test]
fn paths_of_kind_are_local() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut attribution = attribution(None, 0);
    attribution.namespaced = true;
    sweep(&mut attribution, &kernel, 1);
    kernel.kill(&container(0, 1));
    let whole = CgroupPath::new(&format!("/docker/c0ffee{}", container(0, 1))).unwrap();
    live(&mut attribution, &kernel, kill(7, 40, Some(whole)), 10);
    let told = finish(&mut attribution, &kernel, 20);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].cgroup, Some(container(0, 1).to_string()));
}

#[test]
fn a_kill_of_another_kind_node_is_outside() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut attribution = attribution(None, 0);
    attribution.namespaced = true;
    attribution.names.update(&node_with(&container(0, 1)), ms(0));
    sweep(&mut attribution, &kernel, 1);
    let whole = |node: &str, number| CgroupPath::new(&format!("/docker/{node}{}", container(0, number))).unwrap();
    kernel.kill(&container(0, 1));
    live(&mut attribution, &kernel, kill(7, 40, Some(whole("c0ffee", 1))), 10);
    live(&mut attribution, &kernel, kill(8, 50, Some(whole("decaf", 2))), 20);
    let told = finish(&mut attribution, &kernel, 30);
    let cgroups: Vec<_> = told.into_iter().map(|report| report.cgroup).collect();
    let expected = [container(0, 1), whole("decaf", 2)];
    assert_eq!(cgroups, expected.map(|path| Some(path.to_string())));
}

#[test]
fn only_valid_checkpoints_are_continued() {
    let begin = |checkpoint: &[u8]| Checkpoint::decode(checkpoint, boot()).map(drop);
    let refused = |checkpoint: &[u8]| begin(checkpoint).unwrap_err().to_string();
    assert!(refused(b"nonsense").contains("cannot be read"));
    let saved = String::from_utf8(checkpoint(&mut attribution(None, 0))).unwrap();
    assert!(begin(saved.as_bytes()).is_ok());
    let other = saved.replace("\"version\":1", "\"version\":9");
    assert!(refused(other.as_bytes()).contains("is of version 9"));
}
