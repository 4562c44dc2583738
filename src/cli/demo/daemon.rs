//! The real daemon, on a directory and a socket of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use super::crew::own_command;
use super::error::DemoError;
use crate::cgroup::CgroupPath;
use crate::config::KEYS;
use crate::control::{Client, ClientError};
use crate::plan::{Driver, NodeTraits};

/// How much of the log an error shows.
const LOG_LINES: usize = 10;

/// The daemon, and where its things are.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) child: Child,
    pub(super) socket: PathBuf,
    pub(super) manifests: PathBuf,
    log: PathBuf,
}

/// The `vscaled` beside this `vscalectl`.
pub(super) fn program() -> Result<PathBuf, DemoError> {
    let own = std::env::current_exe().map_err(DemoError::file("find this program", "/proc/self/exe"))?;
    let program = own.with_file_name("vscaled");
    if program.is_file() {
        Ok(program)
    } else {
        Err(DemoError::NoProgram { looked_for: program })
    }
}

/// Puts a manifest in its place at once: nobody ever sees half of it.
pub(super) fn put_manifest(manifests: &Path, name: &str, text: &str) -> Result<(), DemoError> {
    let (hidden, shown) = (manifests.join(format!(".{name}")), manifests.join(name));
    fs::write(&hidden, text).map_err(DemoError::file("write", &hidden))?;
    fs::rename(&hidden, &shown).map_err(DemoError::file("rename", &hidden))
}

impl Daemon {
    /// Starts the program. Flags say everything, so that neither the environment nor what else runs here matters.
    pub(super) fn start(
        program: &Path,
        directory: &Path,
        kubepods: &CgroupPath,
        traits: &NodeTraits,
    ) -> Result<Self, DemoError> {
        let (socket, log) = (directory.join("vscaled.sock"), directory.join("vscaled.log"));
        let manifests = directory.join("manifests");
        fs::create_dir(&manifests).map_err(DemoError::file("make the directory", &manifests))?;
        let state = directory.join("state");
        let output = File::create(&log).map_err(DemoError::file("create", &log))?;
        let errors = output.try_clone().map_err(DemoError::file("share", &log))?;
        let mut command = own_command("demo-leash")?;
        command.arg("--").arg(program).arg("run");
        for (flag, value) in [
            ("--manifests", &manifests),
            ("--state-dir", &state),
            ("--socket", &socket),
        ] {
            command.arg(flag).arg(value);
        }
        let driver = match traits.driver {
            Driver::Cgroupfs => "cgroupfs",
            Driver::Systemd => "systemd",
        };
        command.args(["--kubepods", kubepods.as_str(), "--cgroup-driver", driver]);
        command.arg("--weight-formula").arg(traits.container_weight.to_string());
        command.arg("--kubelet-version").arg(traits.kubelet.to_string());
        command.args(["--runtime-socket", "none", "--http-address", "", "--log-format", "text"]);
        for variable in KEYS.iter().map(|key| key.env).chain(["VSCALED_CONFIG"]) {
            command.env_remove(variable);
        }
        command.env("NO_COLOR", "1").stdout(output).stderr(errors);
        let child = command
            .spawn()
            .map_err(DemoError::file("start vscaled through", command.get_program()))?;
        Ok(Self {
            child,
            socket,
            manifests,
            log,
        })
    }

    /// Waits until it answers at its socket.
    ///
    /// # Errors
    /// [`DemoError::DaemonEnded`] or [`DemoError::Late`], with the end of its log.
    pub(super) async fn answer(&mut self, patience: Duration) -> Result<Client, DemoError> {
        let began = Instant::now();
        loop {
            match Client::connect(&self.socket).await {
                Ok(client) => return Ok(client),
                Err(ClientError::NoDaemon { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            self.check()?;
            if began.elapsed() > patience {
                return Err(self.late("vscaled to answer at its socket", patience));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// [`DemoError::DaemonEnded`] if it does not.
    pub(super) fn check(&mut self) -> Result<(), DemoError> {
        match self
            .child
            .try_wait()
            .map_err(DemoError::file("wait for vscaled", &self.log))?
        {
            None => Ok(()),
            Some(status) => Err(DemoError::DaemonEnded {
                status,
                log: self.log_end(),
            }),
        }
    }

    /// Something that was waited for did not happen.
    pub(super) fn late(&self, what: &str, patience: Duration) -> DemoError {
        DemoError::Late {
            what: what.to_owned(),
            patience,
            log: self.log_end(),
        }
    }

    fn log_end(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string());
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}
