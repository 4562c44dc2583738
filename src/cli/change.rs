//! `vscalectl history` and `watch`, and the output of a change: its steps, its outcome, and the exit code.

use anyhow::anyhow;

use super::output::{Output, or_dash};
use super::page::{Page, TextLine, Tone, toned, word};
use super::table::{self, Table};
use super::{Failure, PodArguments, agent::Agent, amount, io, oom, time};
use crate::control::proto::{Change, Step};

pub(super) fn pod(change: &Change) -> String {
    format!("{}/{}", change.namespace, change.name)
}

/// The time from the decision until the values were verified, or a dash if the pass did not verify them.
fn total(change: &Change) -> String {
    time::took(change.stages.as_ref().map_or(0, |stages| stages.verified_us))
}

/// That time behind other words; nothing if the pass did not verify the values.
fn in_total(change: &Change) -> String {
    let took = Some(total(change)).filter(|took| took != "-");
    took.map(|took| format!(" in {took}")).unwrap_or_default()
}

/// Every step, then the outcome.
pub(super) fn render(change: &Change) -> Page {
    let rows = change.steps.iter().map(row);
    // A planned step has neither a duration nor an error.
    let planned = |[via, level, file, from, to, ..]: [TextLine; 7]| [via, level, file, from, to];
    let steps = match change.outcome.as_str() {
        "Planned" => table::fitted("VIA  LEVEL  FILE  FROM  TO", rows.map(planned)),
        _ => table::fitted("VIA  LEVEL  FILE  FROM  TO  TOOK  NOTE", rows),
    };
    let mut line = TextLine::from(pod(change)).then(": ").then(word(&change.outcome));
    line = line.then(in_total(change));
    if !change.reason.is_empty() {
        line = line.then(format!(": {}", change.reason));
    }
    steps.or(Page::default()).then(line)
}

fn row(step: &Step) -> [TextLine; 7] {
    let note = match (step.rollback, step.error.as_str()) {
        (false, "") => TextLine::default(),
        (true, "") => toned(Tone::Waiting, "put back"),
        (false, error) => toned(Tone::Bad, error),
        (true, error) => toned(Tone::Bad, format!("not put back: {error}")),
    };
    let level = format!("{} {}", step.level, step.name);
    [
        or_dash(&step.via).into(),
        level.trim_end().into(),
        or_dash(&step.file).into(),
        amount::describe(&step.file, &step.from).into(),
        amount::describe(&step.file, &step.to).into(),
        time::took(step.took_us).into(),
        note,
    ]
}

/// One line about a change or a kill, for an endless list, whose column widths are unknown in advance.
pub(super) fn line(change: &Change) -> TextLine {
    if let Some(kill) = &change.kill {
        return oom::line(kill);
    }
    let [at, pod, cause, outcome, _, _, reason] = cells(change);
    TextLine::joined([at, pod, outcome, cause, steps(change).into(), reason], "  ")
}

/// One line about a change, without the pod's name: its time, outcome, cause and reason.
pub(super) fn line_of_pod(change: &Change) -> TextLine {
    let [at, _, cause, outcome, _, _, reason] = cells(change);
    let mut line = TextLine::joined([at, outcome, cause], "  ");
    if !change.steps.is_empty() {
        line = line.then(", ").then(steps(change));
    }
    if !change.reason.is_empty() {
        line = line.then(": ").then(reason);
    }
    line
}

fn steps(change: &Change) -> String {
    let count = change.steps.len();
    let noun = if count == 1 { "step" } else { "steps" };
    format!("{count} {noun}{}", in_total(change))
}

fn cells(change: &Change) -> [TextLine; 7] {
    [
        time::second(&change.at).into(),
        pod(change).into(),
        or_dash(&change.cause).into(),
        word(&change.outcome),
        change.steps.len().to_string().into(),
        total(change).into(),
        (&change.reason).into(),
    ]
}

