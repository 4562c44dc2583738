//! One recommendation, with the times of its stages.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures::TryStreamExt;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::json;
use vscaled::control::{Watch, proto};

use super::scene::{CONTAINERS, Scene};
use super::{AT_FIRST, PATIENCE};
use crate::levels::Levels;
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;

/// All times except the last are counted from the sending of the PATCH.
#[derive(Debug)]
pub(super) struct Round {
    /// The API server answered the PATCH.
    pub(super) answered: Duration,
    /// Another watcher of the VPA received the change.
    pub(super) heard: Duration,
    /// The agent had decided, by its own record.
    pub(super) decided: Duration,
    /// Every level held the new values, by the kernel.
    pub(super) held: Duration,
    /// The agent had read every level back, by its own record.
    pub(super) verified: Duration,
    /// The runtime had the new values too, and the agent reported that at its socket.
    pub(super) told: Duration,
    /// From the decision until every level was read back.
    pub(super) inside: Duration,
}

impl Round {
    /// Writes a recommendation, and waits for all stages.
    pub(super) async fn run(
        scene: &Scene,
        levels: &mut Levels,
        changes: &mut Watch,
        amounts: Amounts,
    ) -> anyhow::Result<Self> {
        let status = json!({"status": objects::recommendation(&CONTAINERS.map(|name| (name, amounts)))});
        let (patch, parameters) = (Patch::Merge(&status), PatchParams::default());
        let version = scene.vpas.get("web").await?.metadata.resource_version;
        let version = version.context("an object has a version")?;
        let mut events = pin!(scene.vpas.watch(&WatchParams::default(), &version).await?);
        let wanted = scene.wanted(amounts, AT_FIRST);

        let (sent, start) = (Timestamp::now(), Instant::now());
        let answered = async {
            scene.vpas.patch_status("web", &parameters, &patch).await?;
            Ok(start.elapsed())
        };
        let heard = async {
            let event = events.try_next().await?;
            let heard = start.elapsed();
            ensure!(
                matches!(event, Some(WatchEvent::Modified(_))),
                "no change but {event:?}"
            );
            Ok(heard)
        };
        let held = async {
            levels.hold(&wanted).await?;
            Ok(start.elapsed())
        };
        let told = async {
            let change = next_change(changes).await?;
            Ok((change, start.elapsed()))
        };
        let all = async { tokio::try_join!(answered, heard, held, told) };
        let (answered, heard, held, (change, told)) = tokio::time::timeout(PATIENCE, all)
            .await
            .with_context(|| format!("waited in vain; the agent's log:\n{}", scene.agent.log()))??;
        let stages = change.stages.unwrap_or_default();
        let (inside, runtime) = (
            Duration::from_micros(stages.verified_us),
            Duration::from_micros(stages.runtime_us),
        );
        // A change carries the time of its end.
        let verified = change
            .at
            .parse::<Timestamp>()?
            .duration_since(sent)
            .unsigned_abs()
            .saturating_sub(runtime);
        Ok(Self {
            answered,
            heard,
            decided: verified.saturating_sub(inside),
            held,
            verified,
            told,
            inside,
        })
    }
}

/// The next change that follows a recommendation.
async fn next_change(changes: &mut Watch) -> anyhow::Result<proto::Change> {
    loop {
        let change = changes.next().await?;
        if change.cause.starts_with("recommendation") {
            ensure!(change.outcome == "Applied", "{}: {}", change.outcome, change.reason);
            return Ok(change);
        }
    }
}
