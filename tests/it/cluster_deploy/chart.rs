//! The Helm chart deploys the same objects as the kustomizations, refuses meaningless values, and upgrades earlier
//! chart versions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{OVERLAYS, WITHOUT_AGENTS, check_names, objects, rendered, the, unordered};
use crate::support::cluster::{ApiServer, Programs, Release, User};
use crate::support::image::output;

pub(super) const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/helm");

/// The values that make the chart deploy what deploy/base does: its own defaults are more careful.
const AS_BASE: [&str; 4] = [
    "image.repository=vscaled",
    "image.tag=latest",
    "observeOnly=false",
    "admissionPolicy=false",
];

/// The chart values for each overlay, beside [`AS_BASE`].
const VALUES: [(&str, &[&str]); 12] = [
    ("deploy/base", &[]),
    ("deploy/overlays/admission-policy", &["admissionPolicy=true"]),
    ("deploy/overlays/boost", &["rights=both"]),
    ("deploy/overlays/cgroup-v1", &["cgroup=v1"]),
    ("deploy/overlays/cgroup-v2", &["cgroup=v2"]),
    ("deploy/overlays/cri-o", &["runtime=cri-o"]),
    ("deploy/overlays/kernel-log", &["kernelLog=true"]),
    ("deploy/overlays/kubelet-pods", &["kubeletPods=true"]),
    ("deploy/overlays/legacy", &["rights=annotate"]),
    ("deploy/overlays/observe-only", &["observeOnly=true"]),
    ("deploy/overlays/restore", &["restore=true"]),
    ("deploy/observability", &["monitoring=true"]),
];

/// The programs, and a home directory for helm.
pub(super) struct Helm {
    pub(super) programs: Programs,
    pub(super) home: TempDir,
}

impl Helm {
    /// Without the programs, reports `test` as skipped and returns `None`.
    pub(super) fn new(test: &str) -> Option<Self> {
        let programs = Programs::find(test)?;
        let home = tempfile::tempdir().unwrap();
        Some(Self { programs, home })
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.addon("helm"));
        command.args(arguments).env("HOME", self.home.path());
        command
    }

    /// The objects and hooks that a chart deploys as release `vscaled` in namespace `default`, with [`AS_BASE`].
    pub(super) fn template(&self, chart: &str, values: &[&str]) -> Vec<Value> {
        // The oldest API server whose kubelets have all that the agent's pod mounts.
        self.template_for("1.22.0", chart, &[&AS_BASE[..], values].concat())
    }

    /// The objects and hooks for an API server of this version.
    pub(super) fn template_for(&self, version: &str, chart: &str, values: &[&str]) -> Vec<Value> {
        let mut command = self.command(&["template", "vscaled", chart, "--kube-version", version]);
        set(&mut command, values);
        objects(&output(&mut command))
    }

    /// The reason why helm refuses a value.
    pub(super) fn refusal(&self, value: &str) -> String {
        let mut command = self.command(&["template", "vscaled", CHART]);
        if !value.starts_with("image.repository=") {
            set(&mut command, &["image.repository=r/v"]);
        }
        set(&mut command, &[value]);
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{value} is accepted");
        String::from_utf8(output.stderr).unwrap()
    }
}

pub(super) fn set(command: &mut Command, values: &[&str]) {
    for value in values {
        command.args(["--set", value]);
    }
}

/// Takes Helm's own labels away, and those of the namespace's name.
fn unlabelled(metadata: &mut Value) {
    let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) else {
        return;
    };
    labels.retain(|name, _| name.starts_with("pod-security.kubernetes.io/"));
    if labels.is_empty() {
        metadata.as_object_mut().unwrap().remove("labels");
    }
}

