//! `vscalectl release`: ends what an operator holds by hand.

use clap::Args;

use super::output::Output;
use super::{Failure, agent::Agent, results, results::PodSelection};
use crate::control::proto::ReleaseRequest;

/// Ends an override: the values of the VPA or of the spec come back
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    pods: PodSelection,
    /// Why, for the history and the audit log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    output: Output,
}

/// Asks, waits until the values are back, and prints what was done.
///
/// Errors: [`Failure`] when the agent does not answer, refuses, or fails.
pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let (pod, selector, namespace) = arguments.pods.parts();
    let request = ReleaseRequest {
        pod,
        selector,
        namespace,
        reason: arguments.reason.clone(),
    };
    let reply = agent.call(async |client| Ok(client.release(request).await?))?;
    results::show(&arguments.pods, reply.change, &reply.results, &arguments.output).map(drop)
}
