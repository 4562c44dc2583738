//! `vscalectl demo-worker`: a process with something to lose.
//!
//! It enters the cgroups it is given, fills some memory, and then computes checksums over it, block by block, for as
//! long as the demo lives. A block that does not have its checksum any more would end it. How many blocks it has checked
//! stands in a file, for the demo to read: a process that was restarted, or its memory lost, would begin at nothing.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;

use super::leash;
use crate::cli::Failure;
use crate::resources::Bytes;

/// One unit of work.
const BLOCK: usize = 64 << 10;
/// How often the file is brought up to date.
const REPORT: Duration = Duration::from_millis(10);

/// Computes in a cgroup until the demo ends.
#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// The demo's process
    #[arg(long)]
    parent: i32,
    /// A cgroup directory to enter
    #[arg(long, required = true)]
    enter: Vec<PathBuf>,
    /// How much memory to hold
    #[arg(long)]
    memory: Bytes,
    /// The file for the number of blocks checked
    #[arg(long)]
    progress: PathBuf,
}

/// Works until it is killed.
///
/// # Errors
/// [`Failure::Refused`] when a cgroup cannot be entered, or memory does not hold what was put there.
pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    work(arguments).map_err(Failure::Refused)
}

fn work(arguments: &Arguments) -> anyhow::Result<()> {
    leash::tie(arguments.parent)?;
    for directory in &arguments.enter {
        // 0 is the writer; entering first makes all memory count there.
        fs::write(directory.join("cgroup.procs"), "0")
            .with_context(|| format!("cannot enter {}", directory.display()))?;
    }
    let progress = File::create(&arguments.progress).context("no file for progress")?;
    let mut memory = vec![0_u8; usize::try_from(arguments.memory.get())?];
    for (block, pattern) in memory.chunks_mut(BLOCK).zip((1..=u8::MAX).cycle()) {
        block.fill(pattern);
    }
    let expected: Vec<u64> = memory.chunks(BLOCK).map(checksum).collect();
    let (mut checked, mut reported) = (0_u64, Instant::now());
    loop {
        for (block, expected) in memory.chunks(BLOCK).zip(&expected) {
            if checksum(block) != *expected {
                bail!("memory does not hold what was put there, after {checked} blocks");
            }
            checked += 1;
            if reported.elapsed() >= REPORT {
                reported = Instant::now();
                progress.write_at(format!("{checked:020}\n").as_bytes(), 0)?;
            }
        }
    }
}

fn checksum(block: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(block);
    hasher.finish()
}