/// The objects by kind and name, in a comparable form: kustomize puts a hash into the ConfigMap's name, the chart
/// into an annotation of the pods; the chart labels every object.
fn comparable(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let config = the("ConfigMap", &objects)["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    let unhashed = |mut object: Value| -> Value {
        unlabelled(&mut object["metadata"]);
        if !["ConfigMap", "DaemonSet"].contains(&object["kind"].as_str().unwrap()) {
            return object;
        }
        let text = object.to_string().replace(&format!("\"{config}\""), "\"vscaled\"");
        let mut object: Value = serde_json::from_str(&text).unwrap();
        if let Some(metadata) = object.pointer_mut("/spec/template/metadata") {
            let annotations = metadata["annotations"].as_object();
            let mut annotations = annotations.cloned().unwrap_or_default();
            annotations.remove("checksum/config");
            metadata["annotations"] = json!(annotations);
            unlabelled(metadata);
        }
        object
    };
    let named = |object: Value| {
        let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
        (name, unordered(object))
    };
    objects.into_iter().map(unhashed).map(named).collect()
}

#[test]
fn values_deploy_the_same_objects_as_the_overlays() {
    let Some(helm) = Helm::new("cluster_deploy::chart::values_deploy_the_same") else {
        return;
    };
    let kubectl = helm.programs.kubectl();
    assert_eq!(VALUES.map(|(directory, _)| directory), OVERLAYS);
    let base = objects(&rendered(&kubectl, "deploy/base"));
    for (directory, values) in VALUES {
        let mut wanted = objects(&rendered(&kubectl, directory));
        // These are applied beside the agents.
        if WITHOUT_AGENTS.contains(&directory) {
            wanted.extend(base.clone());
        }
        let wanted = comparable(wanted);
        let found = comparable(helm.template(CHART, values));
        assert!(found.keys().eq(wanted.keys()), "{directory}: {:?}", found.keys());
        for (name, object) in found {
            assert_eq!(object, wanted[&name], "{directory}: {name}");
        }
    }
}

#[test]
fn values_combine_as_overlays_do() {
    let Some(helm) = Helm::new("cluster_deploy::chart::values_combine") else {
        return;
    };
    let copy = tempfile::tempdir().unwrap();
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy");
    output(Command::new("cp").args(["-r", deploy]).arg(copy.path()));
    let overlay = copy.path().join("deploy/overlays/all");
    fs::create_dir(&overlay).unwrap();
    let cluster = ApiServer::start(Release::Today, "cluster_deploy::chart::values_combine");
    if let Some(cluster) = &cluster {
        cluster.kubectl(&["apply", "--filename=deploy/base/namespace.yaml"], "");
    }
    let mut sets = Vec::new();
    // All combinations of the values that change the pods; restoring includes observing.
    for bits in 0..8 {
        let [crio, kernel_log, kubelet_pods] = [1, 2, 4].map(|bit| bits & bit != 0);
        for (cgroup, mode) in ["auto", "v1", "v2"]
            .iter()
            .flat_map(|cgroup| ["act", "observe-only", "restore"].map(|mode| (cgroup, mode)))
        {
            let by_cgroup = format!("cgroup-{cgroup}");
            let overlays = [
                (*cgroup != "auto", by_cgroup.as_str()),
                (crio, "cri-o"),
                (kernel_log, "kernel-log"),
                (kubelet_pods, "kubelet-pods"),
                (mode != "act", mode),
            ];
            let mut patches = Vec::new();
            for (_, name) in overlays.into_iter().filter(|(is_wanted, _)| *is_wanted) {
                let patch = format!("{name}.yaml");
                fs::copy(format!("{deploy}/overlays/{name}/daemonset.yaml"), overlay.join(&patch)).unwrap();
                patches.push(patch);
            }
            let case = patches.join(", ");
            let mut kustomization = format!("bases: [../../base]\npatchesStrategicMerge: [{case}]\n");
            // The restoring agent reads pods at the API server.
            if kubelet_pods && mode != "restore" {
                fs::copy(
                    format!("{deploy}/overlays/kubelet-pods/rights.yaml"),
                    overlay.join("rights.yaml"),
                )
                .unwrap();
                let target = "{group: rbac.authorization.k8s.io, version: v1, kind: ClusterRole, name: vscaled}";
                kustomization += &format!("patchesJson6902: [{{target: {target}, path: rights.yaml}}]\n");
            }
            fs::write(overlay.join("kustomization.yaml"), kustomization).unwrap();
            let text = output(Command::new(helm.programs.kubectl()).arg("kustomize").arg(&overlay));
            let values: [&str; 6] = [
                &format!("cgroup={cgroup}"),
                if crio { "runtime=cri-o" } else { "runtime=containerd" },
                &format!("kernelLog={kernel_log}"),
                &format!("kubeletPods={kubelet_pods}"),
                &format!("observeOnly={}", mode != "act"),
                &format!("restore={}", mode == "restore"),
            ];
            let rendered = helm.template(CHART, &values);
            check_names(&rendered, &case);
            sets.push(the("DaemonSet", &rendered).clone());
            assert_eq!(comparable(rendered), comparable(objects(&text)), "{case}");
        }
    }
    if let Some(cluster) = &cluster {
        let all = json!({"apiVersion": "v1", "kind": "List", "items": sets}).to_string();
        let said = cluster.kubectl(&["apply", "--server-side", "--dry-run=server", "--filename=-"], &all);
        assert_eq!(said.lines().count(), sets.len(), "{said}");
    }
}

