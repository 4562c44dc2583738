//! Reports of kernels before Linux 5.1, which name no pid.

use super::super::message::task_and_limit;
use super::*;

const POD: &str = "/kubepods/burstable/pod6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77";
const INVOKED: &str = "x invoked oom-killer: gfp_mask=0xd0, order=0, oom_score_adj=984";
const CHOSEN: &str = "Memory cgroup out of memory: Kill process 6 (x) score 1250 or sacrifice child";

fn task_in(task: &str, limit: &str) -> String {
    format!("Task in {task} killed as a result of limit of {limit}")
}

fn old_killed(pid: u32) -> String {
    format!("Killed process {pid} (x) total-vm:4kB, anon-rss:3kB, file-rss:2kB, shmem-rss:1kB")
}

fn explained(kill: &Kill) -> (u32, Level, Option<&str>) {
    (kill.pid, kill.limit.level(), cgroup_of(kill))
}

#[test]
fn a_report_explains_the_killed_child() {
    let found = kills_in(&[INVOKED, &task_in(GROUP, POD), &usage(8), CHOSEN, &old_killed(7)]);
    assert_eq!(
        found.iter().map(explained).collect::<Vec<_>>(),
        [(7, Level::Pod, Some(GROUP))]
    );
    assert_eq!(found[0].usage.map(|usage| usage.limit), Some(8 << 20));
}

/// Linux 5.0 names the chosen process in the report, and may kill its child.
#[test]
fn a_report_of_the_parent_explains_the_child() {
    for killed in [6, 7] {
        let found = kills_in(&[INVOKED, &usage(8), &summary(6, GROUP), CHOSEN, &old_killed(killed)]);
        assert_eq!(
            found.iter().map(explained).collect::<Vec<_>>(),
            [(killed, Level::Container, Some(GROUP))]
        );
        assert_eq!(found[0].usage.map(|usage| usage.limit), Some(8 << 20));
    }
}

#[test]
fn no_name_of_a_command_changes_a_report() {
    let panic = "Out of memory: [9]: segfault at 0 ip 0 sp 0 error 4 in panic_on_oom is enabled[1000+1000]";
    for line in [panic, "Kill process 7 (9): drop_caches: 3"] {
        let found = kills_in(&[&summary(7, GROUP), line, &killed(8), &killed(7)]);
        assert_eq!(
            found.iter().map(explained).collect::<Vec<_>>(),
            [(8, Level::Unspecified, None), (7, Level::Container, Some(GROUP))],
            "{line}"
        );
    }
}

#[test]
fn a_report_may_name_the_node() {
    let chosen = CHOSEN.replace("Memory cgroup out", "Out");
    let found = kills_in(&[INVOKED, &task_in(GROUP, "host"), &chosen, &old_killed(7)]);
    assert_eq!(
        found.iter().map(explained).collect::<Vec<_>>(),
        [(7, Level::Node, Some(GROUP))]
    );
    let evil = format!("{GROUP}/x killed as a result of limit of /kubepods/podb");
    assert_eq!(task_and_limit(&task_in(&evil, "host")).unwrap().0, Limit::Unknown);
}

#[test]
fn processes_that_share_the_memory_are_kills() {
    let sharer = "Kill process 8 (a) (b) sharing same memory";
    let of_node = CHOSEN.replace("Memory cgroup out", "Out");
    for (chosen, expected) in [
        (CHOSEN, (8, Level::Pod, Some(GROUP))),
        (&of_node, (8, Level::Node, None)),
    ] {
        let report = task_in(GROUP, POD);
        let found = kills_in(&[INVOKED, &report, chosen, &old_killed(7), sharer]);
        assert_eq!((explained(&found[1]), &*found[1].comm), (expected, "a) (b"), "{chosen}");
    }
}

#[test]
fn two_reports_at_once_explain_neither_kill() {
    let reports = [task_in(GROUP, POD), task_in("/b/c", "/b")];
    let lines = [
        INVOKED,
        &reports[0],
        INVOKED,
        &reports[1],
        CHOSEN,
        &old_killed(7),
        CHOSEN,
        &old_killed(8),
    ];
    let found = kills_in(&lines);
    assert!(
        found
            .iter()
            .all(|kill| kill.limit == Limit::Unknown && kill.task_cgroup.is_none()),
        "{found:?}"
    );
    let found = kills_in(&[
        INVOKED,
        &reports[0],
        INVOKED,
        CHOSEN,
        &old_killed(7),
        &reports[1],
        CHOSEN,
        &old_killed(8),
    ]);
    assert_eq!(
        found.iter().map(cgroup_of).collect::<Vec<_>>(),
        [Some(GROUP), Some("/b/c")]
    );
}

