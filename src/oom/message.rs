//! Reads one whole line of the kernel's log: the message about OOM kills in it, if there is one.
//!
//! The formats are those of mm/oom_kill.c and mm/memcontrol.c from Linux 5.0 on. Of older kernels only the line of the
//! kill itself is read. A message begins where its line begins: a message further on in a line is text of a process.
//!
//! A process chooses its command's name, and a container the names of its cgroups. A cgroup's name may hold any
//! character except `/`, a command's name any character at all, and the kernel quotes neither. So the parser relies on
//! what no process can choose: paths begin with `/`, a command has at most 15 bytes, the last `,pid=…,uid=…` is the
//! kernel's, and the victim's cgroup is the one whose limit was hit or is below that.

use super::kill::Kill;
use super::record::number;
use super::report::ReportedMemory;
use crate::model::{Bytes, CgroupPath};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// An allocation failed: the first line of a report. The kernel's rate limit holds back whole reports.
    Invoked,
    /// A line of the report: how full the cgroup was whose limit was hit.
    Usage(LimitUsage),
    /// A line of the report: the id of the task that allocated, or that lowered a limit.
    Cpu { pid: u32 },
    /// The last line of the report: a kill with the victim's pid, its cgroup and the limit that was hit.
    Summary(Box<Kill>),
    /// A process was killed. The rate limit does not apply to this line.
    Killed(Box<Kill>),
    /// The chosen process was gone before it could be killed.
    Skipped { pid: u32 },
    /// The lines of all processes of this cgroup follow, that of the chosen process a second time.
    Group { cgroup: CgroupPath },
    /// The kernel found no process to kill.
    NoVictim,
}

/// Usage and limit of a cgroup when its limit was hit. The kernel logs both in kibibytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitUsage {
    pub usage: Bytes,
    pub limit: Bytes,
}

impl Message {
    /// Reads a line. Returns `None` when the line has nothing to do with OOM kills.
    pub(super) fn read(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix("oom-kill:constraint=") {
            return summary(rest).map(Box::new).map(Self::Summary);
        }
        if let Some(rest) = text.strip_prefix("Out of memory") {
            return outcome(Limit::Node, rest);
        }
        if let Some(rest) = text.strip_prefix("Memory cgroup out of memory") {
            return outcome(Limit::Unknown, rest);
        }
        if text.starts_with("Killed process ") {
            // Before Linux 5.1 the line does not name the cause.
            return outcome(Limit::Unknown, text);
        }
        if text.contains(" invoked oom-killer: gfp_mask=") {
            return Some(Self::Invoked);
        }
        if let Some(rest) = text.strip_prefix("memory: usage ") {
            return usage(rest).map(Self::Usage);
        }
        if let Some(rest) = text.strip_prefix("Tasks in ") {
            let cgroup = rest.strip_suffix(" are going to be killed due to memory.oom.group set")?;
            return CgroupPath::new(cgroup).ok().map(|cgroup| Self::Group { cgroup });
        }
        let (_, rest) = text.strip_prefix("CPU: ")?.split_once(" PID: ")?;
        let (pid, _) = rest.split_once(" Comm: ")?;
        Some(Self::Cpu { pid: number(pid)? })
    }
}

/// `16384kB, limit 16384kB, failcnt 22`: `mem_cgroup_print_oom_meminfo` prints this on v1 and v2.
fn usage(rest: &str) -> Option<LimitUsage> {
    let (usage, rest) = rest.split_once("kB, limit ")?;
    let (limit, _) = rest.split_once("kB")?;
    Some(LimitUsage {
        usage: kilobytes(usage)?,
        limit: kilobytes(limit)?,
    })
}

