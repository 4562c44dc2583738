//! What the kubelet and the API server answer.

use http::Method;
use serde_json::{Value, json};
use vscaled::control::proto;
use vscaled::model::Resource;

use super::{APP, CPU_ALONE, LARGER, LEAST_FOR_GENERATIONS, Scene, WEB, kubelet_minor, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::{User, objects};

const SECOND: &str = "web-5c4f-y";

/// Whether a refusal names this request, in thousandths of a cpu, in the unit that all amounts beside it have.
fn names_request(refusal: &str, milli: u64) -> bool {
    let texts = [Resource::Cpu.quantity(milli), format!("{milli}m")];
    texts
        .iter()
        .any(|text| refusal.contains(&format!("would request {text} of cpu")))
}

#[tokio::test]
async fn a_resize_that_the_node_has_no_room_for_is_done_when_there_is_room() {
    let Some(mut scene) = Scene::new("cluster_today::answers::a_resize_that_the_node_has_no_room_for").await else {
        return;
    };
    // The pod that is in the way has what the larger one lacks.
    let cores = scene.allocatable_cpu();
    let (large, in_the_way) = (cores * 6 / 10, cores / 2);
    scene.make_pod(
        WEB,
        &json!({"containers": [{"name": "app", "resources": objects::resources(APP)}]}),
    );
    let other = json!({"requests": {"cpu": format!("{in_the_way}m"), "memory": "64Mi"}});
    scene.make_pod_of(
        "in-the-way",
        &json!([]),
        &json!({"containers": [{"name": "app", "resources": other}]}),
    );
    let before = scene.runs(WEB).await;
    let levels = scene.levels(&before);
    scene.runs("in-the-way").await;
    scene.agent.start().await;
    scene.make_vpa("InPlaceOrRecreate");
    let target = Amounts::doubled(large, 96);
    scene.recommend(&[("app", target)]);
    let says = async || {
        let pod = scene.agent.pod(WEB).await?;
        (pod.state == "Refused" && pod.detail.contains("the node has no room")).then_some(pod.detail)
    };
    let detail = scene.agent.until("the lack of room to be named", says).await;
    assert!(names_request(&detail, large), "{detail}");
    let object = scene.object(WEB);
    assert_eq!(
        object["metadata"]["generation"], before["metadata"]["generation"],
        "nothing is asked for until there is room"
    );
    assert_eq!(scene.levels(&object), levels);

    scene.delete(&scene.pods(), "in-the-way");
    let after = scene.is_resized(WEB, "app", &objects::resources(target)).await;
    nothing_restarted(&before, &after);
    scene.agent.reaches(WEB, "InSync").await;
}

#[tokio::test]
async fn a_resize_by_a_user_is_taken_back_to_the_recommendation() {
    let Some(mut scene) = Scene::new("cluster_today::answers::a_resize_by_a_user").await else {
        return;
    };
    let before = scene.follows_app().await;
    scene.recommend(&[("app", LARGER)]);
    let resized = scene.is_resized(WEB, "app", &objects::resources(LARGER)).await;
    let levels = scene.levels(&resized);

    let foreign = objects::resources(Amounts::doubled(150, 80));
    scene.resize(WEB, &json!({"containers": [{"name": "app", "resources": foreign}]}));
    let after = scene.is_resized(WEB, "app", &objects::resources(LARGER)).await;
    let generation = |pod: &Value| pod["metadata"]["generation"].as_u64().unwrap();
    assert!(
        generation(&after) >= generation(&resized) + 2,
        "the foreign resize was never there"
    );
    assert_eq!(scene.levels(&after), levels);

    // Within the VPA's bounds nobody has a reason to take it back.
    let mut wide = objects::recommendation(&[("app", LARGER)]);
    wide["recommendation"]["containerRecommendations"][0]["upperBound"] = json!({"cpu": "1", "memory": "1Gi"});
    scene.today.api.put_status(&scene.vpas(), "web", &wide);
    let known = async || {
        let reply = scene.explain(WEB).await?;
        let mut bounds = reply.amounts.iter().filter_map(|amount| amount.upper_bound.as_deref());
        bounds.any(|bound| bound == "1Gi").then_some(())
    };
    scene.agent.until("the bounds to be known", known).await;
    let foreign = Amounts::doubled(210, 100);
    let resources = objects::resources(foreign);
    scene.resize(WEB, &json!({"containers": [{"name": "app", "resources": resources}]}));
    scene.settles(&before, foreign).await;
    assert_eq!(scene.object(WEB)["spec"]["containers"][0]["resources"], resources);
}

#[tokio::test]
async fn a_quota_that_refuses_leaves_every_level_as_it_was_and_is_named() {
    let Some(mut scene) = Scene::new("cluster_today::answers::a_quota").await else {
        return;
    };
    let before = scene.runs_app().await;
    let levels = scene.levels(&before);
    let used = json!({"limits.memory": "128Mi"});
    scene.make_quota("small", &json!({"limits.memory": "150Mi"}), &used);
    scene.agent.set("--http-address", "127.0.0.1:0");
    scene.agent.start().await;
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&[("app", LARGER)]);
    let numbers = "used: limits.memory=128Mi, limited: limits.memory=150Mi";
    let says = async || {
        let pod = scene.agent.pod(WEB).await?;
        (pod.state == "Refused" && pod.detail.contains(numbers)).then_some(())
    };
    scene.agent.until("the quota to be named", says).await;
    let refused = scene.limit_by_hand(WEB, "app", "256Mi").await.unwrap_err();
    assert!(refused.to_string().contains("exceeded quota: small"), "{refused}");
    let after = scene.object(WEB);
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(scene.levels(&after), levels);
    let calls = scene.api_calls().await;
    let asks = |call: &&String| call.contains("resource=\"pods/resize\"");
    assert_eq!(calls.iter().find(asks), None, "a quota is known before a patch");

    scene.make_quota("small", &json!({"limits.memory": "1Gi"}), &used);
    let after = scene.app_reaches(LARGER).await;
    nothing_restarted(&before, &after);
}

