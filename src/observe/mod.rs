//! What the agent shows of itself: metrics, health, log lines.
//!
//! In come counts, durations and heartbeats from the components that own them; out go OpenMetrics text, `/healthz` and
//! `/readyz` over HTTP ([`http`]), log lines on stderr ([`log`]), and who changed what, for good ([`audit`]). Nothing here
//! influences what the agent does: a scrape that fails, or a log nobody reads, costs nothing but itself.

pub mod audit;
pub mod health;
pub mod http;
pub mod log;
pub mod metrics;
