//! One whole line of the kernel's → what it says about OOM kills, if anything.
//!
//! The formats are those of mm/oom_kill.c and mm/memcontrol.c from Linux 3.10 on. A message begins where its line begins:
//! text from a process further on in a line is never taken for one.

use crate::cgroup::CgroupPath;
use crate::resources::Bytes;

use super::record::number;
use super::summary::{Cgroups, Summary};

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// An allocation by this command could not be had: the first line of a report. Rate-limited with all of the report.
    Invoked { comm: &'a str },
    /// How full the cgroup was whose limit was hit: part of its report.
    Usage(LimitUsage),
    /// Whose registers the report shows: the task that allocated, or that lowered a limit.
    Cpu { pid: u32, comm: &'a str },
    /// Who exceeded what, since Linux 5.0.
    Summary(Summary),
    /// Who exceeded what, before Linux 5.0; not said of whom.
    LimitHit(Cgroups),
    /// A row of the table of candidates.
    Candidate { pid: u32 },
    /// Before Linux 5.1: chosen, though a child of it may be killed in its place.
    Chosen { pid: u32, whose: Whose },
    /// A process was killed. Never rate-limited.
    Killed(Killed<'a>),
    /// The chosen process was gone before it could be killed.
    Skipped { pid: u32 },
    /// All processes of this cgroup follow, the chosen one a second time.
    Group { cgroup: CgroupPath },
    /// Nobody was killed, because nobody could be.
    NoVictim,
    /// That many reports were not printed, some time before.
    Suppressed { reports: u64 },
}

/// Whose memory was exhausted, as far as the line of a kill says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    Cgroups,
    Nodes,
    NotSaid,
}

/// The line of a kill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Killed<'a> {
    pub(super) whose: Whose,
    pub(super) pid: u32,
    pub(super) comm: &'a str,
    pub(super) memory: VictimMemory,
    pub(super) uid: Option<u32>,
    pub(super) oom_score_adj: Option<i32>,
}

/// What a process held when it was killed. What its kernel does not print is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VictimMemory {
    /// All of its address space.
    pub total_vm: Bytes,
    /// Anonymous memory in use.
    pub anon_rss: Bytes,
    /// Memory in use that files back.
    pub file_rss: Bytes,
    /// Shared memory and tmpfs in use; before Linux 4.6 part of `file_rss`.
    pub shmem_rss: Bytes,
}

/// How full a cgroup was when its limit was hit, as the kernel logged it (in kibibytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitUsage {
    /// What was used.
    pub usage: Bytes,
    /// The limit.
    pub limit: Bytes,
}

impl<'a> Message<'a> {
    /// Reads a line; `None` when it has nothing to do with OOM kills.
    pub(super) fn read(text: &'a str) -> Option<Self> {
        if text.starts_with("oom-kill:constraint=") {
            return Summary::parse(text).map(Self::Summary);
        }
        if let Some((whose, rest)) = after_cause(text) {
            return of_cause(whose, rest);
        }
        if let Some((comm, _)) = text.rsplit_once(" invoked oom-killer: gfp_mask=") {
            return Some(Self::Invoked { comm });
        }
        if let Some(rest) = text.strip_prefix("memory: usage ") {
            return usage(rest).map(Self::Usage);
        }
        if text.starts_with("Task in ") {
            return Cgroups::of_limit_hit(text).map(Self::LimitHit);
        }
        if let Some(rest) = text.strip_prefix("Tasks in ") {
            let cgroup = rest.strip_suffix(" are going to be killed due to memory.oom.group set")?;
            return CgroupPath::new(cgroup).ok().map(|cgroup| Self::Group { cgroup });
        }
        if let Some(rest) = text.strip_prefix("oom_kill_process: ") {
            let reports = number(rest.strip_suffix(" callbacks suppressed")?)?;
            return Some(Self::Suppressed { reports });
        }
        if let Some(rest) = text.strip_prefix("CPU: ") {
            let (pid, rest) = rest.split_once(" PID: ")?.1.split_once(" Comm: ")?;
            let comm = rest.get(..rest.rfind(" Not tainted").or_else(|| rest.rfind(" Tainted: "))?)?;
            let comm = comm.strip_suffix(" Kdump: loaded").unwrap_or(comm);
            return Some(Self::Cpu {
                pid: number(pid)?,
                comm,
            });
        }
        let row = text.strip_prefix('[')?.split_once(']')?.0;
        number(row.trim_start()).map(|pid| Self::Candidate { pid })
    }
}

