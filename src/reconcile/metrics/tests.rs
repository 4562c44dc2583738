//! What a scrape of the whole agent shows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use prometheus_client::encoding::text::encode;
use strum::VariantArray;

use super::*;
use crate::agent::oom::published::KillMetrics;
use crate::decide::PodDecision;
use crate::kubernetes::Verb;
use crate::kubernetes::metrics::{ApiMetrics, EventMetrics};
use crate::model::ResourceList;
use crate::model::objects::Pod;
use crate::observe::metrics::registry;
use crate::reconcile::savings::Savings;
use crate::report::log::Totals;
use crate::report::metrics::{LinkOutcome, ReportMetrics, ReportOutcome};
use crate::report::testing::kill_of;
use crate::report::{Destination, LogStatus};
use crate::runtime::metrics::outcome;
use crate::runtime::{Problem, RuntimeMetrics};

const NO_ANSWER: Problem = Problem::Deadline {
    limit: Duration::from_secs(2),
};

/// The text of a scrape after everything has happened once.
fn scrape() -> String {
    let mut registry = registry();
    let pods = Metrics::register(&mut registry);
    pods.resizes.get_or_create(&[("outcome", "applied")]).inc();
    for (stage, seconds) in [("write", 0.000_2), ("total", 0.003)] {
        let labels = [("stage", stage), ("outcome", "applied")];
        pods.durations.get_or_create(&labels).observe(seconds);
    }
    pods.steps.get_or_create(&step_labels(Via::Cgroup, "verified")).inc();
    pods.repairs
        .get_or_create(&[("file", ControlFile::MemoryMax.name())])
        .inc();
    pods.counts[1].set(1);
    pods.by_status
        .get_or_create(&[("state", PodStatus::InSync.into())])
        .set(250);
    pods.decisions
        .get_or_create(&decision_labels(Reason::OutOfBounds))
        .inc();
    pods.problems.get_or_create(&[("with", "manifests")]).set(2);
    RuntimeMetrics::register(&mut registry).called("Version", Duration::from_secs(2), Some(&NO_ANSWER));
    let calls = ApiMetrics::register(&mut registry);
    calls.called(Verb::Get, "pods".to_owned(), "200".to_owned());
    calls.watching("pods");
    drop(EventMetrics::register(&mut registry));
    let pod = Arc::new(Pod::default());
    let mut follows = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
    follows.desired.before = Some(ResourceList::default());
    Savings::register(&mut registry).show(std::iter::once(&follows), Timestamp::now());
    KillMetrics::register(&mut registry).killed(&kill_of("web", 1), Instant::now());
    let totals = Totals::default();
    totals.folded.inc_by(5);
    let reports = ReportMetrics::register(&mut registry, &totals);
    reports.selected(Destination::Grpc);
    reports.count(Destination::Grpc, ReportOutcome::Acknowledged, 3);
    reports.link(Destination::Grpc, LinkOutcome::Established);
    let mut spool = LogStatus::default();
    spool.reports = 7;
    reports.show_log_status(&spool);
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

/// The alert VscaledResizesFail is about the incomplete ones.
#[test]
fn a_race_with_the_kubelet_is_no_failure() {
    let why = || "7000 is read back".to_owned();
    let ended = [Outcome::Interrupted(why()), Outcome::Incomplete(why())];
    assert_eq!(ended.map(|ended| super::outcome(&ended)), ["interrupted", "incomplete"]);
}

/// The rows of the documentation's table: name, type and labels of each family.
fn documented() -> BTreeMap<String, [String; 2]> {
    let rows = include_str!("../../../docs/metrics.md").lines();
    let cells = rows.filter_map(|line| Some(line.strip_prefix("| `")?.split('|')));
    let families = cells.filter_map(|mut cells| {
        let mut cell = || Some(cells.next()?.trim().trim_end_matches('`').to_owned());
        Some((cell()?, [cell()?, cell()?]))
    });
    families.filter(|(name, _)| name.starts_with("vscaled_")).collect()
}

/// What a scrape says of each family: its type and the labels of its series.
fn served(text: &str) -> BTreeMap<String, [String; 2]> {
    let types = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let families = types.map(|(family, kind)| {
        let name = if kind == "counter" {
            format!("{family}_total")
        } else {
            family.to_owned()
        };
        let of_family = |line: &&str| {
            let sample = line.split(['{', ' ']).next().unwrap();
            sample == name || (kind == "histogram" && sample.strip_suffix("_count") == Some(family))
        };
        let sample = text
            .lines()
            .find(of_family)
            .unwrap_or_else(|| panic!("{name} has no series in\n{text}"));
        let labels = sample
            .split_once('{')
            .map_or("", |(_, labels)| labels.split_once('}').unwrap().0);
        let names = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0));
        (name.clone(), [kind.to_owned(), names.collect::<Vec<_>>().join(", ")])
    });
    families.collect()
}

