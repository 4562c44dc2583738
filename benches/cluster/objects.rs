//! The objects of the measured cluster.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use vscaled::kubernetes::{ApiClient, Call, Kind, Verb};
use vscaled::pace::place_in;

use crate::support::cluster::{ApiServer, User};
use crate::support::fleet::Calls;

const AT_ONCE: usize = 32;
/// The namespace of the workload with a pod on each node.
pub(crate) const EVERYWHERE: &str = "everywhere";

/// The numbers of objects. Pod number `p` of node `n` is in namespace `(n + p) % namespaces`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
    pub(crate) namespaces: usize,
}

impl Shape {
    pub(crate) const fn of(nodes: usize, pods: usize, namespaces: usize) -> Self {
        Self {
            nodes,
            pods,
            namespaces,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a few thousand nodes")]
    pub(crate) const fn nodes_as_float(&self) -> f64 {
        self.nodes as f64
    }

    /// The namespaces of a node's pods.
    pub(crate) fn namespaces_of(&self, node: usize) -> impl Iterator<Item = String> {
        (0..self.pods.min(self.namespaces)).map(move |pod| namespace((node + pod) % self.namespaces))
    }

    /// Creates all objects. In each namespace, all pods belong to one Deployment with one VPA.
    pub(crate) async fn create(&self, cluster: &ApiServer) -> anyhow::Result<()> {
        cluster.grant("deploy/base");
        let client = Calls::new().client(cluster, User::Admin).await;
        let deployments = Kind::new("apps", "v1", "deployments");
        let mut waves: [Vec<(Call, Value)>; 2] = Default::default();
        let everywhere = EVERYWHERE.to_owned();
        for name in (0..self.namespaces).map(namespace).chain([everywhere]) {
            let create = |kind| Call::new(Verb::Create, kind).within(Some(&name));
            let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            waves[0].push((Call::new(Verb::Create, core("namespaces")), space));
            waves[1].push((create(deployments), deployment()));
            waves[1].push((
                create(Kind::new("autoscaling.k8s.io", "v1", "verticalpodautoscalers")),
                vpa(),
            ));
        }
        for number in 0..self.nodes {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name(number)}});
            waves[0].push((Call::new(Verb::Create, core("nodes")), node));
        }
        for wave in waves {
            create_all(&client, wave).await?;
        }
        let all = (0..self.nodes).flat_map(|node| (0..=self.pods).map(move |pod| (node, pod)));
        let owners = self.owners(&client).await?;
        let pods = all.map(|(node, pod)| self.pod(node, pod, &owners)).collect();
        create_all(&client, pods).await
    }

    /// The UIDs of all Deployments, by their namespaces.
    async fn owners(&self, client: &ApiClient) -> anyhow::Result<HashMap<String, Value>> {
        let deployments = Kind::new("apps", "v1", "deployments");
        let mut owners = HashMap::new();
        for name in (0..self.namespaces).map(namespace).chain([EVERYWHERE.to_owned()]) {
            let owner = Call::new(Verb::Get, deployments).within(Some(&name)).named("web");
            let owner: Value = client.read(&owner).await?;
            owners.insert(name, owner["metadata"]["uid"].clone());
        }
        Ok(owners)
    }

    /// The call that creates a pod. The last pod of each node belongs to the workload on every node.
    fn pod(&self, node: usize, number: usize, owners: &HashMap<String, Value>) -> (Call, Value) {
        let name = if number == self.pods {
            EVERYWHERE.to_owned()
        } else {
            namespace((node + number) % self.namespaces)
        };
        let call = Call::new(Verb::Create, core("pods")).within(Some(&name));
        (call, pod(node, number, &owners[&name]))
    }

    /// Replaces the first pod on some nodes, and changes as many VPAs. Returns the number of nodes.
    pub(crate) async fn churn(&self, cluster: &ApiServer, nodes: usize) -> anyhow::Result<usize> {
        let client = Calls::new().client(cluster, User::Admin).await;
        let chosen: Vec<_> = (0..self.nodes).step_by((self.nodes / nodes).max(1)).collect();
        let gone: Vec<_> = chosen
            .iter()
            .map(|node| {
                let metadata = json!({"name": format!("web-{node}-0"), "namespace": namespace(node % self.namespaces)});
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
            })
            .collect();
        let gone = json!({"apiVersion": "v1", "kind": "List", "items": gone}).to_string();
        let arguments = ["delete", "--filename=-", "--grace-period=0", "--force", "--wait=false"];
        tokio::task::block_in_place(|| cluster.kubectl(&arguments, &gone));
        let owners = self.owners(&client).await?;
        let pods = chosen.iter().map(|node| self.pod(*node, 0, &owners));
        create_all(&client, pods.collect()).await?;
        for number in (0..self.namespaces).take(chosen.len()) {
            recommend_in(cluster, &client, &namespace(number)).await?;
        }
        Ok(chosen.len())
    }

    /// Sets a new target of the VPA that concerns every node.
    pub(crate) async fn recommend_everywhere(&self, cluster: &ApiServer) -> anyhow::Result<u64> {
        let client = Calls::new().client(cluster, User::Admin).await;
        recommend_in(cluster, &client, EVERYWHERE).await
    }

    /// A recommender's round: sets a new target of each VPA. Returns the recommended cpu, which is the same for all.
    pub(crate) async fn recommend(&self, cluster: &ApiServer) -> anyhow::Result<u64> {
        let client = Calls::new().client(cluster, User::Admin).await;
        let mut highest = 0;
        let names: Vec<_> = (0..self.namespaces).map(namespace).collect();
        for name in &names {
            highest = target(&client, name).await?.1.max(highest);
        }
        for name in &names {
            recommend(cluster, &client, name, highest + 1).await?;
        }
        Ok(highest + 1)
    }
}

