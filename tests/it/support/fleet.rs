//! The requests of many agents to an API server: the agents' own code for following objects, many times in one
//! process.

use std::path::PathBuf;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use vscaled::kubernetes::metrics::ApiMetrics;
use vscaled::kubernetes::{ApiClient, Timing};
use vscaled::sources::SourceState;
use vscaled::sources::kubernetes::KubernetesSource;

use super::cluster::{ApiServer, User};

/// Counters of the calls of all agents.
#[derive(Debug)]
pub(crate) struct Calls {
    registry: Registry,
    counted: ApiMetrics,
}

impl Calls {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let counted = ApiMetrics::register(&mut registry);
        Self { registry, counted }
    }

    /// A client with its own connections.
    pub(crate) async fn client(&self, cluster: &ApiServer, user: User) -> ApiClient {
        self.connect(cluster.kubeconfig(user)).await
    }

    pub(crate) async fn connect(&self, kubeconfig: PathBuf) -> ApiClient {
        let client = ApiClient::connect(Some(&kubeconfig), self.counted.clone());
        client.await.unwrap()
    }

    /// The number of answers: all, and those with an error or a broken connection.
    pub(crate) fn answered(&self) -> [u64; 2] {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let calls = text.lines().filter(|line| line.starts_with("api_calls_total{"));
        let mut answered = [0, 0];
        for line in calls {
            let count: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            answered[0] += count;
            answered[1] += if line.contains("code=\"2") { 0 } else { count };
        }
        answered
    }
}

/// An agent's source of pods and recommendations.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) states: watch::Receiver<Arc<SourceState>>,
    stop: CancellationToken,
    _end: DropGuard,
}

impl Local {
    /// Starts a source that probes whether the API server is ready during an outage, as an agent does.
    pub(crate) fn start(client: ApiClient, name: &str, timing: Timing) -> Self {
        let probing = client.clone();
        let local = Self::without_probes(client, name, timing);
        probing.keep_probing(local.stop.clone());
        local
    }

    /// Starts a source that does not probe.
    pub(crate) fn without_probes(client: ApiClient, name: &str, timing: Timing) -> Self {
        let (source, states) = KubernetesSource::new(client, name, None, timing);
        let stop = CancellationToken::new();
        tokio::spawn(source.run(stop.clone()));
        let _end = stop.clone().drop_guard();
        Self { states, stop, _end }
    }
}
