//! Everything that the demo creates, and its removal.
//!
//! All names are `vscaled-demo-PID`, and the demo touches nothing without such a name. While it runs, the demo holds
//! a lock on each directory of that name. After `kill -9` the kernel ends the processes, and the next demo removes
//! the unlocked directories.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use vscaled::model::Resource;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vscaled::cgroup::Hierarchy;

use super::pod::Pod;
use super::screen::Screen;

const PREFIX: &str = "vscaled-demo-";
/// Root's own directory, in memory.
const BASE: &str = "/run";
/// Longest wait for the end of a process, and for a cgroup to become empty.
const PATIENCE: Duration = Duration::from_secs(20);
/// The interval between retries.
pub(crate) const AGAIN: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Stage {
    /// The cgroup mounts: one, or one for each controller.
    pub(crate) mounts: Vec<PathBuf>,
    pub(crate) name: String,
    directory: PathBuf,
    /// The process in each container.
    pub(crate) workers: Vec<(&'static str, Child)>,
    agent: Option<Child>,
    /// The directory and the top cgroups, each with its lock.
    made: Vec<(PathBuf, File)>,
}

impl Stage {
    /// Creates the directory and the top cgroups, and removes those of killed demos.
    pub(crate) fn new(screen: &mut Screen) -> Result<Self> {
        let hierarchy = Hierarchy::discover(None)?;
        let mut mounts = Resource::ALL
            .map(|controller| hierarchy.mount(controller).to_owned())
            .to_vec();
        mounts.dedup();
        super::pod::check_delegation(&mounts[0])?;
        let name = format!("{PREFIX}{}", std::process::id());
        let directory = Path::new(BASE).join(&name);
        let mut stage = Self {
            mounts,
            name,
            directory,
            workers: Vec::new(),
            agent: None,
            made: Vec::new(),
        };
        let cgroups = stage.mounts.iter().map(|mount| mount.join(&stage.name));
        let roots: Vec<PathBuf> = cgroups.chain([stage.directory.clone()]).collect();
        for root in roots {
            remove_abandoned(&root, screen)?;
            let made = DirBuilder::new().mode(0o700).create(&root);
            made.with_context(|| format!("cannot make {}", root.display()))?;
            let lock = File::open(&root)?;
            lock.lock()?;
            stage.made.push((root, lock));
        }
        fs::create_dir(stage.path("manifests"))?;
        Ok(stage)
    }

    /// A file in the demo's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn cgroup_version(&self) -> &'static str {
        if self.mounts.len() > 1 { "v1" } else { "v2" }
    }

    /// Writes a manifest atomically, so that no reader finds half of it.
    pub(crate) fn put_manifest(&self, name: &str, text: &str) -> Result<PathBuf> {
        let (hidden, shown) = (self.path("manifests/.new"), self.path("manifests").join(name));
        fs::write(&hidden, text)?;
        fs::rename(&hidden, &shown)?;
        Ok(shown)
    }

    /// Starts a process that holds memory and works in a container's cgroups.
    pub(crate) fn start_worker(&mut self, pod: &Pod, container: &'static str, bytes: u64) -> Result<()> {
        let mut command = own_command("work")?;
        command
            .arg(bytes.to_string())
            .arg(self.path(container))
            .args(pod.directories_of(container));
        self.workers.push((container, command.spawn()?));
        Ok(())
    }

    /// The number of blocks that each process has checked since its start.
    ///
    /// # Errors
    /// If a process has ended. The kernel does not reuse its pid before the demo waits for it.
    pub(crate) fn blocks_checked(&mut self) -> Result<Vec<u64>> {
        let directory = &self.directory;
        let checked = |(container, child): &mut (&'static str, Child)| {
            if let Some(status) = child.try_wait()? {
                bail!("the process of container {container} ended: {status}");
            }
            // The file is empty until the first block is checked.
            let text = fs::read_to_string(directory.join(container)).unwrap_or_default();
            Ok(text.trim().parse().unwrap_or(0))
        };
        self.workers.iter_mut().map(checked).collect()
    }

    /// Starts `vscaled run`. Flags say everything, so that neither the environment nor other agents matter.
    pub(crate) fn start_agent(&mut self) -> Result<u32> {
        let log = File::create(self.path("vscaled.log"))?;
        let mut command = own_command("exec")?;
        command.arg(program("vscaled")?).arg("run");
        for (flag, file) in [
            ("--manifests", "manifests"),
            ("--state-dir", "state"),
            ("--socket", "vscaled.sock"),
        ] {
            command.arg(flag).arg(self.path(file));
        }
        command.args([
            "--kubepods",
            &format!("/{}/kubepods", self.name),
            "--cgroup-driver",
            "cgroupfs",
        ]);
        command.args([
            "--weight-formula",
            "quadratic",
            "--runtime-socket",
            "none",
            "--http-address",
            "",
        ]);
        command
            .env_clear()
            .env("NO_COLOR", "1")
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(self.agent.insert(command.spawn()?).id())
    }

    /// Fails if the agent has ended.
    pub(crate) fn check_agent(&mut self) -> Result<()> {
        match self.agent.as_mut().map(Child::try_wait).transpose()?.flatten() {
            Some(status) => bail!("vscaled ended ({status}){}", self.log_end()),
            None => Ok(()),
        }
    }

    /// The end of the agent's log, for errors.
    pub(crate) fn log_end(&self) -> String {
        let text = fs::read_to_string(self.path("vscaled.log")).unwrap_or_else(|error| error.to_string());
        let lines: Vec<&str> = text.lines().collect();
        format!(
            "; its log says:\n{}",
            lines[lines.len().saturating_sub(10)..].join("\n")
        )
    }

    /// Runs `vscalectl` to its end.
    pub(crate) fn try_vscalectl(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(program("vscalectl")?);
        command
            .args(arguments)
            .env("VSCALED_SOCKET", self.path("vscaled.sock"))
            .stdin(Stdio::null());
        Ok(command.process_group(0).output()?)
    }

    /// Runs `vscalectl`, which must succeed, and returns what it prints.
    pub(crate) fn vscalectl(&self, arguments: &[&str]) -> Result<String> {
        let output = self.try_vscalectl(arguments)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "vscalectl {}: {errors}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Stops the agent, and returns its status and how long the stop took.
    pub(crate) fn stop_agent(&mut self) -> Result<Option<(ExitStatus, Duration)>> {
        let Some(mut agent) = self.agent.take() else {
            return Ok(None);
        };
        let began = Instant::now();
        if agent.try_wait()?.is_none() {
            kill(Pid::from_raw(agent.id().cast_signed()), Signal::SIGTERM)?;
        }
        loop {
            if let Some(status) = agent.try_wait()? {
                return Ok(Some((status, began.elapsed())));
            }
            if began.elapsed() > PATIENCE {
                agent.kill()?;
            }
            sleep(AGAIN);
        }
    }

    /// Ends every process, removes everything, and returns a description of it.
    pub(crate) fn clear(&mut self) -> Result<String> {
        let stopped = self.stop_agent();
        let (workers, mut cgroups) = (self.workers.len(), 0);
        for (_, mut worker) in self.workers.drain(..) {
            worker.kill().and_then(|()| worker.wait())?;
        }
        for (root, _lock) in self.made.drain(..) {
            cgroups += remove(&root)?;
        }
        stopped?;
        Ok(format!(
            "vscaled, {workers} processes, {cgroups} cgroups, {}",
            self.directory.display()
        ))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.made.is_empty()
            && let Err(error) = self.clear()
        {
            eprintln!("demo: not everything could be removed: {error:#}");
        }
    }
}

/// Removes the directories of killed demos beside `root`: those with a demo's name that no running demo has locked.
fn remove_abandoned(root: &Path, screen: &mut Screen) -> Result<()> {
    for entry in fs::read_dir(root.parent().unwrap_or(root))? {
        let path = entry?.path();
        let named = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        if named && File::open(&path)?.try_lock().is_ok() {
            remove(&path)?;
            screen.facts(&format!("removed what a killed demo had left: {}", path.display()))?;
        }
    }
    Ok(())
}

/// Removes a directory or a cgroup with everything in it, and returns the number of cgroups. A killed process leaves its
/// cgroup a moment after its end.
fn remove(path: &Path) -> Result<usize> {
    if !path.join("cgroup.procs").exists() {
        fs::remove_dir_all(path).with_context(|| path.display().to_string())?;
        return Ok(0);
    }
    let mut removed = 1;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            removed += remove(&entry.path())?;
        }
    }
    let began = Instant::now();
    while let Err(error) = fs::remove_dir(path) {
        if error.kind() != ErrorKind::ResourceBusy || began.elapsed() > PATIENCE {
            return Err(error).with_context(|| format!("cannot remove {}", path.display()));
        }
        sleep(AGAIN);
    }
    ensure!(!path.exists(), "{} is still there", path.display());
    Ok(removed)
}

/// A program in the directory above this one: cargo puts examples one level below the programs.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("..").join(name);
    ensure!(
        program.is_file(),
        "no {}: build all with `cargo build --bins --example demo`",
        program.display()
    );
    Ok(program)
}

/// This program with a hidden command, in its own process group: the terminal's Ctrl-C reaches only the demo.
fn own_command(name: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(name).arg(std::process::id().to_string());
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}