#[test]
fn every_family_is_documented() {
    assert_eq!(documented(), served(&scrape()));
}

#[test]
fn a_family_is_shown_from_the_start() {
    let mut registry = registry();
    let _calls = RuntimeMetrics::register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert!(text.contains("# TYPE vscaled_runtime_calls counter\n"), "{text}");
    assert!(!text.contains("vscaled_runtime_calls_total"), "{text}");
}

fn values_of<E: VariantArray + Into<&'static str> + Copy>() -> Vec<&'static str> {
    E::VARIANTS.iter().map(|value| (*value).into()).collect()
}

#[test]
fn the_documentation_lists_every_value_of_a_label() {
    let documentation = include_str!("../../../docs/metrics.md");
    let refused = Problem::Refused {
        code: tonic::Code::Internal,
        message: String::new(),
    };
    let calls = [
        None,
        Some(refused),
        Some(Problem::NotFound),
        Some(NO_ANSWER),
        Some(Problem::NoSocket),
        Some(Problem::Unimplemented),
    ];
    let values = [
        stages(&Stages::default()).map(|(stage, _)| stage).to_vec(),
        PASS_OUTCOMES.to_vec(),
        SHRINK_OUTCOMES.to_vec(),
        STEP_OUTCOMES.to_vec(),
        calls.map(|problem| outcome(problem.as_ref())).to_vec(),
        values_of::<PodStatus>(),
        PROBLEM_KINDS.to_vec(),
        values_of::<ReportOutcome>(),
        values_of::<LinkOutcome>(),
        values_of::<Destination>(),
    ];
    for label in values {
        let list = format!("`{}`", label.join("`, `"));
        assert!(documentation.contains(&list), "docs/metrics.md does not say {list}");
    }
}

#[test]
fn settings_that_no_resize_reaches_are_counted_by_rule() {
    let manifests = "{kind: Pod, metadata: {name: web}, spec: {containers: [{name: a, args: ['-Xmx1g', '-Xms1q']}, {name: b, env: \
        [{name: GOMEMLIMIT, value: 1GiB}]}]}}";
    let view = crate::sources::parse_manifests("test", manifests).unwrap().view;
    let index = crate::decide::Index::default();
    let now = Timestamp::UNIX_EPOCH;
    let known = crate::decide::EarlierDecisions::default();
    let decision = crate::decide::decide_pod(&view.pods[0], &index, now, &crate::decide::Options::default(), known);
    let state = PodState::new(Arc::clone(&view.pods[0]), decision);
    let mut registry = registry();
    Metrics::register(&mut registry).show(std::iter::once(&state), now);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for line in [
        r#"vscaled_lint_findings{rule="FixedHeap",severity="warning"} 2"#,
        r#"vscaled_lint_findings{rule="UnreadableValue",severity="error"} 1"#,
        r#"vscaled_lint_findings{rule="ReadAtStart",severity="warning"} 0"#,
    ] {
        assert!(text.contains(line), "{line} is missing from\n{text}");
    }
}

#[test]
fn a_scrape_during_a_count_sees_the_last() {
    let pod = Arc::new(Pod::default());
    let state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
    let now = Timestamp::UNIX_EPOCH;
    let metrics = Metrics::register(&mut registry());
    metrics.show(std::iter::once(&state), now);
    let labels = [("state", status(&state, now).into())];
    let shown = || metrics.by_status.get_or_create(&labels).get();
    let mut seen = Vec::new();
    metrics.show(std::iter::once(&state).inspect(|_| seen.push(shown())), now);
    assert_eq!((seen.as_slice(), shown()), (&[1][..], 1));
}
