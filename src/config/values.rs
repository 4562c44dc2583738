//! The values that only the configuration has, and how values print.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use serde::{Serialize, Serializer};

use crate::objects::UpdateMode;
use crate::resources::Bytes;

/// Where pods and VPAs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A directory of manifests.
    Directory,
    /// The API server.
    Kubernetes,
    /// Both.
    Both,
}

impl Source {
    /// Whether manifests are followed.
    #[must_use]
    pub const fn has_directory(self) -> bool {
        matches!(self, Self::Directory | Self::Both)
    }

    /// Whether the API server is followed.
    #[must_use]
    pub const fn has_cluster(self) -> bool {
        matches!(self, Self::Kubernetes | Self::Both)
    }
}

/// The container runtime's CRI socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeSocket {
    /// The first that answers of the usual ones.
    Auto,
    /// There is no runtime; cgroup files are written directly.
    None,
    /// This one.
    Path(PathBuf),
}

/// Where the audit log is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditLog {
    /// In the state directory.
    Auto,
    /// Nowhere.
    None,
    /// Here.
    Path(PathBuf),
}

/// An amount of memory, or a part of the node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// So much.
    Amount(Bytes),
    /// So many hundredths of all memory, at most 100.
    Percent(u8),
}

impl Share {
    /// The amount on a node with so much memory.
    #[must_use]
    pub fn of(self, all: Bytes) -> Bytes {
        match self {
            Self::Amount(amount) => amount,
            Self::Percent(percent) => Bytes::new(all.get() / 100 * u64::from(percent)),
        }
    }
}

impl FromStr for Share {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.strip_suffix('%') {
            Some(percent) => match percent.parse() {
                Ok(percent @ 0..=100) => Ok(Self::Percent(percent)),
                _ => Err(()),
            },
            None => Bytes::parse(text).map(Self::Amount).map_err(|_| ()),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amount(amount) => write!(f, "{amount}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// The modes a VPA may be acted on in, as they are written.
pub(super) const UPDATE_MODES: [(&str, UpdateMode); 4] = [
    ("Recreate", UpdateMode::Recreate),
    ("Auto", UpdateMode::Auto),
    ("InPlaceOrRecreate", UpdateMode::InPlaceOrRecreate),
    ("InPlace", UpdateMode::InPlace),
];

impl Serialize for RuntimeSocket {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::None => serializer.serialize_str("none"),
            Self::Path(path) => path.serialize(serializer),
        }
    }
}

impl Serialize for AuditLog {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::None => serializer.serialize_str("none"),
            Self::Path(path) => path.serialize(serializer),
        }
    }
}

/// None as the empty text.
pub(super) fn or_empty<T: fmt::Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_str(""),
    }
}

/// None as the empty text.
pub(super) fn path_or_empty<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => path.serialize(serializer),
        None => serializer.serialize_str(""),
    }
}

/// As Kubernetes writes amounts.
pub(super) fn bytes<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(bytes)
}

/// None as `auto`, anything else as it prints.
pub(super) fn or_auto<T: fmt::Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_str("auto"),
    }
}

/// None as `auto`, anything else as serde names it.
pub(super) fn or_auto_named<T: Serialize, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => value.serialize(serializer),
        None => serializer.serialize_str("auto"),
    }
}

/// `12h`, `1m30s`.
pub(super) fn signed_duration<S: Serializer>(value: &SignedDuration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:#}"))
}

/// `12h`, `1m30s`.
pub(super) fn duration<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    jiff::fmt::serde::unsigned_duration::friendly::compact::required::serialize(value, serializer)
}

/// A list of names.
pub(super) fn mode_names<S: Serializer>(modes: &[UpdateMode], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(
        UPDATE_MODES
            .iter()
            .filter(|(_, mode)| modes.contains(mode))
            .map(|(name, _)| name),
    )
}
