//! Writes the log lines that follow from changes of a pod's state, and from passes.

use crate::actuate::JobDone;
use crate::model::objects::PodKey;
use crate::reconcile::pod::LogLine;

const REMOVED: &str = "no longer described by any source; its values are left as they are";

/// Writes a line for each value that another process had changed, in the span of the pass.
pub(super) fn log_flipped(done: &JobDone) {
    for (target, file, left_until) in &done.flipped {
        match left_until {
            None => tracing::info!(cgroup = %target, %file, "another program changed a value; repaired"),
            Some(until) => tracing::warn!(
                cgroup = %target, %file, %until,
                "another program keeps changing this value back; it is left alone until then"
            ),
        }
    }
}

/// Writes a line about the pod of this name.
pub(super) fn log(pod: &PodKey, line: LogLine) {
    match line {
        LogLine::ChangeLost(reason) => {
            tracing::warn!(%pod, reason, "a change made while the API server was unreachable was overwritten");
        }
        LogLine::EvidenceLeft(peak) => tracing::debug!(%peak, "the limit is raised while a hook leaves evidence"),
        LogLine::Denied(limit) => {
            let (container, why) = (limit.container, limit.denied.map(|denied| denied.why));
            tracing::warn!(%pod, container, why, "a temporary limit ends because the API server denies it");
        }
        LogLine::LimitRecommended(limit) => {
            let (container, limit) = (limit.container, limit.to);
            tracing::info!(%pod, container, limit, "the recommendation has reached a temporary limit");
        }
        LogLine::NoRoom { cause, why } => tracing::warn!(%pod, %cause, "not done: {why}"),
        LogLine::PassFailed { outcome, retry_in } => {
            let (outcome, reason) = (outcome.word(), outcome.reason());
            tracing::warn!(outcome, reason, ?retry_in, "pass failed; retrying");
        }
        LogLine::Removed => tracing::info!(%pod, "{REMOVED}"),
        LogLine::SpecChanged => tracing::info!(%pod, "another client changed the spec; its values apply"),
    }
}
