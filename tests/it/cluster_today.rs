//! Promise: with a real API server, kubelet and containerd of today, a resize reaches the pod's spec, its status and
//! the kernel, nothing restarts, and nothing is resized that nobody allowed.
//!
//! The tests of this module need cgroup v2. They share the cluster that [`up`] boots, one after the other, because each
//! has an agent for the only node; a test that breaks parts boots its own.

mod answers;
mod defects;
mod drift;
mod faults;
mod shapes;
mod up;

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};
use vscaled::model::{CgroupPath, Settings};

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::cluster::{NODE, Today, objects};
use crate::support::image::BUSYBOX;

const WEB: &str = "web-5c4f-x";
const APP: Amounts = Amounts::doubled(100, 64);
const LARGER: Amounts = Amounts::doubled(200, 96);

/// A namespace of the cluster, and an agent that does not run yet. Dropping the value removes its objects.
struct Scene {
    agent: Agent,
    today: Today,
    namespace: String,
}

/// What the kernel holds for a pod: the pod's own cgroup under an empty name, and one for each running container.
type Levels = BTreeMap<String, Settings>;

impl Scene {
    /// A scene in the shared cluster.
    async fn new(test: &str) -> Option<Self> {
        Some(Self::within(Today::shared(test).await?))
    }

    /// A scene in a cluster of its own, whose parts the test breaks.
    async fn alone(test: &str) -> Option<Self> {
        Some(Self::within(Today::boot(test, &json!({})).await?))
    }

