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

/// The variable with the instructions: the amount to allocate, how to, the file for the progress, and the cgroups to enter.
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

/// The word in the instructions for a process that takes less at a time where there is little room.
const CAREFUL: &str = "careful";
/// A careful process takes this part of the room below its limit at a time, but no less than so many bytes.
const PART: u64 = 32;
const LEAST: usize = 16 << 10;
/// The time between two parts of a mebibyte.
const PAUSE: Duration = Duration::from_millis(15);

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
        Self::launch(tree, cgroup, allocation, "")
    }

    /// Like [`Self::start`], and the process slows down where its limit or its pod's is close: it takes the last 4 MiB in more than a
    /// second, which is long enough for the guard of a busy machine.
    pub(crate) fn start_careful(tree: &CgroupTree, cgroup: &CgroupPath, allocation: Allocation) -> Self {
        Self::launch(tree, cgroup, allocation, CAREFUL)
    }

    fn launch(tree: &CgroupTree, cgroup: &CgroupPath, allocation: Allocation, manner: &str) -> Self {
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
            "{} {} {manner} {} {}",
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
    let words: Vec<&str> = orders.splitn(5, ' ').collect();
    let [rate, until, manner, progress, cgroups] = words[..] else {
        panic!("unusable orders: {orders}")
    };
    let cgroups: Vec<_> = cgroups.split(':').map(Path::new).collect();
    for cgroup in &cgroups {
        // 0 stands for the writer. The process enters first, so the cgroup is charged for all its memory.
        fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
    }
    let allocation = Allocation {
        rate: rate.parse().unwrap(),
        until: until.parse().unwrap(),
    };
    let file = File::options().write(true).open(progress).unwrap();
    let room = || if manner == CAREFUL { room(&cgroups) } else { u64::MAX };
    let held = take(allocation, room, |taken| {
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

/// The bytes that these cgroups and their parents leave below their memory limits.
fn room(cgroups: &[&Path]) -> u64 {
    let read = |directory: &Path, files: [&str; 2]| {
        let number = |file: &&str| {
            fs::read_to_string(directory.join(file))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        files.iter().find_map(number)
    };
    let levels = cgroups.iter().flat_map(|cgroup| cgroup.ancestors().take(2));
    let rooms = levels.filter_map(|directory| {
        let limit = read(directory, ["memory.max", "memory.limit_in_bytes"])?;
        let usage = read(directory, ["memory.current", "memory.usage_in_bytes"])?;
        Some(limit.saturating_sub(usage))
    });
    rooms.min().unwrap_or(u64::MAX)
}

/// Allocates a MiB, in parts where there is little room.
fn allocate(room: impl Fn() -> u64) -> Vec<u8> {
    // Zeroes are taken when something else is written over them. A slice is filled at once, also by a debug build.
    let mut block = vec![0_u8; MIB];
    let mut taken = 0;
    while taken < MIB {
        let part = usize::try_from(room() / PART).unwrap().clamp(LEAST, MIB);
        if part < MIB {
            std::thread::sleep(PAUSE);
        }
        let end = MIB.min(taken + part);
        block[taken..end].fill(1);
        taken = end;
    }
    block
}

/// Allocates memory and reports the total after each MiB. The rate stays close to the given one where there is room: a delay longer
/// than [`MAX_CATCH_UP`] is not caught up.
fn take(allocation: Allocation, room: impl Fn() -> u64, mut progress: impl FnMut(u64)) -> Vec<Vec<u8>> {
    let step = 1_000_000_u64.checked_div(allocation.rate).map(Duration::from_micros);
    let mut due = Instant::now();
    let mut held = Vec::new();
    for taken in 1..=allocation.until {
        held.push(allocate(&room));
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
    // Room for a quarter of a MiB at a time.
    let held = take(allocation, || 8 << 20, |taken| told.push(taken));
    assert_eq!(told, [1, 2, 3, 4, 5]);
    assert!(held.iter().flatten().all(|byte| *byte == 1) && held.iter().all(|block| block.len() == MIB));
    assert_eq!(held.len(), 5);
}
