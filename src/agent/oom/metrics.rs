//! Metrics of kills. Unlike every other family this one has names from outside in its labels: the component that counts has to
//! forget series again.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::observe::metrics::register;
use crate::oom::{Level, OomReport};

/// The namespace, pod and container of the victim, empty where not known, and a level.
pub(crate) type KillLabels = [(&'static str, String); 4];

/// The labels of a reported kill: the level is the one whose limit the kernel enforced.
pub(crate) fn labels_of(report: &OomReport) -> KillLabels {
    let (pod, container) = (report.facts.pod.as_ref(), report.facts.container.as_ref());
    [
        ("namespace", pod.map(|pod| pod.namespace.clone()).unwrap_or_default()),
        ("pod", pod.map(|pod| pod.name.clone()).unwrap_or_default()),
        (
            "container",
            container.map(|container| container.name.clone()).unwrap_or_default(),
        ),
        ("level", report.facts.level.to_string()),
    ]
}

/// The same victim, and whose limit it was.
fn by_limit(labels: &KillLabels, limit_of: Level) -> KillLabels {
    let [namespace, pod, container, _] = labels.clone();
    [namespace, pod, container, ("limit_of", limit_of.to_string())]
}

/// Kills by the kernel for want of memory.
#[derive(Debug, Clone)]
pub(crate) struct KillMetrics {
    kills: Family<KillLabels, Counter>,
    by_limit: Family<KillLabels, Counter>,
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
        self.by_limit.get_or_create(&by_limit(labels, limit_of)).inc();
    }

    /// Ends a series, with what was counted.
    pub(crate) fn forget(&self, labels: &KillLabels) {
        self.kills.remove(labels);
        for level in Level::all() {
            self.by_limit.remove(&by_limit(labels, level));
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::report::testing::kill_of;

    #[test]
    fn a_series_goes_away_with_what_it_counted() {
        let mut registry = Registry::with_prefix("test");
        let kills = KillMetrics::register(&mut registry);
        let labels = |pod: &str| labels_of(&kill_of(pod, 1));
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
