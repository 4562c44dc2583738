//! Promise: `deploy/overlays/admission-policy` lets an agent make the writes that it makes, to pods of its own node, and no
//! other; everybody else is unaffected.
//!
//! The policy's expressions are read from the YAML that ships and run by an interpreter of CEL, as an API server runs them:
//! an expression that fails counts as a refusal (`failurePolicy: Fail`).

use std::collections::HashMap;
use std::fs;

use cel::{Context, Program, to_value};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const AGENT: &str = "system:serviceaccount:vscaled:vscaled";
const NODE_CLAIM: &str = "authentication.kubernetes.io/node-name";

fn shipped() -> Vec<Value> {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/deploy/overlays/admission-policy/policy.yaml"
    );
    serde_saphyr::from_multiple(&fs::read_to_string(file).unwrap()).unwrap()
}

/// An object as the API's own type has it; a field that the type does not know fails the test.
fn typed<T: DeserializeOwned + Serialize>(object: &Value) -> T {
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), *object);
    typed
}

fn policy() -> ValidatingAdmissionPolicy {
    typed(&shipped()[0])
}

/// A request to the API server about one pod.
#[derive(Clone)]
struct Request {
    user: &'static str,
    /// The claim of the token.
    node: Option<&'static str>,
    operation: &'static str,
    subresource: Option<&'static str>,
    before: Value,
    after: Value,
}

/// A pod of node-1, and nothing changed.
fn request(subresource: &'static str) -> Request {
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

impl Request {
    /// With the value at a JSON pointer of the new pod set, or removed.
    fn with(mut self, pointer: &str, value: Value) -> Self {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let field = field.replace("~1", "/");
        let parent = self.after.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        if value.is_null() {
            assert!(parent.remove(&field).is_some(), "{pointer}");
        } else {
            parent.insert(field, value);
        }
        self
    }

    fn context(&self) -> Context<'static, 'static> {
        let mut user = json!({"username": self.user});
        if let Some(node) = self.node {
            user["extra"] = json!({NODE_CLAIM: [node]});
        }
        let mut request = json!({"operation": self.operation, "userInfo": user});
        if let Some(subresource) = self.subresource {
            request["subResource"] = json!(subresource);
        }
        let mut context = Context::default();
        for (name, value) in [
            ("request", &request),
            ("oldObject", &self.before),
            ("object", &self.after),
        ] {
            context.add_variable_from_value(name, to_value(value).unwrap());
        }
        context
    }

    /// Why the policy refuses the request, one message for each validation that does.
    fn refusals(&self) -> Vec<String> {
        let spec = policy().spec.unwrap();
        assert_eq!(spec.failure_policy.as_deref(), Some("Fail"));
        let mut context = self.context();
        let run = |expression: &str, context: &Context<'_, '_>| {
            let program = Program::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
            program.execute(context).map_err(|error| error.to_string())
        };
        for condition in spec.match_conditions.into_iter().flatten() {
            if run(&condition.expression, &context) == Ok(cel::Value::Bool(false)) {
                return Vec::new();
            }
        }
        let mut variables = HashMap::new();
        for variable in spec.variables.into_iter().flatten() {
            if let Ok(value) = run(&variable.expression, &context) {
                variables.insert(variable.name, value);
                context.add_variable_from_value("variables", cel::Value::from(variables.clone()));
            }
        }
        let validations = spec.validations.into_iter().flatten();
        let refused =
            validations.filter(|validation| run(&validation.expression, &context) != Ok(cel::Value::Bool(true)));
        refused.map(|validation| validation.message.unwrap()).collect()
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
            "the pod's own resources",
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
    let binding: ValidatingAdmissionPolicyBinding = typed(&shipped()[1]);
    let bound = binding.spec.unwrap();
    assert_eq!(bound.policy_name, policy().metadata.name);
    assert_eq!(bound.validation_actions, Some(vec!["Deny".to_owned()]));
    assert_eq!(bound.match_resources, None, "some requests are left out");

    let rbac = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base/rbac.yaml");
    let objects: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(rbac).unwrap()).unwrap();
    let account = &objects[0]["metadata"];
    let name = |field: &str| account[field].as_str().unwrap();
    assert_eq!(
        AGENT,
        format!("system:serviceaccount:{}:{}", name("namespace"), name("name"))
    );
    let rules = policy()
        .spec
        .unwrap()
        .match_constraints
        .unwrap()
        .resource_rules
        .unwrap();
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0].resources, Some(vec!["pods".to_owned(), "pods/*".to_owned()]));
    assert_eq!(rules[0].operations, Some(vec!["*".to_owned()]));
}
