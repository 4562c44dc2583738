//! Steps on plain files in the place of cgroups.

use std::fs;
use std::path::Path;

use super::*;
use crate::cgroup::CgroupError;
use crate::model::{CpuShares, LivePod};

/// A pod with the container `app`, as plain files with these values in both cgroups.
fn pod(root: &Path, files: &[(&str, &str)]) -> (Node, PodHandles) {
    let node = Node::on_files(root);
    for directory in ["pod", "pod/app"] {
        fs::create_dir_all(root.join(directory)).unwrap();
        for (name, value) in files {
            fs::write(root.join(directory).join(name), format!("{value}\n")).unwrap();
        }
    }
    let live = LivePod::on_files(["app"]);
    let handles = PodHandles::open(&node.hierarchy, &live).unwrap();
    (node, handles)
}

/// A step of the pod or of its container, from one value of a file to another.
fn step(target: &Target, file: &str, values: [&str; 2]) -> Step {
    let file = ControlFile::named(file).unwrap();
    let [from, to] = values.map(|value| Setting::parse(file, value).unwrap());
    Step::of_file(target.clone(), from, to)
}

fn value(handles: &PodHandles, target: &Target, file: ControlFile) -> String {
    let value = handles.get(target).unwrap().outer().read(file).unwrap();
    value.unwrap().to_string()
}

#[test]
fn a_failed_step_undoes_earlier_ones_in_reverse() {
    let root = tempfile::tempdir().unwrap();
    let (node, handles) = pod(root.path(), &[("cpu.max", "10000 100000"), ("cpu.weight", "39")]);
    let [of_pod, app] = [Target::Pod, Target::Container("app".into())];
    let plan = Plan {
        steps: vec![
            step(&of_pod, "cpu.max", ["10000 100000", "20000 100000"]),
            step(&app, "cpu.max", ["10000 100000", "20000 100000"]),
            // There is no such file.
            step(&app, "memory.max", ["4096", "8192"]),
            step(&app, "cpu.weight", ["39", "79"]),
        ],
    };
    let mut executor = Executor::new(&node, &handles);
    let ended = executor.run(&plan);
    assert!(matches!(ended, Err(Outcome::RolledBack(_))), "{ended:?}");
    let written = [&of_pod, &app].map(|target| value(&handles, target, ControlFile::CpuMax));
    assert_eq!(written, ["20000 100000"; 2]);
    executor.undo().unwrap();
    let undone = [&of_pod, &app].map(|target| value(&handles, target, ControlFile::CpuMax));
    assert_eq!(undone, ["10000 100000"; 2]);
    assert_eq!(value(&handles, &app, ControlFile::CpuWeight), "39");
    let records = executor.records.iter();
    let records: Vec<_> = records
        .map(|record| (&record.target, record.rollback, record.error.is_some()))
        .collect();
    assert_eq!(
        records,
        [
            (&of_pod, false, false),
            (&app, false, false),
            (&app, false, true),
            (&app, true, false),
            (&of_pod, true, false),
        ]
    );
}

#[test]
fn a_limit_below_use_ends_before_any_write() {
    let root = tempfile::tempdir().unwrap();
    let files = [
        ("cpu.max", "10000 100000"),
        ("memory.max", "16384"),
        ("memory.current", "12288"),
        ("memory.stat", "anon 8192\ninactive_file 4096"),
    ];
    let (node, handles) = pod(root.path(), &files);
    let app = Target::Container("app".into());
    for (limit, is_refused) in [("8192", false), ("4096", true)] {
        let steps = vec![
            step(&app, "cpu.max", ["10000 100000", "20000 100000"]),
            step(&app, "memory.max", ["16384", limit]),
        ];
        let mut executor = Executor::new(&node, &handles);
        let checked = executor.check_all(&Plan { steps });
        assert_eq!(matches!(checked, Err(Outcome::Refused(_))), is_refused, "{checked:?}");
        assert_eq!(executor.not_shrinkable, is_refused);
        assert_eq!(value(&handles, &app, ControlFile::CpuMax), "10000 100000");
    }
}

