//! Distinguishes drift from a foreign writer, which keeps changing a value back.
//!
//! In comes each flip (cgroup, file, time); out comes whether the pass repairs the value now or
//! leaves it alone. Three flips of a value within ten minutes mark a foreign writer: the agent then leaves the value alone, for
//! a minute at first. After each pause it repairs the value once; after another flip it leaves the value alone for twice as
//! long, up to an hour. It forgets a foreign writer that stays quiet for ten minutes after a pause.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::{ControlFile, PodTree, PodValues, Resource, Target};

/// How many flips mark a foreign writer.
const FLIPS: u32 = 3;
/// Flips further apart than this are drift.
const WINDOW: SignedDuration = SignedDuration::from_mins(10);
const FIRST_PAUSE: SignedDuration = SignedDuration::from_mins(1);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(1);

/// The foreign writers of one pod.
#[derive(Debug, Clone, Default)]
pub struct ForeignWriters {
    flips: BTreeMap<(Target, ControlFile), Flips>,
}

/// The flips of one value.
#[derive(Debug, Clone, Copy)]
struct Flips {
    count: u32,
    last: Timestamp,
    /// The length of the next pause.
    pause: SignedDuration,
    /// The end of the latest pause, until the value is repaired after it.
    until: Option<Timestamp>,
}

impl Flips {
    const fn none(now: Timestamp) -> Self {
        Self {
            count: 0,
            last: now,
            pause: FIRST_PAUSE,
            until: None,
        }
    }

    fn dates(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        [&mut self.last].into_iter().chain(&mut self.until)
    }

    fn paused(self, now: Timestamp) -> Option<Timestamp> {
        self.until.filter(|until| now < *until)
    }
}

impl ForeignWriters {
    /// Counts a flip of a value. Returns until when the agent leaves the value alone, where a foreign writer keeps changing it; `None`
    /// where the agent repairs it.
    pub fn flipped(&mut self, target: &Target, file: ControlFile, now: Timestamp) -> Option<Timestamp> {
        let flips = self
            .flips
            .entry((target.clone(), file))
            .or_insert_with(|| Flips::none(now));
        if let Some(until) = flips.paused(now) {
            return Some(until);
        }
        if let Some(ended) = flips.until.take() {
            // The agent has left the value alone, so this is no new flip: repair it.
            flips.last = ended.max(now);
            return None;
        }
        if now.duration_since(flips.last) > WINDOW {
            *flips = Flips::none(now);
        }
        flips.count += 1;
        flips.last = now;
        if flips.count < FLIPS {
            return None;
        }
        flips.until = Some(now.checked_add(flips.pause).unwrap_or(Timestamp::MAX));
        flips.pause = (flips.pause * 2).min(LONGEST_PAUSE);
        flips.until
    }

    /// Finds the values that another process has changed, and until when the agent leaves each of them alone, if it does; removes those
    /// from `wanted`. Does not return values that it already left alone before.
    ///
    /// `held_before` is false where the pass before failed: a value that differs may then be that pass's own, but the agent still
    /// leaves alone what it left alone before. The guard has raised the limits of `grown` containers since the last pass, and
    /// writes them before or after the pass reads the files.
    pub(super) fn find_flips(
        &mut self,
        observed: &PodTree,
        wanted: &mut PodValues,
        held_before: bool,
        grown: &[String],
    ) -> Vec<(Target, ControlFile, Option<Timestamp>)> {
        let now = Timestamp::now();
        let mut flipped = Vec::new();
        let PodValues { tree, specs } = wanted;
        let containers = tree.containers.iter_mut();
        let containers = containers.map(|(name, settings)| (Target::Container(name.clone()), settings));
        for (target, settings) in std::iter::once((Target::Pod, &mut tree.pod)).chain(containers) {
            let Some(held) = observed.get(&target) else { continue };
            let differs = |file: &ControlFile| held.get(*file).is_some_and(|held| settings.get(*file) != Some(held));
            let differing: Vec<_> = settings.iter().map(|wanted| wanted.file()).filter(differs).collect();
            let is_grown = target
                .container()
                .map_or(!grown.is_empty(), |name| grown.iter().any(|grown| grown == name));
            for file in differing {
                let known = self.paused(&target, file, now).is_some();
                let is_ours = !held_before || is_grown && file.resource() == Resource::Memory;
                if is_ours && !known {
                    continue;
                }
                let left_until = self.flipped(&target, file, now);
                if left_until.is_some() {
                    settings.remove(file);
                    if let Some(spec) = target.container().and_then(|name| specs.get_mut(name)) {
                        // The runtime would write the file with the spec.
                        spec.forget(file);
                    }
                }
                if !known {
                    flipped.push((target.clone(), file, left_until));
                }
            }
        }
        flipped
    }

    /// Whether no value of the pod was flipped.
    pub fn is_empty(&self) -> bool {
        self.flips.is_empty()
    }

