//! The manifests: for the API server, and for readers who check which rights they grant.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{OVERLAYS, WITHOUT_AGENTS, check_names, objects, rendered, the, unordered};
use crate::support::cluster::{ApiServer, Programs, Release, User};
use crate::support::image::output;

/// The overlay with more privileges than the others.
const PRIVILEGED: &str = "deploy/overlays/kernel-log";

/// The overlays with their agents, rendered by the kubectl of `scripts/kube-parts`.
fn with_agents(kubectl: &Path) -> Vec<(&'static str, Vec<Value>)> {
    OVERLAYS
        .into_iter()
        .filter(|directory| !WITHOUT_AGENTS.contains(directory))
        .map(|directory| (directory, objects(&rendered(kubectl, directory))))
        .collect()
}

fn pod_spec(objects: &[Value]) -> &Value {
    &the("DaemonSet", objects)["spec"]["template"]["spec"]
}

fn containers(spec: &Value) -> Vec<&Value> {
    let of = |list: &str| spec[list].as_array().into_iter().flatten();
    of("initContainers").chain(of("containers")).collect()
}

/// A CustomResourceDefinition for a kind of the Prometheus operator, without a schema.
fn kind_of_the_operator(plural: &str, kind: &str) -> Value {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": anything}}],
        },
    })
}

#[test]
fn every_overlay_is_accepted_by_a_real_api_server() {
    let Some(cluster) = ApiServer::start(Release::Today, "cluster_deploy::manifests::every_overlay") else {
        return;
    };
    cluster.kubectl(&["apply", "--filename=deploy/base/namespace.yaml"], "");
    for (plural, kind) in [("podmonitors", "PodMonitor"), ("prometheusrules", "PrometheusRule")] {
        cluster.apply(&kind_of_the_operator(plural, kind));
        let crd = format!("crd/{plural}.monitoring.coreos.com");
        cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=120s", &crd], "");
    }
    // Server-side apply knows every field and refuses unknown ones.
    let dry_run = ["apply", "--server-side", "--dry-run=server", "--filename=-"];
    for directory in OVERLAYS {
        let all = objects(&rendered(&cluster.kubectl_program(), directory));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": all});
        let said = cluster.kubectl(&dry_run, &list.to_string());
        assert_eq!(said.lines().count(), all.len(), "{directory}: {said}");
    }
    let unknown = rendered(&cluster.kubectl_program(), "deploy/base").replace("tolerations:", "tolerates:");
    let refused = cluster.try_kubectl(User::Admin, &dry_run, &unknown);
    assert!(
        refused.unwrap_err().contains("tolerates"),
        "a misspelt field was accepted"
    );
}

#[test]
fn an_old_and_a_new_kubectl_make_the_same_of_it() {
    const NAME: &str = "cluster_deploy::manifests::an_old_and_a_new_kubectl";
    let Some(programs) = Programs::find(NAME) else { return };
    let [old, new] = [Release::Legacy, Release::Today].map(|release| programs.kubernetes(release, "kubectl"));
    // The name of the ConfigMap ends in a hash, which both versions compute differently.
    let comparable = |kubectl: &Path, directory: &str| {
        let text = rendered(kubectl, directory);
        let all = objects(&text);
        let config = all.iter().find(|object| object["kind"] == "ConfigMap");
        let name = config.map_or("none", |config| config["metadata"]["name"].as_str().unwrap());
        let objects = objects(&text.replace(name, "vscaled-hash"));
        objects
            .into_iter()
            .map(|object| unordered(object).to_string())
            .collect::<BTreeSet<_>>()
    };
    for directory in OVERLAYS {
        assert_eq!(comparable(&old, directory), comparable(&new, directory), "{directory}");
    }
}

