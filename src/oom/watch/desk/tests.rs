mod story;

use super::super::roster::Residents;
use super::super::surroundings::Glimpse;
use super::super::testing::{Kernel, container, root};
use super::events::MOST_CANDIDATES;
use super::*;
use crate::oom::kill::Kill;
use crate::oom::kmsg::Origin;
use crate::oom::parse::Event;
use crate::oom::report::Confidence;
use crate::oom::{Limit, VictimMemory};

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

/// A desk that knows the tree and reads the log.
fn desk(checkpoint: Option<&[u8]>, now: u64) -> Desk {
    let mut desk = desk_of(checkpoint, now);
    desk.log_began();
    desk
}

/// A desk that knows the tree.
fn desk_of(checkpoint: Option<&[u8]>, now: u64) -> Desk {
    let mut desk = Desk::new(boot(), "n1".to_owned(), checkpoint, at(now)).unwrap();
    desk.take_tree(Counting::Below, &root(), false);
    desk
}

fn kill(pid: u32, record: u64, task: Option<CgroupPath>) -> Kill {
    Kill {
        pid,
        comm: "x".to_owned(),
        limit: task.clone().map_or(Limit::Unknown, Limit::Cgroup),
        task_cgroup: task,
        group: None,
        usage: None,
        memory: VictimMemory::default(),
        oom_score_adj: None,
        uid: None,
        invoker: None,
        seq: Some(record),
        timestamp_us: Some(record),
    }
}

fn logged(event: Event, record: u64, time: u64, origin: Origin) -> Told {
    Told {
        event,
        record,
        logged: ms(time),
        wall: at(time).wall,
        origin,
    }
}

fn live(desk: &mut Desk, kernel: &Kernel, kill: Kill, time: u64) {
    let record = kill.seq.unwrap();
    let event = Event::Kill(Box::new(kill));
    desk.take_event(
        logged(event, record, time, Origin::Live),
        Glimpse::NONE,
        at(time),
        kernel,
    );
}

fn look(desk: &mut Desk, kernel: &Kernel, time: u64) {
    assert!(desk.look(ms(time), kernel, || at(time)).is_none());
}

/// Everything that is told once nothing more can come.
fn finish(desk: &mut Desk, kernel: &Kernel, time: u64) -> Vec<OomReport> {
    look(desk, kernel, time);
    let known = Progress {
        log: ms(time + 1000),
        counters: ms(time + 1000),
    };
    desk.settle(known, at(time + 1000), kernel);
    desk.release(at(time + 10_000), kernel);
    desk.take_reports()
}

fn checkpoint(desk: &mut Desk) -> Vec<u8> {
    desk.unsaved = true;
    desk.take_checkpoint().unwrap().encode().unwrap()
}

#[test]
fn a_named_kill_in_a_known_container_is_told_at_once() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut desk = desk(None, 0);
    look(&mut desk, &kernel, 1);
    kernel.kill(&container(0, 1));
    live(&mut desk, &kernel, kill(7, 40, Some(container(0, 1))), 10);
    desk.release(at(10), &kernel);
    assert_eq!(desk.take_reports(), [], "nobody knows its name yet");
    desk.take_residents(&residents_with(&container(0, 1)), at(11));
    desk.release(at(11), &kernel);
    let told = desk.take_reports();
    assert_eq!(told.len(), 1);
    assert_eq!((&*told[0].id, told[0].time), ("b007-log-40", at(10).wall));
    assert_eq!(told[0].container.as_ref().unwrap().name, "app");
    assert_eq!(told[0].limit.limit_bytes, Some(64 << 20));
    live(&mut desk, &kernel, kill(8, 50, Some(container(0, 1))), 20);
    kernel.kill(&container(0, 1));
    desk.release(at(20), &kernel);
    assert_eq!(desk.take_reports().len(), 1);
    assert_eq!(finish(&mut desk, &kernel, 30), []);
}

#[test]
fn a_kill_that_may_be_any_of_a_flood_lists_some_and_counts_the_others() {
    let mut kernel = Kernel::default();
    let places = [container(0, 1), container(0, 2)];
    places.iter().for_each(|place| kernel.make(place));
    let mut desk = desk(None, 0);
    look(&mut desk, &kernel, 1);
    for number in 0..100 {
        kernel.kill(&places[usize::from(number % 2 == 1)]);
        live(
            &mut desk,
            &kernel,
            kill(1000 + number, 40 + u64::from(number), None),
            10,
        );
    }
    let told = finish(&mut desk, &kernel, 20);
    assert_eq!(told.len(), 100);
    for told in told {
        assert_eq!((told.candidates.len(), told.more_candidates), (MOST_CANDIDATES, 84));
    }
}

