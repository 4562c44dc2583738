//! Promise: `deploy/overlays/admission-policy` permits the writes that an agent makes to pods of its own node and to
//! Events that it signs, and no other write of an agent. Other users are unaffected.
//!
//! The tests read the shipped YAML and evaluate the expressions with a CEL interpreter ([`Policy`]).

use std::fs;

use serde_json::{Value, json};

use crate::support::policy::{AGENT, Policy, Request};

impl Request<'_> {
    /// The messages of all validations that refuse the request.
    fn refusals(&self) -> Vec<String> {
        let events = [&self.before, &self.after]
            .iter()
            .any(|object| object.get("involvedObject").is_some());
        Policy::of(if events { "events" } else { "pods" }).refusals(self)
    }
}

/// An unchanged pod of node-1.
fn request(subresource: &'static str) -> Request<'static> {
    let pod = json!({
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u", "labels": {"app": "web"}, "finalizers": ["example.com/keep"],
            "annotations": {"example.com/owner": "shop", "vpaCpuStartupBoost/app": "{}", "vscaled.io/ignore": "false"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5c", "uid": "r"}],
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [
                {"name": "app", "resources": {"requests": {"cpu": "100m"}},
                    "resizePolicy": [{"resourceName": "memory", "restartPolicy": "NotRequired"}]},
                {"name": "side"},
            ],
            "initContainers": [{"name": "proxy", "restartPolicy": "Always"}],
        },
        "status": {"phase": "Running", "podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    Request {
        user: AGENT,
        node: Some("node-1"),
        operation: "UPDATE",
        subresource: Some(subresource),
        before: pod.clone(),
        after: pod,
    }
}

#[test]
fn the_writes_of_an_agent_are_allowed() {
    let allowed = [
        request("resize"),
        request("resize").with("/spec/containers/0/resources", json!({"requests": {"cpu": "250m"}})),
        request("resize").with("/spec/containers/1/resources", json!({"limits": {"memory": "1Gi"}})),
        request("resize").with("/spec/initContainers/0/resources", json!({"limits": {"memory": "1Gi"}})),
        request("status"),
        request("status").with("/metadata/annotations/vscaled.io~1applied", json!("{}")),
        request("status").with("/metadata/annotations/vpaCpuStartupBoost~1app", Value::Null),
    ];
    for request in allowed {
        assert_eq!(request.refusals(), Vec::<String>::new(), "{}", request.after);
    }
    let mut pod_level = request("resize");
    pod_level.before["spec"]["resources"] = json!({"limits": {"memory": "1Gi"}});
    pod_level.after["spec"]["resources"] = json!({"limits": {"memory": "2Gi"}});
    assert_eq!(pod_level.refusals(), Vec::<String>::new());
    let mut removes = request("status");
    removes.before["metadata"]["annotations"]["vscaled.io/applied"] = json!("{}");
    assert_eq!(removes.refusals(), Vec::<String>::new());
    let mut bare = request("status");
    bare.before["metadata"] = json!({"name": "web"});
    bare.after["metadata"] = json!({"name": "web", "annotations": {"vscaled.io/applied": "{}"}});
    assert_eq!(bare.refusals(), Vec::<String>::new());
}

#[test]
fn pods_of_other_nodes_are_out_of_reach() {
    let node = |node| Request {
        node,
        ..request("resize")
    };
    let mut unbound = request("resize");
    for pod in [&mut unbound.before, &mut unbound.after] {
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
    }
    let mut moved = Request {
        node: Some("node-2"),
        ..request("status")
    };
    moved.after["spec"]["nodeName"] = json!("node-2");
    for request in [node(Some("node-2")), node(Some("")), node(None), unbound, moved] {
        let refusals = request.refusals();
        assert!(
            refusals.iter().any(|refusal| refusal.contains("another node")),
            "{refusals:?}"
        );
    }
}

#[test]
fn nothing_else_of_a_pod_is_written() {
    let status = |pointer: &str, value| request("status").with(pointer, value);
    let resize = |pointer: &str, value| request("resize").with(pointer, value);
    let refused = [
        (status("/status/podIP", json!("10.0.0.8")), "changes no status"),
        (status("/status/conditions", json!([])), "changes no status"),
        (status("/status", Value::Null), "changes no status"),
        (status("/metadata/labels/app", json!("bank")), "changes no labels"),
        (status("/metadata/labels", Value::Null), "changes no labels"),
        (
            status("/metadata/finalizers", json!([])),
            "changes no labels, finalizers",
        ),
        (status("/metadata/ownerReferences", Value::Null), "finalizers or owners"),
        (status("/metadata/generateName", json!("x-")), "changes no labels"),
        (
            status("/metadata/annotations/example.com~1owner", json!("bank")),
            "sets the annotation",
        ),
        (
            status("/metadata/annotations/example.com~1new", json!("")),
            "sets the annotation",
        ),
        (
            status("/metadata/annotations/vscaled.io~1ignore", json!("true")),
            "sets the annotation",
        ),
        (
            status("/metadata/annotations/vpaCpuStartupBoost~1app", json!("{\"a\":1}")),
            "sets the annotation",
        ),
        (
            status("/metadata/annotations/vpaCpuStartupBoost~1side", json!("{}")),
            "sets the annotation",
        ),
        (
            status("/metadata/annotations/example.com~1owner", Value::Null),
            "removes the annotations",
        ),
        (
            status("/metadata/annotations/vscaled.io~1ignore", Value::Null),
            "removes the annotations",
        ),
        (status("/metadata/annotations", Value::Null), "removes the annotations"),
        (resize("/metadata/annotations", Value::Null), "removes the annotations"),
        (resize("/spec/containers/0/resizePolicy", Value::Null), "resizePolicy"),
        (resize("/spec/containers/1/resizePolicy", json!([])), "resizePolicy"),
        (resize("/spec/initContainers/0/resizePolicy", json!([])), "resizePolicy"),
        (
            resize("/spec/resources", json!({"limits": {"cpu": "64"}})),
            "resources of its own",
        ),
    ];
    for (request, why) in refused {
        let refusals = request.refusals();
        assert!(
            refusals.iter().any(|refusal| refusal.contains(why)),
            "{why}: {refusals:?}"
        );
    }
}

#[test]
fn every_other_request_about_pods_is_refused() {
    let made = |operation, subresource| {
        let mut request = Request {
            operation,
            subresource,
            ..request("status")
        };
        match operation {
            "CREATE" | "CONNECT" => request.before = Value::Null,
            "DELETE" => request.after = Value::Null,
            _ => {}
        }
        request
    };
    for request in [
        made("UPDATE", None),
        made("CREATE", None),
        made("DELETE", None),
        made("CREATE", Some("eviction")),
        made("CREATE", Some("binding")),
        made("CONNECT", Some("exec")),
        made("UPDATE", Some("ephemeralcontainers")),
    ] {
        let refusals = request.refusals();
        assert!(
            refusals
                .iter()
                .any(|refusal| refusal.contains("writes nothing else to pods")),
            "{} {:?}: {refusals:?}",
            request.operation,
            request.subresource
        );
    }
}

#[test]
fn everybody_else_is_unaffected() {
    for user in ["system:node:node-1", "system:serviceaccount:shop:vscaled", "admin"] {
        let mut request = request("status").with("/status/podIP", json!("10.0.0.8"));
        (request.user, request.node) = (user, None);
        assert_eq!(request.refusals(), Vec::<String>::new(), "{user}");
    }
}

#[test]
fn it_is_bound_and_about_the_account_and_the_rights_that_ship() {
    let resources = |name: &str| {
        let policy = Policy::shipped(name);
        let bound = policy.binding.spec.unwrap();
        assert_eq!(bound.validation_actions, Some(vec!["Deny".to_owned()]));
        assert_eq!(bound.match_resources, None, "some requests are left out");
        let rules = policy.spec.match_constraints.unwrap().resource_rules.unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0].operations, Some(vec!["*".to_owned()]));
        rules[0].resources.clone().unwrap()
    };
    assert_eq!(resources("vscaled"), ["pods", "pods/*"]);
    assert_eq!(resources("vscaled-events"), ["events", "events/*"]);
    let hooks = Policy::shipped("vscaled-hooks");
    assert_eq!(hooks.binding.spec.unwrap().match_resources, None);
    let rule = &hooks.spec.match_constraints.unwrap().resource_rules.unwrap()[0];
    assert_eq!(rule.operations, Some(vec!["UPDATE".to_owned()]));
    assert_eq!(rule.resources, Some(vec!["pods".to_owned(), "pods/*".to_owned()]));

    let rbac = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base/rbac.yaml");
    let objects: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(rbac).unwrap()).unwrap();
    let account = &objects[0]["metadata"];
    let name = |field: &str| account[field].as_str().unwrap();
    assert_eq!(
        AGENT,
        format!("system:serviceaccount:{}:{}", name("namespace"), name("name"))
    );
}

