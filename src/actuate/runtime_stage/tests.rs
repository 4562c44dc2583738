//! What a runtime does besides, on plain files in the place of a cgroup's.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::actuate::LeastLimits;
use crate::cgroup::Hierarchy;
use crate::model::{Bytes, CgroupPath};
use crate::runtime::Problem;
use crate::runtime::testing::{FakeRuntime, failed};

/// Takes the container's swap away with every update of memory, as CRI-O does, and writes the `memory.high` that it has
/// stored, as containerd does.
#[derive(Debug)]
struct SwapTaker {
    swap: PathBuf,
    high: PathBuf,
    markers: PathBuf,
    /// Whether it answers too late, and then has changed nothing yet.
    is_late: bool,
}

impl SwapTaker {
    fn change_limits(&self) {
        fs::write(&self.swap, "0\n").unwrap();
        fs::write(&self.high, "1048576\n").unwrap();
    }

    /// The values of `memory.swap.max` and `memory.high`, and the number of markers.
    fn held(&self) -> ([String; 2], usize) {
        let value = |file: &PathBuf| fs::read_to_string(file).unwrap().lines().next().unwrap().to_owned();
        let markers = fs::read_dir(&self.markers).unwrap().count();
        ([value(&self.swap), value(&self.high)], markers)
    }
}

impl FakeRuntime for SwapTaker {
    fn update(&self, fields: &CriResources) -> Result<(), RuntimeError> {
        if fields.memory_limit_in_bytes.is_some() {
            let markers = fs::read_dir(&self.markers).unwrap().count();
            assert_eq!(markers, 1, "left for the next start");
            if self.is_late {
                return Err(failed(
                    "UpdateContainerResources",
                    Problem::Deadline { limit: Duration::ZERO },
                ));
            }
            self.change_limits();
        }
        Ok(())
    }
}

fn cgroup(root: &TempDir, swap: &str) -> (Cgroup, SwapTaker) {
    let container = root.path().join("app");
    fs::create_dir(&container).unwrap();
    for directory in [root.path(), &container] {
        fs::write(directory.join("cgroup.controllers"), "cpu memory\n").unwrap();
    }
    let file = container.join("memory.swap.max");
    fs::write(&file, format!("{swap}\n")).unwrap();
    let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
    let cgroup = Cgroup::open(&hierarchy, &CgroupPath::new("/app").unwrap()).unwrap();
    let high = container.join("memory.high");
    fs::write(&high, "2097152\n").unwrap();
    let runtime = SwapTaker {
        swap: file,
        high,
        markers: root.path().join("frozen"),
        is_late: false,
    };
    (cgroup, runtime)
}

#[tokio::test]
async fn swap_is_kept_with_a_new_memory_limit() {
    for swap in ["104857600", "max"] {
        let root = tempfile::tempdir().unwrap();
        let (cgroup, runtime) = cgroup(&root, swap);
        let (freezer, memory) = (Freezer::below(root.path()).unwrap(), memory());
        update(&runtime, &freezer, Some(&cgroup), "c", &memory).await.unwrap();
        assert_eq!(runtime.held(), ([swap.to_owned(), "2097152".to_owned()], 0));
    }
}

fn memory() -> CriResources {
    CriResources {
        memory_limit_in_bytes: Some(64 << 20),
        ..CriResources::default()
    }
}

#[tokio::test]
async fn what_a_late_runtime_changes_is_put_back_in_the_next_pass() {
    let chosen = || ["104857600".to_owned(), "2097152".to_owned()];
    for is_told_again in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let (cgroup, mut runtime) = cgroup(&root, "104857600");
        let limit = root.path().join("app/memory.max");
        fs::write(&limit, "4194304\n").unwrap();
        let (freezer, memory) = (Freezer::below(root.path()).unwrap(), memory());
        runtime.is_late = true;
        for _ in 0..2 {
            update(&runtime, &freezer, Some(&cgroup), "c", &memory)
                .await
                .unwrap_err();
            assert_eq!(runtime.held(), (chosen(), 1));
            runtime.change_limits();
        }
        runtime.is_late = false;
        if is_told_again {
            update(&runtime, &freezer, Some(&cgroup), "c", &memory).await.unwrap();
        } else {
            restore_left(&freezer, &cgroup);
        }
        assert_eq!(runtime.held(), (chosen(), 0));

        // A pass has raised the limit meanwhile, and memory.high with it.
        runtime.is_late = true;
        update(&runtime, &freezer, Some(&cgroup), "c", &memory)
            .await
            .unwrap_err();
        fs::write(&runtime.swap, "0\n").unwrap();
        fs::write(&runtime.high, "4194304\n").unwrap();
        fs::write(&limit, "8388608\n").unwrap();
        restore_left(&freezer, &cgroup);
        assert_eq!(runtime.held(), (["104857600".to_owned(), "4194304".to_owned()], 0));
    }
}

