//! Tells drift from a fight: values that somebody else keeps changing back.
//!
//! Pure; time is an argument. In comes each repair (which cgroup, which file, when), out comes whether the next repair
//! is to be made at once or to wait. A value that was flipped back three times within ten minutes marks a foreign
//! writer: the value is then left alone, for a minute at first. After each pause the value is repaired once; flipped back
//! again, it is left alone for twice as long, up to an hour. A foreign writer that stays quiet for ten minutes after a pause is forgotten.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::model::{ControlFile, Target};

/// How many flips make a foreign writer.
const FLIPS: u32 = 3;
/// Flips further apart than this are drift, not a fight.
const WINDOW: Duration = Duration::from_secs(10 * 60);
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// One value of a pod: whose, and in which file.
type Value = (Target, ControlFile);

/// What to do about a value that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Repair,
    /// Somebody else keeps changing it: leave it alone until then.
    LeaveUntil(Timestamp),
}

/// What is known about those who change the values of one pod.
#[derive(Debug, Clone, Default)]
pub struct ForeignWriters {
    flips: BTreeMap<Value, Flips>,
}

/// How often one value was flipped back, and what came of it.
#[derive(Debug, Clone, Copy)]
struct Flips {
    count: u32,
    last: Timestamp,
    /// How long the next pause is.
    pause: Duration,
    /// The pause that was begun last.
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

    fn paused(self, now: Timestamp) -> Option<Timestamp> {
        self.until.filter(|until| now < *until)
    }
}

impl ForeignWriters {
    /// Notes that a value of ours was found changed, and says what to do about it.
    pub fn flipped(&mut self, target: &Target, file: ControlFile, now: Timestamp) -> Verdict {
        let flips = self
            .flips
            .entry((target.clone(), file))
            .or_insert_with(|| Flips::none(now));
        if let Some(until) = flips.paused(now) {
            return Verdict::LeaveUntil(until);
        }
        if let Some(ended) = flips.until.take() {
            // The value was left as it is, so that it differs is no news: try again.
            flips.last = ended.max(now);
            return Verdict::Repair;
        }
        if now > later(flips.last, WINDOW) {
            *flips = Flips::none(now);
        }
        flips.count += 1;
        flips.last = now;
        if flips.count < FLIPS {
            return Verdict::Repair;
        }
        let until = later(now, flips.pause);
        flips.pause = (flips.pause * 2).min(LONGEST_PAUSE);
        flips.until = Some(until);
        Verdict::LeaveUntil(until)
    }

    /// Whether nobody is known to change anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flips.is_empty()
    }

    /// Whether a value is being left alone now, and until when.
    pub fn paused(&self, target: &Target, file: ControlFile, now: Timestamp) -> Option<Timestamp> {
        self.flips.get(&(target.clone(), file))?.paused(now)
    }

    /// The values being left alone now.
    pub fn all_paused(&self, now: Timestamp) -> impl Iterator<Item = (&Target, ControlFile, Timestamp)> {
        self.flips
            .iter()
            .filter_map(move |((target, file), flips)| Some((target, *file, flips.paused(now)?)))
    }

    /// Forgets everything: what the pod should have has changed, so earlier flips say nothing any more.
    pub fn forget(&mut self) {
        self.flips.clear();
    }
}

/// A moment later, at the end of time at the latest.
fn later(at: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn flip(writers: &mut ForeignWriters, seconds: i64) -> Verdict {
        writers.flipped(&Target::Pod, ControlFile::CpuMax, at(seconds))
    }

    #[test]
    fn two_flips_are_repaired_and_the_third_marks_a_foreign_writer() {
        let mut writers = ForeignWriters::default();
        assert_eq!(flip(&mut writers, 0), Verdict::Repair);
        assert_eq!(flip(&mut writers, 1), Verdict::Repair);
        assert_eq!(flip(&mut writers, 2), Verdict::LeaveUntil(at(62)));
        assert_eq!(flip(&mut writers, 30), Verdict::LeaveUntil(at(62)));
        assert_eq!(writers.paused(&Target::Pod, ControlFile::CpuMax, at(30)), Some(at(62)));
        assert_eq!(writers.paused(&Target::Pod, ControlFile::CpuWeight, at(30)), None);
    }

    #[test]
    fn after_each_pause_the_value_is_tried_once_and_pauses_grow_up_to_an_hour() {
        let mut writers = ForeignWriters::default();
        let (mut now, mut pauses, mut repairs) = (0, Vec::new(), 0);
        while pauses.len() < 9 {
            match flip(&mut writers, now) {
                Verdict::Repair => {
                    repairs += 1;
                    now += 1;
                }
                Verdict::LeaveUntil(until) => {
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
            assert_eq!(flip(&mut writers, hour * 3600), Verdict::Repair);
        }
    }

    #[test]
    fn a_foreign_writer_that_stays_quiet_is_forgotten() {
        let mut writers = ForeignWriters::default();
        for second in 0..3 {
            flip(&mut writers, second);
        }
        assert_eq!(flip(&mut writers, 62), Verdict::Repair);
        assert_eq!(flip(&mut writers, 62 + 601), Verdict::Repair);
        assert_eq!(flip(&mut writers, 62 + 602), Verdict::Repair);
        writers.forget();
        assert_eq!(writers.all_paused(at(3)).count(), 0);
    }
}
