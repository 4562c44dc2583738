//! The chart is what users of Helm expect: a dependency of other charts, careful by default, for every distribution.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::chart::{CHART, Helm, set};
use super::{check_names, objects, the};
use crate::support::image::output;

/// The image, which has no default.
const IMAGE: &str = "image.repository=registry.example/vscaled";

/// The only object of this kind and name.
fn named<'o>(kind: &str, name: &str, objects: &'o [Value]) -> &'o Value {
    let mut found = objects
        .iter()
        .filter(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    let object = found.next().unwrap_or_else(|| panic!("no {kind} {name}"));
    assert!(found.next().is_none(), "more than one {kind} {name}");
    object
}

fn pod(objects: &[Value]) -> &Value {
    &the("DaemonSet", objects)["spec"]["template"]["spec"]
}

/// The agent's container.
fn agent(objects: &[Value]) -> &Value {
    &pod(objects)["containers"][0]
}

fn variable<'o>(objects: &'o [Value], name: &str) -> Option<&'o Value> {
    let mut variables = agent(objects)["env"].as_array().unwrap().iter();
    variables.find(|variable| variable["name"] == name)
}

#[test]
fn a_parent_chart_enables_it_and_passes_what_helm_defines() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::a_parent_chart") else {
        return;
    };
    let parent = tempfile::tempdir().unwrap();
    let charts = parent.path().join("charts");
    fs::create_dir(&charts).unwrap();
    output(helm.command(&["package", CHART, "--destination"]).arg(&charts));
    let chart = format!(
        "apiVersion: v2\nname: platform\nversion: 0.0.1\ndependencies:\n\
         - {{name: vscaled, version: {}, repository: '', condition: vscaled.enabled, tags: [agents]}}\n",
        env!("CARGO_PKG_VERSION")
    );
    fs::write(parent.path().join("Chart.yaml"), chart).unwrap();
    let values = "global: {region: north}\ntags: {agents: true}\nvscaled:\n  enabled: true\n  \
                  image: {repository: registry.example/vscaled}\n  imagePullSecrets: [{name: registry}]\n  \
                  commonLabels: {team: platform}\n";
    fs::write(parent.path().join("values.yaml"), values).unwrap();
    let deploys = |value: &str| {
        let mut command = helm.command(&["template", "platform"]);
        set(command.arg(parent.path()), &[value]);
        objects(&output(&mut command))
    };
    let enabled = deploys("vscaled.enabled=true");
    assert_eq!(pod(&enabled)["imagePullSecrets"], json!([{"name": "registry"}]));
    for object in &enabled {
        let labels = &object["metadata"]["labels"];
        assert_eq!(labels["team"], "platform", "{object}");
        assert_eq!(labels["helm.sh/chart"], concat!("vscaled-", env!("CARGO_PKG_VERSION")));
        assert_eq!(labels["app.kubernetes.io/instance"], "platform");
        for label in ["name", "version", "component", "part-of", "managed-by"] {
            assert!(labels[format!("app.kubernetes.io/{label}")].is_string(), "{object}");
        }
    }
    assert!(deploys("vscaled.enabled=false").is_empty());
}

#[test]
fn its_defaults_observe_and_restrict() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::its_defaults") else {
        return;
    };
    for (version, policies) in [("1.36.0", 3), ("1.30.4-eks-1", 3), ("1.29.9", 0)] {
        let all = helm.template_for(version, CHART, &[IMAGE]);
        assert_eq!(variable(&all, "VSCALED_OBSERVE_ONLY").unwrap()["value"], "true");
        let count = |kind: &str| all.iter().filter(|object| object["kind"] == kind).count();
        assert_eq!(count("ValidatingAdmissionPolicy"), policies, "{version}");
        assert_eq!(count("ValidatingAdmissionPolicyBinding"), policies, "{version}");
        let network = the("NetworkPolicy", &all);
        assert_eq!(
            network["spec"]["ingress"],
            json!([{"ports": [{"protocol": "TCP", "port": "metrics"}]}])
        );
        assert_eq!(network["spec"]["policyTypes"], json!(["Ingress"]));
        let namespace = &the("Namespace", &all)["metadata"]["labels"];
        for mode in ["enforce", "audit", "warn"] {
            assert_eq!(namespace[format!("pod-security.kubernetes.io/{mode}")], "privileged");
        }
    }
    let acts = helm.template_for("1.36.0", CHART, &[IMAGE, "observeOnly=false"]);
    assert_eq!(variable(&acts, "VSCALED_OBSERVE_ONLY"), None);
}

