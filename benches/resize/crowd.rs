//! Many pods of one container, changed by one recommendation.

use crate::agent::Agent;
use crate::common::{Samples, Table};
use crate::files::{cgroups, run};
use crate::machine;
use crate::rounds::{Round, round_rows, stage_rows};
use crate::workload::Workload;

pub(crate) async fn measure(pods: usize, rounds: usize) -> anyhow::Result<()> {
    let workload = Workload::new(pods, 1);
    let (tree, kubepods) = cgroups(&workload);
    let mut agent = Agent::start(&kubepods, None, &workload.pods(), pods).await?;
    let rounds = run(&mut agent, &workload, rounds).await?;
    drop((agent, tree));
    let mut table = Table::new(format!(
        "{pods} pods of one container at once, through files (cgroup {})",
        machine::version()?
    ));
    let settled: anyhow::Result<Samples> = rounds.iter().map(Round::settled).collect();
    table.row("first decision → last pod verified", settled?);
    round_rows(&mut table, &rounds)?;
    stage_rows(&mut table, &rounds);
    table.print();
    Ok(())
}
