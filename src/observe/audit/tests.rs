use super::*;
use crate::model::objects::PodId;
use crate::model::{Cause, Change, CpuMax, CpuQuota, Outcome, Reason, Resource, Setting, Stages, StepRecord, Target};
use crate::observe::log::LogFormat;
use crate::observe::log::tests::logged;
use crate::oom::{HitLimit, Level};
use crate::report::testing::kill_of;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn record(cause: Cause, outcome: Outcome, steps: Vec<StepRecord>) -> Arc<ChangeRecord> {
    Arc::new(ChangeRecord {
        sequence: 7,
        at: Timestamp::UNIX_EPOCH,
        pod: PodId {
            uid: "u1".into(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        },
        cause,
        outcome,
        in_flight: false,
        steps,
        stages: Stages {
            verified: Duration::from_micros(900),
            ..Stages::default()
        },
    })
}

fn cpu_max(quota: u64) -> Setting {
    Setting::CpuMax(CpuMax {
        quota: CpuQuota::Micros(quota),
        period_us: 100_000,
    })
}

fn step() -> StepRecord {
    StepRecord {
        target: Target::Container("app".into()),
        change: Change::File {
            from: cpu_max(20_000),
            to: cpu_max(50_000),
        },
        took: Duration::from_micros(80),
        error: None,
        rollback: false,
    }
}

fn options(directory: &Path) -> AuditOptions {
    AuditOptions {
        path: directory.join("audit.jsonl"),
        bytes: 1 << 20,
        files: 2,
        sync_within: Duration::from_millis(10),
    }
}

fn lines(directory: &Path) -> Vec<Value> {
    let text = fs::read_to_string(directory.join("audit.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The cause of a pass after a recommendation, with this resource version of its VPA.
pub(super) fn recommendation(version: &str) -> Cause {
    Cause::Recommendation {
        vpa: "web".to_owned(),
        version: version.to_owned(),
        reason: Reason::OutOfBounds,
    }
}

fn operator() -> Cause {
    Cause::Operator {
        uid: 1000,
        pid: 42,
        reason: "load test".to_owned(),
    }
}

#[tokio::test]
async fn each_value_is_a_line_with_its_cause() {
    let temp = tempfile::tempdir().unwrap();
    let (audit, task) = Audit::start(options(temp.path()));
    let vpa = recommendation("1234");
    audit.change(&record(vpa, Outcome::Applied, vec![step()]));
    let refused = Outcome::Refused("below usage".to_owned());
    audit.change(&record(operator(), refused, Vec::new()));
    drop(audit);
    task.await.unwrap();
    let pod = json!({"uid": "u1", "namespace": "shop", "name": "web"});
    assert_eq!(
        lines(temp.path()),
        [
            json!({"event": "change", "time": "1970-01-01T00:00:00Z", "change": 7, "pod": pod,
                "who": {"kind": "vpa", "name": "web", "resourceVersion": "1234"},
                "why": "recommendation of VPA web (OutOfBounds)", "via": "cgroup", "level": "container",
                "container": "app", "file": "cpu.max", "old": "20000 100000", "new": "50000 100000", "tookUs": 80,
                "rollback": false, "outcome": "Applied", "verifiedUs": 900}),
            json!({"event": "change", "time": "1970-01-01T00:00:00Z", "change": 7, "pod": pod,
                "who": {"kind": "operator", "uid": 1000, "pid": 42, "reason": "load test"},
                "why": "operator (uid 1000, pid 42): load test", "outcome": "Refused", "reason": "below usage",
                "verifiedUs": 900}),
        ]
    );
}

#[tokio::test]
async fn lines_lost_to_a_full_disk_are_counted() {
    let temp = tempfile::tempdir().unwrap();
    // A directory in the file's place makes every write fail, also for root.
    fs::create_dir(temp.path().join("audit.jsonl")).unwrap();
    let (audit, task) = Audit::start(options(temp.path()));
    let change = record(operator(), Outcome::Applied, vec![step(), step()]);
    audit.change(&change);
    while audit.problem().is_none() {
        tokio::task::yield_now().await;
    }
    let problem = audit.problem().unwrap();
    assert!(
        problem.starts_with("audit log: 2 lines are lost: cannot open") && problem.contains("auditLog"),
        "{problem}"
    );

    fs::remove_dir(temp.path().join("audit.jsonl")).unwrap();
    audit.change(&change);
    while audit.problem().is_some() {
        tokio::task::yield_now().await;
    }
    drop(audit);
    task.await.unwrap();
    let lines = lines(temp.path());
    assert_eq!((&lines[0]["event"], &lines[0]["lines"]), (&json!("lost"), &json!(2)));
    assert_eq!(lines.len(), 3);
}

#[test]
fn a_full_disk_is_logged_once_a_minute() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("audit.jsonl")).unwrap();
    let mut writer = AuditWriter {
        file: RotatedFile::new(options(temp.path())),
        of_operators: RotatedFile::new(options(temp.path()).of_operators()),
        state: Arc::default(),
        sync_due: None,
        logged: RateLimiter::new(REPEATED_LINES, Instant::now()),
    };
    let event = [("{}\n".to_owned(), false)];
    let text = logged(LogFormat::Text, "error", |_| {
        (0..3).for_each(|_| writer.write(&event, false));
    });
    assert_eq!(text.lines().count(), 1, "{text}");
    let problem = writer.state.problem.lock().clone().unwrap();
    assert!(problem.starts_with("audit log: 3 lines are lost"), "{problem}");
}

#[tokio::test]
async fn a_copy_that_fails_costs_no_line() {
    let temp = tempfile::tempdir().unwrap();
    let copy = temp.path().join("audit.operators.jsonl");
    fs::create_dir(&copy).unwrap();
    let (audit, task) = Audit::start(options(temp.path()));
    audit.change(&record(operator(), Outcome::Applied, vec![step(), step()]));
    while audit.problem().is_none() {
        tokio::task::yield_now().await;
    }
    let problem = audit.problem().unwrap();
    assert!(
        problem.starts_with("audit log: 2 lines are lost: cannot open") && problem.contains("audit.operators.jsonl"),
        "{problem}"
    );

    fs::remove_dir(&copy).unwrap();
    while audit.problem().is_some() {
        tokio::task::yield_now().await;
    }
    drop(audit);
    task.await.unwrap();
    let events: Vec<Value> = lines(temp.path()).iter().map(|line| line["event"].clone()).collect();
    assert_eq!(events, ["change", "change"]);
    let lost = fs::read_to_string(&copy).unwrap();
    assert!(
        lost.starts_with(r#"{"event":"lost""#) && lost.ends_with("\"lines\":2}\n"),
        "{lost}"
    );
}

#[tokio::test]
async fn a_flood_of_refusals_is_two_lines() {
    let temp = tempfile::tempdir().unwrap();
    let (audit, task) = Audit::start(options(temp.path()));
    for _ in 0..100 {
        audit.refused(Refusal {
            time: Timestamp::UNIX_EPOCH,
            uid: 65534,
            pid: 0,
            call: "resize",
            pod: None,
            reason: "only root may".to_owned(),
        });
    }
    drop(audit);
    task.await.unwrap();
    let lines = lines(temp.path());
    let shown: Vec<_> = lines.iter().map(|line| (&line["times"], line.get("pid"))).collect();
    assert_eq!(shown, [(&json!(1), None), (&json!(99), None)], "its PID is unknown");
}

#[test]
fn without_a_file_nothing_is_kept() {
    let audit = Audit::default();
    audit.change(&record(operator(), Outcome::Applied, vec![step()]));
    assert_eq!(audit.problem(), None);
}

/// A named pipe takes lines and cannot be synced, whoever asks.
#[tokio::test]
async fn a_failed_sync_is_reported_and_counts_no_loss() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("audit.jsonl");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (audit, task) = Audit::start(options(temp.path()));
    let change = record(operator(), Outcome::Applied, vec![step()]);
    audit.change(&change);
    while audit.problem().is_none() {
        tokio::task::yield_now().await;
    }
    let problem = audit.problem().unwrap();
    assert!(problem.starts_with("audit log: cannot sync"), "{problem}");
    // It stands for as long as the disk does not say otherwise, however often it is asked.
    tokio::time::sleep(options(temp.path()).sync_within * 5).await;
    assert!(audit.problem().is_some());

    fs::remove_file(&path).unwrap();
    audit.change(&change);
    drop(audit);
    task.await.unwrap();
    assert_eq!(lines(temp.path()).len(), 1);
}

#[tokio::test]
async fn a_new_agent_continues_where_one_ended() {
    let temp = tempfile::tempdir().unwrap();
    let small = || AuditOptions {
        bytes: 1000,
        files: 3,
        ..options(temp.path())
    };
    for number in 0..6 {
        let (audit, task) = Audit::start(small());
        let change = ChangeRecord {
            sequence: number,
            ..ChangeRecord::clone(&record(operator(), Outcome::Applied, vec![step()]))
        };
        audit.change(&Arc::new(change));
        drop(audit);
        task.await.unwrap();
    }
    let file = |ending: &str| fs::read_to_string(temp.path().join(format!("audit.jsonl{ending}"))).unwrap();
    let changes = |text: String| -> Vec<u64> {
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line["change"].as_u64().unwrap()).collect()
    };
    let found = [".2", ".1", ""].map(|ending| changes(file(ending)));
    assert_eq!(found, [vec![0, 1], vec![2, 3], vec![4, 5]]);
}

#[tokio::test]
async fn operators_changes_have_their_own_file() {
    let temp = tempfile::tempdir().unwrap();
    let (audit, task) = Audit::start(AuditOptions {
        bytes: 4096,
        ..options(temp.path())
    });
    audit.change(&record(operator(), Outcome::Applied, vec![step()]));
    let vpa = recommendation("1234");
    let change = record(vpa, Outcome::Applied, vec![step()]);
    (0..1000).for_each(|_| audit.change(&change));
    drop(audit);
    task.await.unwrap();
    let text = |name: &str| fs::read_to_string(temp.path().join(name)).unwrap();
    assert!(!text("audit.jsonl").contains("load test") && !text("audit.jsonl.1").contains("load test"));
    let kept = text("audit.operators.jsonl");
    assert!(kept.lines().count() == 1 && kept.contains("load test"), "{kept}");
}

#[test]
fn a_flood_leaves_room_for_operators_changes() {
    for steps in [1, 1000] {
        let (events, waiting) = sync_channel(WAITING);
        let audit = Audit {
            events: Some(events),
            ..Audit::default()
        };
        let change = record(recommendation("1234"), Outcome::Applied, vec![step(); steps]);
        (0..2 * WAITING).for_each(|_| audit.change(&change));
        audit.change(&record(operator(), Outcome::Applied, vec![step()]));
        let dropped = audit.state.dropped.load(Ordering::Relaxed);
        drop(audit);
        let queued: Vec<AuditEvent> = waiting.into_iter().collect();
        let weight: usize = queued.iter().map(AuditEvent::weight).sum();
        assert!(weight <= WAITING_LINES, "{weight}");
        assert_eq!(dropped, ((2 * WAITING + 1 - queued.len()) * steps) as u64, "lines");
        let last = queued.last();
        let is_operators = |event: &AuditEvent| matches!(event, AuditEvent::Change(change) if Actor::from(&change.cause).is_operator());
        assert!(last.is_some_and(is_operators), "{steps}: {last:?}");
    }
}

#[test]
fn lines_lost_to_a_slow_disk_are_a_problem() {
    // Nothing takes events out of the queue.
    let (events, _waiting) = sync_channel(1);
    let audit = Audit {
        events: Some(events),
        ..Audit::default()
    };
    let change = record(operator(), Outcome::Applied, vec![step(), step()]);
    audit.change(&change);
    assert_eq!(audit.problem(), None);
    audit.change(&change);
    let problem = audit.problem().unwrap();
    assert!(
        problem.starts_with("audit log: 2 lines are lost: the disk is slow"),
        "{problem}"
    );
}

#[test]
fn each_cause_has_its_author() {
    let text = || "app".to_owned();
    let released = |pid| Cause::Released {
        uid: 1000,
        pid,
        reason: "load test".to_owned(),
    };
    let guarded = |resource| Cause::Guard {
        container: text(),
        resource,
        why: None,
    };
    let kept = Cause::OverrideKept {
        uid: 1000,
        pid: 42,
        reason: text(),
    };
    let by_operator = json!({"kind": "operator", "uid": 1000, "pid": 42, "reason": "load test"});
    let (guard, agent) = (json!({"kind": "guard"}), json!({"kind": "agent"}));
    for (cause, who) in [
        (
            recommendation(""),
            json!({"kind": "vpa", "name": "web", "resourceVersion": ""}),
        ),
        (operator(), by_operator.clone()),
        (released(42), by_operator),
        (
            released(0),
            json!({"kind": "operator", "uid": 1000, "reason": "load test"}),
        ),
        (guarded(Resource::Cpu), guard.clone()),
        (
            Cause::TemporaryLimitEnded {
                container: text(),
                resource: Resource::Memory,
            },
            guard.clone(),
        ),
        (
            Cause::TemporaryLimitDenied {
                container: text(),
                why: text(),
            },
            guard,
        ),
        (Cause::BoostEnded { vpa: text() }, agent.clone()),
        (Cause::OverrideEnded, agent.clone()),
        (kept, agent.clone()),
        (Cause::FailedShrink { why: text() }, agent.clone()),
        (Cause::Drift, agent.clone()),
        (Cause::Retry, agent),
    ] {
        assert_eq!(serde_json::to_value(Actor::from(&cause)).unwrap(), who, "{cause}");
    }
}

#[test]
fn an_undone_step_is_marked_with_its_error() {
    let undone = StepRecord {
        target: Target::Pod,
        change: Change::Unit {
            from: [cpu_max(20_000)].into_iter().collect(),
            to: [cpu_max(50_000)].into_iter().collect(),
        },
        error: Some("EBUSY".to_owned()),
        rollback: true,
        ..step()
    };
    let record = record(Cause::Drift, Outcome::RolledBack("busy".to_owned()), vec![undone]);
    let lines = line::of_change(&record);
    assert_eq!(lines.len(), 1);
    assert_eq!(
        serde_json::from_str::<Value>(&lines[0]).unwrap(),
        json!({"event": "change", "time": "1970-01-01T00:00:00Z", "change": 7,
            "pod": {"uid": "u1", "namespace": "shop", "name": "web"}, "who": {"kind": "agent"},
            "why": "drift: another program changed a value", "via": "systemd", "level": "pod",
            "old": "cpu.max=20000 100000", "new": "cpu.max=50000 100000", "tookUs": 80, "error": "EBUSY",
            "rollback": true, "outcome": "RolledBack", "reason": "busy", "verifiedUs": 900})
    );
}

#[test]
fn a_kill_is_a_line_with_its_limit() {
    let mut kill = kill_of("web", 5);
    (kill.facts.level, kill.facts.container_limit) = (Level::Pod, Some(HitLimit::default()));
    assert_eq!(
        serde_json::from_str::<Value>(&line::of_kill(&kill)).unwrap(),
        json!({"event": "kill", "time": "2023-11-14T22:13:25Z", "id": "web-5",
            "pod": {"namespace": "shop", "name": "web", "uid": "uid-of-web"}, "container": "app", "level": "pod",
            "limitOf": "container", "limitBytes": 64 << 20, "pid": 5, "confidence": "exact"})
    );
    let counted: Value = serde_json::from_str(&line::of_count("moreKills", Some("shop"), "kills", 3)).unwrap();
    assert_eq!(
        (&counted["event"], &counted["namespace"], &counted["kills"]),
        (&json!("moreKills"), &json!("shop"), &json!(3))
    );
}