/// A VPA, and the cpu that it recommends.
async fn target(client: &ApiClient, namespace: &str) -> anyhow::Result<(Value, u64)> {
    let kind = Kind::new("autoscaling.k8s.io", "v1", "verticalpodautoscalers");
    let call = Call::new(Verb::Get, kind).within(Some(namespace)).named("web");
    let vpa: Value = client.read(&call).await?;
    let target = &vpa["status"]["recommendation"]["containerRecommendations"][0]["target"];
    let millis = target["cpu"]
        .as_str()
        .map_or(Ok(100), |cpu| cpu.trim_end_matches('m').parse())?;
    Ok((vpa, millis))
}

/// Sets another target of one VPA and returns it.
async fn recommend_in(cluster: &ApiServer, client: &ApiClient, namespace: &str) -> anyhow::Result<u64> {
    let millis = target(client, namespace).await?.1 + 1;
    recommend(cluster, client, namespace, millis).await?;
    Ok(millis)
}

async fn recommend(cluster: &ApiServer, client: &ApiClient, namespace: &str, millis: u64) -> anyhow::Result<()> {
    let (mut vpa, _) = target(client, namespace).await?;
    let amounts = json!({"cpu": format!("{millis}m"), "memory": "64Mi"});
    let recommended = json!({"containerName": "app", "target": amounts, "lowerBound": amounts, "upperBound": amounts});
    vpa["status"] = json!({"recommendation": {"containerRecommendations": [recommended]}});
    let path = format!("/apis/autoscaling.k8s.io/v1/namespaces/{namespace}/verticalpodautoscalers/web/status");
    let arguments = ["replace", "--raw", &path, "--filename=-"];
    tokio::task::block_in_place(|| cluster.kubectl(&arguments, &vpa.to_string()));
    Ok(())
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} nodes with {} pods each and one of what runs everywhere, {} namespaces with a VPA each",
            self.nodes, self.pods, self.namespaces
        )
    }
}