#[test]
fn evictions_are_allowed_only_with_reports_of_kills() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::evictions") else {
        return;
    };
    for (option, value, allowed) in [
        ("--set", "config.logFormat=json", false),
        ("--set", "config.reportVpaEvents=true", true),
        ("--set-string", "config.reportVpaEvents=true", true),
        ("--set-string", "config.reportVpaEvents=false", false),
    ] {
        let chart = ["template", "vscaled", CHART, "--kube-version", "1.36.0", "--set", IMAGE];
        let all = objects(&output(&mut helm.command(&[&chart[..], &[option, value]].concat())));
        let policy = named("ValidatingAdmissionPolicy", "vscaled-events", &all).to_string();
        assert_eq!(
            policy.contains("['OOMKilled', 'Evicted',"),
            allowed,
            "{value}: {policy}"
        );
    }
}

#[test]
fn an_agent_with_a_group_may_give_it_the_socket() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::an_agent_with_a_group") else {
        return;
    };
    for (value, added) in [
        ("config.logFormat=json", json!(["SYSLOG"])),
        ("config.operatorGroup=1000", json!(["SYSLOG", "CHOWN"])),
        ("config.readerGroup=1000", json!(["SYSLOG", "CHOWN"])),
    ] {
        let all = helm.template_for("1.36.0", CHART, &[IMAGE, "restore=true", value]);
        let capabilities = |container: &Value| container["securityContext"]["capabilities"].clone();
        assert_eq!(capabilities(agent(&all))["add"], added, "{value}");
        // The container that restores serves no socket.
        assert_eq!(capabilities(&pod(&all)["initContainers"][0]), json!({"drop": ["ALL"]}));
    }
}

#[test]
fn vscalectl_in_the_pod_knows_another_socket() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::vscalectl_in_the_pod") else {
        return;
    };
    let socket = "config.socket=/run/vscaled/other.sock";
    let all = helm.template_for("1.36.0", CHART, &[IMAGE, socket]);
    assert_eq!(
        variable(&all, "VSCALED_SOCKET").unwrap()["value"],
        "/run/vscaled/other.sock"
    );
    let name = "extraEnv[0].name=VSCALED_SOCKET";
    let value = "extraEnv[0].value=/run/vscaled/third.sock";
    let all = helm.template_for("1.36.0", CHART, &[IMAGE, socket, name, value]);
    assert_eq!(
        variable(&all, "VSCALED_SOCKET").unwrap()["value"],
        "/run/vscaled/third.sock"
    );
}

#[test]
fn the_templates_read_variables_as_the_agents_do() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::the_templates_read_variables") else {
        return;
    };
    let with = |name: &str, value: &str| {
        let name = format!("extraEnv[0].name=VSCALED_{name}");
        let value = format!("extraEnv[0].value={value}");
        helm.template_for("1.36.0", CHART, &[IMAGE, name.as_str(), value.as_str()])
    };
    for address in ["0.0.0.0:9000", "$(POD_IP):9000"] {
        let all = with("HTTP_ADDRESS", address);
        assert_eq!(agent(&all)["ports"][0]["containerPort"], 9000);
    }
    let all = with("READER_GROUP", "adm");
    let added = &agent(&all)["securityContext"]["capabilities"]["add"];
    assert!(added.as_array().unwrap().contains(&json!("CHOWN")), "{added}");
    let all = with("RUNTIME_SOCKET", "none");
    let volumes = pod(&all)["volumes"].as_array().unwrap();
    assert!(volumes.iter().all(|volume| volume["name"] != "runtime"));
    let all = with("REPORT_VPA_EVENTS", "true");
    let admits = |object: &Value| object.to_string().contains("in ['OOMKilled', 'Evicted',");
    assert!(all.iter().any(admits));
}

