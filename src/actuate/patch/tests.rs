//! A patch and its withdrawal, beside an API server that refuses some calls.

use std::collections::VecDeque;
use std::fs;

use futures::FutureExt as _;
use futures::future::ready;
use parking_lot::Mutex;
use tempfile::TempDir;

use super::*;
use crate::actuate::{JobDone, Node, reconcile};
use crate::model::{Bytes, Cause, Change, Outcome, PodAmounts, Via};
use crate::resize::{Act, Facts, Resize};

/// An API server with one pod.
#[derive(Debug, Default)]
struct OnePodServer {
    pod: Mutex<Pod>,
    /// The pod as a watch has shown it.
    known: Option<Pod>,
    away: Option<String>,
    /// Whether a read is never answered.
    is_silent: bool,
    /// The errors of the next calls, in order.
    resize_errors: Mutex<VecDeque<ResizeError>>,
    read_errors: Mutex<VecDeque<ResizeError>>,
    calls: Mutex<Vec<&'static str>>,
}

impl OnePodServer {
    fn of(resize_errors: impl IntoIterator<Item = ResizeError>) -> Self {
        Self {
            resize_errors: Mutex::new(resize_errors.into_iter().collect()),
            ..Self::default()
        }
    }

    /// The calls since the last time.
    fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock())
    }

    /// The memory limit in the spec, in MiB.
    fn mebibytes(&self) -> u64 {
        let limits = self.pod.lock().spec.containers[0].resources.limits;
        limits.memory.unwrap().get() >> 20
    }
}

#[tonic::async_trait]
impl PodResizer for OnePodServer {
    async fn resize(&self, _: &Pod, changes: &[Step]) -> Result<Pod, ResizeError> {
        self.calls.lock().push("resize");
        if let Some(error) = self.resize_errors.lock().pop_front() {
            return Err(error);
        }
        let mut pod = self.pod.lock();
        for step in changes {
            if let Change::Resize { to, .. } = &step.change {
                pod.spec.containers[0].resources = *to;
            }
        }
        pod.metadata.generation += 1;
        Ok(pod.clone())
    }

    async fn read(&self, _: &Pod) -> Result<Pod, ResizeError> {
        self.calls.lock().push("read");
        if self.is_silent {
            std::future::pending::<()>().await;
        }
        let error = self.read_errors.lock().pop_front();
        error.map_or_else(|| Ok(self.pod.lock().clone()), Err)
    }

    fn known(&self, _: &Pod) -> Option<Pod> {
        self.known.clone()
    }

    fn away(&self) -> Option<String> {
        self.away.clone()
    }
}

struct Scene {
    _root: TempDir,
    pass: Box<Pass>,
    /// From 160 MiB to 192.
    patch: Patch,
    server: Arc<OnePodServer>,
}

/// The pod of the pass with this limit, as the API server has it.
fn pod(pass: &Pass, mebibytes: u64) -> Pod {
    let mut pod = Pod::clone(pass.job.targets.bound.object());
    pod.metadata.resource_version = "7".to_owned();
    pod.metadata.generation = 1;
    let resources = &mut pod.spec.containers[0].resources;
    resources.limits.memory = Some(Bytes::new(mebibytes << 20));
    *resources = resources.with_requests();
    pod
}

/// A pass and its patch, where the spec has this limit, and a watch has shown the pod with another one, if any.
fn scene(mut server: OnePodServer, has: u64, known: Option<u64>) -> Scene {
    let root = tempfile::tempdir().unwrap();
    let mut pass = Pass::on_plain_files(root.path(), Node::on_files(root.path()));
    *server.pod.get_mut() = pod(&pass, has);
    server.known = known.map(|known| pod(&pass, known));
    let object = pass.job.targets.bound.object();
    let mut targets = object.requirements();
    targets.containers[0].resources.limits.memory = Some(Bytes::new(192 << 20));
    let act = Resize::default().next(object, &targets, &Cause::Sweep, &Facts::default());
    let Act::Patch(patch) = act else { panic!("no patch") };
    let server = Arc::new(server);
    pass.job.resizer = Some(Arc::clone(&server) as _);
    Scene {
        _root: root,
        pass,
        patch,
        server,
    }
}

