//! Metrics of the pods: decisions, passes and the state of pods.

#[cfg(test)]
mod tests;

use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::pod::PodState;
use super::shrink::ShrinkEnd;
use crate::actuate::{JobDone, Verdict};
use crate::decide::PodDecision;
use crate::guard::GuardEvent;
use crate::guard::budgets::Refusal;
use crate::lint::LintRule;
use crate::model::{Action, ControlFile, HookEnd, Outcome, Reason, Stages, StepRecord, Via};
use crate::observe::metrics::{Counters, Gauges, Histograms, Labels, family, gauge, labels, register, seconds};
use crate::plan::hook::HookMoment;

const DURATIONS: &str =
    "Time taken by passes over pods, by stage; the stage `total` is from the decision seen to all files verified";
const REPAIRS: &str = "Values that something else had changed, and that were put right";
const FOREIGN_WRITERS: &str = "Values that something else keeps changing, and that are left alone for a while";
const PODS: &str = "Pods on this node, by how they stand";
const OVERRIDDEN: &str = "Pods on this node that are held by hand";
const DECISIONS: &str = "Decisions about pods that differ from the one before";
const DECIDED: &str = "Pods on this node, by what the latest decision says";
const PROBLEMS: &str = "What is degraded, as vscalectl get lists it";
const SHRINKS: &str = "Passes that were to lower memory limits, and what became of the limits";
const HOOKS: &str = "Hooks of containers that were due, and what became of them";
const FREEZES: &str = "Time for which a cgroup stood still while its memory limit was lowered";
const GROWTHS: &str = "Memory limits that were about to be reached, by what became of them";
const LINT: &str = "Memory settings inside containers of this node that no resize reaches";
const TEMPORARY_LIMITS: &str =
    "Limits that are held higher than decided because they were about to be reached or throttled all the time";
const LOW_POD_LEVELS: &str = "Pods whose cgroup allows less memory than their containers' cgroups do together";

// The values of labels; docs/metrics.md says what each means.
const STAGES: [&str; 8] = [
    "decide", "ask", "observe", "plan", "prepare", "write", "runtime", "total",
];
const PASS_OUTCOMES: [&str; 7] = [
    "applied",
    "unchanged",
    "runtime_owed",
    "withheld",
    "refused",
    "rolled_back",
    "incomplete",
];
const STEP_OUTCOMES: [&str; 4] = ["verified", "refused", "gone", "failed"];
const SHRINK_OUTCOMES: [&str; 4] = ["refused", "lowered", "kept", "undone"];
const HOOK_RESULTS: [&str; 2] = ["ran", "failed"];
const GROWTH_OUTCOMES: [&str; 6] = ["applied", "ceiling", "node", "pod_budget", "node_budget", "failed"];

labels! {
    /// The part of the agent that a problem is about.
    pub(crate) enum ProblemKind {
        Manifests = "manifests",
        Node = "node",
        State = "state",
        Kills = "kills",
    }

    /// The state of a pod.
    #[derive(derive_more::Display)]
    pub(crate) enum PodStatus {
        NotManaged = "not_managed",
        InSync = "in_sync",
        Working = "working",
        Owed = "owed",
        Refused = "refused",
        Deferred = "deferred",
        Infeasible = "infeasible",
        Foreign = "foreign",
        NotRunning = "not_running",
    }
}

/// The families that the controller owns.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    resizes: Counters<1>,
    durations: Histograms<2>,
    steps: Counters<2>,
    repairs: Counters<1>,
    decisions: Counters<2>,
    problems: Gauges<1>,
    shrinks: Counters<1>,
    hooks: Counters<2>,
    freezes: Histogram,
    growths: Counters<1>,
    pods: PodGauges,
}

