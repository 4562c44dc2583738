//! What is told of, and what is asked for first.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, Uri};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::owners::{OwnerKey, Owners, fetch};
use super::view::{FirstPods, Missing, Namespace, objects_about};
use super::{KubernetesSource, PROBLEM_BYTES, within_room};
use crate::kubernetes::{ApiClient, ApiError, Call, Kind, Problem, Status, Timing, Verb};
use crate::model::objects::{Owner, OwnerKind, Pod, Shared, VerticalPodAutoscaler};
use crate::observe::log::LogFormat;
use crate::observe::log::tests::logged;
use crate::sources::{KnownObjects, NodeView, SourceState, Undecided, parse_manifests};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// With a first view that waits for all objects.
fn patient() -> Timing {
    Timing {
        first_view: HOUR,
        first_pause: Duration::from_millis(1),
        ..Timing::default()
    }
}

fn pod(owner: &str) -> Pod {
    let text = format!(
        "{{kind: Pod, metadata: {{name: web-1, namespace: shop, uid: u, ownerReferences: [{owner}]}}, \
         spec: {{containers: [{{name: app}}]}}}}"
    );
    Pod::clone(&parse_manifests("pod", &text).unwrap().view.pods[0])
}

fn owned_by(kind: &str, name: &str, uid: &str) -> String {
    format!("{{kind: {kind}, name: {name}, uid: {uid}, controller: true}}")
}

fn vpa(target: &str) -> Vec<Shared<VerticalPodAutoscaler>> {
    let text = format!(
        "{{kind: VerticalPodAutoscaler, metadata: {{name: v, namespace: shop}}, \
         spec: {{targetRef: {{kind: Deployment, name: {target}}}}}}}"
    );
    parse_manifests("vpa", &text).unwrap().view.vpas
}

fn key(kind: OwnerKind, name: &str, uid: &str) -> OwnerKey {
    OwnerKey {
        namespace: "shop".to_owned(),
        kind,
        name: name.to_owned(),
        uid: uid.to_owned(),
    }
}

fn workload(kind: &str, name: &str, owner: &str) -> Owner {
    let text = format!(
        "{{kind: {kind}, metadata: {{name: {name}, namespace: shop, ownerReferences: [{owner}]}}, spec: {{}}}}"
    );
    Owner::clone(&parse_manifests("owner", &text).unwrap().view.owners[0])
}

/// The ReplicaSet and the Deployment above the pod.
fn both() -> Owners {
    let mut owners = Owners::default();
    let set = workload("ReplicaSet", "web-5c", &owned_by("Deployment", "web", "d"));
    owners.store(key(OwnerKind::ReplicaSet, "web-5c", "r"), Ok(Some(set)), Instant::now());
    let deployment = workload("Deployment", "web", "");
    owners.store(
        key(OwnerKind::Deployment, "web", "d"),
        Ok(Some(deployment)),
        Instant::now(),
    );
    owners
}

/// By UID, the undecided pods of all namespaces.
fn undecided(view: &NodeView) -> BTreeMap<String, Undecided> {
    view.namespaces
        .values()
        .flat_map(|known| known.undecided_pods.clone())
        .collect()
}

/// The view of a source that has one.
fn view_of(state: &SourceState) -> &NodeView {
    state.view.as_ref().unwrap()
}

type Known = (Result<(), Undecided>, Option<OwnerKey>, bool);

/// What is known about the pod, and what is to be asked for: a workload, or what bounds the namespace.
fn of(pod: &Pod, namespace: Option<&Namespace>, owners: &Owners) -> Known {
    let mut missing = Missing::default();
    let known = objects_about(pod, namespace, owners, &mut missing);
    (known, missing.owners.pop_first(), missing.bounds)
}

const READY: Known = (Ok(()), None, false);
const NEEDS_VPAS: Known = (AWAITED, None, false);
const AWAITED: Result<(), Undecided> = Err(Undecided::Awaited);

