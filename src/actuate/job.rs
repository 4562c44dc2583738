//! The input and the result of a pass.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::foreign::ForeignWriters;
use super::handles::PodHandles;
use super::node::Node;
use super::pass::Pass;
use super::patch::{PodResizer, Saved};
use super::runtime_stage;
use super::shrink::{Lowering, SeenBefore, ShrinkReport};
use crate::cgroup::Identity;
use crate::model::{Cause, ChangeRecord, ContainerName, ControlFile, Outcome, StepRecord, Target, WeightFormula};
use crate::plan::{PodTargets, Quotas};
use crate::resize::{Act, Report};

/// The input of one pass.
#[derive(Debug)]
pub struct Job {
    pub targets: PodTargets,
    /// The cgroups that an earlier pass found.
    pub cgroups: Option<Vec<Identity>>,
    /// How the pass uses `pods/resize`, where the kubelet resizes in place.
    pub resize: Act,
    /// Calls the API server, where the pass patches the spec.
    pub resizer: Option<Arc<dyn PodResizer>>,
    /// The pass waits for this before it patches; `None` where nothing is prepared, and no override is new.
    pub saved: Option<Saved>,
    /// Whether the pass carries out an operator's override: only once that has succeeded.
    pub is_saved_first: bool,
    /// The generation of the pod with the request that the API server accepted last.
    pub accepted_generation: Option<i64>,
    pub cause: Cause,
    /// When the decision was made.
    pub asked: Instant,
    /// How long that decision took.
    pub decided_in: Duration,
    /// Whether every file held its value after the pass before. Then another process wrote each file that differs now.
    pub held_before: bool,
    pub foreign: ForeignWriters,
    /// Whether to compare the runtime's stored spec even if no file has to change.
    pub check_runtime: bool,
    /// Whether a written value also becomes a property of its container's scope: where systemd would put an older value back, after
    /// drift and after the last agent of the node.
    pub aligns_scopes: bool,
    /// The memory use that earlier tries to lower limits have read.
    pub seen: SeenBefore,
    /// The lower limits that are watched.
    pub watched: Vec<Lowering>,
}

impl Job {
    /// A pass that is due now, writes without the API server, and has no earlier pass.
    pub fn new(targets: PodTargets, cause: Cause) -> Self {
        Self {
            targets,
            aligns_scopes: matches!(cause, Cause::Drift),
            cgroups: None,
            resize: Act::Direct,
            resizer: None,
            saved: None,
            is_saved_first: false,
            accepted_generation: None,
            cause,
            asked: Instant::now(),
            decided_in: Duration::ZERO,
            held_before: false,
            foreign: ForeignWriters::default(),
            check_runtime: true,
            seen: SeenBefore::default(),
            watched: Vec::new(),
        }
    }
}

/// The result of a pass.
#[derive(Debug)]
pub struct JobDone {
    /// The pod's open cgroups, unless one of them is gone.
    pub handles: Option<PodHandles>,
    pub foreign: ForeignWriters,
    pub record: ChangeRecord,
    /// The values that another process had changed, and until when the agent leaves each alone, if it does.
    pub flipped: Vec<(Target, ControlFile, Option<Timestamp>)>,
    /// A cgroup is gone: discovery must run again.
    pub stale: bool,
    /// systemd refused a step, or could not be reached: discovery must run again.
    pub systemd_failed: bool,
    /// The runtime's formula, where it differs from the assumed one.
    pub formula: Option<WeightFormula>,
    /// The quotas that the kubelet enforces, as far as the pass has seen.
    pub quotas: Quotas,
    pub shrink: ShrinkReport,
    /// The containers that had no burst before, and for how long the kernel had throttled each.
    pub bursts: Vec<(ContainerName, Duration)>,
    pub api: Report,
}

/// The steps of a pass, without carrying out any. Reads the files, and the runtime's stored specs where the pass would update them.
///
/// Errors: a sentence that names the unreadable file or the reason why there is no plan.
pub async fn preview(node: Arc<Node>, mut job: Job) -> Result<Vec<StepRecord>, String> {
    let act = std::mem::take(&mut job.resize);
    let mut pass = Pass::new(node, Box::new(job));
    let mut stored = BTreeMap::new();
    let mut changes = Vec::new();
    match act {
        Act::End {
            outcome: Outcome::Refused(why),
            ..
        } => return Err(why),
        Act::End { .. } => {}
        // Where the kubelet resizes, it updates the runtime.
        Act::Direct => stored = runtime_stage::stored_specs(&pass.node, pass.live()).await,
        Act::Write(grant) => pass.aim_at(&grant),
        Act::Patch(patch) => {
            pass.targets.lift_undeclared = false;
            changes = patch.changes;
        }
    }
    let planned = tokio::task::spawn_blocking(move || pass.planned_steps(&stored));
    let planned = planned.await.map_err(|panic| format!("internal error: {panic}"))?;
    let planned = planned.map_err(|outcome| outcome.reason().unwrap_or_default().to_owned())?;
    Ok(changes.iter().chain(&planned).map(StepRecord::planned).collect())
}

