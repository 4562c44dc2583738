//! An agent that follows a script, behind a real server on a real socket.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tempfile::TempDir;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use vscaled::control::proto::{
    self, Change, Container, ExplainReply, ExplainRequest, GetReply, GetRequest, HistoryReply, HistoryRequest,
    Override, Pod, ReleaseReply, ReleaseRequest, ResizeReply, ResizeRequest, Stages, Step, Value,
};
use vscaled::control::{Backend, Caller, ControlError, ControlSocket, Limits, find_pod, resize_values, serve};

/// Knows two pods. The container's name decides how a resize ends.
pub(super) struct Script {
    pub(super) changes: broadcast::Sender<Arc<Change>>,
    pub(super) resized: Mutex<Vec<(Caller, ResizeRequest)>>,
    /// A resize of container `slow` ends when this is cancelled.
    pub(super) release_slow: CancellationToken,
}

impl Backend for Script {
    async fn get(&self, _request: GetRequest) -> Result<GetReply, ControlError> {
        Ok(GetReply {
            agent: Some(proto::Agent {
                version: "1.2.3".to_owned(),
                problems: vec!["no runtime answers".to_owned()],
                ..proto::Agent::default()
            }),
            pods: pods(),
        })
    }

    async fn explain(&self, request: ExplainRequest) -> Result<ExplainReply, ControlError> {
        let pods = pods();
        Ok(ExplainReply {
            pod: Some(find_pod(&pods, &request.pod)?.clone()),
            values: values(),
            notes: vec!["app cpu limit: 500m, lowered from 900m by maxAllowed of the VPA".to_owned()],
            next: "the runtime is told again in 4 s".to_owned(),
            changes: vec![change("Applied", "")],
        })
    }

    async fn resize(&self, caller: Caller, request: ResizeRequest) -> Result<ResizeReply, ControlError> {
        let values = resize_values(&request)?;
        find_pod(&pods(), &request.pod)?;
        self.resized.lock().unwrap().push((caller, request.clone()));
        let outcome = match values[0].name.as_str() {
            "app" if request.dry_run => "Planned",
            "app" => "Applied",
            "owed" => "RuntimeOwed",
            "back" => "RolledBack",
            "newer" => "Transcended",
            "slow" => {
                self.release_slow.cancelled().await;
                "Applied"
            }
            "large" => {
                let refusal = "the node has 1Gi left, 2Gi are missing";
                return Err(ControlError::Refused(refusal.to_owned()));
            }
            other => {
                return Err(ControlError::Invalid {
                    field: "containers[0].name".to_owned(),
                    message: format!("the pod has no container {other:?}: it has app"),
                });
            }
        };
        let change = change(outcome, if outcome == "Applied" { "" } else { "as the script says" });
        if outcome == "Applied" {
            // Nobody watching is fine.
            self.changes.send(Arc::new(change.clone())).ok();
        }
        Ok(ResizeReply { change: Some(change) })
    }

    async fn release(&self, _caller: Caller, request: ReleaseRequest) -> Result<ReleaseReply, ControlError> {
        find_pod(&pods(), &request.pod)?;
        Ok(ReleaseReply {
            change: Some(change("Applied", "released")),
        })
    }

    async fn history(&self, request: HistoryRequest) -> Result<HistoryReply, ControlError> {
        if !request.pod.is_empty() {
            find_pod(&pods(), &request.pod)?;
        }
        Ok(HistoryReply {
            changes: vec![change("Applied", ""), change("Refused", "below what it uses")],
        })
    }

    fn watch(&self) -> broadcast::Receiver<Arc<Change>> {
        self.changes.subscribe()
    }
}

fn amounts(cpu: &str) -> Option<proto::Requirements> {
    let amounts = Some(proto::Amounts {
        cpu: Some(cpu.to_owned()),
        memory: None,
    });
    Some(proto::Requirements {
        requests: amounts.clone(),
        limits: amounts,
    })
}

fn pods() -> Vec<Pod> {
    let web = Pod {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "11111111-aaaa".to_owned(),
        qos_class: "Burstable".to_owned(),
        vpa: Some("web".to_owned()),
        action: "resize".to_owned(),
        reason: "OutsideBounds".to_owned(),
        state: "Owed".to_owned(),
        detail: "the runtime\u{1b}[2J hangs".to_owned(),
        containers: vec![Container {
            name: "app".to_owned(),
            id: Some("containerd://c0ffee01".to_owned()),
            wanted: amounts("500m"),
            spec: amounts("200m"),
        }],
        r#override: Some(Override {
            uid: 0,
            pid: 77,
            reason: "load test".to_owned(),
            since: "2020-01-31T12:00:00Z".to_owned(),
            until: None,
        }),
        ..Pod::default()
    };
    let db = Pod {
        namespace: "shop".to_owned(),
        name: "db".to_owned(),
        uid: "22222222-bbbb".to_owned(),
        qos_class: "Guaranteed".to_owned(),
        action: "none".to_owned(),
        state: "NotManaged".to_owned(),
        containers: vec![Container {
            name: "db".to_owned(),
            id: Some("containerd://c0ffee02".to_owned()),
            wanted: None,
            spec: amounts("2"),
        }],
        ..Pod::default()
    };
    vec![web, db]
}

fn values() -> Vec<Value> {
    let value = |level: &str, name: &str, path: &str, kernel: &str, runtime: &str, difference: &str| Value {
        level: level.to_owned(),
        name: name.to_owned(),
        path: path.to_owned(),
        file: "cpu.max".to_owned(),
        spec: "20000 100000".to_owned(),
        wanted: "50000 100000".to_owned(),
        kernel: kernel.to_owned(),
        runtime: runtime.to_owned(),
        owner: "vscaled".to_owned(),
        difference: difference.to_owned(),
    };
    let stored = "cpu_quota=20000 cpu_period=100000 and further things that go on for long";
    let late = "the runtime has 20000 stored: it would write that back when the container is updated by others, so it is told again";
    vec![
        value(
            "pod",
            "",
            "/kubepods/burstable/pod11111111-aaaa",
            "50000 100000",
            "",
            "",
        ),
        value(
            "container",
            "app",
            "/kubepods/burstable/pod11111111-aaaa/c0ffee01",
            "50000 100000",
            stored,
            late,
        ),
    ]
}

pub(super) fn change(outcome: &str, reason: &str) -> Change {
    Change {
        sequence: 7,
        at: "2026-01-31T12:00:00.25Z".to_owned(),
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "11111111-aaaa".to_owned(),
        cause: "override".to_owned(),
        outcome: outcome.to_owned(),
        reason: reason.to_owned(),
        steps: vec![Step {
            via: "cgroup".to_owned(),
            level: "container".to_owned(),
            name: "app".to_owned(),
            file: "cpu.max".to_owned(),
            from: "20000 100000".to_owned(),
            to: "50000 100000".to_owned(),
            took_us: 85,
            ..Step::default()
        }],
        stages: Some(Stages {
            verified_us: 1290,
            ..Stages::default()
        }),
        missed: 0,
    }
}

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
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("run/vscaled.sock");
        let (changes, _) = broadcast::channel(4);
        let script = Arc::new(Script {
            changes,
            resized: Mutex::default(),
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
                    let socket = ControlSocket::bind(&path).await.unwrap();
                    bound.send(()).unwrap();
                    serve(socket, script, limits, stop).await.unwrap();
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

    /// `vscalectl` with these arguments, not yet started.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        vscalectl(&self.socket, arguments)
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Answer {
        Answer::from(self.command(arguments).output().unwrap())
    }

    /// Tells the server to stop and waits for its end.
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

/// What a command printed and how it ended.
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
