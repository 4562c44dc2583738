//! How a pod is doing, in one word. Pure.

use jiff::Timestamp;

use super::PodState;
use crate::model::Withheld;
pub(crate) use crate::reconcile::metrics::PodStatus;

impl PodState {
    /// How the pod is doing.
    pub(crate) fn status(&self, now: Timestamp) -> PodStatus {
        if self.live.is_none() {
            PodStatus::NotRunning
        } else if self.desired.is_empty() && self.no_room.is_none() {
            PodStatus::NotManaged
        } else if self.drift.writers.all_paused(now).next().is_some() {
            PodStatus::Foreign
        } else if self.drift.runtime_sync_pending {
            PodStatus::Owed
        } else if self.work.has_failed() || self.shrink.next_retry(now).is_some() || self.no_room.is_some() {
            PodStatus::Refused
        } else if let Some(withheld) = self.resize.pending() {
            match withheld {
                Withheld::Deferred(_) => PodStatus::Deferred,
                Withheld::Infeasible(_) => PodStatus::Infeasible,
                Withheld::Failed(_) => PodStatus::Refused,
                Withheld::SpecLater(_) if self.resize.written_ahead.is_some() => PodStatus::Owed,
                Withheld::Unanswered(_) | Withheld::Postponed(_) | Withheld::SpecLater(_) => PodStatus::Working,
            }
        } else if self.drift.in_sync {
            PodStatus::InSync
        } else {
            PodStatus::Working
        }
    }
}
