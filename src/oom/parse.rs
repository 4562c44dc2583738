//! Joins whole lines of the kernel's log into [`Event`]s. Keeps state between the lines of one report, and between
//! reports.
//!
//! Each `Killed process` line is a kill; all other lines only explain kills. The parser joins lines by pid, because
//! reports of several CPUs may interleave. The kernel prints only ten reports in five seconds, so a kill without a
//! report of its own must never be explained by the report of another. What is not certain stays unknown; the counters
//! tell the rest.
//!
//! For a cgroup that is killed as a whole (`memory.oom.group`) the kernel logs the chosen victim, then the name of the
//! group, then every process in the group, the chosen one a second time (`oom_kill_process`, from Linux 4.19 to at
//! least 7.2). No line marks the end. The next kill outside the group begins with a report, unless the kernel holds
//! reports back: then a kill after the group's name may belong to another cgroup, and stays unexplained.

use std::collections::{HashMap, HashSet, VecDeque};

use super::kill::Kill;
use super::message::Message;
use super::record::Line;
use super::within;
use crate::model::CgroupPath;

/// `DEFINE_RATELIMIT_STATE(oom_rs, 5 * HZ, 10)` in `oom_kill_process`: ten reports in five seconds, for the whole node.
const BURST: usize = 10;
/// The parser remembers this many pids before it forgets the old ones.
const MANY_PIDS: usize = 1024;

/// What lines of the kernel's log tell together.
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
    begun: Kill,
    /// Complete reports by the pid of the victim, each as the part of a [`Kill`] that it tells.
    reports: HashMap<u32, Kill>,
    group: Option<Group>,
    last_kill: Option<Kill>,
    /// The times of kills by pid.
    killed: HashMap<u32, Option<u64>>,
    /// The times of the latest reports, at most [`BURST`].
    printed: VecDeque<Option<u64>>,
    /// Whether any number of reports may have been lost before the next line.
    lost: bool,
    kill_lines: u64,
}

impl Parser {
    /// Takes the next whole line.
    pub fn push(&mut self, line: &Line) -> Option<Event> {
        let message = Message::read(&line.text)?;
        let at = line.timestamp_us;
        if std::mem::take(&mut self.lost) {
            self.printed = VecDeque::from([at; BURST]);
        }
        match message {
            Message::Invoked => {
                self.group = None;
                self.begun = Kill {
                    timestamp_us: at,
                    ..Kill::default()
                };
            }
            Message::Cpu { pid } => {
                self.begun.invoker.get_or_insert(pid);
            }
            Message::Usage(usage) => {
                self.begun = Kill {
                    usage: Some(usage),
                    timestamp_us: at,
                    ..self.take_begun(at)
                };
            }
            Message::Summary(report) => self.add_report(at, *report),
            Message::Killed(kill) => return self.kill(line, kill),
            Message::Skipped { pid } => drop(self.reports.remove(&pid)),
            Message::Group { cgroup } => {
                let chosen = self.last_kill.take().filter(|kill| within(kill.timestamp_us, at));
                // With fewer than ten reports in the last five seconds, each kill comes with a report.
                let oldest = self.printed.back().filter(|_| self.printed.len() == BURST);
                let may_suppress = oldest.is_some_and(|oldest| within(*oldest, at));
                self.group = Some(Group::new(at, cgroup, chosen, may_suppress));
            }
            Message::NoVictim => self.forget_reports(),
        }
        None
    }

    /// The number of lines that told of a kill, whether or not an earlier line told of the same kill.
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
        self.begun = Kill::default();
        self.reports.clear();
        self.group = None;
    }

    /// Takes the report that the kernel is printing, if its last line is recent.
    fn take_begun(&mut self, at: Option<u64>) -> Kill {
        let begun = Some(std::mem::take(&mut self.begun));
        begun.filter(|begun| within(begun.timestamp_us, at)).unwrap_or_default()
    }

    fn add_report(&mut self, at: Option<u64>, report: Kill) {
        self.group = None;
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

    fn kill(&mut self, line: &Line, mut kill: Box<Kill>) -> Option<Event> {
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
        // Without times, only a report of its own tells a process from an earlier one of that pid.
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
        self.last_kill = Some(Kill::clone(&kill));
        Some(Event::Kill(kill))
    }
}

/// A group that the kernel is killing, from the line with its name on.
#[derive(Debug)]
struct Group {
    cgroup: CgroupPath,
    victims: HashSet<u32>,
    /// The report of the chosen victim, if every kill up to the next report belongs to this group.
    report: Option<Kill>,
    /// The time of the group's last line.
    last: Option<u64>,
}

impl Group {
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

#[cfg(test)]
mod tests;
