//! Decides whether the kernel throttles a container for so long that its cpu limit should grow. Pure.
//!
//! In come readings of the kernel's counters of enforcement periods, each with its time; out comes a
//! [`ThrottleFinding`]. A container that is throttled now and then only uses its limit. A container that is throttled
//! in most periods for ten seconds needs more, and no recommendation follows for minutes. The kernel kills no process
//! for want of cpu, so this is not urgent.

use std::time::Duration;

use crate::cgroup::Periods;
use crate::model::MilliCpu;

/// The time between two readings.
pub const EVERY: Duration = Duration::from_secs(2);
/// The time between two readings while the container is hardly throttled.
pub const WHILE_CALM: Duration = Duration::from_secs(10);
/// So many bad readings in a row make throttling sustained.
const SUSTAINED: u32 = 5;
/// A reading is bad from this part of throttled periods on, in percent.
const BAD: u64 = 50;
/// A reading is calm up to this part, in percent.
const CALM: u64 = 1;
/// With fewer periods than this between two readings the container has hardly run.
const RAN: u64 = 5;

/// What follows from a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThrottleFinding {
    Nothing,
    /// The limit should grow: the kernel throttled this part of the latest periods, in percent.
    Sustained(u64),
    /// The container was hardly throttled for the quiet time.
    Quiet,
}

/// The readings of one container.
#[derive(Debug, Clone, Default)]
pub struct Throttling {
    /// When to read the counters.
    pub(super) due: Duration,
    pub(super) last: Option<Periods>,
    /// How many readings in a row were bad.
    pub(super) bad: u32,
    /// The beginning of the quiet time, while all readings are calm.
    pub(super) calm_since: Option<Duration>,
}

impl Throttling {
    /// Adds a reading of the counters at this time.
    pub fn observe(&mut self, at: Duration, periods: Periods, quiet: Duration) -> ThrottleFinding {
        let Some(last) = self.last.replace(periods) else {
            return ThrottleFinding::Nothing;
        };
        let all = periods.all.saturating_sub(last.all);
        // Both of crun's cgroups may have been throttled in the same period.
        let throttled = periods.throttled.saturating_sub(last.throttled).min(all);
        let share = if all < RAN {
            0
        } else {
            throttled.saturating_mul(100) / all
        };
        if share > CALM {
            self.calm_since = None;
        }
        self.bad = if share >= BAD { self.bad + 1 } else { 0 };
        if self.bad >= SUSTAINED {
            self.bad = 0;
            return ThrottleFinding::Sustained(share);
        }
        if share > CALM {
            return ThrottleFinding::Nothing;
        }
        let since = *self.calm_since.get_or_insert(at);
        if at.saturating_sub(since) < quiet {
            return ThrottleFinding::Nothing;
        }
        self.calm_since = Some(at);
        ThrottleFinding::Quiet
    }
}

