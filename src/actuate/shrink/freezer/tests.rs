//! The guard, on plain files: what only a real kernel can show is in the tests of shrinks.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::TempDir;

use super::*;

/// What is frozen is known to the whole process, and one test here thaws all of it.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Files in the place of a cgroup's.
struct Scene {
    directory: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    fn new() -> Self {
        let scene = Self {
            directory: tempfile::tempdir().unwrap(),
            _alone: ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner),
        };
        fs::create_dir(scene.cgroup()).unwrap();
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

    fn freeze(&self) -> Result<Frozen, FreezeError> {
        self.freezer().freeze(Arc::new(Dir::open(self.cgroup()).unwrap()))
    }

    /// Freezes it, with somebody in the kernel's place who says that everything stands still.
    fn frozen(&self) -> Frozen {
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
            frozen.unwrap()
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
    let error = scene.freeze().unwrap_err();
    assert!(
        matches!(error, FreezeError::TooSlow { stood } if stood >= FREEZE_BOUND),
        "{error}"
    );
    assert!(error.to_string().contains("within 100 ms"), "{error}");
    assert_eq!((scene.is_frozen(), scene.markers()), (false, 0));
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
fn where_nothing_is_dropped_the_hook_thaws_and_the_marker_stays() {
    let scene = Scene::new();
    let frozen = scene.frozen();
    thaw_all();
    assert_eq!((scene.is_frozen(), scene.markers()), (false, 1));
    drop(frozen);
}

#[test]
fn what_others_have_frozen_and_what_holds_the_agent_is_left_alone() {
    let untouched = |scene: &Scene, frozen| {
        assert_eq!((scene.is_frozen(), scene.markers()), (frozen, 0));
    };
    let scene = Scene::new();
    scene.write("cgroup.freeze", "1\n");
    assert!(matches!(scene.freeze(), Err(FreezeError::FrozenByOther)));
    untouched(&scene, true);

    drop(scene);
    let scene = Scene::new();
    scene.write("cgroup.events", "populated 1\nfrozen 1\n");
    assert!(
        matches!(scene.freeze(), Err(FreezeError::FrozenByOther)),
        "by an ancestor"
    );
    untouched(&scene, false);

    drop(scene);
    let scene = Scene::new();
    let below = scene.cgroup().join("container/worker");
    fs::create_dir_all(&below).unwrap();
    fs::write(below.join("cgroup.procs"), format!("7\n{}\n", std::process::id())).unwrap();
    assert!(matches!(scene.freeze(), Err(FreezeError::HoldsAgent)));
    untouched(&scene, false);

    drop(scene);
    let scene = Scene::new();
    fs::remove_file(scene.cgroup().join("cgroup.freeze")).unwrap();
    assert!(matches!(scene.freeze(), Err(FreezeError::NoFreezer)));
}

#[test]
fn without_a_marker_nothing_is_frozen() {
    let scene = Scene::new();
    let freezer = scene.freezer();
    fs::remove_dir(scene.directory.path().join("frozen")).unwrap();
    let error = freezer
        .freeze(Arc::new(Dir::open(scene.cgroup()).unwrap()))
        .unwrap_err();
    assert!(matches!(error, FreezeError::NoMarker(_)), "{error}");
    assert!(!scene.is_frozen());
    assert!(!Path::new(&scene.directory.path().join("frozen")).exists());
}