/// Whether the same request can still succeed, after a change with this outcome.
pub(super) fn can_follow(change: &Change) -> bool {
    change.outcome != "Infeasible" && check_outcome(change, false).is_err()
}

/// The warning about a change that is done and not complete yet. Leaves out a reason that `is_shown` already.
///
/// Errors: the outcome, and the command to type next.
pub(super) fn check_outcome(change: &Change, is_shown: bool) -> Result<Option<String>, Failure> {
    let pod = pod(change);
    let why = match change.reason.as_str() {
        "" => ": no reason was given".to_owned(),
        _ if is_shown => String::new(),
        reason => format!(": {reason}"),
    };
    let failure = match change.outcome.as_str() {
        "Applied" | "Unchanged" | "Planned" => return Ok(None),
        "RuntimeOwed" => {
            let owed = "the kernel holds the new values, the runtime's stored spec does not yet";
            return Ok(Some(format!("{owed}, and vscaled keeps trying{why}")));
        }
        "SpecLater" => return Ok(Some(format!("the pod's spec does not have the new values yet{why}"))),
        "Refused" => anyhow!("{pod} was not changed{why}"),
        "RolledBack" => anyhow!("{pod}: a step failed and everything was put back{why}"),
        "Incomplete" => {
            anyhow!("{pod}: not every value is what it should be{why}; `vscalectl explain {pod}` shows which")
        }
        "Interrupted" | "Deferred" | "Unanswered" | "Postponed" | "ResizeError" => {
            anyhow!(
                "{pod} does not have the values yet{why}; vscaled keeps trying, and `vscalectl explain {pod}` shows when"
            )
        }
        "Infeasible" => anyhow!("{pod}: this node can never hold the values{why}"),
        other => {
            anyhow!("{pod}: this vscalectl does not know the outcome {other:?}: it is of another version than vscaled")
        }
    };
    Err(failure.into())
}

pub(super) fn history(arguments: &PodArguments, agent: &Agent) -> Result<(), Failure> {
    let mut reply = agent.call(async |client| Ok(client.history(arguments.pod()).await?))?;
    arguments.retain(&mut reply.changes, |change| Some(&change.uid), agent)?;
    arguments.output.print(&reply, || table(&reply.changes).or(NONE))
}

/// What stands in place of a table without changes.
pub(super) const NONE: &str = "no recent changes";

/// One row for each change.
pub(super) fn table(changes: &[Change]) -> Table {
    table::fitted(
        "AT  POD  CAUSE  OUTCOME  STEPS  TOOK  REASON",
        changes.iter().map(cells),
    )
}