/// `16384kB, limit 16384kB, failcnt 22`, printed by `mem_cgroup_print_oom_meminfo` on v1 and v2.
fn usage(rest: &str) -> Option<LimitUsage> {
    let (usage, rest) = rest.split_once("kB, limit ")?;
    let (limit, _) = rest.split_once("kB")?;
    let bytes = |kilobytes| number::<u64>(kilobytes).map(|kb| Bytes::new(kb.saturating_mul(1024)));
    Some(LimitUsage {
        usage: bytes(usage)?,
        limit: bytes(limit)?,
    })
}

/// Splits off how the line of a kill may begin. Before Linux 5.1 it has no such beginning.
fn after_cause(text: &str) -> Option<(Whose, &str)> {
    if text.starts_with("Killed process ") {
        return Some((Whose::NotSaid, text));
    }
    [
        ("Memory cgroup out of memory", Whose::Cgroups),
        ("Out of memory", Whose::Nodes),
    ]
    .into_iter()
    .find_map(|(start, whose)| Some((whose, text.strip_prefix(start)?)))
}

fn of_cause(whose: Whose, rest: &str) -> Option<Message<'_>> {
    if rest.starts_with(" and no killable processes") {
        return Some(Message::NoVictim);
    }
    let rest = rest.strip_prefix(" (oom_kill_allocating_task)").unwrap_or(rest);
    let rest = rest.strip_prefix(": ").unwrap_or(rest);
    if let Some(rest) = rest.strip_prefix("Killed process ") {
        return killed(whose, rest).map(Message::Killed);
    }
    let (what, rest) = rest.split_once(" (")?;
    let pid = number(
        what.strip_prefix("Kill process ")
            .or_else(|| what.strip_prefix("OOM victim "))?,
    )?;
    if rest.ends_with(" is already exiting. Skip killing the task") {
        return Some(Message::Skipped { pid });
    }
    rest.ends_with(" or sacrifice child")
        .then_some(Message::Chosen { pid, whose })
}

/// What follows `Killed process `: `7 (comm) total-vm:…`, or `7 (comm), UID 0, total-vm:…` with RHEL 7. The command may
/// hold any of this itself, so its end is searched from the end of the line.
fn killed(whose: Whose, rest: &str) -> Option<Killed<'_>> {
    let (pid, rest) = rest.split_once(" (")?;
    let end = rest.rfind(") total-vm:").max(rest.rfind("), UID "))?;
    let (comm, tail) = (&rest[..end], &rest[end + 1..]);
    let mut killed = Killed {
        whose,
        pid: number(pid)?,
        comm,
        memory: VictimMemory::default(),
        uid: tail
            .strip_prefix(", UID ")
            .and_then(|uid| number(uid.split(',').next()?)),
        oom_score_adj: None,
    };
    for (key, value) in tail.split([',', ' ']).filter_map(|field| field.split_once(':')) {
        let kilobytes = || number::<u64>(value.strip_suffix("kB")?).map(|kb| Bytes::new(kb.saturating_mul(1024)));
        match key {
            "total-vm" => killed.memory.total_vm = kilobytes()?,
            "anon-rss" => killed.memory.anon_rss = kilobytes()?,
            "file-rss" => killed.memory.file_rss = kilobytes()?,
            "shmem-rss" => killed.memory.shmem_rss = kilobytes()?,
            "UID" => killed.uid = number(value),
            "oom_score_adj" => killed.oom_score_adj = value.parse().ok(),
            _ => {}
        }
    }
    Some(killed)
}

#[cfg(test)]
mod tests;
