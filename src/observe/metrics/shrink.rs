//! What lowering memory limits comes to.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::declare::Series;
use super::families;
use super::labels::ShrinkOutcome;

/// What is counted about lower memory limits.
#[derive(Debug, Clone)]
pub struct ShrinkMetrics {
    shrinks: Series<Counter, 1>,
    freezes: Histogram,
}

impl ShrinkMetrics {
    /// Registers them, at zero.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            shrinks: families::SHRINKS
                .register(registry)
                .at_zero(ShrinkOutcome::ALL.iter().map(|outcome| [outcome.as_str()])),
            freezes: families::FREEZE_DURATION.register(registry).only(),
        }
    }

    /// A shrink came to this.
    pub fn shrunk(&self, outcome: ShrinkOutcome) {
        self.shrinks.with([outcome.as_str()]).inc();
    }

    /// A cgroup stood still for so long.
    pub fn froze(&self, stood: Duration) {
        self.freezes.observe(stood.as_secs_f64());
    }
}
