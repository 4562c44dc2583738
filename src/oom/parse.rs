//! Whole lines in → [`Event`]s out: the state between the lines of one report, and between reports.
//!
//! A kill is what a `Killed process` line says; every other line only explains one. Lines are joined by pid, because
//! reports of several CPUs may interleave and ten reports in five seconds are all the kernel prints: a kill without a
//! report of its own must never be explained by another's. What is not certain is left unknown; counters tell the rest.

mod group;
mod legacy;
mod window;

use std::collections::HashMap;

use crate::cgroup::CgroupPath;

use super::kill::{Invoker, Kill};
use super::line::Line;
use super::message::{Killed, LimitUsage, Message, Whose};
use super::summary::{Cgroups, Limit, Summary};
use super::within;

use group::Group;
use legacy::Legacy;
use window::ReportWindow;

/// Pids remembered before those from long ago are forgotten.
const MANY_PIDS: usize = 1024;

/// Something the kernel's log tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A process was killed.
    Kill(Box<Kill>),
    /// The kernel logged a kill again that was told before: of a group's first victim, after its group.
    Again {
        /// Which process.
        pid: u32,
        /// The group it was in, if that is why.
        group: Option<CgroupPath>,
    },
    /// Memory ran out and there was nobody to kill.
    NoVictim,
    /// The kernel kept this many reports back, some time before now.
    Suppressed {
        /// How many.
        reports: u64,
    },
}

/// Joins lines into events. A line can only complete one event, so nothing is ever queued here.
#[derive(Debug, Default)]
pub struct Parser {
    invoker: Option<Dated<Invoker>>,
    usage: Option<Dated<LimitUsage>>,
    summaries: HashMap<u32, Dated<Report>>,
    legacy: Legacy,
    group: Option<Group>,
    last_kill: Option<Dated<Kill>>,
    killed: HashMap<u32, Option<u64>>,
    reports: ReportWindow,
}

/// What a report says about the kill it announces.
#[derive(Debug)]
struct Report {
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
}

impl Parser {
    /// Takes the next whole line.
    pub fn push(&mut self, line: &Line) -> Option<Event> {
        let message = Message::read(&line.text)?;
        let at = line.timestamp_us;
        self.reports.look(at);
        match message {
            Message::Invoked { comm } => {
                self.group = None;
                self.usage = None;
                let comm = comm.to_owned();
                self.invoker = Some(Dated {
                    at,
                    what: Invoker { comm, pid: None },
                });
            }
            Message::Cpu { pid, comm } => {
                if let Some(invoker) = self.invoker.as_mut().filter(|invoker| invoker.what.comm == comm) {
                    invoker.what.pid = Some(pid);
                }
            }
            Message::Usage(what) => self.usage = Some(Dated { at, what }),
            Message::Summary(summary) => self.report(at, summary),
            Message::LimitHit(cgroups) => {
                self.group = None;
                self.reports.printed(at);
                self.legacy.limit_hit(at, cgroups);
            }
            Message::Candidate { pid } => self.legacy.candidate(pid),
            Message::Chosen { pid, whose } => self.legacy.chosen(at, pid, whose),
            Message::Killed(killed) => return Some(self.kill(line, &killed)),
            Message::Skipped { pid } => {
                self.summaries.remove(&pid);
            }
            Message::Group { cgroup } => self.open_group(at, cgroup),
            Message::NoVictim => {
                self.forget_reports();
                return Some(Event::NoVictim);
            }
            Message::Suppressed { reports } => return Some(Event::Suppressed { reports }),
        }
        None
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
        self.summaries.clear();
        self.legacy = Legacy::default();
        self.group = None;
    }

    fn report(&mut self, at: Option<u64>, summary: Summary) {
        self.group = None;
        self.reports.printed(at);
        let invoker = self
            .invoker
            .take()
            .filter(|invoker| invoker.is_recent(at))
            .map(|invoker| invoker.what);
        self.summaries.retain(|_, summary| summary.is_recent(at));
        let what = Report {
            cgroups: summary.cgroups,
            invoker,
            usage: self.take_usage(at),
        };
        self.summaries.insert(summary.pid, Dated { at, what });
    }

    /// How full the cgroup was, if this report said so.
    fn take_usage(&mut self, at: Option<u64>) -> Option<LimitUsage> {
        let usage = self.usage.take().filter(|usage| usage.is_recent(at));
        usage.map(|usage| usage.what)
    }

    fn open_group(&mut self, at: Option<u64>, cgroup: CgroupPath) {
        let chosen = self
            .last_kill
            .take()
            .filter(|kill| kill.is_recent(at))
            .map(|kill| kill.what);
        self.group = Some(Group::open(at, cgroup, chosen, self.reports.may_suppress(at)));
    }

    fn kill(&mut self, line: &Line, killed: &Killed<'_>) -> Event {
        let (pid, at) = (killed.pid, line.timestamp_us);
        let chosen = self.legacy.take_chosen(at, killed);
        // Linux 5.0 names the victim in its report and may still kill a child of it.
        let parents = || chosen.map(|chosen| chosen.pid);
        let told = (self.summaries.remove(&pid)).or_else(|| self.summaries.remove(&parents()?));
        let told = told.filter(|summary| summary.is_recent(at));
        if told.is_some() || self.group.as_ref().is_some_and(|group| group.is_over(at)) {
            self.group = None;
        }
        if let Some(group) = &mut self.group
            && !group.insert(at, pid)
        {
            return Event::Again {
                pid,
                group: Some(group.cgroup().clone()),
            };
        }
        let before = self.killed.insert(pid, at);
        // Without times order alone decides: a process is reported on once, so this one has the pid of an earlier one.
        let anew = told.is_some() && at.is_none();
        if before.is_some_and(|before| within(before, at)) && !anew {
            return Event::Again { pid, group: None };
        }
        if self.killed.len() > MANY_PIDS {
            self.killed.retain(|_, before| within(*before, at));
        }
        let (told, invoker, usage) = told.map_or((None, None, None), |told| {
            let Report {
                cgroups,
                invoker,
                usage,
            } = told.what;
            (Some(cgroups), invoker, usage)
        });
        let was_told = told.is_some();
        let (told, whose) = self.legacy.explain(at, killed, chosen, told);
        // Before Linux 5.0 the line comes between the report's first and its kill.
        let usage = match &told {
            Some(_) if !was_told => self.take_usage(at),
            _ => usage,
        };
        let group = self.group.as_ref().filter(|group| told.is_none() && group.is_certain());
        let (limit, task_cgroup) = match (told, group) {
            (Some(Cgroups { limit, task }), _) => (limit, Some(task)),
            (None, Some(group)) => (group.limit().clone(), Some(group.cgroup().clone())),
            (None, None) if whose == Whose::Nodes => (Limit::Node, None),
            (None, None) => (Limit::Unknown, None),
        };
        let kill = Kill {
            pid,
            comm: killed.comm.to_owned(),
            limit,
            task_cgroup,
            group: group.map(|group| group.cgroup().clone()),
            usage: usage.or_else(|| group.and_then(Group::usage)),
            memory: killed.memory,
            oom_score_adj: killed.oom_score_adj,
            uid: killed.uid,
            invoker: invoker.or_else(|| group.and_then(|group| group.invoker().cloned())),
            seq: line.seq,
            timestamp_us: at,
        };
        self.last_kill = Some(Dated { at, what: kill.clone() });
        Event::Kill(Box::new(kill))
    }
}

#[cfg(test)]
mod tests;
