//! A failure in the middle of a shrink leaves every limit unchanged.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use vscaled::actuate::{Job, Node, RuntimeLink, reconcile};
use vscaled::model::{
    Bytes, CgroupVersion, CpuQuota, CriResources, Driver, MemoryLimit, NodeTraits, Outcome, Setting, Target,
};
use vscaled::runtime::{ContainerRuntime, Executed, Problem, RuntimeError, RuntimeInfo};

use super::room::{job, node};
use super::{ROOMY, roomy};
use crate::support::bare::BareNode;
use crate::support::skipped;
use crate::systemd_units::fake_bus::ended_systemd;

/// A pod UID that makes the pod's cgroup look like a systemd slice.
const UID: &str = "0123.slice";

/// A node with systemd's cgroups.
fn of_slices(bare: &BareNode, state: &TempDir) -> Node {
    let node = node(bare, state);
    Node {
        traits: NodeTraits {
            driver: Driver::Systemd,
            ..node.traits
        },
        ..node
    }
}

#[tokio::test]
async fn a_pod_is_repaired_without_systemd() {
    let Some(systemd) = ended_systemd() else { return };
    let mut bare = BareNode::new();
    let pod = bare.run("web", UID, &[("app", roomy(ROOMY))]);
    let state = TempDir::new().unwrap();
    let node = Node {
        units: Some(Arc::new(systemd)),
        ..of_slices(&bare, &state)
    };
    let done = reconcile(Arc::new(node), Box::new(job(&pod, 100))).await;
    assert!(matches!(done.record.outcome, Outcome::RolledBack(_)), "{done:#?}");
    assert!(
        done.systemd_failed && done.handles.is_some(),
        "the files are watched still"
    );
    let held = bare.held(&pod);
    for level in ["app", "pod"] {
        let limit = held[level].memory_limit();
        assert_eq!(limit, Some(MemoryLimit::Bytes(ROOMY << 20)), "{level}");
    }
}

#[tokio::test]
async fn a_slices_longer_period_is_kept() {
    let mut bare = BareNode::new();
    let pod = bare.run("web", UID, &[("app", roomy(ROOMY))]);
    if bare.cgroups().version() == CgroupVersion::V2 {
        skipped("slices-longer-period", "cgroup v2 has quota and period in one file");
        return;
    }
    let state = TempDir::new().unwrap();
    let node = of_slices(&bare, &state);
    let before = bare.held(&pod);
    let cpu = before["pod"].cpu_max().unwrap();
    let CpuQuota::Micros(quota) = cpu.quota else {
        panic!("{cpu:?}")
    };
    bare.cgroups()
        .put(&pod.cgroup, Setting::CfsQuota(CpuQuota::Micros(4 * quota)));
    bare.cgroups().put(&pod.cgroup, Setting::CfsPeriod(2 * cpu.period_us));
    let done = reconcile(Arc::new(node), Box::new(job(&pod, ROOMY))).await;
    assert_eq!(done.record.outcome, Outcome::Applied, "{done:#?}");
    let held = bare.held(&pod)["pod"].cpu_max().unwrap();
    assert_eq!(
        (held.quota, held.period_us),
        (CpuQuota::Micros(2 * quota), 2 * cpu.period_us)
    );
}

#[tokio::test]
async fn a_limit_that_the_kubelet_raised_is_watched_no_longer() {
    let mut bare = BareNode::new();
    let pod = bare.run("web", super::UID, &[("app", roomy(ROOMY))]);
    let state = TempDir::new().unwrap();
    let node = Arc::new(node(&bare, &state));
    let watched = reconcile(Arc::clone(&node), Box::new(job(&pod, 100)))
        .await
        .shrink
        .lowered;
    let passes = async |mebibytes: u64| {
        let job = Job {
            watched: watched.clone(),
            ..job(&pod, mebibytes)
        };
        let done = reconcile(Arc::clone(&node), Box::new(job)).await;
        (done.record.outcome, done.shrink.touched)
    };
    assert_eq!(passes(100).await, (Outcome::Unchanged, Vec::new()));
    for cgroup in [&pod.cgroup, &pod.containers["app"].cgroup] {
        bare.cgroups().limit_memory(cgroup, MemoryLimit::Bytes(150 << 20));
    }
    let over = vec![Target::Container("app".into()), Target::Pod];
    assert_eq!(passes(150).await, (Outcome::Unchanged, over));
    let raise = |container: &str| {
        let to = Bytes::new(150 << 20);
        node.least_limits.raise(&super::UID.into(), container, to);
    };
    // The limit of the pod has a part that is temporary.
    raise("sidecar");
    let over = vec![Target::Container("app".into())];
    assert_eq!(passes(150).await, (Outcome::Unchanged, over));
    raise("app");
    assert_eq!(passes(100).await, (Outcome::Unchanged, Vec::new()), "it is temporary");
    // The guard has not written its limit yet, so the pass does.
    bare.cgroups()
        .limit_memory(&pod.containers["app"].cgroup, MemoryLimit::Bytes(100 << 20));
    assert_eq!(passes(100).await, (Outcome::Applied, Vec::new()), "it is temporary");
}

/// A runtime that forgets every container after the first call about it.
#[derive(Debug)]
struct Forgetful;

impl Forgetful {
    fn not_found<T>() -> Result<T, RuntimeError> {
        Err(RuntimeError {
            method: "UpdateContainerResources",
            socket: Arc::from(Path::new("/nowhere.sock")),
            container: None,
            problem: Problem::NotFound,
        })
    }
}

#[tonic::async_trait]
impl ContainerRuntime for Forgetful {
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError> {
        Self::not_found()
    }

    async fn stored(&self, _: &str) -> Result<Option<CriResources>, RuntimeError> {
        Ok(None)
    }

    async fn update(&self, _: &str, _: &CriResources) -> Result<(), RuntimeError> {
        Self::not_found()
    }

    async fn exec(&self, _: &str, _: &[String], _: Duration) -> Result<Executed, RuntimeError> {
        unreachable!()
    }

    async fn signal(&self, _: &str, _: u32) -> Result<(), RuntimeError> {
        unreachable!()
    }

    async fn first_process(&self, _: &str) -> Result<Option<i32>, RuntimeError> {
        unreachable!()
    }
}

#[tokio::test]
async fn a_lowered_limit_is_recorded_despite_an_end() {
    let mut bare = BareNode::new();
    let pod = bare.run("web", super::UID, &[("app", roomy(ROOMY))]);
    let state = TempDir::new().unwrap();
    let node = Node {
        runtime: RuntimeLink::Found(Arc::new(Forgetful)),
        ..node(&bare, &state)
    };
    let done = reconcile(Arc::new(node), Box::new(job(&pod, 100))).await;
    assert!(matches!(done.record.outcome, Outcome::Interrupted(_)), "{done:#?}");
    let limit = bare.held(&pod)["app"].memory_limit();
    assert_eq!(limit, Some(MemoryLimit::Bytes(100 << 20)));
    let lowered: Vec<_> = done.shrink.lowered.iter().map(|lowering| &lowering.target).collect();
    assert_eq!(lowered, [&Target::Container("app".into()), &Target::Pod]);
}
