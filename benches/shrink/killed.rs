//! The agent killed at random moments.

use std::time::{Duration, Instant};

use crate::common::{Samples, Table};
use crate::scene::{ROOMY, Scene, numbers};

/// The highest use of the process in MiB.
const MOST: u64 = 40;

pub(crate) async fn measure(kills: usize) -> anyhow::Result<()> {
    let scene = Scene::churning(MOST, 1);
    let mut agent = scene.agent().await;
    let mut numbers = numbers();
    let (mut frozen, mut answered, mut stood) = (0, 0, Samples::default());
    for _ in 0..kills {
        let wanted = MOST + 10 + numbers.u64(..ROOMY - MOST - 20);
        let mut client = agent.client().await;
        let (lower, limit) = (scene.limit(wanted), scene.limit(ROOMY));
        agent.resize(limit).await?;
        // With or without an answer: the agent is killed before.
        let asked = tokio::spawn(async move { client.resize(lower).await.is_ok() });
        tokio::time::sleep(Duration::from_micros(numbers.u64(..30_000))).await;
        agent.kill();
        let (dead, was_frozen) = (Instant::now(), scene.is_frozen());
        agent.launch();
        while scene.is_frozen() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if was_frozen {
            frozen += 1;
            stood.push(dead.elapsed());
        }
        answered += usize::from(asked.await?);
        agent.kill();
        agent.start().await;
        agent
            .until("the pod", async || {
                agent.pod("web").await.filter(|pod| pod.state == "InSync")
            })
            .await;
    }
    agent.kill();
    agent.start().await;
    println!(
        "\nthe agent killed {kills} times: {answered} times when the limit was lower, {frozen} times with something frozen; {} \
         processes killed, frozen at the end: {}",
        scene.kills(),
        scene.is_frozen()
    );
    let mut table = Table::new(
        "shrink-killed",
        "the agent killed while something was frozen, and started again at once",
    );
    table.row("killed → everything goes on", stood);
    table.print()
}
