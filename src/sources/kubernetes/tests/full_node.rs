//! What is read again after a change on a node with a thousand pods.

use std::convert::Infallible;

use axum::body::Body;
use futures::{StreamExt, stream};
use tokio::sync::watch;
use tokio::time::sleep_until;

use super::*;

const NAMESPACES: usize = 50;
const PODS: usize = 1000;

/// The namespace of the changes.
const OURS: &str = "n7";

/// The API server of a node with a thousand pods. A VPA targets the StatefulSet of each namespace. The object of a kind changes in
/// [`OURS`] once the kind is notified.
fn full(kinds: &[(&'static str, Arc<Notify>)]) -> ApiClient {
    let kinds = kinds.to_vec();
    let router = Router::new().fallback(async move |uri: Uri| {
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let namespace = path.split('/').skip_while(|part| *part != "namespaces").nth(1).unwrap_or(OURS);
        let kind = path.rsplit('/').next().unwrap_or_default();
        let [watches, has_changes] = [query.contains("watch"), namespace == OURS];
        let object = |namespace: &str, name: &str, version: &str| {
            let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "s", "controller": true});
            let metadata = json!({"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}"),
                "labels": {"version": version}, "ownerReferences": [owner]});
            let spec = match kind {
                "pods" => json!({"nodeName": "n", "containers": [{"name": "app"}]}),
                "resourcequotas" => json!({"hard": {"cpu": version}}),
                _ => json!({"targetRef": {"kind": "StatefulSet", "name": "web"},
                    "resourcePolicy": {"containerPolicies": [{"containerName": "app", "maxAllowed": {"cpu": version}}]}}),
            };
            json!({"metadata": metadata, "spec": spec})
        };
        let items = match kind {
            _ if query.contains("sendInitialEvents") => return Err(StatusCode::BAD_REQUEST),
            kind if watches => {
                let mut changes = kinds.iter().filter(|(known, _)| *known == kind && has_changes);
                let changes = changes.next().map(|(_, changes)| Arc::clone(changes));
                let event = json!({"type": "MODIFIED", "object": object(OURS, "o7", "2")}).to_string();
                // The answer begins at once, as a real one does.
                let lines = stream::once(async move {
                    match changes {
                        Some(changes) => changes.notified().await,
                        None => pending().await,
                    }
                    Ok::<_, Infallible>(event)
                });
                return Ok(Body::from_stream(lines.chain(stream::pending())));
            }
            "web" => {
                let set = json!({"metadata": {"name": "web", "namespace": namespace, "uid": "s"}, "spec": {}});
                return Ok(Body::from(set.to_string()));
            }
            "pods" => {
                let place = |number| (format!("n{}", number % NAMESPACES), format!("o{number}"));
                let pods = (0..PODS).map(place);
                pods.map(|(namespace, name)| object(&namespace, &name, "1")).collect()
            }
            "verticalpodautoscalers" | "resourcequotas" => json!([object(namespace, "o7", "1")]),
            _ => json!([]),
        };
        Ok(Body::from(format!(r#"{{"metadata":{{"resourceVersion":"2"}},"items":{items}}}"#)))
    });
    ApiClient::to(&router)
}

/// Waits for the next change, and returns the namespaces in which something has changed.
async fn changed(source: &mut KubernetesSource, changes: &mut watch::Receiver<BTreeSet<String>>) -> BTreeSet<String> {
    let due = source.next_due();
    tokio::select! {
        Ok(()) = changes.changed() => {}
        () = sleep_until(due) => {}
        Some(answer) = source.answers.join_next() => source.store(answer),
    }
    source.changes.borrow().clone()
}

#[tokio::test]
async fn a_change_costs_what_its_namespace_has() {
    let kinds = ["pods", "verticalpodautoscalers", "resourcequotas"].map(|kind| (kind, Arc::new(Notify::new())));
    let (mut source, _states) = KubernetesSource::new(full(&kinds), "n", None, patient());
    let mut changes = source.changes.subscribe();
    let is_complete = |view: &NodeView| {
        let has_all = view
            .namespaces
            .values()
            .filter(|known| known.quotas.len() == 1 && known.owners.len() == 1);
        view.pods().count() == PODS && has_all.count() == NAMESPACES && undecided(view).is_empty()
    };
    let mut before = NodeView::default();
    while !is_complete(&before) {
        changed(&mut source, &mut changes).await;
        before = source.update_view().unwrap_or_default();
    }
    for (kind, change) in kinds {
        change.notify_one();
        let mut read_again = BTreeSet::new();
        while read_again.is_empty() {
            read_again = changed(&mut source, &mut changes).await;
        }
        assert_eq!(read_again, BTreeSet::from([OURS.to_owned()]), "{kind}");
        let mut after = source.update_view().unwrap();
        while after.changed_since(&before).is_empty() {
            // The namespace was read a moment ago.
            sleep_until(source.next_due()).await;
            after = source.update_view().unwrap();
        }
        let others: Vec<_> = after.changed_since(&before).into_iter().collect();
        let [(namespace, [_, known])] = &others[..] else {
            panic!("{kind}: {} namespaces", others.len());
        };
        assert_eq!(
            (namespace.as_str(), known.pods.len()),
            (OURS, PODS / NAMESPACES),
            "{kind}"
        );
        let same = before.namespaces[OURS]
            .pods
            .iter()
            .filter(|pod| known.pods.iter().any(|other| Arc::ptr_eq(pod, other)));
        assert_eq!(same.count(), known.pods.len() - usize::from(kind == "pods"), "{kind}");
        before = after;
    }
}
