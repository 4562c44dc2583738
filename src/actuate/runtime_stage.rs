//! The stages of a pass that call the runtime: they make its stored specs agree with the kernel's values, and verify the files
//! afterwards. Only where the kubelet does not resize in place: elsewhere the kubelet updates the runtime.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures::future::join_all;

use super::node::{Node, RuntimeLink};
use super::pass::{Observed, Pass};
use super::shrink::{Freezer, Marker};
use crate::cgroup::{Cgroup, CgroupDir, CgroupError, Dir};
use crate::failpoint::failpoint;
use crate::model::{
    CgroupVersion, Change, ContainerName, ControlFile, CpuShares, CriResources, LivePod, Outcome, PodTree, Setting,
    Settings, Step, StepRecord, Target, WeightFormula,
};
use crate::plan::{Plan, spec_step};
use crate::runtime::{ContainerRuntime, RuntimeError, weight};

/// The runtime's stored specs of the pod's containers, as far as the runtime answers and shows them.
pub async fn stored_specs(node: &Node, live: &LivePod) -> BTreeMap<ContainerName, CriResources> {
    let mut specs = BTreeMap::new();
    let runtime = match &node.runtime {
        RuntimeLink::Found(runtime) if node.concurrency.runtime_away().is_none() => runtime.as_ref(),
        _ => return specs,
    };
    for (name, answer) in fetch_containers(runtime, live, live.containers.keys()).await {
        match answer {
            Ok(stored) => specs.extend(stored.map(|stored| (name.clone(), stored))),
            Err(error) => tracing::debug!(pod = %live.id, container = %name, %error, "stored spec not known"),
        }
    }
    specs
}

/// Asks the runtime for the stored specs of these containers, all at once: the pass waits for one answer, or for one deadline
/// of a runtime that hangs.
async fn fetch_containers<'a>(
    runtime: &dyn ContainerRuntime,
    live: &LivePod,
    names: impl Iterator<Item = &'a ContainerName>,
) -> Vec<(&'a ContainerName, Result<Option<CriResources>, RuntimeError>)> {
    let containers = names.filter_map(|name| Some((name, live.containers.get(name)?)));
    join_all(containers.map(async |(name, container)| (name, runtime.stored(&container.id).await))).await
}

/// Updates the stored specs that differ from the wanted ones, and reads the files again, because the runtime writes them too.
///
/// Errors: how the pass ends where the runtime was not updated, or the files do not hold their values.
pub(super) async fn sync(pass: &mut Pass, observed: &Observed) -> Result<(), Outcome> {
    let node = Arc::clone(&pass.node);
    let runtime = match &node.runtime {
        RuntimeLink::None => return Ok(()),
        RuntimeLink::Away(why) => return Err(Outcome::RuntimeOwed(why.clone())),
        RuntimeLink::Found(runtime) => runtime.as_ref(),
    };
    let (namespace, class) = pass.user();
    let _slot = node.concurrency.runtime.wait(&namespace, class).await;
    // After the wait: another pass may have found meanwhile that the runtime does not answer.
    if let Some(reason) = node.concurrency.runtime_away() {
        return Err(Outcome::RuntimeOwed(reason));
    }
    let steps = spec_steps(runtime, pass, observed)
        .await
        .map_err(|error| give_up(&node, &error, false))?;
    // Where no update follows: an update keeps the limits of its own container.
    for (target, cgroup) in pass.handles.iter() {
        if !steps.iter().any(|step| step.target == *target) {
            restore_left(&node.freezer, cgroup);
        }
    }
    if steps.is_empty() {
        return Ok(());
    }
    for step in &steps {
        // Before each update: the guard may raise a limit during the one before.
        if !pass.is_current(observed) {
            // The runtime would write the earlier limit.
            return Err(owed_to_guard());
        }
        let updated = update_spec(runtime, pass, step, false).await;
        let late = updated.as_ref().err().filter(|error| error.is_late());
        node.concurrency.update_ended(&namespace, late.map(ToString::to_string));
        if let Err(error) = updated {
            return Err(give_up(&node, &error, true));
        }
    }
    verify(pass, observed)
}

/// How a pass ends where the guard has raised a limit: the files hold that limit, and the runtime has an earlier one.
fn owed_to_guard() -> Outcome {
    Outcome::RuntimeOwed("the guard raised a limit meanwhile; the next pass updates the runtime".to_owned())
}

/// Carries out and records one step.
async fn update_spec(
    runtime: &dyn ContainerRuntime,
    pass: &mut Pass,
    step: &Step,
    rollback: bool,
) -> Result<(), RuntimeError> {
    let (Target::Container(name), Change::Spec { to, .. }) = (&step.target, &step.change) else {
        return Ok(());
    };
    let Some(container) = pass.live().containers.get(name) else {
        return Ok(());
    };
    let start = Instant::now();
    let cgroup = pass.handles.get(&step.target);
    let result = update(runtime, &pass.node.freezer, cgroup, &container.id, to).await;
    pass.done.record.steps.push(StepRecord {
        rollback,
        ..StepRecord::carried_out(step, start.elapsed(), &result)
    });
    // The guard may have raised a limit while the runtime wrote the file.
    let raised_again = pass.raise_again();
    pass.done.record.steps.extend(raised_again);
    result
}

