//! Metrics of the pods: decisions, passes and the state of pods.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::pod::PodState;
use super::pod::explained::status;
use crate::actuate::JobDone;
use crate::guard::GuardEvent;
use crate::guard::budgets::RefusalKind;
use crate::lint::LintRule;
use crate::model::{ControlFile, Outcome, Reason, Stages, StepRecord, Via};
use crate::observe::metrics::{Counters, Gauges, Histograms, Labels, family, gauge, register, seconds, series};
use crate::plan::hook::HookMoment;

const DURATIONS: &str =
    "Time taken by passes over pods, by stage; the stage `total` is from the decision seen to all files verified";
const REPAIRS: &str = "Values that another program had changed, and that vscaled restored";
const PODS: &str = "Pods on this node, by state";
const DECISIONS: &str = "Decisions about pods that differ from the one before";
const DECIDED: &str = "Pods on this node, by what the latest decision says";
const PROBLEMS: &str = "Problems that degrade the agent, as vscalectl get lists them";
const SHRINKS: &str = "Passes that were to lower memory limits, by outcome";
const HOOKS: &str = "Hooks of containers that were due, by result";
const FREEZES: &str = "Time for which a cgroup was frozen while its memory limit was lowered";
const GROWTHS: &str = "Memory limits that were about to be reached, by outcome";
const LINT: &str = "Memory settings inside containers of this node that a resize does not change";
/// The plain gauges of the pods, in the order of [`Metrics::show`].
const COUNTS: [(&str, &str); 4] = [
    ("pods_overridden", "Pods on this node with an override"),
    (
        "foreign_writers",
        "Values that another program keeps changing, and that are left alone for a while",
    ),
    (
        "guard_leases",
        "Limits that the guard holds higher than decided, because they were about to be reached or throttled all the time",
    ),
    (
        "pods_below_containers",
        "Pods whose cgroup allows less memory than their containers' cgroups do together",
    ),
];

// The values of labels; docs/metrics.md says what each means.
const PASS_OUTCOMES: [&str; 8] = [
    "applied",
    "unchanged",
    "runtime_owed",
    "withheld",
    "refused",
    "rolled_back",
    "interrupted",
    "incomplete",
];
const PROBLEM_KINDS: [&str; 4] = ["manifests", "node", "state", "kills"];
const STEP_OUTCOMES: [&str; 4] = ["verified", "refused", "gone", "failed"];
const SHRINK_OUTCOMES: [&str; 4] = ["refused", "lowered", "kept", "undone"];
const HOOK_RESULTS: [&str; 2] = ["ran", "failed"];
const GROWTH_OUTCOMES: [&str; 6] = ["applied", "ceiling", "node", "pod_budget", "node_budget", "failed"];

/// The state of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, derive_more::Display, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum PodStatus {
    NotManaged,
    InSync,
    Working,
    Owed,
    Refused,
    Deferred,
    Infeasible,
    Foreign,
    NotRunning,
}

/// The families that the controller owns.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    resizes: Counters<1>,
    durations: Histograms<2>,
    steps: Counters<2>,
    repairs: Counters<1>,
    pub(super) decisions: Counters<2>,
    pub(super) problems: Gauges<1>,
    pub(super) shrinks: Counters<1>,
    pub(super) hooks: Counters<2>,
    freezes: Histogram,
    pub(super) growths: Counters<1>,
    /// The numbers of pods by their state.
    by_status: Gauges<1>,
    by_decision: Gauges<2>,
    lint_findings: Gauges<2>,
    counts: [Gauge; 4],
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let r = registry;
        let ways = [Via::Resize, Via::Cri, Via::Cgroup, Via::Systemd].into_iter();
        let steps = ways.flat_map(|way| STEP_OUTCOMES.map(|outcome| step_labels(way, outcome)));
        let files = ControlFile::V1.iter().chain(ControlFile::V2).copied();
        let files = files.map(|file| [("file", file.name())]);
        let moments = HookMoment::ALL.into_iter();
        let hooks = moments.flat_map(|moment| HOOK_RESULTS.map(|result| hook_labels(moment, result)));
        let outcomes = |values: &'static [&'static str]| values.iter().map(|value| [("outcome", *value)]);
        let durations: Histograms<2> = Family::new_with_constructor(seconds);
        let totals = PASS_OUTCOMES.map(|outcome| [("stage", "total"), ("outcome", outcome)]);
        let stages = stages(&Stages::default()).map(|(stage, _)| [("stage", stage), ("outcome", "applied")]);
        for labels in totals.iter().chain(&stages) {
            drop(durations.get_or_create_owned(labels));
        }
        Self {
            resizes: family(r, "resizes", "Passes over pods", outcomes(&PASS_OUTCOMES)),
            durations: register(r, "resize_duration_seconds", DURATIONS, durations),
            steps: family(r, "steps", "Single writes", steps),
            repairs: family(r, "drift_repairs", REPAIRS, files),
            decisions: family(r, "decisions", DECISIONS, decisions()),
            problems: family(r, "problems", PROBLEMS, PROBLEM_KINDS.map(|kind| [("with", kind)])),
            shrinks: family(r, "shrinks", SHRINKS, outcomes(&SHRINK_OUTCOMES)),
            hooks: family(r, "hooks", HOOKS, hooks),
            freezes: register(r, "freeze_duration_seconds", FREEZES, seconds()),
            growths: family(r, "guard_growths", GROWTHS, outcomes(&GROWTH_OUTCOMES)),
            by_status: family(r, "pods", PODS, series::<PodStatus>("state")),
            by_decision: family(r, "pods_decided", DECIDED, decisions()),
            lint_findings: family(r, "lint_findings", LINT, findings()),
            counts: COUNTS.map(|(name, help)| register(r, name, help, Gauge::default())),
        }
    }

    pub(crate) fn passed(&self, done: &JobDone) {
        let outcome = outcome(&done.record.outcome);
        self.resizes.get_or_create(&[("outcome", outcome)]).inc();
        for (stage, duration) in stages(&done.record.stages) {
            if !duration.is_zero() {
                let labels = [("stage", stage), ("outcome", outcome)];
                self.durations.get_or_create(&labels).observe(duration.as_secs_f64());
            }
        }
        if done.shrink.refused || !done.shrink.lowered.is_empty() {
            let outcome = if done.shrink.refused { "refused" } else { "lowered" };
            self.shrinks.get_or_create(&[("outcome", outcome)]).inc();
        }
        for stood in &done.shrink.freezes {
            self.freezes.observe(stood.as_secs_f64());
        }
        for step in &done.record.steps {
            let labels = step_labels(step.change.via(), step_outcome(step, &done.record.outcome));
            self.steps.get_or_create(&labels).inc();
        }
        for (_, file, left_until) in &done.flipped {
            if left_until.is_none() && done.record.outcome.holds() {
                self.repairs.get_or_create(&[("file", file.name())]).inc();
            }
        }
    }

    /// Updates the gauges of the pods. Counts first: a scrape may come in between.
    pub(crate) fn show<'a>(&self, pods: impl Iterator<Item = &'a PodState>, now: jiff::Timestamp) {
        let mut by_status = zeros(series::<PodStatus>("state"));
        let mut by_decision = zeros(decisions());
        let mut lint_findings = zeros(findings());
        let mut counts = [0; 4];
        for state in pods {
            *by_status.entry([("state", status(state, now).into())]).or_default() += 1;
            *by_decision.entry(decision_labels(state.decision.reason)).or_default() += 1;
            for finding in state.decision.findings() {
                *lint_findings.entry(lint_labels(finding.rule)).or_default() += 1;
            }
            let of_pod = [
                usize::from(state.desired.overridden.is_some()),
                state.drift.paused(now).count(),
                state.desired.temporary.len(),
                usize::from(state.drift.low_pod_level().is_some()),
            ];
            for (count, more) in counts.iter_mut().zip(of_pod) {
                *count += more;
            }
        }
        set(&self.by_status, by_status);
        set(&self.by_decision, by_decision);
        set(&self.lint_findings, lint_findings);
        for (shown, count) in self.counts.iter().zip(counts) {
            shown.set(gauge(count));
        }
    }
}