#[test]
fn a_pod_waits_for_all_its_objects() {
    let pod = pod(&owned_by("ReplicaSet", "web-5c", "r"));
    assert_eq!(of(&pod, None, &both()), NEEDS_VPAS);
    let mut namespace = Namespace::default();
    assert_eq!(of(&pod, Some(&namespace), &both()), NEEDS_VPAS);
    namespace.vpas = Some(vpa("web"));
    let first = key(OwnerKind::ReplicaSet, "web-5c", "r");
    assert_eq!(
        of(&pod, Some(&namespace), &Owners::default()),
        (AWAITED, Some(first), false)
    );
    assert_eq!(of(&pod, Some(&namespace), &both()), (AWAITED, None, true));
    namespace.bounds = Some(Default::default());
    assert_eq!(of(&pod, Some(&namespace), &both()), READY);
}

#[test]
fn pods_that_come_or_change_hold_up_no_first_view() {
    let owned = |by: &str| pod(&owned_by("ReplicaSet", by, by));
    let now = Instant::now();
    let known = KnownObjects {
        pods: vec![Arc::new(owned("r"))],
        ..KnownObjects::default()
    };
    let first = FirstPods::new(&known.into(), now + HOUR);
    assert!(first.waits_for(&owned("r"), now));
    assert!(!first.waits_for(&owned("r"), now + HOUR));
    assert!(!first.waits_for(&owned("another"), now));
    let mut new = owned("r");
    new.metadata.uid = "new".to_owned();
    assert!(!first.waits_for(&new, now));
}

#[test]
fn no_more_is_asked_for_than_a_pod_needs() {
    let pod_of_set = pod(&owned_by("ReplicaSet", "web-5c", "r"));
    let without = Namespace {
        vpas: Some(Vec::new()),
        ..Namespace::default()
    };
    assert_eq!(of(&pod_of_set, Some(&without), &Owners::default()), READY);
    let others = Namespace {
        vpas: Some(vpa("other")),
        ..Namespace::default()
    };
    assert_eq!(of(&pod_of_set, Some(&others), &both()), READY);
    for bare in [pod(""), pod(&owned_by("Node", "n-1", "n"))] {
        assert_eq!(of(&bare, None, &Owners::default()), READY);
    }
}

#[test]
fn what_is_refused_is_not_absent() {
    let refused = |namespace: &Namespace, owners: &Owners| {
        let pod = pod(&owned_by("ReplicaSet", "web-5c", "r"));
        of(&pod, Some(namespace), owners).0 == Err(Undecided::Refused)
    };
    let mut namespace = Namespace {
        refused: true,
        ..Namespace::default()
    };
    assert!(refused(&namespace, &Owners::default()), "the VPAs");
    namespace.vpas = Some(vpa("web"));
    assert!(refused(&namespace, &both()), "the bounds");
    let mut owners = Owners::default();
    let call = Call::new(Verb::Get, Kind::new("apps", "v1", "replicasets"));
    let failed = ApiError::of(&call, Problem::Forbidden("a rule".to_owned()));
    owners.store(key(OwnerKind::ReplicaSet, "web-5c", "r"), Err(failed), Instant::now());
    namespace.refused = false;
    assert!(refused(&namespace, &owners), "the owner");
}

#[test]
fn a_workload_created_anew_is_another() {
    let pod = pod(&owned_by("ReplicaSet", "web-5c", "a-later-one"));
    let climb = both().climb(&pod.metadata, &mut BTreeSet::new());
    assert_eq!(climb, Err(key(OwnerKind::ReplicaSet, "web-5c", "a-later-one")));
}

#[tokio::test]
async fn an_outdated_cache_hides_no_new_workload() {
    let router = Router::new().fallback(async move |uri: Uri| {
        let uid = if uri.query().is_some() { "earlier" } else { "r" };
        json!({"metadata": {"name": "web-5c", "namespace": "shop", "uid": uid}, "spec": {}}).to_string()
    });
    let client = ApiClient::to(&router);
    for (uid, found) in [("r", Some("r")), ("gone", None)] {
        let read = fetch(&client, &key(OwnerKind::ReplicaSet, "web-5c", uid))
            .await
            .unwrap();
        assert_eq!(read.as_ref().map(|owner| owner.metadata.uid.as_str()), found);
    }
}

