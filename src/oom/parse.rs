//! Whole lines in → [`Event`]s out: the state between the lines of one report, and between reports.
//!
//! A kill is what a `Killed process` line says; every other line only explains one. Lines are joined by pid, because
//! reports of several CPUs may interleave and ten reports in five seconds are all the kernel prints: a kill without a
//! report of its own must never be explained by another's. What is not certain is left unknown; counters tell the rest.
//!
//! Of a cgroup that is killed as a whole (`memory.oom.group`) the kernel logs the chosen victim, then the name of the group, then every process in it, the chosen one a second time
//! (`oom_kill_process`, from Linux 4.19 to at least 7.2). Nothing marks the end. The next kill outside begins with a report,
//! unless reports are being held back: then a kill after the name may be a stranger's, and is not explained.
//!
//! [`ReportWindow`] says whether the kernel may be holding reports back right now.

use std::collections::{HashMap, HashSet, VecDeque};

use super::kill::{Invoker, Kill};
use super::message::{Cgroups, LimitUsage, Message, Summary};
use super::record::Line;
use super::within;
use crate::model::CgroupPath;

/// Pids remembered before those from long ago are forgotten.
const MANY_PIDS: usize = 1024;

/// What the kernel's log tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Kill(Box<Kill>),
    /// The first victim of a group was logged again after its group.
    Again {
        pid: u32,
        /// The group it was in.
        group: CgroupPath,
    },
}

/// Joins lines into events. A line can only complete one event, so nothing is ever queued here.
#[derive(Debug, Default)]
pub struct Parser {
    invoker: Option<Dated<Invoker>>,
    usage: Option<Dated<LimitUsage>>,
    explanations: HashMap<u32, Dated<Explanation>>,
    group: Option<Group>,
    last_kill: Option<Dated<Kill>>,
    killed: HashMap<u32, Option<u64>>,
    reports: ReportWindow,
    kill_lines: u64,
}

/// What a report says about the kill that follows.
#[derive(Debug, Clone)]
struct Explanation {
    cgroups: Cgroups,
    invoker: Option<Invoker>,
    usage: Option<LimitUsage>,
}

/// Something with the time of its line.
#[derive(Debug)]
struct Dated<T> {
    at: Option<u64>,
    what: T,
}

impl<T> Dated<T> {
    fn is_recent(&self, now: Option<u64>) -> bool {
        within(self.at, now)
    }

    fn if_recent(self, now: Option<u64>) -> Option<T> {
        self.is_recent(now).then_some(self.what)
    }
}

impl Parser {
    /// Takes the next whole line.
    pub fn push(&mut self, line: &Line) -> Option<Event> {
        let message = Message::read(&line.text)?;
        let at = line.timestamp_us;
        self.reports.line_at(at);
        match message {
            Message::Invoked { comm } => {
                self.group = None;
                self.usage = None;
                let comm = comm.to_owned();
                let what = Invoker { comm, pid: None };
                self.invoker = Some(Dated { at, what });
            }
            Message::Cpu { pid, comm } => {
                if let Some(invoker) = self.invoker.as_mut().filter(|invoker| invoker.what.comm == comm) {
                    invoker.what.pid = Some(pid);
                }
            }
            Message::Usage(what) => self.usage = Some(Dated { at, what }),
            Message::Summary(summary) => self.add_report(at, summary),
            Message::Killed(kill) => return self.kill(line, kill),
            Message::Skipped { pid } => drop(self.explanations.remove(&pid)),
            Message::Group { cgroup } => {
                let chosen = self.last_kill.take().and_then(|kill| kill.if_recent(at));
                self.group = Some(Group::new(at, cgroup, chosen, self.reports.may_suppress(at)));
            }
            Message::NoVictim => self.forget_reports(),
        }
        None
    }

    /// How many lines told of a kill, whether or not it was told before.
    pub const fn kill_lines(&self) -> u64 {
        self.kill_lines
    }

    /// Records were lost: what was told so far must not explain what comes.
    pub fn lost(&mut self) {
        self.forget_reports();
        self.last_kill = None;
        self.reports.lost();
    }

    fn forget_reports(&mut self) {
        self.invoker = None;
        self.usage = None;
        self.explanations.clear();
        self.group = None;
    }

    fn add_report(&mut self, at: Option<u64>, summary: Summary) {
        self.group = None;
        self.reports.printed(at);
        self.explanations.retain(|_, explanation| explanation.is_recent(at));
        let what = Explanation {
            cgroups: summary.cgroups,
            invoker: self.invoker.take().and_then(|invoker| invoker.if_recent(at)),
            usage: self.usage.take().and_then(|usage| usage.if_recent(at)),
        };
        self.explanations.insert(summary.pid, Dated { at, what });
    }

