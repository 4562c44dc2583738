//! The names inside cgroup names: pod UIDs and container ids.

use serde::{Deserialize, Serialize};

/// A pod's UID as the kubelet knows it, with dashes. A static pod's is the hash of its manifest, 32 hexadecimal digits,
/// which the API shows as the annotation `kubernetes.io/config.hash` and not as the mirror pod's UID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(transparent)]
pub struct PodUid(String);

impl PodUid {
    /// Reads a UID out of a cgroup name, where systemd's rules turn dashes into underscores.
    #[must_use]
    pub fn in_cgroup_name(text: &str) -> Option<Self> {
        let is_uid = match text.len() {
            32 => is_hex(text),
            36 => text.bytes().enumerate().all(|(at, byte)| match at {
                8 | 13 | 18 | 23 => matches!(byte, b'-' | b'_'),
                _ => is_hex_digit(byte),
            }),
            _ => false,
        };
        is_uid.then(|| Self(text.replace('_', "-")))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A container's (or sandbox's) id: 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(transparent)]
pub struct ContainerId(String);

impl ContainerId {
    /// The id, if the text is 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == 64 && is_hex(text)).then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(is_hex_digit)
}

const fn is_hex_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_uuids_or_manifest_hashes() {
        let uuid = "6c4b2d1e-0000-4000-8000-00000000000a";
        assert_eq!(PodUid::in_cgroup_name(uuid).unwrap().as_str(), uuid);
        assert_eq!(PodUid::in_cgroup_name(&uuid.replace('-', "_")).unwrap().as_str(), uuid);
        let hash = "0123456789abcdef0123456789abcdef";
        assert_eq!(PodUid::in_cgroup_name(hash).unwrap().as_str(), hash);
        for bad in [
            "",
            "6c4b2d1e",
            &uuid.to_uppercase(),
            &uuid[1..],
            "6c4b2d1e.0000-4000-8000-00000000000a",
        ] {
            assert_eq!(PodUid::in_cgroup_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn container_ids_are_64_hexadecimal_digits() {
        assert!(ContainerId::parse(&"a1".repeat(32)).is_some());
        assert!(ContainerId::parse(&"a1".repeat(31)).is_none());
        assert!(ContainerId::parse(&"A1".repeat(32)).is_none());
        assert!(ContainerId::parse(&"g1".repeat(32)).is_none());
    }
}
