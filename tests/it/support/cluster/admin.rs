//! Calls to the API server as admin, without kubectl: one run of kubectl costs more processor time than most tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::thread;

use http::{Method, Request};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// The event loop of all connections.
static CONNECTIONS: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
});

/// A client for each kubeconfig and the authority that it names: for a slow guest a handshake is dearer than most calls.
static CLIENTS: Mutex<BTreeMap<[String; 2], Client>> = Mutex::new(BTreeMap::new());

/// Creates or updates an object, like `kubectl apply --server-side`.
pub(super) fn apply(kubeconfig: &Path, object: &Value) -> Result<(), kube::Error> {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let types = object.types.as_ref().expect("an object has apiVersion and kind");
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types).unwrap());
    let how = PatchParams::apply("test").force();
    blocking(async {
        let client = client(kubeconfig).await?;
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let name = object.metadata.name.as_deref().expect("an object has a name");
        api.patch(name, &how, &Patch::Apply(&object)).await.map(drop)
    })
}

/// Sends a request for a path and returns the answer as text.
pub(super) fn request(
    kubeconfig: &Path,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<String, kube::Error> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let kind = match method {
        Method::PATCH => "application/strategic-merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", kind)
        .body(body.into_bytes())
        .unwrap();
    blocking(async { client(kubeconfig).await?.request_text(request).await })
}

async fn client(kubeconfig: &Path) -> Result<Client, kube::Error> {
    let text = fs::read_to_string(kubeconfig).unwrap();
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
    let authorities = clusters.filter_map(|cluster| cluster.certificate_authority.as_ref());
    let authority = authorities.map(|file| fs::read_to_string(file).unwrap()).collect();
    let key = [text, authority];
    let known = CLIENTS.lock().unwrap().get(&key).cloned();
    if let Some(client) = known {
        return Ok(client);
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    // Each caller sets its own timeout.
    config.default_retry = false;
    let client = Client::try_from(config)?;
    CLIENTS.lock().unwrap().insert(key, client.clone());
    Ok(client)
}

/// Blocks on a future, on a separate thread, because the caller's thread may not block.
fn blocking<T: Send>(work: impl Future<Output = T> + Send) -> T {
    thread::scope(|scope| scope.spawn(|| CONNECTIONS.block_on(work)).join().unwrap())
}
