//! Grows one memory limit at once.
//!
//! In come a pod's open cgroups, the targets of its containers, one container and its new limit; out come the written steps.
//! The pod's cgroup gets the limit that the next pass wants as well, by the rules of the [hierarchy]. The same plan and the
//! same executor as in any pass write the files only, the pod's first; the next pass updates systemd and the runtime. Blocks
//! for some file reads and writes; [`raise_pod_level`] alone updates systemd itself, and waits for it.
//!
//! [hierarchy]: crate::plan::hierarchy()

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::execute::{Executor, raise_unit};
use super::handles::PodHandles;
use super::node::Node;
use crate::cgroup::{Cgroup, CgroupError};
use crate::failpoint::failpoint;
use crate::model::objects::{Pod, PodId};
use crate::model::{
    Bytes, Cause, CgroupVersion, ChangeRecord, Driver, LivePod, MemoryLimit, NamedRequirements, NodeTraits, Outcome,
    PodAmounts, PodTree, Setting, Settings, StepRecord, Target,
};
use crate::plan::{Plan, hierarchy};

/// The result of a growth.
#[derive(Debug, Default)]
pub struct Grown {
    /// The limit before; `None` if there was none, or the container is gone.
    pub from: Option<Bytes>,
    pub outcome: Outcome,
    /// The written steps, in order.
    pub steps: Vec<StepRecord>,
    /// From the first read to the last value read back.
    pub took: Duration,
    /// systemd refused the property of the pod's unit, or could not be reached: discovery must run again.
    pub systemd_failed: bool,
}

impl Grown {
    /// The record of a growth with this cause.
    pub fn record(self, pod: PodId, cause: Cause) -> ChangeRecord {
        let mut record = ChangeRecord::new(pod, cause, self.outcome);
        record.steps = self.steps;
        (record.stages.write, record.stages.verified) = (self.took, self.took);
        record
    }
}

/// A pod whose limits may grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growable {
    pub pod: Arc<Pod>,
    pub targets: PodAmounts,
}

/// A pod's memory limit that does not rise with the limit of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodBound {
    pub limit: Bytes,
    /// The part of the limit that the pod's other containers do not use now.
    pub left: Bytes,
}

impl Growable {
    /// The pod's declared memory limit, if this container has this limit and the others keep the limits that they hold.
    fn pod_limit(&self, node: &Node, held: &PodTree, (container, limit): (&str, Bytes)) -> Option<Bytes> {
        let mut targets = self.targets.clone();
        for NamedRequirements { name, resources } in &mut targets.containers {
            let own = (name.as_str() == container).then_some(limit);
            let standing = own.or_else(|| held.containers.get(name.as_str())?.memory_bytes());
            resources.limits.memory = resources.limits.memory.and(standing).or(resources.limits.memory);
        }
        hierarchy(&self.pod, &targets, &node.traits).pod.memory_limit
    }

    /// This limit of a container, and the pod's limit where that has to rise for it.
    fn raised(&self, node: &Node, held: &PodTree, (container, to): (&str, Bytes)) -> PodTree {
        let limit = |to| limit(node.traits.version, to);
        let of_pod = self.pod_limit(node, held, (container, to));
        let higher = of_pod.filter(|to| held.pod.memory_bytes().is_some_and(|from| from < *to));
        PodTree {
            pod: higher.map(limit).unwrap_or_default(),
            containers: [(container.into(), limit(to))].into(),
        }
    }

    /// The pod's limit that bounds the growth of a container's limit up to `ceiling`; `None` where the pod's limit grows with it,
    /// or where there is none. Beside it, by how much the container's limit must grow before its pod's limit does: an init container may
    /// need more than all others together. `None` where the pod's limit would not grow up to `ceiling` either.
    ///
    /// Errors: [`CgroupError`] of the first file that cannot be read.
    pub fn bound(
        &self,
        node: &Node,
        handles: &PodHandles,
        container: &str,
        ceiling: Bytes,
    ) -> Result<(Option<PodBound>, Option<Bytes>), CgroupError> {
        let tree = handles.read()?;
        let cgroups = [Target::Pod, Target::Container(container.into())].map(|target| handles.get(&target));
        let ([Some(pod), Some(own)], Some(from)) =
            (cgroups, tree.containers.get(container).and_then(Settings::memory_bytes))
        else {
            return Ok((None, None));
        };
        let [before, after] = [from, ceiling].map(|limit| self.pod_limit(node, &tree, (container, limit)));
        let standing = tree.pod.memory_bytes();
        // Down from the ceiling, both limits fall alike.
        let of_both = after.zip(standing).map(|(after, of_pod)| after.saturating_sub(of_pod));
        let of_both = of_both.filter(|of_both| !of_both.is_zero());
        let growth = of_both.map(|of_both| ceiling.saturating_sub(from).saturating_sub(of_both));
        // No pass changes the limit of a pod that declares none.
        let limit = after.or(standing).filter(|_| after.is_none() || before == after);
        let Some(limit) = limit else { return Ok((None, growth)) };
        let held = |cgroup: &Cgroup| cgroup.outer().memory_reading().map(|reading| reading.held());
        let by_others = held(pod)?.saturating_sub(held(own)?);
        let left = limit.saturating_sub(by_others);
        Ok((Some(PodBound { limit, left }), growth))
    }
}

