//! What is left to be watched of a pass that did not come to its end.

use super::*;
use crate::model::{Change, CpuQuota, Setting, Settings, Step};

fn container(name: &str) -> Target {
    Target::Container(name.into())
}

fn limit(mebibytes: u64) -> Setting {
    Setting::MemoryLimit(MemoryLimit::Bytes(mebibytes << 20))
}

/// A report of these limits, lowered.
fn report(targets: &[Target]) -> ShrinkReport {
    let lowering = |target: &Target| Lowering {
        target: target.clone(),
        from: MemoryLimit::Bytes(200 << 20),
        to: Bytes::new(100 << 20),
        before: Before::of_test(),
    };
    ShrinkReport {
        lowered: targets.iter().map(lowering).collect(),
        touched: targets.to_vec(),
        ..ShrinkReport::default()
    }
}

fn file(target: &Target, from: Setting, to: Setting) -> StepRecord {
    let change = Change::File { from, to };
    let target = target.clone();
    StepRecord::planned(&Step { target, change })
}

fn failed(record: StepRecord) -> StepRecord {
    StepRecord {
        error: Some("gone".to_owned()),
        ..record
    }
}

fn undone(record: StepRecord) -> StepRecord {
    StepRecord {
        rollback: true,
        ..record
    }
}

fn kept(targets: &[Target], records: &[StepRecord]) -> Vec<Target> {
    let mut report = report(targets);
    report.retain_written(records);
    let lowered: Vec<_> = report.lowered.into_iter().map(|lowering| lowering.target).collect();
    assert_eq!(lowered, report.touched);
    lowered
}

#[test]
fn only_written_lower_limits_are_watched() {
    let [app, side, last] = ["app", "side", "tail"].map(container);
    let quota = |micros| Setting::CfsQuota(CpuQuota::Micros(micros));
    let records = [
        file(&last, quota(20_000), quota(10_000)),
        file(&app, limit(200), limit(100)),
        failed(file(&side, limit(200), limit(100))),
    ];
    assert_eq!(kept(&[app.clone(), side, last, Target::Pod], &records), [app]);
}

#[test]
fn only_unrestored_limits_are_watched() {
    let [app, side] = ["app", "side"].map(container);
    let records = [
        file(&app, limit(200), limit(100)),
        file(&side, limit(200), limit(100)),
        undone(file(&side, limit(100), limit(200))),
        failed(undone(file(&app, limit(100), limit(200)))),
    ];
    assert_eq!(kept(&[app.clone(), side], &records), [app]);
}

#[test]
fn a_units_memory_limit_is_one_as_well() {
    let unit = |from, to| {
        let [from, to] = [from, to].map(|value| Settings::from_iter([limit(value)]));
        let change = Change::Unit { from, to };
        let target = Target::Pod;
        StepRecord::planned(&Step { target, change })
    };
    assert_eq!(kept(&[Target::Pod], &[unit(200, 100)]), [Target::Pod]);
    assert_eq!(kept(&[Target::Pod], &[unit(200, 100), undone(unit(100, 200))]), []);
}

#[test]
fn an_unrestored_lower_limit_is_watched() {
    let app = container("app");
    let records = [
        failed(file(&app, limit(200), limit(100))),
        failed(undone(file(&app, limit(100), limit(200)))),
    ];
    assert_eq!(kept(std::slice::from_ref(&app), &records), [app]);
}
