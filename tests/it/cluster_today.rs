//! Promise: with a real API server, kubelet and containerd of today, a resize reaches the pod's spec, its status and
//! the kernel, nothing restarts, and nothing is resized that nobody allowed.
//!
//! The tests of this module need cgroup v2. They share the cluster that [`up`] boots, one after the other, because each
//! has an agent for the only node; a test that breaks parts boots its own.

mod annotations;
mod answers;
mod bursts;
mod certificates;
mod configured;
mod defects;
mod drift;
mod edits;
mod faults;
mod first_day;
mod fleet;
mod host_static_policies;
mod inside;
mod kills;
mod kubelet_pods;
mod kubelets;
mod pairing;
mod recorded;
mod security;
mod shapes;
mod up;
mod upgrades;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use http::Method;
use serde_json::{Value, json};
use vscaled::control::{ClientError, proto};
use vscaled::model::{CgroupPath, Settings};

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::cluster::{NODE, Today, User, objects};
use crate::support::image::BUSYBOX;

const WEB: &str = "web-5c4f-x";
const APP: Amounts = Amounts::doubled(100, 64);
const LARGER: Amounts = Amounts::doubled(200, 96);
/// The cpu of [`LARGER`] and the memory of [`APP`].
const CPU_ALONE: Amounts = Amounts {
    memory: APP.memory,
    memory_limit: APP.memory_limit,
    ..LARGER
};

/// A shell command that waits for [`Scene::signal`] and then starts a child that takes more memory than there is, each time.
const GREEDY: &str = "while true; do if [ -e /dev/shm/go ]; then rm /dev/shm/go; \
    sh -c 'x=x; while :; do x=$x$x; done'; fi; sleep 0.2; done";

/// A shell command that keeps 60 MB, and says so with a file.
const HOLDS_60_MB: &str = "{ head -c 60000000 /dev/zero; touch /dev/shm/ready; sleep 100000; } | tail -n 1";

/// The first minor version of kubelets that resize a pod's own resources without a feature gate.
const LEAST_FOR_POD_LEVEL: u32 = 36;

