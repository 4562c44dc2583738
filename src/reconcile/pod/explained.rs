//! What people are told about a pod: its status, the reason, and the next step. Each part of the state speaks for itself; this
//! module decides which of them comes first. Pure.

use jiff::Timestamp;

use super::{Now, PodState, PodStatus};
use crate::model::objects::Pod;
use crate::model::{ContainerName, LivePod, Withheld};
use crate::plan::without_cgroup;
use crate::reconcile::desired::TemporaryLimit;
use crate::reconcile::no_room::ROOM_AWAITED;

impl PodState {
    pub(crate) fn status(&self, now: Timestamp) -> PodStatus {
        if self.live.is_none() {
            PodStatus::NotRunning
        } else if self.desired.is_empty() && self.no_room.is_none() {
            PodStatus::NotManaged
        } else if self.drift.paused(now).next().is_some() {
            PodStatus::Foreign
        } else if self.drift.owes_runtime() {
            PodStatus::Owed
        } else if self.has_failed() || self.shrink.detail(now).is_some() || self.no_room.is_some() {
            PodStatus::Refused
        } else if let Some(withheld) = self.resize.withheld() {
            match withheld {
                Withheld::Deferred(_) => PodStatus::Deferred,
                Withheld::Infeasible(_) => PodStatus::Infeasible,
                Withheld::Failed(_) => PodStatus::Refused,
                Withheld::SpecLater(_) if self.resize.is_ahead() => PodStatus::Owed,
                Withheld::Unanswered(_) | Withheld::Postponed(_) | Withheld::SpecLater(_) => PodStatus::Working,
            }
        } else if self.drift.is_in_sync() && !self.hooks.is_announcing() {
            PodStatus::InSync
        } else {
            PodStatus::Working
        }
    }

    /// The reason of the pod's status, where the status alone does not say it.
    pub(crate) fn detail(&self, now: Timestamp) -> String {
        let (failed, withheld) = (self.has_failed(), self.resize.withheld().map(Withheld::reason));
        let first = match (self.status(now), &self.no_room) {
            (PodStatus::NotRunning, _) => return "no container of this pod runs on this node".to_owned(),
            (PodStatus::Foreign, _) => return self.drift.detail(now).unwrap_or_default(),
            (PodStatus::Refused, Some(no_room)) if !failed => return no_room.why.clone(),
            (PodStatus::Refused, None) if !failed && withheld.is_none() => {
                return self.shrink.detail(now).unwrap_or_default();
            }
            (PodStatus::Owed | PodStatus::Refused | PodStatus::Deferred | PodStatus::Infeasible, _) => {
                return withheld.unwrap_or(self.drift.reason()).to_owned();
            }
            (PodStatus::Working, _) => withheld.map(str::to_owned),
            (PodStatus::NotManaged | PodStatus::InSync, _) => {
                let live = self.live.as_deref().filter(|_| !self.desired.is_empty());
                live.and_then(|live| pod_level_left(&self.pod, live))
            }
        };
        let first = first.filter(|reason| !reason.is_empty());
        let grown = self.desired.temporary.iter().map(TemporaryLimit::detail);
        let refused = self.not_grown(now);
        let refused =
            refused.map(|(container, why)| format!("the limit of container {container} was not raised: {why}"));
        let all = first.into_iter().chain(grown).chain(refused);
        all.collect::<Vec<_>>().join("; ")
    }

    /// Whether the latest pass did not do what it was to. One whose values hold may be repeated all the same: the API server did not show
    /// whether the pod's object is late.
    pub(crate) fn has_failed(&self) -> bool {
        self.work.has_failed() && !self.drift.is_in_sync()
    }

    /// The containers whose limits are not grown, with the reasons.
    pub(crate) fn not_grown(&self, now: Timestamp) -> impl Iterator<Item = (&ContainerName, &String)> {
        let amounts = self.desired.without_temporary(&self.pod);
        self.growth.refusals(&self.pod, amounts, now)
    }

    /// The next step for the pod, as a sentence.
    pub(crate) fn next_step(&self, now: Now) -> String {
        if self.live.is_none() {
            return "Nothing until a container of this pod runs on this node.".to_owned();
        }
        let is_idle = self.work.running().is_none() && self.work.pending().is_none();
        let is_full = self.resize.has_no_room() && is_idle;
        let step = self.work.next_step(now.instant).filter(|_| !is_full);
        step.or_else(|| (is_full || self.no_room.is_some()).then(|| ROOM_AWAITED.to_owned()))
            .or_else(|| self.shrink.next_step(now.wall))
            .or_else(|| self.hooks.next_step())
            .or_else(|| self.drift.next_step(now.wall))
            .or_else(|| self.resize.next_step(&self.pod))
            .or_else(|| self.desired.override_next_step())
            .or_else(|| self.decision.next_step())
            .unwrap_or_else(|| self.desired.next_step())
    }
}

/// Why the agent does not write the cgroup of a pod that it manages.
fn pod_level_left(pod: &Pod, live: &LivePod) -> Option<String> {
    let container = without_cgroup(pod, live)?;
    let class = pod.spec.runtime_class_name.as_ref();
    let class = class.map_or_else(String::new, |class| format!(" (runtime class {class})"));
    Some(format!(
        "container {container} runs without a cgroup of its own{class}, in a virtual machine, or has just ended: the pod's cgroup is left as it is"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::CgroupPath;

    #[test]
    fn a_container_without_a_cgroup_may_have_ended() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "uid": "u"},
            "spec": {"containers": [{"name": "app"}]},
            "status": {"containerStatuses": [{"name": "app", "state": {"running": {"startedAt": "2026-03-01T11:00:00Z"}}}]},
        }))
        .unwrap();
        let live = LivePod {
            id: pod.id_with("u"),
            path: CgroupPath::new("/kubepods/podu").unwrap(),
            containers: <_>::default(),
        };
        let left = pod_level_left(&pod, &live).unwrap();
        assert!(left.contains("in a virtual machine, or has just ended"), "{left}");
    }
}