#[test]
fn what_restores_gets_no_pods_from_the_kubelet() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::what_restores_gets_no_pods") else {
        return;
    };
    let values = "kubeletPods=true,restore=true,config.source=kubelet";
    let all = helm.template_for("1.36.0", CHART, &[IMAGE, values]);
    assert_eq!(variable(&all, "VSCALED_SOURCE").unwrap()["value"], "kubelet");
    let config = the("ConfigMap", &all)["data"]["agent.yaml"].as_str().unwrap();
    assert!(config.contains("source: kubernetes\n"), "{config}");
}

#[test]
fn notes_name_what_the_agents_run_without() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::notes_name_what") else {
        return;
    };
    let notes = |values: &str| {
        let install = ["install", "vscaled", CHART, "--dry-run=client", "--set", IMAGE];
        let printed = output(helm.command(&install).args(["--set", values]));
        printed.split_once("\nNOTES:\n").unwrap().1.to_owned()
    };
    for (values, note) in [
        ("monitoring=true,config.httpAddress=127.0.0.1:9464", "VscaledAbsent"),
        ("monitoring=true,config.httpAddress=", "VscaledAbsent"),
        (
            "config.runtimeSocket=unix:///run/k3s/containerd/containerd.sock",
            "run without it",
        ),
        ("config.kubeletDir=/var/lib/k0s/kubelet", "run without it"),
        ("config.auditLog=/var/log/vscaled", "run without it"),
        ("config.source=both,config.manifests=/manifests", "run without it"),
    ] {
        let said = notes(values);
        assert!(said.contains(note), "{values}: {said}");
    }
    let said = notes("monitoring=true,config.auditLog=/var/lib/vscaled/a,config.manifests=/manifests");
    assert!(
        !said.contains("VscaledAbsent") && !said.contains("run without it"),
        "{said}"
    );
}

#[test]
fn a_value_without_content_is_the_default() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::a_value_without_content") else {
        return;
    };
    let values = objects(&fs::read_to_string(format!("{CHART}/values.yaml")).unwrap()).remove(0);
    let file = helm.home.path().join("values.yaml");
    let nothing = values.as_object().unwrap().keys().filter(|key| *key != "image");
    let top = nothing.map(|key| format!("{key}:\n")).collect::<String>();
    let below =
        "networkPolicy: {enabled: , from: }\nimage: {tag: }\nconfig: {source: , httpAddress: , observeOnly: }\n";
    let chart = ["template", "vscaled", CHART, "--set", IMAGE];
    let defaults = output(&mut helm.command(&chart));
    for empty in [top.as_str(), below] {
        fs::write(&file, empty).unwrap();
        let found = output(helm.command(&chart).arg("--values").arg(&file));
        assert_eq!(found, defaults, "{empty}");
    }
    assert!(helm.refusal("image=null").contains("image.repository is required"));
}

#[test]
fn no_pod_waits_for_a_node_that_runs_none() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::no_pod_waits") else {
        return;
    };
    let all = helm.template_for("1.36.0", CHART, &[IMAGE, "tests.enabled=true"]);
    for pod in [pod(&all), &the("Pod", &all)["spec"]] {
        assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
        let node = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let [term] = &node["nodeSelectorTerms"].as_array().unwrap()[..] else {
            panic!("{node}");
        };
        for (key, value) in [
            ("eks.amazonaws.com/compute-type", "fargate"),
            ("type", "virtual-kubelet"),
            ("node.kubernetes.io/instance-type", "eklet"),
        ] {
            let left_out = json!({"key": key, "operator": "NotIn", "values": [value]});
            assert!(
                term["matchExpressions"].as_array().unwrap().contains(&left_out),
                "{term}"
            );
        }
    }
}

