//! Names, labels and owners.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The parts of `metadata` that decisions need.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    pub name: String,
    /// The namespace; `default` when a manifest leaves it out.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// Unique over time, unlike the name. Empty in hand-written manifests.
    pub uid: String,
    /// Changes with every update of the object.
    pub resource_version: String,
    /// Counts the versions of the spec; 0 where the API server does not count them (pods before 1.33).
    pub generation: i64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// When the object was created.
    pub creation_timestamp: Option<Timestamp>,
    /// Set once deletion has been asked for.
    pub deletion_timestamp: Option<Timestamp>,
    pub owner_references: Vec<OwnerReference>,
}

impl ObjectMeta {
    /// `namespace/name`, for people.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn default_namespace() -> String {
    "default".to_owned()
}

/// One owner of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// Group and version, such as `apps/v1`.
    pub api_version: String,
    /// Kind, such as `ReplicaSet`.
    pub kind: String,
    /// Name in the same namespace (or a cluster-scoped object's).
    pub name: String,
    pub uid: String,
    /// Whether this owner is the managing controller.
    pub controller: Option<bool>,
}
