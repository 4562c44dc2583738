//! Before a limit is lowered: checks whether it can be, and reclaims memory that is in the way.
//!
//! A limit is high enough if the container never used more, according to the kernel's own peak, plus a small spare. If the
//! container once used more, a limit is high enough if the container has held much less for some time. The spare is larger
//! if that time is short. Memory that is merely cached does not count: the kernel reclaims it first, in small steps.
//!
//! A [`MemoryReading`] holds a cgroup's memory at one moment: what is in use, and how much of that the kernel could reclaim.

use std::time::{Duration, Instant};

use super::watch::rate;
use crate::model::{Bytes, MemoryReading, PageSize, Reclaim};

/// The most that one step reclaims: some tens of milliseconds of work for the kernel.
pub const RECLAIM_STEP: Bytes = Bytes::new(32 << 20);
/// The shortest time over which refaults are counted for a rate.
const RATE_OVER: Duration = Duration::from_millis(500);
/// How long the check observes a container that once used more than the wanted limit.
const OBSERVE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);
/// After so many steps without effect the check assumes that the kernel finds nothing more.
const FRUITLESS: u32 = 3;
/// The part of a reclaim that counts as progress: the container may read files at the same time.
const PROGRESS: u64 = 8;
/// With no more progress than that, the last step takes as many reclaims as so many steps before it.
const LAST_STEPS: u64 = 10;
/// The most that stays free under a limit when it is lowered.
const SLACK: Bytes = Bytes::new(1 << 20);

/// The next step of the check before a shrink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckStep {
    /// Read again, not before then.
    LookAt(Instant),
    /// Make the kernel reclaim this many bytes, at most [`RECLAIM_STEP`], and read again.
    Reclaim(Bytes),
    /// The limit can be written now.
    Ready,
    /// The limit cannot be lowered now: the reason with the numbers, a sentence. There is nothing to undo.
    Refused(String),
}

/// The most memory that a cgroup was seen to hold since it has fitted under the wanted limit, and since when it has.
///
/// Only a try to shrink reads the cgroup. The time between two tries counts too: growth that neither of them saw did not last.
/// Every try adds to the history, so that a limit that was refused for want of evidence is accepted in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsageHistory(Option<(Instant, Bytes)>);

impl UsageHistory {
    /// Notes how much is held now. If that does not fit under `limit`, the history begins anew.
    pub fn note(&mut self, now: Instant, held: Bytes, limit: Bytes) {
        let known = self.0.filter(|(_, most)| *most <= limit);
        let (since, most) = known.unwrap_or((now, held));
        self.0 = (held <= limit).then_some((since, most.max(held)));
    }

    /// The most that was seen.
    pub fn most(&self) -> Option<Bytes> {
        self.0.map(|(_, most)| most)
    }

    /// The time since the cgroup was first seen to fit.
    pub fn span(&self, now: Instant) -> Duration {
        self.0
            .map_or(Duration::ZERO, |(since, _)| now.saturating_duration_since(since))
    }
}

/// The check of one cgroup before its limit comes down.
#[derive(Debug, Clone)]
pub struct ShrinkCheck {
    wanted: Bytes,
    reclaim: Reclaim,
    history: UsageHistory,
    /// The most memory held in this try.
    most: Bytes,
    /// The first and the latest reading of this try.
    readings: Option<[(Instant, MemoryReading); 2]>,
    /// The memory in use when the agent last made the kernel reclaim.
    asked_at: Option<Bytes>,
    fruitless: u32,
    /// How many more reclaims this try has: a container that takes again what is reclaimed must not keep the kernel busy for ever.
    reclaims_left: Option<u64>,
}

impl ShrinkCheck {
    /// A check before a limit is lowered to `wanted`, with the history of earlier tries.
    pub const fn new(wanted: Bytes, reclaim: Reclaim, history: UsageHistory) -> Self {
        Self {
            wanted,
            reclaim,
            history,
            most: Bytes::ZERO,
            readings: None,
            asked_at: None,
            fruitless: 0,
            reclaims_left: None,
        }
    }

    /// The memory use that this try and earlier ones have seen, for the next try.
    pub const fn history(&self) -> UsageHistory {
        self.history
    }

    /// The rate of refaults between the first and the latest reading, in bytes per second.
    pub fn refaults(&self) -> Bytes {
        let rate_of = |[(began, first), (ended, latest)]: [(Instant, MemoryReading); 2]| {
            let over = ended.saturating_duration_since(began);
            (over >= RATE_OVER).then(|| rate(first.refaults, latest.refaults, over))
        };
        self.readings.and_then(rate_of).unwrap_or(Bytes::ZERO)
    }

