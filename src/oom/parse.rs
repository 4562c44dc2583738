//! Joins whole lines of the kernel's log into [`Event`]s. Keeps state between the lines of one report, and between
//! reports.
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
//!
//! Before Linux 5.0 a report names no pid: `Task in A killed as a result of limit of B`, then the chosen process
//! (`Kill process …`), then the killed one, which can be a child of the chosen one. Linux 5.0 names the chosen one's pid.
//!
//! The parser's state has a bound, whatever the lines are.

mod message;

use std::collections::VecDeque;

use indexmap::IndexMap;

use super::kill::{Kill, Limit};
use super::record::Line;
use super::within;
use crate::model::CgroupPath;
use message::{chosen, group, invoker, is_invocation, killed, kills_none, sharer, skipped, task_and_limit, usage};

pub(super) use message::{KILLED_FOR, SUMMARY, begins_message, is_of_kill, may_matter, speaks_of_kill, summary};

/// `DEFINE_RATELIMIT_STATE(oom_rs, 5 * HZ, 10)` in `oom_kill_process`: ten reports in five seconds, for the whole node.
const BURST: usize = 10;
/// The parser remembers this many killed pids before it forgets the oldest.
const MANY_PIDS: usize = 1024;
/// The parser keeps this many reports whose kill is still to come. A log without times can hold any number of them.
const MANY_REPORTS: usize = 64;

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

/// What the parser made of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// The line of a kill, with its event unless an earlier line had that.
    Kill(Option<Event>),
    /// Another line about a kill.
    Known,
    Other,
}

/// Joins lines into events. A line completes at most one event.
#[derive(Debug, Default)]
pub struct Parser {
    /// The report that the kernel is printing: who invoked the OOM killer, and how full the cgroup was.
    begun: Option<Kill>,
    /// Complete reports that explain no process yet, the oldest first, each as the part of a [`Kill`] that it has. Before
    /// Linux 5.0 they name no pid: it is zero.
    reports: Vec<Kill>,
    /// The report without a pid that explained the latest process.
    explained: Option<Kill>,
    /// The processes that the kernel chose and has not killed yet (before Linux 5.1), each with its report. Before Linux 4.2
    /// the kernel kills in several cgroups at a time.
    chosen: Vec<Kill>,
    group: Option<KilledGroup>,
    last_kill: Option<Kill>,
    /// The times of the latest kills by pid, the oldest first.
    killed: IndexMap<u32, Option<u64>>,
    /// The times of the latest reports, at most [`BURST`].
    printed: VecDeque<Option<u64>>,
    /// Whether any number of reports may have been lost.
    lost: bool,
    /// Reports whose `Killed process` line never came, as kills. Only for a log that is all there is.
    alone: Option<Vec<Kill>>,
}

