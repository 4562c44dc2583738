//! What an API server says about the objects of one pod.

use super::*;

/// An API server with a pod of the StatefulSet `web`, which a VPA and the last of the HPAs target. It answers lists of quotas with this
/// code. At a notification another StatefulSet adopts the pod, of which it says nothing.
fn one_pod(other_hpas: u32, quotas: StatusCode, adopts: &Arc<Notify>) -> ApiClient {
    let adopts = Arc::clone(adopts);
    let router = Router::new().fallback(async move |uri: Uri| {
        let query = uri.query().unwrap_or_default();
        let pod = |owner: &str| {
            let owner =
                json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "uid": "s", "controller": true});
            json!({
                "metadata": {"name": "web-0", "namespace": "shop", "uid": "u", "ownerReferences": [owner]},
                "spec": {"nodeName": "n", "containers": [{"name": "app"}]},
            })
        };
        let target = json!({"kind": "StatefulSet", "name": "web"});
        let items = match uri.path() {
            _ if query.contains("sendInitialEvents") => return Err(StatusCode::BAD_REQUEST),
            "/api/v1/pods" if query.contains("watch") => {
                adopts.notified().await;
                return Ok(json!({"type": "MODIFIED", "object": pod("another")}).to_string());
            }
            _ if query.contains("watch") => pending::<Value>().await,
            "/api/v1/pods" => json!([pod("web")]),
            path if path.ends_with("/statefulsets/web") => {
                let set = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "s"}, "spec": {}});
                return Ok(set.to_string());
            }
            path if path.contains("/statefulsets/") => pending().await,
            path if path.ends_with("/verticalpodautoscalers") => {
                json!([{"metadata": {"name": "web", "namespace": "shop"}, "spec": {"targetRef": target}}])
            }
            path if path.ends_with("/horizontalpodautoscalers") => {
                let names = (0..other_hpas).map(|number| number.to_string()).chain(["web".to_owned()]);
                let target = |name| json!({"apiVersion": "x".repeat(8000), "kind": "StatefulSet", "name": name});
                let hpa = |name: String| {
                    json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"scaleTargetRef": target(name)}})
                };
                names.map(hpa).collect()
            }
            path if path.ends_with("/resourcequotas") && quotas != StatusCode::OK => return Err(quotas),
            // Of Nodes, LimitRanges and ResourceQuotas.
            _ => json!([]),
        };
        Ok(format!(r#"{{"metadata":{{"resourceVersion":"2"}},"items":{items}}}"#))
    });
    ApiClient::to(&router)
}

#[tokio::test]
async fn refused_quotas_hold_up_no_decision() {
    let (source, mut states) =
        KubernetesSource::new(one_pod(0, StatusCode::FORBIDDEN, &Arc::default()), "n", None, patient());
    tokio::spawn(source.run(CancellationToken::new()));
    let state = states.wait_for(|state| state.view.is_some()).await.unwrap();
    let vpas = view_of(&state).namespaces.values().flat_map(|known| &known.vpas);
    assert_eq!((view_of(&state).pods().count(), vpas.count()), (1, 1));
    assert!(undecided(view_of(&state)).is_empty());
}

#[tokio::test]
async fn without_quotas_there_is_no_decision() {
    let timing = Timing {
        first_view: Duration::from_millis(20),
        ..Timing::default()
    };
    let client = one_pod(0, StatusCode::INTERNAL_SERVER_ERROR, &Arc::default());
    let (source, mut states) = KubernetesSource::new(client, "n", None, timing);
    tokio::spawn(source.run(CancellationToken::new()));
    let state = states.wait_for(|state| state.view.is_some()).await.unwrap();
    assert!(undecided(view_of(&state)).contains_key("u"));
    assert!(view_of(&state).namespaces.values().all(|known| known.vpas.is_empty()));
}

#[tokio::test]
async fn a_pod_adopted_later_is_undecided() {
    let adopts = Arc::new(Notify::new());
    let (source, mut states) = KubernetesSource::new(one_pod(0, StatusCode::OK, &adopts), "n", None, patient());
    tokio::spawn(source.run(CancellationToken::new()));
    let first = states.wait_for(|state| state.view.is_some()).await.unwrap().clone();
    assert!(undecided(view_of(&first)).is_empty());
    adopts.notify_one();
    let known = states.wait_for(|state| {
        state
            .view
            .as_ref()
            .is_some_and(|view| undecided(view).contains_key("u"))
    });
    assert_eq!(view_of(&known.await.unwrap()).pods().count(), 1);
}

#[tokio::test]
async fn a_local_pods_autoscaler_has_room_among_many() {
    // So many objects of 8 kB have no room.
    let (source, mut states) =
        KubernetesSource::new(one_pod(600, StatusCode::OK, &Arc::default()), "n", None, patient());
    tokio::spawn(source.run(CancellationToken::new()));
    let state = states.wait_for(|state| state.view.is_some()).await.unwrap();
    let hpas = view_of(&state).namespaces.values().flat_map(|known| &known.hpas);
    let targets = hpas.map(|hpa| hpa.spec.scale_target_ref.name.as_str());
    let targets: Vec<_> = targets.collect();
    assert!((200..600).contains(&targets.len()), "{}", targets.len());
    assert!(targets.contains(&"web"));
}

/// What the API server says of Nodes.

#[tokio::test]
async fn a_namespace_outlasts_its_pods_for_a_while() {
    let client = one_pod(0, StatusCode::OK, &Arc::default());
    let (mut source, _states) = KubernetesSource::new(client, "n", None, Timing::default());
    let (start, own) = (Instant::now(), Arc::new(pod(&owned_by("StatefulSet", "web", "s"))));
    for (pods, seconds, follows) in [
        (vec![own], 0, true),
        (vec![], 1, true),
        (vec![], 300, true),
        (vec![], 301, false),
    ] {
        let now = start + Duration::from_secs(seconds);
        source.update_namespace("shop".to_owned(), pods, now);
        assert_eq!(source.namespaces.contains_key("shop"), follows, "{seconds}");
        let due = source.namespaces.get("shop").map(|lists| lists.due);
        let ends = start + Duration::from_secs(301);
        assert!(!follows || seconds == 0 || due == Some(ends), "{seconds}");
    }
}