/// Grows a container's memory limit, and its pod's where that follows it. Leaves limits that are higher, or absent, alone.
pub fn grow_memory(node: &Node, handles: &PodHandles, growable: &Growable, container: &str, to: Bytes) -> Grown {
    Grown::by(|grown| grown.raise(node, handles, Some((growable, container)), to))
}

/// Raises the memory limit of the pod's cgroup alone, and then of its unit. Leaves a limit that is higher, or absent, alone.
///
/// Waits for systemd.
pub fn raise_pod_level(node: &Node, live: &LivePod, to: Bytes) -> Grown {
    Grown::by(|grown| {
        let handles = PodHandles::open(&node.hierarchy, live)?;
        grown.raise(node, &handles, None, to)?;
        grown.systemd_failed = raise_unit(node, &handles, &live.id);
        Ok(())
    })
}

impl Grown {
    fn by(grow: impl FnOnce(&mut Self) -> Result<(), Outcome>) -> Self {
        let start = Instant::now();
        let mut grown = Self::default();
        match grow(&mut grown) {
            Ok(()) if grown.steps.is_empty() => {}
            Ok(()) => grown.outcome = Outcome::Applied,
            Err(outcome) => grown.outcome = outcome,
        }
        grown.took = start.elapsed();
        grown
    }

