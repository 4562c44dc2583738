//! `vscalectl top`: what the pods of this node use beside what they may, as a live screen or as a table.
//!
//! In come the agent's answers and the keys; out goes the screen. [`state`] holds what is known, [`view`] what the keys
//! chose, and [`render`] draws both: none of them does I/O, which is [`screen`]'s. Nothing here changes anything.

mod bar;
mod render;
mod screen;
mod state;
#[cfg(test)]
mod tests;
mod view;

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;

use super::output::{Format, Output, Paint, or_dash};
use super::time::Ttl;
use super::{Failure, agent::Agent, table};
use state::{Line, Node};
use view::View;

/// Shows what pods use beside their requests, limits and bounds: live on a terminal, elsewhere once as a table
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only pods whose namespace/name contains this
    #[arg(default_value = "")]
    filter: String,
    /// The time between two readings: rates are those of this time
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    output: Output,
}

fn interval(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3600);
    let Ttl(interval) = text.parse()?;
    interval
        .filter(|interval| allowed.contains(interval))
        .ok_or_else(|| format!("{text:?}: allowed are 100ms to 1h"))
}

pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
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
    let lines = view.lines(&node);
    let draw = |paint| once(&lines, paint);
    arguments.output.print_list("usage", &lines, draw)
}

/// One row for each resource of each pod and container.
fn once(lines: &[&Line], paint: Paint) -> String {
    if lines.is_empty() {
        return "no such pod runs on this node\n".to_owned();
    }
    let header = [
        "POD",
        "CONTAINER",
        "RESOURCE",
        "USED",
        "REQUEST",
        "LIMIT",
        "TARGET",
        "BOUNDS",
        "THROTTLED",
    ];
    let rows = lines.iter().flat_map(|line| {
        let mut head = [line.full_name(), or_dash(line.container.as_deref().unwrap_or_default())];
        let mut throttled = line.throttled();
        [&line.cpu, &line.memory].map(|amounts| {
            let [pod, container] = head.each_mut().map(std::mem::take);
            let shown = |amount| amounts.short(amount);
            [
                pod,
                container,
                amounts.resource.to_string(),
                shown(amounts.used),
                shown(amounts.request),
                amounts.limit(),
                shown(amounts.target),
                amounts.bounds(),
                std::mem::take(&mut throttled),
            ]
        })
    });
    table::list(header, rows, paint)
}
