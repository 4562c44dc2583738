//! What the guard counts.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::declare::Series;
use super::families;
use super::labels::GrowthOutcome;

/// Growths of limits in an emergency.
#[derive(Debug, Clone)]
pub struct GuardMetrics {
    growths: Series<Counter, 1>,
    leases: Gauge,
}

impl GuardMetrics {
    /// Registers them, at zero.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            growths: families::GUARD_GROWTHS
                .register(registry)
                .at_zero(GrowthOutcome::ALL.iter().map(|outcome| [outcome.as_str()])),
            leases: families::GUARD_LEASES.register(registry).only(),
        }
    }

    /// A limit was about to be reached.
    pub fn grew(&self, outcome: GrowthOutcome) {
        self.growths.with([outcome.as_str()]).inc();
    }

    /// So many limits are held higher than decided.
    pub fn set_leases(&self, count: usize) {
        self.leases.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}
