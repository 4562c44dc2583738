//! Why the demo ended before its end.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;

use crate::cgroup::{CgroupError, LayoutError};
use crate::control::ClientError;
use crate::sources::ManifestError;

/// What to do where a container is all there is.
const OUT_OF_HERE: &str =
    "run the demo on the machine itself, or in a container started with --privileged --cgroupns=host";

/// The demo ended early. Whatever the reason, it removes what it made.
#[derive(Debug, thiserror::Error)]
pub(super) enum DemoError {
    /// No cgroups to work with.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// v2: children of the top cgroup do not get the controllers. It is not the demo's to change.
    #[error(
        "cgroups below {} do not get {missing}: as root, `echo '{missing}' > {}/cgroup.subtree_control` hands it down \
         (`-` for `+` takes it back); where that says \"busy\", this is a container: {OUT_OF_HERE}", mount.display(), mount.display()
    )]
    NotDelegated {
        /// The top.
        mount: PathBuf,
        /// The controllers that are not handed down, each with a plus.
        missing: String,
    },
    /// A cgroup could not be made.
    #[error("cannot make the cgroup {}: {source}{}", path.display(), hint(source))]
    Make {
        /// Which one.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A cgroup's file could not be read or written.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A file could not be used.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no daemon to run.
    #[error("there is no vscaled beside this vscalectl (no {}): build both with `cargo build --bins`", looked_for.display())]
    NoProgram {
        /// Where it should be.
        looked_for: PathBuf,
    },
    /// The built-in manifests are not understood.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The daemon ended by itself.
    #[error("vscaled ended ({status}); its log says:\n{log}")]
    DaemonEnded {
        /// How.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// A call to the daemon failed.
    #[error(transparent)]
    Call(#[from] ClientError),
    /// A worker ended.
    #[error("the process of container {name} ended: {how}")]
    WorkerEnded {
        /// Its container.
        name: String,
        /// How.
        how: String,
    },
    /// Something that was waited for did not happen.
    #[error("waited {patience:?} for {what}, and it did not come{}", ended(log))]
    Late {
        /// What.
        what: String,
        /// How long.
        patience: Duration,
        /// The end of the daemon's log.
        log: String,
    },
    /// Something happened that should not have.
    #[error("{0}")]
    Unexpected(String),
    /// A signal asked for the end.
    #[error("ended by {0}")]
    Interrupted(&'static str),
    /// Nobody reads the output any more.
    #[error("nobody reads the output")]
    Closed,
    /// Something could not be removed.
    #[error("not everything could be removed: {0}")]
    LeftBehind(String),
}

impl DemoError {
    /// For `map_err`: a file could not be used.
    pub(super) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}

/// What to do about a cgroup that could not be made.
fn hint(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EROFS | Errno::EACCES | Errno::EPERM) => format!("; {OUT_OF_HERE}"),
        _ => String::new(),
    }
}

fn ended(log: &str) -> String {
    if log.is_empty() {
        String::new()
    } else {
        format!("; vscaled's log says:\n{log}")
    }
}
