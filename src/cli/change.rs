//! `vscalectl history` and `watch`, and the output of a change: its steps, its outcome, and the exit code.

use anyhow::anyhow;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::output::{Output, Paint, Tone, clean, or_dash};
use super::{Failure, agent::Agent, amount, io, oom, table, time};
use crate::control::proto::{Change, Step};

pub(super) fn pod(change: &Change) -> String {
    clean(&format!("{}/{}", change.namespace, change.name))
}

/// The time from the decision until the values were verified, or a dash if the pass did not verify them.
fn total(change: &Change) -> String {
    took(change.stages.as_ref().map_or(0, |stages| stages.verified_us))
}

fn took(micros: u64) -> String {
    match micros {
        0 => "-".to_owned(),
        micros => time::took(micros),
    }
}

/// Every step, then the outcome.
pub(super) fn render(change: &Change, paint: Paint) -> String {
    let mut text = String::new();
    let rows = change.steps.iter().map(|step| row(step, paint));
    if change.outcome == "Planned" && !change.steps.is_empty() {
        // A planned step has neither a duration nor an error.
        let planned = rows.map(|[via, level, file, from, to, ..]| [via, level, file, from, to]);
        text += &table::list("VIA  LEVEL  FILE  FROM  TO", planned, paint);
    } else if !change.steps.is_empty() {
        text += &table::list("VIA  LEVEL  FILE  FROM  TO  TOOK  NOTE", rows, paint);
    }
    text += &format!("{}: {}", pod(change), paint.word(&change.outcome));
    if change.stages.as_ref().is_some_and(|stages| stages.verified_us > 0) {
        text += &format!(" in {}", total(change));
    }
    if !change.reason.is_empty() {
        text += &format!(": {}", clean(&change.reason));
    }
    text + "\n"
}

fn row(step: &Step, paint: Paint) -> [String; 7] {
    let note = match (step.rollback, step.error.as_str()) {
        (false, "") => String::new(),
        (true, "") => paint.text(Tone::Waiting, "put back"),
        (false, error) => paint.text(Tone::Bad, error),
        (true, error) => paint.text(Tone::Bad, &format!("not put back: {error}")),
    };
    let level = clean(&format!("{} {}", step.level, step.name));
    [
        or_dash(&step.via),
        level.trim_end().to_owned(),
        or_dash(&step.file),
        amount::describe(&step.file, &step.from),
        amount::describe(&step.file, &step.to),
        took(step.took_us),
        note,
    ]
}

/// One row for each change, newest last.
pub(super) fn list(changes: &[Change], paint: Paint) -> String {
    let rows = changes.iter().map(|change| cells(change, paint));
    table::list("AT  POD  CAUSE  OUTCOME  STEPS  TOOK  REASON", rows, paint)
}

/// One line about a change, for an endless list, whose column widths nothing tells in advance.
pub(super) fn line(change: &Change, paint: Paint) -> String {
    let [at, pod, cause, outcome, steps, took, reason] = cells(change, paint);
    let noun = noun(change);
    let text = format!("{at}  {pod}  {outcome}  {cause}  {steps} {noun} in {took}  {reason}");
    text.trim_end().to_owned()
}

/// One line about a change, without the pod's name: its time, outcome, cause and reason.
pub(super) fn line_of_pod(change: &Change, paint: Paint) -> String {
    let [at, _, cause, outcome, steps, took, reason] = cells(change, paint);
    let mut text = format!("{at}  {outcome}  {cause}");
    if !change.steps.is_empty() {
        text += &format!(", {steps} {} in {took}", noun(change));
    }
    if !reason.is_empty() {
        text += &format!(": {reason}");
    }
    text
}

fn noun(change: &Change) -> &'static str {
    if change.steps.len() == 1 { "step" } else { "steps" }
}

fn cells(change: &Change, paint: Paint) -> [String; 7] {
    [
        time::second(&change.at),
        pod(change),
        or_dash(&change.cause),
        paint.word(&change.outcome),
        change.steps.len().to_string(),
        total(change),
        clean(&change.reason),
    ]
}

/// Whether the change is done and verified.
///
/// Errors: the outcome, and the command to type next.
pub(super) fn check_outcome(change: &Change) -> Result<(), Failure> {
    let pod = pod(change);
    let reason = match clean(&change.reason) {
        empty if empty.is_empty() => "no reason was given".to_owned(),
        reason => reason,
    };
    let failure = match change.outcome.as_str() {
        "Applied" | "Unchanged" | "Planned" => return Ok(()),
        "RuntimeOwed" => {
            io::warn(&format!(
                "{pod}: the kernel holds the new values, the runtime's stored spec does not yet ({reason}); vscaled keeps \
                 trying, `vscalectl explain {pod}` shows how it stands"
            ));
            return Ok(());
        }
        "SpecLater" => {
            io::warn(&format!(
                "{pod}: {reason}; `vscalectl explain {pod}` shows how it stands"
            ));
            return Ok(());
        }
        "Refused" => anyhow!("{pod} was not changed: {reason}"),
        "RolledBack" => anyhow!("{pod}: a step failed and everything was put back: {reason}"),
        "Incomplete" => {
            anyhow!("{pod}: not every value is what it should be: {reason}; `vscalectl explain {pod}` shows which")
        }
        other => anyhow!(
            "{pod}: this vscalectl does not know the outcome {:?}: it is of another version than vscaled",
            clean(other)
        ),
    };
    Err(failure.into())
}

/// Lists what was done lately, newest last
#[derive(Debug, Args)]
pub(super) struct HistoryArguments {
    /// Only this pod: namespace/name, a UID, or the beginning of a container's id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pod: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(super) fn history(arguments: &HistoryArguments, agent: &Agent) -> Result<(), Failure> {
    let pod = arguments.pod.clone().unwrap_or_default();
    let reply = agent.call(async |client| Ok(client.history(pod).await?))?;
    arguments.output.print(&reply, |paint| {
        if reply.changes.is_empty() {
            "nothing was done lately\n".to_owned()
        } else {
            list(&reply.changes, paint)
        }
    })
}

/// Shows changes as they are made, and kills as they happen, until interrupted; JSON is one line for each, YAML one document
#[derive(Debug, Args)]
pub(super) struct WatchArguments {
    #[command(flatten)]
    output: Output,
}

/// Prints until the reader closes the pipe.
///
/// Errors: when the agent stops.
pub(super) fn watch(arguments: &WatchArguments, agent: &Agent) -> Result<(), Failure> {
    agent.call(async |client| {
        let mut changes = client.watch().await?;
        loop {
            let change = changes.next().await?;
            if change.missed > 0 {
                io::warn(&format!(
                    "{} changes were missed, because they were read too slowly: `vscalectl history` shows them",
                    change.missed
                ));
            }
            let shown = |paint| match &change.kill {
                Some(kill) => oom::line(kill, paint),
                None => line(&change, paint),
            };
            if arguments.output.print_next(&change, shown)?.is_break() {
                return Ok(());
            }
        }
    })
}