#[test]
fn a_clock_that_is_set_back_or_forth_changes_the_times_of_kills_and_nothing_else() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut desk = desk(None, 0);
    look(&mut desk, &kernel, 1);
    let mut told = Vec::new();
    for (record, hours) in [(40, 0), (50, -1), (60, 24)] {
        kernel.kill(&container(0, 1));
        let stepped = |milliseconds| {
            let moment = at(milliseconds);
            let wall = moment.wall + SignedDuration::from_hours(hours);
            Moment { wall, ..moment }
        };
        let now = record;
        let event = Event::Kill(Box::new(kill(7, record, Some(container(0, 1)))));
        let wall = stepped(now).wall;
        let event = Told {
            wall,
            ..logged(event, record, now, Origin::Live)
        };
        desk.take_event(event, Glimpse::NONE, stepped(now), &kernel);
        assert!(desk.look(ms(now + 1), &kernel, || stepped(now + 1)).is_none());
        desk.release(stepped(now + 20_000), &kernel);
        let reports = desk.take_reports();
        assert_eq!(reports.iter().map(|report| report.time).collect::<Vec<_>>(), [wall]);
        told.extend(reports);
    }
    assert_eq!(finish(&mut desk, &kernel, 50_000), [], "nothing is told twice");
    assert_eq!(told.len(), 3);
}

fn residents_with(path: &CgroupPath) -> Residents {
    use crate::actuate::{LiveContainer, LivePod, PodId};
    let pod = LivePod {
        id: PodId {
            uid: "u".to_owned(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        },
        path: path.parent().unwrap(),
        containers: std::collections::BTreeMap::from([(
            "app".to_owned(),
            LiveContainer {
                id: "i".to_owned(),
                path: path.clone(),
            },
        )]),
    };
    Residents {
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
    let mut first = desk(None, 0);
    first.take_residents(&residents_with(&group), at(0));
    look(&mut first, &kernel, 1);
    kernel.kill(&group);
    live(&mut first, &kernel, kill(7, 40, Some(group.clone())), 10);
    first.release(at(10), &kernel);
    assert_eq!(first.take_reports(), [], "one of its processes is still there");
    kernel.kill(&group);
    kernel.kill(&group);
    kernel.processes.insert(group.clone(), Vec::new());
    live(&mut first, &kernel, kill(8, 42, Some(group.clone())), 12);
    first.release(at(12), &kernel);
    assert_eq!(first.take_reports(), [], "a kill was counted that was not logged yet");
    let again = Event::Again {
        pid: 7,
        group: group.clone(),
    };
    first.take_event(logged(again, 43, 13, Origin::Live), Glimpse::NONE, at(13), &kernel);
    first.release(at(13), &kernel);
    let told = first.take_reports();
    assert_eq!((told.len(), &told[0].group), (1, &vec![7, 8]));
    assert_eq!(finish(&mut first, &kernel, 20), []);
    let saved = checkpoint(&mut first);
    let mut next = desk(Some(&saved), 5000);
    assert_eq!(finish(&mut next, &kernel, 5001), []);
}

#[test]
fn what_the_log_told_is_not_told_from_the_counters_when_the_log_is_lost_and_the_other_way_round() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut desk = desk(None, 0);
    look(&mut desk, &kernel, 1);
    kernel.kill(&container(0, 1));
    live(&mut desk, &kernel, kill(7, 40, Some(container(0, 1))), 10);
    look(&mut desk, &kernel, 20);
    desk.log_ended(at(20), &kernel);
    kernel.kill(&container(0, 1));
    let told = finish(&mut desk, &kernel, 100);
    let known: Vec<Confidence> = told.iter().map(|report| report.confidence).collect();
    assert_eq!(known, [Confidence::Exact, Confidence::CounterAlone]);
    // The log is back, with all that is in it.
    desk.log_began();
    let second = Event::Kill(Box::new(kill(8, 41, Some(container(0, 1)))));
    desk.take_event(
        logged(second, 41, 99, Origin::Replayed),
        Glimpse::NONE,
        at(200),
        &kernel,
    );
    assert_eq!(finish(&mut desk, &kernel, 300), []);
}

#[test]
fn paths_of_a_kubelet_in_a_container_are_seen_from_its_own_root() {
    let mut kernel = Kernel::default();
    kernel.make(&container(0, 1));
    let mut desk = desk(None, 0);
    desk.namespaced = true;
    look(&mut desk, &kernel, 1);
    kernel.kill(&container(0, 1));
    let whole = CgroupPath::new(&format!("/docker/c0ffee{}", container(0, 1))).unwrap();
    live(&mut desk, &kernel, kill(7, 40, Some(whole)), 10);
    let told = finish(&mut desk, &kernel, 20);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].cgroup, Some(container(0, 1).to_string()));
}

#[test]
fn nothing_but_a_checkpoint_of_ours_is_gone_on_from() {
    let begin = |checkpoint: &[u8]| Desk::new(boot(), String::new(), Some(checkpoint), at(0)).map(drop);
    assert!(matches!(begin(b"nonsense"), Err(CheckpointError::Unreadable(_))));
    let saved = String::from_utf8(checkpoint(&mut desk(None, 0))).unwrap();
    assert!(begin(saved.as_bytes()).is_ok());
    let other = saved.replace("\"version\":1", "\"version\":9");
    assert!(matches!(begin(other.as_bytes()), Err(CheckpointError::Version(9))));
}