#[test]
fn a_failure_of_systemd_is_noted() {
    let root = tempfile::tempdir().unwrap();
    let (node, handles) = pod(root.path(), &[]);
    let failed = |error: StepError| {
        let mut executor = Executor::new(&node, &handles);
        let ended = executor.note_failure(&step(&Target::Pod, "cpu.weight", ["39", "79"]), &error);
        assert!(matches!(ended, Outcome::RolledBack(_)), "{ended:?}");
        executor.systemd_failed
    };
    assert!(failed(StepError::Systemd("the connection is broken".to_owned().into())));
    assert!(!failed(StepError::NotShrinkable("it is in use".to_owned())));
}

#[test]
fn a_unit_ends_with_its_cgroup() {
    let root = tempfile::tempdir().unwrap();
    let (_, handles) = pod(root.path(), &[]);
    let app = handles.get(&Target::Container("app".into())).unwrap();
    let is_gone = || unless_ended(app, "systemd has no such unit".to_owned().into()).is_gone();
    assert!(!is_gone());
    fs::remove_dir_all(root.path().join("pod/app")).unwrap();
    assert!(is_gone());
}

#[test]
fn no_step_lowers_memory_high_below_what_is_in_use() {
    let [high, max] =
        [Setting::MemoryHigh, Setting::MemoryMax].map(|setting| move |mib: u64| setting(MemoryLimit::Bytes(mib << 20)));
    let step = |change| Step {
        target: Target::Pod,
        change,
    };
    let file = |from, to| step(Change::File { from, to });
    let unit = |from: &[Setting], to: &[Setting]| {
        let [from, to] = [from, to].map(|settings| settings.iter().copied().collect());
        step(Change::Unit { from, to })
    };
    let both = unit(&[high(80), max(100)], &[high(40), max(50)]);
    let higher = unit(&[high(40), max(50)], &[high(80), max(100)]);
    let alone = file(high(80), high(40));
    let limit = unit(&[max(100)], &[max(50)]);
    for (before, used, written, is_left) in [
        (&both, 45, Some(&limit), true),
        (&both, 40, Some(&both), false),
        (&higher, 90, Some(&higher), false),
        (&alone, 45, None, true),
        (&alone, 40, Some(&alone), false),
    ] {
        let (step, left) = without_slow_down(before, || Some(Bytes::new(used << 20)));
        assert_eq!(step.as_ref(), written, "{before}");
        let left = left.map(|(left, _)| left);
        assert_eq!(left, is_left.then(|| alone.clone()), "{before}");
    }
}

#[test]
fn a_file_that_reads_differently_undoes_all() {
    let shares = |shares| Setting::CpuShares(CpuShares::new(shares));
    let change = Change::File {
        from: shares(100),
        to: shares(200),
    };
    let step = Step {
        target: Target::Pod,
        change,
    };
    let failed = |reason| {
        StepError::from(CgroupError {
            file: "/pod/cpu.shares".into(),
            reason,
        })
    };
    let mismatch = Reason::Mismatch {
        wanted: shares(200),
        read_back: shares(150),
    };
    let mismatch = failed(mismatch);
    assert_eq!(parts(&step, &mismatch), std::slice::from_ref(&step));
    let invalid = failed(Reason::Invalid { wanted: shares(200) });
    assert_eq!(parts(&step, &invalid), []);
    let root = tempfile::tempdir().unwrap();
    let (node, handles) = pod(root.path(), &[]);
    let is_noted = [&mismatch, &invalid].map(|error| {
        let mut executor = Executor::new(&node, &handles);
        executor.note_failure(&step, error);
        executor.mismatch
    });
    assert_eq!(is_noted, [true, false]);
    let [from, to] = [shares(100), shares(200)].map(|shares| Settings::from_iter([shares]));
    let unit = Step {
        target: Target::Pod,
        change: Change::Unit { from, to },
    };
    // systemd has the properties.
    assert_eq!(parts(&unit, &invalid), std::slice::from_ref(&unit));
    // The property of a scope follows its lower limit, and systemd may write the file before it fails.
    let refused = StepError::Systemd("it did not answer".to_owned().into());
    for failed in [&unit, &step] {
        assert_eq!(parts(failed, &refused), std::slice::from_ref(&step));
    }
}

