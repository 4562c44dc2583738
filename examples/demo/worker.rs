//! A container's process, which proves that a resize loses no work.
//!
//! The process enters its cgroups, fills some memory, and then computes checksums over the memory, block by block. A
//! block with another checksum than before ends the process. A file holds the number of blocks checked: a process
//! that restarted, or lost its memory, would begin at zero.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

const BLOCK_BYTES: usize = 64 << 10;
const REPORT_EVERY: Duration = Duration::from_millis(10);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    pub(crate) parent: i32,
    /// How much memory to hold
    bytes: usize,
    /// The file for the number of blocks checked
    progress: PathBuf,
    /// The cgroup directories to enter
    enter: Vec<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    for directory in &arguments.enter {
        // 0 stands for the writer. The process enters first, so the cgroup is charged for all its memory.
        fs::write(directory.join("cgroup.procs"), "0")
            .with_context(|| format!("cannot enter {}", directory.display()))?;
    }
    let progress = File::create(&arguments.progress).context("no file for progress")?;
    let mut memory = vec![0_u8; arguments.bytes];
    for (block, pattern) in memory.chunks_mut(BLOCK_BYTES).zip((1..=u8::MAX).cycle()) {
        block.fill(pattern);
    }
    let expected: Vec<u64> = memory.chunks(BLOCK_BYTES).map(checksum).collect();
    let (mut checked, mut reported) = (0_u64, Instant::now());
    loop {
        for (block, expected) in memory.chunks(BLOCK_BYTES).zip(&expected) {
            if checksum(block) != *expected {
                bail!("memory does not hold what was put there, after {checked} blocks");
            }
            checked += 1;
            if reported.elapsed() >= REPORT_EVERY {
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
