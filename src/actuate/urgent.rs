//! Grows one memory limit at once.
//!
//! In come a pod's open cgroups, a container and a limit; out comes what was written. Only files are written, pod first,
//! by the same plan and the same executor as in any pass: what systemd and the runtime have on record follows in the
//! next pass. Blocks for some file reads and writes, never for another process.

use std::time::{Duration, Instant};

use super::execute::{End, Executor};
use super::handles::PodHandles;
use super::node::Node;
use super::record::{Outcome, StepRecord};
use crate::plan::{CgroupVersion, Driver, NodeTraits, Plan, PodState, PodTree};
use crate::resources::{Bytes, MemoryLimit, Setting, Settings};

/// What became of a growth.
#[derive(Debug)]
pub struct Grown {
    /// The container's limit before; `None` if it had none or is gone.
    pub from: Option<Bytes>,
    /// How it ended.
    pub outcome: Outcome,
    /// What was written, in order.
    pub steps: Vec<StepRecord>,
    /// From the first read to the last value read back.
    pub took: Duration,
}

/// Grows a container's memory limit, and its pod's by as much. Limits that are higher, or not there, stay.
#[must_use]
pub fn grow_memory(node: &Node, handles: &PodHandles, container: &str, to: Bytes) -> Grown {
    let start = Instant::now();
    let refused = |reason: String| Grown {
        from: None,
        outcome: Outcome::Refused { reason },
        steps: Vec::new(),
        took: start.elapsed(),
    };
    let observed = match handles.read() {
        Ok(tree) => tree,
        Err(error) if error.is_gone() => {
            return Grown {
                outcome: Outcome::Interrupted {
                    reason: error.to_string(),
                },
                ..refused(String::new())
            };
        }
        Err(error) => return refused(error.to_string()),
    };
    let (from, wanted) = wanted(&observed, node.traits.version, container, to);
    let tree = |tree| PodState {
        tree,
        ..PodState::default()
    };
    let traits = NodeTraits {
        driver: Driver::Cgroupfs,
        ..node.traits
    };
    let plan = match Plan::between(&tree(observed), &tree(wanted), &traits) {
        Ok(plan) => plan,
        Err(error) => return refused(error.to_string()),
    };
    let executed = Executor::new(node, handles).run(&plan);
    let outcome = match executed.end {
        End::Done if plan.is_empty() => Outcome::Unchanged,
        End::Done => Outcome::Applied,
        End::Refused(reason) => Outcome::Refused { reason },
        End::Interrupted(reason) => Outcome::Interrupted { reason },
        End::RolledBack(reason) => Outcome::RolledBack { reason },
        End::Incomplete(reason) => Outcome::Incomplete { reason },
    };
    Grown {
        from,
        outcome,
        steps: executed.records,
        took: start.elapsed(),
    }
}

/// The memory limits that should be there: nothing where nothing has to grow.
fn wanted(observed: &PodTree, version: CgroupVersion, container: &str, to: Bytes) -> (Option<Bytes>, PodTree) {
    let mut wanted = PodTree::default();
    let limit = |settings: &Settings| match settings.memory_limit() {
        Some(MemoryLimit::Bytes(bytes)) => Some(bytes),
        Some(MemoryLimit::Max) | None => None,
    };
    let Some(from) = observed.containers.get(container).and_then(limit) else {
        return (None, wanted);
    };
    if let Some(more) = to.get().checked_sub(from).filter(|more| *more > 0) {
        let setting = |bytes: u64| {
            let limit = MemoryLimit::Bytes(bytes);
            Settings::from_iter([match version {
                CgroupVersion::V1 => Setting::MemoryLimit(limit),
                CgroupVersion::V2 => Setting::MemoryMax(limit),
            }])
        };
        wanted.containers.insert(container.to_owned(), setting(to.get()));
        if let Some(pod) = limit(&observed.pod) {
            wanted.pod = setting(pod.saturating_add(more));
        }
    }
    (Some(Bytes::new(from)), wanted)
}
