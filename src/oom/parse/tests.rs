mod hostile;
mod lines;
mod old;
mod summary;

use super::{Event, Parsed, Parser};
use crate::model::CgroupPath;
use crate::oom::report::ReportedMemory;
use crate::oom::{Kill, Level, Limit, Line, Part};

const GROUP: &str = "/kubepods/burstable/pod6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77/a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";

/// Feeds lines, one each millisecond from `start_us`, and returns their events.
fn events_from(parser: &mut Parser, start_us: u64, lines: &[&str]) -> Vec<Event> {
    let line = |(text, at): (&&str, u64)| Line {
        from_kernel: true,
        seq: None,
        timestamp_us: Some(at),
        caller: None,
        part: Part::Start,
        text: (*text).to_owned(),
    };
    let times = (0..).map(|at: u64| start_us + at * 1000);
    let events = lines
        .iter()
        .zip(times)
        .filter_map(|timed| match parser.push(&line(timed)) {
            Parsed::Kill(event) => event,
            Parsed::Known | Parsed::Other => None,
        });
    events.collect()
}

fn kills(events: Vec<Event>) -> Vec<Kill> {
    let kill = |event| match event {
        Event::Kill(kill) => Some(*kill),
        Event::Again { .. } => None,
    };
    events.into_iter().filter_map(kill).collect()
}

fn kills_in(lines: &[&str]) -> Vec<Kill> {
    kills(events_from(&mut Parser::default(), 0, lines))
}

fn killed(pid: u32) -> String {
    format!(
        "Memory cgroup out of memory: Killed process {pid} (x) total-vm:4kB, anon-rss:3kB, file-rss:2kB, shmem-rss:1kB"
    )
}

fn summary(pid: u32, cgroup: &str) -> String {
    format!(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={cgroup},task_memcg={cgroup},task=x,pid={pid},uid=0"
    )
}

fn group(cgroup: &str) -> String {
    format!("Tasks in {cgroup} are going to be killed due to memory.oom.group set")
}

fn usage(megabytes: u64) -> String {
    let kb = megabytes * 1024;
    format!("memory: usage {kb}kB, limit {kb}kB, failcnt 22")
}

fn cgroup_of(kill: &Kill) -> Option<&str> {
    kill.task_cgroup.as_ref().map(CgroupPath::as_str)
}

#[test]
fn usage_belongs_to_its_report() {
    const INVOKED: &str = "x invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0";
    let found = kills_in(&[
        INVOKED,
        &usage(8),
        "kmem: usage 99kB, limit 99kB, failcnt 0",
        &summary(1, "/a"),
        &killed(1),
        &killed(2),
        INVOKED,
        &summary(3, "/b"),
        &killed(3),
    ]);
    let limits: Vec<_> = found
        .iter()
        .map(|kill| kill.usage.map(|usage| usage.limit >> 20))
        .collect();
    assert_eq!(limits, [Some(8), None, None]);
}

#[test]
fn a_command_may_be_named_killed_process() {
    let found = kills_in(&[
        "Killed process invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "CPU: 0 PID: 141 Comm: Killed process Not tainted 6.18",
        &summary(1, GROUP),
        &killed(1),
    ]);
    assert_eq!(found[0].invoker, Some(141));
}

#[test]
fn reports_are_joined_by_pid_whatever_the_order() {
    let found = kills_in(&[&summary(1, "/a"), &summary(2, "/b"), &killed(2), &killed(3), &killed(1)]);
    let told: Vec<_> = found.iter().map(|kill| (kill.pid, cgroup_of(kill))).collect();
    assert_eq!(told, [(2, Some("/b")), (3, None), (1, Some("/a"))]);
    assert_eq!(found[1].limit, Limit::Unknown);
}

#[test]
fn an_old_report_explains_no_new_process() {
    let mut parser = Parser::default();
    assert_eq!(events_from(&mut parser, 0, &[&summary(1, "/a")]), []);
    let late = kills(events_from(&mut parser, 6_000_000, &[&killed(1)]));
    assert_eq!((late.len(), cgroup_of(&late[0])), (1, None));
    let again = events_from(&mut parser, 7_000_000, &[&killed(1)]);
    assert_eq!(again, [], "it is the same kill");
    assert_eq!(
        kills(events_from(&mut parser, 60_000_000, &[&killed(1)])).len(),
        1,
        "the pid was used again"
    );
}

