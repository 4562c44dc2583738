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
    let start = async || Agent::start(&kubepods, None, &workload.pods(), pods).await;
    let rounds = run(start, &workload, rounds).await?;
    drop(tree);
    let mut table = Table::new(
        "crowd",
        format!(
            "{pods} pods of one container at once, through files (cgroup {})",
            machine::version()?
        ),
    );
    for (name, raised) in [("limits raised", true), ("limits lowered", false)] {
        let of_kind = rounds.iter().filter(|round| round.raised == raised);
        let settled: anyhow::Result<Samples> = of_kind.map(Round::settled).collect();
        table.row(format!("{name}: first decision → last pod verified"), settled?);
    }
    round_rows(&mut table, &rounds)?;
    stage_rows(&mut table, &rounds);
    table.print()
}