/// Changes a container's stored spec. A runtime may also change limits that the call does not name: CRI-O sets swap to 0 with
/// every change of memory, and containerd writes its stored `memory.high`. Puts those limits back. A runtime that does not answer in
/// time may change them later: the marker stays for the next pass.
async fn update(
    runtime: &dyn ContainerRuntime,
    freezer: &Freezer,
    cgroup: Option<&Cgroup>,
    id: &str,
    fields: &CriResources,
) -> Result<(), RuntimeError> {
    let mut kept = Vec::new();
    for dir in cgroup.into_iter().flat_map(Cgroup::dirs) {
        let dir = dir.memory_dir();
        match limits_to_keep(freezer, dir) {
            Ok(chosen) if chosen.is_empty() => {}
            Ok(chosen) => {
                // If the agent is killed before it has put them back, its next start does so.
                let marker = freezer.place_marker(dir, chosen.clone());
                if let Err(error) = &marker {
                    tracing::warn!(container = id, %error, "cannot leave a marker for the next start");
                }
                kept.push((dir, chosen, marker.ok()));
            }
            Err(error) if error.is_gone() => {}
            Err(error) => tracing::warn!(container = id, %error, "cannot read the limits that the runtime may change"),
        }
    }
    failpoint("runtime.asked");
    let result = runtime.update(id, fields).await;
    failpoint("runtime.updated");
    let is_late = result.as_ref().is_err_and(RuntimeError::is_late);
    for (dir, chosen, marker) in kept {
        restore(dir, &chosen, marker.filter(|_| !is_late));
    }
    result
}

/// The limits that an update may change, and those that the update before may have changed after its deadline.
fn limits_to_keep(freezer: &Freezer, dir: &Dir) -> Result<BTreeMap<String, String>, CgroupError> {
    let mut chosen = dir.custom_limits()?;
    if let Some((marker, left)) = freezer.limits_left(dir) {
        let left = dir.still_custom(left)?;
        if left.is_empty() {
            marker.remove();
        }
        chosen.extend(left);
    }
    Ok(chosen)
}

/// Puts back the limits that an update has changed after its deadline. The runtime has the wanted values now, so it changes no more.
fn restore_left(freezer: &Freezer, cgroup: &Cgroup) {
    for dir in cgroup.dirs().map(CgroupDir::memory_dir) {
        let Some((marker, left)) = freezer.limits_left(dir) else {
            continue;
        };
        match dir.still_custom(left) {
            Ok(left) => restore(dir, &left, Some(marker)),
            Err(error) => tracing::debug!(%error, "limits that the runtime may have changed are not put back"),
        }
    }
}

/// Puts limits back, and removes their marker.
fn restore(dir: &Dir, limits: &BTreeMap<String, String>, marker: Option<Marker>) {
    match dir.restore_limits(limits) {
        Err(error) if !error.is_gone() => tracing::warn!(%error, "cannot restore a limit that the runtime changed"),
        Ok(_) | Err(_) => {
            if let Some(marker) = marker {
                marker.remove();
            }
        }
    }
}

/// Ends a pass whose `update` of a container, or whose question before it, has failed. An update that takes too long, and what is
/// refused or makes no sense, says something of its container alone.
fn give_up(node: &Node, error: &RuntimeError, update: bool) -> Outcome {
    if error.is_not_found() {
        return Outcome::Interrupted("a container ended meanwhile".to_owned());
    }
    let reason = error.to_string();
    if update && !error.is_retryable() {
        return Outcome::RolledBack(reason);
    }
    if (error.is_late() && !update) || error.is_unreachable() {
        node.concurrency.runtime_is_away(reason.clone());
    }
    Outcome::RuntimeOwed(reason)
}

/// The steps for the stored specs that differ from the wanted ones.
async fn spec_steps(
    runtime: &dyn ContainerRuntime,
    pass: &Pass,
    observed: &Observed,
) -> Result<Vec<Step>, RuntimeError> {
    let mut steps = Vec::new();
    for (name, answer) in fetch_containers(runtime, pass.live(), observed.wanted.specs.keys()).await {
        let target = Target::Container(name.clone());
        let cgroup = pass.handles.get(&target);
        // A runtime writes the weight with every update, and takes the kernel's refusal for its own.
        if cgroup.is_some_and(|open| open.is_idle() == Ok(true)) {
            tracing::debug!(container = %name, "the cgroup is idle (cpu.idle), so no stored spec is updated");
            continue;
        }
        let stored = match answer {
            Ok(stored) => stored,
            // Only a manifest names this container: the runtime never writes a container that it does not know.
            // Its cgroup exists: a runtime forgets a container of its own only later.
            Err(error) if error.is_not_found() && cgroup.is_some_and(|open| open.outer().check().is_ok()) => {
                tracing::debug!(container = %name, %error, "the runtime does not know the container, so no stored spec is updated");
                continue;
            }
            Err(error) => return Err(error),
        };
        // A runtime that does not show its stored specs gets all fields once for each change.
        let written = |step: &StepRecord| step.target == target && step.change.writes_cgroups();
        let touched = || pass.done.record.steps.iter().any(written);
        let stored = stored.or_else(|| touched().then(CriResources::default));
        let specs = stored.zip(observed.wanted.specs.get(name));
        steps.extend(specs.and_then(|(stored, wanted)| spec_step(name, &stored, wanted, pass.node.traits.page)));
    }
    Ok(steps)
}

