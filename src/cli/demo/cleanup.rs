//! Everything the demo makes, and that it goes again.
//!
//! A [`Stage`] owns the processes, the cgroups and the directory; striking it removes them, and looks whether they are
//! gone. It strikes itself when it is dropped, and from the panic hook, since a release build aborts without dropping.
//! After `kill -9` the kernel ends the processes ([`super::leash`]), and the next demo removes the rest
//! ([`super::abandoned`]). Names carry the demo's process id. Nothing without that name is ever touched.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::crew::Worker;
use super::daemon::Daemon;
use super::error::DemoError;
use super::removal::{AGAIN, kill_all, remove_directory, remove_patiently};
use super::tree::mounts;
use crate::cgroup::{CgroupPath, Hierarchy};
use crate::cli::io::warn;
use crate::control::ClientError;

/// What every name of a demo begins with; its process id follows.
pub(super) const PREFIX: &str = "vscaled-demo-";
/// How long the daemon may take to stop.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a process may take to end once it was killed, or its connections ended.
pub(super) const SOON: Duration = Duration::from_secs(2);

/// Everything a demo makes.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) hierarchy: Hierarchy,
    pub(super) root: CgroupPath,
    pub(super) directory: PathBuf,
    pub(super) workers: Vec<Worker>,
    pub(super) daemon: Option<Daemon>,
    /// Whether there was a daemon, now stopped.
    pub(super) ran_daemon: bool,
    struck: bool,
}

/// What was removed and is gone, by looking.
#[derive(Debug, Default)]
pub(super) struct Struck {
    pub(super) workers: usize,
    pub(super) cgroups: usize,
    /// What is not gone, one sentence each.
    pub(super) left: Vec<String>,
}

impl Stage {
    /// Makes the directory; cgroups and processes come later.
    pub(super) fn new(hierarchy: Hierarchy) -> Result<Self, DemoError> {
        let name = format!("{PREFIX}{}", std::process::id());
        let root = CgroupPath::new(&format!("/{name}")).map_err(|error| DemoError::Unexpected(error.to_string()))?;
        let directory = make_directory(&name)?;
        let stage = Self {
            hierarchy,
            root,
            directory,
            workers: Vec::new(),
            daemon: None,
            ran_daemon: false,
            struck: false,
        };
        stage.strike_on_panic();
        Ok(stage)
    }

    /// Why a call to the daemon failed: it may have ended.
    pub(super) async fn explain(&mut self, error: ClientError) -> DemoError {
        let Some(daemon) = &mut self.daemon else {
            return error.into();
        };
        let began = Instant::now();
        // A process ends a little later than its connections.
        while matches!(error, ClientError::Lost { .. } | ClientError::NoDaemon { .. }) && began.elapsed() < SOON {
            if let Err(ended) = daemon.check() {
                return ended;
            }
            tokio::time::sleep(AGAIN).await;
        }
        error.into()
    }

    /// Stops the daemon, if it runs: how it ended after SIGTERM, and how long that took.
    pub(super) fn stop_daemon(&mut self) -> Result<Option<(ExitStatus, Duration)>, String> {
        let Some(mut daemon) = self.daemon.take() else {
            return Ok(None);
        };
        self.ran_daemon = true;
        stop(&mut daemon.child)
            .map(Some)
            .map_err(|error| format!("vscaled, process {}: {error}", daemon.child.id()))
    }

    /// Stops and removes everything.
    pub(super) fn strike(&mut self) -> Struck {
        self.struck = true;
        let mut struck = Struck::default();
        struck.left.extend(self.stop_daemon().err());
        for mut worker in self.workers.drain(..) {
            match worker.child.kill().and_then(|()| worker.child.wait()) {
                Ok(_) => struck.workers += 1,
                Err(error) => struck.left.push(format!("process {}: {error}", worker.child.id())),
            }
        }
        for mount in mounts(&self.hierarchy) {
            match remove_patiently(&self.root.under(&mount), &|_| ()) {
                Ok(removed) => struck.cgroups += removed,
                Err(left) => struck.left.push(left),
            }
        }
        struck.left.extend(remove_directory(&self.directory).err());
        struck
    }

    /// Removes everything from a panic, also where one aborts.
    fn strike_on_panic(&self) {
        let directories: Vec<PathBuf> = mounts(&self.hierarchy)
            .iter()
            .map(|mount| self.root.under(mount))
            .collect();
        let directory = self.directory.clone();
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            let left = directories
                .iter()
                .filter_map(|cgroup| remove_patiently(cgroup, &kill_all).err());
            left.chain(remove_directory(&directory).err())
                .for_each(|left| warn(&left));
        }));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.struck {
            // Nothing answers its callers any more, so it need not take its time.
            if let Some(Err(error)) = self.daemon.as_mut().map(|daemon| daemon.child.kill()) {
                warn(&format!("vscaled: {error}"));
            }
            self.strike().left.iter().for_each(|left| warn(left));
        }
    }
}

/// SIGTERM, and SIGKILL for one that does not listen.
fn stop(child: &mut Child) -> io::Result<(ExitStatus, Duration)> {
    let began = Instant::now();
    if child.try_wait()?.is_none() {
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM)?;
    }
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, began.elapsed()));
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
        }
        sleep(AGAIN);
    }
}

/// Where demos have their directories: `/run` is root's own and in memory.
pub(super) fn bases() -> [PathBuf; 2] {
    ["/run".into(), std::env::temp_dir()]
}

fn make_directory(name: &str) -> Result<PathBuf, DemoError> {
    let [first, second] = bases().map(|base| base.join(name));
    let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
    if make(&first).is_ok() {
        return Ok(first);
    }
    match make(&second) {
        Ok(()) => Ok(second),
        Err(source) => Err(DemoError::File {
            action: "make the directory",
            path: second,
            source,
        }),
    }
}