impl JobDone {
    /// A result with this record and nothing else.
    pub(crate) fn new(record: ChangeRecord) -> Self {
        Self {
            handles: None,
            foreign: ForeignWriters::default(),
            record,
            flipped: Vec::new(),
            stale: false,
            systemd_failed: false,
            formula: None,
            quotas: Quotas::default(),
            shrink: ShrinkReport::default(),
            bursts: Vec::new(),
            api: Report::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::actuate::RuntimeLink;
    use crate::model::{Bytes, CriResources, MilliCpu, Via, Withheld};
    use crate::resize::Grant;
    use crate::runtime::RuntimeError;
    use crate::runtime::testing::FakeRuntime;

    /// A runtime that has stored no limits.
    #[derive(Debug)]
    struct Unlimited;

    impl FakeRuntime for Unlimited {
        fn stored(&self) -> Result<Option<CriResources>, RuntimeError> {
            Ok(Some(CriResources::default()))
        }
    }

    /// A preview of the pass that gives a pod one cpu and 160 MiB, where its files have half a cpu and this limit.
    async fn previewed(root: &Path, mebibytes: u64, prepare: impl FnOnce(&mut Job)) -> Result<Vec<String>, String> {
        let pass = Pass::on_plain_files(root, Node::on_files(root));
        for directory in ["pod", "pod/app"] {
            fs::write(root.join(directory).join("cpu.max"), "50000 100000\n").unwrap();
            fs::write(
                root.join(directory).join("memory.max"),
                format!("{}\n", mebibytes << 20),
            )
            .unwrap();
        }
        let Pass { node, mut job, .. } = *pass;
        prepare(&mut job);
        node.least_limits.raise(&"u".into(), "app", Bytes::new(176 << 20));
        let steps = preview(node, *job).await?;
        Ok(steps
            .iter()
            .map(|step| format!("{} {}", step.target, step.change))
            .collect())
    }

    #[tokio::test]
    async fn a_preview_writes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let steps = previewed(root.path(), 176, |_| {}).await.unwrap();
        let quota = "cpu.max 50000 100000 → 100000 100000";
        assert_eq!(steps, [format!("pod {quota}"), format!("container app {quota}")]);
        for directory in ["pod", "pod/app"] {
            let text = fs::read_to_string(root.path().join(directory).join("cpu.max")).unwrap();
            assert_eq!(text, "50000 100000\n");
        }
    }

    #[tokio::test]
    async fn a_preview_shows_what_the_kubelet_grants() {
        let root = tempfile::tempdir().unwrap();
        let deferred = |job: &mut Job| {
            let mut targets = job.targets.amounts.clone();
            targets.containers[0].resources.limits.cpu = Some(MilliCpu::new(500));
            job.resize = Act::Write(Grant {
                targets,
                withheld: Some(Withheld::Deferred("no room".to_owned())),
                ..Grant::default()
            });
        };
        assert_eq!(previewed(root.path(), 176, deferred).await, Ok(Vec::new()));
    }

    #[tokio::test]
    async fn a_preview_removes_no_limit_beside_a_kubelet() {
        for (kubelet_resizes, removed) in [(false, 1), (true, 0)] {
            let root = tempfile::tempdir().unwrap();
            let returns = |job: &mut Job| {
                job.targets.lift_undeclared = true;
                job.targets.amounts.containers[0].resources.limits.cpu = None;
                if kubelet_resizes {
                    job.resize = Act::Write(Grant {
                        targets: job.targets.amounts.clone(),
                        ..Grant::default()
                    });
                }
            };
            let steps = previewed(root.path(), 176, returns).await.unwrap();
            let quotas = steps.iter().filter(|step| step.starts_with("container app cpu.max "));
            assert_eq!(quotas.count(), removed, "{steps:?}");
        }
    }

    #[tokio::test]
    async fn a_preview_leaves_the_runtime_to_the_kubelet() {
        for (kubelet_resizes, updates) in [(false, 1), (true, 0)] {
            let root = tempfile::tempdir().unwrap();
            let mut node = Node::on_files(root.path());
            node.runtime = RuntimeLink::Found(Arc::new(Unlimited));
            let Pass { node, mut job, .. } = *Pass::on_plain_files(root.path(), node);
            if kubelet_resizes {
                job.resize = Act::Write(Grant {
                    targets: job.targets.amounts.clone(),
                    ..Grant::default()
                });
            }
            let steps = preview(node, *job).await.unwrap();
            let through_runtime = steps.iter().filter(|step| step.change.via() == Via::Cri);
            assert_eq!(through_runtime.count(), updates, "{kubelet_resizes}");
        }
    }

    #[tokio::test]
    async fn a_preview_refuses_what_a_pass_would() {
        let root = tempfile::tempdir().unwrap();
        let refused = |job: &mut Job| {
            job.resize = Act::End {
                outcome: Outcome::Refused("no room".to_owned()),
                retry_after: None,
                no_room: true,
            };
        };
        assert_eq!(previewed(root.path(), 176, refused).await, Err("no room".to_owned()));
        let in_use = |_: &mut Job| {
            let file = root.path().join("pod/app/memory.current");
            fs::write(file, format!("{}\n", 180 << 20)).unwrap();
        };
        let why = previewed(root.path(), 200, in_use).await.unwrap_err();
        assert!(why.contains("not shrinkable now"), "{why}");
    }
}
