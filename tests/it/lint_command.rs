//! `vscalectl lint` in pipelines: its input, its JSON and table, its exit codes.

use std::process::Output;

use serde_json::{Value, json};

use crate::support::vscalectl;

const WORKLOADS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: web, namespace: shop }
spec:
  template:
    spec:
      initContainers:
      - { name: wait, command: [sleep, "1"] }
      - { name: proxy, restartPolicy: Always, env: [{ name: GOMEMLIMIT, value: 90MiB }] }
      containers:
      - name: app
        command: [sh, -c, "exec java -Xmx256m -Xmx512m -jar app.jar"]
        resources: { limits: { memory: 512Mi } }
      - { name: quiet, args: [--verbose] }
---
apiVersion: batch/v1
kind: CronJob
metadata: { name: nightly }
spec: { jobTemplate: { spec: { template: { spec: { containers: [
  { name: report, env: [{ name: NODE_OPTIONS, value: "--max-old-space-size=$(HEAP)" }, { name: HEAP, value: "300" }] },
  { name: other, args: ["--max-old-space-size=$(HEAP)"], env: [{ name: HEAP, value: "300" }] } ] } } } } }
---
apiVersion: v1
kind: Pod
metadata: { generateName: once- }
spec: { containers: [{ name: app, env: [{ name: DOTNET_GCHeapHardLimitPercent, value: "4B" }] }] }
---
apiVersion: v1
kind: Service
metadata: { name: web }
"#;

