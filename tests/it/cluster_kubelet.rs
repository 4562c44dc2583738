//! Promise: on a node whose kubelet cannot resize (1.32), the kernel and the runtime hold the values that a VPA
//! recommends, through restarts of the kubelet, the containers, the API server and the agent.
//!
//! Everything is real: etcd, kube-apiserver, a kubelet, containerd, and the agent with a token of its service account
//! and the deployed rights.

mod applied;
mod changes;
mod kubelet;
mod quotas;
mod restarts;

use std::collections::BTreeMap;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use vscaled::model::CgroupPath;

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::cluster::{ApiServer, Kubelet, Node, Release, objects};
use crate::support::containerd::Containerd;

pub(crate) const WEB: &str = "web-5c4f-x";
const APP: Amounts = Amounts::doubled(100, 64);
const SIDE: Amounts = Amounts::doubled(50, 32);
const AT_FIRST: [(&str, Amounts); 2] = [("app", APP), ("side", SIDE)];
pub(crate) const LARGER: [(&str, Amounts); 2] =
    [("app", Amounts::doubled(300, 128)), ("side", Amounts::doubled(80, 48))];
const SMALLER: [(&str, Amounts); 2] = [("app", Amounts::doubled(60, 40)), ("side", Amounts::doubled(40, 24))];
/// Both containers together get less than one of them has at first.
const LEAST: [(&str, Amounts); 2] = [("app", Amounts::doubled(50, 40)), ("side", Amounts::doubled(30, 24))];

/// A node with a pod of a Deployment, and an agent that does not run yet. Fields are dropped in this order.
pub(crate) struct Scene {
    pub(crate) agent: Agent,
    kubelet: Kubelet,
    pub(crate) cluster: ApiServer,
    pub(crate) containerd: Containerd,
    kubepods: CgroupPath,
}

/// A pod whose containers all run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    cgroup: CgroupPath,
    containers: BTreeMap<String, Container>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Container {
    id: String,
    restarts: u64,
}

impl Scene {
    /// Returns `None` without the programs of a cluster.
    pub(crate) async fn new(test: &str) -> Option<Self> {
        Self::configured(test, &json!({})).await
    }

    /// `kubelet` adds fields to the kubelet's configuration.
    pub(crate) async fn configured(test: &str, kubelet: &Value) -> Option<Self> {
        let cluster = ApiServer::start(Release::Legacy, test)?;
        let Node {
            agent,
            kubelet,
            containerd,
            kubepods,
        } = Node::join(&cluster, kubelet).await;
        let scene = Self {
            agent,
            kubelet,
            cluster,
            containerd,
            kubepods,
        };
        scene.make_pod(WEB, &objects::owned(&scene.cluster), &AT_FIRST);
        scene.runs(WEB).await;
        Some(scene)
    }

    /// Starts the agent, which knows the pod and does not change it.
    async fn started(test: &str) -> Option<Self> {
        let mut scene = Self::new(test).await?;
        scene.agent.start().await;
        scene.agent.reaches(WEB, "NotManaged").await;
        Some(scene)
    }

    /// Starts the agent and waits until it has applied a recommendation.
    async fn resized(test: &str) -> Option<Self> {
        let scene = Self::started(test).await?;
        scene.cluster.apply(&objects::vpa("InPlaceOrRecreate"));
        scene.recommend(&LARGER);
        scene.settles(WEB, &LARGER).await;
        Some(scene)
    }

    /// Creates a pod that is bound to the node.
    fn make_pod(&self, name: &str, owners: &Value, containers: &[(&str, Amounts)]) {
        self.cluster.apply(&objects::pod(name, owners, containers));
    }

    /// Writes a recommendation with kubectl.
    pub(crate) fn recommend(&self, targets: &[(&str, Amounts)]) {
        self.cluster
            .put_status(objects::VPAS, "web", &objects::recommendation(targets));
    }

    /// Waits until all containers of a pod run, according to the pod's status.
    pub(crate) async fn runs(&self, name: &str) -> Running {
        let what = format!("pod {name} to run");
        self.agent.until(&what, async || self.running(name)).await
    }

    fn running(&self, name: &str) -> Option<Running> {
        let path = format!("{}/{name}", objects::PODS);
        let pod = self.cluster.get(&path);
        let uid = pod["metadata"]["uid"].as_str()?;
        let wanted = pod["spec"]["containers"].as_array()?.len();
        let containers: BTreeMap<_, _> = pod["status"]["containerStatuses"]
            .as_array()?
            .iter()
            .filter(|status| status["state"]["running"].is_object())
            .filter_map(|status| {
                let id = status["containerID"]
                    .as_str()?
                    .strip_prefix("containerd://")?
                    .to_owned();
                let container = Container {
                    id,
                    restarts: status["restartCount"].as_u64()?,
                };
                Some((status["name"].as_str()?.to_owned(), container))
            })
            .collect();
        let cgroup = self
            .kubepods
            .child("burstable")
            .ok()?
            .child(&format!("pod{uid}"))
            .ok()?;
        (containers.len() == wanted).then_some(Running { cgroup, containers })
    }

    fn exists(&self, name: &str) -> bool {
        let pods = self.cluster.get(objects::PODS);
        let mut pods = pods["items"].as_array().unwrap().iter();
        pods.any(|pod| pod["metadata"]["name"] == name)
    }

    /// Whether the pod and all its containers hold these values.
    pub(crate) fn holds(&self, pod: &Running, containers: &[(&str, Amounts)]) -> bool {
        let cgroups = self.containerd.cgroups();
        let holds = |path: &CgroupPath, amounts: Amounts| cgroups.holds(path, &amounts.settings(cgroups.version()));
        let each = |(name, amounts): &(&str, Amounts)| {
            let container = pod.cgroup.child(&pod.containers[*name].id).unwrap();
            holds(&container, *amounts)
        };
        let together = Amounts::sum(containers.iter().map(|(_, amounts)| *amounts));
        let specs = AT_FIRST.map(|(_, amounts)| amounts);
        holds(&pod.cgroup, together.admitting(specs, cgroups.version())) && containers.iter().all(each)
    }

    /// Kills a container's first process.
    fn kill(&self, container: &Container) {
        kill(Pid::from_raw(self.containerd.pid(&container.id)), Signal::SIGKILL).unwrap();
    }

    /// Waits until every level of a pod holds these values and the agent reports InSync.
    async fn settles(&self, name: &str, containers: &[(&str, Amounts)]) -> Running {
        let wanted = format!("every level of {name} to hold {containers:?}");
        // After an outage of the API server, the pod's status names the containers of before for a moment.
        let holds = async || self.running(name).filter(|pod| self.holds(pod, containers));
        let pod = self.agent.until(&wanted, holds).await;
        self.agent.reaches(name, "InSync").await;
        pod
    }
}
