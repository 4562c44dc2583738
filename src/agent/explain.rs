//! Explains one pod: compares each amount from the recommendation to the API's report, and each value at each level from
//! the spec to the kernel's file.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::after_resize::{Given, remarks};
use super::{usage, view};
use crate::actuate::{KnownFrom, Node, PodHandles, hook_problems, stored_specs};
use crate::cgroup::CgroupError;
use crate::cgroup::systemd::Unit;
use crate::control::{ControlError, proto};
use crate::kubernetes::Object;
use crate::model::objects::{Container, Pod, VerticalPodAutoscaler};
use crate::model::{
    CgroupPath, ContainerName, ControlFile, CpuQuota, CpuShares, CriResources, KubeletVersion, LivePod, NodeTraits,
    PodAmounts, PodTree, PodValues, Reason, Requirements, Resource, Setting, Settings, Target,
};
use crate::oom::OomReport;
use crate::plan::shrink::{Holds, Progress};
use crate::plan::{hierarchy, in_force};
use crate::reconcile::controller::PodSnapshot;
use crate::reconcile::pod::{Now, PodState, explained, pod_targets};
use crate::resize;

/// Reads the kernel's files, systemd's properties and the runtime's stored specs, and compares all values.
/// `kills` are the latest of the node.
pub(super) async fn explain(
    snapshot: PodSnapshot,
    kills: Vec<Arc<OomReport>>,
) -> Result<proto::ExplainReply, ControlError> {
    let now = Now::read();
    let reason = snapshot.state.decision.reason;
    let mut notes = vec![format!("{reason}: {}", reason.meaning())];
    notes.extend(decided_otherwise(&snapshot.state).map(str::to_owned));
    notes.extend(snapshot.state.decision.notes.iter().map(ToString::to_string));
    notes.extend(vpa_problems(&snapshot));
    notes.extend(pending_request(&snapshot.state));
    let node = snapshot.node.as_deref();
    notes.extend(node.and_then(|node| assumed_kubelet(node, &snapshot.state.pod)));
    notes.extend(node.and_then(|node| node.lacks_burst(snapshot.state.desired.burst?)));
    let mut reply = proto::ExplainReply {
        notes,
        next: match snapshot.state.live {
            Some(_) if snapshot.observes => "Nothing is written: the agent only observes (observeOnly).".to_owned(),
            _ => explained::next_step(&snapshot.state, now),
        },
        changes: snapshot.changes.iter().map(|record| view::change(record)).collect(),
        pod: Some(view::pod(&snapshot.state, now.wall, snapshot.quiet)),
        values: Vec::new(),
        amounts: amounts(&snapshot),
    };
    if let (Some(node), Some(live)) = (snapshot.node.clone(), snapshot.state.live.clone()) {
        // First: the state is compared with the files, and a pass may end during the calls that follow.
        let specs = stored_specs(&node, &live).await;
        let read = tokio::task::spawn_blocking(move || (values(&node, &snapshot, &specs), node, snapshot)).await;
        let (values, node, snapshot) = read.map_err(|panic| ControlError::Internal(panic.to_string()))?;
        reply.values = values?;
        let hooks = hook_problems(&node, &snapshot.state.pod, &live, snapshot.hooks_forbidden_by).await;
        reply.notes.extend(hooks);
        reply.notes.extend(after_resize(&snapshot, &kills).await?);
    }
    Ok(reply)
}

/// A note where the decision is about the decided amounts, and the spec of a pod whose kubelet resizes still has others.
fn decided_otherwise(state: &PodState) -> Option<&'static str> {
    let is_in_order = matches!(
        state.decision.reason,
        Reason::InRange | Reason::TooYoung | Reason::AgeUnknown | Reason::AtTarget
    );
    let decided = &state.desired.recommended.as_ref()?.targets;
    let differs = state.pod.resizes_in_place() && !decided.same(&state.pod.requirements());
    (is_in_order && differs).then_some("that is about the decided amounts: the pod's spec has others")
}

/// Why the latest version of the pod's VPA cannot be used, or a part of it. Where the pod has no VPA, of each VPA in the namespace: one
/// that could never be used has no known target.
fn vpa_problems(snapshot: &PodSnapshot) -> Vec<String> {
    let (namespace, vpa) = (&snapshot.state.pod.metadata.namespace, &snapshot.state.decision.vpa);
    let name = vpa.as_ref().map_or_else(String::new, |name| format!("{name}: "));
    let beginning = VerticalPodAutoscaler::kind_and_name(&format!("{namespace}/{name}"));
    let is_about = |problem: &&String| problem.starts_with(&beginning);
    snapshot.problems.iter().filter(is_about).cloned().collect()
}

