//! `vscalectl resize` sets containers' requests and limits by hand, for a while; `release` ends that.

mod requested;

use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;
use tonic::Code;

use self::requested::RequestedResources;
use super::output::{Format, Output};
use super::time::{coarse, duration, ttl};
use super::{Failure, agent::Agent, change, results, results::PodSelection};
use crate::control::proto::{Change, ChangeReply, ContainerValues, ReleaseRequest, ResizeRequest};
use crate::control::{Client, ClientError};
use crate::model::micros;

/// The pauses between two attempts grow from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Sets containers' requests and limits by hand; they override the VPA until their time is over
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    pods: PodSelection,
    #[command(flatten)]
    requested: RequestedResources,
    /// How long the values hold, such as 90s, 30m or 1h30m; 0, with --force, is until they are released
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = ttl)]
    ttl: Duration,
    /// Confirms --ttl 0
    #[arg(long)]
    force: bool,
    /// If the values are refused or not in force yet, try again until they are, but no longer than this, such as 30s
    #[arg(long, value_name = "DURATION", default_value = "0", hide_default_value = true, value_parser = duration, conflicts_with = "dry_run")]
    wait: Duration,
    /// Why, for people who find the override
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Show the steps and write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
}

/// Requests the resize, waits until the values are verified, and prints each step.
///
/// Errors: the arguments contradict each other, or the agent does not answer, refuses or fails.
pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    if arguments.ttl.is_zero() && !arguments.force {
        return Err(Failure::usage(anyhow!(
            "--ttl 0 holds the values until an operator releases them: add --force if that is meant, or give a time such as --ttl 2h"
        )));
    }
    let (pod, selector, namespace) = arguments.pods.parts();
    let containers = arguments.requested.containers.iter().map(|container| ContainerValues {
        name: container.name.clone(),
        values: Some((&container.resources).into()),
    });
    let request = ResizeRequest {
        pod,
        selector,
        namespace,
        containers: containers.collect(),
        ttl_us: Some(micros(arguments.ttl)).filter(|ttl| *ttl > 0),
        reason: arguments.reason.clone(),
        dry_run: arguments.dry_run,
    };
    let reply = agent.call(async |client| resize(client, request, arguments.wait).await)?;
    match results::show(&arguments.pods, reply, &arguments.output)? {
        Some(change) if arguments.output.format == Format::Table => {
            super::io::print(&what_next(&change, arguments).into()).map(drop)
        }
        _ => Ok(()),
    }
}

/// Requests the resize, again and again until the values are in force, but no longer than `wait`.
async fn resize(client: &mut Client, request: ResizeRequest, wait: Duration) -> Result<ChangeReply, Failure> {
    let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        let reply = client.resize(request.clone()).await;
        let left = wait.saturating_sub(began.elapsed());
        if !can_follow(&reply) || left.is_zero() {
            return Ok(reply?);
        }
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Whether the same request can still succeed after this answer.
fn can_follow(reply: &Result<ChangeReply, ClientError>) -> bool {
    match reply {
        Ok(reply) => results::can_follow(reply),
        Err(ClientError::Answer(status)) => !matches!(status.code(), Code::InvalidArgument | Code::PermissionDenied),
        Err(_) => false,
    }
}

fn what_next(change: &Change, arguments: &Arguments) -> String {
    let pod = change::pod(change);
    match coarse(arguments.ttl) {
        _ if arguments.dry_run => "nothing was written: leave --dry-run out to do it".to_owned(),
        _ if arguments.ttl.is_zero() => format!("holds until `vscalectl release {pod}`"),
        time => format!("holds for {time}; `vscalectl release {pod}` ends it earlier"),
    }
}

/// Ends an override: the values of the VPA or of the spec come back
#[derive(Debug, Args)]
pub(super) struct ReleaseArguments {
    #[command(flatten)]
    pods: PodSelection,
    /// Why, for the history and the audit log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    output: Output,
}

/// Ends the override, waits until the values are back, and prints each step.
///
/// Errors: the agent does not answer, refuses or fails.
pub(super) fn release(arguments: &ReleaseArguments, agent: &Agent) -> Result<(), Failure> {
    let (pod, selector, namespace) = arguments.pods.parts();
    let request = ReleaseRequest {
        pod,
        selector,
        namespace,
        reason: arguments.reason.clone(),
    };
    let reply = agent.call(async |client| Ok(client.release(request).await?))?;
    results::show(&arguments.pods, reply, &arguments.output).map(drop)
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    #[test]
    fn only_refusals_that_may_end_are_waited_for() {
        for (status, follows) in [
            (Status::failed_precondition("the node has 1Gi left"), true),
            (Status::not_found("no such pod yet"), true),
            (Status::resource_exhausted("too many calls"), true),
            (Status::invalid_argument("no such container"), false),
            (Status::permission_denied("uid 7 may only read"), false),
        ] {
            let said = format!("{status:?}");
            assert_eq!(can_follow(&Err(ClientError::Answer(status))), follows, "{said}");
        }
        assert!(!can_follow(&Err(ClientError::Unknown)));
    }
}
