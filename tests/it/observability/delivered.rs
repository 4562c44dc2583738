//! The files in deploy/observability.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::selectors::selectors;
use super::{dashboard, sample_names};
use crate::architecture::pages::anchors;

const ALERTS: &str = include_str!("../../../deploy/observability/alerts.yaml");
const OPERATOR: &str = include_str!("../../../deploy/observability/operator.yaml");

/// All expressions of the alerts and of the dashboard.
pub(crate) fn expressions() -> Vec<String> {
    let alerts: Value = serde_saphyr::from_str(ALERTS).unwrap();
    let rules = alerts["groups"][0]["rules"].as_array().unwrap();
    let expressions = rules.iter().map(|rule| rule["expr"].as_str().unwrap().to_owned());
    expressions
        .chain(dashboard::queries().into_iter().map(|(_, query)| query))
        .collect()
}

#[test]
fn alerts_and_dashboard_use_only_metrics_that_exist() {
    let known = sample_names();
    let expressions = expressions();
    let selected = expressions.iter().flat_map(|expression| selectors(expression));
    let used: BTreeSet<_> = selected.map(|selector| selector.name).collect();
    assert!(used.len() > 10, "found hardly any names: {used:?}");
    let unknown: Vec<_> = used.difference(&known).collect();
    assert!(
        unknown.is_empty(),
        "no metric is called {unknown:?}; there are {known:#?}"
    );
}

#[test]
fn the_operator_gets_the_same_alerts() {
    let alerts: Value = serde_saphyr::from_str(ALERTS).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(OPERATOR).unwrap();
    let rule = objects
        .iter()
        .find(|object| object["kind"] == "PrometheusRule")
        .unwrap();
    assert_eq!(rule["spec"], alerts, "copy alerts.yaml below spec of operator.yaml");
    assert!(objects.iter().any(|object| object["kind"] == "PodMonitor"));
}

#[test]
fn the_documentation_says_what_each_alert_asks_for() {
    let documentation = include_str!("../../../docs/troubleshooting.md");
    let alerts: Value = serde_saphyr::from_str(ALERTS).unwrap();
    let rules = alerts["groups"][0]["rules"].as_array().unwrap();
    for rule in rules.iter().filter(|rule| rule.get("record").is_none()) {
        let alert = rule["alert"].as_str().unwrap();
        assert!(
            documentation.contains(alert),
            "docs/troubleshooting.md does not say what to do about {alert}"
        );
        let runbook = rule["annotations"]["runbook_url"].as_str().unwrap_or_default();
        let trouble = no_section(runbook);
        assert_eq!(trouble, None, "{alert}: {runbook}");
    }
}

/// Why a path of a page with an anchor names no section of the documentation.
fn no_section(path: &str) -> Option<&'static str> {
    let (page, anchor) = path.split_once('#').unwrap_or((path, ""));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    match fs::read_to_string(file) {
        Err(_) => Some("there is no such page"),
        Ok(text) if !anchor.is_empty() && !anchors(&text).iter().any(|known| known == anchor) => {
            Some("the page has no such heading")
        }
        Ok(_) => None,
    }
}

#[test]
fn sums_keep_the_cluster_and_alerts_wait_for_a_second_scrape() {
    let alerts: Value = serde_saphyr::from_str(ALERTS).unwrap();
    for rule in alerts["groups"][0]["rules"].as_array().unwrap() {
        let expression = rule["expr"].as_str().unwrap();
        for groups in expression.split("sum by (").skip(1) {
            let (labels, _) = groups.split_once(')').unwrap();
            let labels: Vec<_> = labels.split(',').map(str::trim).collect();
            assert!(
                labels.contains(&"cluster") && labels.contains(&"namespace"),
                "{expression}"
            );
        }
        // A kill is counted once it has happened, and no scrape invents one.
        let at_once = rule["alert"].is_null() || rule["alert"] == "VscaledOomKill";
        assert_eq!(rule.get("for").is_none(), at_once, "{rule}");
    }
}

#[test]
fn every_panel_has_a_place_of_its_own() {
    let dashboard = dashboard::read();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "two panels have the id of {}",
            panel["title"]
        );
        let place = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(
                    x < 24 && taken.insert((x, y)),
                    "{} overlaps another panel",
                    panel["title"]
                );
            }
        }
    }
}

#[test]
fn promtool_accepts_the_alerts_and_they_fire_when_they_should() {
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]] {
        let promtool = Command::new("promtool")
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/observability"))
            .args(arguments)
            .output()
            .expect("promtool runs (Debian: apt-get install prometheus)");
        let said = String::from_utf8_lossy(&promtool.stdout) + String::from_utf8_lossy(&promtool.stderr);
        assert!(promtool.status.success(), "promtool {arguments:?}:\n{said}");
    }
}
