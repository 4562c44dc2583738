//! Before a limit is lowered: whether it can be, and what makes it so.
//!
//! Two kinds of evidence that a limit is high enough: the container never used more (the kernel's own record of the
//! most that was ever in use), with little to spare; or, where it once did, that what it holds now is much less, seen
//! over some time, with the more to spare the shorter that time was. What is merely cached does not count against a
//! limit: it is reclaimed first, in steps small enough to stop after each.

use std::fmt;
use std::time::{Duration, Instant};

use super::reading::MemoryReading;
use super::sightings::Sightings;
use crate::model::Bytes;

/// The most that is reclaimed in one step: some tens of milliseconds of work for the kernel.
pub const RECLAIM_STEP: Bytes = Bytes::new(32 << 20);
/// How long a container is looked at that once used more than it is to have.
const OBSERVE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);
/// Steps without effect after which the kernel is believed not to find more.
const FRUITLESS: u32 = 3;
/// The most and the least that is kept free under a limit when it is lowered.
const SLACK: Bytes = Bytes::new(1 << 20);

/// How the kernel can be had to reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaim {
    /// By asking for so many bytes: v2 from Linux 5.19 (`memory.reclaim`).
    OnRequest,
    /// By writing the limit, which is refused (EBUSY) where that is not enough: v1.
    ByTheWrite,
    /// Not without risk: v2 before 5.19, where writing the limit would reclaim, and kill if that is not enough.
    Never,
}

/// The next step of the check before a shrink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckStep {
    /// Read again, not before then.
    LookAt(Instant),
    /// Have the kernel reclaim so many bytes, at most [`RECLAIM_STEP`], and read again.
    Reclaim(Bytes),
    /// The limit can be written now.
    Ready,
    /// It cannot, and nothing was done that needs undoing.
    Refused(NotShrinkable),
}

/// Why a limit cannot be lowered now, with the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotShrinkable {
    pub usage: Bytes,
    /// What of it cannot be reclaimed.
    pub held: Bytes,
    /// The least that would be accepted now.
    pub floor: Bytes,
    /// The limit that was wanted.
    pub wanted: Bytes,
    /// What stands in the way.
    pub why: Why,
}

/// What stands in the way of a lower limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// What is held, with some to spare.
    Held,
    /// The most that was held while it was looked at, with some to spare: it once used this much.
    Seen {
        /// The most that was seen.
        most: Bytes,
        /// The most that was ever in use.
        peak: Bytes,
        /// How long it was looked at.
        over: Duration,
    },
    /// The kernel found nothing more to reclaim.
    Stubborn,
    /// The kernel cannot be asked to reclaim.
    CannotAsk,
}

/// One cgroup whose limit is to be lowered.
#[derive(Debug, Clone)]
pub struct ShrinkCheck {
    wanted: Bytes,
    reclaim: Reclaim,
    sightings: Sightings,
    began: Option<Instant>,
    /// What was in use when the kernel was last asked to reclaim.
    asked_at: Option<Bytes>,
    fruitless: u32,
}

impl ShrinkCheck {
    /// For lowering a limit to `wanted`, with what earlier tries have seen.
    pub const fn new(wanted: Bytes, reclaim: Reclaim, sightings: Sightings) -> Self {
        Self {
            wanted,
            reclaim,
            sightings,
            began: None,
            asked_at: None,
            fruitless: 0,
        }
    }

    /// What has been seen so far, for the next try.
    pub const fn sightings(&self) -> Sightings {
        self.sightings
    }

