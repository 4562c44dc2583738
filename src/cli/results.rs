//! The pods that a command changes, one by name or several by labels, and the result for each of them.

use std::collections::BTreeSet;

use anyhow::{Context, anyhow};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::output::{Format, Output, optional};
use super::page::{Page, TextLine, Tone, toned, word};
use super::{Failure, change, io, table};
use crate::control;
use crate::control::proto::{Change, ChangeReply, PodResult};

/// The most pods that a line names.
const NAMED: usize = 5;

/// Prints the change of the one pod, or the results of all pods that the selector fits.
///
/// Errors: unless every pod is done.
pub(super) fn show(pods: &PodSelection, reply: ChangeReply, output: &Output) -> Result<Option<Change>, Failure> {
    if pods.selector.is_none() {
        let no_change = "the answer says nothing about what was done: is vscaled of another version?";
        let change = reply.change.context(no_change)?;
        output.print(&change, || change::render(&change))?;
        let is_shown = output.format == Format::Table && io::writes_to_terminal();
        if let Some(warning) = change::check_outcome(&change, is_shown)? {
            let pod = change::pod(&change);
            io::warn(&format!("{pod}: {warning}; `vscalectl explain {pod}` shows its state"));
        }
        return Ok(Some(change));
    }
    let results = &reply.results;
    output.print_list("results", results, || render(results))?;
    warnings(results).iter().for_each(|warning| io::warn(warning));
    match named(results, |result| outcome(result).is_none()) {
        Some(pods) => Err(anyhow!("not as requested: {pods}").into()),
        None => Ok(None),
    }
}

/// Whether the same request can still succeed for a pod for which it has not.
pub(super) fn can_follow(reply: &ChangeReply) -> bool {
    let mut changes = reply.results.iter().map(|result| &result.change);
    reply.change.as_ref().is_some_and(change::can_follow)
        || changes.any(|change| change.as_ref().is_none_or(change::can_follow))
}

/// The first names and the count of the pods for which this holds, if there are any: `shop/web, shop/db (2 of 3)`.
pub(super) fn named(results: &[PodResult], holds: impl Fn(&PodResult) -> bool) -> Option<String> {
    let names: Vec<String> = results.iter().filter(|result| holds(result)).map(name).collect();
    let more = if names.len() > NAMED { ", …" } else { "" };
    let first = names.get(..NAMED).unwrap_or(&names).join(", ");
    (!names.is_empty()).then(|| format!("{first}{more} ({} of {})", names.len(), results.len()))
}

/// A line for each warning, with the pods that it is about.
fn warnings(results: &[PodResult]) -> Vec<String> {
    let all: BTreeSet<String> = results.iter().filter_map(outcome).flatten().collect();
    let line = |text: &String| {
        let pods = named(results, |result| outcome(result).flatten().as_ref() == Some(text))?;
        Some(format!("{pods}: {text}; `vscalectl explain POD` shows a pod's state"))
    };
    all.iter().filter_map(line).collect()
}

pub(super) fn name(result: &PodResult) -> String {
    format!("{}/{}", result.namespace, result.name)
}

/// None for a pod that is not as requested, else the warning about it, if there is one.
pub(super) fn outcome(result: &PodResult) -> Option<Option<String>> {
    change::check_outcome(result.change.as_ref()?, false).ok()
}

/// One row for each container of each pod. The first row of a pod has the pod's outcome.
fn render(results: &[PodResult]) -> Page {
    let mut rows = Vec::new();
    for result in results {
        let (outcome, steps, reason) = match &result.change {
            Some(change) => (word(&change.outcome), change.steps.len().to_string(), &change.reason),
            None => (toned(Tone::Bad, "Refused"), "-".to_owned(), &result.error),
        };
        let mut head = [name(result), steps, reason.clone()];
        // A pod without containers has a row, too.
        for index in 0..result.containers.len().max(1) {
            let [pod, steps, reason] = head.each_mut().map(std::mem::take).map(TextLine::from);
            let container = optional(result.containers.get(index));
            rows.push([pod, container.into(), outcome.clone(), steps, reason]);
        }
    }
    table::fitted("POD  CONTAINER  OUTCOME  STEPS  REASON", rows).page()
}

