//! `vscalectl history` and `watch`, and one pass over one pod as people read it: its steps, how they ended, and the exit code.

use anyhow::anyhow;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::output::{Output, Paint, Tone, clean, or_dash};
use super::{Failure, agent::Agent, amount, io, oom, table, time};
use crate::control::proto::{Change, Step};

pub(super) fn pod(change: &Change) -> String {
    clean(&format!("{}/{}", change.namespace, change.name))
}

/// How long the pass took in microseconds from the decision until its values were verified; 0 if it did not get there.
fn total(change: &Change) -> u64 {
    change.stages.as_ref().map_or(0, |stages| stages.verified_us)
}

fn took(micros: u64) -> String {
    if micros == 0 {
        "-".to_owned()
    } else {
        time::took(micros)
    }
}

/// Every step, then the outcome.
pub(super) fn render(change: &Change, paint: Paint) -> String {
    let mut text = String::new();
    let rows = change.steps.iter().map(|step| row(step, paint));
    if change.outcome == "Planned" && !change.steps.is_empty() {
        // Nothing happened yet.
        let planned = rows.map(|[via, level, file, from, to, ..]| [via, level, file, from, to]);
        text.push_str(&table::list(["VIA", "LEVEL", "FILE", "FROM", "TO"], planned, paint));
    } else if !change.steps.is_empty() {
        let header = ["VIA", "LEVEL", "FILE", "FROM", "TO", "TOOK", "NOTE"];
        text.push_str(&table::list(header, rows, paint));
    }
    text.push_str(&format!("{}: {}", pod(change), paint.word(&change.outcome)));
    if total(change) > 0 {
        text.push_str(&format!(" in {}", took(total(change))));
    }
    if !change.reason.is_empty() {
        text.push_str(&format!(": {}", clean(&change.reason)));
    }
    text.push('\n');
    text
}

fn row(step: &Step, paint: Paint) -> [String; 7] {
    let note = match (step.rollback, step.error.as_str()) {
        (false, "") => String::new(),
        (true, "") => paint.text(Tone::Waiting, "put back"),
        (false, error) => paint.text(Tone::Bad, error),
        (true, error) => paint.text(Tone::Bad, &format!("not put back: {error}")),
    };
    [
        or_dash(&step.via),
        clean(&[step.level.as_str(), step.name.as_str()].join(" "))
            .trim_end()
            .to_owned(),
        or_dash(&step.file),
        amount::describe(&step.file, &step.from),
        amount::describe(&step.file, &step.to),
        took(step.took_us),
        note,
    ]
}

/// One row for each change, newest last.
pub(super) fn list(changes: &[Change], paint: Paint) -> String {
    let header = ["AT", "POD", "CAUSE", "OUTCOME", "STEPS", "TOOK", "REASON"];
    table::list(header, changes.iter().map(|change| cells(change, paint)), paint)
}

/// One line about one change, for a list whose columns are not known in advance.
pub(super) fn line(change: &Change, paint: Paint) -> String {
    let [at, pod, cause, outcome, steps, took, reason] = cells(change, paint);
    let text = format!(
        "{at}  {pod}  {outcome}  {cause}  {steps} {} in {took}  {reason}",
        noun(change)
    );
    text.trim_end().to_owned()
}

/// The same about a pod that is named already: when, how it ended, what for, and why so.
pub(super) fn line_of_pod(change: &Change, paint: Paint) -> String {
    let [at, _, cause, outcome, steps, took, reason] = cells(change, paint);
    let mut text = format!("{at}  {outcome}  {cause}");
    if !change.steps.is_empty() {
        text.push_str(&format!(", {steps} {} in {took}", noun(change)));
    }
    if !reason.is_empty() {
        text.push_str(&format!(": {reason}"));
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
        took(total(change)),
        clean(&change.reason),
    ]
}

/// Whether the change is done and verified.
///
/// Errors: saying how it ended otherwise, and what to type next.
pub(super) fn check_outcome(change: &Change) -> Result<(), Failure> {
    let pod = pod(change);
    let reason = if change.reason.is_empty() {
        "no reason was given".to_owned()
    } else {
        clean(&change.reason)
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

/// Prints until the reader or the agent goes.
///
/// Errors: when the agent goes.
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
