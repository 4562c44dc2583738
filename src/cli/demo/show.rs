//! The daemon's answers as tables and sentences.

use std::path::Path;
use std::time::Duration;

use super::screen::took;
use super::tree::Tree;
use crate::control::proto::{Amounts, Change, ExplainReply, Step, Value};
use crate::plan::PodTree;
use crate::resources::{ControlFile, MemoryLimit, Setting};

/// What was recommended for each container, and what it gets.
pub(super) fn decision<'a>(
    reply: &ExplainReply,
    recommended: impl Iterator<Item = (&'a str, String)>,
) -> Vec<[String; 4]> {
    let mut rows = vec![["CONTAINER", "RECOMMENDED", "REQUESTS NOW", "LIMITS NOW"].map(str::to_owned)];
    let containers = || reply.pod.iter().flat_map(|pod| &pod.containers);
    for (name, target) in recommended {
        let wanted = containers()
            .find(|container| container.name == name)
            .and_then(|container| container.wanted.as_ref());
        let (requests, limits) = wanted
            .map(|wanted| (wanted.requests.as_ref(), wanted.limits.as_ref()))
            .unwrap_or_default();
        rows.push([name.to_owned(), target, text(requests), text(limits)]);
    }
    rows
}

fn text(amounts: Option<&Amounts>) -> String {
    let Some(amounts) = amounts else { return "-".to_owned() };
    [&amounts.cpu, &amounts.memory]
        .map(|amount| amount.as_deref().unwrap_or("-"))
        .join(" ")
}

/// Steps in their order. Those that were only planned took no time.
pub(super) fn steps(steps: &[Step]) -> Vec<[String; 6]> {
    let mut rows = vec![["LEVEL", "FILE", "OLD", "NEW", "", "TOOK"].map(str::to_owned)];
    for step in steps {
        let level = if step.name.is_empty() { &step.level } else { &step.name };
        let took = if step.took_us == 0 {
            String::new()
        } else {
            took(Duration::from_micros(step.took_us))
        };
        let new = format!("→ {}", step.to);
        rows.push([
            level.clone(),
            step.file.clone(),
            step.from.clone(),
            new,
            in_words(step),
            took,
        ]);
    }
    rows
}

/// `128Mi → 320Mi`, where a file holds bytes.
fn in_words(step: &Step) -> String {
    let amount = |text: &str| {
        let setting = Setting::parse(ControlFile::named(&step.file)?, text).ok()?;
        match setting.memory()? {
            MemoryLimit::Bytes(bytes) => Some(crate::resources::Bytes::new(bytes).to_string()),
            MemoryLimit::Max => None,
        }
    };
    match (amount(&step.from), amount(&step.to)) {
        (Some(from), Some(to)) => format!("{from} → {to}"),
        _ => String::new(),
    }
}

/// How long a change took, stage by stage.
pub(super) fn total(change: &Change, since_file: Duration) -> String {
    let stages = change.stages.unwrap_or_default();
    let spent = |micros| took(Duration::from_micros(micros));
    format!(
        "{} steps, all read back: {} from the decision (queued {}, read {}, planned {}, wrote {}), {} from the file's \
         arrival",
        change.steps.len(),
        spent(stages.verified_us),
        spent(stages.queued_us),
        spent(stages.observe_us),
        spent(stages.plan_us),
        spent(stages.write_us),
        took(since_file)
    )
}

/// One container's values side by side, those that somebody has a say about.
pub(super) fn values(reply: &ExplainReply, container: &str) -> Vec<[String; 5]> {
    let mut rows = vec![["FILE", "BY THE SPEC", "WANTED", "IN THE KERNEL", "KEPT BY"].map(str::to_owned)];
    let of_interest = |value: &&Value| value.name == container && !(value.spec.is_empty() && value.wanted.is_empty());
    for value in reply.values.iter().filter(of_interest) {
        let cells = [&value.file, &value.spec, &value.wanted, &value.kernel, &value.owner];
        rows.push(cells.map(|cell| if cell.is_empty() { "-".to_owned() } else { cell.clone() }));
    }
    rows
}

/// A message without the long beginnings of paths.
pub(super) fn shortened(message: &str, tree: &Tree) -> String {
    let mut directories: Vec<(String, &Path)> = tree.directories().collect();
    // A container's path begins with its pod's.
    directories.reverse();
    directories
        .into_iter()
        .fold(message.to_owned(), |message, (name, directory)| {
            message.replace(&*directory.to_string_lossy(), &format!("…/{name}"))
        })
}

/// `16 values in 4 cgroups`
pub(super) fn count(tree: &PodTree) -> String {
    let values: usize = std::iter::once(&tree.pod)
        .chain(tree.containers.values())
        .map(|cgroup| cgroup.iter().count())
        .sum();
    format!("all {values} values in {} cgroups", 1 + tree.containers.len())
}
