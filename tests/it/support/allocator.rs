//! A process that allocates memory at a steady rate. The process is the test program itself, started again with
//! instructions in an environment variable.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vscaled::model::CgroupPath;

use super::tree::CgroupTree;

/// The variable with the instructions: the cgroups to enter, the amount to allocate, and the file for the progress.
const INSTRUCTIONS: &str = "VSCALED_TEST_ALLOCATE";
const MIB: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allocation {
    /// MiB per second; zero means as fast as possible.
    pub(crate) rate: u64,
    /// MiB in total.
    pub(crate) until: u64,
}

/// Dropping the value ends the process.
#[derive(Debug)]
pub(crate) struct Allocator {
    child: Child,
    started: Instant,
    until: u64,
    progress: PathBuf,
    _directory: tempfile::TempDir,
}

/// The longest delay that the process catches up. Sleeping takes a little longer than requested.
const MAX_CATCH_UP: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The process allocated everything within this time, and still runs.
    Satisfied(Duration),
    /// The kernel killed the process after this many MiB.
    Killed(u64),
}

impl Allocator {
    /// Starts the process in a cgroup.
    pub(crate) fn start(tree: &CgroupTree, cgroup: &CgroupPath, allocation: Allocation) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("vscaled-")
            .tempdir_in(super::scratch())
            .unwrap();
        let progress = directory.path().join("progress");
        fs::write(&progress, progress_line(0)).unwrap();
        let cgroups: Vec<_> = tree
            .directories(cgroup)
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let orders = format!(
            "{} {} {} {}",
            allocation.rate,
            allocation.until,
            progress.display(),
            cgroups.join(":")
        );
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "support::allocator::it_takes_what_it_is_told_to",
                "--nocapture",
            ])
            .env(INSTRUCTIONS, orders)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            started: Instant::now(),
            until: allocation.until,
            progress,
            _directory: directory,
        }
    }

    /// MiB allocated so far.
    pub(crate) fn taken(&self) -> u64 {
        let text = fs::read_to_string(&self.progress).unwrap();
        text.lines().next().and_then(|line| line.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until the process has allocated everything or was killed.
    pub(crate) fn wait(&mut self) -> End {
        loop {
            if !self.lives() {
                return End::Killed(self.taken());
            }
            if self.taken() >= self.until {
                return End::Satisfied(self.started.elapsed());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("allocator {}: {error}", self.child.id());
        }
    }
}

/// Runs the allocation if the environment has instructions, and does not return then.
pub(crate) fn run_if_instructed() {
    let Ok(orders) = std::env::var(INSTRUCTIONS) else {
        return;
    };
    let words: Vec<&str> = orders.splitn(4, ' ').collect();
    let [rate, until, progress, cgroups] = words[..] else {
        panic!("unusable orders: {orders}")
    };
    for cgroup in cgroups.split(':') {
        // 0 stands for the writer. The process enters first, so the cgroup is charged for all its memory.
        fs::write(Path::new(cgroup).join("cgroup.procs"), "0").unwrap();
    }
    let allocation = Allocation {
        rate: rate.parse().unwrap(),
        until: until.parse().unwrap(),
    };
    let file = File::options().write(true).open(progress).unwrap();
    let held = take(allocation, |taken| {
        file.write_all_at(progress_line(taken).as_bytes(), 0).unwrap();
    });
    // The parent ends this process.
    while nix::unistd::getppid().as_raw() > 1 {
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(held);
}

fn progress_line(taken: u64) -> String {
    format!("{taken:020}\n")
}

/// Allocates memory and reports the total after each MiB. The rate stays close to the given one: a delay longer than
/// [`MAX_CATCH_UP`] is not caught up.
fn take(allocation: Allocation, mut progress: impl FnMut(u64)) -> Vec<Vec<u8>> {
    let step = 1_000_000_u64.checked_div(allocation.rate).map(Duration::from_micros);
    let mut due = Instant::now();
    let mut held = Vec::new();
    for taken in 1..=allocation.until {
        held.push(vec![1_u8; MIB]);
        progress(taken);
        if let Some(step) = step {
            due += step;
            let now = Instant::now();
            match due.checked_duration_since(now) {
                Some(ahead) => std::thread::sleep(ahead),
                None => due = due.max(now - MAX_CATCH_UP),
            }
        }
    }
    held
}

#[test]
fn it_takes_what_it_is_told_to() {
    run_if_instructed();
    let allocation = Allocation { rate: 1000, until: 5 };
    let mut told = Vec::new();
    let held = take(allocation, |taken| told.push(taken));
    assert_eq!(told, [1, 2, 3, 4, 5]);
    assert!(held.iter().flatten().all(|byte| *byte == 1) && held.len() == 5);
}
