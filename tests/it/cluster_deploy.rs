//! Promise: a cluster accepts the manifests of `deploy/`, from the oldest supported kubectl on, and the agent works
//! with only the rights that they grant.

mod agent_in_a_pod;
mod audits;
mod chart;
mod chart_conventions;
mod manifests;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::image::output;

/// All directories for `kubectl apply -k`.
const OVERLAYS: [&str; 12] = [
    "deploy/base",
    "deploy/overlays/admission-policy",
    "deploy/overlays/boost",
    "deploy/overlays/cgroup-v1",
    "deploy/overlays/cgroup-v2",
    "deploy/overlays/cri-o",
    "deploy/overlays/kernel-log",
    "deploy/overlays/kubelet-pods",
    "deploy/overlays/legacy",
    "deploy/overlays/observe-only",
    "deploy/overlays/restore",
    "deploy/observability",
];

/// Those of them that are applied beside the agents.
const WITHOUT_AGENTS: [&str; 2] = ["deploy/overlays/admission-policy", "deploy/observability"];

/// The output of `kubectl kustomize` for a directory.
pub(crate) fn rendered(kubectl: &Path, directory: &str) -> String {
    let absolute = format!("{}/{directory}", env!("CARGO_MANIFEST_DIR"));
    output(Command::new(kubectl).args(["kustomize", &absolute]))
}

/// Parses all objects in YAML.
pub(crate) fn objects(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// The only object of a kind.
pub(crate) fn the<'o>(kind: &str, objects: &'o [Value]) -> &'o Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let object = found.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(found.next().is_none(), "more than one {kind}");
    object
}

/// Checks that every volume mount and every annotation for a container names an existing volume or container.
/// Otherwise the API server refuses the pod.
fn check_names(objects: &[Value], case: &str) {
    let template = &the("DaemonSet", objects)["spec"]["template"];
    let names = |list: &Value| -> BTreeSet<String> {
        let items = list.as_array().into_iter().flatten();
        items.map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    let (pod, mut containers) = (&template["spec"], BTreeSet::new());
    let volumes = names(&pod["volumes"]);
    for list in ["initContainers", "containers"] {
        containers.extend(names(&pod[list]));
        for container in pod[list].as_array().into_iter().flatten() {
            let mounted = names(&container["volumeMounts"]);
            assert!(
                !mounted.is_empty() && mounted.is_subset(&volumes),
                "{case}: {mounted:?} of {volumes:?}"
            );
        }
    }
    let annotations = template["metadata"]["annotations"].as_object();
    for annotation in annotations.into_iter().flat_map(|all| all.keys()) {
        if let Some(container) = annotation.strip_prefix("container.apparmor.security.beta.kubernetes.io/") {
            assert!(containers.contains(container), "{case}: {annotation} of {containers:?}");
        }
    }
}

/// Sorts lists of objects. The order of volumes, mounts and variables has no meaning.
fn unordered(value: Value) -> Value {
    match value {
        Value::Array(items) => {
            let mut items: Vec<_> = items.into_iter().map(unordered).collect();
            if items.iter().all(Value::is_object) {
                items.sort_by_cached_key(Value::to_string);
            }
            Value::Array(items)
        }
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, field)| (name, unordered(field)))
            .collect(),
        other => other,
    }
}