#[test]
fn kills_at_once_have_their_own_reports() {
    let reports = [task_in(GROUP, POD), task_in("/b/c", "/b")];
    let other = CHOSEN.replace("process 6", "process 8");
    let at_once = [INVOKED, &reports[0], CHOSEN, INVOKED, &reports[1], &other].map(str::to_owned);
    let found = |pids: [u32; 2]| {
        let lines: Vec<String> = at_once.iter().cloned().chain(pids.map(old_killed)).collect();
        let found = kills_in(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let explained = found.iter().map(|kill| (kill.pid, cgroup_of(kill).map(str::to_owned)));
        explained.collect::<Vec<_>>()
    };
    let [first, second] = [(6, Some(GROUP.to_owned())), (8, Some("/b/c".to_owned()))];
    assert_eq!(found([6, 8]), [first.clone(), second.clone()]);
    assert_eq!(found([8, 6]), [second, first]);
    for [one, two] in [[7, 9], [7, 6], [9, 8]] {
        assert_eq!(found([one, two]), [(one, None), (two, None)], "of which is the child?");
    }
}

#[test]
fn a_kill_belongs_to_the_latest_report() {
    let report = task_in(GROUP, POD);
    let second = [&report, CHOSEN, &old_killed(7), CHOSEN, &old_killed(8)].map(ToOwned::to_owned);
    let lines: Vec<&str> = second.iter().map(String::as_str).collect();
    assert_eq!(kills_in(&lines)[1].limit.level(), Level::Pod);
    let mut lines = Vec::new();
    for pid in 10..20 {
        lines.extend([report.clone(), CHOSEN.to_owned(), old_killed(pid)]);
    }
    lines.extend([CHOSEN.to_owned(), old_killed(20)]);
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let found = kills_in(&lines);
    assert_eq!(explained(&found[9]), (19, Level::Pod, Some(GROUP)));
    assert_eq!(explained(&found[10]), (20, Level::Unspecified, None));
}

/// As in a log that was searched for `killed`: the second kill may be for the node's memory.
#[test]
fn a_kill_unchosen_claims_no_earlier_report() {
    let found = kills_in(&[&task_in(GROUP, POD), &old_killed(7), &old_killed(8)]);
    assert_eq!(
        found.iter().map(explained).collect::<Vec<_>>(),
        [(7, Level::Pod, Some(GROUP)), (8, Level::Unspecified, None)]
    );
}

#[test]
fn a_new_report_ends_the_old_one() {
    let report = task_in(GROUP, POD);
    let found = kills_in(&[&report, CHOSEN, &old_killed(7), INVOKED, &old_killed(8)]);
    assert_eq!(explained(&found[1]), (8, Level::Unspecified, None));
    let node = "Out of memory: Kill process 6 (x) score 9 or sacrifice child";
    let found = kills_in(&[&report, CHOSEN, &old_killed(7), node, &old_killed(8)]);
    assert_eq!(explained(&found[1]), (8, Level::Node, None));
}

#[test]
fn names_with_kernel_words_mislead_nothing() {
    let evil = format!("{GROUP}/x killed as a result of limit of /kubepods/podb/y");
    let (limit, task) = task_and_limit(&task_in(&evil, POD)).unwrap();
    assert_eq!((limit.level(), task.unwrap().as_str()), (Level::Pod, &*evil));
    // Both readings have the task below the limit, and the limits are of two levels.
    let inner = format!("{GROUP}/y killed as a result of limit of {POD}");
    let report = task_in(&format!("{inner}/w"), &inner);
    assert_eq!(task_and_limit(&report).unwrap().0, Limit::Unknown);
}

#[test]
fn a_limit_that_was_cut_is_unknown() {
    let hostile = format!("{GROUP}/x");
    for (task, limit) in [(GROUP, "/kubepo"), (&*hostile, "/kubepods/podb/y")] {
        let report = task_in(task, limit);
        let (limit, found) = task_and_limit(&report).unwrap();
        assert_eq!((limit, found.unwrap().as_str()), (Limit::Unknown, task));
    }
    let left = task_and_limit(&task_in("/", "/a")).unwrap();
    assert_eq!(left.0.cgroup().map(CgroupPath::as_str), Some("/a"));
}
