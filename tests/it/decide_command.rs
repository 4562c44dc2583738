//! `vscalectl decide` for people and scripts: table, messages, exit codes.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

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
    let decided: Value = serde_json::from_slice(&output.stdout).unwrap();
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
fn what_restarts_nothing_is_shown_apart() {
    let manifests = WEB
        .replace(
            "{cpu: 200m}, lowerBound: {cpu: 150m}, upperBound: {cpu: 400m}",
            "{cpu: 200m, memory: 96Mi}, lowerBound: {cpu: 150m, memory: 80Mi}, upperBound: {cpu: 400m, memory: 1Gi}",
        )
        .replace(
            "{name: app, resources:",
            "{name: app, resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}], resources:",
        );
    let text = String::from_utf8(decide(&manifests, &[]).stdout).unwrap();
    assert!(text.contains("web  skip    RestartRequired"), "{text}");
    assert!(
        text.ends_with(
            "default/web-0: app: cpu is changed without a restart: request 100m → 180m, limit 300m → 540m\n"
        ),
        "{text}"
    );
    let decided: Value = serde_json::from_slice(&decide(&manifests, &["-o", "json"]).stdout).unwrap();
    let part = &decided["pods"][0]["withoutRestart"][0];
    assert_eq!(part["requests"], json!({"cpu": "180m", "memory": "64Mi"}), "{decided}");
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
fn a_warning_that_nobody_reads_changes_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, format!("{WEB}---\nkind: Secret\nmetadata: {{name: s}}")).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_vscalectl"));
    command.args(["decide", "-o", "json", "-f"]).arg(file.path());
    let output = command.stderr(writer).output().unwrap();
    let decided: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(decided["pods"][0]["name"], "web-0");
}

#[test]
fn a_file_without_pods_ends_with_code_one_and_says_so() {
    let output = decide("{kind: ConfigMap, metadata: {name: one}}", &["-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("pods.yaml: no Pod in it"),
        "{}",
        stderr(&output)
    );
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed, serde_json::json!({"pods": []}));
}

