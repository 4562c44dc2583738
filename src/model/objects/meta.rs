//! Names, labels and owners; and the rule that decides which object describes which pod that runs. All writes, requests, saved
//! state and reports depend on this rule.
//!
//! A tenant can write annotations, labels and owner references, but no UIDs, namespaces or labels of the runtime. So an object
//! describes a pod only if UID, namespace and name all agree. Only mirror pods, the API server's copies of static pods, have
//! another UID than the one in the cgroup's name.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Pod, annotation};
use crate::model::container::named_by_text;

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

    /// The managing controller. Of several, the last counts, as upstream.
    pub fn controller(&self) -> Option<&OwnerReference> {
        let mut references = self.owner_references.iter().rev();
        references.find(|reference| reference.controller == Some(true))
    }
}

/// The bytes of the longest label and of the longest subdomain (RFC 1123).
pub const LONGEST_LABEL: usize = 63;
pub const LONGEST_SUBDOMAIN: usize = 253;

/// Whether a text is a label (RFC 1123), such as the name of a namespace or a container.
pub fn is_label(text: &str) -> bool {
    text.len() <= LONGEST_LABEL && is_part(text)
}

/// Whether a text is a subdomain (RFC 1123), such as the name of a node: parts joined by `.`.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= LONGEST_SUBDOMAIN && text.split('.').all(is_part)
}