#[test]
fn without_an_address_there_is_nothing_to_probe() {
    let Some(helm) = Helm::new("cluster_deploy::chart::without_an_address") else {
        return;
    };
    for (values, has) in [(&["config.httpAddress="][..], false), (&["restore=true"], true)] {
        let objects = helm.template(CHART, values);
        let agent = &the("DaemonSet", &objects)["spec"]["template"]["spec"]["containers"][0];
        for field in ["ports", "readinessProbe", "livenessProbe"] {
            assert_eq!(agent.get(field).is_some(), has, "{field}: {agent}");
        }
    }
}

#[test]
fn a_namespace_is_created_unless_the_release_is_in_it() {
    let Some(helm) = Helm::new("cluster_deploy::chart::a_namespace") else {
        return;
    };
    let kinds = |objects: &[Value]| -> BTreeSet<String> {
        let kinds = objects.iter().filter_map(|object| object["kind"].as_str());
        kinds.map(str::to_owned).collect()
    };
    let mut command = helm.command(&["template", "vscaled", CHART, "--namespace=vscaled"]);
    set(&mut command, &["image.repository=r/v"]);
    let own = objects(&output(&mut command));
    assert!(!kinds(&own).contains("Namespace"));
    let elsewhere = helm.template(CHART, &["namespace=resizer", "admissionPolicy=true", "monitoring=true"]);
    assert!(kinds(&elsewhere).is_superset(&kinds(&own)));
    for object in elsewhere {
        let metadata = &object["metadata"];
        match object["kind"].as_str().unwrap() {
            "Namespace" => assert_eq!(metadata["name"], "resizer"),
            "ClusterRole" | "ValidatingAdmissionPolicyBinding" => {}
            // About the pods of everybody.
            "ValidatingAdmissionPolicy" if metadata["name"] == "vscaled-hooks" => {}
            "ClusterRoleBinding" => assert_eq!(object["subjects"][0]["namespace"], "resizer"),
            "ValidatingAdmissionPolicy" => {
                let text = object.to_string();
                assert!(text.contains("system:serviceaccount:resizer:vscaled"), "{text}");
            }
            kind => assert_eq!(metadata["namespace"], "resizer", "{kind}"),
        }
    }
}