#[test]
fn a_later_report_is_of_another_process() {
    let found = kills_in(&[&summary(1, "/a"), &killed(1), &killed(1), &summary(1, "/b"), &killed(1)]);
    let told: Vec<_> = found.iter().map(|kill| (kill.pid, cgroup_of(kill))).collect();
    assert_eq!(told, [(1, Some("/a")), (1, Some("/b"))]);
}

#[test]
fn a_report_without_victim_explains_nothing() {
    for end in [
        "Out of memory and no killable processes...",
        "Memory cgroup out of memory: OOM victim 1 (x) is already exiting. Skip killing the task",
    ] {
        let found = kills_in(&[&summary(1, "/a"), end, &killed(1)]);
        assert_eq!((found.len(), cgroup_of(&found[0])), (1, None), "{end}");
    }
}

#[test]
fn lost_records_leave_what_follows_unexplained() {
    let mut parser = Parser::default();
    assert_eq!(events_from(&mut parser, 0, &[&summary(1, "/a")]), []);
    parser.lost();
    let found = kills(events_from(&mut parser, 1000, &[&killed(1), &group("/a"), &killed(2)]));
    assert_eq!(found.iter().map(cgroup_of).collect::<Vec<_>>(), [None, None]);
}

#[test]
fn processes_of_a_group_are_told_once() {
    let lines = [
        &summary(1, GROUP),
        &killed(1),
        &group(GROUP),
        &killed(2),
        &killed(1),
        &killed(3),
    ];
    let events = events_from(&mut Parser::default(), 0, &lines.map(|line| &**line));
    let group = CgroupPath::new(GROUP).unwrap();
    assert!(events.contains(&Event::Again { pid: 1, group }));
    let found = kills(events);
    assert_eq!(found.iter().map(|kill| kill.pid).collect::<Vec<_>>(), [1, 2, 3]);
    for kill in &found {
        assert_eq!((cgroup_of(kill), kill.limit.level()), (Some(GROUP), Level::Container));
    }
}

#[test]
fn a_slow_console_doubles_no_kill() {
    let mut parser = Parser::default();
    let mut found = kills(events_from(
        &mut parser,
        0,
        &[&summary(1, GROUP), &killed(1), &group(GROUP)],
    ));
    for pid in 2..10 {
        found.extend(kills(events_from(
            &mut parser,
            u64::from(pid) * 1_000_000,
            &[&killed(pid)],
        )));
    }
    assert_eq!(kills(events_from(&mut parser, 10_000_000, &[&killed(1)])), []);
    assert_eq!(found.len(), 9);
}

#[test]
fn a_group_takes_in_no_strangers() {
    let reports: Vec<String> = (100..110)
        .flat_map(|pid| [summary(pid, "/other"), killed(pid)])
        .collect();
    let mut lines: Vec<&str> = reports.iter().map(String::as_str).collect();
    let (last, member, stranger) = ([killed(109), group("/other")], killed(2), killed(3));
    lines.extend([&*last[1], &*member, &*stranger]);
    let found = kills_in(&lines);
    for kill in &found[10..] {
        assert_eq!((cgroup_of(kill), &kill.limit), (None, &Limit::Unknown), "{}", kill.pid);
    }
    assert_eq!(found.len(), 12);
}

#[test]
fn the_one_whose_allocation_failed_is_named() {
    let cpu = "CPU: 0 PID: 141 Comm: agent Not tainted 6.1";
    let found = kills_in(&[
        "agent invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL)",
        cpu,
        &summary(1, "/a"),
        &killed(1),
        &killed(2),
    ]);
    assert_eq!((found[0].invoker, found[1].invoker), (Some(141), None));
}

#[test]
fn a_full_node_is_known_without_a_report() {
    let line = killed(1).replace("Memory cgroup out", "Out");
    assert_eq!(kills_in(&[&line])[0].limit, Limit::Node);
}
