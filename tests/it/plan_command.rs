//! `vscalectl plan` prints in advance how a decision changes a pod's cgroups, and in which steps.

use std::process::Output;

use serde_json::{Value, json};

use crate::support::vscalectl;

/// A Deployment's pod whose VPA recommends more cpu and less memory, and a pod without a VPA.
const MANIFESTS: &str = r#"
apiVersion: apps/v1
kind: ReplicaSet
metadata: { name: web-1, ownerReferences: [{ apiVersion: apps/v1, kind: Deployment, name: web, controller: true }] }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec: { selector: { matchLabels: { app: web } } }
---
apiVersion: v1
kind: Pod
metadata:
  name: web-1-a
  uid: 6c4b2d1e-58ff-4d36-9d5c-0a6f4c9f2a11
  labels: { app: web }
  ownerReferences: [{ apiVersion: apps/v1, kind: ReplicaSet, name: web-1, controller: true }]
spec:
  nodeName: node-1
  containers:
  - name: app
    resources: { requests: { cpu: 100m, memory: 128Mi }, limits: { cpu: 200m, memory: 256Mi } }
status:
  phase: Running
  qosClass: Burstable
  startTime: "2026-01-01T00:00:00Z"
  containerStatuses: [{ name: app, containerID: "containerd://0a1b" }]
---
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: { name: web }
spec:
  targetRef: { apiVersion: apps/v1, kind: Deployment, name: web }
  updatePolicy: { updateMode: InPlaceOrRecreate, minReplicas: 1 }
status:
  recommendation:
    containerRecommendations:
    - containerName: app
      lowerBound: { cpu: 200m, memory: 32Mi }
      target: { cpu: 250m, memory: 64Mi }
      upperBound: { cpu: 400m, memory: 96Mi }
---
apiVersion: v1
kind: Pod
metadata: { name: alone }
spec: { containers: [{ name: app, resources: { limits: { cpu: 5m } } }] }
"#;

fn run(flags: &[&str], manifests: &str) -> Output {
    vscalectl(
        &[&["plan", "-f", "-", "--now", "2026-03-01T12:00:00Z"], flags].concat(),
        manifests,
    )
}