    fn kill(&mut self, line: &Line, mut kill: Box<Kill>) -> Option<Event> {
        self.kill_lines += 1;
        let (pid, at) = (kill.pid, line.timestamp_us);
        let explanation = self.explanations.remove(&pid);
        let explanation = explanation.and_then(|explanation| explanation.if_recent(at));
        if explanation.is_some() || self.group.as_ref().is_some_and(|group| group.is_over(at)) {
            self.group = None;
        }
        if let Some(group) = &mut self.group
            && !group.insert(at, pid)
        {
            let group = group.cgroup.clone();
            return Some(Event::Again { pid, group });
        }
        let before = self.killed.insert(pid, at);
        // Without times order alone decides: a process is reported on once, so this one has the pid of an earlier one.
        let is_new = explanation.is_some() && at.is_none();
        if before.is_some_and(|before| within(before, at)) && !is_new {
            return None;
        }
        if self.killed.len() > MANY_PIDS {
            self.killed.retain(|_, before| within(*before, at));
        }
        let explanation = explanation.or_else(|| {
            let group = self.group.as_ref()?;
            let explanation = group.explanation.clone()?;
            kill.group = Some(group.cgroup.clone());
            Some(explanation)
        });
        if let Some(Explanation {
            cgroups,
            invoker,
            usage,
        }) = explanation
        {
            (kill.limit, kill.task_cgroup) = (cgroups.limit, Some(cgroups.task));
            (kill.invoker, kill.usage) = (invoker, usage);
        }
        (kill.seq, kill.timestamp_us) = (line.seq, at);
        let what = Kill::clone(&kill);
        self.last_kill = Some(Dated { at, what });
        Some(Event::Kill(kill))
    }
}

/// The kill of a group, from its name on.
#[derive(Debug)]
struct Group {
    cgroup: CgroupPath,
    victims: HashSet<u32>,
    /// What the report of the chosen victim says, if every kill up to the next report belongs here.
    explanation: Option<Explanation>,
    last: Option<u64>,
}

impl Group {
    /// A group was named after the kill of `chosen`.
    fn new(at: Option<u64>, cgroup: CgroupPath, chosen: Option<Kill>, may_suppress: bool) -> Self {
        let task = |kill: &Kill| kill.task_cgroup.clone();
        let chosen = chosen.filter(|kill| task(kill).is_none_or(|task| task.below(&cgroup).is_some()));
        let victims = chosen.iter().map(|kill| kill.pid).collect();
        let reported = chosen.filter(|kill| kill.task_cgroup.is_some() && !may_suppress);
        let explanation = reported.map(|kill| Explanation {
            cgroups: Cgroups {
                limit: kill.limit,
                task: cgroup.clone(),
            },
            invoker: kill.invoker,
            usage: kill.usage,
        });
        Self {
            cgroup,
            victims,
            explanation,
            last: at,
        }
    }

    /// Adds the next kill. Returns whether it is the first of this process.
    fn insert(&mut self, at: Option<u64>, pid: u32) -> bool {
        self.last = at;
        self.victims.insert(pid)
    }

    /// Whether a kill at this time is too late to belong here.
    fn is_over(&self, at: Option<u64>) -> bool {
        !within(self.last, at)
    }
}

/// `DEFINE_RATELIMIT_STATE(oom_rs, 5 * HZ, 10)` in `oom_kill_process`: ten reports in five seconds, for the whole node.
const BURST: usize = 10;

/// The times of the latest reports. While fewer than ten lie within the last five seconds, each kill comes with a report.
#[derive(Debug, Default)]
struct ReportWindow {
    printed: VecDeque<Option<u64>>,
    lost: bool,
}

impl ReportWindow {
    /// Records that a report was printed.
    fn printed(&mut self, at: Option<u64>) {
        self.printed.push_back(at);
        if self.printed.len() > BURST {
            self.printed.pop_front();
        }
    }

    /// Records that any number of reports may have been lost before the next line.
    const fn lost(&mut self) {
        self.lost = true;
    }

    /// Records the time of a line.
    fn line_at(&mut self, at: Option<u64>) {
        if std::mem::take(&mut self.lost) {
            self.printed = VecDeque::from([at; BURST]);
        }
    }

    /// Whether a kill after this time may come without a report.
    fn may_suppress(&self, at: Option<u64>) -> bool {
        self.printed.len() == BURST && self.printed.front().is_some_and(|oldest| within(*oldest, at))
    }
}

#[cfg(test)]
mod tests;
