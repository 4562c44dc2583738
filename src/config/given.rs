//! A value as it was written, and where.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

/// A value as it was written.
///
/// Text in every layer, so that one check refuses a value in the same words wherever it came from. A list is its members
/// joined by commas, as on a command line.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Scalar")]
pub struct Given {
    /// What was written.
    pub text: String,
    /// Where.
    pub origin: Origin,
}

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// On the command line.
    Flag,
    /// In the environment.
    Environment,
    /// In a configuration file.
    File(PathBuf),
    /// Nowhere: it is the default.
    Default,
}

/// What a configuration file may hold for a key.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "the value must be a text, a number, true or false, or a list of texts"
)]
enum Scalar {
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<String>),
}

impl From<Scalar> for Given {
    /// [`super::Sources`] names the file.
    fn from(scalar: Scalar) -> Self {
        let text = match scalar {
            Scalar::Bool(value) => value.to_string(),
            Scalar::Number(value) => value.to_string(),
            Scalar::Text(text) => text,
            Scalar::List(members) => members.join(","),
        };
        Self {
            text,
            origin: Origin::File(PathBuf::new()),
        }
    }
}

impl FromStr for Given {
    type Err = Infallible;

    /// [`super::RunArguments`] tells the environment from the command line.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self {
            text: text.to_owned(),
            origin: Origin::Flag,
        })
    }
}
