//! Grows one memory limit at once.
//!
//! In come a pod's open cgroups, the targets of its containers, one container and its new limit; out come the written steps.
//! The pod's cgroup gets the limit that the next pass wants as well, by the rules of the [hierarchy]. The same plan and the
//! same executor as in any pass write the files only, the pod's first; the next pass updates systemd and the runtime. Blocks
//! for some file reads and writes, never for another process.
//!
//! [hierarchy]: crate::plan::hierarchy()

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::execute::Executor;
use super::handles::PodHandles;
use super::node::Node;
use super::pass::plan_files;
use crate::cgroup::{Cgroup, CgroupError};
use crate::failpoint::failpoint;
use crate::model::objects::Pod;
use crate::model::{
    Bytes, CgroupVersion, Driver, LivePod, MemoryLimit, NamedRequirements, NodeTraits, Outcome, PodTree, PodValues,
    Setting, Settings, StepRecord, Target,
};
use crate::plan::hierarchy;

/// The result of a growth.
#[derive(Debug)]
pub struct Grown {
    /// The limit before; `None` if there was none, or the container is gone.
    pub from: Option<Bytes>,
    pub outcome: Outcome,
    /// The written steps, in order.
    pub steps: Vec<StepRecord>,
    /// From the first read to the last value read back.
    pub took: Duration,
}

/// A pod whose limits may grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growable {
    pub pod: Arc<Pod>,
    /// The targets of every regular container.
    pub targets: Vec<NamedRequirements>,
}

/// A pod's memory limit that does not rise with the limit of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodBound {
    pub limit: Bytes,
    /// The part of the limit that the pod's other containers do not use now.
    pub left: Bytes,
}

impl Growable {
    /// The pod's declared memory limit, if `container` has the limit `limit` and the others keep the limits that they hold.
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

    /// The pod's limit that bounds the growth of a container's limit up to `ceiling`; `None` where the pod's limit grows with it,
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
            // The pod declares no limit, so no pass changes this one.
            (None, Some(standing)) => standing,
            (None, None) => return Ok(None),
        };
        let held = |cgroup: &Cgroup| cgroup.outer().memory_reading().map(|reading| reading.held());
        let by_others = held(pod)?.saturating_sub(held(own)?);
        let left = limit.saturating_sub(by_others);
        Ok(Some(PodBound { limit, left }))
    }
}

/// Grows a container's memory limit, and its pod's where that follows it. Leaves limits that are higher, or absent, alone.
#[must_use]
pub fn grow_memory(node: &Node, handles: &PodHandles, growable: &Growable, container: &str, to: Bytes) -> Grown {
    Grown::by(|grown| {
        let held = handles.read()?;
        let mut wanted = PodTree::default();
        grown.from = held.containers.get(container).and_then(Settings::memory_bytes);
        if grown.from.is_some_and(|from| from < to) {
            let version = node.traits.version;
            wanted.containers.insert(container.to_owned(), limit(version, to));
            let pod_limit = growable.pod_limit(node, &held, container, to);
            let higher = pod_limit.filter(|to| held.pod.memory_bytes().is_some_and(|from| from < *to));
            wanted.pod = higher.map(|to| limit(version, to)).unwrap_or_default();
        }
        grown.write(node, handles, held, wanted)
    })
}

/// Raises the memory limit of the pod's cgroup alone. Leaves a limit that is higher, or absent, alone.
#[must_use]
pub fn raise_pod_level(node: &Node, live: &LivePod, to: Bytes) -> Grown {
    Grown::by(|grown| {
        let (handles, held) = PodHandles::open_and_read(&node.hierarchy, live)?;
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

    /// Writes the wanted values, parents first, as a pass does, and undoes them where a step fails.
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

fn limit(version: CgroupVersion, bytes: Bytes) -> Settings {
    let limit = MemoryLimit::Bytes(bytes.get());
    Settings::from_iter([match version {
        CgroupVersion::V1 => Setting::MemoryLimit(limit),
        CgroupVersion::V2 => Setting::MemoryMax(limit),
    }])
}
