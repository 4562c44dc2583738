//! One call at the socket, as of a manager of sandboxes on the node, until every level of the pod holds the value.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use vscaled::control::Client;
use vscaled::control::proto::{Amounts, ContainerValues, Requirements, ResizeRequest};

use crate::agent::Agent;
use crate::common::{Samples, Table};
use crate::files::{WARM_UP, cgroups};
use crate::machine;
use crate::workload::Workload;

/// Limits that are set in turn: up and down.
const LIMITS: [&str; 4] = ["128Mi", "256Mi", "192Mi", "384Mi"];

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<()> {
    let workload = Workload::new(1, 1);
    let (tree, kubepods) = cgroups(&workload);
    let agent = Agent::start(&kubepods, None, &workload.pods(), 1).await?;
    let mut client = Client::connect(&agent.socket()).await?;
    let (mut answered, mut inside) = (Samples::default(), Samples::default());
    for round in 0..rounds + WARM_UP {
        let start = Instant::now();
        let reply = client
            .resize(by_hand("test/web-0", "c0", LIMITS[round % LIMITS.len()]))
            .await?;
        let took = start.elapsed();
        let change = reply.change.context("no change in the answer")?;
        ensure!(change.outcome == "Applied", "{}: {}", change.outcome, change.reason);
        if round >= WARM_UP {
            answered.push(took);
            inside.push(Duration::from_micros(change.stages.unwrap_or_default().verified_us));
        }
    }
    let mut by_command = Samples::default();
    for round in 0..rounds + WARM_UP {
        let limit = LIMITS[round % LIMITS.len()];
        let mut command = Command::new(env!("CARGO_BIN_EXE_vscalectl"));
        command.arg("--socket").arg(agent.socket()).args([
            "resize",
            "test/web-0",
            "-c",
            "c0",
            "--memory-limit",
            limit,
            "--wait",
            "10s",
        ]);
        let start = Instant::now();
        let output = command.output()?;
        let took = start.elapsed();
        ensure!(output.status.success(), "{output:?}");
        if round >= WARM_UP {
            by_command.push(took);
        }
    }
    drop((agent, tree));
    let title = format!("one container resized at the socket (cgroup {})", machine::version()?);
    let mut table = Table::new("call", title);
    table.row("called → all levels verified, and answered", answered);
    table.row("  of it: inside the agent", inside);
    table.row("vscalectl resize --wait started → ended", by_command);
    table.print()
}

/// A request to override the memory limit of a container.
pub(crate) fn by_hand(pod: &str, container: &str, limit: &str) -> ResizeRequest {
    let limits = Amounts {
        cpu: None,
        memory: Some(limit.to_owned()),
    };
    let values = Requirements {
        requests: None,
        limits: Some(limits),
    };
    ResizeRequest {
        pod: pod.to_owned(),
        containers: vec![ContainerValues {
            name: container.to_owned(),
            values: Some(values),
        }],
        ttl_us: Some(600_000_000),
        ..ResizeRequest::default()
    }
}
