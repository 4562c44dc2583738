//! `vscalectl decide` decides as upstream's updater does. The conformance cases below `tests/data/vpa-decisions` come
//! from upstream's own tests (see their README). The built program runs each of them.

mod compare;

use std::fs;
use std::path::{Path, PathBuf};

use compare::differences;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::support::vscalectl;

/// The time of all decisions.
const NOW: &str = "2026-03-01T12:00:00Z";

#[derive(Deserialize)]
struct Suite {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    origin: String,
    manifests: String,
    expect: Value,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vpa-decisions/public")
}

fn read_yaml<T: DeserializeOwned>(path: &Path) -> T {
    let text = fs::read_to_string(path).unwrap();
    // `n` is a name in these files, not a boolean.
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(&text, options).unwrap()
}

/// Replaces `{{now}}`, `{{now-13h}}`, `{{now+1h30m}}` by times.
fn with_times(manifests: &str) -> String {
    let now: Timestamp = NOW.parse().unwrap();
    let mut parts = manifests.split("{{now");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (offset, rest) = part.split_once("}}").unwrap();
        let time = now + offset_of(offset);
        text.push_str(&format!("{time:.0}{rest}"));
    }
    text
}

/// Parses a duration such as `-1h30m`.
fn offset_of(text: &str) -> SignedDuration {
    let (sign, mut rest) = match text.split_at_checked(1) {
        None => return SignedDuration::ZERO,
        Some(("-", rest)) => (-1, rest),
        Some((_, rest)) => (1, rest),
    };
    let mut seconds = 0;
    while let Some(unit) = rest.find(['d', 'h', 'm', 's']) {
        let factor = match &rest[unit..=unit] {
            "d" => 86_400,
            "h" => 3600,
            "m" => 60,
            _ => 1,
        };
        seconds += rest[..unit].parse::<i64>().unwrap() * factor;
        rest = &rest[unit + 1..];
    }
    SignedDuration::from_secs(sign * seconds)
}

/// The differences between the answer to a case and the expectation; empty if the answer is right.
fn run(case: &Case) -> Vec<String> {
    let output = vscalectl(
        &["decide", "-f", "-", "-o", "json", "--now", NOW],
        &with_times(&case.manifests),
    );
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return vec![format!("{}: {said}", output.status)];
    }
    let got: Value = serde_json::from_slice(&output.stdout).unwrap();
    differences(&case.expect, &got)
}

fn run_suite(name: &str) {
    let suite: Suite = read_yaml(&directory().join(format!("{name}.yaml")));
    assert!(!suite.cases.is_empty());
    let mut failures = String::new();
    for case in &suite.cases {
        for difference in run(case) {
            failures.push_str(&format!("\n{} ({})\n    {difference}", case.name, case.origin));
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

macro_rules! suites {
    ($($test:ident: $name:literal,)*) => {
        const SUITES: &[&str] = &[$($name),*];

        $(
            #[test]
            fn $test() {
                run_suite($name);
            }
        )*
    };
}

suites! {
    status_says_what_is_in_force: "actual-resources",
    limit_ranges_bound_containers: "container-limitrange",
    limits_keep_their_ratio_to_requests: "limits",
    pods_find_the_vpa_of_their_workload: "matching",
    modes_say_whether_running_pods_change: "modes",
    pods_of_one_input_do_not_mix: "multi",
    containers_not_observed_do_not_trigger: "observed-containers",
    limit_ranges_bound_whole_pods: "pod-limitrange",
    pods_that_do_not_run_here_are_left_alone: "pod-state",
    the_exact_policy_counts: "policies",
    policies_bound_requests: "policy",
    a_change_needs_a_reason: "priority",
    requests_and_limits_follow_the_target: "provider",
    the_qos_class_does_not_change: "qos",
    a_quick_kill_for_memory_is_a_reason: "quick-oom",
    no_container_is_restarted: "restart-policy",
    a_boost_ends: "v18-boost",
    pods_of_daemon_sets_change: "v18-daemon-set",
    rules_combine: "v18-mix",
    a_quick_kill_ages: "v18-quick-oom-age",
    a_pending_resize_is_no_reason_of_its_own: "v18-resize-status",
    rows_of_upstreams_tables: "v18-rows",
    sidecars_follow_their_recommendation: "v18-sidecar",
}

#[test]
fn every_suite_is_run() {
    let mut found: Vec<String> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    found.sort_unstable();
    assert_eq!(found, SUITES);
}

#[test]
fn a_wrong_answer_is_noticed() {
    let suite: Suite = read_yaml(&directory().join("limits.yaml"));
    let mut case = suite.cases.into_iter().next().unwrap();
    assert_eq!(run(&case), Vec::<String>::new());
    case.expect["pods"][0]["containers"][0]["requests"]["cpu"] = Value::from("1234m");
    assert_eq!(run(&case).len(), 1);
    case.expect["pods"][0]["vpa"] = Value::Null;
    assert_eq!(run(&case).len(), 2);
}
