//! What the guard is told, and what becomes of what it does: loans that stand, are saved, shown and ended.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::Coordinator;
use crate::actuate::shrink::ShrinkReport;
use crate::actuate::{Cause, ForeignWriters, Grown, JobDone, Outcome, Stages};
use crate::agent::entry::Entry;
use crate::agent::standing::Lent;
use crate::guard::lease::{AfterQuiet, Lease};
use crate::guard::ledger::Refusal;
use crate::guard::{Claim, Guarded, GuardedPod, Report, Terms, Watchlist};
use crate::observe::metrics::GrowthOutcome;
use crate::resources::{Bytes, Resource};

impl Coordinator {
    /// Takes in what the guard did or could not do.
    pub(super) fn take_report(&mut self, report: Report) {
        match report {
            Report::Grew { of, to, why, grown } => self.take_growth(&of, to, why, *grown),
            Report::Refused { of, refused, why } => {
                self.metrics.grew(not_grown(refused));
                tracing::warn!(
                    pod = %of.pod, container = of.container, reason = why,
                    "a memory limit is not grown although it will be reached"
                );
                if let Some(entry) = self.guarded(&of) {
                    let reason = format!("container {}: memory limit not grown: {why}", of.container);
                    entry.not_saved.insert(of.container.clone(), why);
                    self.note(&of, Outcome::Refused { reason }, Vec::new(), Stages::default());
                }
            }
            Report::Quiet { of, peak } => self.take_quiet(&of, peak),
        }
    }

    fn take_growth(&mut self, of: &Guarded, to: Bytes, why: String, grown: Grown) {
        let applied = grown.outcome == Outcome::Applied;
        self.metrics.grew(if applied {
            GrowthOutcome::Applied
        } else {
            GrowthOutcome::Failed
        });
        let Some(entry) = self.guarded(of) else {
            tracing::info!(pod = %of.pod, container = of.container, "grown by the guard, and not described any more");
            return;
        };
        if applied {
            let now = Timestamp::now();
            entry.not_saved.remove(&of.container);
            entry.standing.lend(Lent {
                container: &of.container,
                resource: Resource::Memory,
                from: grown.from.unwrap_or_default().get(),
                to: to.get(),
                why,
                now,
            });
            entry.start_over();
            entry.ask(cause(of), true);
            self.unsaved = true;
        }
        let stages = Stages {
            write: grown.took,
            verified: grown.took,
            ..Stages::default()
        };
        self.note(of, grown.outcome, grown.steps, stages);
    }

    /// A container that was lent memory needs it no more, or less of it, or still all of it.
    fn take_quiet(&mut self, of: &Guarded, peak: Bytes) {
        let now = Timestamp::now();
        let floors = Arc::clone(&self.floors);
        let Some(entry) = self.guarded(of) else { return };
        let base = entry
            .standing
            .limit_without_loan(&entry.pod, &of.container, Resource::Memory);
        let Some(lease) = entry.standing.lease(&of.container, Resource::Memory) else {
            return;
        };
        let lent = Bytes::new(lease.to);
        let kept = match lease.after_quiet(base.unwrap_or(0), peak.get()) {
            AfterQuiet::Keep => return,
            AfterQuiet::Lower { to } => Some(Bytes::new(to)),
            AfterQuiet::End => None,
        };
        floors.replace(&of.pod.uid, &of.container, lent, kept);
        match kept {
            Some(to) => entry
                .standing
                .lower_lease(&of.container, Resource::Memory, to.get(), now),
            None => entry.standing.end_lease(&of.container, Resource::Memory),
        }
        entry.start_over();
        entry.ask(Cause::LoanEnded, true);
        self.unsaved = true;
        self.unwatched = true;
    }

    /// What the recommender has caught up with is lent no more.
    pub(super) fn end_overtaken(entry: &mut Entry, floors: &crate::actuate::Floors) -> bool {
        let ended = entry.standing.end_overtaken(&entry.pod);
        for lease in &ended {
            if let Some(live) = &entry.live {
                floors.replace(&live.id.uid, &lease.container, Bytes::new(lease.to), None);
            }
            tracing::info!(
                pod = entry.pod.full_name(),
                container = lease.container,
                lent = lease.to,
                "what was lent in an emergency is recommended now"
            );
        }
        !ended.is_empty()
    }