/// A note about the requests of this agent that the kubelet has not allocated.
fn pending_request(state: &PodState) -> Option<String> {
    let before = state.pod.with_requirements(&state.resize.without_requests(&state.pod)?);
    let changes = resize::changes(&before, &state.pod.requirements()).unwrap_or_default();
    let changes: Vec<_> = changes
        .iter()
        .map(|step| format!("{} {}", step.target, step.change))
        .collect();
    (!changes.is_empty()).then(|| {
        format!(
            "the kubelet has not carried out a request of vscaled: {}",
            changes.join(", ")
        )
    })
}

/// What is still wrong with containers that were given more. Takes a second where one of them got more cpu.
async fn after_resize(snapshot: &PodSnapshot, kills: &[Arc<OomReport>]) -> Result<Vec<String>, ControlError> {
    let given = Given {
        state: snapshot.state.clone(),
        changes: snapshot.changes.clone(),
    };
    let readings = if given.has_more(Resource::Cpu) {
        let twice = usage::read_twice(&[&given.state], snapshot.quiet, snapshot.node.as_ref()).await?;
        Some(twice.map(|mut pods| pods.pop().unwrap_or_default()))
    } else {
        None
    };
    Ok(remarks(&given, kills, readings.as_ref()))
}

/// A note that the agent only assumes the kubelet's version, for a pod whose values depend on it.
fn assumed_kubelet(node: &Node, pod: &Pod) -> Option<String> {
    let by = |kubelet| {
        let traits = NodeTraits { kubelet, ..node.traits };
        hierarchy(pod, PodAmounts::NONE, &traits).created()
    };
    let matters = by(KubeletVersion::OLDEST) != by(node.traits.kubelet);
    (node.kubelet_from == KnownFrom::Inferred && matters).then(|| {
        format!(
            "the pod's values follow the rules of kubelet {}, which is assumed: no source has the Node object; set \
             kubeletVersion where that is wrong",
            node.traits.kubelet
        )
    })
}

/// Two rows for each regular container and sidecar.
fn amounts(snapshot: &PodSnapshot) -> Vec<proto::Amount> {
    let (pod, desired) = (&snapshot.state.pod, &snapshot.state.desired);
    let wanted = desired.targets(pod);
    let decided = desired.recommended.as_ref().map(|recommended| &recommended.targets);
    let row = |name: &str, own: &Requirements, resource: Resource| {
        let pair = |values: &Requirements| proto::RequestAndLimit {
            request: values.requests.text(resource),
            limit: values.limits.text(resource),
        };
        let of = |amounts: &PodAmounts| amounts.container(name).map(pair);
        let notes = snapshot.state.decision.notes.iter();
        let rules = notes.filter(|note| note.is_about(name, resource));
        let status = pod.container_status(name);
        let bounds = snapshot.vpa.as_ref().and_then(|vpa| vpa.recommendation_for(name));
        proto::Amount {
            container: name.to_owned(),
            resource: resource.to_string(),
            lower_bound: bounds.and_then(|bounds| bounds.lower_bound.text(resource)),
            target: bounds.and_then(|bounds| bounds.target.text(resource)),
            upper_bound: bounds.and_then(|bounds| bounds.upper_bound.text(resource)),
            spec: Some(pair(own)),
            decided: decided.and_then(of),
            wanted: wanted.as_ref().and_then(of),
            allocated: status.and_then(|status| status.allocated_resources?.text(resource)),
            in_force: status.and_then(|status| Some(pair(&status.resources?))),
            rules: rules.map(ToString::to_string).collect(),
        }
    };
    let rows =
        |container: &Container| Resource::ALL.map(|resource| row(&container.name, &container.resources, resource));
    pod.running_containers().flat_map(rows).collect()
}

