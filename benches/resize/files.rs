//! One pod of three containers, through files.

use vscaled::model::CgroupPath;

use crate::agent::Agent;
use crate::common::Table;
use crate::machine;
use crate::rounds::{Round, round_rows, stage_rows};
use crate::support::tree::CgroupTree;
use crate::workload::Workload;

/// Rounds that only warm up.
pub(crate) const WARM_UP: usize = 4;
/// How many changed recommendations of a pod an agent follows at once.
const AT_ONCE: usize = 10;

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<()> {
    let workload = Workload::new(1, 3);
    let (tree, kubepods) = cgroups(&workload);
    let start = async || Agent::start(&kubepods, None, &workload.pods(), 1).await;
    let rounds = run(start, &workload, rounds).await?;
    drop(tree);
    let mut table = Table::new(
        "files",
        format!(
            "one pod of three containers, through files (cgroup {})",
            machine::version()?
        ),
    );
    stage_rows(&mut table, &rounds);
    round_rows(&mut table, &rounds)?;
    table.print()
}

/// A tree with the workload's cgroups, and the root of all pods in it.
pub(crate) fn cgroups(workload: &Workload) -> (CgroupTree, CgroupPath) {
    let tree = CgroupTree::new();
    workload.make_cgroups(&tree);
    let kubepods = tree.make("kubepods");
    (tree, kubepods)
}

/// Runs this many rounds. The agent follows so many changed recommendations of a pod at once and the further ones five seconds
/// apart each, so another agent takes over then, after a warm-up.
pub(crate) async fn run(
    start: impl AsyncFn() -> anyhow::Result<Agent>,
    workload: &Workload,
    rounds: usize,
) -> anyhow::Result<Vec<Round>> {
    let mut done = Vec::with_capacity(rounds);
    while done.len() < rounds {
        let mut agent = start().await?;
        let of_agent = AT_ONCE.min(WARM_UP + rounds - done.len());
        for round in 0..of_agent {
            let result = Round::run(&mut agent, workload, round).await?;
            if round >= WARM_UP {
                done.push(result);
            }
        }
    }
    Ok(done)
}
