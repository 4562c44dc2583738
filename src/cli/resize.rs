//! `vscalectl resize`: sets a container's requests and limits by hand, for a while.

use anyhow::anyhow;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::output::{Format, Output};
use super::time::{Ttl, coarse};
use super::{Failure, agent::Agent, change};
use crate::control::proto::{Change, ContainerValues, ResizeRequest};
use crate::resources::{Bytes, MilliCpu, Requirements, Resource, ResourceList};

/// Sets a container's requests and limits by hand; they win over the VPA until their time is over
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// namespace/name, a UID, or the beginning of a container's id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pod: String,
    /// The container's name
    #[arg(short, long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    container: String,
    #[command(flatten)]
    values: Values,
    /// How long the values hold, such as 90s, 30m or 1h30m; 0, with --force, is until they are released
    #[arg(long, value_name = "DURATION", default_value = "30m")]
    ttl: Ttl,
    /// Confirms --ttl 0
    #[arg(long)]
    force: bool,
    /// Why, for whoever finds the override
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Show the steps and write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
}

/// What is absent stays as it is.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Values {
    /// Reserved cpu, such as 250m
    #[arg(long, value_name = "CPU")]
    cpu_request: Option<MilliCpu>,
    /// Most cpu it may use
    #[arg(long, value_name = "CPU")]
    cpu_limit: Option<MilliCpu>,
    /// Reserved memory, such as 128Mi
    #[arg(long, value_name = "MEMORY")]
    memory_request: Option<Bytes>,
    /// Most memory it may use
    #[arg(long, value_name = "MEMORY")]
    memory_limit: Option<Bytes>,
}

impl Values {
    /// The values, where they can be meant.
    fn check(&self) -> Result<Requirements, Failure> {
        let requests = ResourceList {
            cpu: self.cpu_request,
            memory: self.memory_request,
        };
        let limits = ResourceList {
            cpu: self.cpu_limit,
            memory: self.memory_limit,
        };
        for resource in Resource::ALL {
            let (Some(limit), Some(limit_text)) = (limits.get(resource), limits.text(resource)) else {
                continue;
            };
            if limit == 0 {
                let message = format!("--{resource}-limit 0 is no limit: give an amount above it");
                return Err(Failure::Usage(anyhow!(message)));
            }
            if let (Some(request), Some(request_text)) = (requests.get(resource), requests.text(resource))
                && request > limit
            {
                return Err(Failure::Usage(anyhow!(
                    "--{resource}-request {request_text} is above --{resource}-limit {limit_text}: lower the one or raise the other"
                )));
            }
        }
        Ok(Requirements { requests, limits })
    }
}

/// Asks, waits until the values are verified, and prints each step.
///
/// # Errors
/// [`Failure`] when the arguments make no sense, the agent does not answer, refuses, or fails.
pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let values = arguments.values.check()?;
    if arguments.ttl == Ttl::UntilReleased && !arguments.force {
        return Err(Failure::Usage(anyhow!(
            "--ttl 0 holds the values until somebody releases them: add --force if that is meant, or give a time such as --ttl 2h"
        )));
    }
    let request = ResizeRequest {
        pod: arguments.pod.clone(),
        containers: vec![ContainerValues {
            name: arguments.container.clone(),
            values: Some((&values).into()),
        }],
        ttl_us: arguments.ttl.micros(),
        reason: arguments.reason.clone(),
        dry_run: arguments.dry_run,
    };
    let reply = agent.ask(async |client| Ok(client.resize(request).await?))?;
    let change = change::required(reply.change)?;
    arguments
        .output
        .print(&change, |paint| change::render(&change, paint))?;
    change::verdict(&change)?;
    if arguments.output.format == Format::Table {
        super::io::print(&what_next(&change, arguments))?;
    }
    Ok(())
}

fn what_next(change: &Change, arguments: &Arguments) -> String {
    let pod = change::pod(change);
    match arguments.ttl {
        _ if arguments.dry_run => "nothing was written: leave --dry-run out to do it\n".to_owned(),
        Ttl::For(time) => format!(
            "holds for {}; `vscalectl release {pod}` ends it earlier\n",
            coarse(time)
        ),
        Ttl::UntilReleased => format!("holds until `vscalectl release {pod}`\n"),
    }
}
