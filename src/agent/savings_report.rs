//! Makes the answer to `report`: the savings of each workload, the throttling before and with a burst, and the containers that
//! were given more and are in trouble all the same. Reads the use of those pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::after_resize::{Given, remarks};
use super::usage;
use crate::control::{ControlError, proto};
use crate::model::{ChangeRecord, Resource};
use crate::oom::OomReport;
use crate::reconcile::controller::AgentSnapshot;
use crate::reconcile::desired::per_hour;
use crate::reconcile::pod::PodState;
use crate::reconcile::savings::{SavingsReport, WorkloadId, WorkloadSavings, key_of};

/// The report of all workloads. Takes a second where a container has a burst or was given more cpu.
///
/// Errors: [`ControlError::Internal`] if reading panics.
pub(super) async fn report(
    savings: SavingsReport,
    snapshot: AgentSnapshot,
    changes: &[Arc<ChangeRecord>],
    kills: &[Arc<OomReport>],
) -> Result<proto::ReportReply, ControlError> {
    let AgentSnapshot { node, pods, quiet, .. } = snapshot;
    let given = pods.into_iter().filter_map(|state| {
        let id = state.identity.as_ref().filter(|_| state.live.is_some())?;
        let changes = changes.iter().filter(|change| change.pod == *id).cloned().collect();
        Some(Given { state, changes })
    });
    let given: Vec<Given> = given.collect();
    let is_read = |given: &&Given| !given.state.desired.burst_starts.is_empty() || given.has_more(Resource::Cpu);
    let (read, others): (Vec<&Given>, Vec<&Given>) = given.iter().partition(is_read);
    let states: Vec<&PodState> = read.iter().map(|given| &given.state).collect();
    let [before, after] = match states.is_empty() {
        true => Default::default(),
        false => usage::read_twice(&states, quiet, node.as_ref()).await?,
    };
    let mut readings = before.into_iter().zip(after);
    let rows = savings.workloads.iter().map(|(key, one)| (key.clone(), worth(one)));
    let mut rows: BTreeMap<WorkloadId, proto::WorkloadWorth> = rows.collect();
    for given in read.into_iter().chain(others) {
        // The pods that were read come first.
        let readings = readings.next().map(|(before, after)| [before, after]);
        let remarks = remarks(given, kills, readings.as_ref());
        let throttled = readings.map_or([None; 2], |[_, pod]| throttled(&given.state, &pod));
        if remarks.is_empty() && throttled == [None; 2] {
            continue;
        }
        let key = key_of(&given.state);
        let row = rows.entry(key).or_insert_with(|| worth(&WorkloadSavings::default()));
        let sums = [&mut row.throttled_before_burst, &mut row.throttled_with_burst];
        add(sums, throttled);
        let name = given.state.pod.full_name();
        let remarks = remarks.iter().map(|remark| format!("{name}: {remark}"));
        row.remarks.extend(remarks);
    }
    let workload = |(WorkloadId { namespace, kind, name }, row)| proto::WorkloadWorth {
        namespace,
        workload: Some(proto::Workload { kind, name }),
        ..row
    };
    Ok(proto::ReportReply {
        since: format!("{:.0}", savings.since),
        workloads: rows.into_iter().map(workload).collect(),
        total: Some(worth(&savings.total())),
    })
}

fn worth(savings: &WorkloadSavings) -> proto::WorkloadWorth {
    proto::WorkloadWorth {
        pods: savings.pods,
        requested_before: Some((&savings.before).into()),
        requested: Some((&savings.now).into()),
        avoided_kills: savings.kills,
        avoided_evictions: savings.evictions,
        avoided_restarts: savings.restarts,
        avoided_throttled_seconds: savings.throttled_seconds,
        ..proto::WorkloadWorth::default()
    }
}

fn add(sums: [&mut Option<f64>; 2], numbers: [Option<f64>; 2]) {
    for (sum, number) in sums.into_iter().zip(numbers) {
        *sum = [*sum, number].into_iter().flatten().reduce(std::ops::Add::add);
    }
}

/// The seconds per hour for which the pod's containers were throttled, before their burst and with it.
fn throttled(state: &PodState, pod: &proto::Pod) -> [Option<f64>; 2] {
    let now = Timestamp::now();
    let mut sums = [None; 2];
    for (name, start) in &state.desired.burst_starts {
        let container = pod.containers.iter().find(|container| container.name == **name);
        let same = container.filter(|container| container.id.as_deref() == Some(&*start.id));
        let Some(usage) = same.and_then(|container| container.usage.as_ref()) else {
            continue;
        };
        let since = usage.throttled_us.saturating_sub(start.throttled_us);
        let rates = [start.before, per_hour(since, now.duration_since(start.at))];
        add(sums.each_mut(), rates.map(|rate| rate.map(seconds)));
    }
    sums
}

#[expect(clippy::cast_precision_loss, reason = "a number for people")]
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::decide::PodDecision;
    use crate::model::{ContainerId, MilliCpu, ResourceList};
    use crate::reconcile::desired::BurstStart;
    use crate::sources::parse_manifests;

    #[test]
    fn throttling_is_compared_per_container() {
        let manifest = "{kind: Pod, metadata: {name: web, uid: u}, spec: {containers: [{name: app}, {name: side}]}}";
        let pod = Arc::clone(&parse_manifests("test", manifest).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        let start = |id: &str, minutes, before| BurstStart {
            id: ContainerId::of_test(id),
            at: Timestamp::now() - SignedDuration::from_mins(minutes),
            throttled_us: 1_000_000,
            before,
        };
        let starts = [
            ("app", start("a", 30, Some(60_000_000))),
            ("side", start("old", 30, None)),
        ];
        state.desired.burst_starts = starts.map(|(name, start)| (name.into(), start)).into();
        let container = |name: &str, id: &str| proto::Container {
            name: name.to_owned(),
            id: Some(id.to_owned()),
            usage: Some(proto::Usage {
                throttled_us: 3_000_000,
                ..proto::Usage::default()
            }),
            ..proto::Container::default()
        };
        let mut pod = proto::Pod {
            containers: vec![container("app", "a"), container("side", "new")],
            ..proto::Pod::default()
        };
        let [before, now] = throttled(&state, &pod);
        assert_eq!(before, Some(60.0));
        // Two seconds in half an hour; a second may have passed.
        assert!(now.is_some_and(|now| (3.9..=4.0).contains(&now)), "{now:?}");
        // The container started again and has no burst yet.
        pod.containers.remove(0);
        assert_eq!(throttled(&state, &pod), [None; 2]);
        // Too short a time.
        let short = [("side", start("new", 0, None))];
        state.desired.burst_starts = short.map(|(name, start)| (name.into(), start)).into();
        assert_eq!(throttled(&state, &pod), [None; 2]);
    }

    #[test]
    fn each_saving_has_its_field() {
        let amounts = |cpu: u64| ResourceList {
            cpu: Some(MilliCpu::new(cpu)),
            memory: None,
        };
        let savings = WorkloadSavings {
            pods: 1,
            before: amounts(200),
            now: amounts(100),
            kills: 2,
            evictions: 3,
            restarts: 4,
            throttled_seconds: 5.5,
        };
        let expected = proto::WorkloadWorth {
            pods: 1,
            requested_before: Some((&amounts(200)).into()),
            requested: Some((&amounts(100)).into()),
            avoided_kills: 2,
            avoided_evictions: 3,
            avoided_restarts: 4,
            avoided_throttled_seconds: 5.5,
            ..proto::WorkloadWorth::default()
        };
        assert_eq!(worth(&savings), expected);
    }
}
