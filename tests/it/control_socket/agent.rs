//! An agent that follows a script, behind a real server on a real socket.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use vscaled::control::{Access, CallGate, ChangeFeed, ControlSocket, Limits, serve};

use super::script::{Gated, Script};

/// A running server, and the commands for it.
pub(super) struct Agent {
    pub(super) script: Arc<Script>,
    pub(super) stop: CancellationToken,
    pub(super) socket: PathBuf,
    server: Option<JoinHandle<()>>,
    directory: TempDir,
}

impl Agent {
    pub(super) fn start() -> Self {
        Self::with(Limits::default())
    }

    pub(super) fn with(limits: Limits) -> Self {
        Self::open_to(limits, Access::default())
    }

    /// A server that users other than root may call.
    pub(super) fn open_to(limits: Limits, access: Access) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("run/vscaled.sock");
        let script = Arc::new(Script {
            changes: ChangeFeed::default(),
            resized: Mutex::default(),
            turned_away: Mutex::default(),
            release_slow: CancellationToken::new(),
        });
        let stop = CancellationToken::new();
        let (bound, is_bound) = std::sync::mpsc::channel();
        let server = std::thread::spawn({
            let (path, script, stop) = (socket.clone(), Arc::clone(&script), stop.clone());
            move || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let socket = ControlSocket::bind(&path, access).await.unwrap();
                    bound.send(()).unwrap();
                    let turned_away = Arc::clone(&script);
                    let gate = Arc::new(CallGate::new(limits, stop, move |caller, call, reason| {
                        let refusal = (caller, call, reason.to_owned());
                        turned_away.turned_away.lock().unwrap().push(refusal);
                    }));
                    let agent = Gated {
                        script,
                        gate: Arc::clone(&gate),
                    };
                    serve(socket, agent, &gate).await;
                });
            }
        });
        is_bound.recv().unwrap();
        Self {
            script,
            stop,
            socket,
            server: Some(server),
            directory,
        }
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// `vscalectl` with these arguments, not started yet.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        vscalectl(&self.socket, arguments)
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Answer {
        Answer::from(self.command(arguments).output().unwrap())
    }

    /// Stops the server and waits until it has ended.
    pub(super) fn stop(&mut self) {
        self.stop.cancel();
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.script.release_slow.cancel();
        self.stop.cancel();
        if let Some(server) = self.server.take() {
            assert!(server.join().is_ok() || std::thread::panicking());
        }
    }
}

pub(super) fn vscalectl(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vscalectl"));
    command
        .args(arguments)
        .env("VSCALED_SOCKET", socket)
        .env_remove("NO_COLOR");
    command
}

/// The output and the exit code of a command.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: Option<i32>,
    pub(super) out: String,
    pub(super) err: String,
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Answer {
    /// Standard output as JSON, of a command that succeeded.
    pub(super) fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.out).unwrap()
    }

    /// Standard output as text, of a command that succeeded.
    pub(super) fn text(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        &self.out
    }

    /// Standard error, of a command that ended with this code.
    pub(super) fn error(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        &self.err
    }
}
