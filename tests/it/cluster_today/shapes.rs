//! Every shape of a pod is resized to what the kubelet alone would make of it.
//!
//! A VPA's pod is resized by the agent, and its twin, which nothing manages, with the same resources by a patch of
//! `pods/resize`. Every cgroup of both must hold the same.

use std::fs;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{APP, LARGER, Scene, WEB, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::{has_systemd_driver, objects};
use crate::support::skipped;

const TWIN: &str = "twin";

/// The lists of a pod's containers. Those of the first that are always restarted are sidecars.
const LISTS: [&str; 2] = ["initContainers", "containers"];

/// Resizes a pod of this spec, whose containers get these recommendations, and its twin.
async fn beside_its_twin(test: &str, spec: Value, targets: &[(&str, Amounts)]) {
    let Some(mut scene) = Scene::new(test).await else {
        return;
    };
    scene.make_pod(WEB, &spec);
    scene.make_pod_of(TWIN, &json!([]), &spec);
    let (before, twin_before) = (scene.runs(WEB).await, scene.runs(TWIN).await);
    let levels_before = scene.levels(&before);
    scene.agent.start().await;
    scene.agent.reaches(WEB, "NotManaged").await;
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(targets);

    let requested = |pod: &Value| {
        let all = LISTS
            .iter()
            .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten());
        let managed = all.filter(|container| targets.iter().any(|(name, _)| container["name"] == *name));
        let requests = managed.map(|container| container["resources"]["requests"].clone());
        requests.collect::<Vec<_>>()
    };
    let wanted: Vec<_> = targets
        .iter()
        .map(|(_, Amounts { cpu, memory, .. })| json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")}))
        .collect();
    let resized = || {
        let pod = scene.object(WEB);
        (requested(&pod) == wanted && super::is_settled(&pod)).then_some(pod)
    };
    let after = scene.agent.until("the pod to be resized", async || resized()).await;
    nothing_restarted(&before, &after);
    let resources = |container: &Value| json!({"name": container["name"], "resources": container["resources"]});
    let mut same = json!({});
    for list in LISTS {
        let all = after["spec"][list].as_array().into_iter().flatten();
        let running = all.filter(|container| list == "containers" || container["restartPolicy"] == "Always");
        same[list] = running.map(resources).collect();
    }
    scene.resize(TWIN, &same);
    let twin = scene
        .is_resized(TWIN, "app", &after["spec"]["containers"][0]["resources"])
        .await;
    nothing_restarted(&twin_before, &twin);
    scene.agent.reaches(WEB, "InSync").await;
    assert_eq!(scene.levels(&after), scene.levels(&twin));
    assert_eq!(scene.oom_groups(&after), scene.oom_groups(&twin));
    assert_ne!(scene.levels(&after), levels_before, "nothing was written");
    assert_eq!(
        scene.object(WEB)["metadata"]["generation"],
        after["metadata"]["generation"]
    );
}

fn container(name: &str, resources: &Value) -> Value {
    json!({"name": name, "resources": resources})
}

fn app() -> Value {
    container("app", &objects::resources(APP))
}

#[tokio::test]
async fn one_container_with_all_limits() {
    beside_its_twin(
        "cluster_today::shapes::one_container",
        json!({"containers": [app()]}),
        &[("app", LARGER)],
    )
    .await;
}

#[tokio::test]
async fn a_container_without_a_cpu_limit() {
    let resources = json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}});
    let spec = json!({"containers": [container("app", &resources)]});
    beside_its_twin("cluster_today::shapes::without_a_cpu_limit", spec, &[("app", LARGER)]).await;
}

#[tokio::test]
async fn several_containers() {
    let side = container("side", &objects::resources(Amounts::doubled(50, 48)));
    let spec = json!({"containers": [app(), side]});
    let targets = [("app", LARGER), ("side", Amounts::doubled(80, 64))];
    beside_its_twin("cluster_today::shapes::several_containers", spec, &targets).await;
}

