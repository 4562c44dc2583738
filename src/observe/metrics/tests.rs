//! What a scrape shows. The families of the whole agent are tested where they meet, in `agent::metrics`.

use prometheus_client::encoding::text::encode;

use super::*;
use crate::report::Destination;

#[test]
fn the_process_is_measured() {
    let mut text = String::new();
    encode(&mut text, &registry()).unwrap();
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