#[tokio::test]
async fn a_resize_on_a_full_node_is_deferred() {
    let Some(mut scene) = Scene::new("cluster_today::answers::a_resize_that_is_asked_for_on_a_full_node").await else {
        return;
    };
    let cores = scene.allocatable_cpu();
    let other = json!({"requests": {"cpu": format!("{}m", cores / 2), "memory": "64Mi"}});
    scene.make_pod_of(
        "in-the-way",
        &json!([]),
        &json!({"containers": [{"name": "app", "resources": other}]}),
    );
    scene.runs("in-the-way").await;
    scene.agent.set("--ask-when-full", "always");
    let before = scene.follows_app().await;
    let levels = scene.levels(&before);
    let target = Amounts::doubled(cores * 6 / 10, 96);
    scene.recommend(&[("app", target)]);
    scene.agent.reaches(WEB, "Deferred").await;
    let deferred = scene.object(WEB);
    let condition = pending(&deferred).expect("the kubelet has deferred the resize");
    assert_eq!(condition["reason"], "Deferred", "{condition:#}");
    assert_eq!(
        deferred["spec"]["containers"][0]["resources"],
        objects::resources(target),
        "it was asked for"
    );
    assert_eq!(scene.levels(&deferred), levels);
    let words = condition["message"].as_str().unwrap();
    let history = scene.agent.history().await;
    let told = |change: &proto::Change| change.outcome == "Deferred" && change.reason.contains(words);
    assert!(history.iter().any(told), "{history:#?}");
    let change = format!("requests.cpu 100m → {}", Resource::Cpu.quantity(target.cpu));
    let named = |note: &String| note.contains("has not carried out") && note.contains(&change);
    let notes = scene.explain(WEB).await.unwrap().notes;
    assert!(notes.iter().any(named), "{notes:#?}");

    // The next agent knows the request, which it does not repeat.
    scene.agent.kill();
    scene.agent.start().await;
    scene.agent.reaches(WEB, "Deferred").await;
    assert_eq!(scene.levels(&deferred), levels);
    scene.delete(&scene.pods(), "in-the-way");
    let after = scene.app_reaches(target).await;
    nothing_restarted(&before, &after);
    assert_eq!(after["metadata"]["generation"], deferred["metadata"]["generation"]);

    // What was carried out stays without its VPA.
    let levels = scene.levels(&after);
    scene.delete(&scene.vpas(), "web");
    scene.agent.reaches(WEB, "NotManaged").await;
    let left = scene.object(WEB);
    assert_eq!(left["metadata"]["generation"], after["metadata"]["generation"]);
    assert_eq!(scene.levels(&left), levels);
}