fn lint(manifests: &str, arguments: &[&str]) -> Output {
    vscalectl(&[&["lint", "-f", "-"], arguments].concat(), manifests)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn json_names_workload_container_and_setting() {
    let output = lint(WORKLOADS, &["-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "vscalectl: errors: 1, warnings: 4\n");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = answer["findings"].as_array().unwrap();
    let keys = [
        "namespace",
        "workload",
        "container",
        "rule",
        "setting",
        "value",
        "severity",
        "source",
    ];
    let shown: Vec<Vec<&str>> = found
        .iter()
        .map(|one| keys.iter().map(|key| one[key].as_str().unwrap()).collect())
        .collect();
    let expected = [
        [
            "shop",
            "Deployment/web",
            "proxy",
            "FixedHeap",
            "GOMEMLIMIT",
            "90MiB",
            "warning",
            "env GOMEMLIMIT",
        ],
        [
            "shop",
            "Deployment/web",
            "app",
            "HeapFillsLimit",
            "-Xmx",
            "512m",
            "error",
            "command",
        ],
        [
            "default",
            "CronJob/nightly",
            "report",
            "ReadAtStart",
            "--max-old-space-size",
            "$(HEAP)",
            "warning",
            "env NODE_OPTIONS",
        ],
        [
            "default",
            "CronJob/nightly",
            "other",
            "FixedHeap",
            "--max-old-space-size",
            "300",
            "warning",
            "args",
        ],
        [
            "default",
            "Pod/once-",
            "app",
            "ReadAtStart",
            "DOTNET_GCHeapHardLimitPercent",
            "4B",
            "warning",
            "env DOTNET_GCHeapHardLimitPercent",
        ],
    ];
    assert_eq!(shown, expected);
    assert!(
        found.iter().all(|one| one["message"].as_str().unwrap().len() > 40),
        "{answer}"
    );
}

#[test]
fn the_table_has_a_message_for_each_finding() {
    let pod = "{kind: Pod, metadata: {name: web}, spec: {containers: [{name: app, args: ['-Xmx1g']}]}}";
    assert_eq!(
        text(&lint(pod, &[]).stdout),
        "\
NAMESPACE  WORKLOAD  CONTAINER  SEVERITY  RULE       SETTING  VALUE  SOURCE
default    Pod/web   app        warning   FixedHeap  -Xmx     1g     args

default/Pod/web app: -Xmx \"1g\" in args fixes the Java heap at 1Gi when the process starts: a higher memory limit does not \
enlarge it, and vscaled does not lower the limit below 1127Mi. Change -Xmx with the limit and restart, or use \
-XX:MaxRAMPercentage, which a restart reads again
"
    );
}

#[test]
fn nothing_to_say_ends_with_zero() {
    let output = lint(
        "{kind: Job, metadata: {name: one}, spec: {template: {spec: {containers: [{name: app}]}}}}",
        &["-o", "json"],
    );
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer, json!({"findings": []}));
}

#[test]
fn a_file_with_nothing_to_check_ends_with_one_and_says_so() {
    let output = lint("{kind: ConfigMap, metadata: {name: one}}", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("no Pod and no pod template"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn what_cannot_be_read_ends_with_two_and_names_the_field() {
    let job = "kind: Service\n---\n\
        {kind: Job, metadata: {name: one}, spec: {template: {spec: {containers: [{name: app, args: [1]}]}}}}";
    for (manifests, said) in [
        (
            job,
            "vscalectl: -: document 2 (Job one): spec.template.spec.containers[0].args[0]: 1 is refused: it must be",
        ),
        ("kind: Pod", "vscalectl: -: document 1 (Pod): metadata.name: required"),
        ("{", "vscalectl: -: not readable as YAML or JSON"),
        ("a: 1", "vscalectl: -: document 1: not a Kubernetes object"),
    ] {
        let output = lint(manifests, &[]);
        assert_eq!(output.status.code(), Some(2), "{manifests}");
        assert!(text(&output.stderr).starts_with(said), "{}", text(&output.stderr));
    }
}

/// Container and rule of each finding in a file of `tests/data/lint`.
fn rules_in(file: &str, arguments: &[&str]) -> Vec<[String; 2]> {
    let path = format!("{}/tests/data/lint/{file}", env!("CARGO_MANIFEST_DIR"));
    let output = lint(
        &std::fs::read_to_string(path).unwrap(),
        &[&["-o", "json"], arguments].concat(),
    );
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = answer["findings"].as_array().unwrap().iter();
    found
        .map(|one| ["container", "rule"].map(|key| one[key].as_str().unwrap().to_owned()))
        .collect()
}

#[test]
fn the_template_of_any_kind_is_that_of_pods() {
    assert_eq!(
        rules_in("templates-of-custom-kinds.yaml", &[]),
        ["rollout", "cloneset", "knative", "cronjob"].map(|container| [container, "HeapFillsLimit"])
    );
}

#[test]
fn an_unknown_kinds_meaning_is_named() {
    let other = "{kind: Form, metadata: {name: web}, spec: {template: {spec: {containers: {a: 1}}}}}";
    let output = lint(other, &[]);
    // Nothing else is in the file.
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.starts_with("vscalectl: warning: -: document 1 (Form web): spec.template.spec.containers"),
        "{said}"
    );
}

#[test]
fn a_heap_that_fills_its_limit_is_wrong() {
    let expected = [
        ["by-reference", "HeapFillsLimit"],
        ["by-value", "HeapFillsLimit"],
        ["chart-then-user", "FixedHeap"],
    ];
    assert_eq!(rules_in("gomemlimit-is-the-limit.yaml", &[]), expected);
}

#[test]
fn a_users_table_adds_variables_that_start_scripts_read() {
    let pod = "{kind: Pod, metadata: {name: web}, spec: {containers: [{name: app, env: [{name: OUR_HEAP_MB, value: '512'}]}]}}";
    assert_eq!(lint(pod, &[]).status.code(), Some(0));
    let directory = tempfile::tempdir().unwrap();
    let table = directory.path().join("variables");
    std::fs::write(&table, "# ours\nOUR_HEAP_MB -Xmx m\n").unwrap();
    let output = lint(pod, &["--variables", table.to_str().unwrap(), "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["findings"][0]["rule"], "FixedHeap");
    assert_eq!(answer["findings"][0]["value"], "512m");
    std::fs::write(&table, "OUR_HEAP_MB -Xmy\n").unwrap();
    let output = lint(pod, &["--variables", table.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("line 1: \"OUR_HEAP_MB -Xmy\" is no entry"));
}

#[test]
fn init_containers_are_told_what_keeps_them_back() {
    let pod = "{kind: Pod, metadata: {name: web}, spec: {initContainers: [
        {name: fixed, args: ['-Xmx1g']}, {name: share, args: ['-XX:MaxRAMPercentage=75']}, {name: wrong, args: ['-Xmx1x']},
        {name: side, restartPolicy: Always, args: ['-Xmx1g']}], containers: [{name: app}]}}";
    let answer: Value = serde_json::from_slice(&lint(pod, &["-o", "json"]).stdout).unwrap();
    let found = answer["findings"].as_array().unwrap().iter();
    let found: Vec<_> = found.map(|one| [&one["container"], &one["rule"]]).collect();
    assert_eq!(found, [["wrong", "UnreadableValue"], ["side", "FixedHeap"]]);
}

#[test]
fn a_pod_template_by_itself_is_read() {
    let template = "{kind: PodTemplate, metadata: {name: base}, template: {spec: {containers: [
        {name: app, env: [{name: GOMEMLIMIT, value: 90MiB}]}]}}}";
    let output = lint(template, &["-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["findings"][0]["workload"], "PodTemplate/base");
    assert_eq!(answer["findings"][0]["rule"], "FixedHeap");
}
