//! The stored objects, their versions, and their history.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::rules;

/// Kind, namespace, name.
type Key = (String, String, String);

#[derive(Debug, Default)]
pub(super) struct Store {
    version: u64,
    objects: BTreeMap<Key, Value>,
    log: Vec<Change>,
    /// Changes up to this version are forgotten.
    forgotten: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) plural: String,
    pub(super) before: Option<Value>,
    pub(super) after: Option<Value>,
}

#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

fn key(plural: &str, object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (plural.to_owned(), text("namespace"), text("name"))
}

/// Whether the name is the object's name, or its `namespace/name`.
fn is_called(key: &Key, name: &str) -> bool {
    match name.split_once('/') {
        Some((namespace, name)) => key.1 == namespace && key.2 == name,
        None => key.2 == name,
    }
}

impl Store {
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn put(&mut self, plural: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let before = self.objects.insert(key(plural, &object), object.clone());
        self.record(plural, before, Some(object));
    }

    pub(super) fn remove(&mut self, plural: &str, name: &str) {
        let Some(key) = self.key_of(plural, name).cloned() else {
            return;
        };
        self.version += 1;
        let mut before = self.objects.remove(&key);
        if let Some(object) = &mut before {
            object["metadata"]["resourceVersion"] = self.version.to_string().into();
        }
        self.record(plural, before, None);
    }

    fn record(&mut self, plural: &str, before: Option<Value>, after: Option<Value>) {
        self.log.push(Change {
            version: self.version,
            plural: plural.to_owned(),
            before,
            after,
        });
    }

    pub(super) fn compact(&mut self) {
        self.version += 1;
        self.forgotten = self.version;
        self.log.clear();
    }

    /// Finds an object by name, or by `namespace/name` where the name is ambiguous.
    pub(super) fn find(&self, plural: &str, name: &str) -> Option<&Value> {
        self.key_of(plural, name).map(|key| &self.objects[key])
    }

    fn key_of(&self, plural: &str, name: &str) -> Option<&Key> {
        self.objects.keys().find(|key| key.0 == plural && is_called(key, name))
    }

    pub(super) fn all(&self, plural: &str) -> impl Iterator<Item = &Value> {
        self.objects
            .iter()
            .filter(move |(key, _)| key.0 == plural)
            .map(|(_, object)| object)
    }

    /// Every state of an object that is not forgotten, oldest first.
    pub(super) fn states<'a>(&'a self, plural: &'a str, name: &'a str) -> impl Iterator<Item = &'a Value> {
        let changes = self.log.iter().filter(move |change| change.plural == plural);
        changes
            .filter_map(|change| change.after.as_ref())
            .filter(move |object| is_called(&key(plural, object), name))
    }

    /// The changes after a version; `None` if that version is forgotten.
    pub(super) fn since(&self, version: u64) -> Option<impl Iterator<Item = &Change>> {
        (version >= self.forgotten).then(|| self.log.iter().filter(move |change| change.version > version))
    }

    /// The `resize` subresource: merges, validates, and stores unless the call is a dry run. `allowed` checks the pod
    /// before and after.
    pub(super) fn resize(
        &mut self,
        name: &str,
        patch: &Value,
        dry: bool,
        allowed: impl FnOnce(&Value, &Value) -> Result<(), Refusal>,
    ) -> Result<Value, Refusal> {
        let Some(old) = self.find("pods", name).cloned() else {
            return Err(not_found("pods", name));
        };
        let mut new = rules::resized(&old, patch)?;
        allowed(&old, &new)?;
        if new["spec"] != old["spec"] {
            new["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
            if !dry {
                self.put("pods", new);
                return Ok(self.find("pods", name).unwrap().clone());
            }
        }
        Ok(new)
    }

    /// The `status` subresource of a pod, for annotations only: annotations change, the spec does not
    /// (`podStatusStrategy`, kubernetes `pkg/registry/core/pod`). A null removes an annotation. `allowed` checks the
    /// pod before and after.
    pub(super) fn patch_status(
        &mut self,
        name: &str,
        patch: &Value,
        allowed: impl FnOnce(&Value, &Value) -> Result<(), Refusal>,
    ) -> Result<Value, Refusal> {
        let Some(old) = self.find("pods", name).cloned() else {
            return Err(not_found("pods", name));
        };
        let mut pod = old.clone();
        assert!(patch.get("spec").is_none() && patch.get("status").is_none(), "{patch}");
        if patch["metadata"]["uid"] != pod["metadata"]["uid"] {
            return Err(Refusal {
                code: 409,
                reason: "Conflict",
                message: format!("the UID in the precondition is not that of pods \"{name}\""),
            });
        }
        let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
        for (name, value) in patch["metadata"]["annotations"].as_object().unwrap() {
            if value.is_null() {
                annotations.remove(name);
            } else {
                annotations.insert(name.clone(), value.clone());
            }
        }
        allowed(&old, &pod)?;
        self.put("pods", pod.clone());
        Ok(pod)
    }
}

pub(super) fn not_found(plural: &str, name: &str) -> Refusal {
    Refusal {
        code: 404,
        reason: "NotFound",
        message: format!("{plural} \"{name}\" not found"),
    }
}