    /// Has the guard watch what may grow now, if that is something else than before.
    pub(super) fn watch_guarded(&mut self) {
        if !std::mem::take(&mut self.unwatched) {
            return;
        }
        let Some(guard) = &self.guard else { return };
        let settings = self.options.guard.filter(|_| !self.options.observe_only);
        let entries = || self.entries.values().map(|entry| &**entry);
        guard.watch(Watchlist {
            node: self.node.clone(),
            pods: settings.map_or_else(Vec::new, |_| entries().filter_map(terms).collect()),
            claims: entries().filter_map(claim).collect(),
            settings: settings.unwrap_or_default(),
        });
    }

    /// How long a container has to be quiet before what it was lent is taken back.
    pub(super) fn quiet(&self) -> SignedDuration {
        let quiet = self.options.guard.unwrap_or_default().quiet;
        SignedDuration::try_from(quiet).unwrap_or(SignedDuration::MAX)
    }

    /// The entry of a pod the guard speaks of, if it is still that pod.
    fn guarded(&mut self, of: &Guarded) -> Option<&mut Entry> {
        let key = format!("{}/{}", of.pod.namespace, of.pod.name);
        let entry = self.entries.get_mut(&key)?;
        let same = entry.live.as_ref().is_some_and(|live| live.id.uid == of.pod.uid);
        same.then_some(entry)
    }

    fn note(&mut self, of: &Guarded, outcome: Outcome, steps: Vec<crate::actuate::StepRecord>, stages: Stages) {
        let mut done = JobDone {
            handles: None,
            foreign: ForeignWriters::default(),
            outcome,
            steps,
            flipped: Vec::new(),
            stages,
            stale: false,
            formula: None,
            shrink: ShrinkReport::default(),
        };
        let record = self.history.add(Timestamp::now(), of.pod.clone(), cause(of), &mut done);
        if let Some(entry) = self.guarded(of) {
            entry.last = Some(record);
        }
    }
}

fn cause(of: &Guarded) -> Cause {
    Cause::Guard {
        container: of.container.clone(),
    }
}

const fn not_grown(refusal: Option<Refusal>) -> GrowthOutcome {
    match refusal {
        Some(Refusal::Ceiling { .. }) => GrowthOutcome::Ceiling,
        Some(Refusal::Node { .. }) => GrowthOutcome::Node,
        Some(Refusal::PodBudget { .. }) => GrowthOutcome::PodBudget,
        Some(Refusal::NodeBudget { .. }) => GrowthOutcome::NodeBudget,
        None => GrowthOutcome::Failed,
    }
}

/// What of a pod may grow. What an operator has set is the operator's.
fn terms(entry: &Entry) -> Option<GuardedPod> {
    let live = entry.live.clone()?;
    let containers: Vec<Terms> = entry
        .decision
        .ceilings
        .iter()
        .filter(|ceiling| live.containers.contains_key(&ceiling.container))
        .filter(|ceiling| !entry.standing.is_set_by_hand(&ceiling.container, Resource::Memory))
        .filter_map(|ceiling| {
            Some(Terms {
                container: ceiling.container.clone(),
                ceiling: ceiling.limits.memory?,
            })
        })
        .collect();
    (!containers.is_empty()).then_some(GuardedPod { live, containers })
}

/// What a pod has requested.
fn claim(entry: &Entry) -> Option<Claim> {
    let live = entry.live.as_ref()?;
    let requests = entry.standing.without_loans(&entry.pod);
    let request: Bytes = requests
        .iter()
        .filter_map(|container| container.resources.requests.memory)
        .sum();
    (!request.is_zero()).then(|| Claim {
        uid: live.id.uid.clone(),
        path: live.path.clone(),
        request,
    })
}

/// Raises the floors that an earlier agent's loans were.
pub(super) fn raise_floors(floors: &crate::actuate::Floors, uid: &str, leases: &[Lease]) {
    for lease in leases.iter().filter(|lease| lease.resource == Resource::Memory) {
        floors.raise(uid, &lease.container, Bytes::new(lease.to));
    }
}
