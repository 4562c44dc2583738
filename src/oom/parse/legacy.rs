//! Reports before Linux 5.0, whose line with the cgroups does not name the victim.
//!
//! `Task in /a killed as a result of limit of /b`, the table of candidates, `Kill process P … or sacrifice child`,
//! `Killed process Q`, where Q may be a child of P. The table is what ties them together: it holds every process of the
//! cgroup. Without it (`vm.oom_dump_tasks=0`) the line is taken only while a single report is open.

use std::collections::HashSet;

use crate::oom::message::{Killed, Whose};
use crate::oom::summary::Cgroups;

use super::Dated;

/// More than `pid_max` of a default kernel; beyond, the table is not kept.
const LARGEST_TABLE: usize = 65_536;

/// What such reports left open.
#[derive(Debug, Default)]
pub(super) struct Legacy {
    report: Option<Dated<Report>>,
    chosen: Vec<Dated<Chosen>>,
}

/// A process that was to be killed, or a child of it in its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chosen {
    pub(super) pid: u32,
    whose: Whose,
}

#[derive(Debug)]
struct Report {
    /// `None` when a second report began before the first one's kill: their tables cannot be told apart.
    cgroups: Option<Cgroups>,
    candidates: HashSet<u32>,
}

impl Legacy {
    pub(super) fn limit_hit(&mut self, at: Option<u64>, cgroups: Cgroups) {
        let alone = self.report.take().is_none_or(|open| !open.is_recent(at));
        let what = Report {
            cgroups: alone.then_some(cgroups),
            candidates: HashSet::new(),
        };
        self.report = Some(Dated { at, what });
    }

    pub(super) fn candidate(&mut self, pid: u32) {
        if let Some(report) = &mut self.report
            && report.what.candidates.len() < LARGEST_TABLE
        {
            report.what.candidates.insert(pid);
        }
    }

    pub(super) fn chosen(&mut self, at: Option<u64>, pid: u32, whose: Whose) {
        self.chosen.retain(|chosen| chosen.is_recent(at));
        let what = Chosen { pid, whose };
        self.chosen.push(Dated { at, what });
    }

    /// The choice that led to this kill: of the process itself, or of its parent.
    pub(super) fn take_chosen(&mut self, at: Option<u64>, killed: &Killed<'_>) -> Option<Chosen> {
        self.chosen.retain(|chosen| chosen.is_recent(at));
        let chosen = match self.chosen.iter().position(|chosen| chosen.what.pid == killed.pid) {
            Some(at) => Some(self.chosen.remove(at)),
            // The child of a chosen process, which can only be told while a single one is chosen.
            None if self.chosen.len() == 1 && killed.whose == Whose::NotSaid => self.chosen.pop(),
            None => None,
        };
        chosen.map(|chosen| chosen.what)
    }

    /// Completes what is known about a kill: its cgroups, unless a newer kernel told them, and whose memory it was.
    pub(super) fn explain(
        &mut self,
        at: Option<u64>,
        killed: &Killed<'_>,
        chosen: Option<Chosen>,
        told: Option<Cgroups>,
    ) -> (Option<Cgroups>, Whose) {
        let whose = match (killed.whose, chosen) {
            (Whose::NotSaid, Some(chosen)) => chosen.whose,
            (whose, _) => whose,
        };
        if told.is_some() || whose == Whose::Nodes {
            return (told, whose);
        }
        let explains = |open: &Dated<Report>| {
            let table = &open.what.candidates;
            open.is_recent(at) && (table.contains(&killed.pid) || (table.is_empty() && chosen.is_some()))
        };
        let report = self.report.take_if(|open| explains(open));
        (report.and_then(|report| report.what.cgroups), whose)
    }
}
