//! How containers are identified.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A container's name in its pod's spec. No two containers of a pod have the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[derive(derive_more::Deref, derive_more::Display, derive_more::From)]
#[deref(forward)]
#[from(String, &str)]
pub struct ContainerName(Arc<str>);

/// Makes a type that derefs to a text comparable with texts, and a key that maps find by its text.
macro_rules! named_by_text {
    ($name:ident) => {
        impl $name {
            pub fn as_str(&self) -> &str {
                self
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                self
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                **self == *other
            }
        }
    };
}

pub(super) use named_by_text;

named_by_text!(ContainerName);

/// A container's (or sandbox's) id: 64 hexadecimal digits. A container that starts again has another id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[derive(derive_more::Deref, derive_more::Display)]
#[deref(forward)]
pub struct ContainerId(String);

impl ContainerId {
    /// The id, if the text is 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == 64 && text.bytes().all(is_hex_digit)).then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        self
    }

    /// An id that is easier to read than those of runtimes.
    #[cfg(test)]
    pub(crate) fn of_test(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// Whether ids and UIDs in cgroups' names may have this digit.
pub(crate) const fn is_hex_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}
