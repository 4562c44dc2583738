//! `vscalectl decide` for people and scripts: table, messages, exit codes.

use std::fs;
use std::process::{Command, Output};

const WEB: &str = "
kind: StatefulSet
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}}
---
kind: VerticalPodAutoscaler
metadata: {name: web}
spec:
  targetRef: {kind: StatefulSet, name: web}
  resourcePolicy: {containerPolicies: [{containerName: app, maxAllowed: {cpu: 180m}}]}
status:
  recommendation:
    containerRecommendations:
    - {containerName: app, target: {cpu: 200m}, lowerBound: {cpu: 150m}, upperBound: {cpu: 400m}}
---
kind: Pod
metadata:
  name: web-0
  labels: {app: web}
  ownerReferences: [{kind: StatefulSet, name: web, controller: true}]
spec:
  nodeName: here
  containers:
  - {name: app, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 300m}}}
status: {phase: Running, qosClass: Burstable, startTime: '2026-03-01T11:00:00Z'}
";

fn decide(manifests: &str, arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pods.yaml");
    fs::write(&file, manifests).unwrap();
    Command::new(env!("CARGO_BIN_EXE_vscalectl"))
        .args(["decide", "--now", "2026-03-01T12:00:00Z", "-f", "pods.yaml"])
        .args(arguments)
        .current_dir(directory.path())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_table_shows_old_and_new_amounts_and_what_bounded_them() {
    let output = decide(WEB, &[]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "\
POD            VPA  ACTION  REASON       CONTAINER  RESOURCE  REQUEST      LIMIT
default/web-0  web  resize  OutOfBounds  app        cpu       100m → 180m  300m → 540m
                                                    memory    64Mi         -
default/web-0: app: cpu request 200m becomes 180m: the VPA's maxAllowed
"
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn json_leaves_out_what_is_unset() {
    let output = decide(WEB, &["-o", "json"]);
    let decided: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        decided,
        serde_json::json!({"pods": [{
            "namespace": "default", "name": "web-0", "vpa": "web", "action": "resize", "reason": "OutOfBounds",
            "containers": [
                {"name": "app", "requests": {"cpu": "180m", "memory": "64Mi"}, "limits": {"cpu": "540m"}}
            ],
            "notes": ["app: cpu request 200m becomes 180m: the VPA's maxAllowed"],
        }]})
    );
}

#[test]
fn unknown_kinds_and_idle_vpas_are_warnings() {
    let idle = "kind: VerticalPodAutoscaler\nmetadata: {name: idle}\nspec: {targetRef: {kind: Deployment, name: gone}}";
    let output = decide(
        &format!("{WEB}---\nkind: Secret\nmetadata: {{name: s}}\n---\n{idle}"),
        &[],
    );
    assert_eq!(
        stderr(&output),
        "vscalectl: warning: pods.yaml: document 4: Secret s ignored\n\
         vscalectl: warning: VerticalPodAutoscaler default/idle controls nothing: its target Deployment gone is not in the file\n"
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn an_unusable_field_is_named_and_ends_with_code_two() {
    let output = decide(&WEB.replace("cpu: 300m", "cpu: -300m"), &[]);
    let said = stderr(&output);
    assert!(
        said.starts_with(
            "vscalectl: pods.yaml: document 3 (Pod web-0): spec.containers[0].resources.limits.cpu: \"-300m\" is negative"
        ),
        "{said}"
    );
    assert_eq!((output.status.code(), output.stdout), (Some(2), Vec::new()));
}

#[test]
fn a_missing_file_and_a_bad_time_end_with_code_two() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vscalectl"));
        command.arg("decide").args(arguments).output().unwrap()
    };
    let missing = run(&["-f", "/absent.yaml"]);
    let said = stderr(&missing);
    assert!(
        said.starts_with("vscalectl: cannot read /absent.yaml: No such file"),
        "{said}"
    );
    assert_eq!(missing.status.code(), Some(2));
    assert_eq!(run(&["-f", "-", "--now", "yesterday"]).status.code(), Some(2));
}
