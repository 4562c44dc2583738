//! Converts the state of the controller to messages of the control protocol. Only [`planned`] reads anything.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::actuate::{Job, Node, preview};
use crate::control::proto;
use crate::model::objects::PodId;
use crate::model::{
    Cause, ChangeRecord, ContainerId, ContainerName, ControlFile, HookEnd, NamedRequirements, Outcome, StepRecord,
    micros,
};
use crate::observe::audit::Actor;
use crate::oom::{OomReport, Victim};
use crate::reconcile::desired::TemporaryLimit;
use crate::reconcile::overrides::Override;
use crate::reconcile::pod::PodState;

/// The agent, and the node as discovery found it.
pub(super) fn agent(node: Option<&Node>, problems: Vec<String>) -> proto::Agent {
    let known = |text: fn(&Node) -> String| node.map(text).unwrap_or_default();
    proto::Agent {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cgroup_version: known(|node| node.traits.version.to_string()),
        cgroup_driver: known(|node| node.traits.driver.to_string()),
        kubepods: known(|node| node.kubepods.path.to_string()),
        runtime: known(|node| node.runtime_name.clone().unwrap_or_else(|| "none".to_owned())),
        weight_formula: known(|node| node.traits.container_weight.to_string()),
        problems,
    }
}

pub(super) fn pod(state: &PodState, now: Timestamp, quiet: SignedDuration) -> proto::Pod {
    let metadata = &state.pod.metadata;
    let wanted = state.desired.targets_or_spec(&state.pod);
    let (live, inits) = (state.live.as_ref(), &state.pod.spec.init_containers);
    let (temporary, refused) = (state.desired.temporary.iter(), state.not_grown(now));
    let not_grown = |(container, why): (&ContainerName, &String)| format!("container {container}: {why}");
    let container = |named: &NamedRequirements| proto::Container {
        name: named.name.clone(),
        id: live.and_then(|live| Some(live.containers.get(&*named.name)?.id.to_string())),
        wanted: Some((&named.resources).into()),
        spec: state.pod.container(&named.name).map(|spec| (&spec.resources).into()),
        sidecar: inits.iter().any(|init| init.name == named.name),
        ..proto::Container::default()
    };
    proto::Pod {
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: uid_of(state),
        qos_class: state.pod.qos_class().to_string(),
        vpa: state.decision.vpa.clone(),
        action: state.decision.action().to_string(),
        reason: state.decision.reason.to_string(),
        state: state.status(now).to_string(),
        detail: state.detail(now),
        workload: Some(proto::Workload {
            kind: state.decision.workload.kind.clone(),
            name: state.decision.workload.name.clone(),
        }),
        containers: wanted.containers.iter().map(container).collect(),
        r#override: state.desired.overridden.as_ref().map(overridden),
        labels: metadata.labels.clone(),
        leases: temporary.map(|limit| lease(limit, quiet)).collect(),
        not_grown: refused.map(not_grown).collect(),
        ..proto::Pod::default()
    }
}

/// The UID of the pod that runs here, or else of its object.
fn uid_of(state: &PodState) -> String {
    let live = state.live.as_ref();
    live.map_or(&*state.pod.metadata.uid, |live| &*live.id.uid).to_owned()
}

/// The names, the UID and the container ids of a pod, by which a caller may name it.
pub(super) fn identifiers(state: &PodState) -> proto::Pod {
    let live = state.live.iter().flat_map(|live| live.containers.values());
    let container = |id: &ContainerId| proto::Container {
        id: Some(id.to_string()),
        ..proto::Container::default()
    };
    proto::Pod {
        namespace: state.pod.metadata.namespace.clone(),
        name: state.pod.metadata.name.clone(),
        uid: uid_of(state),
        containers: live.map(|live| container(&live.id)).collect(),
        ..proto::Pod::default()
    }
}

