//! Room for a write by the kubelet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;
use vscaled::actuate::shrink::Freezer;
use vscaled::actuate::{Concurrency, Job, KnownFrom, Node, PodResizer, RuntimeLink, reconcile};
use vscaled::cgroup::{Hierarchy, Kubepods, page_size};
use vscaled::decide::NodePolicies;
use vscaled::model::objects::Pod;
use vscaled::model::{
    BoundPod, Bytes, Cause, CgroupVersion, ContainerId, Driver, KubeletVersion, LiveContainer, LivePod,
    NamedRequirements, NodeTraits, Outcome, PodAmounts, RuntimeKind, Step, Via, WeightFormula,
};
use vscaled::plan::shrink::Holds;
use vscaled::plan::{PodTargets, WriteScope};
use vscaled::resize::{Act, Facts, Resize, ResizeError};
use vscaled::sources::parse_manifests;

use super::{ROOMY, Scene};
use crate::support::bare::{BareNode, BarePod};

/// A pass that lowers the container's limit to this many MiB, as the code that patches the spec would start it.
pub(super) fn job(of: &BarePod, mebibytes: u64) -> Job {
    let view = parse_manifests("pod.yaml", &of.manifest()).unwrap().view;
    let pod = Arc::clone(&view.pods[0]);
    let mut resources = pod.spec.containers[0].resources;
    resources.limits.memory = Some(Bytes::new(mebibytes << 20));
    let app = &of.containers["app"];
    let live = LiveContainer {
        id: ContainerId::parse(&app.id).unwrap(),
        path: app.cgroup.clone(),
    };
    let live = Arc::new(LivePod {
        id: pod.id_with(of.uid),
        path: of.cgroup.clone(),
        containers: indexmap::IndexMap::from([("app".into(), live)]),
    });
    let targets = PodTargets {
        bound: BoundPod::new(&pod, &live).unwrap(),
        amounts: PodAmounts::from_iter([NamedRequirements::new("app", resources)]),
        lift_undeclared: false,
        kubelet_unasked: true,
        scope: WriteScope::all(),
        burst: None,
        holds: Holds::default(),
    };
    Job {
        check_runtime: false,
        ..Job::new(targets, Cause::Sweep)
    }
}

pub(super) fn node(bare: &BareNode, state: &TempDir) -> Node {
    let hierarchy = Hierarchy::discover(None).unwrap();
    Node {
        kubepods: Kubepods::at(bare.kubepods()).unwrap(),
        traits: NodeTraits {
            version: hierarchy.version(),
            driver: Driver::Cgroupfs,
            runtime: RuntimeKind::Containerd,
            container_weight: WeightFormula::Linear,
            kubelet: KubeletVersion::NEWEST,
            page: page_size(),
        },
        hierarchy,
        policies: NodePolicies::default(),
        has_bursts: true,
        runtime: RuntimeLink::None,
        runtime_name: None,
        driver_from: KnownFrom::Configured,
        formula_from: KnownFrom::Configured,
        kubelet_from: KnownFrom::Configured,
        units: None,
        concurrency: Arc::new(Concurrency::new(1)),
        least_limits: Arc::default(),
        freezer: Arc::new(Freezer::below(state.path()).unwrap()),
    }
}

/// An API server that refuses the patch after the agent has made room for it.
#[derive(Debug, Default)]
struct Refusing {
    asked: AtomicBool,
}

#[tonic::async_trait]
impl PodResizer for Refusing {
    async fn read(&self, pod: &Pod) -> Result<Pod, ResizeError> {
        Ok(pod.clone())
    }

    fn away(&self) -> Option<String> {
        None
    }

    async fn resize(&self, _: &Pod, _: &[Step]) -> Result<Pod, ResizeError> {
        self.asked.store(true, Ordering::SeqCst);
        Err(ResizeError::Refused {
            reason: "not now".to_owned(),
            retry_after: None,
        })
    }
}

/// The same pass through an API server.
fn patching(mut job: Job, resizer: &Arc<Refusing>) -> Box<Job> {
    let facts = Facts::default();
    job.resize = Resize::default().next(job.targets.bound.object(), &job.targets.amounts, &job.cause, &facts);
    assert!(matches!(job.resize, Act::Patch(_)), "{:?}", job.resize);
    job.resizer = Some(Arc::clone(resizer) as _);
    Box::new(job)
}

#[tokio::test]
async fn room_is_made_without_touching_limits() {
    let mut scene = Scene::started().await;
    let _cached = scene.caches().await;
    let state = TempDir::new().unwrap();
    let node = Arc::new(node(&scene.node, &state));
    let before = scene.node.held(&scene.pod);
    let asked = Arc::new(Refusing::default());

    let done = reconcile(Arc::clone(&node), patching(job(&scene.pod, 64), &asked)).await;
    assert!(asked.asked.load(Ordering::SeqCst), "{done:#?}");
    let reason = "not now".to_owned();
    assert_eq!(done.record.outcome, Outcome::Refused(reason));
    assert!(
        done.record.steps.iter().all(|step| step.change.via() == Via::Resize),
        "{done:#?}"
    );
    assert_eq!(scene.node.held(&scene.pod), before);
    match node.traits.version {
        // The kubelet compares the limit with all memory in use, including page cache.
        CgroupVersion::V2 => assert!(scene.usage() < 64 << 20),
        // v1 reclaims only through the write itself.
        CgroupVersion::V1 => assert!(scene.usage() > 64 << 20),
    }

    let asked = Arc::new(Refusing::default());
    let refused = reconcile(node, patching(job(&scene.pod, 1), &asked)).await;
    assert!(!asked.asked.load(Ordering::SeqCst), "{refused:#?}");
    let reason = refused.record.outcome.reason().unwrap();
    assert!(reason.contains("not shrinkable now"), "{reason}");
    assert!(refused.shrink.refused);
    assert_eq!(refused.record.steps, []);
    assert_eq!(scene.node.held(&scene.pod), before);
    assert_eq!((scene.limits(), scene.kills()), ([ROOMY, ROOMY], 0));
}
