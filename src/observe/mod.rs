//! The agent's metrics, health, log and audit log.
//!
//! Counts, durations and heartbeats come in from the components that own them. OpenMetrics text, `/healthz` and `/readyz`
//! go out over HTTP ([`http`]), log lines to stderr ([`log`]), and a durable record of every change to a file ([`audit`]).
//! Nothing here influences what the agent does.

pub mod audit;
pub mod health;
pub mod http;
pub mod log;
pub mod metrics;