#[test]
fn a_duplicate_key_is_named_with_both_lines() {
    let output = decide("kind: Pod\nmetadata:\n  name: a\n  namespace: b\n  name: c\n", &[]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("lines 3 and 5 have the same key name"), "{said}");
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

#[test]
fn no_field_brings_a_control_character_to_the_terminal() {
    // C0, DEL, C1, bidirectional, zero-width and a tag.
    let hostile = "x\u{1b}[2J\r\nERROR\u{7f}\u{9b}31m\u{85}\u{202e}\u{2066}\u{200b}\u{200d}\u{feff}\u{e0041}";
    let owner = json!({"kind": "StatefulSet", "name": "web", "controller": true});
    let vpa = |name: &str, target: Value, target_of: &str| {
        let amounts = json!({"cpu": "200m"});
        json!({"kind": "VerticalPodAutoscaler",
            "metadata": {"name": name, "annotations": {"vscaled.io/act": hostile, "vscaled.io/canary": hostile, hostile: hostile}},
            "spec": {"targetRef": target, "recommenders": [{"name": hostile}],
                "resourcePolicy": {"containerPolicies": [{"containerName": target_of, "maxAllowed": {"cpu": "180m"}, hostile: hostile}]}},
            "status": {"conditions": [{"type": hostile, "status": hostile, "message": hostile}],
                "recommendation": {"containerRecommendations": [
                    {"containerName": target_of, "target": amounts, "lowerBound": amounts, "upperBound": amounts}]}}})
    };
    let objects = [
        json!({"kind": "StatefulSet", "metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}}),
        vpa("web", json!({"kind": "StatefulSet", "name": "web"}), "app"),
        vpa("idle", json!({"kind": hostile, "name": hostile}), hostile),
        json!({"kind": format!("Gadget{hostile}"), "metadata": {"name": hostile, "namespace": hostile}}),
        json!({"kind": "Pod",
            "metadata": {"name": "web-0", "labels": {"app": "web", hostile: hostile}, "ownerReferences": [owner],
                "annotations": {"vscaled.io/ignore": hostile, "vpaObservedContainers": hostile, "vpaCpuStartupBoost/app": hostile}},
            "spec": {"nodeName": "here", "containers": [
                {"name": "app", "command": ["java", format!("-Xmx1{hostile}")], "resources": {"requests": {"cpu": "100m"}},
                 "env": [{"name": "JAVA_TOOL_OPTIONS", "value": format!("-Xms{hostile}")}, {"name": hostile, "value": hostile}]}]},
            "status": {"phase": "Running", "conditions": [{"type": hostile, "status": "True", "message": hostile}]}}),
    ];
    // YAML has no raw control characters, but every JSON escape.
    let escaped = |one: char| match one {
        ' '..='~' | '\n' => one.to_string(),
        other => other
            .encode_utf16(&mut [0; 2])
            .iter()
            .map(|unit| format!("\\u{unit:04x}"))
            .collect(),
    };
    let manifests = objects.map(|object| object.to_string().chars().map(escaped).collect::<String>());
    let manifests = manifests.join("\n---\n");
    let is_dangerous = |one: char| {
        one != '\n' && (one.is_control() || "\u{202e}\u{2066}\u{200b}\u{200d}\u{feff}\u{e0041}".contains(one))
    };
    for format in ["table", "json", "yaml"] {
        let output = decide(&manifests, &["-o", format]);
        let (shown, said) = (String::from_utf8(output.stdout.clone()).unwrap(), stderr(&output));
        assert!(
            output.status.success() && said.contains("controls nothing") && shown.contains("web-0"),
            "{said}"
        );
        for text in [&shown, &said] {
            assert!(!text.contains(is_dangerous), "{format}: {text:?}");
            assert!(
                !text.lines().any(|line| line.starts_with("ERROR")),
                "{format}: a forged line: {text}"
            );
        }
        if format == "table" {
            continue;
        }
        // The notations still hold the texts as they are: YAML here is a superset of JSON.
        let pods: Value = serde_saphyr::from_str(&shown).unwrap();
        let notes = pods["pods"][0]["notes"].to_string();
        assert!(pods["pods"][0]["name"] == "web-0", "{notes}");
    }
}

/// Inputs after public bug reports: the action and the reason, each container's requests and limits, and a word of a note.
#[test]
fn reported_cases_are_decided_as_they_should_be() {
    let report = |name: &str| {
        let file = format!("{}/tests/data/decide-reports/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let output = Command::new(env!("CARGO_BIN_EXE_vscalectl"))
            .args(["decide", "--now", "2026-11-25T12:00:00Z", "-o", "json", "-f", &file])
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        answer["pods"][0].clone()
    };
    let outcome = |name: &str, reason: &str| {
        let pod = report(name);
        assert_eq!(pod["reason"], reason, "{name}: {pod}");
        pod
    };
    assert_eq!(
        outcome("rollout", "OutOfBounds")["containers"][0]["requests"]["cpu"],
        "160m"
    );
    assert_eq!(outcome("old-quick-oom", "InRange")["action"], "none");
    let refused = outcome("bound-of-half-a-byte", "BoundUnreadable");
    assert!(
        refused["notes"].to_string().contains("maxAllowed.memory: 500m"),
        "{refused}"
    );
    let ratio = outcome("limit-request-ratio", "OutOfBounds");
    let requests = &ratio["containers"][0]["requests"];
    assert_eq!(
        (&requests["cpu"], &requests["memory"]),
        (&"250m".into(), &"768Mi".into())
    );
    assert!(ratio["notes"].to_string().contains("maxLimitRequestRatio"), "{ratio}");
    let level = outcome("pod-level-init", "OutOfBounds");
    assert_eq!(
        level["resources"]["requests"]["memory"], "1100Mi",
        "the sidecar and the init container: {level}"
    );
    let maximum = outcome("pod-maximum", "RequestMissing");
    let limits = maximum["containers"].as_array().unwrap().iter();
    let limits = limits.map(|container| container["limits"]["memory"].as_str().unwrap());
    let limits: Vec<u64> = limits
        .map(|limit| limit.parse::<vscaled::model::Bytes>().unwrap().get())
        .collect();
    let (sum, max) = (limits.iter().sum::<u64>(), 115_u64 << 30);
    assert!(sum <= max && sum > max - 4096, "{limits:?}: {sum} of {max}");
}
