use proptest::prelude::*;

use super::*;
use crate::oom::Limit;

mod forms;

const KILLED: &str = "Out of memory: Killed process 7 (x) total-vm:4kB, anon-rss:3kB";

#[test]
fn a_bare_line_counts_in_pasted_text() {
    assert_eq!(parse_log(KILLED.as_bytes()).len(), 1);
    assert_eq!(parse_log(format!("[    1.500000] first\n{KILLED}").as_bytes()).len(), 1);
    assert_eq!(parse_log(format!("6,1,2,-;first\n{KILLED}").as_bytes()), []);
    assert_eq!(parse_log(format!("3,1,2,-;{KILLED}\n SUBSYSTEM=x").as_bytes()).len(), 1);
}

#[test]
fn time_and_number_are_those_of_the_kill() {
    let of = |log: String| {
        parse_log(log.as_bytes())
            .first()
            .map(|kill| (kill.seq, kill.timestamp_us))
    };
    assert_eq!(of(format!("3,8,9,-;{KILLED}\r\n")), Some((Some(8), Some(9))));
    assert_eq!(of(format!("[    1.500000] {KILLED}")), Some((None, Some(1_500_000))));
    assert_eq!(of(format!("[Fri Nov 21 02:53:00 2025] {KILLED}")), Some((None, None)));
}

#[test]
fn the_time_of_day_separates_reports() {
    let report = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a,task=x,pid=7,uid=0";
    let log = |first, second| format!("Nov 20 {first} n kernel: {report}\nNov 20 {second} n kernel: {KILLED}\n");
    let cgroups = |log: String| -> Vec<bool> {
        parse_log(log.as_bytes())
            .iter()
            .map(|kill| kill.task_cgroup.is_some())
            .collect()
    };
    assert_eq!(cgroups(log("02:53:00", "02:53:02")), [true]);
    assert_eq!(cgroups(log("23:59:59", "00:00:02")), [true]);
    assert_eq!(cgroups(log("02:53:00", "02:53:30")), [true, false]);
}

#[test]
fn a_reported_process_is_no_earlier_one() {
    let report = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=x,pid=7,uid=0";
    let dates = ["Nov 20", "Nov 21"];
    let lines = dates.map(|date| {
        [report, KILLED]
            .map(|text| format!("{date} 02:53:00 n kernel: {text}\n"))
            .concat()
    });
    assert_eq!(parse_log(lines.concat().as_bytes()).len(), 2);
    let logged_again = lines.concat() + &format!("Nov 21 02:53:00 n kernel: {KILLED}");
    assert_eq!(parse_log(logged_again.as_bytes()).len(), 2);
}

#[test]
fn kills_at_once_are_told_once() {
    let chosen = |pod: &str, pid: u32| {
        format!(
            "x invoked oom-killer: gfp_mask=0xd0, order=0, oom_score_adj=984\n\
             Task in /{pod}/c killed as a result of limit of /{pod}\n\
             Memory cgroup out of memory: Kill process {pid} (x) score 9 or sacrifice child\n"
        )
    };
    let killed = [6, 8].map(|pid| format!("Killed process {pid} (x) total-vm:4kB, anon-rss:3kB\n"));
    let log = chosen("a", 6) + &chosen("b", 8) + &killed.concat();
    let kills = parse_log(log.as_bytes());
    let limits: Vec<_> = kills
        .iter()
        .map(|kill| (kill.pid, kill.limit.cgroup().unwrap().as_str()))
        .collect();
    assert_eq!(limits, [(6, "/a"), (8, "/b")]);
}

/// As where two copies of a log are merged.
#[test]
fn a_repeated_report_makes_no_second_kill() {
    let report = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a,task=x,pid=7,uid=0";
    let chosen = "Out of memory: Kill process 7 (x) score 9 or sacrifice child";
    let log = [report, chosen, report, KILLED].join("\n");
    assert_eq!(parse_log(log.as_bytes()).len(), 1);
}

#[test]
fn a_late_group_joins_its_first_victim() {
    let log = "Memory cgroup out of memory: Killed process 7 (x) total-vm:4kB\n\
               Tasks in /a are going to be killed due to memory.oom.group set\n\
               Memory cgroup out of memory: Killed process 7 (x) total-vm:4kB";
    let kills = parse_log(log.as_bytes());
    assert_eq!(kills.len(), 1);
    assert_eq!(kills[0].task_cgroup.as_ref().map(CgroupPath::as_str), Some("/a"));
    assert_eq!(
        (&kills[0].group, &kills[0].limit),
        (&kills[0].task_cgroup, &Limit::Unknown)
    );
}

use crate::model::CgroupPath;

/// Pieces that resemble the lines of kills.
const PIECES: [&str; 21] = [
    "3,1,2,-;",
    "6,2,3,c;",
    "11,3,4,-;",
    "[   1.500000] ",
    "kernel: ",
    "\n",
    "\r\n",
    " ",
    "\\x0a",
    "\u{fffd}",
    "oom-kill:constraint=",
    ",oom_memcg=",
    ",global_oom",
    ",task_memcg=",
    "/kubepods",
    ",task=",
    ",pid=7,uid=0",
    "Memory cgroup out of memory: ",
    "Out of memory",
    "Killed process 7 (x) total-vm:1kB",
    "Tasks in /a are going to be killed due to memory.oom.group set",
];

proptest! {
    #[test]
    fn no_bytes_at_all_cause_a_panic(log in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(parse_log(&log).len() <= log.len());
    }

    #[test]
    fn a_kill_needs_a_line_of_its_own(pieces in proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..40)) {
        let log = pieces.concat();
        let lines = log.lines().filter(|line| line.contains("Killed process 7 (x) total-vm:1kB")).count();
        prop_assert!(parse_log(log.as_bytes()).len() <= lines, "{log}");
    }
}
