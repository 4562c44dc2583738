//! The guard, on plain files: what only a real kernel can show is in the tests of shrinks.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::TempDir;

use super::*;

/// Files in the place of a cgroup's.
struct Scene {
    directory: TempDir,
    opened: Dir,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let cgroup = directory.path().join("cgroup");
        fs::create_dir(&cgroup).unwrap();
        let opened = Dir::open(cgroup).unwrap();
        let scene = Self { directory, opened };
        scene.write("cgroup.procs", "1\n2\n");
        scene.write("cgroup.freeze", "0\n");
        scene.write("cgroup.events", "populated 1\nfrozen 0\n");
        scene
    }

    fn cgroup(&self) -> PathBuf {
        self.directory.path().join("cgroup")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.cgroup().join(name), text).unwrap();
    }

    fn is_frozen(&self) -> bool {
        fs::read_to_string(self.cgroup().join("cgroup.freeze")).unwrap().trim() == "1"
    }

    fn markers(&self) -> usize {
        fs::read_dir(self.directory.path().join("frozen")).unwrap().count()
    }

    fn freezer(&self) -> Freezer {
        Freezer::below(self.directory.path()).unwrap()
    }

    fn freeze(&self) -> Result<Result<Frozen<'_>, Duration>, StepError> {
        self.freezer().freeze(&self.opened)
    }

    /// The reason why the cgroup is not frozen.
    fn refusal(&self) -> String {
        self.freeze().unwrap_err().to_string()
    }

    /// Freezes it, with somebody in the kernel's place who says that everything stands still.
    fn frozen(&self) -> Frozen<'_> {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if self.is_frozen() {
                        self.write("cgroup.events", "populated 1\nfrozen 1\n");
                    }
                    thread::yield_now();
                }
            });
            let frozen = self.freeze();
            done.store(true, Ordering::Relaxed);
            frozen.unwrap().unwrap()
        })
    }
}

#[test]
fn while_something_is_frozen_a_marker_tells_of_it() {
    let scene = Scene::new();
    let frozen = scene.frozen();
    assert_eq!((scene.is_frozen(), scene.markers()), (true, 1));
    frozen.thaw();
    assert_eq!((scene.is_frozen(), scene.markers()), (false, 0));
}

#[test]
fn what_does_not_stand_still_in_time_is_let_go() {
    let scene = Scene::new();
    let stood = scene.freeze().unwrap().unwrap_err();
    assert!(stood >= FREEZE_BOUND, "{stood:?}");
    assert_eq!((scene.is_frozen(), scene.markers()), (false, 0));
}

#[test]
fn a_thaw_opens_no_file() {
    let scene = Scene::new();
    let frozen = scene.frozen();
    let moved = scene.cgroup().join("moved");
    fs::rename(scene.cgroup().join("cgroup.freeze"), &moved).unwrap();
    frozen.thaw();
    assert_eq!(fs::read_to_string(moved).unwrap().trim(), "0");
    assert_eq!(scene.markers(), 0);
}

#[test]
fn a_panic_thaws() {
    let scene = Scene::new();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _frozen = scene.frozen();
        assert!(scene.is_frozen());
        panic!("on purpose");
    }));
    assert!(caught.is_err());
    assert_eq!((scene.is_frozen(), scene.markers()), (false, 0));
}

#[test]
fn without_a_drop_the_hook_thaws() {
    let scene = Scene::new();
    let frozen = scene.frozen();
    scene.freezer().thaw_all();
    assert_eq!((scene.is_frozen(), scene.markers()), (false, 1));
    drop(frozen);
}

#[test]
fn foreign_and_own_freezes_are_left_alone() {
    let untouched = |scene: &Scene, frozen| {
        assert_eq!((scene.is_frozen(), scene.markers()), (frozen, 0));
    };
    let scene = Scene::new();
    scene.write("cgroup.freeze", "1\n");
    assert!(scene.refusal().contains("another process has frozen the cgroup"));
    untouched(&scene, true);

    drop(scene);
    let scene = Scene::new();
    scene.write("cgroup.events", "populated 1\nfrozen 1\n");
    assert!(
        scene.refusal().contains("another process has frozen the cgroup"),
        "by an ancestor"
    );
    untouched(&scene, false);

    drop(scene);
    let scene = Scene::new();
    let below = scene.cgroup().join("container/worker");
    fs::create_dir_all(&below).unwrap();
    fs::write(below.join("cgroup.procs"), format!("7\n{}\n", std::process::id())).unwrap();
    assert!(scene.refusal().contains("the agent itself runs in the cgroup"));
    untouched(&scene, false);

    drop(scene);
    let scene = Scene::new();
    fs::remove_file(scene.cgroup().join("cgroup.freeze")).unwrap();
    assert!(scene.refusal().contains("this kernel has no freezer"));
}

#[test]
fn without_a_marker_nothing_is_frozen() {
    let scene = Scene::new();
    let freezer = scene.freezer();
    fs::remove_dir(scene.directory.path().join("frozen")).unwrap();
    let error = freezer.freeze(&scene.opened).unwrap_err().to_string();
    assert!(error.contains("cannot leave a marker"), "{error}");
    assert!(!scene.is_frozen());
    assert!(!Path::new(&scene.directory.path().join("frozen")).exists());
}
