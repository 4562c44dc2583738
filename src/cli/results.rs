//! What became of each of several pods, and of each container in them.

use anyhow::{Context, anyhow};

use super::output::{Output, Paint, Tone, clean, or_dash};
use super::pod_selection::PodSelection;
use super::{Failure, change, table};
use crate::control::proto::{Change, PodResult};

/// Prints what became of the one pod of a request, or of those that its selector fits.
///
/// Errors: unless all of it is done.
pub(super) fn show(
    pods: &PodSelection,
    change: Option<Change>,
    results: &[PodResult],
    output: &Output,
) -> Result<Option<Change>, Failure> {
    if !pods.has_selector() {
        let no_change = "the answer says nothing about what was done: is vscaled of another version?";
        let change = change.context(no_change)?;
        output.print(&change, |paint| change::render(&change, paint))?;
        return change::check_outcome(&change).map(|()| Some(change));
    }
    output.print_list("results", results, |paint| render(results, paint))?;
    let failed = results.iter().filter(|result| !succeeded(result)).map(name);
    let failed: Vec<String> = failed.collect();
    if failed.is_empty() {
        return Ok(None);
    }
    let (count, all, names) = (failed.len(), results.len(), failed.join(", "));
    Err(anyhow!("{count} of {all} pods are not as asked: {names}").into())
}

pub(super) fn name(result: &PodResult) -> String {
    clean(&format!("{}/{}", result.namespace, result.name))
}

fn succeeded(result: &PodResult) -> bool {
    let change = result.change.as_ref();
    change.is_some_and(|change| change::check_outcome(change).is_ok())
}

/// One row for each container of each pod: a pod's containers are changed together or not at all.
fn render(results: &[PodResult], paint: Paint) -> String {
    let header = ["POD", "CONTAINER", "OUTCOME", "STEPS", "REASON"];
    let mut rows = Vec::new();
    for result in results {
        let (outcome, steps, reason) = match &result.change {
            Some(change) => (
                paint.word(&change.outcome),
                change.steps.len().to_string(),
                &change.reason,
            ),
            None => (paint.text(Tone::Bad, "Refused"), "-".to_owned(), &result.error),
        };
        let mut head = [name(result), steps, clean(reason)];
        let unnamed = [String::new()];
        let containers = if result.containers.is_empty() {
            &unnamed[..]
        } else {
            &result.containers
        };
        for container in containers {
            let [pod, steps, reason] = head.each_mut().map(std::mem::take);
            rows.push([pod, or_dash(container), outcome.clone(), steps, reason]);
        }
    }
    table::list(header, rows, paint)
}
