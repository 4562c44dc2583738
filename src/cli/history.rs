//! `vscalectl history`: what was done lately.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::output::Output;
use super::{Failure, agent::Agent, change};

/// Lists what was done lately, newest last
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only this pod: namespace/name, a UID, or the beginning of a container's id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pod: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let pod = arguments.pod.clone().unwrap_or_default();
    let reply = agent.call(async |client| Ok(client.history(pod).await?))?;
    arguments.output.print(&reply, |paint| {
        if reply.changes.is_empty() {
            "nothing was done lately\n".to_owned()
        } else {
            change::list(&reply.changes, paint)
        }
    })
}
