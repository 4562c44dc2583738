//! What the coordinator knows, in the words of the control protocol. Pure.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::entry::Entry;
use super::overrides::Override;
use crate::actuate::Node;
use crate::agent::metrics::PodState;
use crate::control::proto;
use crate::guard::lease::Lease;
use crate::model::objects::PodId;
use crate::model::{
    Bytes, Cause, CgroupVersion, ChangeRecord, Driver, MilliCpu, Reason, Requirements, Resource, StepRecord, Target,
    Withheld,
};
use crate::observe::audit::Actor;
use crate::plan::shrink::Progress;

/// The agent and the node as it found it.
pub(super) fn agent(node: Option<&Node>, problems: Vec<String>) -> proto::Agent {
    let known = |text: fn(&Node) -> String| node.map(text).unwrap_or_default();
    proto::Agent {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cgroup_version: known(|node| match node.traits.version {
            CgroupVersion::V1 => "v1".to_owned(),
            CgroupVersion::V2 => "v2".to_owned(),
        }),
        cgroup_driver: known(|node| match node.traits.driver {
            Driver::Cgroupfs => "cgroupfs".to_owned(),
            Driver::Systemd => "systemd".to_owned(),
        }),
        kubepods: known(|node| node.kubepods.path.to_string()),
        runtime: known(|node| node.runtime_name.clone().unwrap_or_else(|| "none".to_owned())),
        weight_formula: known(|node| node.traits.container_weight.to_string()),
        problems,
    }
}

/// One pod.
pub(super) fn pod(entry: &Entry, now: Timestamp, quiet: SignedDuration) -> proto::Pod {
    let metadata = &entry.pod.metadata;
    let state = entry.state(now);
    let wanted = entry
        .standing
        .targets(&entry.pod)
        .unwrap_or_else(|| entry.pod.requirements());
    let container = |named: &crate::model::NamedRequirements| proto::Container {
        name: named.name.clone(),
        id: entry
            .live
            .as_ref()
            .and_then(|live| live.containers.get(&named.name))
            .map(|live| live.id.clone()),
        wanted: Some(proto::Requirements::from(&named.resources)),
        spec: entry
            .pod
            .container(&named.name)
            .map(|container| requirements(&container.resources)),
    };
    proto::Pod {
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: entry
            .live
            .as_ref()
            .map_or(&entry.pod.metadata.uid, |live| &live.id.uid)
            .to_owned(),
        qos_class: entry.pod.qos_class().to_string(),
        vpa: entry.decision.vpa.clone(),
        action: entry.decision.action().to_string(),
        reason: entry.decision.reason.to_string(),
        state: word(state).to_owned(),
        detail: detail(entry, state, now),
        containers: wanted.iter().map(container).collect(),
        r#override: entry.standing.overridden.as_ref().map(overridden),
        labels: metadata.labels.clone(),
        leases: entry.standing.leases.iter().map(|lease| lent(lease, quiet)).collect(),
        not_grown: entry
            .not_saved
            .iter()
            .map(|(container, why)| format!("container {container}: {why}"))
            .collect(),
    }
}

fn lent(lease: &Lease, quiet: SignedDuration) -> proto::Lease {
    proto::Lease {
        container: lease.container.clone(),
        resource: lease.resource.to_string(),
        from: shown(lease.resource, lease.from),
        to: shown(lease.resource, lease.to),
        since: lease.since.to_string(),
        until: lease
            .denied
            .as_ref()
            .map_or_else(|| lease.until(quiet), |denied| denied.ends)
            .to_string(),
        reason: match &lease.denied {
            Some(denied) => format!("{}; the API server denies it: {}", lease.why, denied.why),
            None => lease.why.clone(),
        },
    }
}

fn requirements(resources: &Requirements) -> proto::Requirements {
    proto::Requirements::from(resources)
}

fn overridden(overridden: &Override) -> proto::Override {
    proto::Override {
        uid: overridden.uid,
        pid: overridden.pid,
        reason: overridden.reason.clone(),
        since: overridden.since.to_string(),
        until: overridden.until.map(|until| until.to_string()),
    }
}

