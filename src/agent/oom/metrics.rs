//! Metrics of kills. Unlike every other family this one has names from outside in its labels: the component that counts has to
//! forget series again.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::observe::metrics::register;
use crate::oom::{Level, OomReport};

/// The victim, and the level whose limit the kernel enforced. Empty where not known.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KillLabels {
    /// The namespace of the victim's pod.
    pub(crate) namespace: String,
    /// The name of the victim's pod.
    pub(crate) pod: String,
    /// The name of the victim's container.
    pub(crate) container: String,
    /// The level whose limit was hit.
    pub(crate) level: &'static str,
}

impl KillLabels {
    /// The labels of one reported kill.
    pub(crate) fn of(report: &OomReport) -> Self {
        let (pod, container) = (report.pod.as_ref(), report.container.as_ref());
        Self {
            namespace: pod.map(|pod| pod.namespace.clone()).unwrap_or_default(),
            pod: pod.map(|pod| pod.name.clone()).unwrap_or_default(),
            container: container.map(|container| container.name.clone()).unwrap_or_default(),
            level: report.level.as_str(),
        }
    }

    fn by_limit(&self, limit_of: Level) -> LimitLabels {
        LimitLabels {
            namespace: self.namespace.clone(),
            pod: self.pod.clone(),
            container: self.container.clone(),
            limit_of: limit_of.as_str(),
        }
    }
}

/// The victim, and whose limit it was. Empty where not known.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    namespace: String,
    pod: String,
    container: String,
    limit_of: &'static str,
}

/// Kills by the kernel for want of memory.
#[derive(Debug, Clone)]
pub(crate) struct KillMetrics {
    kills: Family<KillLabels, Counter>,
    by_limit: Family<LimitLabels, Counter>,
}

impl KillMetrics {
    /// Registers the family, which begins empty.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let help = "Kills by the kernel for want of memory, by whose process it was and the level whose limit the kernel enforced; a group killed as a whole is one";
        let by_limit = "The same kills by whose limit it was: a container's where it stood at its own, though the kernel enforced its pod's";
        Self {
            kills: register(registry, "oom_kills", help, Family::default()),
            by_limit: register(registry, "oom_kills_by_limit", by_limit, Family::default()),
        }
    }

    /// Counts a kill, and begins its series.
    pub(crate) fn killed(&self, labels: &KillLabels, limit_of: Level) {
        self.kills.get_or_create(labels).inc();
        self.by_limit.get_or_create(&labels.by_limit(limit_of)).inc();
    }

    /// Ends a series, with what was counted.
    pub(crate) fn forget(&self, labels: &KillLabels) {
        self.kills.remove(labels);
        for level in Level::ALL {
            self.by_limit.remove(&labels.by_limit(level));
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn a_series_goes_away_with_what_it_counted() {
        let mut registry = Registry::with_prefix("test");
        let kills = KillMetrics::register(&mut registry);
        let labels = |pod: &str| KillLabels {
            namespace: "shop".to_owned(),
            pod: pod.to_owned(),
            container: "app".to_owned(),
            level: "container",
        };
        let counted = |pod: &str| {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text.contains(&format!(
                r#"test_oom_kills_total{{namespace="shop",pod="{pod}",container="app",level="container"}} 1"#
            ))
        };
        for pod in ["web", "db"] {
            kills.killed(&labels(pod), Level::Container);
        }
        assert!(counted("web") && counted("db"));
        kills.forget(&labels("web"));
        assert!(!counted("web") && counted("db"));
    }
}
