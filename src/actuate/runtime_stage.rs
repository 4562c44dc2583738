//! The second part of a pass: the runtime's stored specs are made to agree with what the kernel holds.

use std::collections::BTreeMap;

use futures::future::join_all;

use super::node::{Node, RuntimeLink};
use super::pass::KernelPass;
use super::shrink::Markers;
use crate::cgroup::{Cgroup, CgroupError, State};
use crate::model::{
    CgroupVersion, Change, ControlFile, CpuShares, CriResources, LivePod, Outcome, PodValues, Setting, Step,
    StepRecord, Target, WeightFormula,
};
use crate::plan::Plan;
use crate::runtime::{ContainerRuntime, RuntimeContainer, RuntimeError, weight};

/// What telling the runtime came to.
pub(super) struct Told {
    pub(super) end: RuntimeEnd,
    /// Another formula than assumed, if the weights the runtime wrote show one.
    pub(super) formula: Option<WeightFormula>,
}

/// How telling the runtime ended.
pub(super) enum RuntimeEnd {
    /// Nothing to tell, or nobody.
    Nothing,
    /// Told, and the files still hold the values.
    Agrees,
    /// Not reachable; the kernel holds the values.
    Owed(String),
    Gone,
    RolledBack(String),
    /// Refused, and not everything undone; or the files changed while it was told.
    Incomplete(String),
}

impl RuntimeEnd {
    /// The outcome of the whole pass, given that of its first part.
    pub(super) fn into_outcome(self, kernel: Outcome, any_step: bool) -> Outcome {
        match self {
            Self::Nothing => kernel,
            Self::Agrees if any_step => Outcome::Applied,
            Self::Agrees => kernel,
            Self::Owed(reason) => Outcome::RuntimeOwed { reason },
            Self::Gone => Outcome::Interrupted {
                reason: "a container ended meanwhile".to_owned(),
            },
            Self::RolledBack(reason) => Outcome::RolledBack { reason },
            Self::Incomplete(reason) => Outcome::Incomplete { reason },
        }
    }
}

/// What the runtime has stored about the pod's containers, as far as it can be asked and says.
pub async fn stored_specs(node: &Node, live: &LivePod) -> BTreeMap<String, CriResources> {
    let mut specs = BTreeMap::new();
    let RuntimeLink::Found(runtime) = &node.runtime else {
        return specs;
    };
    for (name, answer) in fetch_containers(runtime.as_ref(), live, live.containers.keys()).await {
        match answer {
            Ok(answer) => {
                if let Some(resources) = answer.resources {
                    specs.insert(name.clone(), resources);
                }
            }
            Err(error) => tracing::debug!(pod = %live.id, container = %name, %error, "stored spec not known"),
        }
    }
    specs
}

/// Asks the runtime about the pod's containers of these names, about all of them at once: a pod waits for one answer,
/// and of a runtime that hangs for one deadline.
async fn fetch_containers<'a>(
    runtime: &dyn ContainerRuntime,
    live: &LivePod,
    names: impl Iterator<Item = &'a String>,
) -> Vec<(&'a String, Result<RuntimeContainer, RuntimeError>)> {
    let containers = names.filter_map(|name| Some((name, live.containers.get(name)?)));
    join_all(containers.map(async |(name, container)| (name, runtime.container(&container.id).await))).await
}

/// Tells the runtime what its stored specs should hold, where they differ.
pub(super) async fn sync(node: &Node, live: &LivePod, kernel: &mut KernelPass) -> Told {
    let nothing = Told {
        end: RuntimeEnd::Nothing,
        formula: None,
    };
    let runtime = match &node.runtime {
        RuntimeLink::None => return nothing,
        RuntimeLink::Away(why) => {
            return Told {
                end: RuntimeEnd::Owed(why.clone()),
                formula: None,
            };
        }
        RuntimeLink::Found(runtime) => runtime,
    };
    let _lane = node.concurrency.runtime().await;
    if let Some(why) = node.concurrency.runtime_away() {
        return Told {
            end: RuntimeEnd::Owed(why),
            formula: None,
        };
    }
    let steps = match spec_steps(node, runtime.as_ref(), live, kernel).await {
        Ok(steps) if steps.is_empty() => return nothing,
        Ok(steps) => steps,
        Err(error) => {
            return Told {
                end: give_up(node, &error),
                formula: None,
            };
        }
    };
    let mut done: Vec<Step> = Vec::new();
    for step in steps {
        if node.least_limits.of(&live.id.uid) != kernel.least_limits {
            // The runtime would write the limit that was there before.
            return Told {
                end: RuntimeEnd::Owed("a limit was grown in an emergency meanwhile; told by the next pass".to_owned()),
                formula: None,
            };
        }
        let (Target::Container(name), Change::Spec { to, .. }) = (&step.target, &step.change) else {
            continue;
        };
        let Some(container) = live.containers.get(name) else {
            continue;
        };
        let start = std::time::Instant::now();
        let cgroup = kernel.handles.get(&step.target);
        let result = update(runtime.as_ref(), node.freezer.markers(), cgroup, &container.id, to).await;
        kernel
            .steps
            .push(StepRecord::carried_out(&step, start.elapsed(), &result));
        match result {
            Ok(()) => done.push(step),
            Err(error) if error.is_not_found() || error.is_retryable() => {
                return Told {
                    end: give_up(node, &error),
                    formula: None,
                };
            }
            Err(error) => {
                let end = undo(node, runtime.as_ref(), live, kernel, &done, &error).await;
                return Told { end, formula: None };
            }
        }
    }
    verify(node, kernel)
}

