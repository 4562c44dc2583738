//! Rounds of one recommendation each, with their results.

use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use vscaled::control::proto::{Change, Stages};

use crate::agent::Agent;
use crate::common::{Samples, Table};
use crate::workload::Workload;

/// One recommendation for all pods, from its file to the last pod that holds it.
#[derive(Debug)]
pub(crate) struct Round {
    /// The time when the file was renamed into the directory.
    dropped: Timestamp,
    /// From then until this process received the last change.
    pub(crate) told: Duration,
    /// Whether all limits are higher than in the round before; lower otherwise.
    pub(crate) raised: bool,
    changes: Vec<Change>,
}

impl Round {
    /// Writes the recommendation and waits until every pod was changed.
    pub(crate) async fn run(agent: &mut Agent, workload: &Workload, round: usize) -> anyhow::Result<Self> {
        let text = workload.recommendation(round);
        let (dropped, start) = (Timestamp::now(), Instant::now());
        agent.put("vpa.yaml", &text)?;
        let mut changes = Vec::with_capacity(workload.uids.len());
        while changes.len() < workload.uids.len() {
            let change = agent.next_change().await;
            changes.push(change.with_context(|| format!("after {} changes of round {round}", changes.len()))?);
        }
        Ok(Self {
            dropped,
            told: start.elapsed(),
            raised: Workload::raises(round),
            changes,
        })
    }

    /// One stage of every change.
    pub(crate) fn stage(&self, stage: fn(&Stages) -> u64) -> impl Iterator<Item = Duration> {
        let stages = self.changes.iter().filter_map(|change| change.stages.as_ref());
        stages.map(move |stages| Duration::from_micros(stage(stages)))
    }

    /// From the first decision until the agent had the last result.
    pub(crate) fn settled(&self) -> anyhow::Result<Duration> {
        let ends: Vec<Timestamp> = self.ends()?;
        let last = ends.iter().max().context("no change")?;
        Ok(last.duration_since(self.first_decision()?).unsigned_abs())
    }

    /// From the file to the first decision.
    pub(crate) fn decided(&self) -> anyhow::Result<Duration> {
        Ok(self.first_decision()?.duration_since(self.dropped).unsigned_abs())
    }

    /// A change carries the time of its end. Its start is earlier by the duration of its stages.
    fn first_decision(&self) -> anyhow::Result<Timestamp> {
        let took = |stages: &Stages| stages.verified_us + stages.runtime_us;
        let begins = self
            .ends()?
            .into_iter()
            .zip(self.stage(took))
            .map(|(end, took)| end - took);
        begins.min().context("no change")
    }

    fn ends(&self) -> anyhow::Result<Vec<Timestamp>> {
        self.changes.iter().map(|change| Ok(change.at.parse()?)).collect()
    }
}

/// Selects one stage, in microseconds.
type StageOf = fn(&Stages) -> u64;

/// The common rows of all measurements of the agent.
pub(crate) fn stage_rows(table: &mut Table, rounds: &[Round]) {
    let stages: [(&str, StageOf); 5] = [
        ("decision → all levels verified", |stages| stages.verified_us),
        ("  of it: waiting for a worker", |stages| stages.queued_us),
        ("  of it: reading what is there", |stages| stages.observe_us),
        ("  of it: planning", |stages| stages.plan_us),
        ("  of it: writing and reading back", |stages| stages.write_us),
    ];
    for (name, stage) in stages {
        table.row(
            name,
            rounds.iter().flat_map(|round| round.stage(stage)).collect::<Samples>(),
        );
    }
}

/// The rows about the time before the decision and after the last change.
pub(crate) fn round_rows(table: &mut Table, rounds: &[Round]) -> anyhow::Result<()> {
    let decided: anyhow::Result<Samples> = rounds.iter().map(Round::decided).collect();
    table.row("file renamed → decision", decided?);
    table.row(
        "file renamed → told at the socket",
        rounds.iter().map(|round| round.told).collect(),
    );
    Ok(())
}
