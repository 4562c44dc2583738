//! What the agent counts, by the component that does.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::labels::{CallOutcome, PodState, ResizeOutcome, Stage, StepOutcome};
use crate::decide::Reason;
use crate::plan::Via;
use crate::resources::ControlFile;
use crate::runtime::RuntimeError;

/// Names and values; every value comes from an enumeration.
type Labels<const N: usize> = [(&'static str, &'static str); N];
type Counters<const N: usize> = Family<Labels<N>, Counter>;

/// 50 µs to 60 s: a pass over one pod through files takes a fraction of a millisecond, one that waits for a runtime or
/// for the kernel to reclaim memory takes seconds.
const BUCKETS: [f64; 19] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];

/// What the part that changes pods counts.
#[derive(Debug, Clone)]
pub struct ResizeMetrics {
    durations: Family<Labels<2>, Histogram, ResizeBuckets>,
    resizes: Counters<1>,
    steps: Counters<2>,
    repairs: Counters<1>,
    foreign_writers: Gauge,
    pods: Family<Labels<1>, Gauge>,
}

/// Makes the histograms of resizes.
#[derive(Debug, Clone)]
struct ResizeBuckets;

impl MetricConstructor<Histogram> for ResizeBuckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}

impl ResizeMetrics {
    /// Registers them, at zero.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            durations: Family::new_with_constructor(ResizeBuckets),
            resizes: Family::default(),
            steps: Family::default(),
            repairs: Family::default(),
            foreign_writers: Gauge::default(),
            pods: Family::default(),
        };
        for outcome in ResizeOutcome::ALL {
            metrics
                .resizes
                .get_or_create(&[("outcome", outcome.as_str())])
                .inc_by(0);
        }
        for state in PodState::ALL {
            metrics.set_pods(*state, 0);
        }
        registry.register_with_unit(
            "resize_duration",
            "Time taken by passes over pods, by stage; the stage `total` is from the decision seen to all files verified",
            Unit::Seconds,
            metrics.durations.clone(),
        );
        registry.register("resizes", "Passes over pods", metrics.resizes.clone());
        registry.register("steps", "Single writes", metrics.steps.clone());
        registry.register(
            "drift_repairs",
            "Values that something else had changed, and that were put right",
            metrics.repairs.clone(),
        );
        registry.register(
            "foreign_writers",
            "Values that something else keeps changing, and that are left alone for a while",
            metrics.foreign_writers.clone(),
        );
        registry.register("pods", "Pods on this node, by how they stand", metrics.pods.clone());
        metrics
    }

    /// A pass over a pod ended; `stages` are those it went through.
    pub fn finished(&self, outcome: ResizeOutcome, stages: &[(Stage, Duration)]) {
        let outcome = ("outcome", outcome.as_str());
        self.resizes.get_or_create(&[outcome]).inc();
        for (stage, duration) in stages {
            self.durations
                .get_or_create(&[("stage", stage.as_str()), outcome])
                .observe(duration.as_secs_f64());
        }
    }

    /// A step was taken.
    pub fn step(&self, via: Via, outcome: StepOutcome) {
        let via = match via {
            Via::Resize => "resize",
            Via::Cri => "cri",
            Via::Cgroup => "cgroup",
            Via::Systemd => "systemd",
        };
        self.steps
            .get_or_create(&[("via", via), ("outcome", outcome.as_str())])
            .inc();
    }

    /// A value that something else had changed was put right.
    pub fn drift_repaired(&self, file: ControlFile) {
        self.repairs.get_or_create(&[("file", file.name())]).inc();
    }

    /// So many values are being changed by somebody else.
    pub fn set_foreign_writers(&self, count: usize) {
        self.foreign_writers.set(gauge(count));
    }

    /// So many pods stand so.
    pub fn set_pods(&self, state: PodState, count: usize) {
        self.pods.get_or_create(&[("state", state.as_str())]).set(gauge(count));
    }
}

/// What decisions come to.
#[derive(Debug, Clone)]
pub struct DecisionMetrics {
    decisions: Counters<2>,
}

impl DecisionMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let decisions = Family::default();
        registry.register("decisions", "Decisions about pods", Clone::clone(&decisions));
        Self { decisions }
    }

    /// A decision was made.
    pub fn decided(&self, reason: Reason) {
        let action = match reason.action() {
            crate::decide::Action::Resize => "resize",
            crate::decide::Action::None => "none",
            crate::decide::Action::Skip => "skip",
        };
        self.decisions
            .get_or_create(&[("action", action), ("reason", reason.as_str())])
            .inc();
    }
}

/// How the container runtime answers.
#[derive(Debug, Clone)]
pub struct RuntimeMetrics {
    calls: Counters<2>,
}

impl RuntimeMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let calls = Family::default();
        registry.register("runtime_calls", "Calls to the container runtime", Clone::clone(&calls));
        Self { calls }
    }

    /// The runtime was called; `call` is the method's name in its protocol, such as `UpdateContainerResources`.
    pub fn called<T>(&self, call: &'static str, answer: Result<T, &RuntimeError>) {
        let outcome = CallOutcome::of(answer);
        self.calls
            .get_or_create(&[("call", call), ("outcome", outcome.as_str())])
            .inc();
    }
}

/// How the directory of manifests fares.
#[derive(Debug, Clone)]
pub struct ManifestMetrics {
    problems: Gauge,
}

impl ManifestMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let problems = Gauge::default();
        registry.register(
            "manifest_problems",
            "What cannot be used in the directory of manifests",
            problems.clone(),
        );
        Self { problems }
    }

    /// So many things cannot be used now.
    pub fn set_problems(&self, count: usize) {
        self.problems.set(gauge(count));
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
