//! What the demo shows, in order. Every chapter checks what it claims: the first claim that is not true ends the demo.

use std::path::Path;
use std::time::Duration;

use super::cleanup::Stage;
use super::crew::{self, Pulse};
use super::error::DemoError;
use super::opening::{make_pod, start_daemon};
use super::screen::Screen;
use super::tree::Tree;
use crate::actuate::Cause;
use crate::control::proto::Change;
use crate::control::{Client, Watch};
use crate::resources::{Bytes, Resource, ResourceList};

/// Longest wait for anything; slow machines are slow.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long work is counted to tell its pace.
pub(super) const PACE: Duration = Duration::from_millis(600);

/// The demo under way.
#[derive(Debug)]
pub(super) struct Story<'a> {
    pub(super) stage: &'a mut Stage,
    pub(super) screen: &'a mut Screen,
    pub(super) tree: Tree,
    pub(super) client: Client,
    pub(super) watch: Watch,
    /// The processes at the latest look, and how fast each worked.
    pulses: Vec<Pulse>,
    rates: Vec<f64>,
}

/// Tells it from the first to the last chapter.
pub(super) async fn tell(program: &Path, stage: &mut Stage, screen: &mut Screen) -> Result<Tree, DemoError> {
    let (tree, pulses, rates) = make_pod(stage, screen).await?;
    let (client, watch) = start_daemon(program, stage, screen, &tree).await?;
    let mut story = Story {
        stage,
        screen,
        tree,
        client,
        watch,
        pulses,
        rates,
    };
    story.grow().await?;
    story.shrink().await?;
    story.drift().await?;
    story.refuse().await?;
    story.explain().await?;
    story.rehearse().await?;
    Ok(story.tree)
}

impl Story<'_> {
    /// Waits for the next change to the pod that has this cause.
    pub(super) async fn change(&mut self, cause: &Cause) -> Result<Change, DemoError> {
        let cause = cause.to_string();
        let wanted = async {
            loop {
                let change = self.watch.next().await?;
                if change.cause == cause {
                    return Ok::<Change, DemoError>(change);
                }
            }
        };
        match (tokio::time::timeout(PATIENCE, wanted).await, &self.stage.daemon) {
            (Ok(change), _) => change,
            (Err(_elapsed), Some(daemon)) => Err(daemon.late(&format!("a change because of \"{cause}\""), PATIENCE)),
            (Err(_elapsed), None) => Err(DemoError::Unexpected("vscaled was stopped".to_owned())),
        }
    }

    /// Shows that the processes are the ones that were started, and what became of their pace.
    pub(super) async fn still_the_same(&mut self) -> Result<(), DemoError> {
        let first = crew::work_on(&mut self.stage.workers, &self.pulses, Duration::ZERO, PATIENCE).await?;
        let then = crew::work_on(&mut self.stage.workers, &first, PACE, PATIENCE).await?;
        let rates = rates(&first, &then);
        let pids: Vec<String> = then.iter().map(|pulse| pulse.pid.to_string()).collect();
        let paces: Vec<String> = then
            .iter()
            .zip(self.rates.iter().zip(&rates))
            .map(|(pulse, (before, after))| format!("{} {before:.0} → {after:.0}", pulse.container))
            .collect();
        self.screen.confirm(&format!(
            "nothing restarted: processes {} are the ones that were started, and no work was lost",
            pids.join(", ")
        ))?;
        self.screen
            .say(&format!("blocks checked a second: {}", paces.join(", ")))?;
        (self.pulses, self.rates) = (then, rates);
        Ok(())
    }
}

/// How fast each worked between two looks, in blocks a second.
pub(super) fn rates(first: &[Pulse], then: &[Pulse]) -> Vec<f64> {
    first
        .iter()
        .zip(then)
        .map(|(first, then)| then.rate_since(first))
        .collect()
}

/// `100m 64Mi`
pub(super) fn amounts(list: ResourceList) -> String {
    let amount = |resource| list.text(resource).unwrap_or_else(|| "-".to_owned());
    Resource::ALL.map(amount).join(" ")
}

/// In mebibytes with one decimal: what is used is no round number.
pub(super) fn mebibytes(bytes: Bytes) -> String {
    format!("{}.{}Mi", bytes.get() >> 20, ((bytes.get() & 0xf_ffff) * 10) >> 20)
}
