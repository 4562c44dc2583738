//! Looks at the machine for what the agent needs, and says what is missing and how to mend it.
//!
//! In come the places the agent works with ([`Locations`]); out comes one [`Check`] for each thing that was looked at.
//! The agent examines itself with this ([`local()`] tells what *this process* may do), and `vscalectl doctor` does where no
//! agent answers. Looking changes nothing: no file is written, and no record of the kernel's log is used up.
//!
//! A new check is one function in the list of its room: `local` for the machine, `agent::doctor` for what only the
//! agent knows.

mod kernel;
mod local;

use std::path::PathBuf;

use serde::Serialize;

use crate::control::proto;

pub use local::local;

/// What to do where no runtime answers.
pub const MEND_RUNTIME: &str = "start it, and mount its socket's directory here; or name its socket with runtimeSocket, `none` to do without a runtime";

/// How well a requirement of the agent is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    /// Less is possible than could be.
    Warn,
    /// Something essential does not work.
    Fail,
}

impl Status {
    /// Its word in the protocol.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The name of the check.
    pub name: &'static str,
    /// The result of the check.
    pub status: Status,
    /// A description of what was found.
    pub found: String,
    /// What to do about it; empty where all is well.
    pub mend: String,
}

impl Check {
    /// A check whose requirement is met.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Ok,
            found: found.into(),
            mend: String::new(),
        }
    }

    /// Less is possible than could be.
    pub fn warn(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            mend: mend.into(),
            status: Status::Warn,
            ..Self::ok(name, found)
        }
    }

    /// Something essential does not work.
    pub fn fail(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            status: Status::Fail,
            ..Self::warn(name, found, mend)
        }
    }
}

impl From<Check> for proto::Check {
    fn from(check: Check) -> Self {
        Self {
            name: check.name.to_owned(),
            status: check.status.word().to_owned(),
            found: check.found,
            mend: check.mend,
        }
    }
}

/// The places the agent works with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locations {
    /// Where the cgroup hierarchies are; `None` takes them from the mount table.
    pub cgroup_root: Option<PathBuf>,
    /// What must outlive the agent.
    pub state_dir: PathBuf,
    /// The audit log, if there is one.
    pub audit_file: Option<PathBuf>,
}

impl Default for Locations {
    /// Those of an agent that is not told otherwise.
    fn default() -> Self {
        Self {
            cgroup_root: None,
            state_dir: PathBuf::from("/var/lib/vscaled"),
            audit_file: None,
        }
    }
}
