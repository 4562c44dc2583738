//! Single lines.

use super::super::message::{group, invoker, is_invocation, skipped};
use super::*;

const TAIL: &str = "total-vm:4kB, anon-rss:3kB, file-rss:2kB, shmem-rss:1kB, UID:1000 pgtables:80kB oom_score_adj:-997";

fn killed(text: &str) -> Option<Kill> {
    let line = Line {
        from_kernel: true,
        seq: None,
        timestamp_us: None,
        caller: None,
        part: Part::Start,
        text: text.to_owned(),
    };
    match Parser::default().push(&line) {
        Parsed::Kill(Some(Event::Kill(killed))) => Some(*killed),
        _ => None,
    }
}

#[test]
fn a_kill_reads_the_same_from_every_kernel() {
    let memory = ReportedMemory {
        total_vm_bytes: 4096,
        anon_rss_bytes: 3072,
        file_rss_bytes: 2048,
        shmem_rss_bytes: 1024,
    };
    let cases = [
        (
            format!("Memory cgroup out of memory: Killed process 7 (x) {TAIL}"),
            false,
            memory,
            Some(1000),
            Some(-997),
        ),
        (
            format!("Out of memory: Killed process 7 (x) {TAIL}"),
            true,
            memory,
            Some(1000),
            Some(-997),
        ),
        (
            format!("Out of memory (oom_kill_allocating_task): Killed process 7 (x) {TAIL}"),
            true,
            memory,
            Some(1000),
            Some(-997),
        ),
        (
            "Killed process 7 (x) total-vm:4kB, anon-rss:3kB, file-rss:2kB, shmem-rss:1kB".to_owned(),
            false,
            memory,
            None,
            None,
        ),
    ];
    for (text, node, memory, uid, oom_score_adj) in cases {
        let expected = Kill {
            pid: 7,
            comm: "x".to_owned(),
            limit: if node { Limit::Node } else { Limit::Unknown },
            memory,
            uid,
            oom_score_adj,
            ..Kill::default()
        };
        assert_eq!(killed(&text), Some(expected), "{text}");
    }
}

#[test]
fn commands_end_where_the_kernel_ends_them() {
    for comm in ["", "(sd-pam)", "x) total-vm:9kB", "a (b", ") total-vm:1kB"] {
        let text = format!("Memory cgroup out of memory: Killed process 7 ({comm}) {TAIL}");
        let killed = killed(&text).unwrap();
        assert_eq!(
            (killed.pid, &*killed.comm, killed.memory.total_vm_bytes),
            (7, comm, 4096)
        );
    }
}

#[test]
fn a_message_begins_where_its_line_begins() {
    for text in [
        format!("x: Out of memory: Killed process 7 (x) {TAIL}"),
        format!(" Killed process 7 (x) {TAIL}"),
        format!("Killed process [7]: segfault at 0 (x) {TAIL}"),
        "Killed process 99999999999 (x) total-vm:1kB".to_owned(),
        "Killed process 7 (x".to_owned(),
    ] {
        assert_eq!(killed(&text), None, "{text}");
    }
}

#[test]
fn the_lines_around_a_kill_are_told_apart() {
    for (text, task) in [
        ("CPU: 1 UID: 0 PID: 9270 Comm: a b Not tainted 6.18", 9270),
        ("CPU: 0 PID: 141 Comm: x Tainted: G  W", 141),
        ("CPU: 0 PID: 141 Comm: a b Kdump: loaded Not tainted 5.14", 141),
    ] {
        assert_eq!(invoker(text), Some(task), "{text}");
    }
    let exiting = "Out of memory: OOM victim 7 (x) is already exiting. Skip killing the task";
    assert_eq!(skipped(exiting), Some(7));
    assert_eq!(
        group("Tasks in /a b are going to be killed due to memory.oom.group set"),
        Some(CgroupPath::new("/a b").unwrap())
    );
    for other in [
        "",
        "[   9270]     0  9270    15609 hog",
        "oom_kill_process: 40 callbacks suppressed",
        "Memory cgroup out of memory: Kill process 7 (x (y)) score 9 or sacrifice child",
        "CPU: 1",
        "Out of memory",
        "Mem-Info:",
        "oom_reaper: reaped process 7 (x)",
    ] {
        assert_eq!(
            (killed(other), invoker(other), group(other), skipped(other)),
            (None, None, None, None),
            "{other}"
        );
    }
}

#[test]
fn a_report_begins_with_a_command() {
    const INVOKED: &str = "invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0";
    for comm in ["x", "a b (c)", "fifteen letters", ""] {
        assert!(is_invocation(&format!("{comm} {INVOKED}")), "{comm}");
    }
    let in_name = format!("x[7]: segfault at 0 ip 0 sp 0 error 4 in a {INVOKED}[55+1000]");
    assert!(!is_invocation(&in_name));
}

#[test]
fn vendors_lines_name_their_process() {
    let known = |text: &str| killed(text).map(|kill| (kill.pid, kill.comm, kill.uid, kill.memory.total_vm_bytes >> 10));
    for (text, uid, total_vm) in [
        (
            "Killed process 7 (a), UID 1000, total-vm:4kB, anon-rss:3kB",
            Some(1000),
            4,
        ),
        (
            "Killed process 7, UID 1000, (a) total-vm:4kB, anon-rss:3kB",
            Some(1000),
            4,
        ),
        (
            "Killed process 7 (a) total-vm:4kB, anon-rss:3kB, UID:1000 pgt",
            Some(1000),
            4,
        ),
        ("Killed process 7 (a) total-vm:4kB, anon-r", None, 4),
        ("Killed process 7 (a) total-vm:4", None, 0),
        ("Killed process 7 (a)", None, 0),
    ] {
        assert_eq!(known(text), Some((7, "a".to_owned(), uid, total_vm)), "{text}");
    }
}