/// Changes a container's stored spec. A runtime may change limits besides that it was not told of: CRI-O gives no swap
/// whenever memory changes, and containerd writes a `memory.high` that it has stored. They are put back.
async fn update(
    runtime: &dyn ContainerRuntime,
    markers: &Markers,
    cgroup: Option<&Cgroup>,
    id: &str,
    fields: &CriResources,
) -> Result<(), RuntimeError> {
    let mut kept = Vec::new();
    for dir in cgroup.into_iter().flat_map(Cgroup::dirs) {
        let limits = dir.uncarried_limits().and_then(|limits| {
            let chosen = limits.chosen()?;
            Ok((limits, chosen))
        });
        match limits {
            Ok((_, chosen)) if chosen.is_empty() => {}
            Ok((limits, chosen)) => {
                // Should the agent be killed before it has put them back, its next start does.
                let marker = markers.place_limits(&limits, &chosen);
                if let Err(error) = &marker {
                    tracing::warn!(container = id, %error, "cannot leave a marker for the next start");
                }
                kept.push((limits, chosen, marker.ok()));
            }
            Err(error) if error.is_gone() => {}
            Err(error) => tracing::warn!(container = id, %error, "limits that the runtime may change are not known"),
        }
    }
    let result = runtime.update(id, fields).await;
    for (limits, chosen, marker) in kept {
        match limits.put_back(&chosen) {
            Err(error) if !error.is_gone() => {
                tracing::warn!(container = id, %error, "a limit is what the runtime made of it");
            }
            Ok(_) | Err(_) => {
                if let Some(marker) = marker {
                    marker.remove();
                }
            }
        }
    }
    result
}

fn give_up(node: &Node, error: &RuntimeError) -> RuntimeEnd {
    if error.is_not_found() {
        return RuntimeEnd::Gone;
    }
    node.concurrency.runtime_is_away(error.to_string());
    RuntimeEnd::Owed(error.to_string())
}

/// Which stored specs differ from what they should hold.
async fn spec_steps(
    node: &Node,
    runtime: &dyn ContainerRuntime,
    live: &LivePod,
    kernel: &KernelPass,
) -> Result<Vec<Step>, RuntimeError> {
    let mut specs = BTreeMap::new();
    for (name, answer) in fetch_containers(runtime, live, kernel.wanted.specs.keys()).await {
        let stored = match answer {
            Ok(container) => container.resources,
            // Only a manifest names it: the runtime never writes what it does not know.
            Err(error) if error.is_not_found() && lives(kernel, name) => {
                tracing::debug!(container = %name, %error, "nothing to tell the runtime of it");
                continue;
            }
            Err(error) => return Err(error),
        };
        // A runtime that does not say what it has stored is told everything once for each change.
        let touched = || {
            kernel
                .steps
                .iter()
                .any(|step| step.target == Target::Container(name.clone()))
        };
        if let Some(stored) = stored.or_else(|| touched().then(CriResources::default)) {
            specs.insert(name.clone(), stored);
        }
    }
    let observed = PodValues {
        specs,
        ..PodValues::default()
    };
    let wanted = PodValues {
        specs: kernel.wanted.specs.clone(),
        ..PodValues::default()
    };
    // Only quotas of files can make planning fail, and there are none here.
    Ok(Plan::between(&observed, &wanted, &node.traits)
        .map(|plan| plan.steps().to_vec())
        .unwrap_or_default())
}

/// Whether a container's cgroup is there still: a runtime forgets a container of its own after that.
fn lives(kernel: &KernelPass, name: &str) -> bool {
    let cgroup = kernel.handles.get(&Target::Container(name.to_owned()));
    cgroup.is_some_and(|cgroup| matches!(cgroup.state(), Ok(State::Alive)))
}

