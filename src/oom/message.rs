//! One whole line of the kernel → what it says about OOM kills, if anything.
//!
//! The formats are those of mm/oom_kill.c and mm/memcontrol.c from Linux 5.0 on; of older kernels only the line of the kill
//! itself is read. A message begins where its line begins: text of a process further on in a line is never taken for one.
//!
//! Everything but the keys in lines that name cgroups can be chosen by whoever is being killed. A cgroup's name may hold any character except `/`, a command's name any at all, and neither is quoted. What cannot be
//! chosen decides: paths begin with `/`, a command has at most 15 bytes, the last `,pid=…,uid=…` is the kernel's, and
//! the cgroup a task was in is the one whose limit was hit or is below it.

use super::kill::Kill;
use super::record::number;
use super::report::ReportedMemory;
use crate::model::{Bytes, CgroupPath};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// An allocation by this command failed: the first line of a report. Rate-limited with all of the report.
    Invoked { comm: &'a str },
    /// How full the cgroup was whose limit was hit: part of the report.
    Usage(LimitUsage),
    /// The task that allocated, or that lowered a limit: part of the report.
    Cpu { pid: u32, comm: &'a str },
    /// Who exceeded which limit: the last line of the report.
    Summary(Summary),
    /// A process was killed, and what the line of that says. Never rate-limited.
    Killed(Box<Kill>),
    /// The chosen process was gone before it could be killed.
    Skipped { pid: u32 },
    /// All processes of this cgroup follow, the chosen one a second time.
    Group { cgroup: CgroupPath },
    /// No process could be killed.
    NoVictim,
}

/// How full a cgroup was when its limit was hit, as the kernel logged it (in kibibytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitUsage {
    pub usage: Bytes,
    pub limit: Bytes,
}

impl<'a> Message<'a> {
    /// Reads a line; `None` when it has nothing to do with OOM kills.
    pub(super) fn read(text: &'a str) -> Option<Self> {
        if text.starts_with("oom-kill:constraint=") {
            return Summary::parse(text).map(Self::Summary);
        }
        let node = text.strip_prefix("Out of memory").map(|rest| (true, rest));
        let cgroup = || {
            text.strip_prefix("Memory cgroup out of memory")
                .map(|rest| (false, rest))
        };
        // Before Linux 5.1 the line says nothing of the cause.
        let unsaid = || text.starts_with("Killed process ").then_some((false, text));
        if let Some((node, rest)) = node.or_else(cgroup).or_else(unsaid) {
            return of_cause(node, rest);
        }
        if let Some((comm, _)) = text.rsplit_once(" invoked oom-killer: gfp_mask=") {
            return Some(Self::Invoked { comm });
        }
        if let Some(rest) = text.strip_prefix("memory: usage ") {
            return usage(rest).map(Self::Usage);
        }
        if let Some(rest) = text.strip_prefix("Tasks in ") {
            let cgroup = rest.strip_suffix(" are going to be killed due to memory.oom.group set")?;
            return CgroupPath::new(cgroup).ok().map(|cgroup| Self::Group { cgroup });
        }
        let (pid, rest) = text
            .strip_prefix("CPU: ")?
            .split_once(" PID: ")?
            .1
            .split_once(" Comm: ")?;
        let comm = rest.get(..rest.rfind(" Not tainted").or_else(|| rest.rfind(" Tainted: "))?)?;
        let comm = comm.strip_suffix(" Kdump: loaded").unwrap_or(comm);
        Some(Self::Cpu {
            pid: number(pid)?,
            comm,
        })
    }
}

/// `16384kB, limit 16384kB, failcnt 22`, printed by `mem_cgroup_print_oom_meminfo` on v1 and v2.
fn usage(rest: &str) -> Option<LimitUsage> {
    let (usage, rest) = rest.split_once("kB, limit ")?;
    let (limit, _) = rest.split_once("kB")?;
    Some(LimitUsage {
        usage: kilobytes(usage)?,
        limit: kilobytes(limit)?,
    })
}