#[test]
fn the_pod_of_helm_test_goes_where_agents_go_and_is_not_one() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::the_pod_of_helm_test") else {
        return;
    };
    let values = [
        IMAGE,
        "tests.enabled=true",
        "nodeSelector.pool=web",
        "tolerations[0].key=web",
        "affinity.nodeAffinity.x=y",
        "fullnameOverride=resizer",
        "extraEnv[0].name=VSCALED_LOG_LEVEL",
        "extraEnv[0].value=debug",
    ];
    let all = helm.template_for("1.36.0", CHART, &values);
    let test = the("Pod", &all);
    for field in ["nodeSelector", "tolerations", "affinity"] {
        assert_eq!(test["spec"][field], pod(&all)[field], "{field}");
    }
    assert_eq!(test["spec"]["volumes"][0]["configMap"]["name"], "resizer");
    // The agent checks variables, too.
    assert_eq!(
        test["spec"]["containers"][0]["env"][1],
        json!({"name": "VSCALED_LOG_LEVEL", "value": "debug"})
    );
    // The DaemonSet would adopt a pod with all labels of its selector.
    let selector = the("DaemonSet", &all)["spec"]["selector"]["matchLabels"]
        .as_object()
        .unwrap();
    assert!(
        selector
            .iter()
            .any(|(name, value)| test["metadata"]["labels"][name] != *value)
    );
}

#[test]
fn a_name_of_its_own_reaches_every_reference() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::a_name_of_its_own") else {
        return;
    };
    for (values, name) in [
        (&["nameOverride=resizer"][..], "resizer"),
        (&["nameOverride=other", "fullnameOverride=resizer"], "resizer"),
    ] {
        let monitoring = [
            IMAGE,
            "monitoring=true",
            "monitoringLabels.release=stack",
            "runbookPrefix=https://x/",
        ];
        let values = [&monitoring[..], values].concat();
        let all = helm.template_for("1.36.0", CHART, &values);
        check_names(&all, name);
        for object in all.iter().filter(|object| object["kind"] != "Namespace") {
            let found = object["metadata"]["name"].as_str().unwrap();
            assert!(found == name || found.starts_with("resizer-"), "{found}");
        }
        assert_eq!(pod(&all)["serviceAccountName"], name);
        let binding = the("ClusterRoleBinding", &all);
        assert_eq!(
            (&binding["roleRef"]["name"], &binding["subjects"][0]["name"]),
            (&json!(name), &json!(name))
        );
        let agents = format!("system:serviceaccount:vscaled:{name}");
        assert!(
            named("ValidatingAdmissionPolicy", name, &all)
                .to_string()
                .contains(&agents)
        );
        let bound = &named("ValidatingAdmissionPolicyBinding", "resizer-events", &all)["spec"]["policyName"];
        assert_eq!(bound, "resizer-events");
        let rules = the("PrometheusRule", &all)["spec"]["groups"][0]["rules"]
            .as_array()
            .unwrap();
        let runbooks = rules
            .iter()
            .filter_map(|rule| rule["annotations"]["runbook_url"].as_str());
        assert_eq!(runbooks.filter(|url| url.starts_with("https://x/docs/")).count(), 26);
        for kind in ["PodMonitor", "PrometheusRule"] {
            assert_eq!(the(kind, &all)["metadata"]["labels"]["release"], "stack", "{kind}");
        }
    }
}

