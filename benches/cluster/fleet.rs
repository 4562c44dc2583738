//! Nodes of one kind, all in this process.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::ensure;
use vscaled::kubernetes::{ApiClient, Followed, Follower, ListChanges, ObjectMemory, Timing, follow};
use vscaled::model::Resource;
use vscaled::model::objects::{HorizontalPodAutoscaler, LimitRange, Pod, VerticalPodAutoscaler};

use super::objects::{Shape, node_name};
use crate::support::cluster::{ApiServer, User};
use crate::support::fleet::{Calls, Local};

/// The longest wait for all nodes together.
const PATIENCE: Duration = Duration::from_secs(900);

/// One node, as the API server sees it.
pub(crate) trait Node: Sized {
    /// Whether the node waits for the API server by itself. Otherwise [`Fleet::is_ready`] informs it.
    const WAITS: bool = true;

    /// Starts to follow the node's objects.
    fn start(client: ApiClient, name: &str) -> Self;
    /// The number of pods that the node knows.
    fn pods(&self) -> usize;
    /// The number of VPAs in these namespaces that recommend this much cpu.
    fn recommended(&self, namespaces: &[String], millis: u64) -> usize;
}

/// The behaviour of the agent.
impl Node for Local {
    fn start(client: ApiClient, name: &str) -> Self {
        Self::start(client, name, Timing::default())
    }

    fn pods(&self) -> usize {
        self.states.borrow().view.as_ref().map_or(0, |view| view.pods().count())
    }

    fn recommended(&self, namespaces: &[String], millis: u64) -> usize {
        let state = self.states.borrow();
        let vpas = state
            .view
            .iter()
            .flat_map(|view| view.namespaces.values().flat_map(|known| &known.vpas));
        vpas.filter(|vpa| namespaces.contains(&vpa.metadata.namespace) && recommends(vpa, millis))
            .count()
    }
}

/// The agent without the random delays after an outage: all agents learn at the same moment that the API server is
/// ready, and start their watches within 30 ms.
#[derive(Debug)]
pub(crate) struct Hasty(Local);

impl Node for Hasty {
    const WAITS: bool = false;

    fn start(client: ApiClient, name: &str) -> Self {
        let timing = Timing {
            first_pause: Duration::from_millis(20),
            ..Timing::default()
        };
        Self(Local::without_probes(client, name, timing))
    }

    fn pods(&self) -> usize {
        self.0.pods()
    }

    fn recommended(&self, namespaces: &[String], millis: u64) -> usize {
        self.0.recommended(namespaces, millis)
    }
}

/// The behaviour of an agent with informers.
#[derive(Debug)]
pub(crate) struct Everything {
    pods: Follower<Pod>,
    vpas: Follower<VerticalPodAutoscaler>,
    _others: (Follower<LimitRange>, Follower<HorizontalPodAutoscaler>),
}

impl Node for Everything {
    fn start(client: ApiClient, name: &str) -> Self {
        let here = format!("spec.nodeName={name}");
        let (timing, changed) = (Timing::default(), ListChanges::default());
        let memory = || ObjectMemory::new(64 << 20);
        Self {
            pods: follow(client.clone(), None, &here, timing, memory(), changed.clone()),
            vpas: follow(client.clone(), None, "", timing, memory(), changed.clone()),
            _others: (
                follow(client.clone(), None, "", timing, memory(), changed.clone()),
                follow(client, None, "", timing, memory(), changed),
            ),
        }
    }

    fn pods(&self) -> usize {
        self.pods.read(|pods: &Followed<Pod>| pods.objects().count())
    }

    fn recommended(&self, namespaces: &[String], millis: u64) -> usize {
        self.vpas.read(|vpas| {
            let vpas = vpas.objects();
            vpas.filter(|vpa| namespaces.contains(&vpa.metadata.namespace) && recommends(vpa, millis))
                .count()
        })
    }
}

fn recommends(vpa: &VerticalPodAutoscaler, millis: u64) -> bool {
    let recommendation = vpa.status.recommendation.iter();
    recommendation
        .flat_map(|recommendation| &recommendation.container_recommendations)
        .any(|container| container.target.get(Resource::Cpu) == Some(millis))
}

/// All nodes with their clients.
#[derive(Debug)]
pub(crate) struct Fleet<N> {
    nodes: Vec<N>,
    pub(crate) clients: Vec<ApiClient>,
}

impl<N: Node> Fleet<N> {
    /// Starts nodes in waves, like the rollout of a DaemonSet. The next wave starts when all nodes of the last one
    /// know their pods, one of which belongs to the workload on every node.
    pub(crate) async fn start(cluster: &ApiServer, shape: &Shape, wave: usize, calls: &Calls) -> anyhow::Result<Self> {
        let mut fleet = Self {
            nodes: Vec::new(),
            clients: Vec::new(),
        };
        while fleet.nodes.len() < shape.nodes {
            let begun = fleet.nodes.len();
            for number in begun..shape.nodes.min(begun + wave) {
                let client = calls.client(cluster, User::Agent).await;
                fleet.nodes.push(N::start(client.clone(), &node_name(number)));
                fleet.clients.push(client);
            }
            fleet.know(begun..fleet.nodes.len(), shape).await?;
        }
        Ok(fleet)
    }

    /// Waits until each node knows its pods.
    pub(crate) async fn knows(&self, shape: &Shape) -> anyhow::Result<()> {
        self.know(0..self.nodes.len(), shape).await
    }

    async fn know(&self, nodes: Range<usize>, shape: &Shape) -> anyhow::Result<()> {
        self.until(nodes, "know their pods", |_, node| node.pods() == shape.pods + 1)
            .await
    }

    /// Waits until each node knows that its VPAs recommend this much cpu.
    pub(crate) async fn heard(&self, shape: &Shape, millis: u64) -> anyhow::Result<()> {
        self.until(0..self.nodes.len(), "know their VPAs", |number, node| {
            let namespaces: Vec<_> = shape.namespaces_of(number).collect();
            node.recommended(&namespaces, millis) == namespaces.len()
        })
        .await
    }

    /// Waits until each node knows that the VPA of this namespace recommends this much cpu.
    pub(crate) async fn heard_of(&self, namespace: &str, millis: u64) -> anyhow::Result<()> {
        let namespaces = [namespace.to_owned()];
        self.until(0..self.nodes.len(), "know one VPA", |_, node| {
            node.recommended(&namespaces, millis) == 1
        })
        .await
    }

    /// Informs the nodes that do not wait by themselves that the API server is ready.
    pub(crate) fn is_ready(&self) {
        if !N::WAITS {
            for client in &self.clients {
                client.health.observe::<()>(&Ok(()));
            }
        }
    }

    async fn until(&self, nodes: Range<usize>, what: &str, holds: impl Fn(usize, &N) -> bool) -> anyhow::Result<()> {
        let started = Instant::now();
        for number in nodes {
            while !holds(number, &self.nodes[number]) {
                ensure!(
                    started.elapsed() < PATIENCE,
                    "not all nodes {what} after {PATIENCE:?}: {number} and {} later ones do not",
                    (number + 1..self.nodes.len())
                        .filter(|later| !holds(*later, &self.nodes[*later]))
                        .count()
                );
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Ok(())
    }
}
