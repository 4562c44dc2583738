//! The beginning of a pass: finds the values that another process has changed.

use jiff::Timestamp;

use super::foreign::{ForeignWriters, Verdict};
use crate::model::{ControlFile, PodTree, PodValues, Resource, Target};

/// Finds the values that another process has changed, and removes from `wanted` those that the agent leaves alone. Does not
/// return values that it already left alone before.
///
/// `held_before` is false where the pass before failed: a value that differs may then be that pass's own, but the agent still
/// leaves alone what it left alone before. The guard has raised the limits of `grown` containers since the last pass, and
/// writes them before or after the pass reads the files.
pub(super) fn flips(
    observed: &PodTree,
    wanted: &mut PodValues,
    foreign: &mut ForeignWriters,
    held_before: bool,
    grown: &[String],
) -> Vec<(Target, ControlFile, Verdict)> {
    let now = Timestamp::now();
    let mut flipped = Vec::new();
    let PodValues { tree, specs } = wanted;
    let containers = tree
        .containers
        .iter_mut()
        .map(|(name, settings)| (Target::Container(name.clone()), settings));
    for (target, settings) in std::iter::once((Target::Pod, &mut tree.pod)).chain(containers) {
        let Some(held) = observed.get(&target) else { continue };
        let differing: Vec<ControlFile> = settings
            .iter()
            .filter(|wanted| held.get(wanted.file()).is_some_and(|held| held != *wanted))
            .map(|wanted| wanted.file())
            .collect();
        let is_grown = match &target {
            Target::Pod => !grown.is_empty(),
            Target::Container(name) => grown.contains(name),
        };
        for file in differing {
            let known = foreign.paused(&target, file, now).is_some();
            let is_ours = !held_before || is_grown && file.resource() == Resource::Memory;
            if is_ours && !known {
                continue;
            }
            let verdict = foreign.flipped(&target, file, now);
            if let Verdict::LeaveUntil(_) = verdict {
                settings.remove(file);
                if let Target::Container(name) = &target
                    && let Some(spec) = specs.get_mut(name)
                {
                    // The runtime would write the file with the spec.
                    spec.forget(file);
                }
            }
            if !known {
                flipped.push((target.clone(), file, verdict));
            }
        }
    }
    flipped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CpuWeight, MemoryLimit, Setting, Settings};

    fn weight(value: u64) -> Settings {
        [Setting::CpuWeight(CpuWeight::new(value))].into_iter().collect()
    }

    fn tree(pod: Settings) -> PodTree {
        PodTree {
            pod,
            ..PodTree::default()
        }
    }

    #[test]
    fn what_the_guard_has_just_grown_is_nobody_elses_change() {
        let limit = |bytes| [Setting::MemoryMax(MemoryLimit::Bytes(bytes))].into_iter().collect();
        let found = |name: &str, grown: &str| {
            let tree = |app: Settings| PodTree {
                containers: [(name.to_owned(), app)].into(),
                ..tree(weight(10))
            };
            let mut wanted = PodValues {
                tree: tree(limit(200)),
                ..PodValues::default()
            };
            let mut foreign = ForeignWriters::default();
            flips(&tree(limit(100)), &mut wanted, &mut foreign, true, &[grown.to_owned()]).len()
        };
        assert_eq!((found("app", "app"), found("app", "side")), (0, 1));
    }

    #[test]
    fn what_is_left_to_somebody_else_stays_so_after_a_pass_that_failed() {
        let mut foreign = ForeignWriters::default();
        let mut flip = |held_before: bool| {
            let mut wanted = PodValues {
                tree: tree(weight(10)),
                ..PodValues::default()
            };
            flips(&tree(weight(77)), &mut wanted, &mut foreign, held_before, &[]);
            wanted.tree.pod == Settings::default()
        };
        assert!(!flip(false), "nothing says that somebody else wrote the value");
        while !flip(true) {}
        assert!(flip(false), "a retry fights for the value");
    }
}