fn of_cause(node: bool, rest: &str) -> Option<Message<'_>> {
    if rest.starts_with(" and no killable processes") {
        return Some(Message::NoVictim);
    }
    let rest = rest.strip_prefix(" (oom_kill_allocating_task)").unwrap_or(rest);
    let rest = rest.strip_prefix(": ").unwrap_or(rest);
    if let Some(rest) = rest.strip_prefix("Killed process ") {
        return killed(node, rest).map(Box::new).map(Message::Killed);
    }
    let (pid, rest) = rest.strip_prefix("OOM victim ")?.split_once(" (")?;
    rest.ends_with(" is already exiting. Skip killing the task")
        .then_some(())?;
    Some(Message::Skipped { pid: number(pid)? })
}

/// `7 (comm) total-vm:…`. The command may hold any of this itself, so its end is searched from the end of the line.
fn killed(node: bool, rest: &str) -> Option<Kill> {
    let (pid, rest) = rest.split_once(" (")?;
    let (comm, tail) = rest.rsplit_once(") total-vm:")?;
    let (total_vm, tail) = tail.split_once(',').unwrap_or((tail, ""));
    let mut killed = Kill {
        pid: number(pid)?,
        comm: comm.to_owned(),
        limit: if node { Limit::Node } else { Limit::Unknown },
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

/// `TASK_COMM_LEN` without the terminating zero. Characters stand for at least a byte each.
const LONGEST_COMM: usize = 15;

/// The cgroup whose limit was hit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Limit {
    Cgroup(CgroupPath),
    /// None: the node, or what a cpuset or memory policy leaves of it, had no memory left.
    Node,
    /// The kernel did not print it (its rate limit is ten in five seconds), or it was lost.
    #[default]
    Unknown,
}

/// `oom-kill:constraint=…`, printed since Linux 5.0 (`dump_oom_summary` in mm/oom_kill.c), unless rate-limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) pid: u32,
    pub(super) cgroups: Cgroups,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cgroups {
    pub(super) limit: Limit,
    /// Where the task was. On v1 a task already on its way out is in `/`.
    pub(super) task: CgroupPath,
}

/// Whether a text can be the name of a command. `dmesg` shows what cannot be printed as `\xNN`, for a byte each.
fn is_comm(text: &str) -> bool {
    text.chars().count() <= LONGEST_COMM + 3 * text.matches("\\x").count()
}

impl Summary {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("oom-kill:constraint=")?;
        let (rest, uid) = rest.rsplit_once(",uid=")?;
        // Printed with `%d`: users from 2^31 on are negative.
        number::<u32>(uid.strip_prefix('-').unwrap_or(uid))?;
        let (rest, pid) = rest.rsplit_once(",pid=")?;
        let before_comm = rest
            .match_indices(",task=")
            .find(|(at, key)| is_comm(&rest[at + key.len()..]))
            .map(|(at, _)| &rest[..at])?;
        Some(Self {
            pid: number(pid)?,
            cgroups: Cgroups::of_summary(before_comm)?,
        })
    }
}

impl Cgroups {
    /// Reads the part of a summary before the command. The constraint is not read: Linux 5.0 to 5.2 print the wrong one.
    /// Of all the ways to read a hostile line, the one where the task is below the limit; if there is none (the task moved,
    /// or is on its way out), the first.
    fn of_summary(text: &str) -> Option<Self> {
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
            let limit = Limit::Cgroup(limit);
            return Some(Self { limit, task });
        }
        let (_, task) = text.split_once(",global_oom,task_memcg=")?;
        let task = CgroupPath::new(task).ok()?;
        let limit = Limit::Node;
        Some(Self { limit, task })
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod summary_tests {
    use super::*;

    fn parse(cgroups: &str, comm: &str) -> Option<(u32, String, String)> {
        let text = format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0{cgroups},task={comm},pid=7,uid=0"
        );
        let Summary { pid, cgroups } = Summary::parse(&text)?;
        let limit = match cgroups.limit {
            Limit::Cgroup(path) => path.to_string(),
            Limit::Node => "node".to_owned(),
            Limit::Unknown => "unknown".to_owned(),
        };
        Some((pid, limit, cgroups.task.to_string()))
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
        let line = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=x,pid=7,uid=-2";
        assert_eq!(Summary::parse(line).unwrap().pid, 7);
        assert_eq!(Summary::parse(&line.replace("-2", "--2")), None);
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
