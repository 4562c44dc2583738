//! The agent killed at random moments.

use std::time::{Duration, Instant};

use crate::common::{Samples, Table};
use crate::scene::{Numbers, Scene};
use crate::support::amounts::{Amounts, vpa_manifest};

/// The most the process uses, in MiB.
const MOST: u64 = 40;

pub(crate) async fn measure(kills: usize) -> anyhow::Result<()> {
    let scene = Scene::churning(MOST, 1);
    let mut agent = scene.agent().await;
    let mut numbers = Numbers::new();
    let (mut frozen, mut stood) = (0, Samples::default());
    for _ in 0..kills {
        for _ in 0..3 {
            // The limit is 25 times the request.
            let target = Amounts {
                cpu: 100,
                cpu_limit: None,
                memory: 3 + numbers.below(5),
                memory_limit: None,
            };
            agent.write("vpa.yaml", &vpa_manifest("web", "web", &[("app", target)]));
            tokio::time::sleep(Duration::from_micros(numbers.below(60_000))).await;
        }
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
    }
    agent.kill();
    agent.start().await;
    println!(
        "\nthe agent killed {kills} times: {frozen} times with something frozen, {} processes killed, frozen at the end: {}",
        scene.kills(),
        scene.is_frozen()
    );
    let mut table = Table::new("the agent killed while something was frozen, and started again at once");
    table.row("killed → everything goes on", stood);
    table.print();
    Ok(())
}