/// What follows the cause in a line.
fn outcome(limit: Limit, rest: &str) -> Option<Message> {
    if rest.starts_with(" and no killable processes") {
        return Some(Message::NoVictim);
    }
    let rest = rest.strip_prefix(" (oom_kill_allocating_task)").unwrap_or(rest);
    let rest = rest.strip_prefix(": ").unwrap_or(rest);
    if let Some(rest) = rest.strip_prefix("Killed process ") {
        return killed(limit, rest).map(Box::new).map(Message::Killed);
    }
    let (pid, rest) = rest.strip_prefix("OOM victim ")?.split_once(" (")?;
    rest.ends_with(" is already exiting. Skip killing the task")
        .then_some(())?;
    Some(Message::Skipped { pid: number(pid)? })
}

/// `7 (comm) total-vm:…`. The command's name may hold all of this, so the parser searches its end from
/// the end of the line.
fn killed(limit: Limit, rest: &str) -> Option<Kill> {
    let (pid, rest) = rest.split_once(" (")?;
    let (comm, tail) = rest.rsplit_once(") total-vm:")?;
    let (total_vm, tail) = tail.split_once(',').unwrap_or((tail, ""));
    let mut killed = Kill {
        pid: number(pid)?,
        comm: comm.to_owned(),
        limit,
        memory: ReportedMemory {
            total_vm_bytes: kilobytes(total_vm.strip_suffix("kB")?)?.get(),
            ..ReportedMemory::default()
        },
        ..Kill::default()
    };
    for (key, value) in tail.split([',', ' ']).filter_map(|field| field.split_once(':')) {
        let amount = || Some(kilobytes(value.strip_suffix("kB")?)?.get());
        match key {
            "anon-rss" => killed.memory.anon_rss_bytes = amount()?,
            "file-rss" => killed.memory.file_rss_bytes = amount()?,
            "shmem-rss" => killed.memory.shmem_rss_bytes = amount()?,
            "UID" => killed.uid = number(value),
            "oom_score_adj" => killed.oom_score_adj = value.parse().ok(),
            _ => {}
        }
    }
    Some(killed)
}

fn kilobytes(text: &str) -> Option<Bytes> {
    number::<u64>(text).map(|kb| Bytes::new(kb.saturating_mul(1024)))
}

/// `TASK_COMM_LEN` without the terminating zero, in bytes. Each character stands for at least one byte.
const LONGEST_COMM: usize = 15;

/// The cgroup whose limit was hit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Limit {
    Cgroup(CgroupPath),
    /// No limit: the node had no memory left, or none in the part of it that a cpuset or memory policy allows.
    Node,
    /// The kernel held the report back (it prints ten in five seconds), or the log lost it.
    #[default]
    Unknown,
}

/// Whether a text can be the name of a command. `dmesg` prints `\xNN` in place of each unprintable byte.
fn is_comm(text: &str) -> bool {
    text.chars().count() <= LONGEST_COMM + 3 * text.matches("\\x").count()
}

/// `CONSTRAINT_…,oom_memcg=/a,task_memcg=/a/b,task=comm,pid=7,uid=0`, printed since
/// Linux 5.0 (`dump_oom_summary` in mm/oom_kill.c).
fn summary(text: &str) -> Option<Kill> {
    let (rest, uid) = text.rsplit_once(",uid=")?;
    // The kernel prints `%d`: users from 2^31 on are negative.
    number::<u32>(uid.strip_prefix('-').unwrap_or(uid))?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let mut tasks = rest.match_indices(",task=");
    let (end, _) = tasks.find(|(at, key)| is_comm(&rest[at + key.len()..]))?;
    let (limit, task) = cgroups(&rest[..end])?;
    Some(Kill {
        pid: number(pid)?,
        limit,
        task_cgroup: Some(task),
        ..Kill::default()
    })
}

