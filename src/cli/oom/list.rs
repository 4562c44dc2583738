//! `vscalectl oom list`: the latest kills on this node.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use crate::cli::agent::Agent;
use crate::cli::output::{Output, Paint, Tone, clean, optional, or_dash};
use crate::cli::{Failure, table, time};
use crate::control::proto::{OomKill, OomVictim};
use crate::model::Bytes;
use crate::oom::ReportedPod;

/// Lists what the kernel killed lately for want of memory, newest last: where, whose limit was hit, who was killed
#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Only this pod: namespace/name, a UID, or the beginning of a container's id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pod: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(in crate::cli) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let pod = arguments.pod.clone().unwrap_or_default();
    let reply = agent.call(async |client| Ok(client.oom_list(pod).await?))?;
    arguments.output.print(&reply, |paint| {
        if reply.kills.is_empty() {
            return "the kernel killed nothing for want of memory lately\n".to_owned();
        }
        let rows = reply.kills.iter().map(|kill| cells(kill, paint));
        table::list(
            "AT  POD  CONTAINER  LEVEL  LIMIT  KILLED  RSS  KNOWN  NOTE",
            rows,
            Paint::PLAIN,
        )
    })
}

/// One line about a kill, for an endless list, whose column widths nothing tells in advance.
pub(in crate::cli) fn line(kill: &OomKill, paint: Paint) -> String {
    let [at, pod, container, level, limit, killed, rss, known, note] = cells(kill, paint);
    let text = format!(
        "{at}  {pod}  {}  {container}: {killed} ({rss}) at the {level} limit of {limit}; {known}  {note}",
        paint.text(Tone::Bad, "OOM kill")
    );
    text.trim_end().to_owned()
}

fn cells(kill: &OomKill, paint: Paint) -> [String; 9] {
    let pod = kill.pod.as_ref().map(ReportedPod::full_name);
    let container = kill.container.as_ref().map(|container| match container.name.as_str() {
        "" => container.id.chars().take(12).collect(),
        name => name.to_owned(),
    });
    // The container's own limit, where the container had reached it. The note names the limit of the pod.
    let limit = kill.container_limit.as_ref().or(kill.limit.as_ref());
    let limit = limit.and_then(|limit| limit.limit_bytes);
    let level = match kill.limit_of.as_str() {
        "" => kill.level.as_str(),
        limit_of => limit_of,
    };
    let memory = kill.victim.as_ref().and_then(|victim| victim.memory);
    let rss = memory.map(|memory| memory.rss().to_string());
    // A process of no pod has a cgroup all the same.
    let pod = pod.or_else(|| kill.cgroup.clone());
    [
        time::second(&kill.time),
        optional(pod.as_deref()),
        optional(container.as_deref()),
        or_dash(level),
        optional(limit.map(|bytes| Bytes::new(bytes).to_string()).as_deref()),
        or_dash(&killed(kill)),
        optional(rss.as_deref()),
        or_dash(&kill.confidence),
        note(kill, paint),
    ]
}

fn killed(kill: &OomKill) -> String {
    let one = |victim: &OomVictim| match victim.role.as_str() {
        "main" | "child" => format!("{} {} ({})", victim.pid, victim.comm, victim.role),
        _ => format!("{} {}", victim.pid, victim.comm),
    };
    let candidates: Vec<String> = kill.candidates.iter().map(|victim| victim.pid.to_string()).collect();
    let more = usize::try_from(kill.more_candidates).unwrap_or(usize::MAX);
    match (&kill.victim, candidates.len().saturating_add(more)) {
        (Some(victim), _) => one(victim),
        (None, 0) => String::new(),
        (None, 1..=4) => format!("one of {}", candidates.join(", ")),
        (None, many) => format!("one of {many} processes"),
    }
}

fn note(kill: &OomKill, paint: Paint) -> String {
    let group = (!kill.group.is_empty()).then(|| format!("a group of {}", kill.group.len()));
    let own = kill.own_write.as_ref();
    let own = own.map(|write| paint.text(Tone::Bad, &format!("after vscaled lowered {}", write.what)));
    let evidence = kill.evidence.as_ref().and_then(|evidence| match &evidence.path {
        Some(path) => Some(format!("evidence in {}", clean(path))),
        None => evidence.unfinished.map(|_| "its hook had not ended".to_owned()),
    });
    let enforced = kill.limit.as_ref().filter(|_| kill.container_limit.is_some());
    let enforced = enforced.map(|limit| match limit.limit_bytes {
        Some(bytes) => format!("at the {} limit of {}", kill.level, Bytes::new(bytes)),
        None => format!("at the {} limit", kill.level),
    });
    let down = kill.while_down.then(|| "while no agent ran".to_owned());
    let notes: Vec<String> = [enforced, group, own, evidence, down].into_iter().flatten().collect();
    notes.join("; ")
}
