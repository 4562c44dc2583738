//! The alarms of one container: how the kernel wakes the guard for it, and when that is noise.
//!
//! v1 wakes the guard at amounts of memory in use. In come readings and alarms that were set; out come the next amount with an
//! alarm, and alarms to order. Some alarms stand at fixed parts of the limit, so that the guard follows use up and down. Where use
//! comes to rest above all of them, the guard orders more between use and the limit, and again where use rests next. v2 wakes the
//! guard when the kernel reclaims at the limit, up to a hundred times a second where files fill the page cache. The guard reads a
//! container whose alarms ring all the time by the clock for a while instead, because the cost of that is bounded.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::notifications::AlarmFd;
use crate::model::CgroupVersion;

/// Fixed alarms, in percent of the limit.
const FIXED: [u64; 3] = [50, 75, 90];
/// Alarms between use at rest and the limit, in quarters of the distance.
const QUARTERS: [u64; 3] = [1, 2, 3];
/// The least distance between two alarms: the kernel compares only once for so many pages that a processor has charged
/// (`THRESHOLDS_EVENTS_TARGET`, mm/memcontrol-v1.c, 512 KiB), so closer alarms would be late.
const CLOSEST: u64 = 1 << 20;
/// The least time between two orders of alarms.
const ANEW: Duration = Duration::from_secs(1);
/// Alarms that ring more often than this within [`ANEW`] are noise. Readings by the clock come up to 50 times a second.
const NOISE: u32 = 20;
/// The same of notices that the kernel reclaims at a limit, of which each costs one reading.
const NOISE_OF_RECLAIM: u32 = 50;
/// For how long the guard reads a container with noisy alarms by the clock.
const NOISY: Duration = Duration::from_secs(10);

/// The alarms of one container, and how often they ring.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    /// The latest ordered alarms.
    latest: Option<Arc<AlarmFd>>,
    /// The limit that the alarms are for.
    limit: u64,
    /// When the guard last ordered alarms.
    ordered: Option<Duration>,
    /// How often the alarms rang, and since when.
    rang: (u32, Duration),
    /// Until when the guard does without alarms.
    noisy: Duration,
}

impl Alarms {
    /// The next amount at which the kernel wakes the guard, if there is one for this limit.
    pub(super) fn next(&self, limit: u64, usage: u64) -> Option<u64> {
        let set = self.latest.as_ref().filter(|alarms| alarms.is_set.load(Relaxed))?;
        first_above(&set.amounts, usage).filter(|_| self.limit == limit)
    }

    /// The alarms to order for a container at rest: `None` where the present ones suffice.
    pub(super) fn wanted(&self, now: Duration, limit: u64, usage: u64) -> Option<Vec<u64>> {
        if self.are_noisy(now) || self.ordered.is_some_and(|at| now.saturating_sub(at) < ANEW) {
            return None;
        }
        let wanted = amounts(limit, usage);
        let suffice = |there: &Arc<AlarmFd>| first_above(&there.amounts, usage).is_some() || there.amounts == wanted;
        let suffice = self.limit == limit && self.latest.as_ref().is_some_and(suffice);
        (!suffice).then_some(wanted)
    }

    /// Replaces the present alarms, which end here.
    pub(super) fn order(&mut self, now: Duration, limit: u64, alarms: Option<Arc<AlarmFd>>) {
        (self.latest, self.limit, self.ordered) = (alarms, limit, Some(now));
    }

    /// Whether the guard does without alarms now.
    pub(super) fn are_noisy(&self, now: Duration) -> bool {
        now < self.noisy
    }

    /// Notes that the kernel has woken the guard.
    pub(super) fn note_alarm(&mut self, now: Duration, version: CgroupVersion) {
        let (count, since) = &mut self.rang;
        if now.saturating_sub(*since) > ANEW {
            (*count, *since) = (0, now);
        }
        *count += 1;
        if *count > version.v1_or_v2(NOISE, NOISE_OF_RECLAIM) {
            self.latest = None;
            self.noisy = now + NOISY;
        }
    }
}

