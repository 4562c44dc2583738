//! `vscalectl doctor`: what works on this node, what does not, and how to mend it.

use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use serde::Serialize;

use super::output::{Output, Paint, Tone, clean};
use super::{Failure, NO_DAEMON, agent::Agent, table};
use crate::control::{ClientError, proto};
use crate::doctor::{Check, Locations, MEND_RUNTIME, local};
use crate::runtime::{Deadlines, discover};

/// Characters in a line where nobody says how many there is room for.
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

/// Asks the agent, or looks locations itself, and prints what was found.
///
/// Errors: if the agent is missing, with a code of its own, and if anything fails.
pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let answer = agent.try_call(async |client| client.doctor().await)?;
    let (report, missing) = match answer {
        Ok(reply) => (report_of_agent(&agent.socket, reply), None),
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
            code: NO_DAEMON,
            error: anyhow!("no agent answers; see above"),
        }),
        (failed, _) => Err(anyhow!("failing: {}", failed.join(", ")).into()),
    }
}

fn report_of_agent(socket: &Path, reply: proto::DoctorReply) -> Report {
    let mut checks = vec![Check::ok("agent", format!("answers at {}", socket.display()))];
    checks.extend(reply.checks);
    Report {
        examined_by: "agent",
        checks,
    }
}

/// What can be found out without an agent.
fn examine_locally(error: &ClientError) -> Result<Report, Failure> {
    const FOLLOWS: &str = "what follows is what this user finds on this machine with vscaled's defaults";
    let found = error.to_string();
    // What to do comes last in the text of an error.
    let agent = match found.split_once("; ") {
        Some((found, next)) => Check::fail("agent", found, format!("{next}; {FOLLOWS}")),
        None => Check::fail("agent", found, FOLLOWS),
    };
    let mut checks: Vec<Check> = vec![agent];
    checks.extend(local(&Locations::default()));
    let deadlines = Deadlines {
        read: Duration::from_secs(2),
        ..Deadlines::default()
    };
    let found = super::agent::block_on(discover(None, deadlines))?;
    checks.push(match found {
        Ok((_, info)) => Check::ok("runtime", format!("{} {}", info.name, info.version)),
        Err(error) => Check::warn("runtime", error.to_string(), MEND_RUNTIME),
    });
    Ok(Report {
        examined_by: "vscalectl",
        checks,
    })
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
        text.push_str(&format!("{status}  {name:column$}  {}", found.trim_start()));
        if !check.mend.is_empty() {
            text.push_str(&table::wrap(&format!("→ {}", clean(&check.mend)), indent, width));
        }
    }
    let count = |status: &str| report.checks.iter().filter(|check| check.status == status).count();
    let (failing, degraded) = (count("fail"), count("warn"));
    text.push_str(&match (failing, degraded) {
        (0, 0) => format!("{}\n", paint.text(Tone::Good, "all is well")),
        _ => format!("{failing} failing, {degraded} degraded\n"),
    });
    text
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
