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

pub use crate::control::proto::Check;
pub use local::local;

/// What to do where no runtime answers.
pub const MEND_RUNTIME: &str = "start it, and mount its socket's directory here; or name its socket with runtimeSocket, `none` to do without a runtime";

impl Check {
    /// A check whose requirement is met.
    pub fn ok(name: &str, found: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            status: "ok".to_owned(),
            found: found.into(),
            mend: String::new(),
        }
    }

    /// Less is possible than could be.
    pub fn warn(name: &str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            status: "warn".to_owned(),
            mend: mend.into(),
            ..Self::ok(name, found)
        }
    }

    /// Something essential does not work.
    pub fn fail(name: &str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            status: "fail".to_owned(),
            ..Self::warn(name, found, mend)
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