#[test]
fn alerts_name_the_daemonset() {
    let Some(helm) = Helm::new("cluster_deploy::chart::alerts_name_the_daemonset") else {
        return;
    };
    let rules = helm.template(CHART, &["monitoring=true", "fullnameOverride=other"]);
    let rules = the("PrometheusRule", &rules).to_string();
    assert!(
        rules.contains(r#"daemonset=\"other\""#) && !rules.contains(r#"daemonset=\"vscaled\""#),
        "{rules}"
    );
}

#[test]
fn every_value_reaches_the_pods() {
    let Some(helm) = Helm::new("cluster_deploy::chart::every_value") else {
        return;
    };
    let all = helm.template(
        CHART,
        &[
            "restore=true",
            "image.repository=registry.example:5000/vscaled",
            "image.tag=",
            "image.pullPolicy=Always",
            "imagePullSecrets[0]=first",
            "imagePullSecrets[1].name=second",
            "runtimeDirectory=/run/k3s/containerd",
            "resources.limits.memory=256Mi",
            "nodeSelector.pool=web",
            "tolerations[0].key=web",
            "podAnnotations.team=shop",
            "podLabels.team=shop",
            "affinity.nodeAffinity.x=y",
            "cgroup=v2",
            "tests.enabled=true",
        ],
    );
    let template = &the("DaemonSet", &all)["spec"]["template"];
    let pod = &template["spec"];
    let image = concat!("registry.example:5000/vscaled:", env!("CARGO_PKG_VERSION"));
    for container in [&pod["initContainers"][0], &pod["containers"][0]] {
        assert_eq!(container["image"], image);
        assert_eq!(container["imagePullPolicy"], "Always");
        let resources = json!({"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}});
        assert_eq!(container["resources"], resources);
    }
    assert_eq!(the("Pod", &all)["spec"]["containers"][0]["image"], image);
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "first"}, {"name": "second"}]));
    assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux", "pool": "web"}));
    assert_eq!(pod["tolerations"], json!([{"key": "web"}]));
    assert_eq!(pod["affinity"], json!({"nodeAffinity": {"x": "y"}}));
    let volumes = pod["volumes"].as_array().unwrap();
    let runtime = volumes.iter().find(|volume| volume["name"] == "runtime").unwrap();
    assert_eq!(
        runtime["hostPath"],
        json!({"path": "/run/k3s/containerd", "type": "Directory"})
    );
    let annotations = &template["metadata"]["annotations"];
    assert_eq!(annotations["team"], "shop");
    // The overlay's own value stays.
    assert_eq!(
        annotations["container.apparmor.security.beta.kubernetes.io/agent"],
        "unconfined"
    );
    let labels = &template["metadata"]["labels"];
    assert_eq!(
        (&labels["app.kubernetes.io/name"], &labels["team"]),
        (&json!("vscaled"), &json!("shop"))
    );
    let digest = format!("sha256:{}", "a".repeat(64));
    let values = [
        "image.repository=r/v",
        "image.tag=v1",
        &format!("image.digest={digest}"),
    ];
    let by_digest = helm.template(CHART, &values);
    let agent = &the("DaemonSet", &by_digest)["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(agent["image"], format!("r/v@{digest}"));
}

#[test]
fn a_changed_configuration_is_accepted_and_rolls_the_agents() {
    let Some(helm) = Helm::new("cluster_deploy::chart::a_changed_configuration") else {
        return;
    };
    let checksum = |objects: &[Value]| {
        let metadata = &the("DaemonSet", objects)["spec"]["template"]["metadata"];
        metadata["annotations"]["checksum/config"].clone()
    };
    let values = ["config.updateModes={}", "config.observeOnly=true", "observeOnly=true"];
    let changed = helm.template(CHART, &values);
    assert_ne!(checksum(&changed), checksum(&helm.template(CHART, &[])));
    let file = helm.home.path().join("agent.yaml");
    let config = &the("ConfigMap", &changed)["data"]["agent.yaml"];
    fs::write(&file, config.as_str().unwrap()).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_vscaled"));
    run.args(["run", "--print-config", "--config"])
        .arg(&file)
        .env_clear()
        .env("NODE_NAME", "any");
    let printed: Value = serde_json::from_str(&output(&mut run)).unwrap();
    assert_eq!(printed["observeOnly"], true);
    assert_eq!(printed["updateModes"], json!([]));
    // The values of deploy/base otherwise.
    assert_eq!(printed["source"], "kubernetes");
    assert_eq!(printed["httpAddress"], "[::]:9464");
}