/// A simultaneous action: each node posts one Event, as an agent does after a resize, at its place in a time window.
pub(crate) async fn herd(clients: &[ApiClient], window: Duration) -> Herd {
    let started = Instant::now();
    let mut posts = JoinSet::new();
    for (number, client) in clients.iter().cloned().enumerate() {
        let place = place_in(window, &node_name(number), &format!("uid-{number}"));
        posts.spawn(async move {
            tokio::time::sleep(place).await;
            let call = Call::new(Verb::Create, core("events")).within(Some(EVERYWHERE));
            let posted = Instant::now();
            let answer = client.send::<Value>(&call, &event(number)).await;
            (posted.duration_since(started), posted.elapsed(), answer.is_ok())
        });
    }
    let mut herd = Herd::default();
    while let Some(done) = posts.join_next().await {
        let Ok((at, took, accepted)) = done else { continue };
        let second = usize::try_from(at.as_secs()).unwrap_or_default();
        herd.seconds.resize(herd.seconds.len().max(second + 1), 0);
        herd.seconds[second] += 1;
        herd.took.push(took);
        herd.refused += usize::from(!accepted);
    }
    herd.took.sort_unstable();
    herd
}

/// The results of one action of each node.
#[derive(Debug, Default)]
pub(crate) struct Herd {
    seconds: Vec<usize>,
    took: Vec<Duration>,
    refused: usize,
}

impl Herd {
    /// A row of machine-readable results.
    pub(crate) fn row(&self, kind: &str, window: Duration) -> Value {
        json!({
            "kind": kind, "window_seconds": window.as_secs(), "posts": self.took.len(), "seconds": self.seconds.len(),
            "posts_in_busiest_second": self.seconds.iter().max(), "refused": self.refused,
            "p50_seconds": self.took(50).as_secs_f64(), "p99_seconds": self.took(99).as_secs_f64(),
        })
    }

    /// The duration that this percentage did not exceed.
    fn took(&self, percent: usize) -> Duration {
        let place = self.took.len() * percent / 101;
        self.took.get(place).copied().unwrap_or_default()
    }
}

impl fmt::Display for Herd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} in {} s, at most {} in a second; answered after {:.0?} at p50, {:.0?} at p99; {} refused or broken off",
            self.took.len(),
            self.seconds.len(),
            self.seconds.iter().max().unwrap_or(&0),
            self.took(50),
            self.took(99),
            self.refused
        )
    }
}

fn event(number: usize) -> Value {
    static POSTED: AtomicUsize = AtomicUsize::new(0);
    let name = format!("web-{number}.{}", POSTED.fetch_add(1, Ordering::Relaxed));
    json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": EVERYWHERE},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": format!("web-{number}"), "namespace": EVERYWHERE},
        "reason": "Resized", "type": "Normal", "message": "app: cpu 100m to 101m",
    })
}

const fn core(plural: &'static str) -> Kind {
    Kind::new("", "v1", plural)
}

async fn create_all(client: &ApiClient, objects: Vec<(Call, Value)>) -> anyhow::Result<()> {
    let mut running = JoinSet::new();
    for (call, object) in objects {
        if running.len() >= AT_ONCE
            && let Some(done) = running.join_next().await
        {
            done??;
        }
        let client = client.clone();
        running.spawn(async move { client.send::<Value>(&call, &object).await });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(())
}

fn namespace(number: usize) -> String {
    format!("team-{number}")
}

pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number}")
}

fn deployment() -> Value {
    let containers = json!([{"name": "app", "image": "none"}]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}},
        },
    })
}

fn vpa() -> Value {
    json!({
        "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler", "metadata": {"name": "web"},
        "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
    })
}

fn pod(node: usize, number: usize, owner: &Value) -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": owner, "controller": true});
    let resources =
        json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("web-{node}-{number}"), "labels": {"app": "web"}, "ownerReferences": [owner]},
        "spec": {
            "nodeName": node_name(node),
            "containers": [{"name": "app", "image": "none", "resources": resources}],
        },
    })
}
