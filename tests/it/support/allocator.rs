//! A process that takes memory at a steady rate: this very program, started again with orders in its environment.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vscaled::model::CgroupPath;

use super::tree::CgroupTree;

/// The variable with the orders: the cgroups to enter, what to take, and where to say how much was taken.
const ORDERS: &str = "VSCALED_TEST_ALLOCATE";
const MIB: usize = 1 << 20;

/// What to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Appetite {
    /// Mebibytes in each second; zero is as fast as it can.
    pub(crate) rate: u64,
    /// Mebibytes in all.
    pub(crate) until: u64,
}

/// The process. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Allocator {
    child: Child,
    started: Instant,
    until: u64,
    progress: PathBuf,
    _directory: tempfile::TempDir,
}

/// So much time may be made up for: sleeping takes a little longer than asked for.
const MADE_UP: Duration = Duration::from_millis(20);

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It took everything, in this time, and still lives.
    Satisfied(Duration),
    /// It was killed when it had taken so many mebibytes.
    Killed(u64),
}

impl Allocator {
    /// Starts it in a cgroup.
    pub(crate) fn start(tree: &CgroupTree, cgroup: &CgroupPath, appetite: Appetite) -> Self {
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
            appetite.rate,
            appetite.until,
            progress.display(),
            cgroups.join(":")
        );
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "support::allocator::it_takes_what_it_is_told_to",
                "--nocapture",
            ])
            .env(ORDERS, orders)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            started: Instant::now(),
            until: appetite.until,
            progress,
            _directory: directory,
        }
    }

    /// Mebibytes taken so far.
    pub(crate) fn taken(&self) -> u64 {
        let text = fs::read_to_string(&self.progress).unwrap();
        text.lines().next().and_then(|line| line.parse().ok()).unwrap_or(0)
    }

    /// Whether it lives.
    pub(crate) fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until it has everything, or was killed.
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

/// Does what the environment orders, and never returns then.
pub(crate) fn obey() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let words: Vec<&str> = orders.splitn(4, ' ').collect();
    let [rate, until, progress, cgroups] = words[..] else {
        panic!("unusable orders: {orders}")
    };
    for cgroup in cgroups.split(':') {
        // 0 is the writer; entering first makes all memory count there.
        fs::write(Path::new(cgroup).join("cgroup.procs"), "0").unwrap();
    }
    let appetite = Appetite {
        rate: rate.parse().unwrap(),
        until: until.parse().unwrap(),
    };
    let file = File::options().write(true).open(progress).unwrap();
    let held = take(appetite, |taken| {
        file.write_all_at(progress_line(taken).as_bytes(), 0).unwrap();
    });
    // Whoever started it ends it.
    while nix::unistd::getppid().as_raw() > 1 {
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(held);
}

fn progress_line(taken: u64) -> String {
    format!("{taken:020}\n")
}

/// Takes memory and says after each mebibyte how much it has. Never much faster than it is to: where it was held up for
/// longer than [`MADE_UP`], what it lost is lost.
fn take(appetite: Appetite, mut progress: impl FnMut(u64)) -> Vec<Vec<u8>> {
    let step = 1_000_000_u64.checked_div(appetite.rate).map(Duration::from_micros);
    let mut due = Instant::now();
    let mut held = Vec::new();
    for taken in 1..=appetite.until {
        held.push(vec![1_u8; MIB]);
        progress(taken);
        if let Some(step) = step {
            due += step;
            let now = Instant::now();
            match due.checked_duration_since(now) {
                Some(ahead) => std::thread::sleep(ahead),
                None => due = due.max(now - MADE_UP),
            }
        }
    }
    held
}

#[test]
fn it_takes_what_it_is_told_to() {
    obey();
    let appetite = Appetite { rate: 1000, until: 5 };
    let mut told = Vec::new();
    let held = take(appetite, |taken| told.push(taken));
    assert_eq!(told, [1, 2, 3, 4, 5]);
    assert!(held.iter().flatten().all(|byte| *byte == 1) && held.len() == 5);
}
