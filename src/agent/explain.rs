//! Every value of one pod side by side: what the spec gives, what is wanted, what the kernel and the runtime hold.

use std::collections::BTreeMap;

use super::coordinator::Snapshot;
use super::view;
use crate::actuate::{Node, PodHandles, stored_specs};
use crate::control::{ControlError, proto};
use crate::plan::shrink::keep;
use crate::plan::{CriResources, PodState, Target, hierarchy};
use crate::resources::{ControlFile, CpuShares, Setting, Settings};

/// Reads the kernel's files and the runtime's stored specs, and puts everything side by side.
pub(super) async fn explain(snapshot: Snapshot) -> Result<proto::ExplainReply, ControlError> {
    let mut reply = proto::ExplainReply {
        notes: snapshot.decision.notes.iter().map(ToString::to_string).collect(),
        next: snapshot.next.clone(),
        changes: snapshot.changes.iter().map(|record| view::change(record)).collect(),
        pod: Some(snapshot.summary.clone()),
        values: Vec::new(),
    };
    if let (Some(node), Some(live)) = (snapshot.node.clone(), &snapshot.live) {
        let specs = stored_specs(&node, live).await;
        let side_by_side = tokio::task::spawn_blocking(move || values(&node, &snapshot, &specs)).await;
        reply.values = side_by_side.map_err(|panic| ControlError::Internal(panic.to_string()))??;
    }
    Ok(reply)
}

/// Blocks: reads files.
fn values(
    node: &Node,
    snapshot: &Snapshot,
    specs: &BTreeMap<String, CriResources>,
) -> Result<Vec<proto::Value>, ControlError> {
    let Some(live) = &snapshot.live else {
        return Ok(Vec::new());
    };
    let internal = |error: crate::cgroup::CgroupError| ControlError::Internal(error.to_string());
    let handles = PodHandles::open(&node.hierarchy, live).map_err(internal)?;
    let kernel = handles.read().map_err(internal)?;
    let spec = hierarchy(&snapshot.pod, &[], &node.traits).created();
    let wanted = snapshot.standing.targets(&snapshot.pod).map(|targets: Vec<_>| {
        let hierarchy = hierarchy(&snapshot.pod, &targets, &node.traits);
        if snapshot.standing.returning {
            hierarchy.created()
        } else {
            hierarchy.wanted()
        }
    });
    let kept = wanted.clone().map(|mut kept| {
        keep(&snapshot.holds, &mut kept);
        kept
    });
    let mut values = Vec::new();
    for (target, cgroup) in handles.iter() {
        let Some(held) = kernel.get(&target) else { continue };
        let stored = match &target {
            Target::Pod => None,
            Target::Container(name) => specs.get(name),
        };
        for setting in held.iter() {
            let mut value = compare(setting, &target, &spec, wanted.as_ref(), kept.as_ref());
            value.path = cgroup.path().to_string();
            value.runtime = stored
                .and_then(|stored| stored_text(stored, setting.file()))
                .unwrap_or_default();
            values.push(value);
        }
    }
    Ok(values)
}

/// `kept` is what is wanted, with the limits that are left higher for now.
fn compare(
    held: Setting,
    target: &Target,
    spec: &PodState,
    wanted: Option<&PodState>,
    kept: Option<&PodState>,
) -> proto::Value {
    let file = held.file();
    let of = |state: &PodState| {
        state
            .tree
            .get(target)
            .and_then(|settings: &Settings| settings.get(file))
    };
    let text = |setting: Option<Setting>| {
        setting
            .map(|setting| setting.kernel_rounded().to_string())
            .unwrap_or_default()
    };
    let wanted = wanted.and_then(of);
    let difference = match (wanted, of(spec)) {
        (Some(wanted), _) if !held.means(wanted) && kept.and_then(of).is_some_and(|kept| held.means(kept)) => {
            "kept for now, because lowering it was undone"
        }
        (Some(wanted), _) if !held.means(wanted) => "differs from what is wanted; repaired by the next pass",
        (None, Some(spec)) if !held.means(spec) => "differs from the spec; not managed, left alone",
        _ => "",
    };
    let (level, name) = match target {
        Target::Pod => ("pod", String::new()),
        Target::Container(name) => ("container", name.clone()),
    };
    proto::Value {
        level: level.to_owned(),
        name,
        path: String::new(),
        file: file.name().to_owned(),
        spec: text(of(spec)),
        wanted: text(wanted),
        kernel: held.to_string(),
        runtime: String::new(),
        owner: if wanted.is_some() { "vscaled" } else { "kubelet" }.to_owned(),
        difference: difference.to_owned(),
    }
}

/// The stored field behind a file, in the runtime's terms.
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
        ControlFile::MemswLimit => None,
    }
}
