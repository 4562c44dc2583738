//! `vscalectl export`: prints manifests that make the decisions of this node permanent.

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::agent::{Agent, warn_of_left_out};
use super::output::{self, Output, yaml};
use super::page::Page;
use super::{Failure, amount, io};
use crate::control::proto::Pod;
use crate::model::objects::{OwnerKind, VerticalPodAutoscaler};
use crate::model::{Requirements, Resource};
use crate::printable::printable;

/// Prints manifests that give workloads what was decided for their pods on this node
///
/// Without a name: every workload whose pods vscaled manages. Where pods of a workload differ, the largest amounts of this
/// node's pods count. Values that could not be applied are printed too. Temporary limits are left out.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Names of workloads, also as namespace/name
    #[arg(value_name = "WORKLOAD")]
    workloads: Vec<String>,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Patch)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A strategic-merge patch for each workload
    Patch,
    /// One kustomize Component with a patch for each workload
    Kustomize,
    /// A VerticalPodAutoscaler for each workload, with these requests as its bounds
    Vpa,
    /// The pods whose values count, from which `kubectl vscale export` makes manifests for all nodes
    Json,
}

/// Prints the manifests of the workloads.
///
/// Errors: a named workload has no pods on this node.
pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let reply = agent.call(async |client| Ok(client.get_with_usage().await?))?;
    warn_of_left_out(reply.agent.as_ref());
    arguments.print(reply.pods)
}

impl Arguments {
    /// Prints the manifests of the pods' workloads, or the pods.
    ///
    /// Errors: a named workload has none of the pods, or none has a template.
    pub(super) fn print(&self, mut pods: Vec<Pod>) -> Result<(), Failure> {
        if self.format == Format::Json {
            pods.retain(|pod| is_wanted(pod, &self.workloads));
            let output = Output {
                format: output::Format::Json,
            };
            return output.print_list("pods", &pods, Page::default);
        }
        let workloads = select(&pods, &self.workloads)?;
        let (manifests, warnings) = manifests(&workloads, self.format)?;
        warnings.iter().for_each(|warning| io::warn(warning));
        if manifests.is_empty() {
            let nothing = "vscaled manages no workload here whose template could be changed: nothing to export";
            return Err(anyhow!(nothing).into());
        }
        io::print_document(&manifests).map(drop)
    }
}

fn is_called(pod: &Pod, text: &str) -> bool {
    let name = pod.workload.as_ref().map_or("", |workload| &workload.name);
    text == name || text.split_once('/') == Some((&pod.namespace, name))
}

/// Whether the pod's workload has one of the names; without names, whether vscaled manages the pod.
fn is_wanted(pod: &Pod, names: &[String]) -> bool {
    match names {
        [] => pod.state != "NotManaged",
        names => names.iter().any(|text| is_called(pod, text)),
    }
}

/// The pods of workloads, by the workload's namespace, kind and name.
type Workloads<'a> = BTreeMap<[&'a str; 3], Vec<&'a Pod>>;

/// The API version of a workload with a pod template. That of another project's kind, which may have a known name, is in the VPA's
/// reference to it.
fn api_version(kind: &str, name: &str, pods: &[&Pod]) -> Option<String> {
    let known = match kind {
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => "apps/v1",
        "CronJob" => "batch/v1",
        "ReplicationController" => "v1",
        "Pod" | "Job" => return None,
        _ => "",
    };
    let spec: Value = serde_json::from_str(vpa_spec(pods).unwrap_or("{}")).unwrap_or_default();
    let target = |field: &str| spec["targetRef"][field].as_str();
    let is_target = target("kind") == Some(kind) && target("name") == Some(name);
    let is_other = |version: &&str| is_target && OwnerKind::of(version, kind).is_none();
    let version = target("apiVersion").filter(is_other).unwrap_or(known);
    (!version.is_empty()).then(|| version.to_owned())
}

/// The spec of the workload's VPA in JSON.
fn vpa_spec<'a>(pods: &[&'a Pod]) -> Option<&'a str> {
    pods.iter().find_map(|pod| pod.vpa_spec.as_deref())
}

/// The workloads with these names; without names the workloads that vscaled manages.
fn select<'a>(pods: &'a [Pod], names: &[String]) -> Result<Workloads<'a>, Failure> {
    let is_unknown = |name: &&String| !pods.iter().any(|pod| is_called(pod, name));
    if let Some(name) = names.iter().filter(is_unknown).min() {
        return Err(anyhow!("no pod of a workload {name} is known here").into());
    }
    let mut found = Workloads::new();
    for pod in pods.iter().filter(|pod| is_wanted(pod, names)) {
        let workload = pod.workload.as_ref();
        let (kind, name) = workload.map_or(("", ""), |of| (of.kind.as_str(), of.name.as_str()));
        found.entry([&pod.namespace, kind, name]).or_default().push(pod);
    }
    Ok(found)
}

