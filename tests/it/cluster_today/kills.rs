//! Containers that the kernel kills become Events and numbers, beside what the kubelet says itself.

use std::fs;

use serde_json::{Value, json};

use super::{APP, GREEDY, HOLDS_60_MB, LARGER, Scene, WEB, kubelet_minor, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;
use crate::support::{http, skipped};

/// The first minor version of kubelets that limit a pod as a whole without a feature gate.
const LEAST_FOR_POD_LIMITS: u32 = 34;

#[tokio::test]
async fn a_killed_container_is_an_event_with_its_limit_and_a_number() {
    let Some(mut scene) = Scene::new("cluster_today::kills::a_killed_container").await else {
        return;
    };
    scene.agent.set("--http-address", "127.0.0.1:0");
    scene.starts_watching_kills().await;
    let spec = json!({"containers": [
        {"name": "app", "resources": objects::resources(APP), "command": ["/bin/sh", "-c", GREEDY]},
    ]});
    scene.make_pod(WEB, &spec);
    scene.make_vpa("InPlaceOrRecreate");
    scene.runs(WEB).await;
    scene.recommend(&[("app", LARGER)]);
    let resized = scene.app_reaches(LARGER).await;

    let levels = scene.levels(&resized);
    // The limit that counts is the one after the resize.
    scene.signal(&resized, "app");
    let told = async || scene.events(WEB, "OOMKilled").into_iter().next();
    let event = scene.agent.until("an Event about the kill", told).await;
    let message = event["message"].as_str().unwrap();
    // With systemd's cgroups the pod, which has as much, also has the memory of its sandbox, and reaches its own limit first.
    let limits = [
        "memory limit of 192Mi",
        "reached its memory limit, and the kernel enforced the pod's limit of 192Mi",
    ];
    assert!(limits.iter().any(|limit| message.contains(limit)), "{message}");
    assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{app}");
    let address = scene.agent.http_address().await;
    let series = format!(
        "vscaled_oom_kills_total{{namespace=\"{}\",pod=\"{WEB}\",container=\"app\"",
        scene.namespace
    );
    let counted = async || {
        let (_, text) = http::get(address, "/metrics")?;
        text.contains(&series).then_some(())
    };
    scene.agent.until("the kill to be counted", counted).await;

    // The kubelet kills a container as a whole, and starts it with the resized values.
    let again = || {
        let pod = scene.object(WEB);
        let status = &pod["status"]["containerStatuses"][0];
        (status["restartCount"] == 1 && status["state"]["running"].is_object()).then_some(pod)
    };
    let after = scene.agent.until("the container to run again", async || again()).await;
    let status = &after["status"]["containerStatuses"][0];
    // A slow kubelet of 1.33 has once said nothing of the container before.
    let reason = &status["lastState"]["terminated"]["reason"];
    assert!(reason == "OOMKilled" || status["lastState"] == json!({}), "{status}");
    scene.is_resized(WEB, "app", &objects::resources(LARGER)).await;
    let same = || scene.levels(&after) == levels;
    scene.agent.wait_for("the same values everywhere", same).await;
    assert_eq!(scene.events(WEB, "OOMKilled").len(), 1, "told once");
}

/// A shell command that starts ten such children, one after the other, after a [`Scene::signal`].
const TEN_CHILDREN: &str = "while true; do if [ -e /dev/shm/go ]; then rm /dev/shm/go; \
    for child in 0 1 2 3 4 5 6 7 8 9; do sh -c 'x=x; while :; do x=$x$x; done'; done; fi; sleep 0.2; done";

/// A shell command that has more memory at the start than [`TOO_SMALL`] allows, and less than [`LARGE_ENOUGH`] does.
const NEEDS_MORE_AT_FIRST: &str =
    "head -c 150000000 /dev/zero | tail -n 1 >/dev/null; touch /dev/shm/ready; while true; do sleep 1000; done";

const TOO_SMALL: Amounts = Amounts::doubled(400, 64);
const LARGE_ENOUGH: Amounts = Amounts::doubled(450, 96);

#[tokio::test]
async fn ten_killed_children_are_ten_kills() {
    let Some(mut scene) = Scene::new("cluster_today::kills::ten_children").await else {
        return;
    };
    // Without a quota, so that it takes seconds.
    let resources = json!({"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}});
    let pod = scene
        .runs_greedy(&json!({"resources": resources, "command": ["/bin/sh", "-c", TEN_CHILDREN]}))
        .await;
    // As with the kubelet's singleProcessOOMKill.
    let cgroup = scene.cgroup(&pod, "app").under("/sys/fs/cgroup".as_ref());
    fs::write(cgroup.join("memory.oom.group"), "0").unwrap();
    scene.signal(&pod, "app");
    scene.counts(10, "pod").await;
    let told = || {
        let events = scene.events(WEB, "OOMKilled");
        events
            .iter()
            .map(|event| kills_in(event["message"].as_str().unwrap()))
            .sum::<usize>()
            == 10
    };
    scene.agent.wait_for("Events about ten kills", told).await;
    for event in scene.events(WEB, "OOMKilled") {
        let message = event["message"].as_str().unwrap();
        assert!(
            message.contains("the container reached its memory limit of 64Mi"),
            "{message}"
        );
    }
    let first = scene.events(WEB, "OOMKilled").remove(0);
    let message = first["message"].as_str().unwrap();
    assert!(message.contains("a child process; the container runs on"), "{message}");
    nothing_restarted(&pod, &scene.object(WEB));
}

#[tokio::test]
async fn a_pods_own_limit_is_named_as_the_pods() {
    const NAME: &str = "cluster_today::kills::a_pods_own_limit";
    if kubelet_minor() < LEAST_FOR_POD_LIMITS {
        return skipped(NAME, "this kubelet has no limits of pods");
    }
    let Some(mut scene) = Scene::new(NAME).await else {
        return;
    };
    scene.starts_counting_kills().await;
    let spec = json!({
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "160Mi"}},
        "containers": [
            {"name": "app", "command": ["/bin/sh", "-c", GREEDY]},
            {"name": "side", "command": ["/bin/sh", "-c", HOLDS_60_MB]},
        ],
    });
    scene.make_pod(WEB, &spec);
    let pod = scene.runs(WEB).await;
    scene.is_ready(&pod, "side").await;
    scene.signal(&pod, "app");
    scene.counts(1, "pod").await;
    let message = scene.is_told().await;
    assert!(
        message.contains("the pod reached its memory limit of 160Mi"),
        "{message}"
    );
}

#[tokio::test]
async fn a_crash_loop_ends_after_growth() {
    let Some(mut scene) = Scene::new("cluster_today::kills::a_crash_loop").await else {
        return;
    };
    scene.starts_counting_kills().await;
    let app = json!({
        "name": "app", "resources": objects::resources(TOO_SMALL), "command": ["/bin/sh", "-c", NEEDS_MORE_AT_FIRST],
    });
    scene.make_pod(WEB, &json!({"containers": [app]}));
    scene.make_vpa("InPlaceOrRecreate");
    let status = || {
        let pod = scene.object(WEB);
        pod.pointer("/status/containerStatuses/0").cloned().unwrap_or_default()
    };
    let loops = || {
        let status = status();
        status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
            && status["lastState"]["terminated"]["reason"] == "OOMKilled"
    };
    scene.agent.wait_for("a crash loop", loops).await;
    let message = scene.is_told().await;
    assert!(
        message.contains("the container reached its memory limit of 128Mi"),
        "{message}"
    );

    // The agent grows a container that does not run at the moment.
    scene.recommend(&[("app", LARGE_ENOUGH)]);
    let asked = || scene.object(WEB)["spec"]["containers"][0]["resources"] == objects::resources(LARGE_ENOUGH);
    scene.agent.wait_for("the resize to be asked for", asked).await;
    let pod = scene.app_reaches(LARGE_ENOUGH).await;
    scene.is_ready(&pod, "app").await;
    let cured = status();
    assert!(cured["state"]["running"].is_object(), "{cured}");
    nothing_restarted(&pod, &scene.object(WEB));
}

/// The kernel's own request for a kill, which spares a test to fill the node. It takes the process that it would take then: one of
/// a pod without requests.
#[tokio::test]
async fn a_node_without_memory_is_named_as_the_node() {
    const NAME: &str = "cluster_today::kills::a_node";
    if !fs::read_to_string("/proc/cpuinfo").unwrap().contains("User Mode Linux") {
        return skipped(NAME, "only a guest of its own may be short of memory");
    }
    let Some(mut scene) = Scene::new(NAME).await else {
        return;
    };
    let pod = scene.runs_greedy(&json!({})).await;
    assert_eq!(pod["status"]["qosClass"], "BestEffort");
    fs::write("/proc/sysrq-trigger", "f").unwrap();
    scene.counts(1, "node").await;
    let message = scene.is_told().await;
    assert!(message.contains("the node had no memory left"), "{message}");
    let reason =
        || scene.object(WEB)["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"] == "OOMKilled";
    scene.agent.wait_for("the kubelet to say so too", reason).await;
}

/// How many kills an Event is about.
fn kills_in(message: &str) -> usize {
    let words = message.strip_prefix("The kernel killed ").unwrap();
    let count = words.split(' ').next().unwrap();
    if count.starts_with('"') || count == "a" {
        1
    } else {
        count.parse().unwrap()
    }
}

impl Scene {
    async fn starts_counting_kills(&mut self) {
        self.agent.set("--http-address", "127.0.0.1:0");
        self.starts_watching_kills().await;
    }

    /// Runs a pod of a container `app` with these fields, and an agent that counts its kills.
    async fn runs_greedy(&mut self, fields: &Value) -> Value {
        self.starts_counting_kills().await;
        let mut app = fields.clone();
        app["name"] = json!("app");
        self.make_pod(WEB, &json!({"containers": [app]}));
        self.runs(WEB).await
    }

    /// Waits until the agent's metrics have this number of kills of `app`, by a limit of this level.
    async fn counts(&self, kills: u32, level: &str) {
        let address = self.agent.http_address().await;
        let namespace = &self.namespace;
        let series = format!(
            "vscaled_oom_kills_total{{namespace=\"{namespace}\",pod=\"{WEB}\",container=\"app\",level=\"{level}\"}} {kills}"
        );
        let counted =
            || http::get(address, "/metrics").is_some_and(|(_, text)| text.lines().any(|line| line == series));
        self.agent.wait_for(&series, counted).await;
    }

    /// Waits for an Event about a kill, and returns its message.
    async fn is_told(&self) -> String {
        let told = async || self.events(WEB, "OOMKilled").into_iter().next();
        let event = self.agent.until("an Event about the kill", told).await;
        assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{app}");
        event["message"].as_str().unwrap().to_owned()
    }
}