    /// Writes the higher limits, parents first, as a pass does, and undoes them where a step fails.
    fn raise(
        &mut self,
        node: &Node,
        handles: &PodHandles,
        growing: Option<(&Growable, &str)>,
        to: Bytes,
    ) -> Result<(), Outcome> {
        let held = handles.read()?;
        let own = held.get(&Target::from(growing.map(|(_, container)| container)));
        self.from = own.and_then(Settings::memory_bytes);
        let wanted = match growing {
            _ if self.from.is_none_or(|from| from >= to) => PodTree::default(),
            Some((growable, container)) => growable.raised(node, &held, (container, to)),
            None => PodTree {
                pod: limit(node.traits.version, to),
                ..PodTree::default()
            },
        };
        let traits = NodeTraits {
            driver: Driver::Cgroupfs,
            ..node.traits
        };
        let plan = Plan::of_files(&held, &wanted, &traits)?;
        let mut executor = Executor::new(node, handles);
        let mut ended = executor.run(&plan);
        if let Err(outcome @ Outcome::RolledBack(_)) = &mut ended
            && let Err(failed) = executor.undo()
        {
            outcome.not_undone(&failed);
        }
        self.steps.extend(executor.records);
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    const MIB: u64 = 1 << 20;

    const fn mib(mebibytes: u64) -> Bytes {
        Bytes::new(mebibytes * MIB)
    }

    /// A pod whose containers `app` and `side` have limits of 64 MiB and hold 60 and 40, with more fields in its spec. As plain files,
    /// of which the pod's has this limit.
    fn scene(root: &Path, more: &Value, of_pod: u64) -> (Node, LivePod, Growable) {
        for (directory, limit, used) in [("pod", of_pod, 100), ("pod/app", 64, 60), ("pod/side", 64, 40)] {
            let directory = root.join(directory);
            fs::create_dir_all(&directory).unwrap();
            for (name, mebibytes) in [("memory.max", limit), ("memory.current", used)] {
                fs::write(directory.join(name), format!("{}\n", mebibytes * MIB)).unwrap();
            }
        }
        let container = |name: &str| json!({"name": name, "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}});
        let mut spec = json!({"containers": [container("app"), container("side")]});
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web", "uid": "u"}, "spec": spec})).unwrap();
        let live = LivePod::on_files(["app", "side"]);
        let growable = Growable {
            targets: pod.requirements(),
            pod: Arc::new(pod),
        };
        (Node::on_files(root), live, growable)
    }

    /// Each written limit in MiB, in order: where, before and after.
    fn written(grown: &Grown) -> Vec<(String, u64, u64)> {
        let steps = grown.steps.iter().map(|step| {
            let (_, from, to) = step.change.memory_limit().unwrap();
            let [from, to] = [from, to].map(|limit| limit.bounded().unwrap().get() / MIB);
            (step.target.to_string(), from, to)
        });
        steps.collect()
    }

    #[test]
    fn a_pod_grows_before_and_with_its_container() {
        let root = tempfile::tempdir().unwrap();
        let (node, live, growable) = scene(root.path(), &json!({}), 128);
        let handles = PodHandles::open(&node.hierarchy, &live).unwrap();
        let grown = grow_memory(&node, &handles, &growable, "app", mib(96));
        assert_eq!((grown.from, &grown.outcome), (Some(mib(64)), &Outcome::Applied));
        let [of_pod, app] = ["pod", "container app"].map(str::to_owned);
        assert_eq!(written(&grown), [(of_pod, 128, 160), (app, 64, 96)]);
        let lower = grow_memory(&node, &handles, &growable, "app", mib(80));
        assert_eq!((written(&lower), lower.outcome), (Vec::new(), Outcome::Unchanged));
        let held = handles.read().unwrap();
        let limits = [&held.pod, &held.containers["app"], &held.containers["side"]].map(Settings::memory_bytes);
        assert_eq!(limits, [160, 96, 64].map(|mebibytes| Some(mib(mebibytes))));
    }

    #[test]
    fn a_low_pod_is_raised_alone() {
        let root = tempfile::tempdir().unwrap();
        let (node, live, _) = scene(root.path(), &json!({}), 100);
        let raised = raise_pod_level(&node, &live, mib(128));
        assert_eq!((&raised.outcome, raised.systemd_failed), (&Outcome::Applied, false));
        assert_eq!(written(&raised), [("pod".to_owned(), 100, 128)]);
        assert_eq!(raise_pod_level(&node, &live, mib(120)).outcome, Outcome::Unchanged);
    }

    #[test]
    fn only_a_pods_own_limit_bounds_growth() {
        let bound = |more: &Value| {
            let root = tempfile::tempdir().unwrap();
            let (node, live, growable) = scene(root.path(), more, 128);
            let handles = PodHandles::open(&node.hierarchy, &live).unwrap();
            growable.bound(&node, &handles, "app", mib(256)).unwrap().0
        };
        assert_eq!(bound(&json!({})), None, "it grows with the container");
        let own = json!({"resources": {"limits": {"cpu": "2", "memory": "128Mi"}}});
        let limit = mib(128);
        // The other container holds 40 MiB.
        assert_eq!(bound(&own), Some(PodBound { limit, left: mib(88) }));
        // No pass changes the limit that the pod has all the same.
        assert_eq!(bound(&undeclared()), Some(PodBound { limit, left: mib(88) }));
    }

    /// The containers of a pod that declares no limit, because one of them has none.
    fn undeclared() -> Value {
        let limited = json!({"name": "app", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}});
        json!({"containers": [limited, {"name": "side"}]})
    }

    #[test]
    fn an_unbounded_pod_bounds_no_growth() {
        let root = tempfile::tempdir().unwrap();
        let (node, live, growable) = scene(root.path(), &undeclared(), 128);
        fs::write(root.path().join("pod/memory.max"), "max\n").unwrap();
        let handles = PodHandles::open(&node.hierarchy, &live).unwrap();
        assert_eq!(growable.bound(&node, &handles, "app", mib(256)), Ok((None, None)));
        let grown = grow_memory(&node, &handles, &growable, "gone", mib(96));
        assert_eq!((grown.from, grown.outcome), (None, Outcome::Unchanged));
    }

    #[test]
    fn other_containers_count_with_what_they_hold() {
        let root = tempfile::tempdir().unwrap();
        let (node, live, growable) = scene(root.path(), &json!({}), 128);
        fs::write(root.path().join("pod/side/memory.max"), format!("{}\n", 80 * MIB)).unwrap();
        let handles = PodHandles::open(&node.hierarchy, &live).unwrap();
        let grown = grow_memory(&node, &handles, &growable, "app", mib(96));
        assert_eq!(grown.outcome, Outcome::Applied);
        let [of_pod, app] = ["pod", "container app"].map(str::to_owned);
        assert_eq!(written(&grown), [(of_pod, 128, 176), (app, 64, 96)]);
    }

    #[test]
    fn each_limit_grows_by_itself() {
        let root = tempfile::tempdir().unwrap();
        let (node, live, growable) = scene(root.path(), &json!({}), 128);
        let handles = PodHandles::open(&node.hierarchy, &live).unwrap();
        let grow = |(name, limit)| grow_memory(&node, &handles, &growable, name, mib(limit));
        let grown = [("app", 96), ("side", 72)].map(grow);
        assert!(grown.iter().all(|grown| grown.outcome == Outcome::Applied), "{grown:?}");
        let [of_pod, app, side] = ["pod", "container app", "container side"].map(str::to_owned);
        // A failure of the second one undoes its own steps alone.
        let expected = [
            (of_pod.clone(), 128, 160),
            (app, 64, 96),
            (of_pod, 160, 168),
            (side, 64, 72),
        ];
        assert_eq!(grown.iter().flat_map(written).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_init_containers_limit_is_used_up_first() {
        let root = tempfile::tempdir().unwrap();
        let resources = json!({"limits": {"cpu": "1", "memory": "400Mi"}});
        let init = json!({"initContainers": [{"name": "setup", "resources": resources}]});
        let (node, live, growable) = scene(root.path(), &init, 400);
        let handles = PodHandles::open(&node.hierarchy, &live).unwrap();
        let growth = |ceiling| growable.bound(&node, &handles, "app", mib(ceiling)).unwrap().1;
        // With 336 and 64 MiB the containers need as much as the init container did.
        assert_eq!(growth(512), Some(mib(336 - 64)));
        assert_eq!(growth(336), None);
    }
}