fn stale(times: usize) -> impl Iterator<Item = ResizeError> {
    std::iter::repeat_with(|| ResizeError::Stale).take(times)
}

fn refused() -> ResizeError {
    ResizeError::Refused {
        reason: "not now".to_owned(),
        retry_after: None,
    }
}

#[tokio::test]
async fn a_conflict_is_read_and_patched_again() {
    let Scene {
        mut pass,
        patch,
        server,
        ..
    } = scene(OnePodServer::of(stale(2)), 160, None);
    let patched = pass.patch(&patch).await.unwrap();
    assert_eq!(server.calls(), ["read", "resize"].repeat(3));
    assert_eq!((patched.metadata.generation, server.mebibytes()), (2, 192));
    assert_eq!(pass.done.record.steps.len(), 1, "a conflict changes nothing");

    let mut scene = scene(OnePodServer::of(stale(99)), 160, None);
    let ended = scene.pass.patch(&scene.patch).await;
    assert!(matches!(ended, Err(ResizeError::Stale)), "{ended:?}");
    assert_eq!(scene.server.calls(), ["read", "resize"].repeat(MOST_CONFLICTS));
    assert_eq!(scene.server.mebibytes(), 160);
}

#[tokio::test]
async fn a_pod_that_a_watch_shows_is_not_read() {
    let away = || OnePodServer {
        away: Some("it hangs".to_owned()),
        ..OnePodServer::default()
    };
    for (server, known, reads_first, expected) in [
        (OnePodServer::default(), 160, false, vec!["resize"]),
        (OnePodServer::of(stale(1)), 160, false, vec!["resize", "read", "resize"]),
        // An earlier request has no answer.
        (OnePodServer::default(), 160, true, vec!["read", "resize"]),
        (OnePodServer::default(), 176, false, vec!["read", "resize"]),
        (away(), 160, false, vec!["read", "resize"]),
    ] {
        let mut scene = scene(server, 160, Some(known));
        scene.patch.reads_first = reads_first;
        let patched = scene.pass.patch(&scene.patch).await;
        assert!(patched.is_ok(), "{patched:?}");
        assert_eq!(scene.server.calls(), expected, "{known} {reads_first}");
    }
}

#[tokio::test]
async fn another_clients_spec_is_not_patched() {
    let mut scene = scene(OnePodServer::default(), 176, None);
    let ended = scene.pass.patch(&scene.patch).await;
    assert!(matches!(ended, Err(ResizeError::Stale)), "{ended:?}");
    assert_eq!((scene.server.calls(), scene.server.mebibytes()), (vec!["read"], 176));
}

#[tokio::test]
async fn a_denied_read_is_no_denied_patch() {
    let denied = || ResizeError::Denied("a later LimitRange".to_owned());
    for is_empty in [false, true] {
        let server = OnePodServer {
            read_errors: Mutex::new([denied()].into()),
            ..OnePodServer::default()
        };
        let mut scene = scene(server, 160, None);
        if is_empty {
            scene.patch.changes.clear();
        }
        let ended = scene.pass.patch(&scene.patch).await;
        assert_eq!(matches!(ended, Err(ResizeError::Denied(_))), is_empty, "{ended:?}");
        let limit = if is_empty { 160 } else { 192 };
        assert_eq!(scene.server.mebibytes(), limit);
    }
}

#[tokio::test]
async fn a_failed_patch_says_what_became_of_it() {
    let why = || "why".to_owned();
    for error in [refused(), ResizeError::Denied(why()), ResizeError::Gone(why())] {
        let mut scene = scene(OnePodServer::of([error.clone()]), 160, None);
        let ended = scene.pass.patch(&scene.patch).await;
        assert!(ended.is_err());
        let done = &scene.pass.done;
        let errors = done.record.steps.iter().map(|step| step.error.is_some());
        assert_eq!(errors.collect::<Vec<_>>(), [true], "{error:?}");
        assert_eq!(done.api.answer, Some(Err(error)));
    }
}

