//! The time for which processes are frozen.

use std::time::{Duration, Instant};

use tempfile::TempDir;
use vscaled::actuate::shrink::{Freezer, lower};
use vscaled::cgroup::{Cgroup, Hierarchy};

use crate::common::{Samples, Table};
use crate::scene::{ROOMY, Scene, limit, numbers};

/// The highest use of all processes together in MiB; no limit in this part is lower.
const MOST: u64 = 64;

pub(crate) fn measure(tries: usize) -> anyhow::Result<()> {
    let mut table = Table::new(
        "freeze",
        format!("one limit, {tries} times lowered to above what is used"),
    );
    for (processes, most) in [(1, MOST), (8, MOST / 8)] {
        let scene = Scene::churning(most, processes);
        let (took, freezes, refused) = run(&scene, tries)?;
        table.row(format!("{processes} processes: the write"), took);
        table.row("  of it: standing still", freezes);
        println!(
            "{processes} processes: {refused} of {tries} refused, {} processes killed",
            scene.kills()
        );
    }
    table.print()
}

fn run(scene: &Scene, tries: usize) -> anyhow::Result<(Samples, Samples, usize)> {
    let cgroup = Cgroup::open(&Hierarchy::discover(None)?, &scene.app())?;
    let markers = TempDir::new()?;
    let freezer = Freezer::below(markers.path())?;
    let memory = |mebibytes| limit(cgroup.outer().version(), mebibytes);
    let (mut took, mut freezes, mut refused) = (Samples::default(), Samples::default(), 0);
    let mut numbers = numbers();
    for _ in 0..tries {
        std::thread::sleep(Duration::from_micros(numbers.u64(..10_000)));
        let wanted = MOST + 6 + numbers.u64(..ROOMY - MOST - 10);
        let mut lowered = Vec::new();
        let start = Instant::now();
        match lower(&cgroup, memory(wanted), &freezer, &mut lowered) {
            Ok(()) => took.push(start.elapsed()),
            Err(_) => refused += 1,
        }
        lowered.into_iter().for_each(|freeze| freezes.push(freeze));
        cgroup.write(memory(ROOMY)).map(drop)?;
    }
    Ok((took, freezes, refused))
}