/// Lower case letters, digits and, not first or last, `-`.
fn is_part(text: &str) -> bool {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    !text.is_empty() && !text.starts_with('-') && !text.ends_with('-') && text.bytes().all(allowed)
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

/// The UID of a pod as the kubelet knows it, with dashes: in cgroups' names and runtime labels. A static pod's is the hash of its
/// manifest, 32 hexadecimal digits, which the API shows as the annotation `kubernetes.io/config.hash` and not as the mirror pod's
/// UID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
#[derive(derive_more::Deref, derive_more::Display, derive_more::From)]
#[deref(forward)]
#[from(String, &str)]
pub struct PodUid(String);

named_by_text!(PodUid);

/// The identity of a pod that runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[display("{namespace}/{name}")]
pub struct PodId {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
}

/// The namespace and the name of a pod, such as `shop/web-0`. Of the pods of a node, one at a time has them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub struct PodKey(Arc<str>);

impl PodKey {
    /// The key of the pod with this name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }

    /// The namespace of the pod.
    pub fn namespace(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }
}

impl PodId {
    /// The key of this pod and of its successors.
    pub fn key(&self) -> PodKey {
        PodKey::new(&self.namespace, &self.name)
    }
}

impl Pod {
    /// The key of this pod and of its successors.
    pub fn key(&self) -> PodKey {
        PodKey::new(&self.metadata.namespace, &self.metadata.name)
    }

    /// The UID in the pod's cgroup paths and runtime labels, according to this object. Empty if its manifest has none.
    pub fn cgroup_uid(&self) -> &str {
        self.static_uid().unwrap_or(&self.metadata.uid)
    }

    /// The UID of the static pod that this object mirrors. The kubelet gives a mirror pod the annotation, and the Node
    /// as its only owner (`CreateMirrorPod`, kubernetes `pkg/kubelet/pod`).
    fn static_uid(&self) -> Option<&str> {
        let owners = &self.metadata.owner_references;
        let owned_by_node = !owners.is_empty() && owners.iter().all(|owner| owner.kind == "Node");
        let uid = self.metadata.annotations.get(annotation::MIRROR)?;
        owned_by_node.then_some(uid)
    }

    /// Whether this object describes the pod that runs under that identity. A manifest without a UID describes the pod
    /// with its namespace and name.
    pub fn describes(&self, id: &PodId) -> bool {
        let metadata = &self.metadata;
        ["", &id.uid].contains(&self.cgroup_uid()) && metadata.namespace == id.namespace && metadata.name == id.name
    }

    /// The identity that this object describes, with this UID.
    pub fn id_with(&self, uid: &str) -> PodId {
        PodId {
            uid: uid.into(),
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
        }
    }
}

/// The object among `pods` that describes the pod with this UID in its cgroup's name, if no runtime says the pod's name. An
/// object's own UID takes precedence over a mirror pod's annotation. None if two objects claim the same UID.
pub fn pod_of_uid<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>, uid: &str) -> Option<&'a Arc<Pod>> {
    let claimed = pods.into_iter().filter(|pod| pod.cgroup_uid() == uid);
    let (mirrors, own): (Vec<_>, Vec<_>) = claimed.partition(|pod| pod.static_uid().is_some());
    let claimed = if own.is_empty() { mirrors } else { own };
    let first = *claimed.first()?;
    let same = claimed.iter().all(|other| other.key() == first.key());
    same.then_some(first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::objects::OwnerReference;

    const VICTIM: &str = "6c4b2d1e-0000-4000-8000-00000000000a";

    fn pod(namespace: &str, name: &str, uid: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = namespace.to_owned();
        pod.metadata.name = name.to_owned();
        pod.metadata.uid = uid.to_owned();
        pod
    }

    fn claiming(mut pod: Pod, annotation: &str, owner: &str, uid: &str) -> Pod {
        pod.metadata.annotations.insert(annotation.to_owned(), uid.to_owned());
        pod.metadata.owner_references = vec![OwnerReference {
            kind: owner.to_owned(),
            ..OwnerReference::default()
        }];
        pod
    }

    #[test]
    fn only_mirror_pods_have_an_annotated_uid() {
        let tenant = || pod("tenant", "a", "own");
        assert_eq!(
            claiming(tenant(), annotation::MIRROR, "Node", VICTIM).cgroup_uid(),
            VICTIM
        );
        assert_eq!(
            claiming(tenant(), annotation::MIRROR, "ReplicaSet", VICTIM).cgroup_uid(),
            "own"
        );
        let mut two = claiming(tenant(), annotation::MIRROR, "Node", VICTIM);
        two.metadata.owner_references.push(OwnerReference::default());
        assert_eq!(two.cgroup_uid(), "own");
        for owner in ["Node", "ReplicaSet"] {
            assert_eq!(
                claiming(tenant(), "kubernetes.io/config.hash", owner, VICTIM).cgroup_uid(),
                "own"
            );
        }
    }

    #[test]
    fn names_are_those_of_rfc_1123() {
        for (text, label, subdomain) in [
            ("web-0", true, true),
            ("0", true, true),
            ("web.shop", false, true),
            ("", false, false),
            ("-web", false, false),
            ("web-", false, false),
            ("Web", false, false),
            ("a_b", false, false),
            ("web..shop", false, false),
            ("web.-shop", false, false),
        ] {
            assert_eq!((is_label(text), is_subdomain(text)), (label, subdomain), "{text:?}");
        }
        let long = |length| "a".repeat(length);
        assert!(is_label(&long(63)) && !is_label(&long(64)));
        assert!(is_subdomain(&long(253)) && !is_subdomain(&long(254)));
    }

    #[test]
    fn of_several_controllers_the_last_counts() {
        for (owners, controller) in [
            (
                vec![("a", Some(true)), ("b", Some(true)), ("c", Some(false)), ("d", None)],
                Some("b"),
            ),
            (vec![("a", Some(false)), ("b", None)], None),
        ] {
            let owner = |(name, controller): (&str, Option<bool>)| OwnerReference {
                name: name.to_owned(),
                controller,
                ..OwnerReference::default()
            };
            let metadata = ObjectMeta {
                owner_references: owners.into_iter().map(owner).collect(),
                ..ObjectMeta::default()
            };
            assert_eq!(metadata.controller().map(|owner| owner.name.as_str()), controller);
        }
    }

    #[test]
    fn an_object_describes_only_its_own_pod() {
        let id = pod("bank", "payments", "").id_with(VICTIM);
        assert!(pod("bank", "payments", VICTIM).describes(&id) && pod("bank", "payments", "").describes(&id));
        assert!(claiming(pod("bank", "payments", "api"), annotation::MIRROR, "Node", VICTIM).describes(&id));
        for other in [("tenant", "payments"), ("bank", "other")] {
            assert!(!pod(other.0, other.1, VICTIM).describes(&id) && !pod(other.0, other.1, "").describes(&id));
            assert!(!claiming(pod(other.0, other.1, "own"), annotation::MIRROR, "Node", VICTIM).describes(&id));
        }
        assert!(!pod("bank", "payments", "another").describes(&id));
    }

    #[test]
    fn two_claims_of_a_uid_name_no_pod() {
        let own = Arc::new(pod("bank", "payments", VICTIM));
        let mirror = |name: &str| {
            Arc::new(claiming(
                pod("kube-system", name, "api"),
                annotation::MIRROR,
                "Node",
                VICTIM,
            ))
        };
        let name = |pods: &[Arc<Pod>]| pod_of_uid(pods, VICTIM).map(|pod| pod.full_name());
        assert_eq!(
            name(&[mirror("etcd"), Arc::clone(&own)]).as_deref(),
            Some("bank/payments")
        );
        assert_eq!(name(&[mirror("etcd")]).as_deref(), Some("kube-system/etcd"));
        assert_eq!(name(&[mirror("etcd"), mirror("forged")]), None);
        assert_eq!(name(&[Arc::clone(&own), Arc::new(pod("tenant", "a", VICTIM))]), None);
        assert_eq!(name(&[Arc::clone(&own), own]).as_deref(), Some("bank/payments"));
    }

    proptest! {
        #[test]
        fn no_metadata_makes_a_pod_another_namespaces(
            name in prop_oneof![Just("payments".to_owned()), "[a-z]{1,8}"],
            annotations in prop::collection::btree_map(
                prop_oneof![
                    Just(annotation::MIRROR.to_owned()),
                    Just("kubernetes.io/config.hash".to_owned()),
                    Just("kubernetes.io/config.source".to_owned()),
                    "[a-z./]{1,20}",
                ],
                prop_oneof![Just(VICTIM.to_owned()), Just("bank".to_owned()), ".{0,40}"],
                0..4,
            ),
            owners in prop::collection::vec(prop_oneof![Just("Node"), Just("Pod"), Just("ReplicaSet")], 0..3),
            labels in prop::collection::btree_map("[a-z./]{1,20}", prop_oneof![Just(VICTIM.to_owned()), ".{0,10}"], 0..3),
        ) {
            let mut tenant = pod("tenant", &name, "own");
            tenant.metadata.annotations = annotations;
            tenant.metadata.labels = labels;
            let owner = |kind: &str| OwnerReference { kind: kind.to_owned(), uid: VICTIM.to_owned(), ..OwnerReference::default() };
            tenant.metadata.owner_references = owners.into_iter().map(owner).collect();
            let victim = Arc::new(pod("bank", "payments", VICTIM));
            prop_assert!(!tenant.describes(&victim.id_with(VICTIM)));
            let pods = [Arc::new(tenant), Arc::clone(&victim)];
            prop_assert_eq!(pod_of_uid(&pods, VICTIM), Some(&victim));
        }
    }
}
