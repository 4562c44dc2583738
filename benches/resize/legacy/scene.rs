//! A cluster of one node, a pod on it, and the agent.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tower::{BoxError, ServiceBuilder};
use vscaled::model::{CgroupPath, Settings};

use super::{AT_FIRST, PATIENCE};
use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::cluster::{ApiServer, Kubelet, Node, Release, User, objects};
use crate::support::containerd::Containerd;

pub(super) const POD: &str = "web-5c4f-x";
pub(super) const CONTAINERS: [&str; 3] = ["app", "proxy", "logs"];

type Objects = kube::Api<DynamicObject>;

/// Fields are dropped in this order.
pub(super) struct Scene {
    pub(super) agent: Agent,
    pub(super) pods: Objects,
    pub(super) vpas: Objects,
    owners: Value,
    kubepods: CgroupPath,
    _kubelet: Kubelet,
    _cluster: ApiServer,
    containerd: Containerd,
}

/// The cgroups of a pod whose containers all run: its own, then theirs.
pub(super) type Running = Vec<CgroupPath>;

impl Scene {
    /// Starts the agent, with a VPA without a recommendation. Returns `None` without the programs of a cluster.
    pub(super) async fn new() -> anyhow::Result<Option<Self>> {
        let Some(cluster) = ApiServer::start(Release::Legacy, "legacy") else {
            return Ok(None);
        };
        let Node {
            agent,
            kubelet,
            containerd,
            kubepods,
        } = Node::join(&cluster, &json!({})).await;
        let client = client(&cluster).await?;
        let of = |group, version, kind| {
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            Objects::namespaced_with(client.clone(), "test", &kind)
        };
        let mut scene = Self {
            agent,
            pods: of("", "v1", "Pod"),
            vpas: of("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler"),
            owners: objects::owned(&cluster),
            kubepods,
            _kubelet: kubelet,
            _cluster: cluster,
            containerd,
        };
        scene.make_pod(POD, AT_FIRST).await?;
        scene.runs(POD).await?;
        scene.agent.start().await;
        scene.agent.reaches(POD, "NotManaged").await;
        let vpa = serde_json::from_value(objects::vpa("InPlaceOrRecreate"))?;
        scene.vpas.create(&PostParams::default(), &vpa).await?;
        Ok(Some(scene))
    }

    /// Creates a pod that is bound to the node.
    pub(super) async fn make_pod(&self, name: &str, amounts: Amounts) -> anyhow::Result<()> {
        let pod = objects::pod(name, &self.owners, &CONTAINERS.map(|name| (name, amounts)));
        self.pods
            .create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
        Ok(())
    }

    /// Waits until all containers of a pod run, according to the pod's status.
    pub(super) async fn runs(&self, name: &str) -> anyhow::Result<Running> {
        let started = Instant::now();
        loop {
            if let Some(running) = self.running(&self.pods.get(name).await?)? {
                return Ok(running);
            }
            ensure!(started.elapsed() < PATIENCE, "pod {name} does not run");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn running(&self, pod: &DynamicObject) -> anyhow::Result<Option<Running>> {
        let uid = pod.metadata.uid.as_deref().context("a pod has a UID")?;
        let cgroup = self.kubepods.child("burstable")?.child(&format!("pod{uid}"))?;
        let statuses = pod.data["status"]["containerStatuses"].as_array();
        let mut running = vec![cgroup.clone()];
        for status in statuses.into_iter().flatten() {
            let id = status["containerID"]
                .as_str()
                .and_then(|id| id.strip_prefix("containerd://"));
            if let Some(id) = id.filter(|_| status["state"]["running"].is_object()) {
                running.push(cgroup.child(id)?);
            }
        }
        Ok((running.len() == 1 + CONTAINERS.len()).then_some(running))
    }

    /// The values of a pod's cgroups, in the order of [`Running`], when its containers have `amounts` and their specs
    /// have `spec`.
    pub(super) fn wanted(&self, amounts: Amounts, spec: Amounts) -> Vec<Settings> {
        let version = self.containerd.cgroups().version();
        let pod = Amounts::sum(CONTAINERS.map(|_| amounts)).admitting([spec], version);
        std::iter::once(pod)
            .chain(CONTAINERS.map(|_| amounts))
            .map(|amounts| amounts.settings(version))
            .collect()
    }

    /// Whether a pod's annotation reports these amounts of its containers.
    pub(super) async fn says(&self, name: &str, amounts: Amounts) -> anyhow::Result<bool> {
        let pod = self.pods.get(name).await?;
        let said = pod
            .metadata
            .annotations
            .unwrap_or_default()
            .remove("vscaled.io/applied");
        let said: Value = serde_json::from_str(said.as_deref().unwrap_or("null"))?;
        Ok(CONTAINERS.iter().all(|name| said[name] == objects::resources(amounts)))
    }
}

/// Another client of the API server, with its own connection. Like client-go it sends each request's body without a
/// wait for the acknowledgement of the head; kube's own builder waits.
pub(crate) async fn client(cluster: &ApiServer) -> anyhow::Result<kube::Client> {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig(User::Admin))?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .service(hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector));
    Ok(kube::Client::new(service, config.default_namespace))
}
