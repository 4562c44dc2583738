//! What became of each of several pods, and of each container in them.

use anyhow::anyhow;
use serde::Serialize;

use super::output::{Output, Paint, Tone, clean, or_dash};
use super::{Failure, change, table};
use crate::control::proto::PodResult;

#[derive(Serialize)]
struct Results<'a> {
    results: &'a [PodResult],
}

/// Prints all results.
///
/// # Errors
/// [`Failure::Refused`] with how many did not succeed.
pub(super) fn show(results: &[PodResult], output: &Output) -> Result<(), Failure> {
    output.print(&Results { results }, |paint| render(results, paint))?;
    let failed: Vec<&PodResult> = results.iter().filter(|result| !succeeded(result)).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = failed
        .iter()
        .map(|result| clean(&format!("{}/{}", result.namespace, result.name)))
        .collect();
    Err(Failure::Refused(anyhow!(
        "{} of {} pods are not as asked: {}",
        failed.len(),
        results.len(),
        names.join(", ")
    )))
}

fn succeeded(result: &PodResult) -> bool {
    let change = result.change.as_ref();
    change.is_some_and(|change| change::verdict(change).is_ok())
}

/// One row for each container of each pod: a pod's containers are changed together or not at all.
fn render(results: &[PodResult], paint: Paint) -> String {
    let header = ["POD", "CONTAINER", "OUTCOME", "STEPS", "REASON"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for result in results {
        let (outcome, steps, reason) = match &result.change {
            Some(change) => (
                paint.word(&change.outcome),
                change.steps.len().to_string(),
                &change.reason,
            ),
            None => (paint.text(Tone::Bad, "Refused"), "-".to_owned(), &result.error),
        };
        let pod = clean(&format!("{}/{}", result.namespace, result.name));
        let names: &[String] = if result.containers.is_empty() {
            &[String::new()]
        } else {
            &result.containers
        };
        for (index, name) in names.iter().enumerate() {
            let first = index == 0;
            rows.push(vec![
                if first { pod.clone() } else { String::new() },
                or_dash(name),
                outcome.clone(),
                if first { steps.clone() } else { String::new() },
                if first { clean(reason) } else { String::new() },
            ]);
        }
    }
    table::shown(rows, paint)
}
