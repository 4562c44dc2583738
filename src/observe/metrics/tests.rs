//! What a scrape shows.

use std::path::Path;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;

use super::*;
use crate::decide::Reason;
use crate::plan::Via;
use crate::report::{Destination, LogStatus};
use crate::resources::ControlFile;
use crate::runtime::{Call, Problem, RuntimeError};

fn no_answer() -> Result<(), RuntimeError> {
    let call = Call {
        method: "Version",
        socket: Path::new("/run/containerd.sock").into(),
        container: None,
    };
    let problem = Problem::Deadline {
        limit: Duration::from_secs(2),
    };
    Err(RuntimeError { call, problem })
}

/// The text of a scrape after everything has happened once.
fn scrape() -> String {
    let mut registry = registry();
    let resizes = ResizeMetrics::register(&mut registry);
    resizes.finished(
        ResizeOutcome::Applied,
        &[
            (Stage::Write, Duration::from_micros(200)),
            (Stage::Total, Duration::from_millis(3)),
        ],
    );
    resizes.step(Via::Cgroup, StepOutcome::Verified);
    resizes.drift_repaired(ControlFile::MemoryMax);
    resizes.set_foreign_writers(1);
    resizes.set_pods(PodState::InSync, 250);
    DecisionMetrics::register(&mut registry).decided(Reason::OutOfBounds);
    RuntimeMetrics::register(&mut registry).called("Version", Duration::from_secs(2), no_answer().as_ref().copied());
    ProblemMetrics::register(&mut registry).set(ProblemKind::Manifests, 2);
    let reports = ReportMetrics::register(&mut registry);
    reports.selected(Destination::Grpc);
    reports.told(Destination::Grpc, ReportOutcome::Acknowledged, 3);
    reports.link(Destination::Grpc, LinkOutcome::Established);
    let mut spool = LogStatus::default();
    spool.reports = 7;
    spool.totals.folded = 5;
    reports.spool(&spool);
    reports.spool(&spool);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

#[test]
fn what_happened_is_counted_under_its_labels() {
    let text = scrape();
    for line in [
        r#"vscaled_resizes_total{outcome="applied"} 1"#,
        r#"vscaled_resizes_total{outcome="rolled_back"} 0"#,
        r#"vscaled_resize_duration_seconds_bucket{le="0.00025",stage="write",outcome="applied"} 1"#,
        r#"vscaled_resize_duration_seconds_bucket{le="0.0025",stage="total",outcome="applied"} 0"#,
        r#"vscaled_steps_total{via="cgroup",outcome="verified"} 1"#,
        r#"vscaled_drift_repairs_total{file="memory.max"} 1"#,
        "vscaled_foreign_writers 1",
        r#"vscaled_pods{state="in_sync"} 250"#,
        r#"vscaled_pods{state="refused"} 0"#,
        r#"vscaled_decisions_total{action="resize",reason="OutOfBounds"} 1"#,
        r#"vscaled_runtime_calls_total{call="Version",outcome="timeout"} 1"#,
        r#"vscaled_problems{with="manifests"} 2"#,
        r#"vscaled_reports_total{destination="grpc",outcome="acknowledged"} 3"#,
        r#"vscaled_report_connections_total{destination="grpc",outcome="established"} 1"#,
        r#"vscaled_report_connected{destination="grpc"} 1"#,
        "vscaled_spool_reports 7",
        "vscaled_spool_folded_total 5",
        concat!(r#"vscaled_build_info{version=""#, env!("CARGO_PKG_VERSION"), r#""} 1"#),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn the_process_is_measured() {
    let text = scrape();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    assert!(value("vscaled_process_resident_memory_bytes") > 1e6);
    assert!(value("vscaled_process_open_fds") >= 3.0);
    assert!(value("vscaled_process_cpu_seconds_total") >= 0.0);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let start = value("vscaled_process_start_time_seconds");
    assert!(start > 0.0 && start <= now + 1.0, "{start} {now}");
}

/// The rows of the documentation's table: name, type and labels of each family.
fn documented() -> Vec<[String; 3]> {
    let rows = include_str!("../../../docs/metrics.md").lines();
    let cells = rows.filter_map(|line| Some(line.strip_prefix("| `vscaled_")?.split('|')));
    cells
        .map(|mut cells| {
            let mut cell = || cells.next().unwrap().trim().trim_end_matches('`').to_owned();
            [format!("vscaled_{}", cell()), cell(), cell()]
        })
        .collect()
}

#[test]
fn the_documentation_lists_every_family_with_its_type_and_labels() {
    let declared = families::ALL
        .iter()
        .map(|family| [family.name(), family.kind().to_owned(), family.labels().join(", ")]);
    assert_eq!(documented(), declared.collect::<Vec<_>>());
}

#[test]
fn a_family_is_shown_before_anything_has_happened() {
    let mut registry = registry();
    let _calls = RuntimeMetrics::register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert!(text.contains("# TYPE vscaled_runtime_calls counter\n"), "{text}");
    assert!(!text.contains("vscaled_runtime_calls_total"), "{text}");
}

#[test]
fn a_series_goes_away_with_what_it_counted() {
    static PER_POD: Declaration<Counter, 2> = Declaration::counter("kills", ["namespace", "pod"], "For this test");
    let mut registry = Registry::with_prefix("test");
    let kills = PER_POD.register(&mut registry);
    let counted = |pod: &str| {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text.contains(&format!(r#"test_kills_total{{namespace="shop",pod="{pod}"}} 1"#))
    };
    for pod in ["web", "db"] {
        kills.with(["shop".to_owned(), pod.to_owned()]).inc();
    }
    assert!(counted("web") && counted("db"));
    kills.remove(["shop", "web"]);
    assert!(!counted("web") && counted("db"));
}

#[test]
fn the_documentation_lists_every_value_of_a_label() {
    let documentation = include_str!("../../../docs/metrics.md");
    let values = [
        Stage::ALL.iter().map(|value| value.as_str()).collect::<Vec<_>>(),
        ResizeOutcome::ALL.iter().map(|value| value.as_str()).collect(),
        ShrinkOutcome::ALL.iter().map(|value| value.as_str()).collect(),
        StepOutcome::ALL.iter().map(|value| value.as_str()).collect(),
        CallOutcome::ALL.iter().map(|value| value.as_str()).collect(),
        PodState::ALL.iter().map(|value| value.as_str()).collect(),
        ProblemKind::ALL.iter().map(|value| value.as_str()).collect(),
        ReportOutcome::ALL.iter().map(|value| value.as_str()).collect(),
        LinkOutcome::ALL.iter().map(|value| value.as_str()).collect(),
        Destination::ALL.iter().map(|value| value.as_str()).collect(),
    ];
    for label in values {
        let list = format!("`{}`", label.join("`, `"));
        assert!(documentation.contains(&list), "docs/metrics.md does not say {list}");
    }
}