#[test]
fn no_agent_has_more_rights_than_its_overlay_says() {
    let Some(programs) = Programs::find("cluster_deploy::manifests::no_agent_has_more_rights") else {
        return;
    };
    for (directory, objects) in with_agents(&programs.kubectl()) {
        check_names(&objects, directory);
        let spec = pod_spec(&objects);
        let gives_up = directory == PRIVILEGED;
        assert_eq!(spec["hostPID"] == true, gives_up, "{directory}");
        assert_eq!(
            (&spec["hostNetwork"], &spec["hostIPC"]),
            (&Value::Null, &Value::Null),
            "{directory}"
        );
        assert_eq!(
            spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
            "{directory}"
        );
        for container in containers(spec) {
            let context = &container["securityContext"];
            assert_eq!(context["privileged"], gives_up, "{directory}");
            assert_eq!(context["allowPrivilegeEscalation"], gives_up, "{directory}");
            assert_eq!(context["readOnlyRootFilesystem"], true, "{directory}");
            // The container that restores limits reads no log.
            let capabilities = match container["name"].as_str() {
                Some("restore") => json!({"drop": ["ALL"]}),
                _ => json!({"drop": ["ALL"], "add": ["SYSLOG"]}),
            };
            assert_eq!(context["capabilities"], capabilities, "{directory}");
        }
        let patched: &[&str] = match directory {
            "deploy/overlays/legacy" => &["pods/status"],
            "deploy/overlays/boost" => &["pods/resize", "pods/status"],
            _ => &["pods/resize"],
        };
        assert_eq!(written(&objects), written_with(patched), "{directory}");
    }
}

/// The agent's rights to write, as pairs of resource and verb.
fn written(objects: &[Value]) -> BTreeSet<(String, String)> {
    let texts = |list: &Value| -> Vec<String> { serde_json::from_value(list.clone()).unwrap() };
    let rules = the("ClusterRole", objects)["rules"].as_array().unwrap();
    rules
        .iter()
        .flat_map(|rule| {
            let (resources, verbs) = (texts(&rule["resources"]), texts(&rule["verbs"]));
            let pairs = |resource: String| verbs.iter().map(move |verb| (resource.clone(), verb.clone()));
            resources.into_iter().flat_map(pairs).collect::<Vec<_>>()
        })
        .filter(|(_, verb)| !["get", "list", "watch"].contains(&verb.as_str()))
        .collect()
}

/// The right to write Events, and to patch these resources.
fn written_with(patched: &[&str]) -> BTreeSet<(String, String)> {
    let events = [("events", "create"), ("events", "patch")];
    let all = patched.iter().map(|resource| (*resource, "patch")).chain(events);
    all.map(|(resource, verb)| (resource.to_owned(), verb.to_owned()))
        .collect()
}

#[test]
fn what_restores_works_as_what_it_undoes() {
    let Some(programs) = Programs::find("cluster_deploy::manifests::what_restores") else {
        return;
    };
    let objects = objects(&rendered(&programs.kubectl(), "deploy/overlays/restore"));
    let [restore, agent] = containers(pod_spec(&objects))[..] else {
        panic!("not two containers");
    };
    for same in ["image", "resources", "volumeMounts"] {
        assert_eq!(restore[same], agent[same], "{same}");
    }
    // Equal except for the right to read the kernel's log.
    let mut context = agent["securityContext"].clone();
    context["capabilities"] = json!({"drop": ["ALL"]});
    assert_eq!(restore["securityContext"], context);
    let variables = |container: &Value| container["env"].as_array().unwrap().clone();
    let inherited = variables(agent);
    assert!(variables(restore).iter().all(|variable| inherited.contains(variable)));
}