/// Why a pod stands as it does, where the word does not say it.
fn detail(entry: &Entry, state: PodState, now: Timestamp) -> String {
    match state {
        PodState::NotRunning => "no container of this pod runs on this node".to_owned(),
        PodState::Foreign => entry
            .foreign
            .all_paused(now)
            .next()
            .map_or_else(String::new, |(target, file, until)| {
                format!("something else keeps changing {file} of {target}; left alone until {until}")
            }),
        PodState::Refused if entry.work.backoff.failures() == 0 && entry.too_much.is_some() => entry
            .too_much
            .as_ref()
            .map_or_else(String::new, |much| much.why.clone()),
        PodState::Refused if entry.work.backoff.failures() == 0 && entry.withheld.is_none() => {
            entry.shrinking.next_regret(now).map_or_else(String::new, |regret| {
                format!(
                    "a lower memory limit was undone (time {} in a row) and is tried again at {}: {}",
                    regret.times, regret.until, regret.why
                )
            })
        }
        PodState::Owed | PodState::Refused | PodState::Deferred | PodState::Infeasible => match &entry.withheld {
            Some(withheld) => withheld.reason().to_owned(),
            None => entry.last_reason(),
        },
        PodState::Working => {
            let withheld = entry.withheld.iter().map(|withheld| withheld.reason().to_owned());
            let all = withheld.chain(Some(grown(entry)).filter(|grown| !grown.is_empty()));
            all.collect::<Vec<_>>().join("; ")
        }
        PodState::NotManaged | PodState::InSync => grown(entry),
    }
}

/// What the guard did, or could not do.
fn grown(entry: &Entry) -> String {
    let lent = entry.standing.leases.iter().map(|lease| {
        format!(
            "container {} is lent {} of {}",
            lease.container,
            lease.resource,
            shown(lease.resource, lease.to)
        )
    });
    let refused = entry
        .not_saved
        .iter()
        .map(|(container, why)| format!("container {container} was not grown: {why}"));
    lent.chain(refused).collect::<Vec<_>>().join("; ")
}

fn shown(resource: Resource, amount: u64) -> String {
    match resource {
        Resource::Cpu => MilliCpu::new(amount).to_string(),
        Resource::Memory => Bytes::new(amount).to_string(),
    }
}

const fn word(state: PodState) -> &'static str {
    match state {
        PodState::NotManaged => "NotManaged",
        PodState::InSync => "InSync",
        PodState::Working => "Working",
        PodState::Owed => "Owed",
        PodState::Refused => "Refused",
        PodState::Deferred => "Deferred",
        PodState::Infeasible => "Infeasible",
        PodState::Foreign => "Foreign",
        PodState::NotRunning => "NotRunning",
    }
}

/// What happens next, as a sentence.
pub(super) fn next(entry: &Entry, now: Timestamp) -> String {
    if entry.live.is_none() {
        return "Nothing until a container of this pod runs on this node.".to_owned();
    }
    let begins = entry.work.pending.as_ref().and_then(|pending| pending.not_before);
    if let Some(wait) = begins.and_then(|at| at.checked_duration_since(Instant::now())) {
        return format!(
            "A pass begins in {} s: many nodes follow this recommendation, and not all at once.",
            wait.as_secs()
        );
    }
    if entry.work.running.is_some() || entry.work.pending.is_some() {
        return "A pass over this pod runs now.".to_owned();
    }
    if let Some(at) = entry.work.retry_at {
        return match at.saturating_duration_since(Instant::now()).as_secs() {
            0 => "The next attempt comes within a second.".to_owned(),
            wait => format!("The next attempt is in {wait} s, or at once when the decision changes."),
        };
    }
    if entry.too_much.is_some() {
        return "The recommendation is followed once the node has room for it: looked at every minute, and when pods come, go or \
                take less."
            .to_owned();
    }
    if let Some(regret) = entry.shrinking.next_regret(now) {
        return format!(
            "The lower limit of {} is tried again at {:.0}.",
            regret.target, regret.until
        );
    }
    if entry.shrinking.progress(now) == Some(Progress::Waits) {
        return "The lower memory limit is tried once it is this pod's turn: of one workload a few pods at a time, and none while \
                one of them has its own limit back."
            .to_owned();
    }
    if let Some((target, file, until)) = entry.foreign.all_paused(now).next() {
        return format!("{file} of {target} is looked at again at {until:.0}.");
    }
    if let Some(withheld) = &entry.withheld {
        return match withheld {
            Withheld::Deferred(_) => {
                "The kubelet tries again when the node has room; a smaller recommendation replaces this one at once."
            }
            Withheld::Infeasible(_) => "Nothing until something else is wanted: this node can never do it.",
            Withheld::Failed(_) => "The kubelet tries again by itself.",
            Withheld::Unanswered(_) => "The kubelet is to answer; its values follow then.",
            Withheld::Postponed(_) => "The kubelet is asked once the limit has stopped growing.",
        }
        .to_owned();
    }
    if let Some(until) = entry.standing.ends_at() {
        return format!(
            "The override ends at {until:.0}, and what was decided comes back; until then its values are kept true."
        );
    }
    if let Some(end) = entry.decision.boosts.next_end {
        return format!("A startup boost ends at {end:.0}, and that container's cpu goes back.");
    }
    if entry.decision.reason == Reason::StartupBoost {
        return "A startup boost ends once the pod is ready, or as long after that as its VPA says.".to_owned();
    }
    if entry.standing.is_empty() {
        return "Nothing: this pod is not managed.".to_owned();
    }
    if let Some(lease) = entry.standing.leases.first() {
        return format!(
            "What container {} is lent is taken back once it has been quiet for long enough, or the recommendation has caught up.",
            lease.container
        );
    }
    "Its values are kept true; a new recommendation changes them at once.".to_owned()
}