/// The counts of a family, before the first.
fn zeros<const N: usize>(series: impl Iterator<Item = Labels<N>>) -> HashMap<Labels<N>, usize> {
    series.map(|labels| (labels, 0)).collect()
}

fn set<const N: usize>(gauges: &Gauges<N>, counts: HashMap<Labels<N>, usize>) {
    for (labels, count) in counts {
        gauges.get_or_create(&labels).set(gauge(count));
    }
}

/// The outcome for a memory limit that was about to be reached.
pub(super) fn growth_outcome(event: &GuardEvent) -> Option<&'static str> {
    Some(match event {
        GuardEvent::Grew { grown, .. } if grown.outcome == Outcome::Applied => "applied",
        GuardEvent::Grew { .. } => "failed",
        GuardEvent::Refused { kind, .. } => match kind {
            RefusalKind::Ceiling | RefusalKind::Pod => "ceiling",
            RefusalKind::Node => "node",
            RefusalKind::PodBudget => "pod_budget",
            RefusalKind::NodeBudget => "node_budget",
            RefusalKind::Unreadable => "failed",
        },
        _ => return None,
    })
}

pub(super) fn hook_labels(moment: HookMoment, result: &'static str) -> Labels<2> {
    [("moment", moment.word()), ("result", result)]
}

fn step_labels(via: Via, outcome: &'static str) -> Labels<2> {
    [("via", via.into()), ("outcome", outcome)]
}

fn decisions() -> impl Iterator<Item = Labels<2>> {
    Reason::ALL.iter().copied().map(decision_labels)
}

pub(super) fn decision_labels(reason: Reason) -> Labels<2> {
    [("action", reason.action().into()), ("reason", reason.into())]
}

fn findings() -> impl Iterator<Item = Labels<2>> {
    LintRule::ALL.iter().copied().map(lint_labels)
}

fn lint_labels(rule: LintRule) -> Labels<2> {
    [("rule", rule.into()), ("severity", rule.severity().into())]
}

const fn outcome(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Applied => "applied",
        Outcome::Unchanged | Outcome::Hook(_) => "unchanged",
        Outcome::RuntimeOwed(_) => "runtime_owed",
        Outcome::Withheld(_) => "withheld",
        Outcome::Refused(_) => "refused",
        Outcome::RolledBack(_) => "rolled_back",
        Outcome::Interrupted(_) => "interrupted",
        Outcome::Incomplete(_) => "incomplete",
    }
}

const fn step_outcome(step: &StepRecord, outcome: &Outcome) -> &'static str {
    match (&step.error, outcome) {
        (None, _) => "verified",
        (Some(_), Outcome::Interrupted(_)) => "gone",
        (Some(_), Outcome::RolledBack(_)) => "refused",
        (Some(_), _) => "failed",
    }
}

/// The stages of a pass. One that was left out took no time.
fn stages(stages: &Stages) -> [(&'static str, Duration); 8] {
    [
        ("decide", stages.decide),
        ("ask", stages.ask),
        ("observe", stages.observe),
        ("plan", stages.plan),
        ("prepare", stages.prepare),
        ("write", stages.write),
        ("runtime", stages.runtime),
        // Without the time for which a container's use is watched before a shrink: no objective for speed covers that.
        ("total", stages.verified.saturating_sub(stages.prepare)),
    ]
}