/// Blocks: reads files, and calls systemd where it manages the cgroups.
fn values(
    node: &Node,
    snapshot: &PodSnapshot,
    specs: &BTreeMap<ContainerName, CriResources>,
) -> Result<Vec<proto::Value>, ControlError> {
    let Some(live) = &snapshot.state.live else {
        return Ok(Vec::new());
    };
    let read = CgroupError::unless_gone(PodHandles::open_and_read(&node.hierarchy, live));
    let read = read.map_err(|error| ControlError::Internal(error.to_string()))?;
    // A pod that has just ended has no values.
    let Some((handles, kernel)) = read else {
        return Ok(Vec::new());
    };
    let expected = expected(node, snapshot, &kernel);
    let [_, _, desired, _] = &expected;
    let mut values = Vec::new();
    for (target, cgroup) in handles.iter() {
        let Some(held) = kernel.get(target) else { continue };
        let stored = target.container().and_then(|name| specs.get(name));
        let (systemd, is_idle) = (properties(node, cgroup.path()), cgroup.is_idle() == Ok(true));
        for setting in held.iter() {
            let file = setting.file();
            let of = |state: &Option<PodValues>| state.as_ref()?.tree.get(target)?.get(file);
            let text = |setting: Option<Setting>| setting.map(|setting| setting.to_string()).unwrap_or_default();
            let [spec, allocated, wanted, kept] = expected.each_ref().map(of);
            if setting.is_unset() && wanted.is_none_or(Setting::is_unset) {
                continue;
            }
            let runtime = stored.and_then(|stored| stored_text(stored, file));
            let property = systemd.as_ref().and_then(|settings| settings.get(file));
            let difference = kernel_difference(setting, target, [wanted, kept, spec], snapshot)
                .or_else(|| {
                    let wanted = desired.as_ref()?.specs.get(target.container()?)?;
                    runtime_difference(runtime.as_deref()?, &stored_text(wanted, file)?, is_idle, snapshot)
                })
                .or_else(|| systemd_difference(property?, wanted?, snapshot));
            values.push(proto::Value {
                level: target.level().to_owned(),
                name: target.container().unwrap_or_default().to_owned(),
                path: cgroup.path().to_string(),
                file: file.name().to_owned(),
                spec: text(spec),
                allocated: text(allocated),
                wanted: text(wanted),
                kernel: setting.to_string(),
                runtime: runtime.unwrap_or_default(),
                systemd: text(property),
                owner: if wanted.is_some() { "vscaled" } else { "kubelet" }.to_owned(),
                difference: difference.unwrap_or_default(),
            });
        }
    }
    Ok(values)
}

/// The values that a pod's cgroups may have: from the spec alone, from the resources that the kubelet reports as in force, from the
/// desired state, and from that with the limits that the agent leaves higher for now.
fn expected(node: &Node, snapshot: &PodSnapshot, held: &PodTree) -> [Option<PodValues>; 4] {
    let (state, traits) = (&snapshot.state, &node.traits);
    let created = |targets: &PodAmounts| hierarchy(&state.pod, targets, traits).created();
    let in_force = in_force(&state.pod);
    let mut targets = pod_targets(state, Timestamp::now(), snapshot.resize.is_some());
    let kept = targets.as_mut().map(|targets| targets.values(held, traits));
    let wanted = targets.map(|mut targets| {
        (targets.amounts, targets.holds) = (state.desired.targets_or_spec(&state.pod), Holds::default());
        targets.values(held, traits)
    });
    let allocated = (!in_force.is_empty()).then(|| created(&in_force));
    [Some(created(PodAmounts::NONE)), allocated, wanted, kept]
}

/// The settings that systemd would write into a cgroup's files.
fn properties(node: &Node, path: &CgroupPath) -> Option<Settings> {
    let (systemd, unit) = (node.units.as_ref()?, Unit::of(path)?);
    systemd
        .get(&unit, node.traits.version)
        .inspect_err(|error| tracing::debug!(%unit, %error, "properties not known"))
        .ok()
}

const FAILED: &str = "the latest attempt to change the pod did not succeed; the next step says when it is tried again";