/// Of each container whether it is a sidecar, and the largest amounts that the agent decided for it in these pods.
fn containers<'a>(pods: &[&'a Pod]) -> BTreeMap<&'a str, (bool, Requirements)> {
    let mut all: BTreeMap<&str, (bool, Requirements)> = BTreeMap::new();
    for container in pods.iter().flat_map(|pod| &pod.containers) {
        let (is_sidecar, has) = all.entry(&container.name).or_default();
        let wanted = amount::read(container.wanted.as_ref());
        *is_sidecar |= container.sidecar;
        has.requests = has.requests.combine(wanted.requests, u64::max);
        has.limits = has.limits.combine(wanted.limits, u64::max);
    }
    all
}

/// The manifests, empty if no workload has one, and warnings: a workload has none, or a merge would break it.
fn manifests(workloads: &Workloads<'_>, format: Format) -> Result<(String, Vec<String>), Failure> {
    let (mut text, mut warnings, mut patches) = (String::new(), Vec::new(), Vec::new());
    for (name, pods) in workloads {
        let [namespace, kind, workload] = name;
        // A comment ends with its line.
        let title = printable(&format!("{namespace}/{kind}/{workload}"), &[]).into_owned();
        let Some(version) = &api_version(kind, workload, pods) else {
            warnings.push(format!(
                "{title} is left out: it has no template that can be changed, or no VPA names its API version"
            ));
            continue;
        };
        let comment = format!("# {title}: pods here: {}\n", pods.len());
        if OwnerKind::of(version, kind).is_none() && format != Format::Vpa {
            warnings.push(format!(
                "{title} is a custom resource: a merge replaces its whole list of containers, so copy the values by hand"
            ));
        }
        match format {
            Format::Patch => text += &format!("---\n{comment}{}", yaml(&patch(name, version, pods))?),
            Format::Vpa => text += &format!("---\n{comment}{}", yaml(&vpa(name, version, pods)?)?),
            Format::Json | Format::Kustomize => patches.push(json!({
                // The name is a regular expression.
                "target": {"kind": kind, "name": workload.replace('.', r"\."), "namespace": namespace},
                "patch": yaml(&patch(name, version, pods))?,
            })),
        }
    }
    if !patches.is_empty() {
        let component = json!({
            "apiVersion": "kustomize.config.k8s.io/v1alpha1",
            "kind": "Component",
            "patches": patches,
        });
        text = yaml(&component)?;
    }
    Ok((text, warnings))
}

fn patch([namespace, kind, name]: &[&str; 3], version: &str, pods: &[&Pod]) -> Value {
    let mut pod: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (container, (is_sidecar, has)) in containers(pods) {
        let resources = without_unset(json!({"limits": has.limits, "requests": has.requests}));
        let list = if is_sidecar { "initContainers" } else { "containers" };
        let patch = json!({"name": container, "resources": resources});
        pod.entry(list).or_default().push(patch);
    }
    let template = json!({"template": {"spec": pod}});
    let spec = match *kind {
        "CronJob" => json!({"jobTemplate": {"spec": template}}),
        _ => template,
    };
    json!({
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    })
}

/// The VPA of the workload with other bounds, or a new VPA.
fn vpa([namespace, kind, name]: &[&str; 3], version: &str, pods: &[&Pod]) -> Result<Value, Failure> {
    const NEW: &str = r#"{"updatePolicy": {"updateMode": "InPlaceOrRecreate"}}"#;
    let mut vpa = VerticalPodAutoscaler {
        spec: serde_json::from_str(vpa_spec(pods).unwrap_or(NEW)).context("the agent's copy of the VPA")?,
        ..VerticalPodAutoscaler::default()
    };
    for (container, (_, has)) in containers(pods) {
        if has.requests.is_empty() {
            continue;
        }
        let mut policy = vpa.policy_for(container).cloned().unwrap_or_default();
        let mut set = Resource::ALL.to_vec();
        set.retain(|resource| has.requests.get(*resource).is_some());
        let set = set.iter().map(Resource::to_string).collect();
        policy.controlled_resources.get_or_insert(set);
        (policy.min_allowed, policy.max_allowed) = (has.requests.into(), has.requests.into());
        policy.container_name = container.to_owned();
        let policies = &mut vpa.spec.resource_policy.get_or_insert_default().container_policies;
        policies.retain(|policy| policy.container_name != container);
        policies.push(policy);
    }
    let existing = pods.iter().find_map(|pod| pod.vpa.as_deref());
    let mut spec = json!(vpa.spec);
    spec["targetRef"] = json!({"apiVersion": version, "kind": kind, "name": name});
    Ok(json!({
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": {"name": existing.unwrap_or(name), "namespace": namespace},
        "spec": without_unset(spec),
    }))
}

