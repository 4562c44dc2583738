//! Compares an answer with the expectation of a case, by the rules of the cases' README.

use serde_json::{Map, Value};
use vscaled::model::quantity::Quantity;

/// All differences between the answer and the expectation.
pub(crate) fn differences(expect: &Value, got: &Value) -> Vec<String> {
    let (Some(wanted), Some(listed)) = (expect["pods"].as_array(), got["pods"].as_array()) else {
        return vec!["no list of pods".to_owned()];
    };
    let mut found = Vec::new();
    for want in wanted {
        match listed
            .iter()
            .filter(|pod| identity(pod) == identity(want))
            .collect::<Vec<_>>()[..]
        {
            [] if want["absent_ok"] == true => {}
            [pod] => compare_pod(want, pod, &mut found),
            ref other => found.push(format!("{}: listed {} times", identity(want), other.len())),
        }
    }
    let unexpected = |pod: &&Value| wanted.iter().all(|want| identity(want) != identity(pod));
    found.extend(
        listed
            .iter()
            .filter(unexpected)
            .map(|pod| format!("{}: not expected", identity(pod))),
    );
    found
}

fn identity(pod: &Value) -> String {
    format!("{}/{}", pod["namespace"], pod["name"])
}

fn compare_pod(want: &Value, got: &Value, found: &mut Vec<String>) {
    // A missing key in the expectation permits any value.
    if want.get("vpa").is_some_and(|vpa| *vpa != got["vpa"]) {
        found.push(format!("vpa: want {}, got {}", want["vpa"], got["vpa"]));
    }
    for key in ["action", "reason"] {
        let accepted = match want.get(key) {
            None => continue,
            Some(Value::Array(several)) => several.clone(),
            Some(one) => vec![one.clone()],
        };
        if !accepted.contains(&got[key]) {
            found.push(format!(
                "{key}: want one of {accepted:?}, got {} ({})",
                got[key], got["reason"]
            ));
        }
    }
    let listed = got["containers"].as_array().cloned().unwrap_or_default();
    for container in want["containers"].as_array().into_iter().flatten() {
        let name = &container["name"];
        match listed.iter().find(|one| one["name"] == *name) {
            None => found.push(format!("container {name}: missing")),
            Some(one) => compare_container(container, one, found),
        }
    }
}

fn compare_container(want: &Value, got: &Value, found: &mut Vec<String>) {
    let none = Map::new();
    for list in ["requests", "limits"] {
        let Some(wanted) = want.get(list) else {
            continue;
        };
        let (wanted, listed) = (
            wanted.as_object().unwrap_or(&none),
            got[list].as_object().unwrap_or(&none),
        );
        for resource in ["cpu", "memory"] {
            let (wanted, listed) = (quantity(wanted.get(resource)), quantity(listed.get(resource)));
            if wanted != listed {
                let name = &want["name"];
                found.push(format!(
                    "container {name} {list}.{resource}: want {wanted:?}, got {listed:?}"
                ));
            }
        }
    }
}

/// Amounts are compared by value; an unset amount differs from every value.
fn quantity(value: Option<&Value>) -> Option<Quantity> {
    value
        .filter(|value| !value.is_null())
        .map(|value| serde_json::from_value(value.clone()).unwrap())
}
