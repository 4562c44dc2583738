//! Joins whole lines of the kernel's log into [`Event`]s. Keeps state between the lines of one report, and between
//! reports.
//!
//! The formats are those of mm/oom_kill.c and mm/memcontrol.c from Linux 5.0 on. Of older kernels only the line of the
//! kill itself is read. A message begins where its line begins: a message further on in a line is text of a process.
//!
//! A process chooses its command's name, and a container the names of its cgroups. A cgroup's name may hold any
//! character except `/`, a command's name any character at all, and the kernel quotes neither. So the parser relies on
//! what no process can choose: paths begin with `/`, a command has at most 15 bytes, the last `,pid=…,uid=…` is the
//! kernel's, and the victim's cgroup is the one whose limit was hit or is below that.
//!
//! Each `Killed process` line is a kill; all other lines only explain kills. The parser joins lines by pid, because
//! reports of several CPUs may interleave. The kernel prints only ten reports in five seconds, so a kill without a
//! report of its own must never be explained by the report of another. Uncertain facts stay unknown; the counters
//! have the number of kills.
//!
//! For a cgroup that is killed as a whole (`memory.oom.group`) the kernel logs the chosen victim, then the name of the
//! group, then every process in the group, the chosen one a second time (`oom_kill_process`, from Linux 4.19 to at
//! least 7.2). No line marks the end. The next kill outside the group begins with a report, unless the kernel holds
//! reports back: then a kill after the group's name may belong to another cgroup, and stays unexplained.

use std::collections::{HashMap, HashSet, VecDeque};

use super::kill::{Kill, Limit, LimitUsage};
use super::record::{Line, number};
use super::report::ReportedMemory;
use super::within;
use crate::model::CgroupPath;

/// `DEFINE_RATELIMIT_STATE(oom_rs, 5 * HZ, 10)` in `oom_kill_process`: ten reports in five seconds, for the whole node.
const BURST: usize = 10;
/// The parser remembers this many pids before it forgets the old ones.
const MANY_PIDS: usize = 1024;

/// The event that one or several lines of the kernel's log report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Kill(Box<Kill>),
    /// The kernel logged the first victim of a group a second time, after the name of the group.
    Again {
        pid: u32,
        group: CgroupPath,
    },
}

/// Joins lines into events. A line completes at most one event.
#[derive(Debug, Default)]
pub struct Parser {
    /// The report that the kernel is printing: who invoked the OOM killer, and how full the cgroup was.
    begun: Option<Kill>,
    /// Complete reports by the pid of the victim, each as the part of a [`Kill`] that it has.
    reports: HashMap<u32, Kill>,
    group: Option<KilledGroup>,
    last_kill: Option<Kill>,
    /// The times of kills by pid.
    killed: HashMap<u32, Option<u64>>,
    /// The times of the latest reports, at most [`BURST`].
    printed: VecDeque<Option<u64>>,
    /// Whether any number of reports may have been lost.
    lost: bool,
    kill_lines: u64,
}

impl Parser {
    /// Takes the next whole line.
    pub fn push(&mut self, line: &Line) -> Option<Event> {
        let (text, at) = (&*line.text, line.timestamp_us);
        let (limit, outcome) = outcome(text);
        if let Some(rest) = outcome.strip_prefix("Killed process ") {
            return self.kill(line, killed(limit, rest)?);
        }
        if let Some(report) = text.strip_prefix("oom-kill:constraint=").and_then(summary) {
            self.add_report(at, report);
        } else if text.contains(" invoked oom-killer: gfp_mask=") {
            // The first line of a report. The kernel's rate limit holds back whole reports.
            self.group = None;
            self.begun = Some(Kill {
                timestamp_us: at,
                ..Kill::default()
            });
        } else if let (Some(begun), Some(task)) = (&mut self.begun, invoker(text)) {
            begun.invoker.get_or_insert(task);
        } else if let Some(usage) = text.strip_prefix("memory: usage ").and_then(usage) {
            self.begun = Some(Kill {
                usage: Some(usage),
                timestamp_us: at,
                ..self.take_begun(at)
            });
        } else if let Some(cgroup) = group(text) {
            let chosen = self.last_kill.take().filter(|kill| within(kill.timestamp_us, at));
            self.group = Some(KilledGroup::new(at, cgroup, chosen, self.may_suppress(at)));
        } else if let Some(pid) = skipped(outcome) {
            self.reports.remove(&pid);
        } else if outcome.starts_with(" and no killable processes") {
            self.forget_reports();
        }
        None
    }

