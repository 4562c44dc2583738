//! What `vscalectl decide` lets pass, a real API server accepts (`dryRun=All`): the same made-up pods, in a namespace each with
//! its LimitRanges and quotas. What it skips because of a quota, the API server refuses.

use fastrand::Rng;
use http::Method;
use serde_json::{Map, Value, json};

use super::{Case, ours, seed};
use crate::support::cluster::{ApiServer, Release, User};

const PODS: usize = 150;

/// The names of amounts in a quota.
const COUNTED: [&str; 6] = [
    "cpu",
    "memory",
    "requests.cpu",
    "requests.memory",
    "limits.cpu",
    "limits.memory",
];

/// What quotas tell pods apart by.
fn classify(pod: &mut Value, random: &mut Rng) {
    if random.bool() {
        pod["spec"]["priorityClassName"] = "high".into();
    }
    if random.bool() {
        pod["spec"]["activeDeadlineSeconds"] = 90_000.into();
    }
    let mut term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}});
    match random.u8(..4) {
        0 => return,
        1 => term["namespaces"] = json!(["other"]),
        2 => term["namespaceSelector"] = json!({}),
        _ => {}
    }
    let [affinity, anti] = ["podAffinity", "podAntiAffinity"];
    let (kind, rule, term) = match random.bool() {
        true => (affinity, "requiredDuringSchedulingIgnoredDuringExecution", term),
        false => (
            anti,
            "preferredDuringSchedulingIgnoredDuringExecution",
            json!({"weight": 1, "podAffinityTerm": term}),
        ),
    };
    pod["spec"]["affinity"] = json!({kind: {rule: [term]}});
}

/// A quota as its controller keeps it, or as it is before that has counted everything.
fn quota(random: &mut Rng, name: &str) -> Value {
    let scopes = [
        "NotBestEffort",
        "Terminating",
        "NotTerminating",
        "PriorityClass",
        "CrossNamespacePodAffinity",
    ];
    let operator = ["In", "NotIn"][random.usize(..2)];
    let mut spec = match random.usize(..10) {
        scope @ ..5 => json!({"scopes": [scopes[scope]]}),
        5 => json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": operator, "values": ["high"]}]}}),
        _ => json!({}),
    };
    let used = super::RESOURCES.map(|resource| super::amount(random, resource) * 2);
    let (mut hard, mut counted) = (Map::new(), Map::new());
    for key in COUNTED {
        if random.u8(..3) != 0 {
            continue;
        }
        let index = usize::from(key.ends_with("memory"));
        let left = [0, 1, super::amount(random, super::RESOURCES[index]) * 2][random.usize(..3)];
        let quantity = |amount| super::quantity(super::RESOURCES[index], amount);
        hard.insert(key.to_owned(), quantity(used[index] + left));
        counted.insert(key.to_owned(), quantity(used[index]));
    }
    spec["hard"] = hard.clone().into();
    let status = match random.u8(..10) {
        0 => json!({"hard": hard}),
        _ => json!({"hard": hard, "used": counted}),
    };
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec, "status": status})
}

/// Creates the case's objects as the API server keeps them, and takes over what it made of them.
fn create(cluster: &ApiServer, case: &mut Case, random: &mut Rng) {
    let namespace = case.pod["metadata"]["namespace"].as_str().unwrap().to_owned();
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let post = |path: &str, object: &Value| {
        cluster.request_as(&cluster.kubeconfig(User::Admin), Method::POST, path, Some(object))
    };
    post(
        "/api/v1/namespaces",
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
    )
    .unwrap();
    let mut status = case.pod["status"].clone();
    for (index, container) in case.pod["spec"]["containers"].as_array().unwrap().iter().enumerate() {
        let of_container = &mut status["containerStatuses"][index];
        of_container["resources"] = container["resources"].clone();
        of_container["state"] = json!({"running": {"startedAt": super::before(60)}});
    }
    classify(&mut case.pod, random);
    // A pod is there before the LimitRanges and quotas, which it may break.
    post(&pods, &case.pod).unwrap();
    cluster.put_status(&pods, "p", &status);
    case.pod = cluster.get(&format!("{pods}/p"));
    case.limit_ranges.retain_mut(|range| {
        if random.f64() < 0.3 {
            let resource = super::RESOURCES[random.usize(..2)];
            range["spec"]["limits"][0]["maxLimitRequestRatio"] = json!({resource: "2.5"});
        }
        // Of those that contradict themselves, the API server wants none. It fills in defaults.
        let kept = post(&format!("/api/v1/namespaces/{namespace}/limitranges"), range);
        kept.is_ok_and(|kept| {
            *range = serde_json::from_str(&kept).unwrap();
            true
        })
    });
    let quotas = format!("/api/v1/namespaces/{namespace}/resourcequotas");
    let drawn = ["q0", "q1"].map(|name| quota(random, name));
    case.quotas = drawn[..random.usize(..3)].to_vec();
    for quota in &mut case.quotas {
        let name = quota["metadata"]["name"].as_str().unwrap().to_owned();
        let status = quota["status"].clone();
        post(&quotas, quota).unwrap();
        cluster.put_status(&quotas, &name, &status);
        *quota = cluster.get(&format!("{quotas}/{name}"));
        // A list has no kinds of its own.
        (quota["apiVersion"], quota["kind"]) = ("v1".into(), "ResourceQuota".into());
    }
}

