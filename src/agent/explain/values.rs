//! Each value of each level, from the spec to the kernel's file, and why two of them differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::actuate::{Node, PodHandles};
use crate::agent::view;
use crate::cgroup::CgroupError;
use crate::cgroup::systemd::Unit;
use crate::control::{ControlError, proto};
use crate::model::{
    CgroupPath, ControlFile, CpuQuota, CpuShares, CriResources, LivePod, MemoryLimit, NamedRequirements, PodTree,
    PodValues, Setting, Settings, Target,
};
use crate::plan::shrink::{Holds, Progress};
use crate::plan::{PodTargets, hierarchy, in_force};
use crate::reconcile::controller::PodSnapshot;

/// What each level should hold, by whom one asks.
struct Sides {
    spec: PodValues,
    /// What the kubelet reports as in force.
    allocated: Option<PodValues>,
    wanted: Option<PodValues>,
    /// The same, with the limits that are left higher for now.
    kept: Option<PodValues>,
}

/// Blocks: reads files, and asks systemd where it drives the tree.
pub(super) fn values(
    node: &Node,
    snapshot: &PodSnapshot,
    specs: &BTreeMap<String, CriResources>,
) -> Result<Vec<proto::Value>, ControlError> {
    let Some(live) = &snapshot.state.live else {
        return Ok(Vec::new());
    };
    let internal = |error: CgroupError| ControlError::Internal(error.to_string());
    let handles = PodHandles::open(&node.hierarchy, live).map_err(internal)?;
    let kernel = handles.read().map_err(internal)?;
    let sides = sides(node, snapshot, &kernel);
    let mut values = Vec::new();
    for (target, cgroup) in handles.iter() {
        let Some(held) = kernel.get(&target) else { continue };
        let stored = target.container().and_then(|name| specs.get(name));
        let systemd = properties(node, cgroup.path());
        // Where nobody has set a burst or a memory.high, there is nothing to say of it.
        let is_set = |setting: &Setting| {
            setting.burst_us() != Some(0) && !matches!(setting, Setting::MemoryHigh(MemoryLimit::Max))
        };
        for setting in held.iter().filter(is_set) {
            let file = setting.file();
            let seen = Seen {
                kernel: setting,
                stored,
                systemd: systemd.as_ref().and_then(|settings| settings.get(file)),
            };
            let mut value = side_by_side(&seen, &target, &sides, snapshot);
            value.path = cgroup.path().to_string();
            values.push(value);
        }
    }
    Ok(values)
}

fn sides(node: &Node, snapshot: &PodSnapshot, held: &PodTree) -> Sides {
    let (state, traits) = (&snapshot.state, &node.traits);
    let created = |targets: &[NamedRequirements]| hierarchy(&state.pod, targets, traits).created();
    let in_force = in_force(&state.pod);
    let mut targets = state.pod_targets(Timestamp::now(), snapshot.resize.is_some());
    let kept = targets.as_mut().map(|targets| targets.values(held, traits));
    let wanted = targets
        .zip(state.desired.targets(&state.pod))
        .map(|(targets, containers)| {
            let mut targets = PodTargets {
                containers,
                holds: Holds::default(),
                ..targets
            };
            targets.values(held, traits)
        });
    Sides {
        spec: created(&[]),
        allocated: (!in_force.is_empty()).then(|| created(&in_force)),
        wanted,
        kept,
    }
}

fn waits_for_turn(snapshot: &PodSnapshot) -> bool {
    snapshot.state.shrink.progress(Timestamp::now()) == Some(Progress::Waits)
}

/// What systemd would write into a cgroup's files.
fn properties(node: &Node, path: &CgroupPath) -> Option<Settings> {
    let (systemd, unit) = (node.units.as_ref()?, Unit::of(path)?);
    systemd
        .get(&unit, node.traits.version)
        .inspect_err(|error| tracing::debug!(%unit, %error, "properties not known"))
        .ok()
}

struct Seen<'a> {
    kernel: Setting,
    stored: Option<&'a CriResources>,
    systemd: Option<Setting>,
}