fn first_above(amounts: &[u64], usage: u64) -> Option<u64> {
    amounts.iter().copied().find(|amount| *amount > usage)
}

/// The amounts of the alarms for a container with this use, in rising order.
fn amounts(limit: u64, usage: u64) -> Vec<u64> {
    let mut amounts = FIXED.map(|percent| limit / 100 * percent).to_vec();
    let step = limit.saturating_sub(usage) / 4;
    if first_above(&amounts, usage).is_none() && step >= CLOSEST {
        amounts.extend(QUARTERS.map(|quarter| usage + step * quarter));
    }
    amounts
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const LIMIT: u64 = 128 * MIB;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Orders these alarms, and has them set.
    fn set(alarms: &mut Alarms, now: Duration, amounts: Vec<u64>) {
        let ordered = Arc::new(AlarmFd {
            amounts,
            event_fd: EventFd::new().unwrap(),
            is_set: false.into(),
        });
        alarms.order(now, LIMIT, Some(Arc::clone(&ordered)));
        assert_eq!(alarms.next(LIMIT, 0), None, "not before they are set");
        ordered.is_set.store(true, Relaxed);
    }

    /// At rest at this use, with its alarms set.
    fn resting(usage: u64) -> Alarms {
        let mut alarms = Alarms::default();
        let wanted = alarms.wanted(at(10), LIMIT, usage).unwrap();
        set(&mut alarms, at(10), wanted);
        alarms
    }

    #[test]
    fn use_above_fixed_alarms_gets_others() {
        let mut alarms = resting(60 * MIB);
        assert_eq!(alarms.next(LIMIT, 60 * MIB), Some(LIMIT / 100 * 50));
        assert_eq!(
            alarms.wanted(at(20), LIMIT, 100 * MIB),
            None,
            "the one at 90 % is ahead"
        );
        let wanted = alarms.wanted(at(20), LIMIT, 120 * MIB).unwrap();
        assert_eq!(wanted[3..], [122 * MIB, 124 * MIB, 126 * MIB]);
        set(&mut alarms, at(20), wanted);
        assert_eq!(alarms.next(LIMIT, 123 * MIB), Some(124 * MIB));
        assert_eq!(alarms.next(2 * LIMIT, 123 * MIB), None, "they are of another limit");
        assert_eq!(alarms.wanted(at(20), LIMIT, 127 * MIB), None, "not so soon again");
        let fixed = alarms.wanted(at(30), LIMIT, 127 * MIB);
        set(&mut alarms, at(30), fixed.expect("the fixed ones, to hear it fall"));
        assert_eq!(alarms.wanted(at(40), LIMIT, 127 * MIB), None, "and those will do");
    }

    #[test]
    fn constant_alarms_are_removed_for_a_while() {
        let mut alarms = resting(120 * MIB);
        for _ in 0..=NOISE {
            alarms.note_alarm(at(20), CgroupVersion::V1);
        }
        assert_eq!(alarms.next(LIMIT, 120 * MIB), None);
        assert_eq!(alarms.wanted(at(29), LIMIT, 120 * MIB), None);
        assert!(alarms.wanted(at(30), LIMIT, 120 * MIB).is_some());
    }

    #[test]
    fn alarms_that_ring_now_and_then_stay() {
        let mut alarms = resting(120 * MIB);
        for second in 0..100 {
            alarms.note_alarm(at(20 + 2 * second), CgroupVersion::V1);
        }
        assert!(alarms.next(LIMIT, 120 * MIB).is_some());
    }

    proptest! {
        #[test]
        fn an_alarm_is_ahead_where_there_is_room(limit in 0_u64..(1 << 40), part in 0_u64..=1000) {
            let usage = limit / 1000 * part;
            let amounts = amounts(limit, usage);
            prop_assert!(amounts.is_sorted() && amounts.iter().all(|amount| *amount <= limit));
            let next = first_above(&amounts, usage);
            prop_assert!(next.is_some() || (limit - usage) / 4 < CLOSEST);
        }
    }
}