/// Prints until the reader closes the pipe.
///
/// Errors: when the agent stops.
pub(super) fn watch(output: &Output, agent: &Agent) -> Result<(), Failure> {
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
            if output.print_next(&change, || line(&change))?.is_break() {
                return Ok(());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::proto::Stages;

    fn changed(outcome: &str, reason: &str, steps: &[Step]) -> Change {
        Change {
            at: "2026-01-31T12:00:00.25Z".to_owned(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            cause: "periodic check".to_owned(),
            outcome: outcome.to_owned(),
            reason: reason.to_owned(),
            steps: steps.to_vec(),
            stages: Some(Stages {
                queued_us: 5,
                verified_us: 1290,
                ..Stages::default()
            }),
            ..Change::default()
        }
    }

    fn step(error: &str, rollback: bool) -> Step {
        Step {
            via: "cgroup".to_owned(),
            level: "container".to_owned(),
            name: "app".to_owned(),
            file: "memory.max".to_owned(),
            from: "134217728".to_owned(),
            to: "67108864".to_owned(),
            took_us: 85,
            error: error.to_owned(),
            rollback,
        }
    }

    #[test]
    fn a_step_says_what_became_of_it() {
        for (error, rollback, note) in [
            ("", false, ""),
            ("", true, "\u{1b}[33mput back\u{1b}[0m"),
            ("EBUSY", false, "\u{1b}[31mEBUSY\u{1b}[0m"),
            ("EBUSY", true, "\u{1b}[31mnot put back: EBUSY\u{1b}[0m"),
        ] {
            let cells = row(&step(error, rollback)).map(|cell| cell.shown(true));
            let (from, to) = ("134217728 (128Mi)", "67108864 (64Mi)");
            assert_eq!(
                cells,
                ["cgroup", "container app", "memory.max", from, to, "85 µs", note]
            );
        }
    }

    #[test]
    fn a_planned_step_took_no_time() {
        let planned = render(&changed("Planned", "", &[step("", false)])).shown(false);
        assert!(
            planned.starts_with("VIA     LEVEL          FILE        FROM               TO\n"),
            "{planned}"
        );
        assert!(!planned.contains("85 µs"), "{planned}");
        let mut unverified = changed("Refused", "no room", &[]);
        unverified.stages = None;
        assert_eq!(render(&unverified).shown(false), "shop/web: Refused: no room\n");
    }

    #[test]
    fn a_watched_change_is_one_line() {
        let of = changed("Refused", "no room", &[step("", false), step("", true)]);
        assert_eq!(
            line(&of).shown(false),
            "2026-01-31T12:00:00Z  shop/web  Refused  periodic check  2 steps in 1.2 ms  no room"
        );
        assert_eq!(
            line_of_pod(&of).shown(false),
            "2026-01-31T12:00:00Z  Refused  periodic check, 2 steps in 1.2 ms: no room"
        );
        let unverified = Change { stages: None, ..of };
        assert!(line(&unverified).shown(false).contains("  2 steps  no room"));
        let none = changed("Unchanged", "", &[]);
        assert_eq!(
            line_of_pod(&none).shown(false),
            "2026-01-31T12:00:00Z  Unchanged  periodic check"
        );
    }

    #[test]
    fn an_outcome_says_whether_to_wait() {
        // Whether another attempt can succeed, and what the error says, if the outcome is one.
        for (outcome, follows, said) in [
            ("Applied", false, None),
            ("Unchanged", false, None),
            ("Planned", false, None),
            ("RuntimeOwed", false, None),
            ("SpecLater", false, None),
            ("Refused", true, Some("shop/web was not changed: why")),
            (
                "RolledBack",
                true,
                Some("shop/web: a step failed and everything was put back: why"),
            ),
            (
                "Incomplete",
                true,
                Some("shop/web: not every value is what it should be: why; `vscalectl explain shop/web` shows which"),
            ),
            ("Interrupted", true, Some("shop/web does not have the values yet: why")),
            ("Deferred", true, Some("shop/web does not have the values yet: why")),
            ("Unanswered", true, Some("shop/web does not have the values yet: why")),
            ("Postponed", true, Some("shop/web does not have the values yet: why")),
            ("ResizeError", true, Some("shop/web does not have the values yet: why")),
            (
                "Infeasible",
                false,
                Some("shop/web: this node can never hold the values: why"),
            ),
            (
                "Novel",
                true,
                Some("shop/web: this vscalectl does not know the outcome \"Novel\""),
            ),
        ] {
            let change = changed(outcome, "why", &[]);
            assert_eq!(can_follow(&change), follows, "{outcome}");
            match (check_outcome(&change, false), said) {
                (Ok(warning), None) => {
                    let is_incomplete = matches!(outcome, "RuntimeOwed" | "SpecLater");
                    let is_warned = warning.is_some_and(|text| text.ends_with(": why"));
                    assert_eq!(is_warned, is_incomplete, "{outcome}");
                }
                (Err(Failure { code: 1, error }), Some(said)) => {
                    assert!(error.to_string().starts_with(said), "{outcome}: {error}");
                }
                (other, _) => panic!("{outcome}: {other:?}"),
            }
        }
        for (reason, said) in [
            ("", "shop/web was not changed: no reason was given"),
            ("why", "shop/web was not changed"),
        ] {
            let error = check_outcome(&changed("Refused", reason, &[]), true).unwrap_err().error;
            assert_eq!(error.to_string(), said);
        }
    }
}