fn side_by_side(seen: &Seen<'_>, target: &Target, sides: &Sides, snapshot: &PodSnapshot) -> proto::Value {
    let file = seen.kernel.file();
    let of = |state: &PodValues| state.tree.get(target).and_then(|settings| settings.get(file));
    let text = |setting: Option<Setting>| setting.map(|setting| setting.to_string()).unwrap_or_default();
    let wanted = sides.wanted.as_ref().and_then(of);
    let stored_wanted = target.container().zip(sides.wanted.as_ref());
    let stored_wanted = stored_wanted.and_then(|(name, wanted)| wanted.specs.get(name));
    let stored = seen
        .stored
        .and_then(|stored| stored_text(stored, file))
        .unwrap_or_default();
    let kept = sides.kept.as_ref().and_then(of);
    let difference = kernel_difference(seen.kernel, target, [wanted, kept, of(&sides.spec)], snapshot)
        .or_else(|| {
            let wanted = stored_text(stored_wanted?, file)?;
            runtime_difference(&stored, &wanted, snapshot)
        })
        .or_else(|| systemd_difference(seen.systemd?, wanted?));
    proto::Value {
        level: target.level().to_owned(),
        name: target.container().unwrap_or_default().to_owned(),
        path: String::new(),
        file: file.name().to_owned(),
        spec: text(of(&sides.spec)),
        allocated: text(sides.allocated.as_ref().and_then(of)),
        wanted: text(wanted),
        kernel: seen.kernel.to_string(),
        runtime: stored,
        systemd: seen.systemd.map(|setting| setting.to_string()).unwrap_or_default(),
        owner: if wanted.is_some() { "vscaled" } else { "kubelet" }.to_owned(),
        difference: difference.unwrap_or_default(),
    }
}

/// Why the kernel's file does not hold what it should, and what becomes of that.
fn kernel_difference(
    held: Setting,
    target: &Target,
    [wanted, kept, spec]: [Option<Setting>; 3],
    snapshot: &PodSnapshot,
) -> Option<String> {
    let state = &snapshot.state;
    let quotas = &state.desired.scope.quotas;
    let is_enforced = |live: &Arc<LivePod>| quotas.enforced(live.cgroup_id(target));
    match (wanted, spec) {
        (Some(wanted), _) if held != wanted && kept.is_some_and(|kept| held == kept) => {
            let why = if waits_for_turn(snapshot) {
                "until it is this pod's turn"
            } else {
                "because lowering it was undone"
            };
            Some(format!(
                "kept for now, {why}; what comes next says when it is tried again"
            ))
        }
        (Some(wanted), _) if held != wanted => {
            let writers = &state.drift.writers;
            Some(match writers.paused(target, held.file(), Timestamp::now()) {
                Some(until) => format!("something else keeps changing it; left alone until {until:.0}"),
                None if state.resize.pending().is_some() => {
                    let why = view::detail(state, Timestamp::now());
                    format!("the kubelet does not let the pod have what is wanted: {why}")
                }
                None => {
                    let why = match view::detail(state, Timestamp::now()) {
                        last if last.is_empty() => last,
                        last => format!(" ({last})"),
                    };
                    format!("the kernel holds something else than is wanted{why}; the next pass repairs it")
                }
            })
        }
        (None, Some(_)) if held.quota() == Some(CpuQuota::Max) && !state.live.as_ref().is_none_or(is_enforced) => {
            Some("the kubelet enforces no cpu quota here, so vscaled writes none".to_owned())
        }
        (None, Some(spec)) if held != spec => {
            Some("differs from the spec; nobody asked vscaled to change it, so it is left alone".to_owned())
        }
        _ => None,
    }
}

/// Why the runtime has something else stored than the kernel holds.
fn runtime_difference(stored: &str, wanted: &str, snapshot: &PodSnapshot) -> Option<String> {
    if stored.is_empty() || stored == wanted {
        return None;
    }
    let drift = &snapshot.state.drift;
    let why = if drift.runtime_sync_pending {
        format!(" ({})", drift.last_reason)
    } else {
        String::new()
    };
    Some(format!(
        "the runtime has {stored} stored instead of {wanted}{why}: it would write that back when somebody else updates the \
         container, so it is told again with the next pass"
    ))
}

/// Why systemd has something else than the kernel holds. It keeps whole percents of a cpu, rounded up here.
fn systemd_difference(property: Setting, wanted: Setting) -> Option<String> {
    let kept = match wanted {
        Setting::CpuMax(max) => Setting::CpuMax(max.systemd_rounded()),
        // One property for both files: what it says of one alone means nothing.
        Setting::CfsQuota(_) | Setting::CfsPeriod(_) => return None,
        other => other,
    };
    (property != kept && property != wanted).then(|| {
        format!("systemd's property says {property}: it would write that when it is reloaded, and the next pass puts it right")
    })
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
        ControlFile::MemoryHigh | ControlFile::MemswLimit | ControlFile::CpuMaxBurst | ControlFile::CfsBurst => None,
    }
}
