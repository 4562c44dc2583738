//! `vscalectl oom`: the kills of the kernel's OOM killer.

mod parse;

use clap::Subcommand;

use super::agent::Agent;
use super::output::{optional, or_dash};
use super::page::{TextLine, Tone, toned};
use super::table::{self, Table};
use super::{Failure, PodArguments, amount, time};
use crate::control::proto::{OomKill, OomVictim};
use crate::model::Resource;
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
        amount::short(Resource::Memory, limit.and_then(|limit| limit.limit_bytes)).into(),
        or_dash(&killed(kill)).into(),
        amount::short(Resource::Memory, memory.map(|memory| memory.rss().get())).into(),
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
    let enforced = enforced.map(|limit| {
        let bytes = limit
            .limit_bytes
            .map(|bytes| format!(" of {}", amount::short(Resource::Memory, Some(bytes))));
        format!("at the {} limit{}", kill.level, bytes.unwrap_or_default())
    });
    let down = kill.while_down.then(|| "while no agent ran".to_owned());
    let [enforced, group, evidence, down] = [enforced, group, evidence, down].map(|note| note.map(TextLine::from));
    TextLine::joined([enforced, group, own, evidence, down].into_iter().flatten(), "; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::proto::OomOwnWrite;
    use crate::oom::proto::{Container, Evidence, HitLimit, Memory};

    fn limit(mebibytes: u64) -> Option<HitLimit> {
        Some(HitLimit {
            limit_bytes: Some(mebibytes << 20),
            ..HitLimit::default()
        })
    }

    fn victim(pid: u32, role: &str) -> OomVictim {
        OomVictim {
            pid,
            comm: "java".to_owned(),
            role: role.to_owned(),
            memory: Some(Memory {
                total_vm_bytes: 1 << 30,
                anon_rss_bytes: 32 << 20,
                ..Memory::default()
            }),
            ..OomVictim::default()
        }
    }

    fn kill() -> OomKill {
        OomKill {
            id: "b-log-1".to_owned(),
            time: "2026-01-31T12:00:00.25Z".to_owned(),
            pod: Some(ReportedPod {
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
                uid: "u-1".to_owned(),
            }),
            container: Some(Container {
                name: "app".to_owned(),
                id: "c0ffee".to_owned(),
            }),
            level: "pod".to_owned(),
            limit: limit(64),
            victim: Some(victim(7, "main")),
            confidence: "exact".to_owned(),
            ..OomKill::default()
        }
    }

    fn shown(kill: &OomKill) -> [String; 9] {
        cells(kill).map(|cell| cell.shown(false))
    }

    #[test]
    fn each_column_has_its_part_of_a_kill() {
        let of_pod = shown(&kill());
        let expected = [
            "2026-01-31T12:00:00Z",
            "shop/web",
            "app",
            "pod",
            "64Mi",
            "7 java (main)",
            "32Mi",
            "exact",
            "",
        ];
        assert_eq!(of_pod, expected);
        let mut of_container = kill();
        of_container.limit_of = "container".to_owned();
        of_container.container_limit = limit(48);
        of_container.container = Some(Container {
            name: String::new(),
            id: "0123456789abcdef".to_owned(),
        });
        let [_, _, container, level, hit, .., note] = shown(&of_container);
        assert_eq!(
            [container, level, hit, note].each_ref().map(String::as_str),
            ["0123456789ab", "container", "48Mi", "at the pod limit of 64Mi"]
        );
        let nothing = OomKill {
            cgroup: Some("/system.slice/db".to_owned()),
            ..OomKill::default()
        };
        assert_eq!(
            shown(&nothing),
            ["", "/system.slice/db", "-", "-", "-", "-", "-", "-", ""]
        );
    }

    #[test]
    fn killed_processes_are_named_or_counted() {
        let of = |victim: Option<OomVictim>, pids: &[u32], more_candidates| {
            killed(&OomKill {
                victim,
                candidates: pids.iter().map(|pid| self::victim(*pid, "")).collect(),
                more_candidates,
                ..OomKill::default()
            })
        };
        assert_eq!(of(Some(victim(7, "main")), &[], 0), "7 java (main)");
        assert_eq!(of(Some(victim(7, "child")), &[8], 0), "7 java (child)");
        assert_eq!(of(Some(victim(7, "unspecified")), &[], 0), "7 java");
        assert_eq!(of(None, &[], 0), "");
        assert_eq!(of(None, &[7, 8, 9, 10], 0), "one of 7, 8, 9, 10");
        assert_eq!(of(None, &[7, 8, 9, 10, 11], 0), "one of 5 processes");
        assert_eq!(of(None, &[7, 8], 96), "one of 98 processes");
    }

    #[test]
    fn notes_say_what_else_is_known() {
        let mut of = kill();
        of.group = vec![7, 8, 9];
        of.own_write = Some(OomOwnWrite {
            what: "memory.max of pod from 128 to 64".to_owned(),
            ..OomOwnWrite::default()
        });
        of.evidence = Some(Evidence {
            path: Some("/dump".to_owned()),
            ..Evidence::default()
        });
        of.while_down = true;
        let note = "a group of 3; after vscaled lowered memory.max of pod from 128 to 64; evidence in /dump; while no agent ran";
        assert_eq!(super::note(&of).shown(false), note);
        assert!(super::note(&of).shown(true).contains("\u{1b}[31mafter vscaled lowered"));
        of = kill();
        of.container_limit = limit(48);
        of.limit = Some(HitLimit::default());
        of.evidence = Some(Evidence {
            unfinished: Some(true),
            ..Evidence::default()
        });
        assert_eq!(
            super::note(&of).shown(false),
            "at the pod limit; its hook had not ended"
        );
        of = kill();
        of.evidence = Some(Evidence {
            exit_code: Some(1),
            ..Evidence::default()
        });
        assert_eq!(super::note(&of).shown(false), "");
    }

    #[test]
    fn a_watched_kill_is_one_sentence() {
        let mut of = kill();
        of.while_down = true;
        assert_eq!(
            line(&of).shown(false),
            "2026-01-31T12:00:00Z  shop/web  OOM kill  app: 7 java (main) (32Mi) at the pod limit of 64Mi; exact  while no agent ran"
        );
    }
}