#[tokio::test]
async fn an_older_generation_means_a_restored_server() {
    for (accepted, is_forgotten) in [(None, false), (Some(1), false), (Some(2), true)] {
        let mut scene = scene(OnePodServer::default(), 160, None);
        scene.pass.job.accepted_generation = accepted;
        scene.pass.read_soon().await.unwrap();
        assert_eq!(scene.pass.done.api.forgotten, is_forgotten, "{accepted:?}");
    }
    let away = OnePodServer {
        away: Some("it hangs".to_owned()),
        ..OnePodServer::default()
    };
    let mut scene = scene(away, 160, None);
    let read = scene.pass.read_soon().await;
    assert!(matches!(read, Err(ResizeError::Away(_))), "{read:?}");
    assert_eq!(scene.server.calls(), <[&str; 0]>::default());
}

#[tokio::test]
async fn a_silent_server_delays_a_pass_by_two_seconds() {
    let silent = OnePodServer {
        is_silent: true,
        ..OnePodServer::default()
    };
    let mut scene = scene(silent, 160, None);
    let read = tokio::time::timeout(SOON * 30, scene.pass.read_soon()).await.unwrap();
    let Err(ResizeError::Away(why)) = &read else {
        panic!("{read:?}")
    };
    assert_eq!(why, "the API server did not show the pod within 2 s");
}

/// Takes back a patch that the API server has accepted, where the next calls fail so.
async fn taken_back(errors: impl IntoIterator<Item = ResizeError>, prepare: fn(&Scene)) -> Scene {
    let mut scene = scene(OnePodServer::default(), 160, None);
    let patched = scene.pass.patch(&scene.patch).await.unwrap();
    assert_eq!(scene.server.calls(), ["read", "resize"]);
    scene.server.resize_errors.lock().extend(errors);
    prepare(&scene);
    scene.pass.done.record.outcome = Outcome::RolledBack("refused".to_owned());
    scene.pass.undo_patch(patched, &scene.patch).await;
    scene
}

#[tokio::test]
async fn a_patch_is_taken_back_despite_conflicts() {
    let again = ["resize", "read"].repeat(2);
    for (conflicts, expected) in [(0, vec!["resize"]), (2, [again, vec!["resize"]].concat())] {
        let Scene { pass, server, .. } = taken_back(stale(conflicts), |_| {}).await;
        assert_eq!(server.calls(), expected);
        assert_eq!(server.mebibytes(), 160);
        let accepted = pass.done.api.accepted().unwrap();
        assert_eq!(accepted.generation, 3);
        assert_eq!(
            accepted.targets.containers[0].resources.limits.memory,
            Some(Bytes::new(160 << 20))
        );
        assert_eq!(pass.done.record.outcome, Outcome::RolledBack("refused".to_owned()));
    }
}

#[tokio::test]
async fn a_failed_withdrawal_is_told_and_kept() {
    for (errors, calls) in [
        (vec![refused()], vec!["resize"]),
        (stale(99).collect(), ["resize", "read"].repeat(MOST_CONFLICTS)),
    ] {
        let Scene { pass, server, .. } = taken_back(errors, |_| {}).await;
        assert_eq!((server.calls(), server.mebibytes()), (calls, 192));
        let is_old = |to: &PodAmounts| to.containers[0].resources.limits.memory == Some(Bytes::new(160 << 20));
        let answer = &pass.done.api.answer;
        let is_kept = matches!(answer, Some(Err(ResizeError::NotTakenBack(to))) if is_old(to));
        assert!(is_kept, "{answer:?}");
        let reason = pass.done.record.outcome.reason().unwrap();
        assert!(reason.contains("cannot withdraw the request"), "{reason}");
    }
}

#[tokio::test]
async fn a_withdrawal_keeps_later_amounts() {
    // The guard has raised the limit meanwhile.
    let guarded = |scene: &Scene| {
        let least_limits = &scene.pass.node.least_limits;
        least_limits.raise(&"u".into(), "app", Bytes::new(176 << 20));
    };
    let of_guard = taken_back([], guarded).await;
    assert_eq!(of_guard.server.mebibytes(), 176);
    let edited = |scene: &Scene| *scene.server.pod.lock() = pod(&scene.pass, 256);
    let of_client = taken_back(stale(1), edited).await;
    assert_eq!(
        of_client.server.calls(),
        ["resize", "read"],
        "nothing is left to take back"
    );
    assert_eq!(of_client.server.mebibytes(), 256);
}