/// One pass, as it went.
pub(super) fn change(record: &ChangeRecord) -> proto::Change {
    let micros = |duration: std::time::Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let stages = &record.stages;
    proto::Change {
        sequence: record.sequence,
        at: record.at.to_string(),
        namespace: record.pod.namespace.clone(),
        name: record.pod.name.clone(),
        uid: record.pod.uid.clone(),
        cause: record.cause.to_string(),
        outcome: record.outcome.word().to_owned(),
        reason: record.outcome.reason().unwrap_or_default().to_owned(),
        steps: record.steps.iter().map(step).collect(),
        stages: Some(proto::Stages {
            decide_us: micros(stages.decide),
            queued_us: micros(stages.queued),
            ask_us: micros(stages.ask),
            observe_us: micros(stages.observe),
            plan_us: micros(stages.plan),
            prepare_us: micros(stages.prepare),
            write_us: micros(stages.write),
            runtime_us: micros(stages.runtime),
            verified_us: micros(stages.verified),
        }),
        who: Some(who(&record.cause)),
        ..proto::Change::default()
    }
}

/// What a pass would do.
pub(super) fn planned(pod: PodId, cause: &Cause, steps: &[StepRecord]) -> proto::Change {
    proto::Change {
        at: Timestamp::now().to_string(),
        namespace: pod.namespace,
        name: pod.name,
        uid: pod.uid,
        cause: cause.to_string(),
        outcome: "Planned".to_owned(),
        steps: steps.iter().map(step).collect(),
        who: Some(who(cause)),
        ..proto::Change::default()
    }
}

/// Who or what asked for a pass.
pub(super) fn who(cause: &Cause) -> proto::Who {
    match Actor::from(cause) {
        Actor::Vpa { name, resource_version } => proto::Who {
            kind: "vpa".to_owned(),
            name: name.to_owned(),
            resource_version: resource_version.to_owned(),
            ..proto::Who::default()
        },
        Actor::Operator { uid, pid, reason } => proto::Who {
            kind: "operator".to_owned(),
            uid: Some(uid),
            pid: Some(pid),
            reason: reason.to_owned(),
            ..proto::Who::default()
        },
        Actor::Guard => proto::Who {
            kind: "guard".to_owned(),
            ..proto::Who::default()
        },
        Actor::Agent => proto::Who {
            kind: "agent".to_owned(),
            ..proto::Who::default()
        },
    }
}

/// One step.
pub(super) fn step(record: &StepRecord) -> proto::Step {
    let (level, name) = match &record.target {
        Target::Pod => ("pod", String::new()),
        Target::Container(name) => ("container", name.clone()),
    };
    proto::Step {
        via: record.via.to_string(),
        level: level.to_owned(),
        name,
        file: record.file.unwrap_or_default().to_owned(),
        from: record.from.clone(),
        to: record.to.clone(),
        took_us: u64::try_from(record.took.as_micros()).unwrap_or(u64::MAX),
        error: record.error.clone().unwrap_or_default(),
        rollback: record.rollback,
    }
}
