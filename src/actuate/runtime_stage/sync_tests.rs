//! Which updates a runtime gets, and how a pass ends by its answers.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::actuate::{PodHandles, reconcile};
use crate::model::{Bytes, Driver, MilliCpu};
use crate::runtime::Problem;
use crate::runtime::testing::{FakeRuntime, failed};

/// The stored spec that goes with the pod of [`Pass::on_plain_files`].
const WANTED: CriResources = CriResources {
    cpu_shares: Some(1024),
    cpu_quota: Some(100_000),
    cpu_period: Some(100_000),
    memory_limit_in_bytes: Some(160 << 20),
};

/// Shows a stored spec, and records every update.
#[derive(Debug, Default)]
struct UpdateRecorder {
    stored: Option<CriResources>,
    /// Why it does not show the stored spec.
    hides: Option<Problem>,
    /// Why it refuses updates.
    refuses: Option<Problem>,
    /// A file, and what an update writes into it.
    writes: Option<(PathBuf, &'static str)>,
    updates: Mutex<Vec<CriResources>>,
}

impl UpdateRecorder {
    fn updates(&self) -> Vec<CriResources> {
        self.updates.lock().clone()
    }
}

fn answer(problem: Option<&Problem>) -> Result<(), RuntimeError> {
    problem.map_or(Ok(()), |problem| {
        Err(failed("UpdateContainerResources", problem.clone()))
    })
}

impl FakeRuntime for UpdateRecorder {
    fn stored(&self) -> Result<Option<CriResources>, RuntimeError> {
        answer(self.hides.as_ref()).map(|()| self.stored)
    }

    fn update(&self, fields: &CriResources) -> Result<(), RuntimeError> {
        self.updates.lock().push(*fields);
        if let Some((file, text)) = &self.writes {
            fs::write(file, text).unwrap();
        }
        answer(self.refuses.as_ref())
    }
}

fn refused() -> Problem {
    Problem::Refused {
        code: tonic::Code::Unknown,
        message: "EBUSY".to_owned(),
    }
}

fn app() -> Target {
    Target::Container("app".into())
}

/// A pass over files with this quota in each 100 ms, where 100000 is the wanted one.
fn pass(root: &Path, quota: &str, runtime: UpdateRecorder) -> (Box<Pass>, Arc<UpdateRecorder>) {
    let runtime = Arc::new(runtime);
    let mut node = Node::on_files(root);
    node.runtime = RuntimeLink::Found(Arc::clone(&runtime) as _);
    let pass = Pass::on_plain_files(root, node);
    for directory in ["pod", "pod/app"] {
        fs::write(root.join(directory).join("cpu.max"), format!("{quota} 100000\n")).unwrap();
    }
    (pass, runtime)
}

#[tokio::test]
async fn only_the_fields_that_differ_are_updated() {
    let shares = CriResources {
        cpu_shares: Some(512),
        ..WANTED
    };
    let quota = CriResources {
        cpu_quota: Some(50_000),
        ..WANTED
    };
    let memory = CriResources {
        memory_limit_in_bytes: Some(128 << 20),
        ..WANTED
    };
    let none = CriResources::default();
    for (stored, is_written, expected) in [
        (Some(WANTED), true, None),
        (
            Some(shares),
            false,
            Some(CriResources {
                cpu_shares: WANTED.cpu_shares,
                ..none
            }),
        ),
        (
            Some(quota),
            false,
            Some(CriResources {
                cpu_shares: None,
                memory_limit_in_bytes: None,
                ..WANTED
            }),
        ),
        (
            Some(memory),
            false,
            Some(CriResources {
                memory_limit_in_bytes: WANTED.memory_limit_in_bytes,
                ..none
            }),
        ),
        // A runtime that does not show its stored spec.
        (None, false, None),
        (None, true, Some(WANTED)),
    ] {
        let root = tempfile::tempdir().unwrap();
        let runtime = UpdateRecorder {
            stored,
            ..UpdateRecorder::default()
        };
        let (mut pass, runtime) = pass(root.path(), "100000", runtime);
        let observed = pass.observe().unwrap();
        if is_written {
            let [from, to] =
                ["50000 100000", "100000 100000"].map(|quota| Setting::parse(ControlFile::CpuMax, quota).unwrap());
            let step = StepRecord::planned(&Step::of_file(app(), from, to));
            pass.done.record.steps.push(step);
        }
        assert_eq!(sync(&mut pass, &observed).await, Ok(()), "{stored:?}");
        assert_eq!(runtime.updates(), Vec::from_iter(expected), "{stored:?}");
    }
}

#[tokio::test]
async fn an_unknown_container_is_skipped_while_it_runs() {
    for has_ended in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let runtime = UpdateRecorder {
            hides: Some(Problem::NotFound),
            ..UpdateRecorder::default()
        };
        let (mut pass, runtime) = pass(root.path(), "100000", runtime);
        let observed = pass.observe().unwrap();
        if has_ended {
            fs::remove_dir_all(root.path().join("pod/app")).unwrap();
        }
        let synced = sync(&mut pass, &observed).await;
        assert_eq!(matches!(synced, Err(Outcome::Interrupted(_))), has_ended, "{synced:?}");
        assert_eq!(synced.is_ok(), !has_ended, "{synced:?}");
        assert_eq!(runtime.updates(), []);
    }
}