#[test]
fn values_reach_the_pods_of_other_distributions() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::values_reach") else {
        return;
    };
    let values = [
        IMAGE,
        "restore=true",
        "seLinuxType=spc_t",
        "kubeletDirectory=/var/lib/k0s/kubelet",
        "kubeletPods=true",
        "priorityClassName=high",
        "updateStrategy.type=OnDelete",
        "podSecurityContext.fsGroup=7",
        "extraEnv[0].name=DBUS_SYSTEM_BUS_ADDRESS",
        "extraEnv[0].value=unix:path=/x",
        "extraVolumes[0].name=x",
        "extraVolumes[0].hostPath.path=/x",
        "extraVolumeMounts[0].name=x",
        "extraVolumeMounts[0].mountPath=/x",
        "reportTls.secretName=receiver",
        "reportTls.clientCertificate=true",
        "config.httpAddress=0.0.0.0:9999",
    ];
    let mut command = helm.command(&["template", "vscaled", CHART, "--set-json=tolerations=[]"]);
    set(&mut command, &values);
    let all = objects(&output(&mut command));
    check_names(&all, "all values");
    let pod = pod(&all);
    assert_eq!(pod["tolerations"], json!([]));
    assert_eq!(pod["priorityClassName"], "high");
    assert_eq!(
        the("DaemonSet", &all)["spec"]["updateStrategy"],
        json!({"type": "OnDelete"})
    );
    assert_eq!(pod["securityContext"]["seLinuxOptions"], json!({"type": "spc_t"}));
    assert_eq!(pod["securityContext"]["fsGroup"], 7);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let volumes = pod["volumes"].as_array().unwrap();
    let place = |name: &str| {
        let volume = volumes.iter().find(|volume| volume["name"] == name).unwrap();
        volume["hostPath"]["path"].as_str().unwrap_or_default()
    };
    for (name, file) in [
        ("cpu-manager", "cpu_manager_state"),
        ("memory-manager", "memory_manager_state"),
        ("pods-api", "pods-api"),
    ] {
        assert_eq!(place(name), format!("/var/lib/k0s/kubelet/{file}"));
    }
    for container in [&pod["initContainers"][0], &pod["containers"][0]] {
        let variables = container["env"].as_array().unwrap();
        let bus: Vec<_> = variables
            .iter()
            .filter(|variable| variable["name"] == "DBUS_SYSTEM_BUS_ADDRESS")
            .collect();
        assert_eq!(
            bus,
            [&json!({"name": "DBUS_SYSTEM_BUS_ADDRESS", "value": "unix:path=/x"})]
        );
        let mounts = container["volumeMounts"].as_array().unwrap();
        for path in ["/x", "/etc/vscaled-tls", "/host/kubelet/cpu_manager_state"] {
            assert!(
                mounts.iter().any(|mount| mount["mountPath"] == path),
                "{path}: {mounts:?}"
            );
        }
    }
    assert_eq!(pod["containers"][0]["ports"][0]["containerPort"], 9999);
    let file = helm.home.path().join("agent.yaml");
    let config = &the("ConfigMap", &all)["data"]["agent.yaml"];
    fs::write(&file, config.as_str().unwrap()).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_vscaled"));
    run.args(["run", "--print-config", "--config"])
        .arg(&file)
        .env_clear()
        .env("NODE_NAME", "any");
    let printed: Value = serde_json::from_str(&output(&mut run)).unwrap();
    for (key, name) in [
        ("reportGrpcCaFile", "ca.crt"),
        ("reportGrpcCertFile", "tls.crt"),
        ("reportGrpcKeyFile", "tls.key"),
    ] {
        assert_eq!(printed[key], format!("/etc/vscaled-tls/{name}"));
    }
    // The agents list pods at the kubelet, and may not list them elsewhere, but to restore.
    let lists_pods = |objects: &[Value]| {
        let rules = the("ClusterRole", objects)["rules"].as_array().unwrap();
        let on_pods = |rule: &Value| rule["resources"].as_array().unwrap().contains(&json!("pods"));
        rules.iter().any(on_pods)
    };
    assert!(lists_pods(&all));
    let act = helm.template_for("1.36.0", CHART, &[IMAGE, "kubeletPods=true"]);
    assert!(!lists_pods(&act));
}

#[test]
fn nobody_connects_to_an_agent_that_serves_loopback_alone() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::nobody_connects") else {
        return;
    };
    for address in ["127.0.0.1:9464", "[::1]:9464"] {
        let value = format!("config.httpAddress={address}");
        let all = helm.template_for("1.36.0", CHART, &[IMAGE, &value]);
        assert_eq!(the("NetworkPolicy", &all)["spec"]["ingress"], json!([]));
        assert_eq!(
            agent(&all).get("readinessProbe"),
            None,
            "the kubelet cannot reach {address}"
        );
    }
    let values = [IMAGE, "networkPolicy.from[0].podSelector.matchLabels.app=prometheus"];
    let all = helm.template_for("1.36.0", CHART, &values);
    let from = &the("NetworkPolicy", &all)["spec"]["ingress"][0]["from"];
    assert_eq!(*from, json!([{"podSelector": {"matchLabels": {"app": "prometheus"}}}]));
    let off = helm.template_for("1.36.0", CHART, &[IMAGE, "networkPolicy.enabled=false"]);
    assert!(!off.iter().any(|object| object["kind"] == "NetworkPolicy"));
}