/// The first minor version of kubelets that say which generation of a pod they have seen.
const LEAST_FOR_GENERATIONS: u32 = 34;

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
        Self::on(test, &json!({})).await
    }

    /// A scene in a cluster of its own; `kubelet` adds fields to the kubelet's configuration.
    async fn on(test: &str, kubelet: &Value) -> Option<Self> {
        Some(Self::within(Today::boot(test, kubelet).await?))
    }

    fn within(today: Today) -> Self {
        let scene = Self::of(today, format!("test-{}", std::process::id()));
        scene.make_workload("web", objects::REPLICA_SET);
        scene
    }

    /// A scene in this namespace, without a workload.
    fn of(today: Today, namespace: String) -> Self {
        objects::make_namespace(&today.api, &namespace);
        Self {
            agent: today.agent(),
            today,
            namespace,
        }
    }

    /// Starts the agent without its guard, which would raise limits before a kill, and waits until it watches for kills.
    async fn starts_watching_kills(&mut self) {
        self.agent.set("--guard", "false");
        self.agent.start().await;
        let watches = || self.agent.watches_kills();
        self.agent.wait_for("the agent to watch", watches).await;
    }

    /// Creates a Deployment of pods with the label `app` of this name, and its ReplicaSet.
    fn make_workload(&self, name: &str, replica_set: &str) {
        let labels = json!({"app": name});
        let template =
            json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "none"}]}});
        let spec = json!({"selector": {"matchLabels": labels}, "template": template});
        for (kind, object) in [("Deployment", name), ("ReplicaSet", replica_set)] {
            let owners = match kind {
                "ReplicaSet" => self.owned("Deployment", "deployments", name),
                _ => json!([]),
            };
            let metadata = json!({"ownerReferences": owners});
            self.apply("apps/v1", kind, object, metadata, &json!({"spec": spec}));
        }
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

    /// Runs a pod with one container. Returns the pod.
    async fn runs_app(&self) -> Value {
        let app = json!({"containers": [{"name": "app", "resources": objects::resources(APP)}]});
        self.make_pod(WEB, &app);
        self.runs(WEB).await
    }

    /// Runs a pod with one container, and an agent that follows a VPA of it. Returns the pod.
    async fn follows_app(&mut self) -> Value {
        let pod = self.runs_app().await;
        self.agent.start().await;
        self.make_vpa("InPlaceOrRecreate");
        pod
    }

    fn make_pod_of(&self, name: &str, owners: &Value, spec: &Value) {
        self.make_pod_labelled(name, "web", owners, spec);
    }

    fn make_pod_labelled(&self, name: &str, label: &str, owners: &Value, spec: &Value) {
        self.today.api.apply(&self.pod(name, label, owners, spec));
    }

    /// A pod for the node, whose containers are idle unless they have a command.
    fn pod(&self, name: &str, label: &str, owners: &Value, spec: &Value) -> Value {
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
        json!({
            "apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {
                "name": name, "namespace": self.namespace, "labels": {"app": label}, "ownerReferences": owners,
            },
        })
    }

    /// Creates a VPA for the Deployment, without a recommendation.
    fn make_vpa(&self, mode: &str) {
        self.make_vpa_of("web", mode);
    }

    fn make_vpa_of(&self, workload: &str, mode: &str) {
        self.make_vpa_with(workload, mode, &json!({}), &json!({}));
    }

    /// The same with annotations, and with further fields of the spec.
    fn make_vpa_with(&self, workload: &str, mode: &str, annotations: &Value, fields: &Value) {
        let mut spec = fields.clone();
        spec["targetRef"] = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": workload});
        spec["updatePolicy"] = json!({"updateMode": mode});
        self.apply(
            "autoscaling.k8s.io/v1",
            "VerticalPodAutoscaler",
            workload,
            json!({"annotations": annotations}),
            &json!({"spec": spec}),
        );
    }

    /// Writes a recommendation as the recommender does.
    fn recommend(&self, targets: &[(&str, Amounts)]) {
        self.recommend_for("web", targets);
    }

    fn recommend_for(&self, workload: &str, targets: &[(&str, Amounts)]) {
        let status = objects::recommendation(targets);
        self.today.api.put_status(&self.vpas(), workload, &status);
    }

    /// The Events about a pod with this reason.
    fn events(&self, pod: &str, reason: &str) -> Vec<Value> {
        let mut list = self.today.api.get(&(self.collection("api/v1") + "/events"));
        let events = list["items"].take();
        let mut events: Vec<Value> = serde_json::from_value(events).unwrap();
        events.retain(|event| event["involvedObject"]["name"] == pod && event["reason"] == reason);
        events
    }

    fn object(&self, name: &str) -> Value {
        self.today.api.get(&format!("{}/{name}", self.pods()))
    }

    /// Asks for a resize as a user with the right to patch `pods/resize` does; `spec` is merged into the pod's.
    fn resize(&self, name: &str, spec: &Value) {
        self.try_resize(name, spec)
            .unwrap_or_else(|complaint| panic!("{complaint}"));
    }

    /// The same; returns the API server's complaint.
    fn try_resize(&self, name: &str, spec: &Value) -> Result<String, String> {
        let (admin, path) = (
            self.today.api.kubeconfig(User::Admin),
            format!("{}/{name}/resize", self.pods()),
        );
        self.today.api.patch(&admin, &path, &json!({"spec": spec}))
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

    /// Waits until the container of [`WEB`] has these amounts, at the kubelet and for the agent.
    async fn app_reaches(&self, amounts: Amounts) -> Value {
        let pod = self.is_resized(WEB, "app", &objects::resources(amounts)).await;
        self.agent.reaches(WEB, "InSync").await;
        pod
    }

    /// The kernel's values of a pod.
    fn levels(&self, pod: &Value) -> Levels {
        let mut levels = Levels::from([(String::new(), self.today.settings(&self.today.pod_cgroup(pod)))]);
        levels.extend(containers(pod).map(|status| {
            let settings = self.today.settings(&self.today.container_cgroup(pod, status));
            (status["name"].as_str().unwrap().to_owned(), settings)
        }));
        levels
    }

    /// The files that say whether a kill ends a container as a whole.
    fn oom_groups(&self, pod: &Value) -> Vec<String> {
        let cgroups = containers(pod).map(|status| self.today.container_cgroup(pod, status));
        let files = cgroups.map(|cgroup| cgroup.under("/sys/fs/cgroup".as_ref()).join("memory.oom.group"));
        files.map(|file| fs::read_to_string(file).unwrap()).collect()
    }

    /// Makes a file for a container whose command waits for one, in the pod's shared memory.
    fn signal(&self, pod: &Value, container: &str) {
        let cgroup = self.cgroup(pod, container).under("/sys/fs/cgroup".as_ref());
        let pids = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
        let pid = pids.lines().next().expect("the container runs");
        fs::write(format!("/proc/{pid}/root/dev/shm/go"), "").unwrap();
    }

    /// Asserts that the kernel confines a container as containerd does by default, where the kernel has AppArmor.
    fn is_confined(&self, pod: &Value, container: &str) {
        if !Path::new("/sys/kernel/security/apparmor").exists() {
            return;
        }
        let cgroup = self.cgroup(pod, container).under("/sys/fs/cgroup".as_ref());
        let processes = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
        let pid = processes.lines().next().unwrap();
        let profile = fs::read_to_string(format!("/proc/{pid}/attr/current")).unwrap();
        assert_eq!(profile, "cri-containerd.apparmor.d (enforce)\n", "{container}");
    }

    /// The cgroup of a pod's container.
    fn cgroup(&self, pod: &Value, container: &str) -> CgroupPath {
        let status = containers(pod).find(|status| status["name"] == container).unwrap();
        self.today.container_cgroup(pod, status)
    }

    /// Sets a memory limit through the agent, as an operator does.
    async fn limit_by_hand(&self, pod: &str, container: &str, memory: &str) -> Result<proto::Change, ClientError> {
        let request = self.limits_by_hand(pod, container, None, Some(memory));
        self.agent.resize(request).await
    }

    /// An operator's request for these limits.
    fn limits_by_hand(
        &self,
        pod: &str,
        container: &str,
        cpu: Option<&str>,
        memory: Option<&str>,
    ) -> proto::ResizeRequest {
        let limits = proto::Amounts {
            cpu: cpu.map(str::to_owned),
            memory: memory.map(str::to_owned),
        };
        let values = proto::Requirements {
            requests: None,
            limits: Some(limits),
        };
        proto::ResizeRequest {
            pod: format!("{}/{pod}", self.namespace),
            containers: vec![proto::ContainerValues {
                name: container.to_owned(),
                values: Some(values),
            }],
            ..proto::ResizeRequest::default()
        }
    }

    /// Ends what an operator has set.
    async fn release(&self, pod: &str) -> proto::Change {
        let name = format!("{}/{pod}", self.namespace);
        self.agent.release(&name).await.unwrap()
    }

    async fn explain(&self, pod: &str) -> Option<proto::ExplainReply> {
        let name = format!("{}/{pod}", self.namespace);
        self.agent.client().await.explain(name).await.ok()
    }

    /// The series of the agent's calls to the API server. The agent needs an address for its metrics.
    async fn api_calls(&self) -> Vec<String> {
        let address = self.agent.http_address().await;
        let (_, metrics) = crate::support::http::get(address, "/metrics").unwrap();
        let calls = metrics
            .lines()
            .filter(|line| line.starts_with("vscaled_api_calls_total{"));
        calls.map(str::to_owned).collect()
    }

    /// Waits until the kubelet has answered a pod's resize with this reason; returns its words.
    async fn is_answered(&self, pod: &str, reason: &str) -> String {
        let answer = || {
            let conditions = self.object(pod)["status"]["conditions"].take();
            let mut all = conditions
                .as_array()?
                .iter()
                .filter(|condition| is_of_resize(condition));
            let condition = all.find(|condition| condition["reason"] == reason)?;
            condition["message"].as_str().map(str::to_owned)
        };
        self.agent.until(reason, async || answer()).await
    }

    /// Waits until a container has made the file that says so.
    async fn is_ready(&self, pod: &Value, container: &str) {
        let cgroup = self.cgroup(pod, container).under("/sys/fs/cgroup".as_ref());
        let ready = || {
            let pids = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
            let mut pids = pids.lines();
            pids.any(|pid| Path::new(&format!("/proc/{pid}/root/dev/shm/ready")).exists())
        };
        self.agent.wait_for(&format!("{container} to be ready"), ready).await;
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
        let workloads = ["deployments", "replicasets"].map(|kind| self.collection("apis/apps/v1") + "/" + kind);
        for collection in [self.vpas()].into_iter().chain(workloads).chain([self.pods()]) {
            if let Err(error) = self.today.api.remove_all(&collection) {
                eprintln!("{collection}: {error}");
            }
        }
    }
}