/// Puts back files and then stored specs, because the runtime refused one of its steps. The files first: the runtime
/// writes a lower limit without a look at what is in use, and one that the files could not be given back would kill.
async fn undo(
    node: &Node,
    runtime: &dyn ContainerRuntime,
    live: &LivePod,
    kernel: &mut KernelPass,
    done: &[Step],
    refusal: &RuntimeError,
) -> RuntimeEnd {
    let files = kernel.undo(node);
    let mut failures = Vec::new();
    for step in done.iter().rev() {
        let (Target::Container(name), Change::Spec { from, to }) = (&step.target, &step.change) else {
            continue;
        };
        let Some(container) = live.containers.get(name) else {
            continue;
        };
        let mut back = unbounded(*from, *to);
        if files.is_err() {
            back.memory_limit_in_bytes = None;
        }
        if back == CriResources::default() {
            continue;
        }
        let reversed = Step {
            target: step.target.clone(),
            change: Change::Spec { from: *to, to: back },
        };
        let start = std::time::Instant::now();
        let cgroup = kernel.handles.get(&step.target);
        let result = update(runtime, node.freezer.markers(), cgroup, &container.id, &back).await;
        kernel.steps.push(StepRecord {
            rollback: true,
            ..StepRecord::carried_out(&reversed, start.elapsed(), &result)
        });
        failures.extend(result.err().map(|error| error.to_string()));
    }
    failures.extend(files.err());
    if failures.is_empty() {
        RuntimeEnd::RolledBack(refusal.to_string())
    } else {
        RuntimeEnd::Incomplete(format!(
            "{refusal}; and it could not be undone: {}",
            failures.join("; ")
        ))
    }
}

/// `from` for the fields that `to` set; what was not specified before becomes unbounded, since CRI cannot unset.
fn unbounded(from: CriResources, to: CriResources) -> CriResources {
    CriResources {
        cpu_shares: to.cpu_shares.and(from.cpu_shares),
        cpu_quota: to.cpu_quota.map(|_| from.cpu_quota.unwrap_or(-1)),
        cpu_period: to.cpu_period.map(|period| from.cpu_period.unwrap_or(period)),
        memory_limit_in_bytes: to
            .memory_limit_in_bytes
            .map(|_| from.memory_limit_in_bytes.unwrap_or(-1)),
    }
}

/// Reads the files again: the runtime wrote them too.
fn verify(node: &Node, kernel: &KernelPass) -> Told {
    let read = kernel.handles.read();
    let tree = match read {
        Ok(tree) => tree,
        Err(error) => {
            return Told {
                end: unreadable(&error),
                formula: None,
            };
        }
    };
    let formula = weights_show(node, kernel, &tree);
    let observed = PodValues {
        tree,
        ..PodValues::default()
    };
    let wanted = PodValues {
        tree: kernel.wanted.tree.clone(),
        ..PodValues::default()
    };
    let end = match Plan::between(&observed, &wanted, &node.traits) {
        Ok(plan) if plan.is_empty() => RuntimeEnd::Agrees,
        // The runtime's weights are right by definition; with its formula known the next pass wants the same.
        Ok(_) if formula.is_some() => RuntimeEnd::Agrees,
        Ok(plan) => RuntimeEnd::Incomplete(format!(
            "after the runtime was told, {} differ; planning again",
            plan.steps()
                .iter()
                .map(|step| step.target.to_string())
                .collect::<Vec<_>>()
                .join(", ")
        )),
        Err(error) => RuntimeEnd::Incomplete(error.to_string()),
    };
    Told { end, formula }
}

fn unreadable(error: &CgroupError) -> RuntimeEnd {
    if error.is_gone() {
        RuntimeEnd::Gone
    } else {
        RuntimeEnd::Incomplete(error.to_string())
    }
}

/// The formula that explains the weights the runtime just wrote, if it is not the one assumed.
fn weights_show(node: &Node, kernel: &KernelPass, tree: &crate::model::PodTree) -> Option<WeightFormula> {
    if node.traits.version == CgroupVersion::V1 {
        return None;
    }
    let pairs = kernel.wanted.specs.iter().filter_map(|(name, spec)| {
        let shares = CpuShares::new(u64::try_from(spec.cpu_shares?).ok()?);
        match tree.containers.get(name)?.get(ControlFile::CpuWeight)? {
            Setting::CpuWeight(weight) => Some((shares, weight)),
            _ => None,
        }
    });
    weight::detect(pairs).filter(|formula| *formula != node.traits.container_weight)
}

#[cfg(test)]
mod tests;