/// Puts back the stored specs that the pass updated, as the recorded steps say. Leaves memory out where the files could not be
/// put back, and where it would come below a least limit: the guard may have written the file before the pass, which then wrote none.
pub(super) async fn undo(pass: &mut Pass) {
    let node = Arc::clone(&pass.node);
    let RuntimeLink::Found(runtime) = &node.runtime else {
        return;
    };
    let (namespace, class) = pass.user();
    let _slot = node.concurrency.runtime.wait(&namespace, class).await;
    // The files are put back by now, or the outcome says that one could not be.
    let with_memory = !matches!(pass.done.record.outcome, Outcome::Incomplete(_));
    let told = |record: &StepRecord| match record.change {
        Change::Spec { from, to } if record.error.is_none() => Some((record.target.clone(), from, to)),
        _ => None,
    };
    let told: Vec<_> = pass.done.record.steps.iter().filter_map(told).collect();
    let least_limits = node.least_limits.of(pass.uid());
    for (target, from, to) in told.into_iter().rev() {
        let least = target.container().and_then(|name| least_limits.get(name));
        let is_lower =
            |limit: i64| least.is_some_and(|least| u64::try_from(limit).is_ok_and(|limit| limit < least.get()));
        // A field that was not specified before, or not shown, gets what the file holds, because CRI cannot unset it.
        let held = pass
            .handles
            .get(&target)
            .map_or(Ok(Settings::default()), Cgroup::read_all);
        let held = held.unwrap_or_else(|error| {
            tracing::debug!(cgroup = %target, %error, "what the container holds cannot be told to the runtime");
            Settings::default()
        });
        let held = CriResources::new(None, held.cpu_max(), held.memory_limit());
        let memory = from.memory_limit_in_bytes.or(held.memory_limit_in_bytes);
        let memory = memory.filter(|limit| with_memory && !is_lower(*limit));
        let back = CriResources {
            cpu_shares: to.cpu_shares.and(from.cpu_shares),
            cpu_quota: to.cpu_quota.and(from.cpu_quota.or(held.cpu_quota)),
            cpu_period: to.cpu_period.and(from.cpu_period.or(held.cpu_period)),
            memory_limit_in_bytes: to.memory_limit_in_bytes.and(memory),
        };
        if back == CriResources::default() {
            continue;
        }
        let change = Change::Spec { from: to, to: back };
        if let Err(error) = update_spec(runtime.as_ref(), pass, &Step { target, change }, true).await {
            pass.done.record.outcome.not_undone(&error.to_string());
        }
    }
}

/// Reads the files again, because the runtime has written them too.
///
/// Errors: how the pass ends where a file does not hold its value.
fn verify(pass: &mut Pass, observed: &Observed) -> Result<(), Outcome> {
    let tree = pass.handles.read().map_err(|error| match error.into() {
        Outcome::Refused(reason) => Outcome::Incomplete(reason),
        ended => ended,
    })?;
    pass.done.formula = detected_formula(pass, observed, &tree);
    let incomplete = |reason| Err(Outcome::Incomplete(reason));
    match Plan::after_update(&tree, &observed.wanted, &pass.node.traits) {
        Ok(plan) if plan.steps.is_empty() => Ok(()),
        // The runtime decides the formula of weights; the next pass uses the formula that the weights show.
        Ok(_) if pass.done.formula.is_some() => Ok(()),
        Ok(_) if !pass.is_current(observed) => Err(owed_to_guard()),
        Ok(plan) => {
            let differ: Vec<_> = plan.steps.iter().map(|step| step.target.to_string()).collect();
            let differ = differ.join(", ");
            incomplete(format!("after the runtime's update, {differ} differ; planning again"))
        }
        Err(error) => incomplete(error.to_string()),
    }
}

/// The formula that explains the weights the runtime has just written, if it is not the assumed one.
fn detected_formula(pass: &Pass, observed: &Observed, tree: &PodTree) -> Option<WeightFormula> {
    if pass.node.traits.version == CgroupVersion::V1 {
        return None;
    }
    let pairs = observed.wanted.specs.iter().filter_map(|(name, spec)| {
        let shares = CpuShares::new(u64::try_from(spec.cpu_shares?).ok()?);
        match tree.containers.get(name)?.get(ControlFile::CpuWeight)? {
            Setting::CpuWeight(weight) => Some((shares, weight)),
            _ => None,
        }
    });
    weight::detect(pairs).filter(|formula| *formula != pass.node.traits.container_weight)
}

#[cfg(test)]
mod sync_tests;
#[cfg(test)]
mod tests;