#[tokio::test]
async fn a_deferred_request_ends_with_its_vpa() {
    let Some(mut scene) = Scene::new("cluster_today::answers::a_deferred_request_ends").await else {
        return;
    };
    let cores = scene.allocatable_cpu();
    let other = json!({"requests": {"cpu": format!("{}m", cores / 2), "memory": "64Mi"}});
    let spec = json!({"containers": [{"name": "app", "resources": other}]});
    scene.make_pod_of("in-the-way", &json!([]), &spec);
    scene.runs("in-the-way").await;
    scene.agent.set("--ask-when-full", "always");
    let before = scene.follows_app().await;
    let levels = scene.levels(&before);
    scene.recommend(&[("app", Amounts::doubled(cores * 6 / 10, 96))]);
    scene.agent.reaches(WEB, "Deferred").await;
    assert!(pending(&scene.object(WEB)).is_some());

    // `restore` takes the request back, and the next agent makes it again. Older kubelets do not say which spec they have deferred.
    if kubelet_minor() >= LEAST_FOR_GENERATIONS {
        scene.agent.stop();
        let (code, shown, error) = scene.agent.restore(&["--yes", "--no-watch"]);
        assert_eq!(code, Some(0), "{shown}{error}");
        let restored = scene.is_resized(WEB, "app", &objects::resources(APP)).await;
        assert_eq!(scene.levels(&restored), levels, "{shown}");
        scene.agent.start().await;
        scene.agent.reaches(WEB, "Deferred").await;
    }

    scene.delete(&scene.vpas(), "web");
    let taken_back = scene.is_resized(WEB, "app", &objects::resources(APP)).await;
    assert_eq!(scene.levels(&taken_back), levels);
    let told = async || scene.events(WEB, "ResizeWithdrawn").into_iter().next();
    let event = scene.agent.until("an Event about it", told).await;
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("→ 100m"), "{message}");
    let history = scene.agent.history().await;
    let cause = "the pending resize is no longer wanted: it is withdrawn";
    assert!(history.iter().any(|change| change.cause == cause), "{history:#?}");

    // Room that comes later changes nothing: the kubelet gives it to another pod.
    scene.delete(&scene.pods(), "in-the-way");
    scene.make_pod_of("comes-later", &json!([]), &spec);
    scene.runs("comes-later").await;
    let after = scene.object(WEB);
    assert_eq!(after["metadata"]["generation"], taken_back["metadata"]["generation"]);
    assert_eq!(scene.levels(&after), levels);
    nothing_restarted(&before, &after);
}

#[tokio::test]
async fn lower_priorities_do_not_fill_a_node() {
    let Some(mut scene) = Scene::new("cluster_today::answers::a_full_node_is_asked").await else {
        return;
    };
    let cores = scene.allocatable_cpu();
    let [medium, high] = scene.make_priorities([10, 20]).await;
    let pod = |class: &str, resources: &Value| {
        let app = json!({"name": "app", "resources": resources});
        json!({"priorityClassName": class, "containers": [app]})
    };
    let other = json!({"requests": {"cpu": format!("{}m", cores / 2), "memory": "64Mi"}});
    scene.make_pod_of("in-the-way", &json!([]), &pod(&medium, &other));
    let in_the_way = scene.runs("in-the-way").await;
    scene.make_pod(SECOND, &pod(&high, &objects::resources(APP)));
    let second = scene.runs(SECOND).await;
    scene.agent.set("--ask-when-full", "priority");
    let before = scene.follows_app().await;
    let levels = [&second, &before].map(|pod| scene.levels(pod));
    let target = Amounts::doubled(cores * 6 / 10, 96);
    scene.recommend(&[("app", target)]);
    scene.agent.reaches(SECOND, "Deferred").await;
    let says = async || {
        let pod = scene.agent.pod(WEB).await?;
        (pod.state == "Refused" && pod.detail.contains("the node has no room")).then_some(())
    };
    scene.agent.until("the pod of no priority to be refused", says).await;

    let (deferred, refused) = (scene.object(SECOND), scene.object(WEB));
    let condition = pending(&deferred).expect("the kubelet has deferred the resize");
    assert_eq!(condition["reason"], "Deferred", "{condition:#}");
    assert_eq!(
        deferred["spec"]["containers"][0]["resources"],
        objects::resources(target)
    );
    assert_eq!(refused["metadata"]["generation"], before["metadata"]["generation"]);
    assert_eq!([&deferred, &refused].map(|pod| scene.levels(pod)), levels);
    nothing_restarted(&in_the_way, &scene.object("in-the-way"));
    for class in [medium, high] {
        scene.delete("/apis/scheduling.k8s.io/v1/priorityclasses", &class);
    }
}

#[tokio::test]
async fn more_than_the_node_has_is_never_requested() {
    let Some(mut scene) = Scene::new("cluster_today::answers::more_than_the_node_has").await else {
        return;
    };
    scene.agent.set("--ask-when-full", "always");
    let before = scene.follows_app().await;
    let levels = scene.levels(&before);
    scene.recommend(&[("app", Amounts::doubled(2 * scene.allocatable_cpu(), 96))]);
    let says = async || {
        let pod = scene.agent.pod(WEB).await?;
        let is_named = names_request(&pod.detail, 2 * scene.allocatable_cpu());
        (pod.state == "Refused" && is_named).then_some(())
    };
    scene.agent.until("the node's size to be named", says).await;
    let after = scene.object(WEB);
    assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);
    assert_eq!(scene.levels(&after), levels);
}

