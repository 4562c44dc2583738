//! The first chapters: a pod is made, and vscaled finds it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cleanup::Stage;
use super::crew::{self, Pulse, Worker};
use super::daemon::{Daemon, put_manifest};
use super::error::DemoError;
use super::screen::{Screen, took};
use super::story::{PACE, PATIENCE, amounts, mebibytes, rates};
use super::tree::{Tree, kubepods};
use crate::control::proto::Pod;
use crate::control::{Client, Watch};
use crate::plan::CgroupVersion;
use crate::resources::Requirements;
use crate::sources::parse_manifests;

/// The pod and the workload above it.
const WEB: &str = include_str!("web.yaml");

/// The pod's cgroups, with a process in each container.
pub(super) async fn make_pod(
    stage: &mut Stage,
    screen: &mut Screen,
) -> Result<(Tree, Vec<Pulse>, Vec<f64>), DemoError> {
    let version = match stage.hierarchy.version() {
        CgroupVersion::V1 => "v1",
        CgroupVersion::V2 => "v2",
    };
    screen.chapter(&format!(
        "A pod of three containers, as a kubelet would have made it on cgroup {version}"
    ))?;
    let mut view = parse_manifests("web.yaml", WEB)?.view;
    let pod = view
        .pods
        .pop()
        .ok_or_else(|| DemoError::Unexpected("web.yaml holds no pod".to_owned()))?;
    let tree = Tree::build(&stage.hierarchy, &stage.root, Arc::unwrap_or_clone(pod))?;
    screen.aside(tree.path.as_str())?;
    for (container, memory) in crew::HOLDS {
        let worker = Worker::start(&tree, &stage.directory, container, memory)?;
        stage.workers.push(worker);
    }
    let first = crew::work_on(&mut stage.workers, &[], Duration::ZERO, PATIENCE).await?;
    let then = crew::work_on(&mut stage.workers, &first, PACE, PATIENCE).await?;
    let rates = rates(&first, &then);
    let mut rows = vec![["CONTAINER", "REQUESTS", "LIMITS", "MEMORY USED", "PROCESS", "WORK"].map(str::to_owned)];
    for (pulse, rate) in then.iter().zip(&rates) {
        let Requirements { requests, limits } = tree
            .pod
            .container(pulse.container)
            .map(|container| container.resources)
            .unwrap_or_default();
        let used = mebibytes(tree.memory_in_use(pulse.container)?);
        let work = format!("{rate:.0} blocks checked a second");
        rows.push([
            pulse.container.to_owned(),
            amounts(requests),
            amounts(limits),
            used,
            pulse.pid.to_string(),
            work,
        ]);
    }
    screen.table(&rows)?;
    Ok((tree, then, rates))
}

/// The daemon, once it has found the pod.
pub(super) async fn start_daemon(
    program: &Path,
    stage: &mut Stage,
    screen: &mut Screen,
    tree: &Tree,
) -> Result<(Client, Watch), DemoError> {
    screen.chapter("vscaled starts, without a container runtime, on a directory of manifests")?;
    let began = Instant::now();
    let daemon = Daemon::start(program, &stage.directory, &kubepods(&stage.root)?, &tree.traits)?;
    let daemon = stage.daemon.insert(daemon);
    let mut client = daemon.answer(PATIENCE).await?;
    let answered = began.elapsed();
    put_manifest(&daemon.manifests, "web.yaml", WEB)?;
    let found = loop {
        let known = client.get().await?;
        let all_found = |pod: &Pod| pod.containers.iter().all(|container| container.id.is_some());
        if let Some(pod) = known.pods.into_iter().find(all_found) {
            break pod;
        }
        daemon.check()?;
        if began.elapsed() > PATIENCE {
            return Err(daemon.late("vscaled to find the pod", PATIENCE));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    screen.aside(&format!(
        "manifests in {}, socket {}",
        daemon.manifests.display(),
        daemon.socket.display()
    ))?;
    screen.confirm(&format!(
        "process {} answers after {} and has found {}/{} ({}): {}",
        daemon.child.id(),
        took(answered),
        found.namespace,
        found.name,
        found.qos_class,
        found.state
    ))?;
    if cfg!(debug_assertions) {
        screen.aside("(a debug build: the times below are longer than those of a release build)")?;
    }
    let watch = client.watch().await?;
    Ok((client, watch))
}
