//! One key of the configuration, and one with its value. Which keys there are is in `keys`.

use super::given::{Given, Origin};

/// One key of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    pub(super) field: &'static str,
    /// Its name in the file.
    pub name: &'static str,
    /// Its environment variable.
    pub env: &'static str,
    /// The value when nobody gives one.
    pub default: &'static str,
    /// Whether a reload changes it in a running agent.
    pub live: bool,
    /// What it means.
    pub meaning: &'static str,
}

impl Key {
    /// Its flag, with the dashes.
    #[must_use]
    pub fn flag(&self) -> String {
        format!("--{}", self.field.replace('_', "-"))
    }
}

/// A key with the value that won.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) key: Key,
    pub(super) given: Given,
}

impl Value {
    pub(super) fn new(key: Key, given: Option<Given>) -> Self {
        let default = || Given {
            text: key.default.to_owned(),
            origin: Origin::Default,
        };
        Self {
            key,
            given: given.unwrap_or_else(default),
        }
    }
}