#[test]
fn every_configuration_is_one_that_the_agent_accepts() {
    let Some(programs) = Programs::find("cluster_deploy::manifests::every_configuration") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("agent.yaml");
    for (overlay, objects) in with_agents(&programs.kubectl()) {
        let config = the("ConfigMap", &objects);
        fs::write(&file, config["data"]["agent.yaml"].as_str().unwrap()).unwrap();
        let spec = pod_spec(&objects);
        let mounted = spec["volumes"].as_array().unwrap();
        assert!(
            mounted
                .iter()
                .any(|volume| volume["configMap"]["name"] == config["metadata"]["name"]),
            "{overlay}"
        );
        let agent = containers(spec).pop().unwrap();
        let mut run = Command::new(env!("CARGO_BIN_EXE_vscaled"));
        run.args(["run", "--print-config"])
            .arg("--config")
            .arg(&file)
            .env_clear();
        for variable in agent["env"].as_array().unwrap() {
            let name = variable["name"].as_str().unwrap();
            let known = vscaled::config::KEYS.iter().any(|key| key.env == name);
            assert!(known || name == "DBUS_SYSTEM_BUS_ADDRESS", "{overlay}: {name}");
            run.env(name, variable["value"].as_str().unwrap_or("node-1"));
        }
        let printed: Value = serde_json::from_str(&output(&mut run)).unwrap();
        let observes = ["deploy/overlays/observe-only", "deploy/overlays/restore"].contains(&overlay);
        assert_eq!(printed["observeOnly"], observes, "{overlay}");
        let source = match overlay {
            "deploy/overlays/kubelet-pods" => "kubelet",
            _ => "kubernetes",
        };
        assert_eq!(
            (&printed["source"], &printed["nodeName"]),
            (&json!(source), &json!("node-1"))
        );
        lies_in_mounts(overlay, agent, &printed);
    }
}

/// Checks that every path in the configuration is below a mount of the container.
fn lies_in_mounts(overlay: &str, agent: &Value, config: &Value) {
    let mounts: Vec<_> = agent["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["mountPath"].as_str().unwrap())
        .collect();
    let kubelet = (config["source"] == "kubelet").then_some("kubeletSocket");
    for key in ["stateDir", "socket", "runtimeSocket", "cgroupRoot"]
        .into_iter()
        .chain(kubelet)
    {
        let path = Path::new(match config[key].as_str().unwrap() {
            // The agent searches for the socket in the directory that the manifests mount.
            "auto" => vscaled::runtime::WELL_KNOWN_SOCKETS[0],
            path => path,
        });
        // On cgroup v1 the hierarchies are mounted below.
        let held =
            |mount: &&str| path.starts_with(mount) || (key == "cgroupRoot" && Path::new(mount).starts_with(path));
        assert!(mounts.iter().any(held), "{overlay}: {key} {}", path.display());
    }
}

#[test]
fn restoring_a_node_with_cri_o_has_what_its_agent_has() {
    let Some(programs) = Programs::find("cluster_deploy::manifests::restoring_a_node_with_cri_o") else {
        return;
    };
    // Combines overlays as docs/install.md says, in a copy: kustomize accepts patches from its own directory only.
    let copy = tempfile::tempdir().unwrap();
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy");
    output(Command::new("cp").args(["-r", deploy]).arg(copy.path()));
    let overlay = copy.path().join("deploy/overlays/both");
    fs::create_dir(&overlay).unwrap();
    fs::copy(
        format!("{deploy}/overlays/restore/daemonset.yaml"),
        overlay.join("daemonset.yaml"),
    )
    .unwrap();
    let kustomization = "bases: [../cri-o]\npatchesStrategicMerge: [daemonset.yaml]\n";
    fs::write(overlay.join("kustomization.yaml"), kustomization).unwrap();
    let text = output(Command::new(programs.kubectl()).arg("kustomize").arg(&overlay));
    let objects = objects(&text);
    let spec = pod_spec(&objects);
    assert_eq!(spec["securityContext"]["seLinuxOptions"]["type"], "spc_t");
    assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let all = containers(spec);
    assert_eq!(all.len(), 2, "restore and agent");
    // Both containers find the socket in a directory that both mount.
    for container in all {
        let mounts = container["volumeMounts"].as_array().unwrap();
        let runtime = mounts.iter().find(|mount| mount["name"] == "runtime").unwrap();
        assert_eq!(runtime["mountPath"], "/host/runtime");
        assert!(!container["env"].to_string().contains("RUNTIME_SOCKET"), "{container}");
    }
    let config = the("ConfigMap", &objects)["data"]["agent.yaml"].as_str().unwrap();
    assert!(
        !config.lines().any(|line| line.starts_with("runtimeSocket:")),
        "{config}"
    );
    for socket in ["/host/runtime/containerd.sock", "/host/runtime/crio.sock"] {
        assert!(vscaled::runtime::WELL_KNOWN_SOCKETS.contains(&socket), "{socket}");
    }
}
