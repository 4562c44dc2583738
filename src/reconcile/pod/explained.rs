//! What people are told about a pod: its status, the reason, and the next step. Each part of the state speaks for itself; this
//! module decides which of them comes first. Pure.

use jiff::Timestamp;

use super::{Now, PodState, PodStatus};
use crate::model::objects::Pod;
use crate::model::{ContainerName, LivePod, Withheld};
use crate::plan::without_cgroup;
use crate::reconcile::desired::TemporaryLimit;
use crate::reconcile::no_room::ROOM_AWAITED;

pub(crate) fn status(state: &PodState, now: Timestamp) -> PodStatus {
    status_and_reason(state, now).0
}

/// The status of a pod, and the reason where the status has one.
fn status_and_reason(state: &PodState, now: Timestamp) -> (PodStatus, String) {
    let withheld = state.resize.withheld();
    let of_latest_pass = || withheld.map_or(state.drift.reason(), Withheld::reason).to_owned();
    if state.live.is_none() {
        (
            PodStatus::NotRunning,
            "no container of this pod runs on this node".to_owned(),
        )
    } else if state.desired.is_empty() && state.no_room.is_none() {
        (PodStatus::NotManaged, String::new())
    } else if let Some(paused) = state.drift.detail(now) {
        (PodStatus::Foreign, paused)
    } else if state.drift.owes_runtime() {
        (PodStatus::Owed, of_latest_pass())
    } else if has_failed(state) {
        (PodStatus::Refused, of_latest_pass())
    } else if let Some(no_room) = &state.no_room {
        (PodStatus::Refused, no_room.why.clone())
    } else if let Some(undone) = state.shrink.detail(now) {
        (
            PodStatus::Refused,
            withheld.map_or(undone, |withheld| withheld.reason().to_owned()),
        )
    } else if let Some(withheld) = withheld {
        let status = match withheld {
            Withheld::Deferred(_) => PodStatus::Deferred,
            Withheld::Infeasible(_) => PodStatus::Infeasible,
            Withheld::Failed(_) => PodStatus::Refused,
            Withheld::SpecLater(_) if state.resize.is_ahead() => PodStatus::Owed,
            Withheld::Unanswered(_) | Withheld::Postponed(_) | Withheld::SpecLater(_) => PodStatus::Working,
        };
        (status, withheld.reason().to_owned())
    } else if state.drift.is_in_sync() && !state.hooks.is_announcing() {
        (PodStatus::InSync, String::new())
    } else {
        (PodStatus::Working, String::new())
    }
}

/// The reason of the pod's status, where the status alone does not say it.
pub(crate) fn detail(state: &PodState, now: Timestamp) -> String {
    let (status, reason) = status_and_reason(state, now);
    let first = match (status, &state.live) {
        (PodStatus::InSync, Some(live)) => pod_level_left(&state.pod, live).unwrap_or_default(),
        (PodStatus::InSync | PodStatus::NotManaged | PodStatus::Working, _) => reason,
        _ => return reason,
    };
    let grown = state.desired.temporary.iter().map(TemporaryLimit::detail);
    let refused = not_grown(state, now);
    let refused = refused.map(|(container, why)| format!("the limit of container {container} was not raised: {why}"));
    let first = Some(first).filter(|reason| !reason.is_empty());
    let all = first.into_iter().chain(grown).chain(refused);
    all.collect::<Vec<_>>().join("; ")
}

/// Whether the latest pass did not do what it was to. One whose values hold may be repeated all the same: the API server did not show
/// whether the pod's object is late.
pub(crate) fn has_failed(state: &PodState) -> bool {
    state.work.has_failed() && !state.drift.is_in_sync()
}

/// The containers whose limits are not grown, with the reasons.
pub(crate) fn not_grown(state: &PodState, now: Timestamp) -> impl Iterator<Item = (&ContainerName, &String)> {
    let amounts = state.desired.without_temporary(&state.pod);
    state.growth.refusals(&state.pod, amounts, now)
}

/// The next step for the pod, as a sentence.
pub(crate) fn next_step(state: &PodState, now: Now) -> String {
    if state.live.is_none() {
        return "Nothing until a container of this pod runs on this node.".to_owned();
    }
    let is_idle = state.work.running().is_none() && state.work.pending().is_none();
    let is_full = state.resize.has_no_room() && is_idle;
    let step = state.work.next_step(now.instant).filter(|_| !is_full);
    step.or_else(|| (is_full || state.no_room.is_some()).then(|| ROOM_AWAITED.to_owned()))
        .or_else(|| state.shrink.next_step(now.wall))
        .or_else(|| state.hooks.next_step())
        .or_else(|| state.drift.next_step(now.wall))
        .or_else(|| state.resize.next_step(&state.pod))
        .or_else(|| state.desired.override_next_step())
        .or_else(|| state.decision.next_step())
        .unwrap_or_else(|| state.desired.next_step())
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
