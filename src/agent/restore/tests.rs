//! What `restore` puts back, and what it leaves and tells.

use std::fs;
use std::future::pending;

use axum::Router;
use axum::http::{StatusCode, Uri};
use nix::sys::signal::{Signal, raise};
use serde_json::{Value, json};

use super::*;
use crate::cgroup::{PodEntry, PodPlace, uid_in_cgroup_name};
use crate::model::objects::PodId;
use crate::model::{Bytes, CgroupPath, MemoryLimit, Target};
use crate::plan::shrink::{Before, Trouble};
use crate::sources::kubernetes::KubernetesSource;
use crate::sources::parse_manifests;

/// An API server that sends a pod, and never the objects of its namespace.
fn half_silent() -> ApiClient {
    let router = Router::new().fallback(async |uri: Uri| {
        let query = uri.query().unwrap_or_default();
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true});
        let items = match uri.path() {
            _ if query.contains("sendInitialEvents") => return Err(StatusCode::BAD_REQUEST),
            path if query.contains("watch") || path.contains("/shop/") => pending::<Value>().await,
            "/api/v1/pods" => json!([{
                "metadata": {"name": "web-1", "namespace": "shop", "uid": "u", "ownerReferences": [owner]},
                "spec": {"nodeName": "n", "containers": [{"name": "app"}]},
            }]),
            _ => json!([]),
        };
        Ok(format!(r#"{{"metadata":{{"resourceVersion":"2"}},"items":{items}}}"#))
    });
    ApiClient::to(&router)
}

#[tokio::test]
async fn pods_and_a_hanging_namespace_each_have_time() {
    let wait = Duration::from_secs(2);
    let timing = Timing {
        first_view: wait,
        ..Timing::default()
    };
    let (source, states) = KubernetesSource::new(half_silent(), "n", None, timing);
    tokio::spawn(source.run(CancellationToken::new()));
    let sources = vec![states];
    let (view, _) = first_view(SourceMerge { sources }, wait, timing).await;
    assert_eq!(
        view.map(|view| view
            .namespaces
            .values()
            .map(|known| known.undecided_pods.len())
            .sum::<usize>()),
        Some(1)
    );
}

fn uid(number: u32) -> String {
    format!("0a1b2c3d-0000-4000-8000-00000000000{number}")
}

#[test]
fn a_marked_pod_without_a_source_is_named() {
    let entry = |number| PodEntry {
        place: PodPlace {
            uid: uid_in_cgroup_name(&uid(number)).unwrap(),
            qos: None,
        },
        containers: Vec::new(),
        path: CgroupPath::new(&format!("/kubepods/pod{}", uid(number))).unwrap(),
    };
    let id = |number, name: &str| PodId {
        uid: uid(number).into(),
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    };
    // Nothing names the third pod, and the fourth has ended.
    let scanned = [1, 2, 3].map(entry);
    let inventory = Inventory::assemble(&scanned, &[id(1, "web"), id(2, "db")], &[], &[]);
    let manifest = format!(
        "{{kind: Pod, metadata: {{name: web, namespace: shop, uid: {}}}, spec: {{containers: [{{name: app}}]}}}}",
        uid(1)
    );
    let view = parse_manifests("test", &manifest).unwrap().view;
    let marked = [1, 2, 3, 4].map(|number| (PodUid::from(uid(number)), MarkedLimits::new()));
    let left = left_alone(&BTreeMap::new(), &marked.into(), &inventory, &view.into());
    let why = "is left as it is: no source describes it any more";
    let nameless = format!("the pod with the UID {} {why}", uid(3));
    assert_eq!(left, [format!("shop/db {why}"), nameless]);
}

/// A pod in which containers of these names run.
fn bound<const N: usize>(names: [&str; N]) -> (NodeView, BoundPod) {
    let manifest = "{kind: Pod, metadata: {name: web, namespace: shop, uid: u}, spec: {containers: [{name: app}]}}";
    let view = parse_manifests("test", manifest).unwrap().view;
    let live = Arc::new(LivePod::on_files(names));
    let pod = BoundPod::new(&view.pods[0], &live).unwrap();
    (view.into(), pod)
}

#[tokio::test]
async fn a_signal_lets_no_further_pass_begin() {
    let root = tempfile::tempdir().unwrap();
    let (view, pod) = bound(["app"]);
    let node = Arc::new(Node::on_files(root.path()));
    let mut restorer = Restorer {
        capacity: capacity(&view, &node),
        node,
        audit: Audit::default(),
        saved: BTreeMap::new(),
        restored: BTreeSet::new(),
        results: Vec::new(),
        interrupted: interruption().unwrap().0,
    };
    for signal in [Signal::SIGHUP, Signal::SIGTERM] {
        raise(signal).unwrap();
    }
    restorer.interrupted.cancelled().await;
    let pods = [pod];
    let lowered = restorer.put_back(&pods, None, true).await;
    assert!(lowered.is_empty() && restorer.restored.is_empty());
    assert_eq!(restorer.results[0].error, INTERRUPTED);
}

#[tokio::test]
async fn the_first_harm_is_told_first() {
    let root = tempfile::tempdir().unwrap();
    for (name, kills) in [("app", "oom_kill 0"), ("side", "oom_kill 1")] {
        let directory = root.path().join("pod").join(name);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("memory.current"), "4096\n").unwrap();
        fs::write(directory.join("memory.events"), kills).unwrap();
    }
    let lowering = |name: &str| Lowering {
        target: Target::Container(name.into()),
        from: MemoryLimit::Max,
        to: Bytes::new(128 << 20),
        before: Before {
            most: Bytes::MAX,
            refaults: Bytes::MAX,
            ..Before::of_test()
        },
    };
    let (_, pod) = bound(["app", "side"]);
    let lowered = vec![(0, &pod, vec![lowering("app")]), (1, &pod, vec![lowering("side")])];
    let node = Arc::new(Node::on_files(root.path()));
    let first = verdicts(&node, lowered).next().await;
    let ((index, ..), verdict) = first.unwrap();
    let harm = Verdict::Trouble(Target::Container("side".into()), Trouble::Killed(1));
    assert_eq!((index, verdict), (1, harm), "the other one is still watched");
}

#[test]
fn a_restored_pod_has_no_burst() {
    let (_, pod) = bound(["app"]);
    let job = job_for(&pod, None);
    assert_eq!(job.targets.burst, Some(CpuBurst::ZERO));
    assert!(job.aligns_scopes && job.targets.lift_undeclared && job.targets.kubelet_unasked);
    let cause = job.cause.to_string();
    assert!(cause.ends_with("): vscaled restore"), "{cause}");
    assert_eq!(result(pod.live(), Err("busy".to_owned())).containers, ["app"]);
}
