//! The text of single messages about kills, as facts. Pure functions of one text.
//!
//! The formats are those of mm/oom_kill.c and mm/memcontrol.c from Linux 3.10 on. A message begins where its line begins:
//! a message further on in a line is text of a process.
//!
//! A process chooses its command's name, and a container the names of its cgroups. A cgroup's name may hold any
//! character except `/`, a command's name any character at all, and the kernel quotes neither. So the parser relies on
//! what no process can choose: a path begins with `/`, and with the names of the kubelet and the runtime, before any name
//! that a container chose; a command has at most 15 bytes; the last `,pid=…,uid=…` is the kernel's; the victim's cgroup is
//! the one whose limit was hit or is below that. Where several readings remain, the fact that they differ in is unknown.

use super::super::kill::{Kill, Limit, LimitUsage};
use super::super::record::number;
use super::super::report::ReportedMemory;
use crate::model::CgroupPath;

/// This many readings of a text are tried.
const MANY_READINGS: usize = 64;

/// How a summary of a kill begins: longer than a command's name.
pub(in crate::oom) const SUMMARY: &str = "oom-kill:constraint=";

/// How the lines begin that matter most.
const BEGINNINGS: [&str; 6] = [
    SUMMARY,
    "Memory cgroup out of memory",
    "Out of memory",
    "Killed process ",
    "Task in /",
    "Tasks in /",
];

/// What stands between the victim's cgroup and the one with the limit (before Linux 5.0).
pub(in crate::oom) const KILLED_FOR: &str = " killed as a result of limit of ";

/// Whether a text begins as a message about a kill.
pub(in crate::oom) fn begins_message(text: &str) -> bool {
    BEGINNINGS.iter().any(|beginning| text.starts_with(beginning))
}

/// Whether a line speaks of a kill, wherever in it. Where a protocol or a driver is out of memory (`TCP: out of memory -- consider
/// tuning tcp_mem`, `Out of memory [NV_ERR_NO_MEMORY]`), the kernel kills no process.
pub(in crate::oom) fn speaks_of_kill(text: &str) -> bool {
    const WORDS: [&str; 7] = [
        "Killed process",
        "Kill process",
        "oom-kill:",
        "cgroup out of memory",
        "Out of memory: ",
        "Out of memory (",
        "Out of memory and ",
    ];
    WORDS.iter().any(|words| text.contains(words))
}

/// Whether a report begins with this line: `comm invoked oom-killer: …`.
pub(super) fn is_invocation(text: &str) -> bool {
    let invoker = text.split_once(" invoked oom-killer: ");
    invoker.is_some_and(|(comm, _)| is_comm(comm))
}

/// Whether a whole line is one of those that the kernel prints in one piece while it kills. Nothing that a process can name
/// makes another line look like one.
pub(in crate::oom) fn is_of_kill(text: &str) -> bool {
    is_invocation(text)
        || usage(text).is_some()
        || chosen(text).is_some()
        || killed(text).is_some()
        || skipped(text).is_some()
        || kills_none(text)
}

/// Whether a whole line can matter to the parser.
pub(in crate::oom) fn may_matter(text: &str) -> bool {
    let others = ["Task", "memory: usage ", " Comm: ", "invoked oom-killer"];
    speaks_of_kill(text) || others.iter().any(|words| text.contains(words))
}

/// `memory: usage 16384kB, limit 16384kB, failcnt 22`: `mem_cgroup_print_oom_meminfo` prints this on v1 and v2.
pub(super) fn usage(text: &str) -> Option<LimitUsage> {
    let (usage, rest) = text.strip_prefix("memory: usage ")?.split_once(", limit ")?;
    let limit = kilobytes(rest.split(',').next()?)?;
    let usage = kilobytes(usage)?;
    Some(LimitUsage { usage, limit })
}

/// The limit that a line names as the cause, and what follows the cause.
fn outcome(text: &str) -> (Limit, &str) {
    let causes = [
        ("Out of memory", Limit::Node),
        ("Memory cgroup out of memory", Limit::Unknown),
    ];
    for (cause, limit) in causes {
        if let Some(rest) = text.strip_prefix(cause) {
            let rest = rest.strip_prefix(" (oom_kill_allocating_task)").unwrap_or(rest);
            return (limit, rest.strip_prefix(": ").unwrap_or(rest));
        }
    }
    // Before Linux 5.1 the line of a kill does not name the cause.
    (Limit::Unknown, text)
}

/// `OOM victim 7 (comm) is already exiting. Skip killing the task`: the chosen process was gone before the kernel could
/// kill it.
pub(super) fn skipped(text: &str) -> Option<u32> {
    let (victim, _, after) = process(text, "OOM victim ")?;
    (after == " is already exiting. Skip killing the task").then_some(victim.pid)
}

/// Whether the kernel found no process to kill, or panics instead (`vm.panic_on_oom`). It prints the reason of a panic twice.
pub(super) fn kills_none(text: &str) -> bool {
    let text = text.strip_prefix("---[ end ").unwrap_or(text);
    let text = text.strip_prefix("Kernel panic - not syncing: ").unwrap_or(text);
    let reasons = [
        "Out of memory and no killable processes",
        "Out of memory: system-wide panic_on_oom is enabled",
        "Out of memory: compulsory panic_on_oom is enabled",
    ];
    reasons.iter().any(|reason| text.starts_with(reason))
}

