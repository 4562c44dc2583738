//! The socket at which a kubelet serves its pods (KEP-4188). The pods are those of the API server, also while the agent
//! cannot reach it, and those of a test that only the kubelet has.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use prost::Message as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use vscaled::proto::kubelet::pods_server::{Pods, PodsServer};
use vscaled::proto::kubelet::{EventType, WatchPodsEvent, WatchPodsRequest, core};

use super::{ApiModel, Shared};

const SOCKET: &str = "kubelet.sock";

/// A kubelet's socket. Dropping the value closes it.
#[derive(Debug)]
pub(crate) struct PodsSocket {
    directory: TempDir,
    kubelet: KubeletPods,
    _server: AbortOnDropHandle<()>,
}

#[derive(Debug, Clone)]
struct KubeletPods {
    shared: Arc<Shared>,
    own: Arc<Mutex<Vec<Value>>>,
}

impl ApiModel {
    /// Opens the socket of the node's kubelet.
    pub(crate) fn pods_socket(&self) -> PodsSocket {
        let directory = tempfile::tempdir().unwrap();
        let kubelet = KubeletPods {
            shared: Arc::clone(&self.shared),
            own: Arc::default(),
        };
        let listener = UnixListener::bind(directory.path().join(SOCKET)).unwrap();
        let server = Server::builder().add_service(PodsServer::new(kubelet.clone()));
        let serving = async move {
            let connections = UnixListenerStream::new(listener);
            server.serve_with_incoming(connections).await.unwrap();
        };
        PodsSocket {
            directory,
            kubelet,
            _server: AbortOnDropHandle::new(tokio::spawn(serving)),
        }
    }
}

impl PodsSocket {
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join(SOCKET)
    }

    /// Adds a pod that the API server does not have.
    pub(crate) fn put_own(&self, pod: Value) {
        self.kubelet.own.lock().unwrap().push(pod);
        self.kubelet.shared.changed.send_modify(|_| {});
    }

    /// Removes the pods that the API server does not have.
    pub(crate) fn take_own(&self) {
        self.kubelet.own.lock().unwrap().clear();
        self.kubelet.shared.changed.send_modify(|_| {});
    }
}

impl KubeletPods {
    fn pods(&self) -> BTreeMap<String, Value> {
        let mut pods: Vec<Value> = self.shared.store().all("pods").cloned().collect();
        for pod in &mut pods {
            pod["metadata"]["annotations"]["kubernetes.io/config.source"] = json!("api");
        }
        pods.extend(self.own.lock().unwrap().iter().cloned());
        let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap().to_owned();
        pods.into_iter().map(|pod| (uid(&pod), pod)).collect()
    }

    /// Sends changes until the client disconnects.
    async fn send_changes(self, events: mpsc::Sender<Result<WatchPodsEvent, Status>>) -> Option<()> {
        let mut changed = self.shared.changed.subscribe();
        let mut told: BTreeMap<String, Value> = BTreeMap::new();
        let send = async |kind: EventType, pod: Vec<u8>| {
            let r#type = kind.into();
            events.send(Ok(WatchPodsEvent { r#type, pod })).await.ok()
        };
        for first in [true].into_iter().chain(std::iter::repeat(false)) {
            let pods = self.pods();
            for (uid, pod) in &pods {
                match told.get(uid) {
                    None => send(EventType::Added, encoded(pod)).await?,
                    Some(before) if before != pod => send(EventType::Modified, encoded(pod)).await?,
                    Some(_) => {}
                }
            }
            for (_, pod) in told.iter().filter(|(uid, _)| !pods.contains_key(*uid)) {
                // For a deleted pod, the kubelet promises these fields only.
                let (name, uid) = (&pod["metadata"]["name"], &pod["metadata"]["uid"]);
                let gone = json!({"metadata": {"name": name, "namespace": pod["metadata"]["namespace"], "uid": uid}});
                send(EventType::Deleted, encoded(&gone)).await?;
            }
            told = pods;
            if first {
                send(EventType::InitialSyncComplete, Vec::new()).await?;
            }
            changed.changed().await.ok()?;
        }
        None
    }
}

#[tonic::async_trait]
impl Pods for KubeletPods {
    type WatchPodsStream = ReceiverStream<Result<WatchPodsEvent, Status>>;

    async fn watch_pods(&self, _: Request<WatchPodsRequest>) -> Result<Response<Self::WatchPodsStream>, Status> {
        let (sender, receiver) = mpsc::channel(8);
        tokio::spawn(self.clone().send_changes(sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// A pod in the API's protobuf encoding.
fn encoded(pod: &Value) -> Vec<u8> {
    let mut pod = pod.clone();
    with_times(&mut pod);
    serde_json::from_value::<core::Pod>(pod).unwrap().encode_to_vec()
}

/// Converts times to their protobuf shape.
fn with_times(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(with_times),
        Value::Array(items) => items.iter_mut().for_each(with_times),
        Value::String(text) => {
            if let Ok(time) = text.parse::<jiff::Timestamp>() {
                *value = json!({"seconds": time.as_second(), "nanos": time.subsec_nanosecond()});
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
