//! Nodes of one kind, all in this process.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use vscaled::kubernetes::{ApiClient, Followed, Follower, Place, Timing, follow};
use vscaled::model::Resource;
use vscaled::model::objects::{HorizontalPodAutoscaler, LimitRange, Pod, VerticalPodAutoscaler};

use super::objects::{Shape, node_name};
use crate::support::cluster::{ApiServer, User};
use crate::support::fleet::{Calls, Local};

/// One node, as the API server sees it.
pub(crate) trait Node: Sized {
    /// Begins to follow what it follows.
    fn start(client: ApiClient, name: &str) -> Self;
    /// How many pods it knows.
    fn pods(&self) -> usize;
    /// Of its namespaces' VPAs, how many recommend so much cpu.
    fn recommended(&self, namespaces: &[String], millis: u64) -> usize;
}

/// What the agent does.
impl Node for Local {
    fn start(client: ApiClient, name: &str) -> Self {
        Self::start(client, name, Timing::default())
    }

    fn pods(&self) -> usize {
        self.states.borrow().view.pods.len()
    }

    fn recommended(&self, namespaces: &[String], millis: u64) -> usize {
        let state = self.states.borrow();
        let vpas = state.view.vpas.iter();
        vpas.filter(|vpa| namespaces.contains(&vpa.metadata.namespace) && recommends(vpa, millis))
            .count()
    }
}

/// The agent without the pauses and the scatter by which agents come back one after the other.
#[derive(Debug)]
pub(crate) struct Hasty(Local);

impl Node for Hasty {
    fn start(client: ApiClient, name: &str) -> Self {
        let at_once = Duration::from_millis(20);
        let timing = Timing {
            first_pause: at_once,
            longest_pause: at_once,
            ..Timing::default()
        };
        Self(Local::start(client, name, timing))
    }

    fn pods(&self) -> usize {
        self.0.pods()
    }

    fn recommended(&self, namespaces: &[String], millis: u64) -> usize {
        self.0.recommended(namespaces, millis)
    }
}

/// What an agent with informers does.
#[derive(Debug)]
pub(crate) struct Everything {
    pods: Follower<Pod>,
    vpas: Follower<VerticalPodAutoscaler>,
    _others: (Follower<LimitRange>, Follower<HorizontalPodAutoscaler>),
}

impl Node for Everything {
    fn start(client: ApiClient, name: &str) -> Self {
        let everywhere = || Place {
            namespace: None,
            field_selector: String::new(),
        };
        let here = Place {
            field_selector: format!("spec.nodeName={name}"),
            ..everywhere()
        };
        let (timing, changed) = (Timing::default(), Arc::new(Notify::new()));
        Self {
            pods: follow(client.clone(), here, timing, Arc::clone(&changed)),
            vpas: follow(client.clone(), everywhere(), timing, Arc::clone(&changed)),
            _others: (
                follow(client.clone(), everywhere(), timing, Arc::clone(&changed)),
                follow(client, everywhere(), timing, changed),
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

/// All nodes.
#[derive(Debug)]
pub(crate) struct Fleet<N>(Vec<N>);

impl<N: Node> Fleet<N> {
    pub(crate) async fn start(cluster: &ApiServer, shape: &Shape, calls: &Calls) -> Self {
        let mut nodes = Vec::new();
        for number in 0..shape.nodes {
            nodes.push(N::start(calls.client(cluster, User::Agent).await, &node_name(number)));
        }
        Self(nodes)
    }

    /// Waits until each node knows its pods, one of which belongs to what runs everywhere.
    pub(crate) async fn knows(&self, shape: &Shape) {
        self.until(|_, node| node.pods() == shape.pods + 1).await;
    }

    /// Waits until each node knows that its VPAs recommend so much cpu.
    pub(crate) async fn heard(&self, shape: &Shape, millis: u64) {
        self.until(|number, node| {
            let namespaces: Vec<_> = shape.namespaces_of(number).collect();
            node.recommended(&namespaces, millis) == namespaces.len()
        })
        .await;
    }

    /// Waits until each node knows that the VPA of this namespace recommends so much cpu.
    pub(crate) async fn heard_of(&self, namespace: &str, millis: u64) {
        let namespaces = [namespace.to_owned()];
        self.until(|_, node| node.recommended(&namespaces, millis) == 1).await;
    }

    async fn until(&self, holds: impl Fn(usize, &N) -> bool) {
        for (number, node) in self.0.iter().enumerate() {
            while !holds(number, node) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}