#[test]
fn a_units_files_are_undone_as_well() {
    let root = tempfile::tempdir().unwrap();
    let (node, handles) = pod(root.path(), &[("cpu.max", "10000 100000"), ("cpu.weight", "39")]);
    let held = || [ControlFile::CpuMax, ControlFile::CpuWeight].map(|file| value(&handles, &Target::Pod, file));
    let settings = |max: &str, weight: &str| {
        let values = [(ControlFile::CpuMax, max), (ControlFile::CpuWeight, weight)];
        let settings = values.map(|(file, value)| Setting::parse(file, value).unwrap());
        Settings::from_iter(settings)
    };
    let unit = Step {
        target: Target::Pod,
        change: Change::Unit {
            from: settings("10000 100000", "39"),
            to: settings("20000 100000", "79"),
        },
    };
    let app = Target::Container("app".into());
    // There is no such file.
    let steps = vec![unit, step(&app, "memory.max", ["4096", "8192"])];
    let mut executor = Executor::new(&node, &handles);
    let ended = executor.run(&Plan { steps });
    assert!(matches!(ended, Err(Outcome::RolledBack(_))), "{ended:?}");
    assert_eq!(held(), ["20000 100000", "79"]);
    executor.undo().unwrap();
    assert_eq!(held(), ["10000 100000", "39"]);
}

/// Steps that raise the quota of the pod and of this container.
fn quotas(name: &str) -> Vec<Step> {
    let targets = [Target::Pod, Target::Container(name.into())];
    let steps = targets.map(|target| step(&target, "cpu.max", ["10000 100000", "20000 100000"]));
    Vec::from(steps)
}

#[test]
fn an_ended_container_interrupts_and_undoes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (node, handles) = pod(root.path(), &[("cpu.max", "10000 100000")]);
    let held = || value(&handles, &Target::Pod, ControlFile::CpuMax);
    let mut executor = Executor::new(&node, &handles);
    let ended = executor.run(&Plan { steps: quotas("side") });
    assert!(matches!(ended, Err(Outcome::Interrupted(_))), "{ended:?}");
    assert_eq!(
        held(),
        "10000 100000",
        "a container without a cgroup ends the pass before any write"
    );
    fs::remove_dir_all(root.path().join("pod/app")).unwrap();
    let ended = executor.run(&Plan { steps: quotas("app") });
    assert!(matches!(ended, Err(Outcome::Interrupted(_))), "{ended:?}");
    assert_eq!(executor.written, quotas("app")[..1]);
    assert_eq!(held(), "20000 100000");
    executor.written = quotas("app");
    executor.undo().unwrap();
    assert_eq!(held(), "10000 100000", "an undo goes on without it");
}

#[test]
fn an_undo_ends_where_a_step_fails() {
    let root = tempfile::tempdir().unwrap();
    let (node, handles) = pod(root.path(), &[("cpu.max", "20000 100000")]);
    fs::remove_file(root.path().join("pod/app/cpu.max")).unwrap();
    let mut executor = Executor::new(&node, &handles);
    executor.written = quotas("app");
    let failed = executor.undo().unwrap_err();
    assert!(failed.contains("pod/app/cpu.max"), "{failed}");
    assert_eq!(value(&handles, &Target::Pod, ControlFile::CpuMax), "20000 100000");
    let records = executor.records.iter();
    let records: Vec<_> = records
        .map(|record| (record.rollback, record.error.is_some()))
        .collect();
    assert_eq!(records, [(true, true)]);
}

#[test]
fn a_limit_without_room_is_not_shrinkable() {
    let root = tempfile::tempdir().unwrap();
    let files = [
        ("memory.max", "16777216"),
        ("memory.current", "12582912"),
        ("memory.stat", "anon 1048576\ninactive_file 11534336"),
        ("memory.reclaim", ""),
    ];
    let (node, handles) = pod(root.path(), &files);
    let app = Target::Container("app".into());
    let steps = vec![step(&app, "memory.max", ["16777216", "8388608"])];
    let mut executor = Executor::new(&node, &handles);
    let ended = executor.run(&Plan { steps });
    assert!(matches!(ended, Err(Outcome::RolledBack(_))), "{ended:?}");
    assert!(executor.not_shrinkable && executor.written.is_empty());
    assert_eq!(value(&handles, &app, ControlFile::MemoryMax), "16777216");
    // The limit keeps half a mebibyte free.
    let reclaimed = fs::read_to_string(root.path().join("pod/app/memory.reclaim")).unwrap();
    assert_eq!(reclaimed.trim(), (12_582_912 - (8_388_608 - (512 << 10))).to_string());
}