/// A pass from 160 MiB to this limit, with the limits of the pod's and of the container's cgroup in MiB after it.
async fn passed(server: OnePodServer, to: u64) -> (JobDone, Arc<OnePodServer>, [u64; 2]) {
    passed_unsaved(server, to, [false; 2]).await
}

/// Such a pass, where the prepared resize and an operator's override cannot be saved.
async fn passed_unsaved(
    server: OnePodServer,
    to: u64,
    [resize, overridden]: [bool; 2],
) -> (JobDone, Arc<OnePodServer>, [u64; 2]) {
    let Scene {
        _root: root,
        mut pass,
        server,
        ..
    } = scene(server, 160, None);
    let directories = ["pod", "pod/app"].map(|directory| root.path().join(directory));
    for directory in &directories {
        for (name, mebibytes) in [("memory.max", 160), ("memory.peak", 61)] {
            fs::write(directory.join(name), format!("{}\n", mebibytes << 20)).unwrap();
        }
    }
    let object = pass.job.targets.bound.object();
    let mut targets = object.requirements();
    targets.containers[0].resources.limits.memory = Some(Bytes::new(to << 20));
    let act = Resize::default().next(object, &targets, &Cause::Sweep, &Facts::default());
    pass.job.resize = act;
    let unsaved: Saved = ready(Err::<(), _>("the disk is full".to_owned())).boxed().shared();
    pass.job.saved = Some(unsaved).filter(|_| resize);
    pass.job.is_saved_first = overridden;
    let Pass { node, job, .. } = *pass;
    let done = reconcile(node, job).await;
    let held = directories.map(|directory| {
        let text = fs::read_to_string(directory.join("memory.max")).unwrap();
        text.lines().next().unwrap().parse::<u64>().unwrap() >> 20
    });
    (done, server, held)
}

#[tokio::test]
async fn the_spec_is_patched_before_the_files() {
    let (done, server, held) = passed(OnePodServer::default(), 192).await;
    assert_eq!(done.record.outcome, Outcome::Applied);
    let through = done.record.steps.iter().map(|step| step.change.via());
    assert_eq!(through.collect::<Vec<_>>(), [Via::Resize, Via::Cgroup, Via::Cgroup]);
    assert_eq!(
        (server.calls(), server.mebibytes(), held),
        (vec!["read", "resize"], 192, [192; 2])
    );
}

#[tokio::test]
async fn an_unsaved_override_changes_nothing() {
    let (done, server, held) = passed_unsaved(OnePodServer::default(), 192, [true; 2]).await;
    let Outcome::Refused(why) = &done.record.outcome else {
        panic!("{done:#?}")
    };
    assert!(why.ends_with(": the disk is full"), "{why}");
    assert_eq!((server.calls(), held), (vec![], [160; 2]));
    assert_eq!(done.api.answer, Some(Err(ResizeError::NotSent)));
    // A recommendation is followed all the same.
    let (done, server, held) = passed_unsaved(OnePodServer::default(), 192, [true, false]).await;
    assert_eq!(done.record.outcome, Outcome::Applied);
    assert_eq!((server.mebibytes(), held), (192, [192; 2]));
}

#[tokio::test]
async fn a_denied_patch_leaves_the_files() {
    let denied = ResizeError::Denied("a quota".to_owned());
    let (done, server, held) = passed(OnePodServer::of([denied]), 192).await;
    assert_eq!(done.record.outcome, Outcome::Refused("a quota".to_owned()));
    assert_eq!((server.mebibytes(), held), (160, [160; 2]));
}

#[tokio::test]
async fn a_failed_write_takes_the_patch_back() {
    // The files have no freezer, so no limit can come down.
    let (done, server, held) = passed(OnePodServer::default(), 128).await;
    assert!(matches!(done.record.outcome, Outcome::RolledBack(_)), "{done:#?}");
    assert_eq!(server.calls(), ["read", "resize", "resize"]);
    assert_eq!((server.mebibytes(), held), (160, [160; 2]));
    assert!(done.shrink.refused && done.shrink.lowered.is_empty(), "{done:#?}");
}
