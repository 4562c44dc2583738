//! `vscalectl doctor`: examines the node, and says how to mend what does not work.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use serde::Serialize;

use super::output::{Output, Paint, Tone, clean};
use super::{Failure, NO_AGENT, agent::Agent, table};
use crate::control::ClientError;
use crate::doctor::{Check, Locations, MEND_RUNTIME, local};
use crate::runtime::{Deadlines, discover};

/// The characters in a line where standard output is no terminal.
const WIDTH: usize = 100;

/// Examines the agent and the node, and says how to mend what does not work
///
/// Without an agent, the machine is examined with the eyes of whoever calls, and the exit code is 3; it is
/// 1 where anything else fails.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// `agent`, or `vscalectl` where no agent answered.
    examined_by: &'static str,
    checks: Vec<Check>,
}

impl Report {
    fn new(examined_by: &'static str, agent: Check, others: Vec<Check>) -> Self {
        let checks = std::iter::once(agent).chain(others).collect();
        Self { examined_by, checks }
    }
}

/// Prints the checks of the agent, or checks of its own where no agent answers.
///
/// Errors: a check fails, or no agent answers, which has an exit code of its own.
pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let answer = agent.try_call(async |client| client.doctor().await)?;
    let (report, missing) = match answer {
        Ok(reply) => {
            let answers = Check::ok("agent", format!("answers at {}", agent.socket.display()));
            (Report::new("agent", answers, reply.checks), None)
        }
        Err(error @ (ClientError::NoAgent(_) | ClientError::Unknown)) => (examine_locally(&error)?, Some(error)),
        Err(error) => return Err(error.into()),
    };
    arguments.output.print(&report, |paint| render(&report, paint))?;
    let failing = |check: &&Check| check.status == "fail" && !(missing.is_some() && check.name == "agent");
    let failed = report.checks.iter().filter(failing);
    let failed: Vec<String> = failed.map(|check| clean(&check.name)).collect();
    match (failed.as_slice(), missing) {
        ([], None) => Ok(()),
        ([], Some(_)) => Err(Failure {
            code: NO_AGENT,
            error: anyhow!("no agent answers; see above"),
        }),
        (failed, _) => Err(anyhow!("failing: {}", failed.join(", ")).into()),
    }
}

/// The checks that need no agent.
fn examine_locally(error: &ClientError) -> Result<Report, Failure> {
    const FOLLOWS: &str = "what follows is what this user finds on this machine with vscaled's defaults";
    let found = error.to_string();
    // The text of an error ends with the way out of it.
    let agent = match found.split_once("; ") {
        Some((found, next)) => Check::fail("agent", found, format!("{next}; {FOLLOWS}")),
        None => Check::fail("agent", found, FOLLOWS),
    };
    let mut checks = local(&Locations::default());
    let deadlines = Deadlines {
        read: Duration::from_secs(2),
        ..Deadlines::default()
    };
    let found = super::agent::block_on(discover(None, deadlines))?;
    checks.push(match found {
        Ok((_, info)) => Check::ok("runtime", format!("{} {}", info.name, info.version)),
        Err(error) => Check::warn("runtime", error.to_string(), MEND_RUNTIME),
    });
    Ok(Report::new("vscalectl", agent, checks))
}

fn render(report: &Report, paint: Paint) -> String {
    let names = report.checks.iter().map(|check| check.name.chars().count());
    let column = names.max().unwrap_or(0);
    let width = paint.width.unwrap_or(WIDTH);
    let indent = 6 + column + 2;
    let mut text = String::new();
    for check in &report.checks {
        let tone = match check.status.as_str() {
            "ok" => Tone::Good,
            "warn" => Tone::Waiting,
            _ => Tone::Bad,
        };
        let status = paint.text(tone, &format!("{:4}", check.status));
        let (name, found) = (clean(&check.name), table::wrap(&clean(&check.found), indent, width));
        text += &format!("{status}  {name:column$}  {}", found.trim_start());
        if !check.mend.is_empty() {
            text += &table::wrap(&format!("→ {}", clean(&check.mend)), indent, width);
        }
    }
    let count = |status: &str| report.checks.iter().filter(|check| check.status == status).count();
    let (failing, degraded) = (count("fail"), count("warn"));
    text + &match (failing, degraded) {
        (0, 0) => format!("{}\n", paint.text(Tone::Good, "all is well")),
        _ => format!("{failing} failing, {degraded} degraded\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_work_comes_with_what_to_do() {
        let checks = vec![
            Check::ok("kernel", "Linux 6.18.0 x86_64"),
            Check::warn("kernel log", "/dev/kmsg cannot be read: EPERM", "grant CAP_SYSLOG"),
            Check::fail("cgroups", "nothing is mounted", "mount the host's /sys/fs/cgroup here"),
        ];
        let report = Report {
            examined_by: "agent",
            checks,
        };
        insta::assert_snapshot!(render(&report, Paint::PLAIN), @r"
        ok    kernel      Linux 6.18.0 x86_64
        warn  kernel log  /dev/kmsg cannot be read: EPERM
                          → grant CAP_SYSLOG
        fail  cgroups     nothing is mounted
                          → mount the host's /sys/fs/cgroup here
        1 failing, 1 degraded
        ");
    }
}
