//! Auditors of manifests find nothing that docs/audit-findings.md does not answer.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::chart::{CHART, Helm, set};
use super::{OVERLAYS, rendered};
use crate::support::image::output;

const PAGE: &str = include_str!("../../../docs/audit-findings.md");
/// The grade of a check without a finding.
const PASSED: u64 = 10;

/// The checks of kube-score that find something in these manifests.
fn findings(helm: &Helm, manifests: &str) -> BTreeSet<String> {
    let mut score = Command::new(helm.programs.kube_score());
    score.args(["score", "--output-format", "json", "-"]);
    let mut score = score.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    score.stdin.take().unwrap().write_all(manifests.as_bytes()).unwrap();
    // Its status says whether it found something.
    let printed = score.wait_with_output().unwrap().stdout;
    // It prints null for manifests without an object that it knows.
    let objects: Option<Vec<Value>> = serde_json::from_slice(&printed).unwrap();
    let objects = objects.unwrap_or_default();
    let checks = objects.iter().flat_map(|object| object["checks"].as_array().unwrap());
    let found = checks.filter(|check| check["skipped"] == false && check["grade"].as_u64().unwrap() < PASSED);
    found
        .map(|check| check["check"]["id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn kube_score_finds_what_the_page_answers_and_nothing_else() {
    let Some(helm) = Helm::new("cluster_deploy::audits") else {
        return;
    };
    let kubectl = helm.programs.kubectl();
    let mut all: Vec<_> = OVERLAYS
        .iter()
        .map(|overlay| (*overlay, rendered(&kubectl, overlay)))
        .collect();
    for values in [
        &[][..],
        &["monitoring=true", "admissionPolicy=true", "tests.enabled=true"],
    ] {
        let mut chart = helm.command(&["template", "vscaled", CHART]);
        set(
            &mut chart,
            &[&["image.repository=registry.example/vscaled"], values].concat(),
        );
        all.push((CHART, output(&mut chart)));
    }
    let mut found = BTreeSet::new();
    for (name, manifests) in all {
        let findings = findings(&helm, &manifests);
        let answered = |id: &str| PAGE.contains(&format!("`{id}`"));
        let unanswered: Vec<_> = findings.iter().filter(|id| !answered(id)).collect();
        assert!(unanswered.is_empty(), "{name}: {unanswered:?}");
        found.extend(findings);
    }
    let checks = output(Command::new(helm.programs.kube_score()).arg("list"));
    let ids = checks.lines().filter_map(|line| line.split(',').next());
    let answered: BTreeSet<_> = ids
        .filter(|id| PAGE.contains(&format!("`{id}`")))
        .map(str::to_owned)
        .collect();
    assert_eq!(answered, found, "answers to what kube-score does not find");
}
