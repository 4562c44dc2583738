//! What happens to pods, counted.

use std::collections::HashMap;
use std::time::Duration;

use prometheus_client::registry::Registry;

use super::entry::Entry;
use crate::actuate::{JobDone, Outcome, Stages, StepRecord, Verdict};
use crate::decide::{PodDecision, Reason};
use crate::observe::metrics::{
    DecisionMetrics, GrowthOutcome, GuardMetrics, PodState, ProblemKind, ProblemMetrics, ResizeMetrics, ResizeOutcome,
    ShrinkMetrics, ShrinkOutcome, Stage, StepOutcome,
};

/// The counters the coordinator owns.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    resizes: ResizeMetrics,
    decisions: DecisionMetrics,
    problems: ProblemMetrics,
    shrinks: ShrinkMetrics,
    guard: GuardMetrics,
}

impl Metrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            resizes: ResizeMetrics::register(registry),
            decisions: DecisionMetrics::register(registry),
            problems: ProblemMetrics::register(registry),
            shrinks: ShrinkMetrics::register(registry),
            guard: GuardMetrics::register(registry),
        }
    }

    /// A decision that says something else than the one before.
    pub(super) fn decided(&self, decision: &PodDecision) {
        self.decisions.decided(decision.reason);
    }

    /// How much is wrong now, and with what.
    pub(super) fn problems(&self, counts: &[(ProblemKind, usize)]) {
        for (kind, count) in counts {
            self.problems.set(*kind, *count);
        }
    }

    /// A limit was about to be reached.
    pub(super) fn grew(&self, outcome: GrowthOutcome) {
        self.guard.grew(outcome);
    }

    pub(super) fn passed(&self, done: &JobDone) {
        self.resizes.finished(outcome(&done.outcome), &stages(&done.stages));
        if done.shrink.refused {
            self.shrunk(ShrinkOutcome::Refused);
        } else if !done.shrink.lowered.is_empty() {
            self.shrunk(ShrinkOutcome::Lowered);
        }
        for stood in &done.shrink.freezes {
            self.shrinks.froze(*stood);
        }
        for step in &done.steps {
            self.resizes.step(step.via, step_outcome(step, &done.outcome));
        }
        for (_, file, _) in done
            .flipped
            .iter()
            .filter(|(_, _, verdict)| *verdict == Verdict::Repair)
        {
            if done.outcome.holds() {
                self.resizes.drift_repaired(*file);
            }
        }
    }

    /// Lower limits came to this.
    pub(super) fn shrunk(&self, outcome: ShrinkOutcome) {
        self.shrinks.shrunk(outcome);
    }

    /// How the pods stand now.
    pub(super) fn standing<'a>(&self, entries: impl Iterator<Item = &'a Entry>, now: jiff::Timestamp) {
        let (mut counts, mut foreign, mut overridden, mut leases) = ([0; PodState::ALL.len()], 0, 0, 0);
        let mut decided: HashMap<Reason, usize> = HashMap::new();
        for entry in entries {
            let state = entry.state(now);
            for (count, _) in counts.iter_mut().zip(PodState::ALL).filter(|(_, of)| **of == state) {
                *count += 1;
            }
            foreign += entry.foreign.all_paused(now).count();
            overridden += usize::from(entry.standing.overridden.is_some());
            *decided.entry(entry.decision.reason).or_default() += 1;
            leases += entry.standing.leases.len();
        }
        for (count, state) in counts.into_iter().zip(PodState::ALL) {
            self.resizes.set_pods(*state, count);
        }
        for reason in Reason::ALL {
            let count = decided.get(reason).copied().unwrap_or_default();
            self.decisions.set_pods(*reason, count);
        }
        self.resizes.set_foreign_writers(foreign);
        self.resizes.set_overridden(overridden);
        self.guard.set_leases(leases);
    }
}

const fn outcome(outcome: &Outcome) -> ResizeOutcome {
    match outcome {
        Outcome::Applied => ResizeOutcome::Applied,
        Outcome::Unchanged => ResizeOutcome::Unchanged,
        Outcome::RuntimeOwed { .. } => ResizeOutcome::RuntimeOwed,
        Outcome::Withheld(_) => ResizeOutcome::Withheld,
        Outcome::Refused { .. } => ResizeOutcome::Refused,
        Outcome::RolledBack { .. } => ResizeOutcome::RolledBack,
        Outcome::Interrupted { .. } | Outcome::Incomplete { .. } => ResizeOutcome::Incomplete,
    }
}

const fn step_outcome(step: &StepRecord, outcome: &Outcome) -> StepOutcome {
    match (&step.error, outcome) {
        (None, _) => StepOutcome::Verified,
        (Some(_), Outcome::Interrupted { .. }) => StepOutcome::Gone,
        (Some(_), Outcome::RolledBack { .. }) => StepOutcome::Refused,
        (Some(_), _) => StepOutcome::Failed,
    }
}

/// The stages a pass went through.
fn stages(stages: &Stages) -> Vec<(Stage, Duration)> {
    let all = [
        (Stage::Decide, stages.decide),
        (Stage::Ask, stages.ask),
        (Stage::Observe, stages.observe),
        (Stage::Plan, stages.plan),
        (Stage::Prepare, stages.prepare),
        (Stage::Write, stages.write),
        (Stage::Runtime, stages.runtime),
        // A container is looked at for as long as it takes to trust it with less: nothing an objective for speed is about.
        (Stage::Total, stages.verified.saturating_sub(stages.prepare)),
    ];
    all.into_iter().filter(|(_, duration)| !duration.is_zero()).collect()
}