    /// What to do, given the newest reading.
    pub fn next(&mut self, reading: &MemoryReading, now: Instant) -> CheckStep {
        let began = *self.began.get_or_insert(now);
        let held = reading.held();
        self.sightings.note(now, held, self.wanted);
        let wanted = self.wanted;
        let refuse = |floor, why| {
            CheckStep::Refused(NotShrinkable {
                usage: reading.usage,
                held,
                floor,
                wanted,
                why,
            })
        };
        let least = with_spare(held, SMALL_SPARE);
        if least > self.wanted {
            return refuse(least, Why::Held);
        }
        // v1 keeps the peak of what was in use when limits were last hit, too: either way it never was more.
        let peak = reading.peak.unwrap_or(Bytes::MAX);
        if with_spare(peak, SMALL_SPARE) > self.wanted {
            let most = self.sightings.most().unwrap_or(held);
            let over = self.sightings.span(now);
            let floor = with_spare(most, spare(over)).min(with_spare(peak, SMALL_SPARE));
            if floor > self.wanted {
                return refuse(floor, Why::Seen { most, peak, over });
            }
            if now.saturating_duration_since(began) < OBSERVE {
                return CheckStep::LookAt(now + LOOK);
            }
        }
        let too_much = reading.usage.saturating_sub(self.roof());
        match self.reclaim {
            Reclaim::ByTheWrite => return CheckStep::Ready,
            Reclaim::OnRequest | Reclaim::Never if too_much.is_zero() => return CheckStep::Ready,
            Reclaim::Never => return refuse(reading.usage.saturating_add(slack(wanted)), Why::CannotAsk),
            Reclaim::OnRequest => {}
        }
        if self.is_fruitless(reading.usage) {
            return refuse(reading.usage.saturating_add(slack(wanted)), Why::Stubborn);
        }
        self.asked_at = Some(reading.usage);
        CheckStep::Reclaim(too_much.min(RECLAIM_STEP))
    }

    /// The most that may be in use when the limit is written.
    fn roof(&self) -> Bytes {
        self.wanted.saturating_sub(slack(self.wanted))
    }

    /// Whether reclaiming has come to nothing several times in a row.
    fn is_fruitless(&mut self, usage: Bytes) -> bool {
        if let Some(before) = self.asked_at {
            let fell = before.saturating_sub(usage);
            // An eighth of what was asked for is progress: somebody may be reading files all the while.
            let little = before.saturating_sub(self.roof()).min(RECLAIM_STEP).get() / 8;
            self.fruitless = if fell.get() > little { 0 } else { self.fruitless + 1 };
        }
        self.fruitless >= FRUITLESS
    }
}

/// Whether a limit could come down to `wanted` as soon as a container is looked at that holds so much.
pub fn leaves_room(reading: &MemoryReading, wanted: Bytes) -> bool {
    with_spare(reading.held(), spare(Duration::ZERO)) <= wanted
}

/// What is kept free under a limit in the moment it is written: what the kernel may charge meanwhile, and the charges
/// every processor keeps in stock.
pub fn slack(limit: Bytes) -> Bytes {
    SLACK.min(Bytes::new(limit.get() / 16))
}

/// One part in so many is kept to spare above what is known to be needed.
const SMALL_SPARE: u64 = 32;

/// What is kept to spare above the most that was seen, by how long it was looked at.
const fn spare(over: Duration) -> u64 {
    match over.as_secs() {
        0..60 => 4,
        60..600 => 8,
        _ => SMALL_SPARE,
    }
}

/// An amount and one part in `share` more, half a mebibyte at least.
fn with_spare(amount: Bytes, share: u64) -> Bytes {
    amount.saturating_add(Bytes::new((amount.get() / share).max(512 << 10)))
}

impl fmt::Display for NotShrinkable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            usage,
            held,
            floor,
            wanted,
            why,
        } = self;
        let (usage, held, floor, wanted) = (usage.get(), held.get(), floor.get(), wanted.get());
        write!(f, "not shrinkable now: {usage} bytes are in use")?;
        match why {
            Why::Held => write!(
                f,
                ", more than the wanted limit of {wanted} bytes has room for: {held} of them cannot be reclaimed"
            )?,
            Why::Seen { most, peak, over } => write!(
                f,
                ", and at one time {} were; up to {} bytes that cannot be reclaimed were seen in the last {} s, which is too \
                 close to the wanted limit of {wanted} bytes for so short a time",
                peak.get(),
                most.get(),
                over.as_secs().max(1),
            )?,
            Why::Stubborn => write!(
                f,
                ", more than the wanted limit of {wanted} bytes has room for, and the kernel found nothing more to reclaim"
            )?,
            Why::CannotAsk => write!(
                f,
                ", more than the wanted limit of {wanted} bytes, and this kernel cannot be asked to reclaim (memory.reclaim, \
                 from Linux 5.19)"
            )?,
        }
        write!(
            f,
            "; {floor} bytes would be accepted now: choose a higher limit, or wait until less is in use"
        )
    }
}