#[tokio::test]
async fn a_proxys_404_hides_no_workload() {
    const UNSERVED: &str = "404 page not found";
    for (answer, is_absent) in [(UNSERVED, false), (r#"{"kind": "Status", "reason": "NotFound"}"#, true)] {
        // An API server before 1.21 serves only the earlier version.
        let router = Router::new().fallback(async move |uri: Uri| {
            let is_served = uri.path().contains("/v1beta1/");
            (StatusCode::NOT_FOUND, if is_served { answer } else { UNSERVED })
        });
        let read = fetch(&ApiClient::to(&router), &key(OwnerKind::CronJob, "nightly", "c")).await;
        assert_eq!(matches!(read, Ok(None)), is_absent, "{answer}: {read:?}");
    }
}

#[test]
fn a_workload_is_read_again_after_a_day() {
    let set = key(OwnerKind::ReplicaSet, "web-5c", "r");
    let (this, none) = (BTreeSet::from([set.clone()]), BTreeSet::new());
    let (mut owners, now) = (Owners::default(), Instant::now());
    let hours = |hours: u64| now + Duration::from_secs(hours * 3600);
    assert_eq!(owners.take_due(&this, &none, now), std::slice::from_ref(&set));
    assert_eq!(owners.take_due(&this, &none, hours(99)), [], "a request is under way");
    let found = workload("ReplicaSet", "web-5c", "");
    owners.store(set.clone(), Ok(Some(found)), now);
    assert_eq!(owners.take_due(&none, &this, hours(11)), []);
    assert_eq!(owners.take_due(&none, &this, hours(37)), std::slice::from_ref(&set));
    let call = Call::new(Verb::Get, Kind::new("apps", "v1", "replicasets"));
    let failed = ApiError::of(&call, Problem::Timeout(Duration::from_secs(1)));
    owners.store(set.clone(), Err(failed), hours(37));
    let slot = &owners.slots[&set];
    assert!(slot.answer.is_some() && slot.problem.is_some(), "the last answer stays");
    assert_eq!(owners.take_due(&none, &none, hours(37)), []);
    assert!(owners.slots.is_empty(), "no pod has it any more");
}

#[test]
fn refused_credentials_say_nothing_of_a_workload() {
    let set = key(OwnerKind::ReplicaSet, "web-5c", "r");
    let call = Call::new(Verb::Get, Kind::new("apps", "v1", "replicasets"));
    for (code, refused) in [(401, false), (403, true), (503, false)] {
        let mut owners = Owners::default();
        let status = Status {
            code,
            ..Status::default()
        };
        let failed = ApiError::of(&call, Problem::Refused(status));
        owners.store(set.clone(), Err(failed), Instant::now());
        assert_eq!(owners.is_refused(&set), refused, "{code}");
    }
}

#[test]
fn a_refused_workload_is_logged_once() {
    let set = key(OwnerKind::ReplicaSet, "web-5c", "r");
    let call = Call::new(Verb::Get, Kind::new("apps", "v1", "replicasets"));
    let lines = logged(LogFormat::Text, "info", |_| {
        let mut owners = Owners::default();
        let timeout = || Problem::Timeout(Duration::from_secs(1));
        let forbidden = || Problem::Forbidden("a rule".to_owned());
        for problem in [timeout(), forbidden(), forbidden(), timeout()] {
            owners.store(set.clone(), Err(ApiError::of(&call, problem)), Instant::now());
        }
    });
    assert!(lines.lines().count() == 1 && lines.contains("a rule"), "{lines}");
}

#[test]
fn owner_chains_end_and_never_circle() {
    let top = |owners: &Owners, pod: &Pod| {
        let top = owners.climb(&pod.metadata, &mut BTreeSet::new()).unwrap();
        top.map(|(_, name)| name)
    };
    let mut owners = Owners::default();
    owners.store(key(OwnerKind::Job, "gone", "g"), Ok(None), Instant::now());
    assert_eq!(top(&owners, &pod(&owned_by("Job", "gone", "g"))), None);
    assert_eq!(top(&owners, &pod(&owned_by("Rollout", "x", "x"))), None);
    let own = workload("Job", "round", &owned_by("Job", "round", "o"));
    owners.store(key(OwnerKind::Job, "round", "o"), Ok(Some(own)), Instant::now());
    assert_eq!(
        top(&owners, &pod(&owned_by("Job", "round", "o"))).as_deref(),
        Some("round")
    );
    assert_eq!(
        top(&both(), &pod(&owned_by("ReplicaSet", "web-5c", "r"))).as_deref(),
        Some("web")
    );
}

#[test]
fn local_workloads_are_named_before_read() {
    let pods = [Arc::new(pod(&owned_by("ReplicaSet", "web-5c", "r")))];
    let local = Owners::default().local(&pods).unwrap();
    assert_eq!(local.iter().collect::<Vec<_>>(), ["web", "web-5c"]);
    let mut adopted = Owners::default();
    let set = workload("ReplicaSet", "web-5c", &owned_by("Deployment", "another", "d"));
    adopted.store(key(OwnerKind::ReplicaSet, "web-5c", "r"), Ok(Some(set)), Instant::now());
    assert!(adopted.local(&pods).unwrap().contains("another"));
    assert_eq!(adopted.local(&[Arc::new(pod(""))]), None);
}

/// An API server with a pod in each of two namespaces and without Nodes. It answers lists of the namespace `shop` with this code.
fn half_broken(code: StatusCode) -> ApiClient {
    let pod = |namespace: &str| {
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5c", "uid": "r", "controller": true});
        json!({
            "metadata": {"name": "web-1", "namespace": namespace, "uid": namespace, "ownerReferences": [owner]},
            "spec": {"nodeName": "n", "containers": [{"name": "app"}]},
        })
    };
    let pods = json!([pod("shop"), pod("bank")]);
    let router = Router::new().fallback(move |uri: Uri| {
        let pods = pods.clone();
        async move {
            let query = uri.query().unwrap_or_default();
            let items = match uri.path() {
                _ if query.contains("sendInitialEvents") => return Err(StatusCode::BAD_REQUEST),
                _ if query.contains("watch") => pending::<Value>().await,
                "/api/v1/pods" => pods,
                path if path.contains("/shop/") => return Err(code),
                _ => json!([]),
            };
            Ok(format!(r#"{{"metadata":{{"resourceVersion":"2"}},"items":{items}}}"#))
        }
    });
    ApiClient::to(&router)
}

#[tokio::test]
async fn a_list_that_fails_delays_its_own_pods() {
    let timing = Timing {
        first_view: Duration::from_millis(20),
        ..Timing::default()
    };
    let (source, mut states) = KubernetesSource::new(half_broken(StatusCode::INTERNAL_SERVER_ERROR), "n", None, timing);
    tokio::spawn(source.run(CancellationToken::new()));
    let of_shop = BTreeMap::from([("shop".to_owned(), Undecided::Awaited)]);
    let state = states
        .wait_for(|state| state.view.as_ref().is_some_and(|view| undecided(view) == of_shop))
        .await
        .unwrap();
    assert_eq!(
        view_of(&state).pods().count(),
        2,
        "both are known, and one is decided about"
    );
}

#[tokio::test]
async fn a_refused_list_leaves_its_pods_undecided() {
    let (source, mut states) = KubernetesSource::new(half_broken(StatusCode::FORBIDDEN), "n", None, patient());
    tokio::spawn(source.run(CancellationToken::new()));
    let state = states.wait_for(|state| state.view.is_some()).await.unwrap();
    let of_shop = BTreeMap::from([("shop".to_owned(), Undecided::Refused)]);
    assert_eq!(undecided(view_of(&state)), of_shop);
    assert_eq!(view_of(&state).pods().count(), 2);
    let names_list = |problem: &String| problem.contains("verticalpodautoscalers") && problem.contains("403");
    assert!(state.problems.iter().any(names_list), "{:?}", state.problems);
}

#[tokio::test]
async fn a_proxys_404_is_no_empty_list() {
    let asked = Arc::new(AtomicUsize::new(0));
    let router = Router::new().fallback(async move |uri: Uri| {
        let query = uri.query().unwrap_or_default();
        let items = match uri.path() {
            _ if query.contains("sendInitialEvents") => return Err(StatusCode::BAD_REQUEST),
            _ if query.contains("watch") => pending::<Value>().await,
            "/api/v1/pods" if asked.fetch_add(1, Ordering::Relaxed) < 6 => return Err(StatusCode::NOT_FOUND),
            "/api/v1/pods" => json!([{
                "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
                "spec": {"nodeName": "n", "containers": [{"name": "app"}]},
            }]),
            // Of Nodes.
            _ => json!([]),
        };
        Ok(format!(r#"{{"metadata":{{"resourceVersion":"2"}},"items":{items}}}"#))
    });
    let timing = Timing {
        first_pause: Duration::from_millis(1),
        ..Timing::default()
    };
    let (source, mut states) = KubernetesSource::new(ApiClient::to(&router), "n", None, timing);
    tokio::spawn(source.run(CancellationToken::new()));
    let state = states.wait_for(|state| state.view.is_some()).await.unwrap();
    assert_eq!(view_of(&state).pods().count(), 1);
}

#[tokio::test]
async fn an_adopted_pod_is_in_the_first_view() {
    // The pod gets another owner once the objects of its namespace are asked for. They never come.
    let asked = Arc::new(Notify::new());
    let router = Router::new().fallback(async move |uri: Uri| {
        let query = uri.query().unwrap_or_default();
        let pod = |owner: &str| {
            let owner =
                json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true});
            json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": "u", "ownerReferences": [owner]},
                "spec": {"nodeName": "n", "containers": [{"name": "app"}]},
            })
        };
        let items = match uri.path() {
            _ if query.contains("sendInitialEvents") => return Err(StatusCode::BAD_REQUEST),
            "/api/v1/pods" if query.contains("watch") => {
                asked.notified().await;
                return Ok(json!({"type": "MODIFIED", "object": pod("another")}).to_string());
            }
            "/api/v1/pods" => json!([pod("r")]),
            path if path.contains("/shop/") => {
                asked.notify_one();
                pending().await
            }
            // Of Nodes. A watch of these must not begin before that of the pods.
            _ => return Err(StatusCode::FORBIDDEN),
        };
        Ok(format!(r#"{{"metadata":{{"resourceVersion":"2"}},"items":{items}}}"#))
    });
    let (source, mut states) = KubernetesSource::new(ApiClient::to(&router), "n", None, patient());
    tokio::spawn(source.run(CancellationToken::new()));
    let state = states.wait_for(|state| state.view.is_some()).await.unwrap();
    let adopted = BTreeMap::from([("u".to_owned(), Undecided::Awaited)]);
    assert_eq!(undecided(view_of(&state)), adopted);
    assert_eq!(view_of(&state).pods().count(), 1);
}

#[derive(Debug, Clone, Copy)]
enum Nodes {
    Late,
    Refused,
    Silent,
}

/// The pods of the node that have not ended.
const HERE: &str = "fieldSelector=spec.nodeName%3Dn%2Cstatus.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";

/// The first view of a node with one pod, which needs no other object. It waits so long for the Node.
async fn first_view(nodes: Nodes, first_view: Duration) -> NodeView {
    let router = Router::new().fallback(async move |uri: Uri| {
        let query = uri.query().unwrap_or_default();
        let items = match (uri.path(), nodes) {
            _ if query.contains("sendInitialEvents") => return Err(StatusCode::BAD_REQUEST),
            _ if query.contains("watch") => pending::<Value>().await,
            ("/api/v1/pods", _) if query.contains(HERE) => json!([{
                "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
                "spec": {"nodeName": "n", "containers": [{"name": "app"}]},
            }]),
            ("/api/v1/nodes", Nodes::Late) if query.contains("fieldSelector=metadata.name%3Dn") => {
                sleep(Duration::from_millis(100)).await;
                json!([{"metadata": {"name": "n"}}])
            }
            (_, Nodes::Late) => json!([]),
            (_, Nodes::Refused) => return Err(StatusCode::FORBIDDEN),
            (_, Nodes::Silent) => pending().await,
        };
        Ok(format!(r#"{{"metadata":{{"resourceVersion":"2"}},"items":{items}}}"#))
    });
    let timing = Timing {
        first_view,
        first_pause: Duration::from_millis(1),
        ..Timing::default()
    };
    let (source, mut states) = KubernetesSource::new(ApiClient::to(&router), "n", None, timing);
    tokio::spawn(source.run(CancellationToken::new()));
    let state = states.wait_for(|state| state.view.is_some()).await.unwrap();
    view_of(&state).clone()
}

#[tokio::test]
async fn the_first_view_waits_for_the_node() {
    let view = first_view(Nodes::Late, HOUR).await;
    assert!(view.node.is_some() && view.pods().count() == 1);
}

#[tokio::test]
async fn nodes_that_never_come_delay_no_first_view() {
    for (nodes, wait) in [(Nodes::Refused, HOUR), (Nodes::Silent, Duration::from_millis(20))] {
        let view = first_view(nodes, wait).await;
        assert!(view.node.is_none() && view.pods().count() == 1, "{nodes:?}");
    }
}

#[tokio::test]
async fn a_first_view_has_all_listed_pods() {
    let timing = Timing {
        first_view: Duration::ZERO,
        ..Timing::default()
    };
    let client = half_broken(StatusCode::INTERNAL_SERVER_ERROR);
    let (mut source, _states) = KubernetesSource::new(client, "n", None, timing);
    let mut changes = source.changes.subscribe();
    while !source.pods.read(|pods| pods.known) {
        changes.changed().await.unwrap();
    }
    // Another list wakes the source once the list of pods has ended and before it is notified.
    source.changes.send_modify(BTreeSet::clear);
    assert_eq!(source.update_view().unwrap().pods().count(), 2);
}

#[tokio::test]
async fn vpas_of_other_workloads_count_for_a_rest() {
    let router = Router::new().fallback(async move |uri: Uri| {
        let query = uri.query().unwrap_or_default();
        let vpa = |number: u64| {
            let metadata = json!({"name": format!("v{number}"), "namespace": "shop", "uid": format!("v{number}")});
            json!({"metadata": metadata, "spec": {"targetRef": {"kind": "StatefulSet", "name": "other"}}})
        };
        let items = match uri.path() {
            _ if query.contains("sendInitialEvents") => return Err(StatusCode::BAD_REQUEST),
            _ if query.contains("watch") => pending::<Value>().await,
            path if path.ends_with("/verticalpodautoscalers") => (0..40).map(vpa).collect(),
            _ => json!([]),
        };
        Ok(format!(r#"{{"metadata":{{"resourceVersion":"2"}},"items":{items}}}"#))
    });
    let (mut source, _states) = KubernetesSource::new(ApiClient::to(&router), "n", None, patient());
    let (mut changes, now) = (source.changes.subscribe(), Instant::now());
    let pods = vec![Arc::new(pod(&owned_by("StatefulSet", "web", "s")))];
    source.update_namespace("shop".to_owned(), pods.clone(), now);
    while !source.namespaces["shop"].vpas.read(|vpas| vpas.known) {
        changes.changed().await.unwrap();
    }
    source.update_namespace("shop".to_owned(), pods, now);
    assert!(source.view.namespaces["shop"].vpas.is_empty());
    assert_eq!(source.rests.until("shop"), Some(now + Duration::from_millis(2)));
}

#[tokio::test]
async fn a_node_name_without_node_is_a_problem() {
    let client = half_broken(StatusCode::INTERNAL_SERVER_ERROR);
    let (source, mut states) = KubernetesSource::new(client, "n", None, Timing::default());
    tokio::spawn(source.run(CancellationToken::new()));
    let named = |problems: &[String]| {
        problems
            .iter()
            .any(|problem| problem.contains("no Node n: set nodeName"))
    };
    assert!(states.wait_for(|state| named(&state.problems)).await.is_ok());
}

#[test]
fn problems_of_a_list_leave_room_for_others() {
    let list = |name: &str, problems: usize| vec![format!("{name}{}", "x".repeat(PROBLEM_BYTES / 8)); problems];
    let kept = within_room(vec![list("a", 20), list("b", 2), vec!["c".to_owned()]]);
    let begins: String = kept.iter().filter_map(|problem| problem.chars().next()).collect();
    assert_eq!(begins, "abcabaaa(");
    assert!(kept.concat().len() < PROBLEM_BYTES && kept[8].contains("15 more"));
    let few = vec![list("a", 2), list("b", 1)];
    assert_eq!(within_room(few.clone()), few.concat(), "in their order");
}

mod full_node;
mod one_pod;
