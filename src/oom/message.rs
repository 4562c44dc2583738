//! One whole line of the kernel → what it says about OOM kills, if anything.
//!
//! The formats are those of mm/oom_kill.c and mm/memcontrol.c from Linux 5.0 on; of older kernels only the line of the kill
//! itself is read. A message begins where its line begins: text of a process further on in a line is never taken for one.

use super::kill::Kill;
use super::record::number;
use super::report::ReportedMemory;
use super::summary::{Limit, Summary};
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

#[cfg(test)]
mod tests;
