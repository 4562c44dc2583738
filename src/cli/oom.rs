//! `vscalectl oom`: the kills of the kernel's OOM killer.

mod parse;

use clap::Subcommand;

use super::agent::Agent;
use super::output::{optional, or_dash};
use super::page::{TextLine, Tone, toned};
use super::table::{self, Table};
use super::{Failure, PodArguments, time};
use crate::control::proto::{OomKill, OomVictim};
use crate::model::Bytes;
use crate::oom::ReportedPod;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Lists the latest OOM kills, newest last: the container, the limit that was hit, and the killed process
    List(PodArguments),
    Parse(parse::Arguments),
}

pub(super) fn run(command: &Command, agent: &Agent) -> Result<(), Failure> {
    match command {
        Command::List(arguments) => list(arguments, agent),
        Command::Parse(arguments) => parse::run(arguments),
    }
}

/// Prints the latest kills on this node.
fn list(arguments: &PodArguments, agent: &Agent) -> Result<(), Failure> {
    let mut reply = agent.call(async |client| Ok(client.oom_list(arguments.pod()).await?))?;
    arguments.retain(&mut reply.kills, |kill| Some(&kill.pod.as_ref()?.uid), agent)?;
    arguments.output.print(&reply, || table(&reply.kills).or(NONE))
}

/// What stands in place of a table without kills.
pub(super) const NONE: &str = "no recent OOM kills";

/// One row for each kill.
pub(super) fn table(kills: &[OomKill]) -> Table {
    let header = "AT  POD  CONTAINER  LEVEL  LIMIT  KILLED  RSS  KNOWN  NOTE";
    table::list(header, kills.iter().map(cells))
}

/// One line about a kill, for an endless list, whose column widths are unknown in advance.
pub(super) fn line(kill: &OomKill) -> TextLine {
    let [at, pod, container, level, limit, killed, rss, known, note] = cells(kill);
    let victim = container.then(": ").then(killed).then(" (").then(rss).then(")");
    let limit = level.then(" limit of ").then(limit).then("; ").then(known);
    let what = TextLine::joined([victim, limit], " at the ");
    TextLine::joined([at, pod, toned(Tone::Bad, "OOM kill"), what, note], "  ")
}

fn cells(kill: &OomKill) -> [TextLine; 9] {
    // A process of no pod has a cgroup all the same.
    let pod = kill
        .pod
        .as_ref()
        .map(ReportedPod::full_name)
        .or_else(|| kill.cgroup.clone());
    let container = kill.container.as_ref().map(|container| match container.name.as_str() {
        "" => container.id.chars().take(12).collect(),
        name => name.to_owned(),
    });
    // The container's own limit, where the container had reached it. The note names the limit of the pod.
    let limit = kill.container_limit.as_ref().or(kill.limit.as_ref());
    let level = [&kill.limit_of, &kill.level]
        .into_iter()
        .find(|level| !level.is_empty());
    let memory = kill.victim.as_ref().and_then(|victim| victim.memory);
    [
        time::second(&kill.time).into(),
        optional(pod).into(),
        optional(container).into(),
        optional(level).into(),
        optional(limit.and_then(|limit| limit.limit_bytes).map(Bytes::new)).into(),
        or_dash(&killed(kill)).into(),
        optional(memory.map(|memory| memory.rss())).into(),
        or_dash(&kill.confidence).into(),
        note(kill),
    ]
}

fn killed(kill: &OomKill) -> String {
    if let Some(OomVictim { pid, comm, role, .. }) = &kill.victim {
        return match role.as_str() {
            "main" | "child" => format!("{pid} {comm} ({role})"),
            _ => format!("{pid} {comm}"),
        };
    }
    let candidates: Vec<String> = kill.candidates.iter().map(|victim| victim.pid.to_string()).collect();
    let more = usize::try_from(kill.more_candidates).unwrap_or(usize::MAX);
    match candidates.len().saturating_add(more) {
        0 => String::new(),
        1..=4 => format!("one of {}", candidates.join(", ")),
        many => format!("one of {many} processes"),
    }
}

fn note(kill: &OomKill) -> TextLine {
    let group = (!kill.group.is_empty()).then(|| format!("a group of {}", kill.group.len()));
    let lowered = kill.own_write.as_ref().map(|write| &write.what);
    let own = lowered.map(|what| toned(Tone::Bad, format!("after vscaled lowered {what}")));
    let evidence = kill.evidence.as_ref().and_then(|evidence| match &evidence.path {
        Some(path) => Some(format!("evidence in {path}")),
        None => evidence.unfinished.map(|_| "its hook had not ended".to_owned()),
    });
    let enforced = kill.limit.as_ref().filter(|_| kill.container_limit.is_some());
    let enforced = enforced.map(|limit| match limit.limit_bytes {
        Some(bytes) => format!("at the {} limit of {}", kill.level, Bytes::new(bytes)),
        None => format!("at the {} limit", kill.level),
    });
    let down = kill.while_down.then(|| "while no agent ran".to_owned());
    let [enforced, group, evidence, down] = [enforced, group, evidence, down].map(|note| note.map(TextLine::from));
    TextLine::joined([enforced, group, own, evidence, down].into_iter().flatten(), "; ")
}