/// How the update of another stored memory limit ends, after `prepare`, and how many updates the runtime got.
async fn synced(runtime: UpdateRecorder, prepare: impl FnOnce(&mut Pass)) -> (Result<(), Outcome>, usize) {
    let root = tempfile::tempdir().unwrap();
    let stored = CriResources {
        memory_limit_in_bytes: Some(128 << 20),
        ..WANTED
    };
    let runtime = UpdateRecorder {
        stored: Some(stored),
        ..runtime
    };
    let (mut pass, runtime) = pass(root.path(), "100000", runtime);
    let observed = pass.observe().unwrap();
    prepare(&mut pass);
    let synced = sync(&mut pass, &observed).await;
    (synced, runtime.updates().len())
}

#[tokio::test]
async fn a_runtime_that_is_away_gets_no_update() {
    let is_owed = |synced: &Result<(), Outcome>| matches!(synced, Err(Outcome::RuntimeOwed(_)));
    let prepares: [fn(&mut Pass); 3] = [
        |pass| pass.node.concurrency.runtime_is_away("it hangs".to_owned()),
        |pass| Arc::make_mut(&mut pass.node).runtime = RuntimeLink::Away("no socket".to_owned()),
        // The runtime would write the limit that the pass has observed.
        |pass| pass.node.least_limits.raise(&"u".into(), "app", Bytes::new(192 << 20)),
    ];
    for prepare in prepares {
        let (synced, updates) = synced(UpdateRecorder::default(), prepare).await;
        assert!(is_owed(&synced) && updates == 0, "{synced:?} {updates}");
    }
    let without: fn(&mut Pass) = |pass| Arc::make_mut(&mut pass.node).runtime = RuntimeLink::None;
    assert_eq!(synced(UpdateRecorder::default(), without).await, (Ok(()), 0));
    for (problem, is_late) in [(refused(), false), (Problem::Deadline { limit: Duration::ZERO }, true)] {
        let runtime = UpdateRecorder {
            refuses: Some(problem),
            ..UpdateRecorder::default()
        };
        let (synced, updates) = synced(runtime, |_| {}).await;
        assert_eq!((is_owed(&synced), updates), (is_late, 1), "{synced:?}");
        assert_eq!(matches!(synced, Err(Outcome::RolledBack(_))), !is_late, "{synced:?}");
    }
}

#[tokio::test]
async fn an_idle_container_gets_no_update() {
    for (idle, expected) in [("1\n", 0), ("0\n", 1)] {
        let prepare = |pass: &mut Pass| {
            let directory = pass.handles.get(&app()).unwrap().outer().memory_dir().path();
            fs::write(directory.join("cpu.idle"), idle).unwrap();
        };
        let (synced, updates) = synced(UpdateRecorder::default(), prepare).await;
        assert_eq!((synced, updates), (Ok(()), expected));
    }
}

#[tokio::test]
async fn files_are_verified_after_an_update() {
    for (file, text, formula, is_complete) in [
        ("cpu.max", "100000 100000\n", None, true),
        ("cpu.max", "70000 100000\n", None, false),
        ("cpu.weight", "39\n", Some(WeightFormula::Linear), true),
        // No formula makes this weight of 1024 shares.
        ("cpu.weight", "77\n", None, false),
    ] {
        let root = tempfile::tempdir().unwrap();
        let runtime = UpdateRecorder {
            stored: Some(CriResources {
                memory_limit_in_bytes: Some(128 << 20),
                ..WANTED
            }),
            writes: Some((root.path().join("pod/app").join(file), text)),
            ..UpdateRecorder::default()
        };
        let (mut pass, _) = pass(root.path(), "100000", runtime);
        fs::write(root.path().join("pod/app/cpu.weight"), "100\n").unwrap();
        let observed = pass.observe().unwrap();
        let synced = sync(&mut pass, &observed).await;
        assert_eq!(synced.is_ok(), is_complete, "{file} {text}{synced:?}");
        assert_eq!(
            matches!(synced, Err(Outcome::Incomplete(_))),
            !is_complete,
            "{synced:?}"
        );
        assert_eq!(pass.done.formula, formula, "{file} {text}");
    }
}

#[tokio::test]
async fn a_runtime_may_write_what_systemd_rounds() {
    for (written, is_complete) in [("16300 100000\n", true), ("16000 100000\n", false)] {
        let root = tempfile::tempdir().unwrap();
        let runtime = UpdateRecorder {
            stored: Some(WANTED),
            writes: Some((root.path().join("pod/app/cpu.max"), written)),
            ..UpdateRecorder::default()
        };
        let (mut pass, runtime) = pass(root.path(), "17000", runtime);
        Arc::make_mut(&mut pass.node).traits.driver = Driver::Systemd;
        pass.targets.amounts.containers[0].resources.limits.cpu = Some(MilliCpu::new(163));
        let observed = pass.observe().unwrap();
        let synced = sync(&mut pass, &observed).await;
        assert_eq!(runtime.updates()[0].cpu_quota, Some(16_300));
        assert_eq!(synced.is_ok(), is_complete, "{written}{synced:?}");
    }
}

