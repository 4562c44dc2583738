//! A daemon for the benchmark: the built `vscaled` with a temporary directory, observed at its socket.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use vscaled::control::{Client, Watch, proto};
use vscaled::model::CgroupPath;

/// Longest wait for anything that is not measured.
const PATIENCE: Duration = Duration::from_secs(30);

/// The running daemon. Dropping the value ends it; the written values stay in the cgroups.
#[derive(Debug)]
pub(crate) struct Agent {
    process: Child,
    directory: TempDir,
    watch: Watch,
}

impl Agent {
    /// Starts the daemon with manifests of pods, and waits until it has found `pods` of them running.
    pub(crate) async fn start(
        kubepods: &CgroupPath,
        runtime: Option<&Path>,
        manifests: &str,
        pods: usize,
    ) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("vscaled-bench-").tempdir()?;
        let file = |name: &str| directory.path().join(name);
        fs::create_dir(file("manifests"))?;
        fs::write(file("manifests/pods.yaml"), manifests)?;
        let log = File::create(file("log"))?;
        let process = Command::new(env!("CARGO_BIN_EXE_vscaled"))
            .arg("run")
            .arg("--manifests")
            .arg(file("manifests"))
            .arg("--state-dir")
            .arg(file("state"))
            .arg("--socket")
            .arg(file("socket"))
            .args([
                "--http-address",
                "",
                "--kubepods",
                kubepods.as_str(),
                "--runtime-socket",
            ])
            .arg(runtime.unwrap_or(Path::new("none")))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("vscaled")?;
        let mut process = Kill(Some(process));
        let watch = ready(&file("socket"), pods)
            .await
            .with_context(|| fs::read_to_string(file("log")).unwrap_or_default())?;
        let process = process.0.take().context("the daemon was just started")?;
        Ok(Self {
            process,
            directory,
            watch,
        })
    }

    /// Writes a manifest atomically: to a file beside it, which is then renamed.
    pub(crate) fn put(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let partial = self.directory.path().join("partial");
        fs::write(&partial, text)?;
        fs::rename(partial, self.manifest(name))?;
        Ok(())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// The end of the agent's log.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.directory.path().join("manifests").join(name)
    }

    /// The next change that follows a recommendation. Anything but a full success ends the benchmark.
    pub(crate) async fn next_change(&mut self) -> anyhow::Result<proto::Change> {
        loop {
            let change = tokio::time::timeout(PATIENCE, self.watch.next())
                .await
                .with_context(|| format!("no change within {PATIENCE:?}; the agent's log:\n{}", self.log()))??;
            ensure!(change.missed == 0, "{} changes were missed", change.missed);
            // A kill of another process: the benchmark's pods do not run short of memory.
            if change.kill.is_some() {
                continue;
            }
            let (cause, outcome) = (&change.cause, &change.outcome);
            ensure!(
                outcome == "Applied",
                "{}: {cause}: {outcome}: {}",
                change.name,
                change.reason
            );
            if cause.starts_with("recommendation") {
                return Ok(change);
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// A daemon that did not become ready, and is killed.
struct Kill(Option<Child>);

impl Drop for Kill {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            end(process);
        }
    }
}

fn end(process: &mut Child) {
    let pid = i32::try_from(process.id()).map(Pid::from_raw);
    if let Ok(pid) = pid
        && let Err(error) = kill(pid, Signal::SIGTERM)
    {
        eprintln!("vscaled: {error}");
    }
    if let Err(error) = process.wait() {
        eprintln!("vscaled: {error}");
    }
}

/// Waits for the socket, and for this many pods with all of their containers.
async fn ready(socket: &Path, pods: usize) -> anyhow::Result<Watch> {
    let started = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let alive = match Client::connect(socket).await {
            Ok(mut client) => {
                let known = client.get().await?;
                let alive = |pod: &&proto::Pod| pod.containers.iter().all(|container| container.id.is_some());
                if known.pods.iter().filter(alive).count() == pods {
                    return Ok(client.watch().await?);
                }
                format!("{} of {pods} pods; {:?}", known.pods.len(), known.agent)
            }
            Err(error) => error.to_string(),
        };
        ensure!(started.elapsed() < PATIENCE, "the agent does not become ready: {alive}");
    }
}