#[tokio::test]
async fn a_container_that_memory_would_restart_gets_its_cpu_alone() {
    let Some(mut scene) = Scene::new("cluster_today::answers::a_container_that_memory").await else {
        return;
    };
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    scene.make_pod(
        WEB,
        &json!({"containers": [{"name": "app", "resources": objects::resources(APP), "resizePolicy": policy}]}),
    );
    let before = scene.runs(WEB).await;
    let levels = scene.levels(&before);
    scene.agent.start().await;
    scene.agent.reaches(WEB, "NotManaged").await;
    for (dry_run, cpu, words) in [
        (true, None, "RestartContainer"),
        (false, None, "RestartContainer"),
        (false, Some("500m"), "its cpu is not changed either: request cpu alone"),
    ] {
        let request = proto::ResizeRequest {
            dry_run,
            ..scene.limits_by_hand(WEB, "app", cpu, Some("256Mi"))
        };
        let refused = match scene.agent.resize(request).await {
            Ok(change) => change.reason,
            Err(error) => error.to_string(),
        };
        for words in ["container app: its limits.memory stays 128Mi instead of 256Mi", words] {
            assert!(refused.contains(words), "{refused}");
        }
    }
    let refused = scene.object(WEB);
    assert_eq!(refused["metadata"]["generation"], before["metadata"]["generation"]);
    assert_eq!(scene.levels(&refused), levels);
    let cpu = scene.limits_by_hand(WEB, "app", Some("500m"), None);
    scene.agent.resize(cpu).await.unwrap();
    let by_hand = scene.object(WEB);
    assert_eq!(by_hand["spec"]["containers"][0]["resources"]["limits"]["cpu"], "500m");
    scene.release(WEB).await;

    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&[("app", LARGER)]);
    let after = scene.is_resized(WEB, "app", &objects::resources(CPU_ALONE)).await;
    nothing_restarted(&before, &after);
    let says = async || {
        let pod = scene.agent.pod(WEB).await?;
        (pod.action == "skip" && pod.reason == "RestartRequired").then_some(())
    };
    scene.agent.until("the restart to be named", says).await;
    let named = |note: &String| note.contains("app: memory is left as it is: its resizePolicy restarts the container");
    let notes = scene.explain(WEB).await.unwrap().notes;
    assert!(notes.iter().any(named), "{notes:#?}");
}

/// The condition with which the kubelet says that a resize waits.
fn pending(pod: &Value) -> Option<&Value> {
    let mut conditions = pod["status"]["conditions"].as_array()?.iter();
    conditions.find(|condition| condition["type"] == "PodResizePending")
}

impl Scene {
    /// Creates a quota of which so much is used.
    pub(super) fn make_quota(&self, name: &str, hard: &Value, used: &Value) {
        let spec = json!({"spec": {"hard": hard}});
        self.apply("v1", "ResourceQuota", name, json!({}), &spec);
        // Without its controller, nothing but the API server's status makes a quota count.
        let quotas = self.collection("api/v1") + "/resourcequotas";
        let status = json!({"hard": hard, "used": used});
        self.today.api.put_status(&quotas, name, &status);
    }

    /// Creates classes of these priorities, and waits until a pod may have the last one. Returns their names.
    async fn make_priorities(&self, priorities: [i32; 2]) -> [String; 2] {
        let names = priorities.map(|priority| format!("{}-{priority}", self.namespace));
        for (name, priority) in names.iter().zip(priorities) {
            self.today.api.apply(&json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
                "value": priority,
            }));
        }
        let spec = json!({"priorityClassName": names[1], "containers": [{"name": "app"}]});
        let pod = self.pod("known", "web", &json!([]), &spec);
        let (admin, dry) = (
            self.today.api.kubeconfig(User::Admin),
            format!("{}?dryRun=All", self.pods()),
        );
        let is_known = || {
            let answer = self.today.api.request_as(&admin, Method::POST, &dry, Some(&pod));
            answer.is_ok()
        };
        self.agent.wait_for("the priorities to be known", is_known).await;
        names
    }

    /// The node's cpu in thousandths of a core.
    pub(super) fn allocatable_cpu(&self) -> u64 {
        let node = self.today.api.get("/api/v1/nodes/node-1");
        let cpu = node["status"]["allocatable"]["cpu"].as_str().unwrap();
        match cpu.strip_suffix('m') {
            Some(millis) => millis.parse().unwrap(),
            None => cpu.parse::<u64>().unwrap() * 1000,
        }
    }
}