/// One pod, or a selector.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct PodSelection {
    /// namespace/name, a UID, or the beginning of a container's id
    #[arg(value_parser = NonEmptyStringValueParser::new(), required_unless_present = "selector")]
    pod: Option<String>,
    /// In place of POD: every pod with these labels, such as app=web,tier!=db
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "pod", value_parser = selector)]
    selector: Option<String>,
    /// With --selector: only pods of this namespace
    // clap does not require what conflicts with an argument that is there.
    #[arg(short = 'n', long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    #[arg(requires = "selector", conflicts_with = "pod")]
    namespace: Option<String>,
}

impl PodSelection {
    /// Pod, selector and namespace as the protocol has them.
    pub(super) fn parts(&self) -> (String, String, String) {
        let text = |part: &Option<String>| part.clone().unwrap_or_default();
        (text(&self.pod), text(&self.selector), text(&self.namespace))
    }
}

fn selector(text: &str) -> Result<String, String> {
    control::selector(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_names_all_its_pods_at_once() {
        let result = |name: String, outcome: &str| PodResult {
            namespace: "shop".to_owned(),
            name,
            change: Some(Change {
                outcome: outcome.to_owned(),
                reason: "it is busy".to_owned(),
                ..Change::default()
            }),
            ..PodResult::default()
        };
        let mut results: Vec<_> = (1..=7)
            .map(|number| result(format!("web-{number}"), "SpecLater"))
            .collect();
        results.extend(["RuntimeOwed", "Applied", "Refused"].map(|outcome| result(outcome.to_lowercase(), outcome)));
        assert_eq!(
            warnings(&results),
            [
                "shop/runtimeowed (1 of 10): the kernel holds the new values, the runtime's stored spec does not yet, and vscaled \
                 keeps trying: it is busy; `vscalectl explain POD` shows a pod's state",
                "shop/web-1, shop/web-2, shop/web-3, shop/web-4, shop/web-5, … (7 of 10): the pod's spec does not have the new \
                 values yet: it is busy; `vscalectl explain POD` shows a pod's state",
            ]
        );
    }

    #[test]
    fn a_request_follows_while_a_pod_is_not_done() {
        let change = |outcome: &str| {
            let outcome = outcome.to_owned();
            Some(Change {
                outcome,
                ..Change::default()
            })
        };
        for (outcomes, follows) in [
            (&["Applied", "Unchanged"][..], false),
            (&[], false),
            (&["Applied", "Refused"], true),
            (&["Applied", ""], true),
        ] {
            // Of a pod without a change there is an error.
            let results = outcomes.iter().map(|outcome| PodResult {
                change: change(outcome).filter(|_| !outcome.is_empty()),
                ..PodResult::default()
            });
            let reply = ChangeReply {
                change: None,
                results: results.collect(),
            };
            assert_eq!(can_follow(&reply), follows, "{outcomes:?}");
        }
        for (outcome, follows) in [("Applied", false), ("Deferred", true)] {
            let reply = ChangeReply {
                change: change(outcome),
                results: Vec::new(),
            };
            assert_eq!(can_follow(&reply), follows, "{outcome}");
        }
    }

    #[test]
    fn a_namespace_is_for_a_selector_alone() {
        let parse = |line: &str| {
            let command = PodSelection::augment_args(clap::Command::new("release").no_binary_name(true));
            command
                .try_get_matches_from(line.split(' '))
                .map_err(|error| error.to_string())
        };
        assert!(parse("-l app=web -n shop").is_ok());
        for (line, named) in [("shop/web -n shop", "--namespace"), ("-n shop", "--selector")] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