    /// Until when the agent leaves a value alone, if it does so now.
    pub fn paused(&self, target: &Target, file: ControlFile, now: Timestamp) -> Option<Timestamp> {
        self.flips.get(&(target.clone(), file))?.paused(now)
    }

    /// The values that the agent leaves alone now.
    pub fn all_paused(&self, now: Timestamp) -> impl Iterator<Item = (&Target, ControlFile, Timestamp)> {
        self.flips
            .iter()
            .filter_map(move |((target, file), flips)| Some((target, *file, flips.paused(now)?)))
    }

    /// The times of the latest flips, and the ends of the pauses.
    pub fn dates(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.flips.values_mut().flat_map(Flips::dates)
    }

    /// Forgets all flips: the pod's targets have changed, so earlier flips mean nothing now.
    pub fn forget(&mut self) {
        self.flips.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CpuWeight, CriResources, MemoryLimit, Setting, Settings};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn flip(writers: &mut ForeignWriters, seconds: i64) -> Option<Timestamp> {
        writers.flipped(&Target::Pod, ControlFile::CpuMax, at(seconds))
    }

    #[test]
    fn the_third_flip_marks_a_foreign_writer() {
        let mut writers = ForeignWriters::default();
        assert_eq!(flip(&mut writers, 0), None);
        assert_eq!(flip(&mut writers, 1), None);
        assert_eq!(flip(&mut writers, 2), Some(at(62)));
        assert_eq!(flip(&mut writers, 30), Some(at(62)));
        assert_eq!(writers.paused(&Target::Pod, ControlFile::CpuMax, at(30)), Some(at(62)));
        assert_eq!(writers.paused(&Target::Pod, ControlFile::CpuWeight, at(30)), None);
    }

    #[test]
    fn pauses_grow_to_an_hour() {
        let mut writers = ForeignWriters::default();
        let (mut now, mut pauses, mut repairs) = (0, Vec::new(), 0);
        while pauses.len() < 9 {
            match flip(&mut writers, now) {
                None => {
                    repairs += 1;
                    now += 1;
                }
                Some(until) => {
                    pauses.push(until.as_second() - at(now).as_second());
                    now = until.as_second() - at(0).as_second();
                }
            }
        }
        assert_eq!(pauses, [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]);
        assert_eq!(repairs, 2 + 8);
    }

    #[test]
    fn flips_far_apart_are_drift() {
        let mut writers = ForeignWriters::default();
        for hour in 0..20 {
            assert_eq!(flip(&mut writers, hour * 3600), None);
        }
    }

    #[test]
    fn a_quiet_foreign_writer_is_forgotten() {
        let mut writers = ForeignWriters::default();
        for second in 0..3 {
            flip(&mut writers, second);
        }
        assert_eq!(flip(&mut writers, 62), None);
        assert_eq!(flip(&mut writers, 62 + 601), None);
        assert_eq!(flip(&mut writers, 62 + 602), None);
        writers.forget();
        assert_eq!(writers.all_paused(at(3)).count(), 0);
    }
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
    fn a_fresh_growth_is_no_foreign_change() {
        let limit = |bytes| [Setting::MemoryMax(MemoryLimit::Bytes(bytes))].into_iter().collect();
        let found = |name: &str, grown: &str| {
            let tree = |app: Settings| PodTree {
                containers: [(name.into(), app)].into(),
                ..tree(weight(10))
            };
            let mut wanted = PodValues {
                tree: tree(limit(200)),
                ..PodValues::default()
            };
            let mut foreign = ForeignWriters::default();
            foreign
                .find_flips(&tree(limit(100)), &mut wanted, true, &[grown.to_owned()])
                .len()
        };
        assert_eq!((found("app", "app"), found("app", "side")), (0, 1));
    }

    #[test]
    fn what_is_left_alone_leaves_the_stored_spec() {
        let app = |value| PodTree {
            containers: [("app".into(), weight(value))].into(),
            ..PodTree::default()
        };
        let spec = CriResources {
            cpu_shares: Some(1024),
            memory_limit_in_bytes: Some(4096),
            ..CriResources::default()
        };
        let mut foreign = ForeignWriters::default();
        let mut stored = || {
            let mut wanted = PodValues {
                tree: app(10),
                specs: [("app".into(), spec)].into(),
            };
            foreign.find_flips(&app(77), &mut wanted, true, &[]);
            wanted.specs["app"]
        };
        let without = CriResources {
            cpu_shares: None,
            ..spec
        };
        assert_eq!([stored(), stored(), stored()], [spec, spec, without]);
    }

    #[test]
    fn a_failed_pass_keeps_pauses() {
        let mut foreign = ForeignWriters::default();
        let mut flip = |held_before: bool| {
            let mut wanted = PodValues {
                tree: tree(weight(10)),
                ..PodValues::default()
            };
            foreign.find_flips(&tree(weight(77)), &mut wanted, held_before, &[]);
            wanted.tree.pod == Settings::default()
        };
        assert!(!flip(false), "nothing says that somebody else wrote the value");
        while !flip(true) {}
        assert!(flip(false), "a retry fights for the value");
    }
}