/// The numbers of pods by their state.
#[derive(Debug, Clone)]
struct PodGauges {
    by_status: Gauges<1>,
    by_decision: Gauges<2>,
    overridden: Gauge,
    foreign_writers: Gauge,
    temporary_limits: Gauge,
    low_pod_levels: Gauge,
    lint_findings: Gauges<2>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let r = registry;
        let ways = [Via::Resize, Via::Cri, Via::Cgroup, Via::Systemd].into_iter();
        let steps = ways.flat_map(|way| STEP_OUTCOMES.map(|outcome| step_labels(way, outcome)));
        let files = ControlFile::V1.iter().chain(ControlFile::V2).copied();
        let files = files.map(|file| [("file", file.name())]);
        let decisions = || Reason::ALL.iter().copied().map(decision_labels);
        let moments = HookMoment::ALL.into_iter();
        let hooks = moments.flat_map(|moment| HOOK_RESULTS.map(|result| hook_labels(moment, result)));
        let outcomes = |values: &'static [&'static str]| values.iter().map(|value| [("outcome", *value)]);
        let durations: Histograms<2> = Family::new_with_constructor(seconds);
        for labels in durations_at_zero() {
            drop(durations.get_or_create_owned(&labels));
        }
        Self {
            resizes: family(r, "resizes", "Passes over pods", outcomes(&PASS_OUTCOMES)),
            durations: register(r, "resize_duration_seconds", DURATIONS, durations),
            steps: family(r, "steps", "Single writes", steps),
            repairs: family(r, "drift_repairs", REPAIRS, files),
            decisions: family(r, "decisions", DECISIONS, decisions()),
            problems: family(r, "problems", PROBLEMS, ProblemKind::series("with")),
            shrinks: family(r, "shrinks", SHRINKS, outcomes(&SHRINK_OUTCOMES)),
            hooks: family(r, "hooks", HOOKS, hooks),
            freezes: register(r, "freeze_duration_seconds", FREEZES, seconds()),
            growths: family(r, "guard_growths", GROWTHS, outcomes(&GROWTH_OUTCOMES)),
            pods: PodGauges {
                by_status: family(r, "pods", PODS, PodStatus::series("state")),
                by_decision: family(r, "pods_decided", DECIDED, decisions()),
                overridden: register(r, "pods_overridden", OVERRIDDEN, Gauge::default()),
                foreign_writers: register(r, "foreign_writers", FOREIGN_WRITERS, Gauge::default()),
                temporary_limits: register(r, "guard_leases", TEMPORARY_LIMITS, Gauge::default()),
                low_pod_levels: register(r, "pods_below_containers", LOW_POD_LEVELS, Gauge::default()),
                lint_findings: family(r, "lint_findings", LINT, LintRule::ALL.iter().copied().map(lint_labels)),
            },
        }
    }

    pub(crate) fn decided(&self, decision: &PodDecision) {
        self.decisions.get_or_create(&decision_labels(decision.reason)).inc();
    }

    pub(crate) fn problems(&self, counts: &[(ProblemKind, usize)]) {
        for (kind, count) in counts {
            self.problems
                .get_or_create(&[("with", kind.as_str())])
                .set(gauge(*count));
        }
    }

    /// Counts a memory limit that was about to be reached.
    pub(crate) fn reported_by_guard(&self, event: &GuardEvent) {
        let outcome = match event {
            GuardEvent::Grew { grown, .. } if grown.outcome == Outcome::Applied => "applied",
            GuardEvent::Grew { .. } => "failed",
            GuardEvent::Refused { refusal, .. } => match refusal {
                Refusal::Ceiling { .. } | Refusal::Pod { .. } => "ceiling",
                Refusal::Node { .. } => "node",
                Refusal::PodBudget { .. } => "pod_budget",
                Refusal::NodeBudget { .. } => "node_budget",
                Refusal::Unreadable(_) => "failed",
            },
            _ => return,
        };
        self.growths.get_or_create(&[("outcome", outcome)]).inc();
    }

    fn finished(&self, outcome: &'static str, stages: &[(&'static str, Duration)]) {
        self.resizes.get_or_create(&[("outcome", outcome)]).inc();
        for (stage, duration) in stages {
            let labels = [("stage", *stage), ("outcome", outcome)];
            self.durations.get_or_create(&labels).observe(duration.as_secs_f64());
        }
    }

    pub(crate) fn passed(&self, done: &JobDone) {
        self.finished(outcome(&done.record.outcome), &stages(&done.record.stages));
        if done.shrink.refused {
            self.shrunk("refused");
        } else if !done.shrink.lowered.is_empty() {
            self.shrunk("lowered");
        }
        for stood in &done.shrink.freezes {
            self.freezes.observe(stood.as_secs_f64());
        }
        for step in &done.record.steps {
            let labels = step_labels(step.change.via(), step_outcome(step, &done.record.outcome));
            self.steps.get_or_create(&labels).inc();
        }
        for (_, file, verdict) in &done.flipped {
            if *verdict == Verdict::Repair && done.record.outcome.holds() {
                self.repairs.get_or_create(&[("file", file.name())]).inc();
            }
        }
    }

    pub(crate) fn shrink_ended(&self, ended: &ShrinkEnd) {
        self.shrunk(match ended {
            ShrinkEnd::Kept => "kept",
            ShrinkEnd::Undone(_) => "undone",
        });
    }

    pub(crate) fn hook_ended(&self, moment: HookMoment, end: &HookEnd) {
        let result = if end.how.is_ok() { "ran" } else { "failed" };
        self.hooks.get_or_create(&hook_labels(moment, result)).inc();
    }

    fn shrunk(&self, outcome: &'static str) {
        self.shrinks.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Updates the gauges of the pods.
    pub(crate) fn show<'a>(&self, pods: impl Iterator<Item = &'a PodState>, now: jiff::Timestamp) {
        let (mut statuses, mut reasons, mut rules) = (Vec::new(), Vec::new(), Vec::new());
        let (mut overridden, mut foreign, mut temporary, mut low) = (0, 0, 0, 0);
        for state in pods {
            statuses.push(state.status(now));
            reasons.push(state.decision.reason);
            rules.extend(state.decision.findings().map(|finding| finding.rule));
            overridden += usize::from(state.desired.overridden.is_some());
            foreign += state.drift.writers.all_paused(now).count();
            temporary += state.desired.temporary.len();
            low += usize::from(state.drift.low_pod_level.is_some());
        }
        let to = &self.pods;
        show_each(&to.by_status, PodStatus::ALL, &statuses, |status| {
            [("state", status.as_str())]
        });
        show_each(&to.by_decision, Reason::ALL, &reasons, decision_labels);
        show_each(&to.lint_findings, LintRule::ALL, &rules, lint_labels);
        to.overridden.set(gauge(overridden));
        to.foreign_writers.set(gauge(foreign));
        to.temporary_limits.set(gauge(temporary));
        to.low_pod_levels.set(gauge(low));
    }
}