    fn within(today: Today) -> Self {
        let namespace = format!("test-{}", std::process::id());
        today
            .api
            .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}));
        let scene = Self {
            agent: today.agent(),
            today,
            namespace,
        };
        let labels = json!({"app": "web"});
        let template =
            json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "none"}]}});
        let spec = json!({"selector": {"matchLabels": labels}, "template": template});
        for (kind, name) in [("Deployment", "web"), ("ReplicaSet", objects::REPLICA_SET)] {
            let owners = match kind {
                "ReplicaSet" => scene.owned("Deployment", "deployments", "web"),
                _ => json!([]),
            };
            scene.apply(
                "apps/v1",
                kind,
                name,
                json!({"ownerReferences": owners}),
                &json!({"spec": spec}),
            );
        }
        scene
    }

    /// Creates or updates an object of the namespace.
    fn apply(&self, version: &str, kind: &str, name: &str, mut metadata: Value, fields: &Value) {
        metadata["name"] = json!(name);
        metadata["namespace"] = json!(self.namespace);
        let mut object = json!({"apiVersion": version, "kind": kind, "metadata": metadata});
        for (field, value) in fields.as_object().unwrap() {
            object[field] = value.clone();
        }
        self.today.api.apply(&object);
    }

    fn owned(&self, kind: &str, plural: &str, name: &str) -> Value {
        let uid = self
            .today
            .api
            .uid(&format!("{}/{plural}/{name}", self.collection("apis/apps/v1")));
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}])
    }

    /// The path of the namespace in a group.
    fn collection(&self, group: &str) -> String {
        format!("/{group}/namespaces/{}", self.namespace)
    }

    fn pods(&self) -> String {
        self.collection("api/v1") + "/pods"
    }

    fn vpas(&self) -> String {
        self.collection("apis/autoscaling.k8s.io/v1") + "/verticalpodautoscalers"
    }

    /// Creates a pod of the Deployment, bound to the node, from a spec with containers that have names and resources.
    fn make_pod(&self, name: &str, spec: &Value) {
        let owners = self.owned("ReplicaSet", "replicasets", objects::REPLICA_SET);
        self.make_pod_of(name, &owners, spec);
    }

    /// Runs a pod with one container, and an agent that follows a VPA of it. Returns the pod.
    async fn follows_app(&mut self) -> Value {
        self.make_pod(
            WEB,
            &json!({"containers": [{"name": "app", "resources": objects::resources(APP)}]}),
        );
        let pod = self.runs(WEB).await;
        self.agent.start().await;
        self.make_vpa("InPlaceOrRecreate");
        pod
    }

    fn make_pod_of(&self, name: &str, owners: &Value, spec: &Value) {
        let mut spec = spec.clone();
        for (field, value) in json!({
            "nodeName": NODE, "hostNetwork": true, "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0,
        })
        .as_object()
        .unwrap()
        {
            spec[field] = value.clone();
        }
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                container["image"] = json!(BUSYBOX);
                container["imagePullPolicy"] = json!("Never");
                if container["command"].is_null() {
                    container["command"] = json!(["/bin/sh", "-c", "while true; do sleep 1000; done"]);
                }
            }
        }
        let metadata = json!({"labels": {"app": "web"}, "ownerReferences": owners});
        self.apply("v1", "Pod", name, metadata, &json!({"spec": spec}));
    }

    /// Creates a VPA for the Deployment, without a recommendation.
    fn make_vpa(&self, mode: &str) {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
        let spec = json!({"targetRef": target, "updatePolicy": {"updateMode": mode}});
        self.apply(
            "autoscaling.k8s.io/v1",
            "VerticalPodAutoscaler",
            "web",
            json!({}),
            &json!({"spec": spec}),
        );
    }

    /// Writes a recommendation as the recommender does.
    fn recommend(&self, targets: &[(&str, Amounts)]) {
        let status = objects::recommendation(targets);
        self.today.api.put_status(&self.vpas(), "web", &status);
    }

    fn object(&self, name: &str) -> Value {
        self.today.api.get(&format!("{}/{name}", self.pods()))
    }

    /// Asks for a resize as a user with the right to patch `pods/resize` does; `spec` is merged into the pod's.
    fn resize(&self, name: &str, spec: &Value) {
        let patch = json!({"spec": spec}).to_string();
        let namespace = format!("--namespace={}", self.namespace);
        let resize = [
            "patch",
            "pod",
            name,
            &namespace,
            "--subresource=resize",
            "--patch",
            &patch,
        ];
        self.today.api.kubectl(&resize, "");
    }

    /// Waits until all containers of a pod run.
    async fn runs(&self, name: &str) -> Value {
        let running = || {
            let pod = self.object(name);
            let statuses = pod["status"]["containerStatuses"].as_array()?;
            let run = statuses
                .iter()
                .filter(|status| status["state"]["running"].is_object())
                .count();
            (run == pod["spec"]["containers"].as_array()?.len()).then_some(pod)
        };
        self.agent
            .until(&format!("pod {name} to run"), async || running())
            .await
    }

    /// Waits until the kubelet has finished a pod's resize to these resources of a container: spec and status agree,
    /// and no condition is left.
    async fn is_resized(&self, name: &str, container: &str, resources: &Value) -> Value {
        let resized = || {
            let pod = self.object(name);
            let spec = pod["spec"]["containers"].as_array()?;
            let spec = spec.iter().find(|spec| spec["name"] == container)?;
            (spec["resources"] == *resources && is_settled(&pod)).then_some(pod)
        };
        let what = format!("{container} of {name} to be resized to {resources}");
        self.agent.until(&what, async || resized()).await
    }

    /// The kernel's values of a pod.
    fn levels(&self, pod: &Value) -> Levels {
        let class = match pod["status"]["qosClass"].as_str().unwrap() {
            "Guaranteed" => self.today.kubepods(),
            class => self.today.kubepods().child(&class.to_lowercase()).unwrap(),
        };
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let cgroup = class.child(&format!("pod{uid}")).unwrap();
        let mut levels = Levels::from([(String::new(), self.today.settings(&cgroup))]);
        levels.extend(containers(pod).map(|status| {
            let id = status["containerID"]
                .as_str()
                .unwrap()
                .trim_start_matches("containerd://");
            let settings = self.today.settings(&cgroup.child(id).unwrap());
            (status["name"].as_str().unwrap().to_owned(), settings)
        }));
        levels
    }

    /// The cgroup of a pod's container.
    fn cgroup(&self, pod: &Value, container: &str) -> CgroupPath {
        let status = containers(pod).find(|status| status["name"] == container).unwrap();
        let id = status["containerID"]
            .as_str()
            .unwrap()
            .trim_start_matches("containerd://");
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let class = pod["status"]["qosClass"].as_str().unwrap().to_lowercase();
        let path = format!("{}/{class}/pod{uid}/{id}", self.today.kubepods());
        CgroupPath::new(&path).unwrap()
    }

    fn delete(&self, collection: &str, name: &str) {
        let path = format!("{collection}/{name}?gracePeriodSeconds=0");
        self.today.api.send(Method::DELETE, &path, &json!({}));
    }

    /// The objects of the namespace, for a failure's report.
    fn dump(&self) -> String {
        let lists = [self.pods(), self.vpas(), self.collection("api/v1") + "/events"];
        let text = |path: &String| self.today.api.try_get(path).unwrap_or_else(|error| error.to_string());
        lists.iter().map(text).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}\n{}", self.dump(), self.today.logs());
        }
        if self.today.own.is_some() {
            return;
        }
        for collection in [self.vpas(), self.pods()] {
            if let Err(error) = self.today.api.remove_all(&collection) {
                eprintln!("{collection}: {error}");
            }
        }
    }
}

/// The statuses of a pod's running containers, with those of sidecars.
fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let of = |list: &str| pod["status"][list].as_array().into_iter().flatten();
    let statuses = of("initContainerStatuses").chain(of("containerStatuses"));
    statuses.filter(|status| status["state"]["running"].is_object())
}

/// Whether the kubelet has nothing left to do for a pod's resize: the containers' resources in spec and status agree.
fn is_settled(pod: &Value) -> bool {
    let metadata = &pod["metadata"];
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let resizes = |condition: &Value| condition["type"].as_str().is_some_and(|of| of.starts_with("PodResize"));
    let actual = |spec: &Value| {
        let status = containers(pod).find(|status| status["name"] == spec["name"]);
        status.is_some_and(|status| status["resources"] == spec["resources"])
    };
    pod["status"]["observedGeneration"] == metadata["generation"]
        && !conditions.into_iter().any(resizes)
        && pod["spec"]["containers"].as_array().unwrap().iter().all(actual)
}

/// Asserts that the same containers run as before, none started again.
fn nothing_restarted(before: &Value, after: &Value) {
    let lives = |pod: &Value| -> Vec<(Value, Value)> {
        let life = |status: &Value| (status["containerID"].clone(), status["restartCount"].clone());
        containers(pod).map(life).collect()
    };
    assert_eq!(lives(before), lives(after));
}
