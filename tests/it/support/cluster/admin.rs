//! Calls to the API server as admin, without kubectl: one run of kubectl costs more processor time than most tests.

use std::path::Path;
use std::thread;

use http::{Method, Request};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde_json::Value;

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
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    // Each caller sets its own timeout.
    config.default_retry = false;
    Client::try_from(config)
}

/// Blocks on a future, on a separate thread, because the caller's thread may not block.
fn blocking<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let run = || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(work)
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}
