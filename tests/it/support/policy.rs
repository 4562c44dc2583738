//! The shipped ValidatingAdmissionPolicies, evaluated by a CEL interpreter as an API server does: a failing
//! expression counts as a refusal (`failurePolicy: Fail`).

use std::collections::HashMap;
use std::fs;
use std::sync::LazyLock;

use cel::{Context, Program, to_value};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicySpec,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) const AGENT: &str = "system:serviceaccount:vscaled:vscaled";
/// The claim in an agent's token that names the node.
const NODE_CLAIM: &str = "authentication.kubernetes.io/node-name";

/// The beginning of the list of reasons, where the policy's comment and the chart add one.
const REASONS: &str = "in ['OOMKilled',";

/// The shipped policies.
fn shipped_text() -> String {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/deploy/overlays/admission-policy/policy.yaml"
    );
    fs::read_to_string(file).unwrap()
}

/// A policy of `deploy/overlays/admission-policy`.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) spec: ValidatingAdmissionPolicySpec,
    pub(crate) binding: ValidatingAdmissionPolicyBinding,
    /// Compiled expressions by their text.
    programs: HashMap<String, Program>,
}

/// Converts an object to the API's type. A field that the type does not have fails the test.
fn typed<T: DeserializeOwned + Serialize>(object: &Value) -> T {
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), *object);
    typed
}

/// A request to the API server.
#[derive(Clone)]
pub(crate) struct Request<'a> {
    pub(crate) user: &'a str,
    /// The node in the token's claim.
    pub(crate) node: Option<&'a str>,
    pub(crate) operation: &'a str,
    pub(crate) subresource: Option<&'a str>,
    pub(crate) before: Value,
    pub(crate) after: Value,
}

impl Request<'_> {
    /// Sets or removes the value at a JSON pointer of the new object.
    pub(crate) fn with(mut self, pointer: &str, value: Value) -> Self {
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
}

impl Policy {
    /// The policy of pods or of Events, read once. Agents that report kills to the recommender may also write its Events.
    pub(crate) fn of(plural: &str) -> &'static Self {
        static PODS: LazyLock<Policy> = LazyLock::new(|| Policy::shipped("vscaled"));
        static EVENTS: LazyLock<Policy> = LazyLock::new(|| {
            let text = shipped_text().replace(REASONS, &format!("{REASONS} 'Evicted',"));
            Policy::in_file("vscaled-events", &text)
        });
        match plural {
            "pods" => &PODS,
            "events" => &EVENTS,
            _ => panic!("no policy is about {plural}"),
        }
    }

    /// The policy of this name and its only binding, as they ship.
    pub(crate) fn shipped(name: &str) -> Self {
        Self::in_file(name, &shipped_text())
    }

    fn in_file(name: &str, text: &str) -> Self {
        let objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        let policy = objects
            .iter()
            .find(|object| object["kind"] == "ValidatingAdmissionPolicy" && object["metadata"]["name"] == name);
        let binding = objects.iter().find(|object| object["spec"]["policyName"] == name);
        let spec = typed::<ValidatingAdmissionPolicy>(policy.unwrap()).spec.unwrap();
        let conditions = spec.match_conditions.iter().flatten().map(|of| &of.expression);
        let variables = spec.variables.iter().flatten().map(|of| &of.expression);
        let validations = spec.validations.iter().flatten().map(|of| &of.expression);
        let compiled = |expression: &String| {
            let program = Program::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
            (expression.clone(), program)
        };
        Self {
            programs: conditions.chain(variables).chain(validations).map(compiled).collect(),
            binding: typed(binding.unwrap()),
            spec,
        }
    }

    /// The messages of all validations that refuse the request.
    pub(crate) fn refusals(&self, request: &Request<'_>) -> Vec<String> {
        let spec = &self.spec;
        assert_eq!(spec.failure_policy.as_deref(), Some("Fail"));
        let mut context = request.context();
        let run = |expression: &str, context: &Context<'_, '_>| {
            let result = self.programs[expression].execute(context);
            result.map_err(|error| error.to_string())
        };
        for condition in spec.match_conditions.iter().flatten() {
            if run(&condition.expression, &context) == Ok(cel::Value::Bool(false)) {
                return Vec::new();
            }
        }
        let mut variables = HashMap::new();
        for variable in spec.variables.iter().flatten() {
            if let Ok(value) = run(&variable.expression, &context) {
                variables.insert(variable.name.clone(), value);
                context.add_variable_from_value("variables", cel::Value::from(variables.clone()));
            }
        }
        let validations = spec.validations.iter().flatten();
        let refused =
            validations.filter(|validation| run(&validation.expression, &context) != Ok(cel::Value::Bool(true)));
        refused.map(|validation| validation.message.clone().unwrap()).collect()
    }
}