/// Writes the limit that it is told, although the guard raises the limit meanwhile.
#[derive(Debug)]
struct SlowWriter {
    limit: PathBuf,
    least_limits: Arc<LeastLimits>,
}

impl FakeRuntime for SlowWriter {
    fn update(&self, _: &CriResources) -> Result<(), RuntimeError> {
        self.least_limits.raise(&"u".into(), "app", Bytes::new(192 << 20));
        fs::write(&self.limit, format!("{}\n", 160 << 20)).unwrap();
        Ok(())
    }
}

#[tokio::test]
async fn a_growth_beside_an_update_is_kept() {
    let root = tempfile::tempdir().unwrap();
    let mut pass = Pass::on_plain_files(root.path(), Node::on_files(root.path()));
    let limit = root.path().join("pod/app/memory.max");
    let set = |mebibytes: u64| fs::write(&limit, format!("{}\n", mebibytes << 20)).unwrap();
    set(160);
    let observed = pass.observe().unwrap();
    set(192);
    let runtime = SlowWriter {
        limit: limit.clone(),
        least_limits: Arc::clone(&pass.node.least_limits),
    };
    let (from, to) = (CriResources::default(), memory());
    let step = Step {
        target: Target::Container("app".into()),
        change: Change::Spec { from, to },
    };
    update_spec(&runtime, &mut pass, &step, false).await.unwrap();
    let held = fs::read_to_string(&limit).unwrap();
    assert_eq!(held.trim().parse::<u64>().unwrap(), 192 << 20);
    // An operator's override that ended as incomplete would be taken back.
    let ended = verify(&mut pass, &observed);
    assert!(matches!(ended, Err(Outcome::RuntimeOwed(_))), "{ended:?}");
}

#[tokio::test]
async fn an_undo_keeps_the_limit_of_the_guard() {
    let root = tempfile::tempdir().unwrap();
    let mut node = Node::on_files(root.path());
    let runtime = SlowWriter {
        limit: root.path().join("pod/app/memory.max"),
        least_limits: Arc::clone(&node.least_limits),
    };
    node.runtime = RuntimeLink::Found(Arc::new(runtime));
    let mut pass = Pass::on_plain_files(root.path(), node);
    let least = Bytes::new(192 << 20);
    pass.node.least_limits.raise(&"u".into(), "app", least);
    // The pass has told the runtime the limit that the guard had written.
    let to = CriResources {
        memory_limit_in_bytes: Some(192 << 20),
        ..CriResources::default()
    };
    let step = Step {
        target: Target::Container("app".into()),
        change: Change::Spec { from: memory(), to },
    };
    pass.done.record.steps.push(StepRecord::planned(&step));
    undo(&mut pass).await;
    assert_eq!(pass.done.record.steps.len(), 1, "no update with the limit before");
}

#[test]
fn only_a_refused_update_undoes_a_pass() {
    let refused = || Problem::Refused {
        code: tonic::Code::Unknown,
        message: "EBUSY".to_owned(),
    };
    let late = || Problem::Deadline { limit: Duration::ZERO };
    let undone: fn(&Outcome) -> bool = |outcome| matches!(outcome, Outcome::RolledBack(_));
    let owed: fn(&Outcome) -> bool = |outcome| matches!(outcome, Outcome::RuntimeOwed(_));
    let ended: fn(&Outcome) -> bool = |outcome| matches!(outcome, Outcome::Interrupted(_));
    for (problem, update, is_expected, is_away) in [
        (refused(), true, undone, false),
        (refused(), false, owed, false),
        // The update may be slow because of its container.
        (late(), true, owed, false),
        (late(), false, owed, true),
        (Problem::NoSocket, true, owed, true),
        (Problem::NotFound, true, ended, false),
    ] {
        let root = tempfile::tempdir().unwrap();
        let node = Node::on_files(root.path());
        let error = RuntimeError {
            method: "UpdateContainerResources",
            socket: Path::new("/run/x.sock").into(),
            container: None,
            problem,
        };
        let outcome = give_up(&node, &error, update);
        assert!(is_expected(&outcome), "{error}: {outcome:?}");
        assert_eq!(node.concurrency.runtime_away().is_some(), is_away, "{error}");
    }
}
