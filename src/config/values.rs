//! The types that only the configuration has.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

use crate::model::{Bytes, percent};

/// An `Option` that the value's parser makes. clap takes the name `Option` for a flag that may be absent.
pub(super) type Optional<T> = Option<T>;

/// A `bool` that the value's parser makes. clap takes the name `bool` for a flag without a value.
pub(super) type Switch = bool;

/// A `Vec` that the value's parser makes. clap takes the name `Vec` for a flag that may be repeated.
pub(super) type List<T> = Vec<T>;

/// Where pods and VPAs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A directory of manifests on the node.
    Directory,
    /// The API server of the cluster.
    Kubernetes,
    /// The API server of the cluster, and the node's kubelet for pods.
    Kubelet,
    /// The directory and the API server.
    Both,
}

impl Source {
    /// Whether the agent follows the directory of manifests.
    pub const fn has_directory(self) -> bool {
        matches!(self, Self::Directory | Self::Both)
    }

    /// Whether the agent follows the API server.
    pub const fn has_cluster(self) -> bool {
        !matches!(self, Self::Directory)
    }
}

/// A path that the agent may find by itself, or do without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathSetting {
    /// The agent finds it by itself.
    Auto,
    /// The agent does without it.
    None,
    /// The agent uses this path.
    Path(PathBuf),
}

/// An amount of memory, or a part of the node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum Share {
    Amount(Bytes),
    /// Hundredths of the node's memory, at most 100.
    #[display("{_0}%")]
    Percent(u8),
}

impl Share {
    /// The amount on a node with so much memory.
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
        let amount = || text.parse().map(Self::Amount).map_err(|_| ());
        percent(text).map(Self::Percent).map_or_else(amount, Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_an_amount_or_a_part() {
        let of = |text: &str| text.parse().map(|share: Share| share.of(Bytes::new(1000)).get());
        for (text, expected) in [
            ("5%", Ok(50)),
            ("0%", Ok(0)),
            ("100%", Ok(1000)),
            ("101%", Err(())),
            ("2Ki", Ok(2048)),
            ("much", Err(())),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
    }

    #[test]
    fn each_source_follows_its_sides() {
        for (source, directory, cluster) in [
            (Source::Directory, true, false),
            (Source::Kubernetes, false, true),
            (Source::Kubelet, false, true),
            (Source::Both, true, true),
        ] {
            assert_eq!((source.has_directory(), source.has_cluster()), (directory, cluster));
        }
    }
}
