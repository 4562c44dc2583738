//! Processes that are killed at once. Each is this program itself, started again with instructions in an environment
//! variable.
//!
//! A shell that is already in their cgroup starts them. Moving each of them there would block the whole machine.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use vscaled::model::CgroupPath;

use crate::support::tree::CgroupTree;

/// The environment variable with the instructions.
const INSTRUCTIONS: &str = "VSCALED_BENCH_VICTIM";
/// More than any container of this benchmark may have.
const TOO_MUCH: usize = 64 << 20;
/// A kernel that has not killed by then will not.
const PATIENCE: Duration = Duration::from_secs(60);

/// The shells that start the processes, one in each cgroup. Dropping the value ends them.
#[derive(Debug)]
pub(crate) struct Victims {
    starters: Vec<Starter>,
    started: usize,
    /// The counters before the kills.
    before: u64,
}

#[derive(Debug)]
struct Starter {
    shell: Child,
    orders: ChildStdin,
    started: BufReader<ChildStdout>,
}

impl Victims {
    pub(crate) fn in_all(tree: &CgroupTree, cgroups: &[CgroupPath]) -> anyhow::Result<Self> {
        Ok(Self {
            starters: cgroups
                .iter()
                .map(|cgroup| Starter::new(tree, cgroup))
                .collect::<anyhow::Result<_>>()?,
            started: 0,
            before: counted(tree, cgroups),
        })
    }

    /// Starts the next process and returns its pid.
    pub(crate) fn start(&mut self) -> anyhow::Result<u32> {
        let next = self.started % self.starters.len();
        self.started += 1;
        let starter = self.starters.get_mut(next).context("there are no containers")?;
        writeln!(starter.orders)?;
        let mut pid = String::new();
        starter.started.read_line(&mut pid)?;
        pid.trim().parse().context("the shell has ended; is there swap?")
    }

    /// Waits until the kernel has killed all processes.
    pub(crate) async fn all_killed(&self, tree: &CgroupTree, cgroups: &[CgroupPath]) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let killed = counted(tree, cgroups) - self.before;
            if killed == u64::try_from(self.started)? {
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "{killed} of {} were killed", self.started);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn counted(tree: &CgroupTree, cgroups: &[CgroupPath]) -> u64 {
    cgroups.iter().map(|cgroup| tree.oom_kills(cgroup)).sum()
}

impl Starter {
    fn new(tree: &CgroupTree, cgroup: &CgroupPath) -> anyhow::Result<Self> {
        let enter: Vec<String> = tree
            .directories(cgroup)
            .iter()
            .map(|directory| format!("echo $$ >{}/cgroup.procs; ", directory.display()))
            .collect();
        let mut shell = Command::new("sh")
            .arg("-ec")
            .arg(format!("{} while read -r _; do \"$0\" & echo $!; done", enter.concat()))
            .arg(std::env::current_exe()?)
            .env(INSTRUCTIONS, "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("a shell")?;
        let (orders, started) = (shell.stdin.take(), shell.stdout.take());
        Ok(Self {
            shell,
            orders: orders.context("no pipe")?,
            started: BufReader::new(started.context("no pipe")?),
        })
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        if let Err(error) = self.shell.kill().and_then(|()| self.shell.wait()) {
            eprintln!("shell {}: {error}", self.shell.id());
        }
    }
}

/// Runs the instructions in the environment, and does not return then.
pub(crate) fn run_if_instructed() -> anyhow::Result<()> {
    if std::env::var_os(INSTRUCTIONS).is_none() {
        return Ok(());
    }
    let held = std::hint::black_box(vec![1_u8; TOO_MUCH]);
    anyhow::bail!("{} bytes were taken, and nobody was killed", held.len())
}
