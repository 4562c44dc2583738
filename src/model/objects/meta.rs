//! Names, labels and owners.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The parts of `metadata` that decisions need.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    pub name: String,
    /// `default` if a manifest leaves it out.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// Empty in hand-written manifests.
    pub uid: String,
    pub resource_version: String,
    /// Counts the versions of the spec. 0 if the API server does not count them (pods before 1.33).
    pub generation: i64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub creation_timestamp: Option<Timestamp>,
    /// Set once a client has requested the deletion.
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
    /// Such as `ReplicaSet`.
    pub kind: String,
    /// In the same namespace, or of a cluster-scoped object.
    pub name: String,
    pub uid: String,
    /// Whether this owner is the managing controller.
    pub controller: Option<bool>,
}
