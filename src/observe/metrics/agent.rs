//! What the agent counts, by the component that does.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::declare::Series;
use super::families;
use super::labels::{CallOutcome, PodState, ProblemKind, ResizeOutcome, Stage, StepOutcome};
use crate::decide::{Action, Reason};
use crate::plan::Via;
use crate::resources::ControlFile;
use crate::runtime::RuntimeError;

/// What the part that changes pods counts.
#[derive(Debug, Clone)]
pub struct ResizeMetrics {
    durations: Series<Histogram, 2>,
    resizes: Series<Counter, 1>,
    steps: Series<Counter, 2>,
    repairs: Series<Counter, 1>,
    foreign_writers: Gauge,
    pods: Series<Gauge, 1>,
    overridden: Gauge,
}

impl ResizeMetrics {
    /// Registers them, at zero.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let outcomes = ResizeOutcome::ALL.iter().map(|outcome| outcome.as_str());
        let totals = outcomes.clone().map(|outcome| [Stage::Total.as_str(), outcome]);
        let stages = Stage::ALL
            .iter()
            .map(|stage| [stage.as_str(), ResizeOutcome::Applied.as_str()]);
        let ways = [Via::Resize, Via::Cri, Via::Cgroup, Via::Systemd].into_iter().map(way);
        let steps = ways.flat_map(|way| StepOutcome::ALL.iter().map(move |outcome| [way, outcome.as_str()]));
        let files = ControlFile::V1.into_iter().chain(ControlFile::V2);
        Self {
            durations: families::RESIZE_DURATION
                .register(registry)
                .at_zero(totals.chain(stages)),
            resizes: families::RESIZES
                .register(registry)
                .at_zero(outcomes.map(|outcome| [outcome])),
            steps: families::STEPS.register(registry).at_zero(steps),
            repairs: families::DRIFT_REPAIRS
                .register(registry)
                .at_zero(files.map(|file| [file.name()])),
            foreign_writers: families::FOREIGN_WRITERS.register(registry).only(),
            pods: families::PODS
                .register(registry)
                .at_zero(PodState::ALL.iter().map(|state| [state.as_str()])),
            overridden: families::PODS_OVERRIDDEN.register(registry).only(),
        }
    }

    /// A pass over a pod ended; `stages` are those it went through.
    pub fn finished(&self, outcome: ResizeOutcome, stages: &[(Stage, Duration)]) {
        self.resizes.with([outcome.as_str()]).inc();
        for (stage, duration) in stages {
            self.durations
                .with([stage.as_str(), outcome.as_str()])
                .observe(duration.as_secs_f64());
        }
    }

    /// A step was taken.
    pub fn step(&self, via: Via, outcome: StepOutcome) {
        self.steps.with([way(via), outcome.as_str()]).inc();
    }

    /// A value that something else had changed was put right.
    pub fn drift_repaired(&self, file: ControlFile) {
        self.repairs.with([file.name()]).inc();
    }

    /// So many values are being changed by somebody else.
    pub fn set_foreign_writers(&self, count: usize) {
        self.foreign_writers.set(gauge(count));
    }

    /// So many pods stand so.
    pub fn set_pods(&self, state: PodState, count: usize) {
        self.pods.with([state.as_str()]).set(gauge(count));
    }

    /// So many pods are held by hand.
    pub fn set_overridden(&self, count: usize) {
        self.overridden.set(gauge(count));
    }
}

/// The label of the way a step takes.
const fn way(via: Via) -> &'static str {
    match via {
        Via::Resize => "resize",
        Via::Cri => "cri",
        Via::Cgroup => "cgroup",
        Via::Systemd => "systemd",
    }
}

/// What decisions come to.
#[derive(Debug, Clone)]
pub struct DecisionMetrics {
    decisions: Series<Counter, 2>,
    standing: Series<Gauge, 2>,
}

impl DecisionMetrics {
    /// Registers them, at zero.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let reasons = || Reason::ALL.iter().map(|reason| decision(*reason));
        Self {
            decisions: families::DECISIONS.register(registry).at_zero(reasons()),
            standing: families::PODS_DECIDED.register(registry).at_zero(reasons()),
        }
    }

    /// A decision was made.
    pub fn decided(&self, reason: Reason) {
        self.decisions.with(decision(reason)).inc();
    }

    /// For so many pods this is the latest decision.
    pub fn set_pods(&self, reason: Reason, count: usize) {
        self.standing.with(decision(reason)).set(gauge(count));
    }
}

/// The labels of a decision.
fn decision(reason: Reason) -> [&'static str; 2] {
    let action = match reason.action() {
        Action::Resize => "resize",
        Action::None => "none",
        Action::Skip => "skip",
    };
    [action, reason.as_str()]
}

/// How the container runtime answers.
#[derive(Debug, Clone)]
pub struct RuntimeMetrics {
    calls: Series<Counter, 2>,
    durations: Series<Histogram, 1>,
}

impl RuntimeMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            calls: families::RUNTIME_CALLS.register(registry),
            durations: families::RUNTIME_CALL_DURATION.register(registry),
        }
    }

    /// The runtime was called, and answered or not after so long; `call` is the method's name in its protocol, such as
    /// `UpdateContainerResources`.
    pub fn called<T>(&self, call: &'static str, took: Duration, answer: Result<T, &RuntimeError>) {
        let outcome = CallOutcome::of(answer);
        self.calls.with([call, outcome.as_str()]).inc();
        self.durations.with([call]).observe(took.as_secs_f64());
    }
}

/// What is degraded.
#[derive(Debug, Clone)]
pub struct ProblemMetrics {
    problems: Series<Gauge, 1>,
}

impl ProblemMetrics {
    /// Registers them, at zero.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let kinds = ProblemKind::ALL.iter().map(|kind| [kind.as_str()]);
        Self {
            problems: families::PROBLEMS.register(registry).at_zero(kinds),
        }
    }

    /// So many things are wrong there now.
    pub fn set(&self, with: ProblemKind, count: usize) {
        self.problems.with([with.as_str()]).set(gauge(count));
    }
}

pub(super) fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
