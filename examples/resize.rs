//! A manager of sandboxes that resizes a container through the agent's socket, with nothing but the protocol
//! (`proto/vscaled/control/v1/control.proto`; docs/socket.md): one call returns when the kernel has the values.
//!
//! `cargo run --example resize -- --socket /run/vscaled/vscaled.sock shop/web app 256Mi 512Mi --rounds 100` sets the two limits in turn, and
//! prints how long the calls took.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use tonic::transport::{Channel, Endpoint};
use vscaled::control::proto::control_client::ControlClient;
use vscaled::control::proto::{Amounts, Change, ContainerValues, ReleaseRequest, Requirements, ResizeRequest};

/// Longer than the agent's own deadline for a change.
const DEADLINE: Duration = Duration::from_secs(65);
/// The override ends by itself, even if this program dies.
const TTL: Duration = Duration::from_secs(600);

#[derive(Debug, Parser)]
struct Arguments {
    /// The agent's socket
    #[arg(long, default_value = "/run/vscaled/vscaled.sock")]
    socket: PathBuf,
    /// How often to resize, one limit after the other
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// namespace/name, or a UID
    pod: String,
    container: String,
    /// Memory limits, such as 256Mi
    #[arg(required = true)]
    limits: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let channel = Endpoint::from_shared(format!("unix:{}", arguments.socket.display()))?
        .timeout(DEADLINE)
        .connect()
        .await
        .with_context(|| format!("no agent at {}", arguments.socket.display()))?;
    let mut agent = ControlClient::new(channel);
    let mut took = Vec::new();
    for limit in arguments.limits.iter().cycle().take(arguments.rounds) {
        let began = Instant::now();
        let change = resize(&mut agent, &arguments, limit).await?;
        took.push(began.elapsed());
        println!("{limit}: {} in {:?}", change.outcome, began.elapsed());
    }
    took.sort();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    println!("{} calls: p50 {:?}, p99 {:?}", took.len(), at(50), at(99));
    let release = ReleaseRequest {
        pod: arguments.pod,
        reason: "the example ends".to_owned(),
        ..ReleaseRequest::default()
    };
    agent.release(release).await?;
    Ok(())
}

/// Sets the memory limit of the container. On return the kernel has it: the agent has read it back at every level.
async fn resize(agent: &mut ControlClient<Channel>, arguments: &Arguments, limit: &str) -> Result<Change> {
    let limits = Amounts {
        cpu: None,
        memory: Some(limit.to_owned()),
    };
    let values = Requirements {
        requests: None,
        limits: Some(limits),
    };
    let request = ResizeRequest {
        pod: arguments.pod.clone(),
        containers: vec![ContainerValues {
            name: arguments.container.clone(),
            values: Some(values),
        }],
        ttl_us: Some(u64::try_from(TTL.as_micros())?),
        reason: "an example".to_owned(),
        ..ResizeRequest::default()
    };
    let reply = agent
        .resize(request)
        .await
        .map_err(|refused| anyhow::anyhow!("{:?}: {}", refused.code(), refused.message()))?;
    let change = reply.into_inner().change.context("an agent of another version")?;
    match change.outcome.as_str() {
        // SpecLater: the kernel has the values, the API server gets them when it is back.
        // RuntimeOwed: the kernel has the values, the runtime's stored spec follows.
        "Applied" | "Unchanged" | "SpecLater" | "RuntimeOwed" => Ok(change),
        outcome => bail!("{outcome}: {}", change.reason),
    }
}