/// Explains why the kernel's file does not have the wanted value, and the next step.
fn kernel_difference(
    held: Setting,
    target: &Target,
    [wanted, kept, spec]: [Option<Setting>; 3],
    snapshot: &PodSnapshot,
) -> Option<String> {
    let (state, now) = (&snapshot.state, Timestamp::now());
    let Some(wanted) = wanted else {
        let is_enforced = |live: &Arc<LivePod>| state.desired.scope.quotas.enforced(live, target);
        let has_no_quota = held.quota() == Some(CpuQuota::Max) && !state.live.as_ref().is_none_or(is_enforced);
        return match spec {
            Some(_) if has_no_quota => {
                Some("the kubelet enforces no cpu quota here, so vscaled writes none".to_owned())
            }
            Some(spec) if held != spec => {
                Some("differs from the spec; no decision concerns it, so it is left alone".to_owned())
            }
            _ => None,
        };
    };
    if held == wanted {
        return None;
    }
    if snapshot.observes {
        return Some("not written: the agent only observes (observeOnly)".to_owned());
    }
    if Some(held) == kept {
        let why = match state.shrink.progress(now) {
            Some(Progress::Waits) => "until it is this pod's turn",
            Some(Progress::Undone) => "because lowering it was undone",
            _ => "until the container's before-shrink hook has ended",
        };
        return Some(format!(
            "kept for now, {why}; the next step says when it is tried again"
        ));
    }
    let why = explained::detail(state, now);
    Some(match state.drift.writers().paused(target, held.file(), now) {
        Some(until) => format!("another program keeps changing it; left alone until {until:.0}"),
        // The pod's detail says why, once for all files.
        None if explained::has_failed(state) => FAILED.to_owned(),
        None if state.resize.withheld().is_some() => format!("the kubelet has not granted the wanted value: {why}"),
        None => {
            let why = if why.is_empty() { why } else { format!(" ({why})") };
            format!("the file differs from the wanted value{why}; the next pass repairs it")
        }
    })
}

/// Explains why the runtime's stored spec differs from the wanted one. That of a container whose cgroup `is_idle` stays.
fn runtime_difference(stored: &str, wanted: &str, is_idle: bool, snapshot: &PodSnapshot) -> Option<String> {
    let drift = &snapshot.state.drift;
    let why = match drift.owes_runtime() {
        true => format!(" ({})", drift.reason()),
        false => String::new(),
    };
    let repaired = if is_idle {
        "not updated while the container's cgroup is idle (cpu.idle)"
    } else {
        "it would write that back when another process updates the container, so the next pass updates it"
    };
    let next = next_about_copy(snapshot, repaired);
    (stored != wanted).then(|| format!("the runtime has {stored} stored instead of {wanted}{why}: {next}"))
}

/// What happens about the copy of a value that differs from the wanted one: `repaired` where the next pass repairs it.
fn next_about_copy(snapshot: &PodSnapshot, repaired: &'static str) -> &'static str {
    if snapshot.observes {
        "not updated, because the agent only observes (observeOnly)"
    } else if explained::has_failed(&snapshot.state) {
        FAILED
    } else if snapshot.state.resize.withheld().is_some() {
        "the kubelet has not granted the wanted value"
    } else {
        repaired
    }
}

/// Explains why systemd's property differs from the wanted value. systemd keeps whole percents of a cpu, rounded up here.
fn systemd_difference(property: Setting, wanted: Setting, snapshot: &PodSnapshot) -> Option<String> {
    let kept = match wanted {
        Setting::CpuMax(max) => Setting::CpuMax(max.systemd_rounded()),
        // One property holds the ratio of both files, and no value of one of them.
        Setting::CfsQuota(_) | Setting::CfsPeriod(_) => return None,
        other => other,
    };
    let repaired = "systemd would write that when it reloads, so the next pass repairs it";
    let next = next_about_copy(snapshot, repaired);
    (property != kept && property != wanted).then(|| format!("systemd's property says {property}: {next}"))
}

/// The field of the stored spec behind a file, in the runtime's terms.
fn stored_text(stored: &CriResources, file: ControlFile) -> Option<String> {
    match file {
        ControlFile::CpuMax => Some(format!("quota {} period {}", stored.cpu_quota?, stored.cpu_period?)),
        ControlFile::CfsQuota => Some(stored.cpu_quota?.to_string()),
        ControlFile::CfsPeriod => Some(stored.cpu_period?.to_string()),
        ControlFile::CpuWeight | ControlFile::CpuShares => {
            let shares = CpuShares::new(u64::try_from(stored.cpu_shares?).ok()?);
            Some(format!("shares {}", shares.get()))
        }
        ControlFile::MemoryMax | ControlFile::MemoryLimit => Some(stored.memory_limit_in_bytes?.to_string()),
        ControlFile::MemoryHigh | ControlFile::MemoryMin | ControlFile::MemoryLow | ControlFile::MemswLimit => None,
        ControlFile::CpuMaxBurst | ControlFile::CfsBurst => None,
    }
}

#[cfg(test)]
mod tests;
