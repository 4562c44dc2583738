//! The types and words that only the configuration has, and how its values print.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

use crate::model::Bytes;
use crate::model::objects::UpdateMode;

/// An `Option` in which clap sees one value, whose parser decides: an `Option` by its own name means an absent flag.
pub(super) type Optional<T> = Option<T>;

/// A `Vec` in which clap sees one value: a `Vec` by its own name means a flag given several times.
pub(super) type List<T> = Vec<T>;

pub(super) static UPDATE_MODES: [(&str, UpdateMode); 4] = [
    ("Recreate", UpdateMode::Recreate),
    ("Auto", UpdateMode::Auto),
    ("InPlaceOrRecreate", UpdateMode::InPlaceOrRecreate),
    ("InPlace", UpdateMode::InPlace),
];

/// Where pods and VPAs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A directory of manifests on the node.
    Directory,
    /// The API server of the cluster.
    Kubernetes,
    /// The directory and the API server.
    Both,
}

impl Source {
    /// Whether the directory of manifests is followed.
    pub const fn has_directory(self) -> bool {
        matches!(self, Self::Directory | Self::Both)
    }

    /// Whether the API server is followed.
    pub const fn has_cluster(self) -> bool {
        matches!(self, Self::Kubernetes | Self::Both)
    }
}

/// The path of something the agent may find by itself, or do without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathSetting {
    /// The agent finds it by itself.
    Auto,
    /// The agent does without it.
    None,
    /// The agent uses this path.
    Path(PathBuf),
}

impl Serialize for PathSetting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::None => serializer.serialize_str("none"),
            Self::Path(path) => path.serialize(serializer),
        }
    }
}

/// An amount of memory, or a part of the node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// A number of bytes.
    Amount(Bytes),
    /// Hundredths of the node's memory, at most 100.
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

/// Values as `--print-config` prints them, so that they can be read again.
pub(super) mod print {
    use std::fmt::Display;

    use super::{Bytes, Optional, PathBuf, Serialize, Serializer, UPDATE_MODES, UpdateMode};

    fn or_word<T: Serialize, S: Serializer>(value: Option<T>, word: &str, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => value.serialize(serializer),
            None => serializer.serialize_str(word),
        }
    }

    pub(in crate::config) fn or_empty<T: Display, S: Serializer>(
        value: &Optional<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        or_word(value.as_ref().map(T::to_string), "", to)
    }

    pub(in crate::config) fn path_or_empty<S: Serializer>(path: &Optional<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        or_word(path.as_ref(), "", to)
    }

    pub(in crate::config) fn or_auto<T: Display, S: Serializer>(value: &Optional<T>, to: S) -> Result<S::Ok, S::Error> {
        or_word(value.as_ref().map(T::to_string), "auto", to)
    }

    pub(in crate::config) fn or_auto_named<T: Serialize, S: Serializer>(
        value: &Optional<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        or_word(value.as_ref(), "auto", to)
    }

    pub(in crate::config) fn bytes<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(bytes)
    }

    pub(in crate::config) fn update_modes<S: Serializer>(modes: &[UpdateMode], to: S) -> Result<S::Ok, S::Error> {
        let given = UPDATE_MODES.iter().filter(|(_, mode)| modes.contains(mode));
        to.collect_seq(given.map(|(name, _)| name))
    }
}