/// A new Event of node-1's agent.
fn event() -> Request<'static> {
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "web.1", "namespace": "shop"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web", "uid": "u"},
        "reason": "ResourcesResized", "message": "memory limit: 64Mi → 128Mi", "type": "Normal",
        "source": {"component": "vscaled", "host": "node-1"},
        "reportingComponent": "vscaled", "reportingInstance": "node-1", "count": 1,
    });
    Request {
        user: AGENT,
        node: Some("node-1"),
        operation: "CREATE",
        subresource: None,
        before: Value::Null,
        after: event,
    }
}

/// The same Event, repeated.
fn repeated_event() -> Request<'static> {
    let made = event();
    Request {
        operation: "UPDATE",
        before: made.after.clone(),
        ..made.with("/count", json!(2)).with("/message", json!("again"))
    }
}

#[test]
fn an_agent_writes_events_in_its_own_name() {
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"});
    let evicted =
        json!({"offending_containers": "app", "offending_containers_usage": "1", "starved_resource": "memory"});
    for allowed in [
        event(),
        repeated_event(),
        event().with("/involvedObject", node),
        event()
            .with("/reason", json!("Evicted"))
            .with("/metadata/annotations", evicted),
    ] {
        assert_eq!(allowed.refusals(), Vec::<String>::new(), "{}", allowed.after);
    }
}

