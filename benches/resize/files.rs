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

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<()> {
    let workload = Workload::new(1, 3);
    let (tree, kubepods) = cgroups(&workload);
    let mut agent = Agent::start(&kubepods, None, &workload.pods(), 1).await?;
    let rounds = run(&mut agent, &workload, rounds).await?;
    drop((agent, tree));
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

/// Runs this many rounds after the warm-up.
pub(crate) async fn run(agent: &mut Agent, workload: &Workload, rounds: usize) -> anyhow::Result<Vec<Round>> {
    let mut done = Vec::with_capacity(rounds);
    for round in 0..rounds + WARM_UP {
        done.push(Round::run(agent, workload, round).await?);
    }
    Ok(done.split_off(WARM_UP))
}