/// Sets a gauge for each of `all` to how often it was found.
fn show_each<T: Copy + PartialEq, const N: usize>(
    gauges: &Gauges<N>,
    all: &[T],
    found: &[T],
    labels: impl Fn(T) -> Labels<N>,
) {
    for one in all {
        let count = found.iter().filter(|found| *found == one).count();
        gauges.get_or_create(&labels(*one)).set(gauge(count));
    }
}

/// The series that exist from the start: the total of each outcome, and each stage of applied passes.
fn durations_at_zero() -> impl Iterator<Item = Labels<2>> {
    let totals = PASS_OUTCOMES.map(|outcome| [("stage", "total"), ("outcome", outcome)]);
    let stages = STAGES.map(|stage| [("stage", stage), ("outcome", "applied")]);
    totals.into_iter().chain(stages)
}

fn hook_labels(moment: HookMoment, result: &'static str) -> Labels<2> {
    [("moment", moment.word()), ("result", result)]
}

const fn step_labels(via: Via, outcome: &'static str) -> Labels<2> {
    let way = match via {
        Via::Resize => "resize",
        Via::Cri => "cri",
        Via::Cgroup => "cgroup",
        Via::Systemd => "systemd",
    };
    [("via", way), ("outcome", outcome)]
}

fn decision_labels(reason: Reason) -> Labels<2> {
    let action = match reason.action() {
        Action::Resize => "resize",
        Action::None => "none",
        Action::Skip => "skip",
    };
    [("action", action), ("reason", reason.into())]
}

fn lint_labels(rule: LintRule) -> Labels<2> {
    [("rule", rule.into()), ("severity", rule.severity().into())]
}

const fn outcome(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Applied => "applied",
        Outcome::Unchanged | Outcome::Hook(_) => "unchanged",
        Outcome::RuntimeOwed { .. } => "runtime_owed",
        Outcome::Withheld(_) => "withheld",
        Outcome::Refused { .. } => "refused",
        Outcome::RolledBack { .. } => "rolled_back",
        Outcome::Interrupted { .. } | Outcome::Incomplete { .. } => "incomplete",
    }
}

const fn step_outcome(step: &StepRecord, outcome: &Outcome) -> &'static str {
    match (&step.error, outcome) {
        (None, _) => "verified",
        (Some(_), Outcome::Interrupted { .. }) => "gone",
        (Some(_), Outcome::RolledBack { .. }) => "refused",
        (Some(_), _) => "failed",
    }
}

/// The stages of a pass that took any time.
fn stages(stages: &Stages) -> Vec<(&'static str, Duration)> {
    let durations = [
        stages.decide,
        stages.ask,
        stages.observe,
        stages.plan,
        stages.prepare,
        stages.write,
        stages.runtime,
        // Without the time for which a container's use is watched before a shrink: no objective for speed covers that.
        stages.verified.saturating_sub(stages.prepare),
    ];
    let all = STAGES.into_iter().zip(durations);
    all.filter(|(_, duration)| !duration.is_zero()).collect()
}