    /// The next step, given the newest reading.
    pub fn next(&mut self, reading: &MemoryReading, now: Instant) -> CheckStep {
        let [(began, _), latest] = self.readings.get_or_insert([(now, *reading); 2]);
        *latest = (now, *reading);
        let began = *began;
        let held = reading.held();
        self.history.note(now, held, self.wanted);
        self.most = self.most.max(held);
        // On v1 the peak may be that of the moment at which a limit was last hit. The container never used more either way.
        let peak = reading.peak.unwrap_or(Bytes::MAX);
        let (least, enough) = (with_spare(held, SMALL_SPARE), with_spare(peak, SMALL_SPARE));
        let (most, over) = (self.history.most().unwrap_or(held), self.history.span(now));
        // What this try has seen suffices alone, unless earlier ones saw use that left less than an eighth: it may come back.
        let alone = with_spare(self.most, spare(Duration::ZERO)).max(with_spare(most, EARLIER_SPARE));
        let floor = with_spare(most, spare(over)).min(alone).min(enough);
        let wanted = self.wanted.get();
        if least > self.wanted {
            let why = format!(
                "more than the wanted limit of {wanted} bytes has room for: {} of them cannot be reclaimed",
                held.get()
            );
            return self.refuse(reading.usage, floor.max(least), &why);
        }
        if enough > self.wanted {
            if floor > self.wanted {
                let once = |peak: Bytes| format!("and at one time {} were; ", peak.get());
                let once = reading.peak.map(once).unwrap_or_default();
                let why = format!(
                    "{once}up to {} bytes that cannot be reclaimed were seen in the last {} s, which is too close to the wanted \
                     limit of {wanted} bytes for so short a time",
                    most.get(),
                    over.as_secs().max(1),
                );
                return self.refuse(reading.usage, floor, &why);
            }
            if now.saturating_duration_since(began) < OBSERVE {
                return CheckStep::LookAt(now + LOOK);
            }
        }
        self.make_room(reading.usage)
    }

    /// Reclaims what is in use above the wanted limit, or refuses the limit.
    fn make_room(&mut self, usage: Bytes) -> CheckStep {
        let too_much = usage.saturating_sub(self.roof());
        if self.reclaim == Reclaim::ByTheWrite || too_much.is_zero() {
            return CheckStep::Ready;
        }
        let most = (too_much.get() / RECLAIM_STEP.get() + LAST_STEPS) * PROGRESS;
        let left = *self.reclaims_left.get_or_insert(most);
        let why = if self.reclaim == Reclaim::Never {
            ", and this kernel cannot be asked to reclaim (memory.reclaim, from Linux 5.19)"
        } else if self.is_fruitless(usage) {
            " has room for, and the kernel found nothing more to reclaim"
        } else if left == 0 {
            " has room for, and the container takes again what the kernel reclaims"
        } else {
            self.reclaims_left = Some(left - 1);
            self.asked_at = Some(usage);
            return CheckStep::Reclaim(too_much.min(RECLAIM_STEP));
        };
        let floor = usage.saturating_add(SLACK);
        let why = format!("more than the wanted limit of {} bytes{why}", self.wanted.get());
        self.refuse(usage, floor, &why)
    }

    /// Refuses the limit while so much is in use. From `floor` on a limit would be accepted now, if the kernel can be made to reclaim,
    /// in pages of any size: the kernel rounds limits down.
    fn refuse(&self, usage: Bytes, floor: Bytes, why: &str) -> CheckStep {
        let floor = match self.reclaim {
            Reclaim::Never => floor.max(usage.saturating_add(SLACK)),
            Reclaim::OnRequest | Reclaim::ByTheWrite => floor,
        };
        let [usage, floor] = [usage, PageSize::KIB_64.round_up(floor)].map(Bytes::get);
        CheckStep::Refused(format!(
            "not shrinkable now: {usage} bytes are in use, {why}; {floor} bytes would be accepted now: choose a higher limit, or wait \
             until less is in use"
        ))
    }

    /// The most that may be in use when the limit is written.
    fn roof(&self) -> Bytes {
        self.wanted.saturating_sub(slack(self.wanted))
    }

    /// Whether several reclaims in a row had no effect.
    fn is_fruitless(&mut self, usage: Bytes) -> bool {
        if let Some(before) = self.asked_at {
            let fell = before.saturating_sub(usage);
            let little = before.saturating_sub(self.roof()).min(RECLAIM_STEP).get() / PROGRESS;
            self.fruitless = if fell.get() > little { 0 } else { self.fruitless + 1 };
        }
        self.fruitless >= FRUITLESS
    }
}

/// Whether a limit could come down to `wanted` at once, given this reading.
pub fn leaves_room(reading: &MemoryReading, wanted: Bytes) -> bool {
    with_spare(reading.held(), spare(Duration::ZERO)) <= wanted
}

/// The memory that stays free under a limit when it is written: for the kernel's charges at that moment, and for those
/// that every processor keeps in stock.
pub fn slack(limit: Bytes) -> Bytes {
    SLACK.min(Bytes::new(limit.get() / 16))
}

/// The smallest spare: one part in so many of what is needed.
const SMALL_SPARE: u64 = 32;
/// The least spare above what only earlier tries have seen. The guard ends a temporary limit with the same spare above all use.
const EARLIER_SPARE: u64 = 8;

/// The spare above the most that was seen, by how long the container was observed.
const fn spare(over: Duration) -> u64 {
    match over.as_secs() {
        0..60 => 4,
        60..600 => EARLIER_SPARE,
        _ => SMALL_SPARE,
    }
}

/// An amount, plus one part in `share` of it, at least half a mebibyte.
fn with_spare(amount: Bytes, share: u64) -> Bytes {
    amount.saturating_add(Bytes::new((amount.get() / share).max(512 << 10)))
}
