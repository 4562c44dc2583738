//! Promise: an agent has all it needs with exactly the mounts, the capabilities and the environment that the manifests and
//! the chart give it. What only other tests set up by hand is missing here.
//!
//! A mount namespace has a root directory with the programs, a mount for each volume as rendered, and nothing else of
//! this machine. The pods come from a directory, because there is no API server.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::cluster_deploy::{objects, rendered, the};
use crate::support::amounts::{Amounts, vpa_manifest};
use crate::support::bare::{BareNode, BarePod};
use crate::support::cluster::Programs;
use crate::support::image::{libraries, output};
use crate::support::{scratch, skipped};

const PATIENCE: Duration = Duration::from_secs(120);

const WEB: (&str, &str) = ("web", "0a1b2c3d-0000-4000-8000-000000000051");
/// A Guaranteed pod with whole processors, which a static policy assigns to it.
const PINNED: (&str, &str) = ("pinned", "0a1b2c3d-0000-4000-8000-000000000052");

const BEFORE: Amounts = Amounts::doubled(100, 64);
const AFTER: Amounts = Amounts::doubled(250, 96);
const WHOLE: Amounts = whole(64);

/// Four processors, and so many mebibytes.
const fn whole(memory: u64) -> Amounts {
    Amounts {
        cpu: 4000,
        cpu_limit: Some(4000),
        memory,
        memory_limit: Some(memory),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_base_is_enough() {
    let Some(kubectl) = kubectl("host_deployed::the_base") else {
        return;
    };
    let agent = Deployed::start(&objects(&rendered(&kubectl, "deploy/base")), "none");
    agent.resizes_and_is_healthy();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hierarchies_of_cgroup_v1_are_enough() {
    const NAME: &str = "host_deployed::the_hierarchies";
    let Some(kubectl) = kubectl(NAME) else { return };
    if !Path::new("/sys/fs/cgroup/cpuset").exists() {
        return skipped(NAME, "this machine has no cpuset hierarchy of cgroup v1");
    }
    let agent = Deployed::start(&objects(&rendered(&kubectl, "deploy/overlays/cgroup-v1")), "none");
    agent.resizes_and_is_healthy();
}

#[tokio::test(flavor = "multi_thread")]
async fn processors_of_a_static_policy_are_left_alone() {
    let Some(kubectl) = kubectl("host_deployed::processors") else {
        return;
    };
    let agent = Deployed::start(&objects(&rendered(&kubectl, "deploy/base")), "static");
    agent.resizes_and_is_healthy();
    let pinned = &agent.pods[1];
    let expected = [("app", whole(AFTER.memory))];
    agent.until("memory to follow, and processors to stay", || {
        agent.node.holds(pinned, &expected)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_charts_pod_is_enough() {
    const NAME: &str = "host_deployed::the_charts_pod";
    let Some(programs) = Programs::find(NAME) else { return };
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/helm");
    let mut helm = Command::new(programs.addon("helm"));
    helm.args([
        "template",
        "vscaled",
        chart,
        "--set=image.repository=r/vscaled,observeOnly=false",
    ]);
    let agent = Deployed::start(&objects(&output(&mut helm)), "none");
    agent.resizes_and_is_healthy();
}

fn kubectl(test: &str) -> Option<PathBuf> {
    Some(Programs::find(test)?.kubectl())
}

/// An agent in a root directory of its own. Dropping the value ends it.
struct Deployed {
    node: BareNode,
    pods: [BarePod; 2],
    /// What the manifests call directories of the node, and the root.
    places: TempDir,
    process: Child,
}

impl Deployed {
    /// Starts the agent of a DaemonSet, on a node whose CPU manager has this policy.
    fn start(objects: &[Value], policy: &str) -> Self {
        let mut node = BareNode::new();
        let web = node.run(WEB.0, WEB.1, &[("app", BEFORE)]);
        let pinned = node.run_below("kubepods", PINNED.0, PINNED.1, &[("app", WHOLE)]);
        let places = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(scratch())
            .unwrap();
        let host = places.path().join("host");
        for directory in [
            "run/containerd",
            "run/dbus",
            "run/vscaled",
            "var/lib/vscaled",
            "var/lib/kubelet",
        ] {
            fs::create_dir_all(host.join(directory)).unwrap();
        }
        for (file, policy) in [("cpu_manager_state", policy), ("memory_manager_state", "None")] {
            let file = host.join("var/lib/kubelet").join(file);
            fs::write(&file, format!(r#"{{"policyName":"{policy}"}}"#)).unwrap();
            // As the kubelet makes it.
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let config = host.join("config");
        fs::create_dir_all(config.join("manifests")).unwrap();
        let text = the("ConfigMap", objects)["data"]["agent.yaml"].as_str().unwrap();
        fs::write(config.join("agent.yaml"), text).unwrap();
        let vpas = [(&web, AFTER), (&pinned, AFTER)].map(|(pod, to)| vpa_manifest(pod.name, pod.name, &[("app", to)]));
        let manifests = [web.manifest(), pinned.manifest()].into_iter().chain(vpas);
        let manifests: Vec<_> = manifests.collect();
        fs::write(config.join("manifests/node.yaml"), manifests.join("---\n")).unwrap();

        let spec = &the("DaemonSet", objects)["spec"]["template"]["spec"];
        let root = places.path().join("root");
        let script = script(spec, &host, &root);
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation=private", "sh", "-ec", &script])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null());
        for variable in spec["containers"][0]["env"].as_array().unwrap() {
            command.env(
                variable["name"].as_str().unwrap(),
                variable["value"].as_str().unwrap_or("node-1"),
            );
        }
        // There is no API server and no runtime, and this machine's root cgroup has other pods.
        for (name, value) in [
            ("VSCALED_SOURCE", "directory".to_owned()),
            ("VSCALED_RUNTIME_SOCKET", "none".to_owned()),
            ("VSCALED_HTTP_ADDRESS", String::new()),
            ("VSCALED_KUBEPODS", node.kubepods().to_string()),
        ] {
            command.env(name, value);
        }
        let log = fs::File::create(places.path().join("log")).unwrap();
        let process = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Self {
            node,
            pods: [web, pinned],
            places,
            process,
        }
    }

    fn resizes_and_is_healthy(&self) {
        let [web, _] = &self.pods;
        self.until("the recommendation", || self.node.holds(web, &[("app", AFTER)]));
        self.until("an answer", || self.vscalectl(&["get", "-o", "json"]).is_some());
        let state: Value = serde_json::from_str(&self.vscalectl(&["get", "-o", "json"]).unwrap()).unwrap();
        assert_eq!(state["agent"]["problems"], serde_json::json!([]), "{state:#}");
    }

    /// The output of vscalectl on the node, unless it fails.
    fn vscalectl(&self, arguments: &[&str]) -> Option<String> {
        let socket = self.places.path().join("host/run/vscaled/vscaled.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vscalectl"));
        let output = command.args(arguments).arg("--socket").arg(socket).output().unwrap();
        output
            .status
            .success()
            .then(|| String::from_utf8(output.stdout).unwrap())
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let started = Instant::now();
        while !holds() {
            let log = fs::read_to_string(self.places.path().join("log")).unwrap_or_default();
            assert!(started.elapsed() < PATIENCE, "waited in vain for {what}:\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Deployed {
    fn drop(&mut self) {
        // The shells before it have become the agent.
        let pid = Pid::from_raw(self.process.id().try_into().unwrap());
        let ended = kill(pid, Signal::SIGTERM).map(|()| self.process.wait());
        if let Err(error) = ended {
            eprintln!("the agent: {error}");
        }
    }
}

/// The commands that make the root directory and become the agent's container. A mount is read-only where the manifest says so;
/// the root directory is, as `readOnlyRootFilesystem` asks.
fn script(spec: &Value, host: &Path, root: &Path) -> String {
    let agent = &spec["containers"][0];
    let context = &agent["securityContext"];
    assert_eq!(context["readOnlyRootFilesystem"], true);
    assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
    let bin = root.join("usr/local/bin");
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir(root.join("proc")).unwrap();
    for program in [env!("CARGO_BIN_EXE_vscaled"), "/usr/bin/setpriv"] {
        let name = Path::new(program).file_name().unwrap();
        output(Command::new("strip").arg("-o").arg(bin.join(name)).arg(program));
        for library in libraries(program) {
            let place = root.join(library.trim_start_matches('/'));
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::copy(&library, place).unwrap();
        }
    }
    let mut lines = vec![
        format!("mount --bind {0} {0}", root.display()),
        format!("mount --rbind /proc {}/proc", root.display()),
    ];
    let volumes = spec["volumes"].as_array().unwrap();
    for mount in agent["volumeMounts"].as_array().unwrap() {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        let source = match volume["hostPath"]["path"].as_str() {
            // The real hierarchies.
            Some(path) if path.starts_with("/sys/fs/cgroup") => PathBuf::from(path),
            Some(path) => host.join(path.trim_start_matches('/')),
            None => host.join("config"),
        };
        let is_file = volume["hostPath"]["type"] == "File";
        assert_eq!(source.is_file(), is_file, "{volume}");
        let target = root.join(mount["mountPath"].as_str().unwrap().trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        if is_file {
            fs::write(&target, "").unwrap();
        } else {
            fs::create_dir_all(&target).unwrap();
        }
        let (source, target) = (source.display(), target.display());
        lines.push(format!("mount --rbind {source} {target}"));
        if mount["readOnly"] == true {
            lines.push(format!("mount -o remount,bind,ro {target}"));
        }
    }
    lines.push(format!("mount -o remount,bind,ro {}", root.display()));
    let added = context["capabilities"]["add"].as_array().into_iter().flatten();
    let added: String = added
        .map(|name| format!(",+{}", name.as_str().unwrap().to_lowercase()))
        .collect();
    let arguments: Vec<_> = agent["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|text| text.as_str().unwrap())
        .collect();
    lines.push(format!(
        "exec chroot {} /usr/local/bin/setpriv --no-new-privs --bounding-set=-all{added} --inh-caps=-all \
         /usr/local/bin/vscaled {}",
        root.display(),
        arguments.join(" ")
    ));
    lines.join("\n")
}
