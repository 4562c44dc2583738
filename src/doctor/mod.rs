//! Checks that the machine has all that the agent needs, and says how to mend what is missing.
//!
//! In come the paths that the agent uses ([`Locations`]); out comes one [`Check`] for each examined thing. The agent
//! examines itself so ([`local()`] checks the rights of *this process*), and so does `vscalectl doctor` where no agent
//! answers. A check changes nothing: it writes no file, and consumes no record of the kernel's log.
//!
//! A new check is one function: in the list of `local` for the machine, in `agent::doctor` for the agent's knowledge.

mod local;

use std::path::PathBuf;

pub use crate::control::proto::Check;
use crate::oom::kmsg::DEVICE;
pub use local::local;

/// The advice where no runtime answers.
pub const MEND_RUNTIME: &str = "start it, and mount its socket's directory here; or name its socket with runtimeSocket, `none` to do without a runtime";

/// What a check found, or the nameless check of a missing requirement, with its remedy.
pub type Found = Result<String, Check>;

impl Check {
    /// A missing requirement that restricts the agent.
    pub fn warn(found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::nameless("warn", found.into(), mend.into())
    }

    /// A missing requirement without which the agent cannot work.
    pub fn fail(found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::nameless("fail", found.into(), mend.into())
    }

    /// Its status follows from what was found.
    pub fn new(name: &str, found: Found) -> Self {
        let check = found.map_or_else(|missing| missing, |found| Self::nameless("ok", found, String::new()));
        let name = name.to_owned();
        Self { name, ..check }
    }

    fn nameless(status: &str, found: String, mend: String) -> Self {
        let (name, status) = (String::new(), status.to_owned());
        Self {
            name,
            status,
            found,
            mend,
        }
    }
}

/// The paths that the agent uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locations {
    /// The root of the cgroup hierarchies; `None` means the mount table.
    pub cgroup_root: Option<PathBuf>,
    /// The directory of the state that outlives the agent.
    pub state_dir: PathBuf,
    /// The audit log, if there is one.
    pub audit_file: Option<PathBuf>,
    /// The kernel's log: a device, or the word for syslog(2).
    pub kmsg: PathBuf,
}

impl Default for Locations {
    /// The paths of an agent with the default configuration.
    fn default() -> Self {
        Self {
            cgroup_root: None,
            state_dir: PathBuf::from("/var/lib/vscaled"),
            audit_file: None,
            kmsg: PathBuf::from(DEVICE),
        }
    }
}