impl Parser {
    /// A parser for a log without counters beside it: there a report without its `Killed process` line is a kill, too.
    pub fn of_file() -> Self {
        Self {
            alone: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// Takes the next whole line.
    pub fn push(&mut self, line: &Line) -> Parsed {
        let (text, at) = (&*line.text, line.timestamp_us);
        let last_limit = self.last_kill.as_ref().map(|last| &last.limit);
        if let Some(kill) = killed(text).or_else(|| sharer(text, last_limit)) {
            return Parsed::Kill(self.kill(line, kill));
        }
        if let Some(report) = summary(text) {
            self.count_report(at);
            let begun = self.take_begun(at);
            self.add_report(Kill {
                usage: begun.usage,
                invoker: begun.invoker,
                seq: line.seq,
                timestamp_us: at,
                ..report
            });
        } else if is_invocation(text) {
            // The first line of a report. The kernel's rate limit holds back whole reports.
            self.group = None;
            self.explained = None;
            self.begun = Some(Kill {
                timestamp_us: at,
                ..Kill::default()
            });
        } else if let (Some(begun), Some(task)) = (&mut self.begun, invoker(text)) {
            begun.invoker.get_or_insert(task);
        } else if let Some(usage) = usage(text) {
            let latest = self.reports.last_mut().filter(|report| report.pid == 0);
            match (&self.begun, latest.or(self.explained.as_mut())) {
                (None, Some(report)) => report.usage = Some(usage),
                _ => {
                    self.begun = Some(Kill {
                        usage: Some(usage),
                        ..self.take_begun(at)
                    });
                }
            }
        } else if let Some((limit, task_cgroup)) = task_and_limit(text) {
            self.count_report(at);
            self.explained = None;
            let report = Kill {
                limit,
                task_cgroup,
                ..self.take_begun(at)
            };
            let is_same = |other: &&mut Kill| {
                let both = [&report, &**other].map(|one| (one.pid, &one.limit, &one.task_cgroup));
                both[0] == both[1] && within(other.timestamp_us, at)
            };
            match self.reports.iter_mut().find(is_same) {
                Some(same) => same.timestamp_us = at,
                None => self.add_report(report),
            }
        } else if let Some(chosen) = chosen(text) {
            self.choose(line, chosen);
        } else if let Some(cgroup) = group(text) {
            let chosen = self.last_kill.take().filter(|kill| within(kill.timestamp_us, at));
            self.group = Some(KilledGroup::new(at, cgroup, chosen, self.may_suppress(at)));
        } else if let Some(pid) = skipped(text) {
            self.reports.retain(|report| report.pid != pid);
        } else if kills_none(text) {
            self.forget_reports();
        } else {
            return Parsed::Other;
        }
        Parsed::Known
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

    /// How many facts the parser keeps.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        let reports = self.reports.len() + self.chosen.len() + self.alone.iter().map(Vec::len).sum::<usize>();
        reports + self.killed.len() + self.printed.len()
    }

    /// Records were lost: the lines before the loss must not explain the lines after.
    pub fn lost(&mut self) {
        self.forget_reports();
        self.last_kill = None;
        self.lost = true;
    }

    /// The lines that follow belong to none of the lines before: more time has passed, or the log ends.
    pub fn end_reports(&mut self) {
        let (reports, chosen) = (std::mem::take(&mut self.reports), std::mem::take(&mut self.chosen));
        self.keep_alone(reports.into_iter().chain(chosen));
        *self = Self {
            alone: self.alone.take(),
            ..Self::default()
        };
    }

    /// The kills that only a report names, since the last call.
    pub fn take_alone(&mut self) -> Vec<Kill> {
        self.alone.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Keeps reports whose process will not be named any more.
    fn keep_alone(&mut self, reports: impl IntoIterator<Item = Kill>) {
        for report in reports {
            let (pid, at) = (report.pid, report.timestamp_us);
            // Without times, a report distinguishes a process from an earlier one of that pid.
            let is_known = pid != 0 && at.is_some() && self.is_known(pid, at);
            if let Some(alone) = self.alone.as_mut().filter(|_| !is_known) {
                alone.push(report);
                self.remember(pid, at);
            }
        }
    }

    fn forget_reports(&mut self) {
        (self.begun, self.explained, self.group) = (None, None, None);
        self.reports.clear();
        self.chosen.clear();
    }

    /// Takes the report that the kernel is printing, if its last line is recent, for a line of this time.
    fn take_begun(&mut self, at: Option<u64>) -> Kill {
        let begun = self.begun.take().filter(|begun| within(begun.timestamp_us, at));
        Kill {
            timestamp_us: at,
            ..begun.unwrap_or_default()
        }
    }

    fn count_report(&mut self, at: Option<u64>) {
        self.group = None;
        self.may_suppress(at);
        self.printed.truncate(BURST - 1);
        self.printed.push_front(at);
    }

    fn add_report(&mut self, report: Kill) {
        let old = take_old(&mut self.reports, |other| {
            !within(other.timestamp_us, report.timestamp_us)
        });
        self.keep_alone(old);
        self.reports.push(report);
    }

    /// The kernel has chosen a process to kill.
    fn choose(&mut self, line: &Line, chosen: Kill) {
        let at = line.timestamp_us;
        self.chosen.retain(|earlier| earlier.pid != chosen.pid);
        // Without times, an earlier one counts as killed, or as gone before.
        let old = take_old(&mut self.chosen, |earlier| {
            at.is_none() || !within(earlier.timestamp_us, at)
        });
        self.keep_alone(old);
        let named = self.take_named_report(chosen.pid, at);
        let report = named.or_else(|| self.unnamed_report(&chosen, true, at));
        let report = report.unwrap_or_else(|| chosen.clone());
        self.chosen.push(Kill {
            pid: chosen.pid,
            comm: chosen.comm,
            seq: line.seq,
            timestamp_us: at,
            ..report
        });
    }

    /// Takes the report of the chosen process if this is the one, or its child. A child of one of several is explained by
    /// none, and leaves open which of the others are still to be killed.
    fn take_chosen(&mut self, pid: u32, at: Option<u64>) -> Option<Kill> {
        self.chosen.retain(|chosen| within(chosen.timestamp_us, at));
        let its = self.chosen.iter().position(|chosen| chosen.pid == pid);
        if its.is_none() && (self.chosen.is_empty() || self.is_known(pid, at)) {
            return None;
        }
        if its.is_none() && self.chosen.len() > 1 {
            for chosen in &mut self.chosen {
                (chosen.limit, chosen.task_cgroup) = (Limit::Unknown, None);
                (chosen.invoker, chosen.usage) = (None, None);
            }
        }
        Some(self.chosen.remove(its.unwrap_or(0)))
    }

    /// The report without a pid, if it is about this process. Of several, the process may be that of any: before Linux 4.2
    /// the kernel kills in several cgroups at a time. An earlier report is only about a process that was chosen for a cgroup's
    /// limit, or that shares memory: the line of a kill names no cause.
    fn unnamed_report(&mut self, process: &Kill, is_chosen: bool, at: Option<u64>) -> Option<Kill> {
        let may_suppress = self.may_suppress(at);
        let mut unnamed: Vec<Kill> = self.reports.extract_if(.., |report| report.pid == 0).collect();
        let first = unnamed.pop();
        let is_first = first.is_some();
        if is_first {
            self.explained = first.filter(|_| unnamed.is_empty());
        }
        let report = self.explained.as_mut()?;
        report.pid = process.pid;
        let is_limited = process.limit != Limit::Unknown;
        let is_same = !is_limited || process.limit == report.limit;
        let is_only = is_first || (is_chosen || is_limited) && !may_suppress;
        (is_same && is_only && within(report.timestamp_us, at)).then(|| report.clone())
    }

    /// Takes the report that names this pid, if it is recent.
    fn take_named_report(&mut self, pid: u32, at: Option<u64>) -> Option<Kill> {
        let index = self.reports.iter().position(|report| report.pid == pid)?;
        Some(self.reports.remove(index)).filter(|report| within(report.timestamp_us, at))
    }

    /// Takes the report about a killed process.
    fn take_report(&mut self, kill: &Kill, at: Option<u64>) -> Option<Kill> {
        if self.reports.iter().any(|report| report.pid == kill.pid) {
            self.chosen.retain(|chosen| chosen.pid != kill.pid);
            return self.take_named_report(kill.pid, at);
        }
        let is_in_group = self.group.as_ref().is_some_and(|group| within(group.last, at));
        match self.take_chosen(kill.pid, at) {
            None if !is_in_group => self.unnamed_report(kill, false, at),
            chosen => chosen,
        }
    }

    /// Whether the process was killed just before.
    fn is_known(&self, pid: u32, at: Option<u64>) -> bool {
        self.killed.get(&pid).is_some_and(|before| within(*before, at))
    }

    fn remember(&mut self, pid: u32, at: Option<u64>) {
        self.killed.shift_remove(&pid);
        self.killed.insert(pid, at);
        if self.killed.len() > MANY_PIDS {
            self.killed.shift_remove_index(0);
        }
    }

    fn kill(&mut self, line: &Line, mut kill: Kill) -> Option<Event> {
        let (pid, at) = (kill.pid, line.timestamp_us);
        let report = self.take_report(&kill, at);
        if report.is_some() || self.group.as_ref().is_some_and(|group| !within(group.last, at)) {
            self.group = None;
        }
        if let Some(group) = &mut self.group {
            group.last = at;
            if group.chosen.take_if(|chosen| *chosen == pid).is_some() {
                let group = group.cgroup.clone();
                return Some(Event::Again { pid, group });
            }
        }
        // The kernel reports no process that it has killed, so a report after the kill is about a later process of that
        // pid; but a file may be merged from several copies of the log. Without times, any such report distinguishes the two.
        let before = self.killed.get(&pid).copied().flatten();
        let is_new = report.as_ref().is_some_and(|report| {
            let times = report.timestamp_us.zip(before);
            let is_later = times.is_some_and(|(reported, killed)| reported > killed);
            report.pid == pid && (at.is_none() || is_later && self.alone.is_none())
        });
        let is_known = self.is_known(pid, at);
        self.remember(pid, at);
        if is_known && !is_new {
            return None;
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

/// Takes out the first reports that are old, whose kills do not come any more, and makes room for another one.
fn take_old(reports: &mut Vec<Kill>, is_old: impl Fn(&Kill) -> bool) -> Vec<Kill> {
    let old = reports.iter().take_while(|report| is_old(report)).count();
    let too_many = (reports.len() + 1).saturating_sub(MANY_REPORTS);
    reports.drain(..old.max(too_many)).collect()
}

/// A group that the kernel is killing, from the line with its name on.
#[derive(Debug)]
struct KilledGroup {
    cgroup: CgroupPath,
    /// The first victim, until the kernel has logged it a second time.
    chosen: Option<u32>,
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
        let victim = chosen.filter(is_in);
        let chosen = victim.as_ref().map(|kill| kill.pid);
        let reported = victim.filter(|kill| kill.task_cgroup.is_some() && !may_suppress);
        let report = reported.map(|kill| Kill {
            task_cgroup: Some(cgroup.clone()),
            group: Some(cgroup.clone()),
            ..kill
        });
        Self {
            cgroup,
            chosen,
            report,
            last,
        }
    }
}

#[cfg(test)]
mod tests;