/// The value without fields that are null or empty.
fn without_unset(value: Value) -> Value {
    let set =
        |(name, field): (String, Value)| (field != json!({}) && !field.is_null()).then(|| (name, without_unset(field)));
    match value {
        Value::Object(fields) => fields.into_iter().filter_map(set).collect(),
        Value::Array(items) => items.into_iter().map(without_unset).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::proto::{Amounts, Container, Requirements, Workload};
    use crate::sources::{parse_manifests, parse_pod_templates};

    fn pod(kind: &str, name: &str, state: &str, memory: &str) -> Pod {
        let amounts = |cpu: Option<&str>| {
            Some(Amounts {
                cpu: cpu.map(str::to_owned),
                memory: Some(memory.to_owned()),
            })
        };
        Pod {
            namespace: "shop".to_owned(),
            name: format!("{name}-0"),
            state: state.to_owned(),
            workload: Some(Workload {
                kind: kind.to_owned(),
                name: name.to_owned(),
            }),
            containers: vec![Container {
                name: "app".to_owned(),
                wanted: Some(Requirements {
                    requests: amounts(Some("1")),
                    limits: amounts(None),
                }),
                ..Container::default()
            }],
            ..Pod::default()
        }
    }

    fn export(pods: &[Pod], names: &[&str], format: Format) -> (String, Vec<String>) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        manifests(&select(pods, &names).unwrap(), format).unwrap()
    }

    #[test]
    fn a_patch_has_the_largest_amounts_of_the_pods() {
        let pods = [
            pod("Deployment", "web", "InSync", "900Mi"),
            pod("Deployment", "web", "InSync", "1Gi"),
            pod("StatefulSet", "db", "NotManaged", "1Gi"),
        ];
        let (text, _) = export(&pods, &[], Format::Patch);
        assert_eq!(
            text,
            "\
---
# shop/Deployment/web: pods here: 2
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop
spec:
  template:
    spec:
      containers:
      - name: app
        resources:
          limits:
            memory: 1Gi
          requests:
            cpu: \"1\"
            memory: 1Gi
"
        );
        assert!(
            export(&pods, &["shop/db"], Format::Patch)
                .0
                .contains("kind: StatefulSet")
        );
        let names = ["web".to_owned(), "gone\n".to_owned()];
        let Failure { code, error } = select(&pods, &names).unwrap_err();
        assert_eq!(
            (code, error.to_string().as_str()),
            (1, "no pod of a workload gone\n is known here")
        );
    }

    #[test]
    fn kustomize_has_one_component_for_all() {
        let pods = [
            pod("CronJob", "nightly", "InSync", "1Gi"),
            pod("Deployment", "web", "InSync", "1Gi"),
        ];
        let component =
            |pods: &[Pod]| -> Value { serde_saphyr::from_str(&export(pods, &[], Format::Kustomize).0).unwrap() };
        let dotted = component(&[pod("StatefulSet", "db.v1", "InSync", "1Gi")]);
        let target = &dotted["patches"][0]["target"]["name"];
        assert_eq!(target, r"db\.v1", "not also db-v1");
        let component = component(&pods);
        assert_eq!(component["kind"], "Component");
        assert_eq!(component["patches"][1]["target"]["name"], "web");
        let patch = component["patches"][0]["patch"].as_str().unwrap();
        let read = parse_pod_templates("patch", patch).unwrap();
        assert_eq!(read.templates[0].workload, "CronJob/nightly");
        assert!(read.templates[0].spec.containers[0].resources.limits.memory.is_some());
    }

    #[test]
    fn sidecars_are_patched_where_they_are_declared() {
        let mut web = pod("Deployment", "web", "InSync", "1Gi");
        let mesh = Container {
            name: "mesh".to_owned(),
            sidecar: true,
            ..web.containers[0].clone()
        };
        web.containers.insert(0, mesh);
        let (text, _) = export(&[web], &[], Format::Patch);
        let patch: Value = serde_saphyr::from_str(&text).unwrap();
        let spec = &patch["spec"]["template"]["spec"];
        for (list, name) in [("containers", "app"), ("initContainers", "mesh")] {
            assert_eq!(spec[list].as_array().unwrap().len(), 1, "{text}");
            assert_eq!(spec[list][0]["name"], name);
            assert_eq!(spec[list][0]["resources"]["limits"]["memory"], "1Gi");
        }
    }

    #[test]
    fn an_exported_vpa_keeps_mode_and_policies() {
        let mut web = pod("Deployment", "web", "InSync", "1Gi");
        let exported = |web: &Pod| -> Value {
            serde_saphyr::from_str(&export(std::slice::from_ref(web), &[], Format::Vpa).0).unwrap()
        };
        // A new one.
        assert_eq!(
            exported(&web)["spec"],
            json!({
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "updatePolicy": {"updateMode": "InPlaceOrRecreate"},
                "resourcePolicy": {"containerPolicies": [{
                    "containerName": "app",
                    "controlledResources": ["cpu", "memory"],
                    "minAllowed": {"cpu": "1", "memory": "1Gi"},
                    "maxAllowed": {"cpu": "1", "memory": "1Gi"},
                }]},
            })
        );
        let spec: crate::model::objects::VpaSpec = serde_json::from_value(json!({
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "updatePolicy": {"updateMode": "Off", "evictAfterOOMSeconds": 30},
            "recommenders": [{"name": "night"}],
            "resourcePolicy": {"containerPolicies": [
                {"containerName": "app", "controlledValues": "RequestsOnly", "controlledResources": ["memory"],
                 "minAllowed": {"memory": "10Mi"}},
                {"containerName": "*", "mode": "Off"},
            ]},
        }))
        .unwrap();
        web.vpa = Some("web".to_owned());
        web.vpa_spec = Some(json!(spec).to_string());
        assert_eq!(
            exported(&web)["spec"],
            json!({
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "updatePolicy": {"updateMode": "Off", "evictAfterOOMSeconds": 30},
                "recommenders": [{"name": "night"}],
                "resourcePolicy": {"containerPolicies": [
                    {"containerName": "*", "mode": "Off"},
                    {"containerName": "app", "controlledValues": "RequestsOnly", "controlledResources": ["memory"],
                     "minAllowed": {"cpu": "1", "memory": "1Gi"}, "maxAllowed": {"cpu": "1", "memory": "1Gi"}},
                ]},
            })
        );
        web.vpa_spec = Some("{".to_owned());
        let Err(Failure { error, .. }) = manifests(&select(&[web], &[]).unwrap(), Format::Vpa) else {
            panic!("read");
        };
        assert!(error.to_string().contains("the agent's copy of the VPA"), "{error}");
    }

    #[test]
    fn a_vpa_holds_requests_where_they_are() {
        let mut web = pod("Deployment", "web", "InSync", "1Gi");
        web.vpa = Some("web-vpa".to_owned());
        let (text, _) = export(&[web], &[], Format::Vpa);
        let read = parse_manifests("vpa", &text).unwrap().view;
        let vpa = &read.vpas[0];
        assert_eq!(vpa.metadata.name, "web-vpa");
        let policy = vpa.policy_for("app").unwrap();
        assert_eq!(policy.min_allowed, policy.max_allowed);
        assert_eq!(policy.min_allowed.memory.unwrap().get(), 1 << 30);
    }

    #[test]
    fn what_has_no_template_is_left_out_and_named() {
        let mut rollout = pod("Rollout", "api", "InSync", "1Gi");
        rollout.vpa_spec = Some(
            json!({"targetRef": {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "api"}}).to_string(),
        );
        let (text, warnings) = export(&[rollout], &[], Format::Patch);
        assert!(
            text.contains("apiVersion: argoproj.io/v1alpha1\nkind: Rollout"),
            "{text}"
        );
        assert!(warnings[0].contains("custom resource"), "{warnings:?}");
        // OpenKruise has a kind of this name.
        let mut db = pod("StatefulSet", "db", "InSync", "1Gi");
        db.vpa_spec = Some(
            json!({"targetRef": {"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "db"}})
                .to_string(),
        );
        let (text, warnings) = export(&[db], &[], Format::Patch);
        assert!(
            text.contains("apiVersion: apps.kruise.io/v1beta1\nkind: StatefulSet"),
            "{text}"
        );
        assert!(warnings[0].contains("custom resource"), "{warnings:?}");
        let pods = [
            pod("Rollout", "web", "InSync", "1Gi"),
            pod("Pod", "bare", "InSync", "1Gi"),
        ];
        let (text, warnings) = export(&pods, &[], Format::Patch);
        assert_eq!((text.as_str(), warnings.len()), ("", 2));
    }

    #[test]
    fn names_that_yaml_reads_otherwise_stay_names() {
        for name in ["no", "1e3", "0x10", "null", "true", "1.5"] {
            let (text, _) = export(&[pod("Deployment", name, "InSync", "1Gi")], &[], Format::Patch);
            let read = parse_pod_templates("patch", &text).unwrap();
            assert_eq!(read.templates[0].workload, format!("Deployment/{name}"));
            assert!(!text.contains(&format!("name: {name}\n")), "{text}");
        }
    }
}