/// The next higher limit: half as much again, at least a tenth of a cpu more; `None` if the limit has reached the ceiling.
pub fn raised(limit: MilliCpu, ceiling: MilliCpu) -> Option<MilliCpu> {
    let more = MilliCpu::new((limit.get() / 2).max(100));
    Some(limit.saturating_add(more).min(ceiling)).filter(|raised| *raised > limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUIET: Duration = Duration::from_secs(60);

    /// Looks every two seconds, at twenty periods each, of which so many are throttled.
    fn findings(throttled: &[u64]) -> Vec<ThrottleFinding> {
        let mut seen = Throttling::default();
        let (mut at, mut periods) = (Duration::ZERO, Periods::default());
        seen.observe(at, periods, QUIET);
        let reading = throttled.iter().map(|throttled| {
            at += EVERY;
            periods.all += 20;
            periods.throttled += throttled;
            seen.observe(at, periods, QUIET)
        });
        reading.collect()
    }

    #[test]
    fn lasting_throttling_is_found_once() {
        let found = findings(&[20; 11]);
        let at: Vec<usize> = (0..11)
            .filter(|at| found[*at] == ThrottleFinding::Sustained(100))
            .collect();
        assert_eq!(at, [4, 9]);
    }

    #[test]
    fn no_more_than_all_periods_are_throttled() {
        let mut seen = Throttling::default();
        let found: Vec<_> = (0..=SUSTAINED)
            .map(|reading| {
                // Many calm periods lie before.
                let (all, throttled) = (1000 + 20 * u64::from(reading), 30 * u64::from(reading));
                let periods = Periods {
                    all,
                    throttled,
                    ..Periods::default()
                };
                seen.observe(EVERY * reading, periods, QUIET)
            })
            .collect();
        assert_eq!(found.last(), Some(&ThrottleFinding::Sustained(100)));
    }

    #[test]
    fn a_burst_is_not_sustained() {
        assert!(
            findings(&[20, 20, 20, 20, 2, 20, 20, 20, 20, 0])
                .iter()
                .all(|found| *found == ThrottleFinding::Nothing)
        );
    }

    #[test]
    fn a_quiet_time_is_told_once_it_is_over() {
        let found = findings(&[0; 40]);
        assert_eq!(
            found.iter().filter(|found| **found == ThrottleFinding::Quiet).count(),
            1
        );
        let mut disturbed = [0; 40];
        disturbed[20] = 15;
        assert!(!findings(&disturbed).contains(&ThrottleFinding::Quiet));
    }

    #[test]
    fn throttling_counts_from_half_of_the_periods() {
        let is_sustained = |throttled: u64| {
            let found = findings(&[throttled; 5]);
            found.contains(&ThrottleFinding::Sustained(throttled * 5))
        };
        assert!(is_sustained(10) && !is_sustained(9));
        // A little is no reason to grow a limit, and no quiet time either.
        let mut restless = [0; 40];
        restless[20] = 1;
        assert!(!findings(&restless).contains(&ThrottleFinding::Quiet));
    }

    #[test]
    fn few_periods_and_little_throttling_count_for_nothing() {
        // Five readings in a row, or those of 80 seconds.
        let findings = |all: u64, throttled: u64, readings: u32| {
            let mut seen = Throttling::default();
            let found = (0..=readings).map(|reading| {
                let periods = Periods {
                    all: all * u64::from(reading),
                    throttled: throttled * u64::from(reading),
                    ..Periods::default()
                };
                seen.observe(EVERY * reading, periods, QUIET)
            });
            found.collect::<Vec<_>>()
        };
        assert!(findings(5, 5, 5).contains(&ThrottleFinding::Sustained(100)));
        assert!(!findings(4, 4, 5).contains(&ThrottleFinding::Sustained(100)));
        assert!(findings(100, 1, 40).contains(&ThrottleFinding::Quiet));
        assert!(!findings(100, 2, 40).contains(&ThrottleFinding::Quiet));
    }

    #[test]
    fn a_limit_grows_by_half_or_a_tenth() {
        let grown = |limit, ceiling| raised(MilliCpu::new(limit), MilliCpu::new(ceiling)).map(MilliCpu::get);
        assert_eq!(grown(1000, 4000), Some(1500));
        assert_eq!(grown(100, 4000), Some(200), "a tenth of a cpu at least");
        assert_eq!(grown(1000, 1200), Some(1200));
    }

    #[test]
    fn a_container_at_rest_is_not_throttled() {
        let mut seen = Throttling::default();
        for second in 0..20 {
            let periods = Periods {
                all: second,
                throttled: second,
                ..Periods::default()
            };
            let found = seen.observe(Duration::from_secs(2 * second), periods, QUIET);
            assert_eq!(found, ThrottleFinding::Nothing);
        }
    }

    proptest! {
        #[test]
        fn a_limit_grows_within_its_ceiling(limit in 0_u64..1_000_000, ceiling in 0_u64..1_000_000) {
            match raised(MilliCpu::new(limit), MilliCpu::new(ceiling)) {
                Some(raised) => prop_assert!(raised.get() > limit && raised.get() <= ceiling),
                None => prop_assert!(ceiling <= limit),
            }
        }
    }
}