/// `CPU: 1 UID: 0 PID: 7 Comm: …`: the task that allocated, or that lowered a limit.
pub(super) fn invoker(text: &str) -> Option<u32> {
    let (_, rest) = text.strip_prefix("CPU: ")?.split_once(" PID: ")?;
    number(rest.split_once(" Comm: ")?.0)
}

/// The lines of all processes of this cgroup follow, that of the chosen process a second time.
pub(super) fn group(text: &str) -> Option<CgroupPath> {
    let rest = text.strip_prefix("Tasks in ")?;
    let cgroup = rest.strip_suffix(" are going to be killed due to memory.oom.group set")?;
    CgroupPath::new(cgroup).ok()
}

/// `Kill process 7 (comm) score 1250 or sacrifice child`.
pub(super) fn chosen(text: &str) -> Option<Kill> {
    // A command may be named `Kill process 7`.
    let (kill, _, after) = process(text, "Kill process ")?;
    after.starts_with(" score ").then_some(kill)
}

/// `Kill process 7 (comm) sharing same memory`: older kernels name each other process that they kill for the limit of the last
/// one.
pub(super) fn sharer(text: &str, last_limit: Option<&Limit>) -> Option<Kill> {
    let (kill, _, after) = process(text, "Kill process ")?;
    let limit = last_limit.cloned().unwrap_or_default();
    (after == " sharing same memory").then_some(Kill { limit, ..kill })
}

/// The process of a line with this verb, the text between its pid and its command, and the text after both.
fn process<'t>(text: &'t str, verb: &str) -> Option<(Kill, &'t str, &'t str)> {
    let (limit, outcome) = outcome(text);
    let (pid, rest) = outcome.strip_prefix(verb)?.split_once(" (")?;
    let (pid, before) = pid.split_once(',').unwrap_or((pid, ""));
    let (comm, after) = split_comm(rest)?;
    let kill = Kill {
        pid: number(pid)?,
        comm: comm.to_owned(),
        limit,
        ..Kill::default()
    };
    Some((kill, before, after))
}

/// `Killed process 7 (comm) total-vm:…`; in vendors' kernels also `… 7 (comm), UID 0, total-vm:…` and `… 7, UID 0, (comm)
/// total-vm:…`. A line that was cut has zero for the amounts that it lost.
pub(super) fn killed(text: &str) -> Option<Kill> {
    let (kill, before, after) = process(text, "Killed process ")?;
    // The first of each name is the kernel's.
    let fields = || before.split(',').chain(after.split([',', ' ', '\n'])).map(str::trim);
    let field = |name: &str| fields().find_map(|field| field.strip_prefix(name));
    let bytes = |name| field(name).and_then(kilobytes).unwrap_or(0);
    let vendors_uid = || {
        [before, after]
            .iter()
            .find_map(|text| text.split_once("UID ")?.1.split(',').next())
    };
    Some(Kill {
        memory: ReportedMemory {
            total_vm_bytes: bytes("total-vm:"),
            anon_rss_bytes: bytes("anon-rss:"),
            file_rss_bytes: bytes("file-rss:"),
            shmem_rss_bytes: bytes("shmem-rss:"),
        },
        oom_score_adj: field("oom_score_adj:").and_then(|score| score.parse().ok()),
        uid: field("UID:").or_else(vendors_uid).and_then(number),
        ..kill
    })
}

/// `16384kB` in bytes.
fn kilobytes(text: &str) -> Option<u64> {
    number::<u64>(text.strip_suffix("kB")?).map(|kb| kb.saturating_mul(1024))
}

/// `TASK_COMM_LEN` without the terminating zero, in bytes. Each character stands for at least one byte.
const LONGEST_COMM: usize = 15;
/// The longest text of a name of this length: `dmesg` prints four characters for a byte, and U+FFFD has three bytes.
const LONGEST_COMM_TEXT: usize = 4 * LONGEST_COMM;

/// Whether a text can be the name of a command. `dmesg` prints `\xNN` in place of each unprintable byte.
fn is_comm(text: &str) -> bool {
    text.chars().count() <= LONGEST_COMM + 3 * text.matches("\\x").count()
}