#[test]
fn an_agent_writes_events_with_every_reason_that_it_has() {
    let page = include_str!("../../docs/events.md");
    let reasons: Vec<&str> = page
        .lines()
        .filter_map(|row| row.strip_prefix("| `")?.split('`').next())
        .collect();
    assert!(reasons.len() > 8, "read only {reasons:?}");
    for reason in reasons {
        let refusals = event().with("/reason", json!(reason)).refusals();
        assert_eq!(refusals, Vec::<String>::new(), "{reason}");
    }
}

#[test]
fn evictions_are_refused_unless_the_policy_names_them() {
    let shipped = Policy::shipped("vscaled-events");
    let evicted = event().with("/reason", json!("Evicted"));
    assert!(!shipped.refusals(&evicted).is_empty());
    assert_eq!(shipped.refusals(&event()), Vec::<String>::new());
    assert_eq!(evicted.refusals(), Vec::<String>::new());
}

#[test]
fn nobody_adds_a_hook_to_a_pod_that_exists() {
    let policy = Policy::shipped("vscaled-hooks");
    for user in [AGENT, "system:serviceaccount:kube-system:cni", "admin"] {
        let by = |request: Request<'static>| Request { user, ..request };
        for subresource in [Some("status"), Some("resize"), None] {
            let update = || Request {
                subresource,
                ..by(request("status"))
            };
            for hook in [
                "before-shrink",
                "before-shrink.app",
                "before-shrink-wait",
                "after-grow.app",
                "on-memory-pressure",
                "on-memory-pressure-memory.app",
            ] {
                let pointer = format!("/metadata/annotations/vscaled.io~1{hook}");
                let adds = update().with(&pointer, json!("[\"sh\"]"));
                let refusals = policy.refusals(&adds);
                assert!(
                    refusals[..]
                        == [
                            "hooks of vscaled belong to the author of a pod, who writes them into the variables of its containers"
                        ],
                    "{user} {hook}: {refusals:?}"
                );
                let mut changes = adds.clone();
                changes.before["metadata"]["annotations"][format!("vscaled.io/{hook}")] = json!("[\"true\"]");
                assert_eq!(policy.refusals(&changes).len(), 1, "{user} {hook}");
                // What is there already stays, and may go.
                let mut keeps = adds.clone();
                keeps.before = adds.after.clone();
                assert_eq!(policy.refusals(&keeps), Vec::<String>::new());
                let removes = keeps.with(&pointer, Value::Null);
                assert_eq!(policy.refusals(&removes), Vec::<String>::new());
            }
            let other = update().with("/metadata/annotations/example.com~1before-shrink", json!("x"));
            assert_eq!(policy.refusals(&other), Vec::<String>::new());
            let mut bare = update();
            bare.before["metadata"] = json!({"name": "web"});
            bare.after["metadata"] = json!({"name": "web"});
            assert_eq!(policy.refusals(&bare), Vec::<String>::new());
        }
    }
}

