//! Kills, counted. Unlike every other family this one has names from outside in its labels: whoever counts has to forget
//! series again.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use super::declare::Series;
use super::families;
use crate::oom::OomReport;

/// Whose process was killed, and whose limit was hit. Empty where it is not known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KillLabels {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
    /// The level whose limit was hit.
    pub level: &'static str,
}

impl KillLabels {
    /// Those of one kill.
    #[must_use]
    pub fn of(report: &OomReport) -> Self {
        let (pod, container) = (report.pod.as_ref(), report.container.as_ref());
        Self {
            namespace: pod.map(|pod| pod.namespace.clone()).unwrap_or_default(),
            pod: pod.map(|pod| pod.name.clone()).unwrap_or_default(),
            container: container.map(|container| container.name.clone()).unwrap_or_default(),
            level: report.level.as_str(),
        }
    }

    fn values(&self) -> [String; 4] {
        let Self {
            namespace,
            pod,
            container,
            level,
        } = self.clone();
        [namespace, pod, container, level.to_owned()]
    }
}

/// What the part that watches for kills counts.
#[derive(Debug, Clone)]
pub struct KillMetrics {
    kills: Series<Counter, 4>,
}

impl KillMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let kills = families::OOM_KILLS.register(registry);
        Self { kills }
    }

    /// The kernel killed.
    pub fn killed(&self, labels: &KillLabels) {
        self.kills.with(labels.values()).inc();
    }

    /// Ends a series.
    pub fn forget(&self, labels: &KillLabels) {
        self.kills.remove(labels.values());
    }
}
