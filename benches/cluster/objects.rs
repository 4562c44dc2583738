//! The objects of the measured cluster.

use std::fmt;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use vscaled::kubernetes::metrics::ApiMetrics;
use vscaled::kubernetes::{Access, ApiClient, Call, Kind, Verb};

use crate::support::cluster::{ApiServer, User};

const AT_ONCE: usize = 32;

/// How many of what there are. Pod number `p` of node `n` is in namespace `(n + p) % namespaces`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
    pub(crate) namespaces: usize,
}

impl Shape {
    pub(crate) const fn of(nodes: usize, pods: usize) -> Self {
        let namespaces = nodes.div_ceil(2);
        Self {
            nodes,
            pods,
            namespaces,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a few hundred nodes")]
    pub(crate) const fn nodes_as_float(&self) -> f64 {
        self.nodes as f64
    }

    /// The namespaces of a node's pods.
    pub(crate) fn namespaces_of(&self, node: usize) -> impl Iterator<Item = String> {
        (0..self.pods.min(self.namespaces)).map(move |pod| namespace((node + pod) % self.namespaces))
    }

    /// Makes all objects. In each namespace, all pods belong to one Deployment with one VPA.
    pub(crate) async fn create(&self, cluster: &ApiServer) -> anyhow::Result<()> {
        cluster.grant("deploy/base");
        let client = client(cluster, User::Admin).await?;
        let core = |plural| Kind::new("", "v1", plural);
        let deployments = Kind::new("apps", "v1", "deployments");
        let mut waves: [Vec<(Call, Value)>; 2] = Default::default();
        for number in 0..self.namespaces {
            let name = namespace(number);
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
        let mut pods = Vec::new();
        for number in 0..self.namespaces {
            let name = namespace(number);
            let owner = Call::new(Verb::Get, deployments).within(Some(&name)).named("web");
            let owner: Value = client.read(&owner).await?;
            let here = |node: &usize, pod: &usize| (node + pod) % self.namespaces == number;
            let all = (0..self.nodes).flat_map(|node| (0..self.pods).map(move |pod| (node, pod)));
            for (node, pod) in all.filter(|(node, pod)| here(node, pod)) {
                let call = Call::new(Verb::Create, core("pods")).within(Some(&name));
                pods.push((call, self::pod(node, pod, &owner["metadata"]["uid"])));
            }
        }
        create_all(&client, pods).await
    }

    /// A recommender's round: a new target for each VPA. Returns the amount of cpu it gave to all.
    pub(crate) async fn recommend(&self, cluster: &ApiServer) -> anyhow::Result<u64> {
        let client = client(cluster, User::Admin).await?;
        let kind = Kind::new("autoscaling.k8s.io", "v1", "verticalpodautoscalers");
        let mut millis = 0;
        for number in 0..self.namespaces {
            let name = namespace(number);
            let call = Call::new(Verb::Get, kind).within(Some(&name)).named("web");
            let vpa: Value = client.read(&call).await?;
            let before = vpa["status"]["recommendation"]["containerRecommendations"][0]["target"]["cpu"].as_str();
            let before: u64 = before.map_or(Ok(100), |cpu| cpu.trim_end_matches('m').parse())?;
            millis = before + 1;
            let amounts = json!({"cpu": format!("{millis}m"), "memory": "64Mi"});
            let recommended =
                json!({"containerName": "app", "target": amounts, "lowerBound": amounts, "upperBound": amounts});
            let status = json!({"status": {"recommendation": {"containerRecommendations": [recommended]}}});
            let path = format!("/apis/autoscaling.k8s.io/v1/namespaces/{name}/verticalpodautoscalers/web/status");
            let mut object = vpa;
            object["status"] = status["status"].clone();
            tokio::task::block_in_place(|| {
                cluster.kubectl(&["replace", "--raw", &path, "--filename=-"], &object.to_string())
            });
        }
        Ok(millis)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} nodes with {} pods each, {} namespaces with a VPA each",
            self.nodes, self.pods, self.namespaces
        )
    }
}

/// A client of its own.
pub(crate) async fn client(cluster: &ApiServer, user: User) -> anyhow::Result<ApiClient> {
    let counted = ApiMetrics::register(&mut prometheus_client::registry::Registry::default());
    let access = Access::Kubeconfig(cluster.kubeconfig(user));
    access.connect(counted).await.context("no client")
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
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": owner, "controller": true,
    });
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