/// The last place at or before `at` where a character begins, or the end of the text.
fn char_boundary(text: &str, at: usize) -> usize {
    let places = (0..=at.min(text.len())).rev();
    places.into_iter().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Splits `comm)…`. The command's name may hold parentheses, and the kernel's text after it holds none.
fn split_comm(text: &str) -> Option<(&str, &str)> {
    let window = &text[..char_boundary(text, LONGEST_COMM_TEXT + 1)];
    let mut splits = window.rmatch_indices(')').map(|(at, _)| (&text[..at], &text[at + 1..]));
    splits.find(|(comm, _)| is_comm(comm))
}

/// `oom-kill:constraint=CONSTRAINT_…,oom_memcg=/a,task_memcg=/a/b,task=comm,pid=7,uid=0`, printed since Linux 5.0
/// (`dump_oom_summary` in mm/oom_kill.c).
pub(in crate::oom) fn summary(text: &str) -> Option<Kill> {
    let (rest, uid) = text.strip_prefix(SUMMARY)?.rsplit_once(",uid=")?;
    // The kernel prints `%d`: users from 2^31 on are negative.
    number::<u32>(uid.strip_prefix('-').unwrap_or(uid))?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let window = char_boundary(rest, rest.len().saturating_sub(LONGEST_COMM_TEXT + ",task=".len()));
    let mut tasks = rest[window..].match_indices(",task=");
    let (comm, (limit, task_cgroup)) = tasks.find_map(|(at, key)| {
        let comm = &rest[window + at + key.len()..];
        Some((comm, cgroups(&rest[..window + at]).filter(|_| is_comm(comm))?))
    })?;
    Some(Kill {
        pid: number(pid)?,
        comm: comm.to_owned(),
        uid: number(uid),
        limit,
        task_cgroup,
        ..Kill::default()
    })
}

/// The limit that was hit and the victim's cgroup, from the part of a summary before the command. The parser ignores
/// the constraint: Linux 5.0 to 5.2 print the wrong one.
///
/// Before the paths a container can choose only the name of its cpuset, which holds no `/`: so the first of these keys with
/// a path is the kernel's, and the limit's path begins there.
fn cgroups(text: &str) -> Option<(Limit, Option<CgroupPath>)> {
    const NODE: &str = ",global_oom,task_memcg=";
    const LIMIT: &str = ",oom_memcg=";
    let node = text.find(",global_oom,task_memcg=/");
    let limit = text.find(",oom_memcg=/");
    match (node, limit) {
        (Some(node), limit) if limit.is_none_or(|limit| node < limit) => {
            let task = CgroupPath::new(&text[node + NODE.len()..]).ok()?;
            Some((Limit::Node, Some(task)))
        }
        (_, limit) => limit_and_task(&text[limit? + LIMIT.len()..]),
    }
}

/// `/a,task_memcg=/a/b`: the first reading in which the task is below the limit. Up to a name that a container chose, all
/// readings are the same. A task that moved is below no limit; then several readings leave its cgroup unknown. So does a path
/// that the kernel could not print.
fn limit_and_task(text: &str) -> Option<(Limit, Option<CgroupPath>)> {
    /// What `pr_cont_kernfs_path` prints for a path that is longer than PATH_MAX.
    const TOO_LONG: &str = ",task_memcg=(name too long)";
    if text.ends_with(TOO_LONG) {
        // A name with this key in it may be cut here: what remains is around the limit.
        let (limit, _) = text.split_once(",task_memcg=")?;
        let limit = CgroupPath::new(limit.trim_end_matches('/')).ok()?;
        return Some((Limit::Cgroup(limit), None));
    }
    let below = readings(text, ",task_memcg=").find(|(limit, task)| task.below(limit).is_some());
    if let Some((limit, task)) = below {
        return Some((Limit::Cgroup(limit), Some(task)));
    }
    let mut readings = readings(text, ",task_memcg=");
    let (limit, task) = readings.next()?;
    let task = Some(task).filter(|_| readings.next().is_none());
    Some((Limit::Cgroup(limit), task))
}

/// `Task in /a/b killed as a result of limit of /a` (before Linux 5.0). The limit is unknown if readings differ in its level, or
/// if it is not around a task that is still somewhere: then the line was cut, perhaps inside a name that a container chose.
pub(super) fn task_and_limit(text: &str) -> Option<(Limit, Option<CgroupPath>)> {
    let text = text.strip_prefix("Task in ")?;
    let all: Vec<_> = readings(text, KILLED_FOR).collect();
    let is_below = |(task, limit): &&(CgroupPath, CgroupPath)| task.below(limit).is_some();
    let below: Vec<_> = all.iter().filter(is_below).collect();
    let Some((task, limit)) = below.first().copied().or(all.first()) else {
        // Alibaba's kernels name this limit where the node had no memory left.
        let task = text.strip_suffix("host")?.strip_suffix(KILLED_FOR)?;
        return Some((Limit::Node, Some(CgroupPath::new(task).ok()?)));
    };
    let limit = Limit::Cgroup(limit.clone());
    let is_certain = match below.as_slice() {
        _ if text.matches(KILLED_FOR).count() > MANY_READINGS => false,
        [] => all.len() == 1 && *task == CgroupPath::root(),
        below => below
            .iter()
            .all(|(_, other)| Limit::Cgroup(other.clone()).level() == limit.level()),
    };
    Some((if is_certain { limit } else { Limit::Unknown }, Some(task.clone())))
}

/// The ways to split a text into two paths.
fn readings(text: &str, separator: &str) -> impl Iterator<Item = (CgroupPath, CgroupPath)> {
    let splits = text.match_indices(separator).take(MANY_READINGS);
    splits.filter_map(|(at, key)| {
        let second = CgroupPath::new(&text[at + key.len()..]).ok()?;
        Some((CgroupPath::new(&text[..at]).ok()?, second))
    })
}
