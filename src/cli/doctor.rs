//! `vscalectl doctor`: examines the node, and says how to mend what does not work.

use anyhow::anyhow;
use serde::Serialize;

use super::fleet::Items;
use super::output::Output;
use super::page::{Page, TextLine, Tone, toned};
use super::{Failure, NO_AGENT, agent::Agent, io};
use crate::doctor::{Check, Locations, MEND_RUNTIME, local};
use crate::runtime::{Deadlines, discover};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DoctorReport {
    /// `agent`, or `vscalectl` where no agent answered.
    examined_by: &'static str,
    checks: Vec<Check>,
}

/// Prints the checks of the agent, or checks of its own where no agent answers.
///
/// Errors: a check fails, or no agent answers, which has an exit code of its own.
pub(super) fn run(output: &Output, agent: &Agent) -> Result<(), Failure> {
    let (examined_by, first, others) = match agent.call(async |client| Ok(client.doctor().await?)) {
        Ok(reply) => {
            let answers = Check::new("agent", Ok(format!("answers at {}", agent.socket.display())));
            ("agent", answers, reply.checks)
        }
        Err(Failure { code: NO_AGENT, error }) => ("vscalectl", no_agent(&error.to_string()), examine_locally()?),
        Err(failure) => return Err(failure),
    };
    let is_failing = |check: &&Check| check.status == "fail";
    let failed = Vec::from_iter(others.iter().filter(is_failing).map(|check| check.name.clone()));
    let is_missing = is_failing(&&first);
    let checks = [vec![first], others].concat();
    let report = DoctorReport { examined_by, checks };
    output.print(&report, || render(&report))?;
    match failed.as_slice() {
        [] if is_missing => Err(Failure {
            code: NO_AGENT,
            error: anyhow!("no agent answers; see above"),
        }),
        [] => Ok(()),
        failed => Err(anyhow!("failing: {}", failed.join(", ")).into()),
    }
}

/// The check of the agent where none answers. The text of an error ends with the way out of it.
fn no_agent(error: &str) -> Check {
    const FOLLOWS: &str = "what follows is what this user finds on this machine with vscaled's defaults";
    let problem = match error.split_once("; ") {
        Some((found, next)) => Check::fail(found, format!("{next}; {FOLLOWS}")),
        None => Check::fail(error, FOLLOWS),
    };
    Check::new("agent", Err(problem))
}

/// The checks that need no agent.
fn examine_locally() -> Result<Vec<Check>, Failure> {
    let mut checks = local(&Locations::default());
    let found = super::agent::block_on(discover(None, Deadlines::default()))?;
    let found = found.map(|(_, info)| format!("{} {}", info.name, info.version));
    let found = found.map_err(|error| Check::warn(error.to_string(), MEND_RUNTIME));
    checks.push(Check::new("runtime", found));
    Ok(checks)
}

fn render(report: &DoctorReport) -> Page {
    let page = lines(&report.checks);
    let count = |status: &str| report.checks.iter().filter(|check| check.status == status).count();
    let (failing, degraded) = (count("fail"), count("warn"));
    page.then(match (failing, degraded) {
        (0, 0) => toned(Tone::Good, "all is well"),
        _ => format!("{failing} failing, {degraded} degraded").into(),
    })
}

/// What is not well on each of many nodes: nodes with the same finding together, failing checks first.
pub(super) fn of_nodes(checks: &Items<Check>) -> Page {
    let mut found: Vec<_> = checks.iter().filter(|(_, check)| check.status != "ok").collect();
    found.sort_by_cached_key(|(node, check)| {
        [&check.status, &check.name, &check.found, &check.mend, node].map(String::clone)
    });
    let same = found.chunk_by(|(_, one), (_, next)| one == next);
    let pages = same.map(|same| {
        let nodes: Vec<&str> = same.iter().map(|(node, _)| node.as_str()).collect();
        let title = toned(Tone::Title, nodes.join(", "));
        Page::from(title).then(lines(std::slice::from_ref(&same[0].1)))
    });
    pages
        .fold(Page::default(), Page::then)
        .or(toned(Tone::Good, "all is well on every node that answered"))
}

/// One paragraph for each check.
fn lines(checks: &[Check]) -> Page {
    let names = checks.iter().map(|check| check.name.chars().count());
    let column = names.max().unwrap_or(0);
    let width = io::width().unwrap_or(io::WIDTH);
    let indent = 6 + column + 2;
    let mut page = Page::default();
    for check in checks {
        let tone = match check.status.as_str() {
            "ok" => Tone::Good,
            "warn" => Tone::Waiting,
            _ => Tone::Bad,
        };
        let head = toned(tone, format!("{:4}", check.status)).then(format!("  {:column$}  ", check.name));
        let mut found = Page::wrapped(&check.found, 0, width.saturating_sub(indent)).into_lines();
        page.push(head.then(found.next().unwrap_or_default()));
        for line in found {
            page.push(TextLine::from(" ".repeat(indent)).then(line));
        }
        if !check.mend.is_empty() {
            page = page.then(Page::wrapped(format!("→ {}", check.mend), indent, width));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_work_comes_with_what_to_do() {
        let checks = vec![
            Check::new("kernel", Ok("Linux 6.18.0 x86_64".to_owned())),
            Check::new(
                "kernel log",
                Err(Check::warn("/dev/kmsg cannot be read: EPERM", "grant CAP_SYSLOG")),
            ),
            Check::new(
                "cgroups",
                Err(Check::fail(
                    "nothing is mounted",
                    "mount the host's /sys/fs/cgroup here",
                )),
            ),
        ];
        let report = DoctorReport {
            examined_by: "agent",
            checks,
        };
        insta::assert_snapshot!(render(&report).shown(false), @r"
        ok    kernel      Linux 6.18.0 x86_64
        warn  kernel log  /dev/kmsg cannot be read: EPERM
                          → grant CAP_SYSLOG
        fail  cgroups     nothing is mounted
                          → mount the host's /sys/fs/cgroup here
        1 failing, 1 degraded
        ");
    }

    #[test]
    fn a_missing_agent_comes_with_the_way_out() {
        let check = no_agent("no vscaled answers at /run/x; start it");
        assert_eq!(
            (&*check.name, &*check.status, &*check.found),
            ("agent", "fail", "no vscaled answers at /run/x")
        );
        assert!(check.mend.starts_with("start it; what follows is"), "{check:?}");
        let check = no_agent("it is gone");
        assert_eq!((&*check.status, &*check.found), ("fail", "it is gone"));
        assert!(check.mend.starts_with("what follows is"), "{check:?}");
    }

    #[test]
    fn all_is_well_where_nothing_is_missing() {
        let report = DoctorReport {
            examined_by: "agent",
            checks: vec![Check::new("kernel", Ok("Linux".to_owned()))],
        };
        assert_eq!(render(&report).shown(false), "ok    kernel  Linux\nall is well\n");
        assert_eq!(
            of_nodes(&Vec::new()).shown(false),
            "all is well on every node that answered\n"
        );
    }
}