/// Waits until the API server's admission knows all quotas, and the class of some pods. It learns of objects of one kind in the order in
/// which they were written, and asks etcd itself only in a namespace in which it knew none when the first pod came.
fn is_followed_by_admission(cluster: &ApiServer, namespace: &str) {
    let (admin, core) = (cluster.kubeconfig(User::Admin), "/api/v1/namespaces");
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}));
    let container = json!({"name": "c", "image": "none", "resources": {"requests": {"cpu": "1m"}}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace},
        "spec": {"priorityClassName": "high", "containers": [container]},
    });
    let path = format!("{core}/{namespace}/pods?dryRun=All");
    let post = || cluster.request_as(&admin, Method::POST, &path, Some(&pod));
    cluster.wait_for("pods of the class", || post().is_ok());
    let (hard, quotas) = (json!({"pods": "0"}), format!("{core}/{namespace}/resourcequotas"));
    let last =
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "last"}, "spec": {"hard": hard}});
    cluster.send(Method::POST, &quotas, &last);
    cluster.put_status(&quotas, "last", &json!({"hard": hard, "used": {"pods": "0"}}));
    let is_full = || post().is_err_and(|why| why.contains(" quota: "));
    cluster.wait_for("quotas that count", is_full);
}

/// The patch that brings about a decision.
fn patch(decision: &Value) -> Value {
    let containers = decision["containers"].as_array().unwrap().iter();
    let containers = containers.map(|container| {
        let lists = ["requests", "limits"].map(|list| (list.to_owned(), container[list].clone()));
        let set = lists.into_iter().filter(|(_, list)| list.is_object());
        json!({"name": container["name"], "resources": set.collect::<Map<_, _>>()})
    });
    json!({"spec": {"containers": containers.collect::<Vec<_>>()}})
}

#[test]
fn no_decision_is_refused_by_the_api_server() {
    let name = "cluster_upstream::dry_run::no_decision_is_refused_by_the_api_server";
    let Some(cluster) = ApiServer::start(Release::Today, name) else {
        return;
    };
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
    cluster.apply(&json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}));
    let size = json!({"cpu": "1k", "memory": "4Ti"});
    cluster.put_status("/api/v1/nodes", "n", &json!({"capacity": size, "allocatable": size}));
    is_followed_by_admission(&cluster, "first");
    let seed = seed();
    let mut random = Rng::with_seed(seed);
    let mut cases: Vec<Case> = (0..PODS).map(|number| Case::draw(&mut random, number)).collect();
    for case in &mut cases {
        create(&cluster, case, &mut random);
    }
    is_followed_by_admission(&cluster, "last");
    let bounded = ours(&cases);
    let quotas: Vec<_> = cases.iter_mut().map(|case| std::mem::take(&mut case.quotas)).collect();
    let (mut resized, mut within_ranges, mut within_quotas, mut skipped) = (0, 0, 0, 0);
    let mut refused = Vec::new();
    let answers = bounded.into_iter().zip(ours(&cases)).zip(&quotas);
    for (case, ((decision, unbounded), quotas)) in cases.iter().zip(answers) {
        let mut notes = decision["notes"].as_array().into_iter().flatten();
        // A rule that the pod breaks already, or that the VPA's policy breaks, is named and holds nothing up.
        let is_named = notes.any(|note| note.as_str().unwrap().contains(" of LimitRange "));
        let over_quota = decision["reason"] == "QuotaExceeded";
        if decision["action"] != "resize" && !over_quota || is_named {
            continue;
        }
        let decided = if over_quota { &unbounded } else { &decision };
        let namespace = case.pod["metadata"]["namespace"].as_str().unwrap();
        let path = format!("/api/v1/namespaces/{namespace}/pods/p/resize?dryRun=All");
        let answer = cluster.answer(&path, &patch(decided));
        let is_accepted = answer["kind"] == "Pod";
        if over_quota && !is_accepted && answer["message"].to_string().contains(" quota: ") {
            skipped += 1;
        } else if is_accepted && !over_quota {
            resized += 1;
            within_ranges += usize::from(!case.limit_ranges.is_empty());
            within_quotas += usize::from(!quotas.is_empty());
        } else {
            let ranges = &case.limit_ranges;
            refused.push(format!(
                "{}\n{decision}\n{decided}\n{}\n{ranges:?}\n{quotas:?}",
                answer["message"], case.pod
            ));
        }
    }
    let number = refused.len();
    assert!(
        refused.is_empty(),
        "VSCALED_SEED={seed}: {number} refused, or accepted although skipped, such as {}",
        refused[0]
    );
    assert!(
        resized > 30 && within_ranges > 5 && within_quotas > 10 && skipped > 10,
        "VSCALED_SEED={seed}: {resized} resized, {within_ranges} of them with LimitRanges, {within_quotas} with quotas; {skipped} \
         skipped because of quotas"
    );
}