fn lease(limit: &TemporaryLimit, quiet: SignedDuration) -> proto::Lease {
    let denial = |why: &String| format!("{}; the API server denies it: {why}", limit.why);
    let (until, reason) = match &limit.denied {
        Some(denied) => (denied.ends, denial(&denied.why)),
        None => (limit.until(quiet), limit.why.clone()),
    };
    proto::Lease {
        container: limit.container.clone(),
        resource: limit.resource.to_string(),
        from: limit.resource.quantity(limit.from),
        to: limit.resource.quantity(limit.to),
        since: limit.since.to_string(),
        until: until.to_string(),
        reason,
    }
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

pub(super) fn change(record: &ChangeRecord) -> proto::Change {
    let stages = &record.stages;
    let mut reason = record.outcome.reason().unwrap_or_default().to_owned();
    if let Outcome::Hook(HookEnd { output, .. }) = &record.outcome
        && !output.is_empty()
    {
        reason += &format!("; it printed: {output}");
    }
    proto::Change {
        sequence: record.sequence,
        at: record.at.to_string(),
        namespace: record.pod.namespace.clone(),
        name: record.pod.name.clone(),
        uid: record.pod.uid.to_string(),
        cause: record.cause.to_string(),
        outcome: record.word().to_owned(),
        reason,
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

/// The steps that a pass would do.
///
/// Errors: a sentence that names the unreadable file or the reason why there is no plan.
pub(super) async fn planned(node: Arc<Node>, job: Job) -> Result<proto::Change, String> {
    let (pod, cause) = (job.targets.bound.live().id.clone(), job.cause.clone());
    let steps = preview(node, job).await?;
    Ok(proto::Change {
        at: Timestamp::now().to_string(),
        namespace: pod.namespace,
        name: pod.name,
        uid: pod.uid.to_string(),
        cause: cause.to_string(),
        outcome: "Planned".to_owned(),
        steps: steps.iter().map(step).collect(),
        who: Some(who(&cause)),
        ..proto::Change::default()
    })
}

/// The result for one of several pods.
pub(super) fn result(
    pod: &PodId,
    containers: Vec<String>,
    ended: Result<proto::Change, impl ToString>,
) -> proto::PodResult {
    proto::PodResult {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.to_string(),
        containers,
        error: ended.as_ref().err().map(ToString::to_string).unwrap_or_default(),
        change: ended.ok(),
    }
}

/// The actor behind the cause of a pass.
fn who(cause: &Cause) -> proto::Who {
    let actor = Actor::from(cause);
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    proto::Who {
        kind: actor.kind.to_owned(),
        name: text(actor.name),
        resource_version: text(actor.resource_version),
        uid: actor.uid,
        pid: actor.pid,
        reason: text(actor.reason),
    }
}

fn step(record: &StepRecord) -> proto::Step {
    let (from, to) = record.change.texts();
    proto::Step {
        via: record.change.via().to_string(),
        level: record.target.level().to_owned(),
        name: record.target.container().unwrap_or_default().to_owned(),
        file: record.change.file().map_or("", ControlFile::name).to_owned(),
        from,
        to,
        took_us: micros(record.took),
        error: record.error.clone().unwrap_or_default(),
        rollback: record.rollback,
    }
}

pub(in crate::agent) fn kill(report: &OomReport) -> proto::OomKill {
    let facts = &report.facts;
    proto::OomKill {
        id: report.id.clone(),
        node: facts.node.clone(),
        time: report.time.to_string(),
        pod: facts.pod.clone(),
        container: facts.container.clone(),
        cgroup: report.cgroup.clone(),
        level: facts.level.to_string(),
        limit: Some(facts.limit.clone()),
        limit_of: facts.limit_of().to_string(),
        container_limit: facts.container_limit.clone(),
        victim: report.victim.as_ref().map(victim),
        group: report.group.clone(),
        own_write: report.own_write.as_ref().map(|write| proto::OomOwnWrite {
            time: write.time.to_string(),
            what: write.what.clone(),
        }),
        evidence: report.evidence.clone(),
        confidence: report.confidence.to_string(),
        candidates: report.candidates.iter().map(victim).collect(),
        more_candidates: report.more_candidates,
        while_down: report.while_down,
    }
}

/// Whether a kill is of the pod that a caller names: by `namespace/name`, a UID, or the beginning of a container's id. An
/// empty text names every kill. Only the kill itself still names a pod that has gone.
pub(in crate::agent) fn is_kill_of(report: &OomReport, text: &str) -> bool {
    let (pod, container) = (report.facts.pod.as_ref(), report.facts.container.as_ref());
    text.is_empty()
        || pod.is_some_and(|pod| pod.uid == text || text.split_once('/') == Some((&pod.namespace, &pod.name)))
        || container.is_some_and(|container| container.id.starts_with(text))
}

fn victim(victim: &Victim) -> proto::OomVictim {
    proto::OomVictim {
        pid: victim.pid,
        comm: victim.comm.clone(),
        role: victim.role().to_string(),
        memory: victim.memory,
        oom_score_adj: victim.oom_score_adj,
        uid: victim.uid,
    }
}
