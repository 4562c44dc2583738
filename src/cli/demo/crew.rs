//! The workers, as the demo sees them: one process in each container, and proof that it is still the same one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use std::os::unix::process::CommandExt;

use procfs::process::Process;

use super::error::DemoError;
use super::tree::Tree;
use crate::cgroup::Controller;
use crate::resources::Bytes;

/// How much memory each container's process holds.
pub(super) const HOLDS: [(&str, Bytes); 3] = [
    ("app", Bytes::new(40 << 20)),
    ("cache", Bytes::new(24 << 20)),
    ("logs", Bytes::new(4 << 20)),
];

/// A process in a container.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) container: &'static str,
    pub(super) child: Child,
    progress: PathBuf,
}

/// A worker at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pulse {
    pub(super) container: &'static str,
    pub(super) pid: u32,
    /// In clock ticks since boot: with the pid, it tells a process from every other.
    started: u64,
    /// Blocks checked since it started.
    checked: u64,
    at: Instant,
}

impl Pulse {
    /// Blocks a second since an earlier moment.
    pub(super) fn rate_since(&self, earlier: &Self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
        let checked = self.checked.saturating_sub(earlier.checked) as f64;
        checked / self.at.duration_since(earlier.at).as_secs_f64()
    }
}

impl Worker {
    /// Starts the process, which enters its container's cgroup by itself.
    pub(super) fn start(
        tree: &Tree,
        directory: &Path,
        container: &'static str,
        memory: Bytes,
    ) -> Result<Self, DemoError> {
        let progress = directory.join(format!("progress-{container}"));
        let cgroup = tree.container(container)?;
        let mut enter: Vec<&Path> = Controller::ALL.map(|controller| cgroup.directory(controller)).into();
        enter.dedup();
        let mut command = own_command("demo-worker")?;
        command.args(enter.iter().flat_map(|directory| [Path::new("--enter"), directory]));
        command
            .arg("--memory")
            .arg(memory.to_string())
            .arg("--progress")
            .arg(&progress)
            .stdout(Stdio::null());
        let child = command
            .spawn()
            .map_err(DemoError::file("start a worker from", command.get_program()))?;
        Ok(Self {
            container,
            child,
            progress,
        })
    }

    /// How it is now.
    ///
    /// # Errors
    /// [`DemoError::WorkerEnded`].
    pub(super) fn pulse(&mut self) -> Result<Pulse, DemoError> {
        let ended = |how: String| DemoError::WorkerEnded {
            name: self.container.to_owned(),
            how,
        };
        if let Some(status) = self.child.try_wait().map_err(|error| ended(error.to_string()))? {
            return Err(ended(status.to_string()));
        }
        let pid = self.child.id();
        let stat = Process::new(pid.cast_signed()).and_then(|process| process.stat());
        let started = stat.map_err(|error| ended(error.to_string()))?.starttime;
        // There is no file, or no number in it, before the first block is checked.
        let checked = fs::read_to_string(&self.progress)
            .unwrap_or_default()
            .trim()
            .parse()
            .unwrap_or(0);
        Ok(Pulse {
            container: self.container,
            pid,
            started,
            checked,
            at: Instant::now(),
        })
    }
}

/// How all of them are now.
pub(super) fn pulses(workers: &mut [Worker]) -> Result<Vec<Pulse>, DemoError> {
    workers.iter_mut().map(Worker::pulse).collect()
}

/// Waits until every process has worked on since `earlier` (if there is one) and for at least `least`; checks that none
/// was replaced.
pub(super) async fn work_on(
    workers: &mut [Worker],
    earlier: &[Pulse],
    least: Duration,
    patience: Duration,
) -> Result<Vec<Pulse>, DemoError> {
    let began = Instant::now();
    loop {
        let now = pulses(workers)?;
        let before = |pulse: &Pulse| {
            earlier
                .iter()
                .find(|earlier| earlier.container == pulse.container)
                .copied()
        };
        if let Some(other) = now
            .iter()
            .find(|now| before(now).is_some_and(|before| before.started != now.started))
        {
            let how = format!("process {} is not the one that was started", other.pid);
            return Err(DemoError::WorkerEnded {
                name: other.container.to_owned(),
                how,
            });
        }
        let worked = |now: &Pulse| now.checked > before(now).map_or(0, |before| before.checked);
        if began.elapsed() >= least && now.iter().all(worked) {
            return Ok(now);
        }
        if began.elapsed() > patience {
            let idle: Vec<&str> = now.iter().filter(|now| !worked(now)).map(|now| now.container).collect();
            let what = format!("{} to work on", idle.join(" and "));
            return Err(DemoError::Late {
                what,
                patience,
                log: String::new(),
            });
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// This program, with a hidden command that ends when this process does. In a process group of its own: the terminal's
/// Ctrl-C is the demo's alone.
pub(super) fn own_command(name: &str) -> Result<Command, DemoError> {
    let own = std::env::current_exe().map_err(DemoError::file("find this program", "/proc/self/exe"))?;
    let mut command = Command::new(own);
    command.arg(name).arg("--parent").arg(std::process::id().to_string());
    command.process_group(0).stdin(Stdio::null());
    Ok(command)
}