/// The record of an update of the container.
fn updated(from: CriResources, to: CriResources) -> StepRecord {
    StepRecord::planned(&Step {
        target: app(),
        change: Change::Spec { from, to },
    })
}

/// The updates that undo these, and how the pass ends.
async fn undone(outcome: Outcome, steps: Vec<StepRecord>, runtime: UpdateRecorder) -> (Vec<CriResources>, Outcome) {
    let root = tempfile::tempdir().unwrap();
    let (mut pass, runtime) = pass(root.path(), "100000", runtime);
    fs::write(root.path().join("pod/app/memory.max"), "134217728\n").unwrap();
    let handles = PodHandles::open(&pass.node.hierarchy, pass.job.targets.bound.live());
    pass.handles = handles.unwrap();
    let before = steps.len();
    pass.done.record.steps = steps;
    pass.done.record.outcome = outcome;
    undo(&mut pass).await;
    let record = &pass.done.record;
    assert!(record.steps[before..].iter().all(|step| step.rollback), "{record:?}");
    assert_eq!(record.steps.len() - before, runtime.updates().len());
    (runtime.updates(), record.outcome.clone())
}

fn rolled_back() -> Outcome {
    Outcome::RolledBack("refused".to_owned())
}

#[tokio::test]
async fn an_undo_restores_what_was_stored() {
    let incomplete = || Outcome::Incomplete("a file was not undone".to_owned());
    let old = CriResources {
        cpu_shares: Some(512),
        cpu_quota: Some(25_000),
        cpu_period: Some(50_000),
        memory_limit_in_bytes: Some(128 << 20),
    };
    let without_memory = |spec: CriResources| CriResources {
        memory_limit_in_bytes: None,
        ..spec
    };
    let none = CriResources::default();
    let shares = CriResources {
        cpu_shares: WANTED.cpu_shares,
        ..none
    };
    // CRI cannot unset a field, and cri-dockerd shows none.
    let held = CriResources {
        cpu_shares: None,
        memory_limit_in_bytes: Some(128 << 20),
        ..WANTED
    };
    for (outcome, from, to, expected) in [
        (rolled_back(), old, WANTED, Some(old)),
        (rolled_back(), none, WANTED, Some(held)),
        (rolled_back(), old, without_memory(WANTED), Some(without_memory(old))),
        (incomplete(), old, WANTED, Some(without_memory(old))),
        (rolled_back(), none, shares, None),
    ] {
        let (updates, ended) = undone(outcome.clone(), vec![updated(from, to)], UpdateRecorder::default()).await;
        assert_eq!(updates, Vec::from_iter(expected), "{from:?} {to:?}");
        assert_eq!(ended, outcome);
    }
}

#[tokio::test]
async fn updates_are_undone_from_last_to_first() {
    let memory = |mebibytes: i64| CriResources {
        memory_limit_in_bytes: Some(mebibytes << 20),
        ..CriResources::default()
    };
    let failed = StepRecord {
        error: Some("refused".to_owned()),
        ..updated(memory(192), memory(256))
    };
    let steps = || {
        vec![
            updated(memory(64), memory(128)),
            updated(memory(128), memory(192)),
            failed.clone(),
        ]
    };
    let (updates, ended) = undone(rolled_back(), steps(), UpdateRecorder::default()).await;
    assert_eq!((updates, ended), (vec![memory(128), memory(64)], rolled_back()));
    let runtime = UpdateRecorder {
        refuses: Some(refused()),
        ..UpdateRecorder::default()
    };
    let (updates, ended) = undone(rolled_back(), steps(), runtime).await;
    assert_eq!(updates.len(), 2, "each container gets back what it can");
    assert!(matches!(ended, Outcome::Incomplete(_)), "{ended:?}");
}

#[tokio::test]
async fn a_refused_update_undoes_the_files() {
    let undone: fn(&Outcome) -> bool = |outcome| matches!(outcome, Outcome::RolledBack(_));
    let owed: fn(&Outcome) -> bool = |outcome| matches!(outcome, Outcome::RuntimeOwed(_));
    for (problem, is_expected, held) in [
        (refused(), undone, "50000 100000"),
        (Problem::NoSocket, owed, "100000 100000"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let runtime = UpdateRecorder {
            stored: Some(CriResources {
                cpu_quota: Some(50_000),
                ..WANTED
            }),
            refuses: Some(problem),
            ..UpdateRecorder::default()
        };
        let (pass, runtime) = pass(root.path(), "50000", runtime);
        let Pass { node, job, .. } = *pass;
        let done = reconcile(node, job).await;
        assert!(is_expected(&done.record.outcome), "{done:#?}");
        assert_eq!(runtime.updates().len(), 1);
        for directory in ["pod", "pod/app"] {
            let text = fs::read_to_string(root.path().join(directory).join("cpu.max")).unwrap();
            assert_eq!(text.lines().next(), Some(held), "{directory}");
        }
    }
}