/// The minor version of the cluster's kubelet.
fn kubelet_minor() -> u32 {
    let version = std::env::var("VSCALED_TEST_KUBELET").unwrap_or_else(|_| "1.37".to_owned());
    version.trim_start_matches("1.").parse().unwrap()
}

/// The token in a kubeconfig of the cluster.
fn token_in(kubeconfig: &Path) -> String {
    let text = fs::read_to_string(kubeconfig).unwrap();
    let token = text.split("token: ").nth(1).unwrap().split('}').next();
    token.unwrap().to_owned()
}

/// The statuses of a pod's running containers, with those of sidecars.
fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let of = |list: &str| pod["status"][list].as_array().into_iter().flatten();
    let statuses = of("initContainerStatuses").chain(of("containerStatuses"));
    statuses.filter(|status| status["state"]["running"].is_object())
}

/// Whether the kubelet says with this condition how a resize stands.
fn is_of_resize(condition: &Value) -> bool {
    condition["type"].as_str().is_some_and(|of| of.starts_with("PodResize"))
}

/// Whether the kubelet has nothing left to do for a pod's resize: the containers' resources in spec and status agree.
fn is_settled(pod: &Value) -> bool {
    let metadata = &pod["metadata"];
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let actual = |spec: &Value| {
        let status = containers(pod).find(|status| status["name"] == spec["name"]);
        status.is_some_and(|status| status["resources"] == spec["resources"])
    };
    let is_seen =
        kubelet_minor() < LEAST_FOR_GENERATIONS || pod["status"]["observedGeneration"] == metadata["generation"];
    let sidecars = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    let sidecars = sidecars.filter(|container| container["restartPolicy"] == "Always");
    let mut running = pod["spec"]["containers"].as_array().unwrap().iter().chain(sidecars);
    is_seen && !conditions.into_iter().any(is_of_resize) && running.all(actual)
}

/// Asserts that the same containers run as before, none started again.
fn nothing_restarted(before: &Value, after: &Value) {
    let lives = |pod: &Value| -> Vec<(Value, Value)> {
        let life = |status: &Value| (status["containerID"].clone(), status["restartCount"].clone());
        containers(pod).map(life).collect()
    };
    assert_eq!(lives(before), lives(after));
}
