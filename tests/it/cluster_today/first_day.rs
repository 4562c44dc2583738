//! The first day of a user: the commands of README.md and of the page that it names, read from there and typed as they
//! stand, in a cluster with the real controllers and scheduler.
//!
//! Only names are replaced: those of the pod, and of the image, which the node already has. `scripts/image` packs that
//! of this build's programs; a released image has static ones (`VSCALED_TEST_IMAGE` names its archive). Pods have the
//! node's network (`support::network`). Where the kubelet lists its pods, vscaled is removed with `kubeletPods=true`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use vscaled::control::{Client, proto};
use vscaled::model::MemoryLimit;

use super::{APP, LARGER, Scene, kubelet_minor, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::{Components, IMAGE, Today, objects};
use crate::support::image::BUSYBOX;
use crate::support::scratch;

const README: &str = include_str!("../../../README.md");
const INSTALL: &str = include_str!("../../../docs/install.md");

#[tokio::test(flavor = "multi_thread")]
async fn the_readmes_first_day_leaves_nothing() {
    let Some(day) = Day::begin("cluster_today::first_day").await else {
        return;
    };
    let scene = &day.scene;
    // VPA's modes let everybody act on both; on the first day nothing may.
    let [web, other] = [day.runs("web", APP).await, day.runs("other", APP).await];
    let [web_levels, other_levels] = [scene.levels(&web), scene.levels(&other)];
    let is_as_before = |before: &Value, levels: &super::Levels| {
        let pod = scene.object(name(before));
        assert_eq!(pod["spec"], before["spec"], "nobody allowed that");
        assert_eq!(pod["metadata"]["generation"], before["metadata"]["generation"]);
        assert_eq!(scene.levels(&pod), *levels);
        nothing_restarted(before, &pod);
    };

    day.type_all(&commands(README, "## Install", &web));
    for pod in [&web, &other] {
        day.agent_says(name(pod), |pod| pod.action == "resize").await;
        is_as_before(pod, if pod == &web { &web_levels } else { &other_levels });
    }

    let agents = scene.today.api.get("/api/v1/namespaces/vscaled/pods");
    scene.is_confined(&agents["items"][0], "agent");

    let manage = commands(README, "## Manage one workload", &web);
    let mut manage = manage.iter().map(String::as_str);
    let mut until = |last: &str| -> Vec<String> {
        let mut typed = Vec::new();
        for command in manage.by_ref() {
            typed.push(day.type_in(command));
            if command.contains(last) {
                return typed;
            }
        }
        panic!("README.md has no command with {last}");
    };
    until("rollout status");
    day.agent_says(name(&other), |pod| pod.state == "NotManaged").await;
    is_as_before(&web, &web_levels);

    until("vscaled.io/act=true");
    let resized = scene.is_resized(name(&web), "app", &objects::resources(LARGER)).await;
    nothing_restarted(&web, &resized);
    day.agent_says(name(&web), |pod| pod.state == "InSync").await;
    let explained = until("explain").pop().unwrap();
    assert!(
        explained.contains("InSync") && explained.contains("192Mi"),
        "{explained}"
    );
    let history = until("history").pop().unwrap();
    assert!(history.contains("recommendation of VPA web"), "{history}");
    let top = until("top").pop().unwrap();
    assert!(top.contains("node-1") && top.contains("shop/Deployment/web"), "{top}");

    let by_hand = until("resize").pop().unwrap();
    assert!(by_hand.contains("Applied"), "{by_hand}");
    let gigabyte = Some(MemoryLimit::Bytes(1 << 30));
    let holds = || scene.levels(&web)["app"].memory_limit() == gigabyte;
    scene.agent.wait_for("the limit that was set by hand", holds).await;
    until("release");
    let released = scene.is_resized(name(&web), "app", &objects::resources(LARGER)).await;
    nothing_restarted(&web, &released);

    until("rollout restart");
    let again = day.is_replaced("web", name(&web)).await;
    assert_eq!(again["spec"]["containers"][0]["resources"], objects::resources(APP));
    day.agent_says(name(&again), |pod| pod.state == "NotManaged").await;
    let again_levels = scene.levels(&again);
    assert_eq!(
        manage.next(),
        None,
        "a command of README.md that nothing is expected of"
    );
    is_as_before(&other, &other_levels);

    let manifest = day.manifest_is_there();
    let mut remove = commands(INSTALL, "# with Helm", &web);
    if kubelet_minor() >= super::kubelet_pods::LEAST {
        // Agents with this value may not list pods at the API server, except to restore them.
        remove[0].push_str(" --set kubeletPods=true");
    }
    day.type_all(&remove);
    for line in ["vscaled.io/act- ", "rm /usr/local/bin/kubectl*vscale"] {
        let command = INSTALL.lines().find_map(|row| {
            let row = row.split('`').find(|part| part.contains(line.trim()))?;
            Some(row.replace("NAMESPACE", "shop").replace("NAME", "web"))
        });
        day.type_in(&command.expect("the page says how to remove that"));
    }
    day.is_gone(&manifest).await;
    is_as_before(&again, &again_levels);
    is_as_before(&other, &other_levels);
    let annotated = scene.today.api.get("/api/v1/pods").to_string() + &scene.today.api.get(&scene.vpas()).to_string();
    assert!(!annotated.contains("vscaled.io/"), "{annotated}");
}

/// A user at a machine with kubectl and helm, a cluster without the agent, and two workloads in namespace `shop`.
pub(super) struct Day {
    pub(super) scene: Scene,
    /// What is in `/usr/local/bin`, the home directory, and `sudo`.
    machine: TempDir,
    _components: Components,
}

pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// The commands below a heading of a page, as this cluster's user types them.
fn commands(page: &str, heading: &str, web: &Value) -> Vec<String> {
    let lines = page.lines().skip_while(|line| *line != heading).skip(1);
    let is_end = |line: &&str| line.starts_with("## ") || line.starts_with("# ") || *line == "```";
    let lines = lines.take_while(|line| !is_end(line));
    let is_command = |line: &&str| heading.starts_with("# ") || line.starts_with("    ");
    let commands = lines.filter(is_command).map(str::trim);
    let commands = commands.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let commands: Vec<_> = commands
        .map(|line| line.replace("REGISTRY/vscaled", IMAGE).replace("web-7d9f", name(web)))
        .collect();
    assert!(commands.len() > 1, "no commands below {heading}");
    commands
}

impl Day {
    pub(super) async fn begin(test: &str) -> Option<Self> {
        let scene = Scene::of(Today::shared(test).await?, "shop".to_owned());
        let machine = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(scratch())
            .unwrap();
        for directory in ["local", "home", "bin"] {
            fs::create_dir(machine.path().join(directory)).unwrap();
        }
        // The user of the test is root already.
        let sudo = machine.path().join("bin/sudo");
        fs::write(&sudo, "#!/bin/sh\nexec \"$@\"\n").unwrap();
        fs::set_permissions(&sudo, fs::Permissions::from_mode(0o755)).unwrap();
        let mut components = Components::new(&scene.today.api);
        components.launch_controllers(&scene.today.api);
        scene.today.import_agent();
        let day = Self {
            scene,
            machine,
            _components: components,
        };
        day.remove_rights();
        Some(day)
    }

    /// Removes the rights that tests with agents of their own have.
    fn remove_rights(&self) {
        let rights = ["namespace/vscaled", "clusterrole/vscaled", "clusterrolebinding/vscaled"];
        let remove = [&["delete", "--ignore-not-found"][..], &rights].concat();
        self.scene.today.api.kubectl(&remove, "");
    }

    /// Makes a Deployment with a VPA whose recommendation is out of bounds, and waits until its pod runs.
    async fn runs(&self, workload: &str, amounts: Amounts) -> Value {
        self.runs_command(workload, amounts, "while true; do sleep 1000; done")
            .await
    }

    /// The same for a container with this shell command.
    pub(super) async fn runs_command(&self, workload: &str, amounts: Amounts, command: &str) -> Value {
        let labels = json!({"app": workload});
        let container = json!({
            "name": "app", "image": BUSYBOX, "imagePullPolicy": "Never", "resources": objects::resources(amounts),
            "command": ["/bin/sh", "-c", command],
        });
        let pod = json!({"terminationGracePeriodSeconds": 0, "containers": [container]});
        let template = json!({"metadata": {"labels": labels}, "spec": pod});
        let spec = json!({"selector": {"matchLabels": labels}, "template": template});
        let fields = json!({"spec": spec});
        self.scene.apply("apps/v1", "Deployment", workload, json!({}), &fields);
        self.scene.make_vpa_of(workload, "InPlaceOrRecreate");
        self.scene.recommend_for(workload, &[("app", LARGER)]);
        self.is_replaced(workload, "").await
    }

    /// Waits until the pod of a workload is another one than this and runs.
    async fn is_replaced(&self, workload: &str, before: &str) -> Value {
        let pods = format!("{}?labelSelector=app%3D{workload}", self.scene.pods());
        let only = || {
            let list = self.scene.today.api.get(&pods);
            let [pod] = list["items"].as_array()?.as_slice() else {
                return None;
            };
            let runs = super::containers(pod).count() == 1;
            (runs && name(pod) != before && super::is_settled(pod)).then(|| pod.clone())
        };
        let what = format!("a pod of {workload} to run");
        self.scene.agent.until(&what, async || only()).await
    }

    pub(super) fn type_all(&self, commands: &[String]) {
        for command in commands {
            self.type_in(command);
        }
    }

    /// Runs a command in a checkout, which has to succeed, and returns what it prints.
    pub(super) fn type_in(&self, command: &str) -> String {
        let (code, printed, _) = self.try_in(command);
        assert_eq!(code, Some(0), "{command}");
        printed
    }

    /// Runs a command in a checkout. Returns its exit code, what it prints, and its complaints.
    pub(super) fn try_in(&self, command: &str) -> (Option<i32>, String, String) {
        let own = |directory: &str| self.machine.path().join(directory);
        // What is installed on this machine is not in the way.
        let script = "mount --bind \"$LOCAL\" /usr/local/bin && exec bash -c \"$COMMAND\"";
        let local = Path::new("/usr/local/bin");
        let mut shell = self.scene.today.shell(
            &[&own("bin"), local],
            &format!("exec unshare --mount bash -c '{script}'"),
        );
        shell
            .env("LOCAL", own("local"))
            .env("COMMAND", command)
            .env("HOME", own("home"))
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = shell.output().unwrap();
        let [printed, errors] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        eprintln!("$ {command}\n{printed}{errors}");
        (output.status.code(), printed, errors)
    }

    /// Waits until the deployed agent says something of a pod.
    pub(super) async fn agent_says(&self, pod: &str, holds: impl Fn(&proto::Pod) -> bool) {
        let said = async || {
            let mut client = Client::connect(self.scene.today.deployed_socket()).await.ok()?;
            let reply = client.get().await.ok()?;
            reply.pods.into_iter().find(|of| of.name == pod && holds(of))
        };
        let what = format!("the deployed agent to know {pod}");
        self.scene.agent.until(&what, said).await;
    }

    /// The objects of the chart's release.
    fn manifest_is_there(&self) -> Vec<Value> {
        let manifest = self.type_in("helm get manifest vscaled");
        let objects: Vec<Value> = serde_saphyr::from_multiple(&manifest).unwrap();
        assert!(objects.iter().any(|object| object["kind"] == "DaemonSet"), "{manifest}");
        objects
    }

    /// Waits until none of these objects is left, nor a record of the release.
    async fn is_gone(&self, manifest: &[Value]) {
        let all = json!({"apiVersion": "v1", "kind": "List", "items": manifest}).to_string();
        let get = ["get", "--filename=-", "--ignore-not-found", "--output=name"];
        let gone = || self.scene.today.api.kubectl(&get, &all).is_empty();
        self.scene.agent.wait_for("all objects to be gone", gone).await;
        let secrets = self.scene.today.api.get("/api/v1/namespaces/default/secrets");
        assert_eq!(secrets["items"], json!([]));
    }
}

impl Drop for Day {
    fn drop(&mut self) {
        // What a test that failed has left.
        self.try_in("helm uninstall vscaled --ignore-not-found");
        // What the tests after this one have.
        self.remove_rights();
        self.scene.today.api.grant("deploy/base");
    }
}