    /// Whether a kill after this time may come without a report. With fewer than ten reports in the last five seconds,
    /// each kill comes with a report.
    fn may_suppress(&mut self, at: Option<u64>) -> bool {
        if std::mem::take(&mut self.lost) {
            self.printed = VecDeque::from([at; BURST]);
        }
        let oldest = self.printed.back().filter(|_| self.printed.len() == BURST);
        oldest.is_some_and(|oldest| within(*oldest, at))
    }

    /// The number of lines that reported a kill, second reports of the same kill included.
    pub const fn kill_lines(&self) -> u64 {
        self.kill_lines
    }

    /// Records were lost: the lines before the loss must not explain the lines after.
    pub fn lost(&mut self) {
        self.forget_reports();
        self.last_kill = None;
        self.lost = true;
    }

    fn forget_reports(&mut self) {
        self.begun = None;
        self.reports.clear();
        self.group = None;
    }

    /// Takes the report that the kernel is printing, if its last line is recent.
    fn take_begun(&mut self, at: Option<u64>) -> Kill {
        let begun = self.begun.take();
        begun.filter(|begun| within(begun.timestamp_us, at)).unwrap_or_default()
    }

    fn add_report(&mut self, at: Option<u64>, report: Kill) {
        self.group = None;
        self.may_suppress(at);
        self.printed.truncate(BURST - 1);
        self.printed.push_front(at);
        self.reports.retain(|_, report| within(report.timestamp_us, at));
        let whole = Kill {
            pid: report.pid,
            limit: report.limit,
            task_cgroup: report.task_cgroup,
            timestamp_us: at,
            ..self.take_begun(at)
        };
        self.reports.insert(whole.pid, whole);
    }

    fn kill(&mut self, line: &Line, mut kill: Kill) -> Option<Event> {
        self.kill_lines += 1;
        let (pid, at) = (kill.pid, line.timestamp_us);
        let report = self.reports.remove(&pid);
        let report = report.filter(|report| within(report.timestamp_us, at));
        if report.is_some() || self.group.as_ref().is_some_and(|group| !within(group.last, at)) {
            self.group = None;
        }
        if let Some(group) = &mut self.group {
            group.last = at;
            if !group.victims.insert(pid) {
                let group = group.cgroup.clone();
                return Some(Event::Again { pid, group });
            }
        }
        let before = self.killed.insert(pid, at);
        // Without times, only a report of its own distinguishes a process from an earlier one of that pid.
        let is_new = report.is_some() && at.is_none();
        if before.is_some_and(|before| within(before, at)) && !is_new {
            return None;
        }
        if self.killed.len() > MANY_PIDS {
            self.killed.retain(|_, before| within(*before, at));
        }
        if let Some(report) = report.or_else(|| self.group.as_ref()?.report.clone()) {
            (kill.limit, kill.task_cgroup, kill.group) = (report.limit, report.task_cgroup, report.group);
            (kill.invoker, kill.usage) = (report.invoker, report.usage);
        }
        (kill.seq, kill.timestamp_us) = (line.seq, at);
        self.last_kill = Some(kill.clone());
        Some(Event::Kill(Box::new(kill)))
    }
}