#[tokio::test]
async fn requests_only() {
    let resources = json!({"requests": {"cpu": "100m", "memory": "64Mi"}});
    let spec = json!({"containers": [container("app", &resources)]});
    beside_its_twin("cluster_today::shapes::requests_only", spec, &[("app", LARGER)]).await;
}

#[tokio::test]
async fn limits_only_which_are_the_requests_too() {
    let resources = json!({"limits": {"cpu": "100m", "memory": "96Mi"}});
    let spec = json!({"containers": [container("app", &resources)]});
    beside_its_twin(
        "cluster_today::shapes::limits_only",
        spec,
        &[("app", Amounts::doubled(150, 128))],
    )
    .await;
}

#[tokio::test]
async fn a_sidecar_beside_the_container() {
    let mut sidecar = container("proxy", &objects::resources(Amounts::doubled(40, 48)));
    sidecar["restartPolicy"] = json!("Always");
    let spec = json!({"initContainers": [sidecar], "containers": [app()]});
    let targets = [("proxy", Amounts::doubled(60, 64)), ("app", LARGER)];
    beside_its_twin("cluster_today::shapes::a_sidecar", spec, &targets).await;
}

#[tokio::test]
async fn an_init_container_that_needed_more() {
    let mut init = container("prepare", &objects::resources(Amounts::doubled(150, 160)));
    init["command"] = json!(["/bin/sh", "-c", "true"]);
    let spec = json!({"initContainers": [init], "containers": [app()]});
    beside_its_twin("cluster_today::shapes::an_init_container", spec, &[("app", LARGER)]).await;
}

#[tokio::test]
async fn memory_and_cpu_go_down() {
    let spec = json!({"containers": [container("app", &objects::resources(Amounts::doubled(200, 160)))]});
    beside_its_twin("cluster_today::shapes::memory_and_cpu_go_down", spec, &[("app", APP)]).await;
}

/// Another program sets a property of a container's scope. With any property systemd puts `memory.oom.group` to 0, so the agent
/// repairs the file alone: the kubelet sets the properties.
#[tokio::test]
async fn a_repaired_container_ends_as_a_whole() {
    const TEST: &str = "cluster_today::shapes::a_repaired_container";
    if !has_systemd_driver() {
        return skipped(TEST, "systemd does not make the cgroups here");
    }
    let Some(mut scene) = Scene::new(TEST).await else {
        return;
    };
    scene.make_pod(WEB, &json!({"containers": [app()]}));
    scene.make_vpa("InPlaceOrRecreate");
    scene.runs(WEB).await;
    scene.agent.start().await;
    scene.recommend(&[("app", LARGER)]);
    let resized = scene.app_reaches(LARGER).await;
    let levels = scene.levels(&resized);
    let cgroup = scene.cgroup(&resized, "app");
    let signal = |signal| kill(Pid::from_raw(scene.agent.pid()), signal).unwrap();
    signal(Signal::SIGSTOP);
    let scope = cgroup.name().unwrap();
    let mut set = Command::new("systemctl");
    // The cluster's files are another root than systemd's.
    set.env("SYSTEMD_IGNORE_CHROOT", "1");
    set.args(["set-property", "--runtime", scope, "CPUQuota=7%"]);
    assert!(set.status().unwrap().success());
    let has_changed = || scene.levels(&resized) != levels && scene.oom_groups(&resized) == ["0\n"];
    scene.agent.wait_for("systemd to write the files", has_changed).await;
    fs::write(cgroup.under("/sys/fs/cgroup".as_ref()).join("memory.oom.group"), "1").unwrap();
    signal(Signal::SIGCONT);
    let is_repaired = || scene.levels(&resized) == levels;
    scene.agent.wait_for("the repaired quota", is_repaired).await;
    scene.agent.reaches(WEB, "InSync").await;
    // systemd writes after it has answered, and before it answers the next call.
    for _ in 0..2 {
        let shown = Command::new("systemctl").args(["show", scope]).output().unwrap();
        assert!(shown.status.success());
    }
    assert_eq!(scene.oom_groups(&resized), ["1\n"]);
}
