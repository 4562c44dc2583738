//! Grows one memory limit at once.
//!
//! In come a pod's open cgroups, what its containers should have, one of them and its new limit; out comes what was
//! written. The pod's cgroup gets the limit that the next pass wants as well, by the rules of the [hierarchy]. Only files
//! are written, pod first, by the same plan and the same executor as in any pass: what systemd and the runtime have on
//! record follows in the next pass. Blocks for some file reads and writes, never for another process.
//!
//! [hierarchy]: crate::plan::hierarchy()

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::execute::Executor;
use super::handles::PodHandles;
use super::node::Node;
use super::pass::{plan_files, unreadable};
use crate::cgroup::{Cgroup, CgroupError};
use crate::failpoint::failpoint;
use crate::model::objects::Pod;
use crate::model::{
    Bytes, CgroupVersion, Driver, LivePod, MemoryLimit, NamedRequirements, NodeTraits, Outcome, PodTree, PodValues,
    Setting, Settings, StepRecord, Target,
};
use crate::plan::hierarchy;

/// What became of a growth.
#[derive(Debug)]
pub struct Grown {
    /// The container's limit before; `None` if it had none or is gone.
    pub from: Option<Bytes>,
    pub outcome: Outcome,
    /// What was written, in order.
    pub steps: Vec<StepRecord>,
    /// From the first read to the last value read back.
    pub took: Duration,
}

/// A pod, and what its containers should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growable {
    /// As its source describes it.
    pub pod: Arc<Pod>,
    /// What every regular container should have.
    pub targets: Vec<NamedRequirements>,
}

/// A pod's memory limit that does not follow the limit of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodBound {
    pub limit: Bytes,
    /// What of it the pod's other containers do not use now.
    pub left: Bytes,
}

impl Growable {
    /// The pod's memory limit where a container has this one and the others have what they hold, if the pod's is declared.
    fn pod_limit(&self, node: &Node, held: &PodTree, container: &str, limit: Bytes) -> Option<Bytes> {
        let mut targets = self.targets.clone();
        for NamedRequirements { name, resources } in &mut targets {
            let standing = if name == container {
                Some(limit)
            } else {
                held.containers.get(name).and_then(Settings::memory_bytes)
            };
            resources.limits.memory = resources.limits.memory.and(standing).or(resources.limits.memory);
        }
        hierarchy(&self.pod, &targets, &node.traits).pod.memory_limit
    }

    /// How far the growth of a container's limit up to `ceiling` is of use: `None` where the pod's limit grows with it,
    /// or where there is none.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn bound(
        &self,
        node: &Node,
        handles: &PodHandles,
        container: &str,
        ceiling: Bytes,
    ) -> Result<Option<PodBound>, CgroupError> {
        let tree = handles.read()?;
        let cgroups = [Target::Pod, Target::Container(container.to_owned())].map(|target| handles.get(&target));
        let ([Some(pod), Some(own)], Some(from)) =
            (cgroups, tree.containers.get(container).and_then(Settings::memory_bytes))
        else {
            return Ok(None);
        };
        let [before, after] = [from, ceiling].map(|limit| self.pod_limit(node, &tree, container, limit));
        let limit = match (after, tree.pod.memory_bytes()) {
            (Some(_), _) if before != after => return Ok(None),
            (Some(declared), _) => declared,
            // No pass writes it, whoever has.
            (None, Some(standing)) => standing,
            (None, None) => return Ok(None),
        };
        let held = |cgroup: &Cgroup| cgroup.outer().memory_reading().map(|reading| reading.held());
        let by_others = held(pod)?.saturating_sub(held(own)?);
        let left = limit.saturating_sub(by_others);
        Ok(Some(PodBound { limit, left }))
    }
}

/// Grows a container's memory limit, and its pod's where that follows it. Limits that are higher, or not there, stay.
#[must_use]
pub fn grow_memory(node: &Node, handles: &PodHandles, growable: &Growable, container: &str, to: Bytes) -> Grown {
    Grown::by(|grown| {
        let held = handles.read().map_err(|error| unreadable(&error))?;
        let pod_limit = growable.pod_limit(node, &held, container, to);
        let (from, wanted) = wanted(&held, node.traits.version, container, to, pod_limit);
        grown.from = from;
        grown.write(node, handles, held, wanted)
    })
}

/// Raises the memory limit of the pod's cgroup alone. One that is higher, or not there, stays.
#[must_use]
pub fn raise_pod_level(node: &Node, live: &LivePod, to: Bytes) -> Grown {
    Grown::by(|grown| {
        let opened = PodHandles::open_and_read(&node.hierarchy, live);
        let (handles, held) = opened.map_err(|error| unreadable(&error))?;
        let mut wanted = PodTree::default();
        grown.from = held.pod.memory_bytes();
        if grown.from.is_some_and(|from| from < to) {
            wanted.pod = limit(node.traits.version, to);
        }
        grown.write(node, &handles, held, wanted)
    })
}

impl Grown {
    fn by(grow: impl FnOnce(&mut Self) -> Result<(), Outcome>) -> Self {
        let start = Instant::now();
        let mut grown = Self {
            from: None,
            outcome: Outcome::Unchanged,
            steps: Vec::new(),
            took: Duration::ZERO,
        };
        match grow(&mut grown) {
            Ok(()) if grown.steps.is_empty() => {}
            Ok(()) => grown.outcome = Outcome::Applied,
            Err(outcome) => grown.outcome = outcome,
        }
        grown.took = start.elapsed();
        grown
    }

    /// Writes the wanted values, parents first, as a pass does.
    fn write(&mut self, node: &Node, handles: &PodHandles, held: PodTree, wanted: PodTree) -> Result<(), Outcome> {
        let wanted = PodValues {
            tree: wanted,
            ..PodValues::default()
        };
        let traits = NodeTraits {
            driver: Driver::Cgroupfs,
            ..node.traits
        };
        let plan = plan_files(held, &wanted, &traits)?;
        let mut executor = Executor::new(node, handles);
        let mut ended = executor.run(&plan);
        if let Err(outcome @ Outcome::RolledBack { .. }) = &mut ended
            && let Err(failed) = executor.undo()
        {
            outcome.not_undone(&failed);
        }
        self.steps = executor.records;
        failpoint("growth.written");
        ended
    }
}

/// The memory limits that should be there: nothing where nothing has to grow.
fn wanted(
    observed: &PodTree,
    version: CgroupVersion,
    container: &str,
    to: Bytes,
    pod_limit: Option<Bytes>,
) -> (Option<Bytes>, PodTree) {
    let mut wanted = PodTree::default();
    let Some(from) = observed.containers.get(container).and_then(Settings::memory_bytes) else {
        return (None, wanted);
    };
    if to > from {
        wanted.containers.insert(container.to_owned(), limit(version, to));
        if let Some(higher) =
            pod_limit.filter(|limit| observed.pod.memory_bytes().is_some_and(|standing| standing < *limit))
        {
            wanted.pod = limit(version, higher);
        }
    }
    (Some(from), wanted)
}

fn limit(version: CgroupVersion, bytes: Bytes) -> Settings {
    let limit = MemoryLimit::Bytes(bytes.get());
    Settings::from_iter([match version {
        CgroupVersion::V1 => Setting::MemoryLimit(limit),
        CgroupVersion::V2 => Setting::MemoryMax(limit),
    }])
}