/// The limit that was hit and the victim's cgroup, from the part of a summary before the command. The parser ignores
/// the constraint: Linux 5.0 to 5.2 print the wrong one. A hostile line has several readings: the first one with the
/// task below the limit counts. If no reading has that (the task moved, or is on its way out), the first one counts.
fn cgroups(text: &str) -> Option<(Limit, CgroupPath)> {
    let readings = || {
        text.match_indices(",oom_memcg=").flat_map(move |(at, key)| {
            let paths = &text[at + key.len()..];
            paths.match_indices(",task_memcg=").filter_map(move |(at, key)| {
                let task = CgroupPath::new(&paths[at + key.len()..]).ok()?;
                Some((CgroupPath::new(&paths[..at]).ok()?, task))
            })
        })
    };
    let below = readings().find(|(limit, task)| task.below(limit).is_some());
    if let Some((limit, task)) = below.or_else(|| readings().next()) {
        return Some((Limit::Cgroup(limit), task));
    }
    let (_, task) = text.split_once(",global_oom,task_memcg=")?;
    Some((Limit::Node, CgroupPath::new(task).ok()?))
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod summary_tests {
    use super::*;

    const PREFIX: &str = "oom-kill:constraint=";

    fn parse(cgroups: &str, comm: &str) -> Option<(u32, String, String)> {
        let text = format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0{cgroups},task={comm},pid=7,uid=0"
        );
        let kill = summary(text.strip_prefix(PREFIX)?)?;
        let limit = match kill.limit {
            Limit::Cgroup(path) => path.to_string(),
            Limit::Node => "node".to_owned(),
            Limit::Unknown => "unknown".to_owned(),
        };
        Some((kill.pid, limit, kill.task_cgroup?.to_string()))
    }

    fn read(pid: u32, limit: &str, task: &str) -> Option<(u32, String, String)> {
        Some((pid, limit.to_owned(), task.to_owned()))
    }

    #[test]
    fn hostile_commands_do_not_move_the_pid_or_the_cgroups() {
        for comm in [
            "a,pid=1,uid=0",
            ",task=b,pid=2",
            "",
            ",task_memcg=/b",
            "x) total-vm:9kB",
            &"\\x01".repeat(15),
        ] {
            assert_eq!(
                parse(",oom_memcg=/a,task_memcg=/a/b", comm),
                read(7, "/a", "/a/b"),
                "{comm}"
            );
        }
    }

    #[test]
    fn hostile_cgroup_names_do_not_name_another_cgroup() {
        let evil = "/own/x,oom_memcg=/victim,task_memcg=/victim";
        assert_eq!(
            parse(&format!(",oom_memcg={evil},task_memcg={evil}"), "a"),
            read(7, evil, evil)
        );
        let evil = "/own/x,task=y,pid=1,uid=0";
        assert_eq!(
            parse(&format!(",oom_memcg=/own,task_memcg={evil}"), "a"),
            read(7, "/own", evil)
        );
        let evil = "/own/x,global_oom,task_memcg=/victim";
        assert_eq!(
            parse(&format!(",oom_memcg={evil},task_memcg={evil}/b"), "a"),
            read(7, evil, &format!("{evil}/b"))
        );
    }

    #[test]
    fn a_task_that_left_the_cgroup_is_where_the_kernel_says() {
        assert_eq!(parse(",oom_memcg=/a/b,task_memcg=/", "a"), read(7, "/a/b", "/"));
        assert_eq!(parse(",global_oom,task_memcg=/a b/c", "a"), read(7, "node", "/a b/c"));
    }

    #[test]
    fn users_beyond_those_an_int_holds_have_their_kills_explained() {
        let line =
            "CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=x,pid=7,uid=-2";
        assert_eq!(summary(line).unwrap().pid, 7);
        assert_eq!(summary(&line.replace("-2", "--2")), None);
    }

    #[test]
    fn a_line_that_lost_a_part_is_not_read() {
        for cgroups in [
            "",
            ",oom_memcg=,task_memcg=/a",
            ",oom_memcg=/a",
            "/a,task_memcg=/a",
            ",oom_memcg=/a,task_memcg=",
        ] {
            assert_eq!(parse(cgroups, "a"), None, "{cgroups}");
        }
    }
}