fn planned(flags: &[&str]) -> Value {
    let output = run(&[flags, &["-o", "json"]].concat(), MANIFESTS);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The error text of a run that ended with this exit code.
fn refused(code: i32, flags: &[&str], manifests: &str) -> String {
    let output = run(flags, manifests);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert_eq!(output.stdout, b"");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_burst_is_shown_beside_its_quota() {
    let annotated = MANIFESTS.replace(
        "kind: VerticalPodAutoscaler\nmetadata: { name: web }",
        "kind: VerticalPodAutoscaler\nmetadata: { name: web, annotations: { vscaled.io/cpu-burst: 50% } }",
    );
    let shown = |flags: &[&str]| {
        let output = run(flags, &annotated);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let v2 = shown(&[]);
    assert_eq!(v2.matches("cpu.max.burst 0 → 25000").count(), 2, "{v2}");
    assert!(shown(&["--cgroup", "v1"]).contains("cpu.cfs_burst_us 0 → 25000"));
}

#[test]
fn a_decision_is_shown_as_values_and_ordered_steps() {
    let pod = "/kubepods/burstable/pod6c4b2d1e-58ff-4d36-9d5c-0a6f4c9f2a11";
    let file = |level: Value, file: &str, from: &str, to: &str| {
        let mut step = json!({ "via": "cgroup", "file": file, "from": from, "to": to });
        step.as_object_mut().unwrap().extend(level.as_object().unwrap().clone());
        step
    };
    let app = || json!({ "level": "container", "name": "app" });
    let whole = || json!({ "level": "pod" });
    assert_eq!(
        planned(&["--weight", "linear"])["pods"][0],
        json!({
            "namespace": "default",
            "name": "web-1-a",
            "qosClass": "Burstable",
            "cgroups": [
                {
                    "level": "pod",
                    "path": pod,
                    "files": { "cpu.max": "50000 100000", "cpu.weight": "10", "memory.max": "134217728" },
                },
                {
                    "level": "container",
                    "name": "app",
                    "path": format!("{pod}/0a1b"),
                    "files": { "cpu.max": "50000 100000", "cpu.weight": "10", "memory.max": "134217728" },
                },
            ],
            "steps": [
                file(whole(), "cpu.max", "20000 100000", "50000 100000"),
                file(whole(), "cpu.weight", "4", "10"),
                file(app(), "cpu.max", "20000 100000", "50000 100000"),
                file(app(), "cpu.weight", "4", "10"),
                file(app(), "memory.max", "268435456", "134217728"),
                file(whole(), "memory.max", "268435456", "134217728"),
                {
                    "via": "cri",
                    "level": "container",
                    "name": "app",
                    "from": {
                        "cpu_shares": 102, "cpu_quota": 20000, "cpu_period": 100_000, "memory_limit_in_bytes": 268_435_456,
                    },
                    "to": {
                        "cpu_shares": 256, "cpu_quota": 50000, "cpu_period": 100_000, "memory_limit_in_bytes": 134_217_728,
                    },
                },
            ],
        })
    );
}

#[test]
fn a_pod_without_vpa_uid_or_containers_is_shown_as_it_would_be_created() {
    let alone = &planned(&["--cgroup", "v1"])["pods"][1];
    assert_eq!(
        alone["cgroups"],
        json!([
            {
                "level": "pod",
                "path": "/kubepods/burstable/pod<uid>",
                "files": {
                    "cpu.shares": "5", "cpu.cfs_quota_us": "1000", "cpu.cfs_period_us": "100000",
                    "memory.limit_in_bytes": "9223372036854771712",
                },
            },
            {
                "level": "container",
                "name": "app",
                "path": "/kubepods/burstable/pod<uid>/<app>",
                "files": {
                    "cpu.shares": "5", "cpu.cfs_quota_us": "1000", "cpu.cfs_period_us": "100000",
                    "memory.limit_in_bytes": "9223372036854771712",
                },
            },
        ])
    );
    assert_eq!(alone["steps"], json!([]));
}

#[test]
fn under_systemd_slices_and_scopes_are_named() {
    let pod = &planned(&["--driver", "systemd", "--runtime", "crio"])["pods"][0];
    let slice = "kubepods-burstable-pod6c4b2d1e_58ff_4d36_9d5c_0a6f4c9f2a11.slice";
    assert_eq!(
        pod["cgroups"][1]["path"],
        format!("/kubepods.slice/kubepods-burstable.slice/{slice}/crio-0a1b.scope")
    );
    assert_eq!(
        pod["steps"][0],
        json!({
            "via": "systemd",
            "level": "pod",
            "from": { "cpu.max": "20000 100000", "cpu.weight": "4" },
            "to": { "cpu.max": "50000 100000", "cpu.weight": "10" },
        })
    );
}

#[test]
fn the_table_shows_values_and_steps() {
    let output = run(&[], MANIFESTS);
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "default/web-1-a (Burstable)",
        "pod            memory.max  134217728",
        "1     cgroup  pod            cpu.max 20000 100000 → 50000 100000",
        "default/alone (Burstable)",
        "nothing to do",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn unusable_flags_and_input_are_refused_with_what_is_wrong() {
    assert!(refused(2, &["--kubelet", "newest"], MANIFESTS).contains("\"newest\" is not a kubelet version"));
    assert!(refused(2, &["--cgroup", "v3"], MANIFESTS).contains("possible values: v1, v2"));
    assert!(refused(2, &[], "kind: Pod\nmetadata: {}").contains("document 1"));
}

#[test]
fn a_result_that_the_v1_kernel_refuses_is_refused_with_both_bounds() {
    // The pod-level limit is below the value that the kubelet reports in force, and the API server would refuse it.
    let manifest = r#"
kind: Pod
metadata: { name: web }
spec:
  resources: { requests: { cpu: 100m }, limits: { cpu: 100m } }
  containers: [{ name: app, resources: { limits: { cpu: 200m } } }]
status: { containerStatuses: [{ name: app, resources: { limits: { cpu: 100m } } }] }
"#;
    let error = refused(1, &["--cgroup", "v1"], manifest);
    assert!(
        error.contains("default/web: container app: quota and period 20000 100000"),
        "{error}"
    );
    assert!(error.contains("10000 100000"), "{error}");
}