#[test]
fn values_that_mean_nothing_are_refused_by_name() {
    let Some(helm) = Helm::new("cluster_deploy::chart::values_that_mean_nothing") else {
        return;
    };
    for (value, named) in [
        ("runtime=docker", "/runtime"),
        ("cgroup=3", "/cgroup"),
        ("rights=all", "/rights"),
        ("observeOnly=yes", "/observeOnly"),
        ("namespace=Resizer", "/namespace"),
        ("image.repository=r/v@sha256:1", "/image/repository"),
        ("image.repository=r:5000/v:1", "/image/repository"),
        ("image.repository=ghcr.io/Owner/vscaled", "/image/repository"),
        ("image.digest=latest", "/image/digest"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("resources.limits.memory=plenty", "/resources/limits/memory"),
        ("runtimeDirectory=run", "/runtimeDirectory"),
        ("runtimeDirectory=/run/x/containerd.sock", "its directory, /run/x"),
        ("imagePullSecrets=first", "/imagePullSecrets"),
        ("imagePullSecrets[0].nmae=first", "/imagePullSecrets/0"),
        ("observeonly=true", "did you mean observeOnly?"),
        ("replicaCount=1", "the chart's README lists all values"),
        ("config.guardreserve=1Gi", "did you mean config.guardReserve?"),
        ("config.observeOnly=no", "/config/observeOnly"),
        ("config.guardReserve=200%", "/config/guardReserve"),
        ("config.logLevel=loud", "/config/logLevel"),
        ("config.updateModes=Off", "/config/updateModes"),
        ("config.workers=65", "/config/workers"),
        ("config.socket=unix:///run/vscaled/a.sock", "/config/socket"),
        ("config.kubeletVersion=1.3", "write it in quotes"),
        ("image.tga=1", "did you mean image.tag?"),
        ("resources.limit.cpu=1", "did you mean resources.limits?"),
        ("wholly.different=1", "there is no value wholly: the chart's README"),
        ("image.repository=", "image.repository is required"),
        ("config.observeOnly=false", "contradict"),
        ("extraEnv[0].name=VSCALED_OBSERVE_ONLY", "set observeOnly alone"),
        (
            "extraEnv[0].name=VSCALED_LOG_LEVEL,extraEnv[0].value=loud",
            "is no value of config.logLevel",
        ),
        ("config.source=kubelet", "set kubeletPods=true alone"),
        ("config.source=both,kubeletPods=true", "set kubeletPods alone"),
        (
            "kubeletPods=true,extraEnv[0].name=VSCALED_SOURCE,extraEnv[0].value=both",
            "set kubeletPods alone",
        ),
        ("updateStrategy.rollingUpdate.maxSurge=1", "would never end"),
        ("fullnameOverride=default", "rights to every pod"),
        ("reportTls.clientCertificate=true", "reportTls.secretName"),
        ("admissionPolicy=maybe", "/admissionPolicy"),
    ] {
        let said = helm.refusal(value);
        assert!(said.contains(named), "{value}: {said}");
    }
}

#[test]
fn paths_of_the_configuration_are_those_of_the_mounts() {
    let Some(helm) = Helm::new("cluster_deploy::chart::paths_of_the_configuration") else {
        return;
    };
    for value in [
        "config.cgroupRoot=/sys/fs/cgroup",
        "config.kubeconfig=/etc/kube/config",
        "config.socket=/run/vscaled.sock",
        "config.stateDir=/var/lib/vscaled-2",
        "extraEnv[0].name=VSCALED_STATE_DIR,extraEnv[0].value=/data",
    ] {
        let said = helm.refusal(value);
        assert!(said.contains("is not in the agent's container"), "{value}: {said}");
    }
    helm.template(
        CHART,
        &[
            "cgroup=v1",
            "restore=true",
            "config.runtimeSocket=/run/k3s/containerd/containerd.sock",
            "config.stateDir=/var/lib/vscaled/state/",
            "config.kubeconfig=/etc/kube/config",
            "extraVolumes[0].name=kube",
            "extraVolumeMounts[0].name=kube",
            "extraVolumeMounts[0].mountPath=/etc/kube/",
        ],
    );
    helm.template(CHART, &["kernelLog=true", "config.cgroupRoot=/sys/fs/cgroup"]);
}

/// The first released chart, as it was packaged.
const FIRST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/charts/vscaled-0.1.0.tgz");

#[test]
fn a_release_of_the_first_chart_is_upgraded_rolled_back_and_removed() {
    const NAME: &str = "cluster_deploy::chart::a_release_of_the_first_chart";
    let Some(helm) = Helm::new(NAME) else { return };
    let Some(cluster) = ApiServer::start(Release::Today, NAME) else {
        return;
    };
    let kubeconfig = cluster.kubeconfig(User::Admin);
    let run = |arguments: &[&str], values: &[&str]| {
        let mut command = helm.command(arguments);
        set(&mut command, values);
        output(command.env("KUBECONFIG", &kubeconfig))
    };
    let version = cluster.kubectl(&["version", "--output=json"], "");
    let version: Value = serde_json::from_str(&version).unwrap();
    let version = version["serverVersion"]["gitVersion"].as_str().unwrap();
    let deployed = |chart: &str, values: &[&str]| {
        for object in helm.template_for(version, chart, values) {
            let metadata = &object["metadata"];
            let namespace = metadata["namespace"].as_str().unwrap_or_default();
            let kind = object["kind"].as_str().unwrap();
            let name = metadata["name"].as_str().unwrap();
            let found = cluster.kubectl(&["get", kind, name, "--namespace", namespace, "--output=json"], "");
            let found: Value = serde_json::from_str(&found).unwrap();
            assert!(has(&found, &object), "{chart}: {found:#}\nis not\n{object:#}");
        }
    };
    let both = ["image.repository=registry.example/vscaled", "podLabels.team=shop"];
    let before = [&["observeOnly=true", "cgroup=v1"][..], &both].concat();
    let after = [&["observeOnly=false", "cgroup=v2"][..], &both].concat();

    let said = run(&["install", "vscaled", FIRST], &before);
    assert!(
        said.contains("kubectl -n vscaled rollout status daemonset/vscaled"),
        "{said}"
    );
    deployed(FIRST, &before);

    // Another program may have taken Helm's mark from the namespace.
    cluster.kubectl(&["annotate", "namespace", "vscaled", "meta.helm.sh/release-name-"], "");
    let upgrade = ["upgrade", "vscaled", CHART, "--reset-then-reuse-values"];
    let said = run(&upgrade, &["observeOnly=false", "cgroup=v2"]);
    assert!(said.contains("vscaled.io/act=true"), "{said}");
    deployed(CHART, &after);

    let refused = |command: [&str; 2], values: &str, words: &str| {
        let mut command = helm.command(&[&command[..], &[CHART, "--set", values]].concat());
        let output = command.env("KUBECONFIG", &kubeconfig).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{said}");
    };
    let elsewhere = "namespace=other,fullnameOverride=other,image.repository=r";
    let already = "DaemonSet vscaled in namespace vscaled is vscaled already";
    refused(["install", "second"], elsewhere, already);
    let own = "this release has DaemonSet vscaled in namespace vscaled";
    refused(["upgrade", "vscaled"], elsewhere, own);

    run(&["rollback", "vscaled", "1"], &[]);
    deployed(FIRST, &before);

    run(&["uninstall", "vscaled"], &[]);
    let kinds = "daemonsets,configmaps,serviceaccounts,clusterroles,clusterrolebindings";
    let left = cluster.kubectl(&["get", kinds, "--namespace=vscaled", "--output=name"], "");
    assert!(!left.contains("/vscaled"), "{left}");
    let existing = "namespace=kube-system,image.repository=r";
    refused(["install", "vscaled"], existing, "add --namespace kube-system");
}

/// Whether a cluster's object has every field of a manifest, and equal lists. Server-side apply keeps lists in its
/// own order.
fn has(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted
            .iter()
            .all(|(name, field)| has(found.get(name).unwrap_or(&Value::Null), field)),
        (Value::Array(found), Value::Array(wanted)) => {
            let is_there = |wanted| found.iter().any(|found| has(found, wanted));
            found.len() == wanted.len() && wanted.iter().all(is_there)
        }
        _ => found == wanted,
    }
}