#[test]
fn events_in_another_name_are_refused() {
    let other_node = || Request {
        node: Some("node-2"),
        ..event()
    };
    let unbound = || Request { node: None, ..event() };
    let mut others = repeated_event();
    others.before["source"] = json!({"component": "kubelet", "host": "node-1"});
    let mut taken_over = repeated_event();
    taken_over.before["reportingInstance"] = json!("node-2");
    let of_node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": name});
    for (request, why) in [
        (other_node(), "signs"),
        (unbound(), "signs"),
        (event().with("/source/host", json!("node-2")), "signs"),
        (event().with("/source/component", json!("kubelet")), "signs"),
        (event().with("/source", Value::Null), "signs"),
        (event().with("/reportingComponent", json!("kubelet")), "signs"),
        (event().with("/reportingInstance", json!("node-2")), "signs"),
        (others, "Events of others"),
        (taken_over, "Events of others"),
        (event().with("/reason", json!("FailedScheduling")), "reasons"),
        (event().with("/reason", json!("NodeNotReady")), "reasons"),
        (
            event().with("/involvedObject", of_node("node-2")),
            "pods and of its own node",
        ),
        (
            event().with("/involvedObject/kind", json!("Secret")),
            "pods and of its own node",
        ),
        (
            event().with("/involvedObject/namespace", json!("bank")),
            "pods and of its own node",
        ),
        (event().with("/metadata/annotations", json!({"x": "y"})), "annotations"),
        (event().with("/metadata/labels", json!({"x": "y"})), "labels"),
        (event().with("/metadata/finalizers", json!(["x/y"])), "labels"),
        (
            repeated_event().with("/involvedObject/name", json!("bank")),
            "changes only how often",
        ),
        (
            repeated_event().with("/reason", json!("OOMKilled")),
            "changes only how often",
        ),
    ] {
        let refusals = request.refusals();
        assert!(
            refusals.iter().any(|refusal| refusal.contains(why)),
            "{why}: {refusals:?} of {}",
            request.after
        );
    }
    let deleted = Request {
        operation: "DELETE",
        before: event().after,
        after: Value::Null,
        ..event()
    };
    assert!(!deleted.refusals().is_empty());
    for user in ["system:node:node-1", "admin"] {
        let mut request = event().with("/source/component", json!("kubelet"));
        (request.user, request.node) = (user, None);
        assert_eq!(request.refusals(), Vec::<String>::new(), "{user}");
    }
}
