//! `vscalectl top` shows the use of the node's pods beside their requests and limits, as a live screen or as a table.
//!
//! In come the agent's answers and the keys; out goes the screen. [`state`] holds the pods, [`view`] holds the choices of
//! the user, and [`render`] draws both. These three do no I/O; [`screen`] does it. No module changes anything on the node.

mod nodes;
mod render;
mod screen;
mod state;
#[cfg(test)]
mod tests;
mod view;

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;

use super::agent::{Agent, warn_of_left_out};
use super::output::{Format, Output, optional};
use super::page::Page;
use super::time::duration;
use super::{Failure, io, table};
pub(super) use nodes::{Line, Sort, of_nodes};
use state::{Node, PodLine};
use view::View;

/// Shows what pods use beside their requests, limits and bounds: live on a terminal, elsewhere once as a table
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only pods whose namespace/name contains this
    #[arg(default_value = "")]
    filter: String,
    /// The time between two readings, 100ms to 1h: rates are those of this time
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    pub(super) output: Output,
}

fn interval(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3600);
    let interval = Some(duration(text)?).filter(|interval| allowed.contains(interval));
    interval.ok_or_else(|| format!("{text:?}: allowed are 100ms to 1h"))
}

pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    let terminal = std::io::stdin().is_terminal() && io::writes_to_terminal();
    let view = View::of(&arguments.filter);
    if arguments.output.format == Format::Table && terminal && !dumb {
        return agent.call(async |client| screen::show(client, arguments.interval, view).await);
    }
    let node = agent.call(async |client| {
        let mut node = Node::default();
        node.read(client.get_with_usage().await?);
        tokio::time::sleep(arguments.interval).await;
        node.read(client.get_with_usage().await?);
        for change in &client.history(String::new()).await?.changes {
            node.add(change);
        }
        Ok(node)
    })?;
    warn_of_left_out(Some(&node.agent));
    let lines = view.lines(&node);
    arguments.output.print_list("usage", &lines, || once(&lines))
}

/// One row for each resource of each pod and container.
fn once(lines: &[&PodLine]) -> Page {
    let rows = lines.iter().flat_map(|line| {
        let mut head = [line.full_name(), optional(line.container.as_ref()), line.throttled()];
        [&line.cpu, &line.memory].map(|amounts| {
            // Only the first row of a line has them.
            let [pod, container, throttled] = head.each_mut().map(std::mem::take);
            let [used, request, limit, target, bounds] = amounts.texts();
            let limit = limit + &line.burst(amounts.resource);
            let resource = amounts.resource.to_string();
            [
                pod, container, resource, used, request, limit, target, bounds, throttled,
            ]
        })
    });
    let header = "POD  CONTAINER  RESOURCE  USED  REQUEST  LIMIT  TARGET  BOUNDS  THROTTLED";
    table::fitted(header, rows).or("no such pod runs on this node")
}