/// A group that the kernel is killing, from the line with its name on.
#[derive(Debug)]
struct KilledGroup {
    cgroup: CgroupPath,
    victims: HashSet<u32>,
    /// The report of the chosen victim, if every kill up to the next report belongs to this group.
    report: Option<Kill>,
    /// The time of the group's last line.
    last: Option<u64>,
}

impl KilledGroup {
    /// The kernel named a group after the kill of `chosen`.
    fn new(last: Option<u64>, cgroup: CgroupPath, chosen: Option<Kill>, may_suppress: bool) -> Self {
        let is_in = |kill: &Kill| {
            let task = kill.task_cgroup.as_ref();
            task.is_none_or(|task| task.below(&cgroup).is_some())
        };
        let chosen = chosen.filter(is_in);
        let victims = chosen.iter().map(|kill| kill.pid).collect();
        let reported = chosen.filter(|kill| kill.task_cgroup.is_some() && !may_suppress);
        let report = reported.map(|kill| Kill {
            task_cgroup: Some(cgroup.clone()),
            group: Some(cgroup.clone()),
            ..kill
        });
        Self {
            cgroup,
            victims,
            report,
            last,
        }
    }
}

/// `16384kB, limit 16384kB, failcnt 22`: `mem_cgroup_print_oom_meminfo` prints this on v1 and v2.
fn usage(rest: &str) -> Option<LimitUsage> {
    let (usage, rest) = rest.split_once(", limit ")?;
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
fn skipped(outcome: &str) -> Option<u32> {
    let (pid, rest) = outcome.strip_prefix("OOM victim ")?.split_once(" (")?;
    let pid = number(pid)?;
    rest.ends_with(" is already exiting. Skip killing the task")
        .then_some(pid)
}

/// `CPU: 1 UID: 0 PID: 7 Comm: …`: the task that allocated, or that lowered a limit.
fn invoker(text: &str) -> Option<u32> {
    let (_, rest) = text.strip_prefix("CPU: ")?.split_once(" PID: ")?;
    number(rest.split_once(" Comm: ")?.0)
}

/// The lines of all processes of this cgroup follow, that of the chosen process a second time.
fn group(text: &str) -> Option<CgroupPath> {
    let rest = text.strip_prefix("Tasks in ")?;
    let cgroup = rest.strip_suffix(" are going to be killed due to memory.oom.group set")?;
    CgroupPath::new(cgroup).ok()
}

/// `7 (comm) total-vm:…`. The command's name may hold all of this, so the parser searches its end from
/// the end of the line.
fn killed(limit: Limit, rest: &str) -> Option<Kill> {
    let (pid, rest) = rest.split_once(" (")?;
    let (comm, tail) = rest.rsplit_once(") total-vm:")?;
    let total_vm = tail.split(',').next()?;
    let fields = tail.split([',', ' ']).filter_map(|field| field.split_once(':'));
    let fields: HashMap<&str, &str> = fields.collect();
    let bytes = |key| fields.get(key).map_or(Some(0), |amount| kilobytes(amount));
    Some(Kill {
        pid: number(pid)?,
        comm: comm.to_owned(),
        limit,
        memory: ReportedMemory {
            total_vm_bytes: kilobytes(total_vm)?,
            anon_rss_bytes: bytes("anon-rss")?,
            file_rss_bytes: bytes("file-rss")?,
            shmem_rss_bytes: bytes("shmem-rss")?,
        },
        oom_score_adj: fields.get("oom_score_adj").and_then(|score| score.parse().ok()),
        uid: fields.get("UID").and_then(|uid| number(uid)),
        ..Kill::default()
    })
}

/// `16384kB` in bytes.
fn kilobytes(text: &str) -> Option<u64> {
    number::<u64>(text.strip_suffix("kB")?).map(|kb| kb.saturating_mul(1024))
}

/// `TASK_COMM_LEN` without the terminating zero, in bytes. Each character stands for at least one byte.
const LONGEST_COMM: usize = 15;

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