#[test]
fn every_documented_installation_names_the_image() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_dir(root.join("docs")).unwrap();
    let pages = docs.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let pages = pages.chain(["README.md", "deploy/helm/README.md"].map(|page| root.join(page)));
    let texts: Vec<_> = pages.map(|page| fs::read_to_string(page).unwrap()).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    let commands: Vec<_> = lines
        .filter(|line| line.trim_start().starts_with("helm install "))
        .collect();
    assert!(commands.len() > 4, "{commands:?}");
    for command in commands {
        assert!(
            command.contains(" --set image.repository="),
            "the chart refuses {command}"
        );
    }
}

#[test]
fn kubelets_without_a_memory_manager_have_nothing_to_mount() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::kubelets_without") else {
        return;
    };
    for (version, has) in [("1.21.14", false), ("1.22.0", true)] {
        let all = helm.template_for(version, CHART, &[IMAGE, "restore=true"]);
        check_names(&all, version);
        assert_eq!(pod(&all).to_string().contains("memory_manager_state"), has, "{version}");
    }
}

#[test]
fn an_agent_that_uses_no_runtime_mounts_no_socket() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::an_agent_that_uses_no_runtime") else {
        return;
    };
    for (value, has) in [
        ("config.runtimeSocket=none", false),
        ("config.runtimeSocket=auto", true),
    ] {
        let all = helm.template_for("1.36.0", CHART, &[IMAGE, "restore=true", value]);
        check_names(&all, value);
        for path in ["/run/containerd", "/host/runtime"] {
            assert_eq!(pod(&all).to_string().contains(path), has, "{value}: {path}");
        }
    }
}

#[test]
fn the_chart_is_complete_and_of_the_agents_version() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::the_chart_is_complete") else {
        return;
    };
    output(&mut helm.command(&["lint", "--strict", CHART]));
    let read = |name: &str| fs::read_to_string(format!("{CHART}/{name}")).unwrap();
    let chart = objects(&read("Chart.yaml")).remove(0);
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let values = objects(&read("values.yaml")).remove(0);
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let keys = |object: &Value| object.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(&values), keys(&schema["properties"]));
    described("", &schema);
    // The directory has links to the files; the package has copies.
    let mut package = helm.command(&["package", CHART, "--destination"]);
    output(package.arg(helm.home.path()));
    let package = concat!("vscaled-", env!("CARGO_PKG_VERSION"), ".tgz");
    let package = helm.home.path().join(package);
    let values = ["cgroup=v2", "restore=true", "admissionPolicy=true", "monitoring=true"];
    let packaged = helm.template(package.to_str().unwrap(), &values);
    assert_eq!(packaged, helm.template(CHART, &values));
}

/// Checks that the schema has the type and the description of every value.
fn described(path: &str, schema: &Value) {
    for (name, value) in schema["properties"].as_object().unwrap() {
        assert!(!value["type"].is_null(), "{path}{name} has no type");
        let description = value["description"].as_str();
        assert!(
            description.is_some_and(|text| text.ends_with(['.', ')'])),
            "{path}{name} has no description"
        );
        if value.get("properties").is_some() {
            described(&format!("{path}{name}."), value);
        }
    }
}

#[test]
fn apparmor_is_a_field_or_annotations_by_version() {
    let Some(helm) = Helm::new("cluster_deploy::chart_conventions::new_api_servers") else {
        return;
    };
    for (version, cgroup, profile) in [
        ("1.36.0", "v2", json!({"type": "Unconfined"})),
        ("1.29.9", "v2", Value::Null),
        ("1.36.0", "auto", Value::Null),
    ] {
        let values = [&format!("cgroup={cgroup}"), "restore=true", "image.repository=r/v"];
        let objects = helm.template_for(version, CHART, &values);
        let pod = &the("DaemonSet", &objects)["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["appArmorProfile"], profile, "{version} {cgroup}");
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    }
}
