//! The state of one guarded container or pod: its open cgroup, its readings, and the time of the next reading.

use std::sync::Arc;
use std::time::Duration;

use super::alarms::Alarms;
use super::notifications::Token;
use super::predict::{LONGEST, Pace, Reading, SUDDEN_AT_LIMIT, Track, Verdict, has_cache, is_pinned, near};
use super::rate::{BytesPerSecond, CLOSEST, per_second, time_for};
use super::throttle::Throttling;
use super::watchlist::{Guarded, GuardedCgroup, GuardedPod, Terms};
use crate::cgroup::{Cgroup, CgroupError};
use crate::model::{Bytes, CgroupVersion, MemoryLimit, Outcome, QUICK, READINGS, at_once};

/// A container is calm enough for alarms if the guard need not read it for so long, now or with alarms.
const CALM: Duration = Duration::from_millis(10);
/// The longest time between two readings of a container with a temporary limit, so that the guard sees its peak.
const WHILE_LENT: Duration = Duration::from_secs(1);
/// After so long without a need, the guard reports the same refusal again.
const REPORT_AGAIN: Duration = Duration::from_secs(600);
/// The longest time between two readings of a container that does not grow, for any use of all pods together.
pub(super) const ITSELF: Duration = Duration::from_secs(1);
/// [`ITSELF`] where the kernel notifies before use comes close to the limit, and when a process writes the limit. The
/// kernel does not notify about its own memory.
const ANNOUNCED: Duration = Duration::from_secs(60);
/// Use has moved during a reading if it differs by more than this part of the limit.
const MOVED: u64 = 256;

#[derive(Debug)]
pub(super) struct Watched {
    pub(super) token: Token,
    /// The cgroup as the newest list has it.
    pub(super) listed: GuardedCgroup,
    pub(super) pod: Arc<GuardedPod>,
    pub(super) cgroup: Arc<Cgroup>,
    pub(super) track: Track,
    pub(super) throttling: Throttling,
    pub(super) due: Duration,
    pub(super) latest: Latest,
    /// Whether the guard gets the kernel's [notices](super::notifications::Notifications::subscribe).
    pub(super) subscribed: bool,
    /// When to try that next.
    pub(super) subscribe_at: Duration,
    pub(super) alarms: Alarms,
    /// The latest reported refusal, or outcome of a failed write, and the time of the latest need.
    refused: Option<(&'static str, Duration)>,
    /// Whether the guard has requested evidence.
    evidence_requested: bool,
    pub(super) lent: TemporaryMemory,
}

/// The latest reading of memory.
#[derive(Debug, Default)]
pub(super) struct Latest {
    /// The reading, and the time to wait after it.
    pub(super) reading: Option<(Reading, Duration)>,
    /// How far the use of all pods together had moved at the reading.
    pub(super) of_all: Option<u64>,
    /// By how much that may move before the next reading.
    slack: u64,
    /// How often limits had refused a charge (v1), when the reclaimable part was last read.
    refused_charges: Option<u64>,
    /// Whether use grew since the reading before.
    pub(super) grows: bool,
    /// How long the kernel took for the reclaimable part, where that was last read.
    quickest: Duration,
}

/// A container's temporary limit, and the quiet time since.
#[derive(Debug, Default)]
pub(super) struct TemporaryMemory {
    pub(super) limit: Option<Bytes>,
    /// As of [`Terms::for_pod`].
    pub(super) for_pod: bool,
    /// The most memory in use since the quiet time began.
    peak: u64,
    /// The most of the limit that the container or the pod needed since then.
    needed: u64,
    /// When to report that the quiet time is over.
    ends_at: Option<Duration>,
}

/// The next multiple of `every` since the start.
pub(super) fn next_multiple(now: Duration, every: Duration) -> Duration {
    let times = now.as_nanos() / every.as_nanos() + 1;
    u32::try_from(times).map_or(now + every, |times| every * times)
}

/// The time after this wait. Rounds long waits, so that the guard wakes once for all containers.
fn after(now: Duration, wait: Duration) -> Duration {
    if wait < LONGEST {
        now + wait
    } else {
        next_multiple(now, wait)
    }
}

/// The part of a limit above `memory.high`: none where that is less than half of the limit, because then another program slows the
/// container down on purpose.
fn above_high(limit: u64, high: MemoryLimit) -> u64 {
    let above = high.bounded().map(|high| limit.saturating_sub(high.get()));
    above.filter(|above| *above <= limit / 2).unwrap_or(0)
}

/// Completes a reading by the reclaimable part, and takes the rest again. The kernel may take long for that part, and page cache that
/// grows meanwhile would look like memory that was given back, and at the next reading like memory that was taken at once. So all is
/// read again where [`Repeats`] says so, for a few times.
fn of_one_moment<E>(
    mut reading: Reading,
    repeats: &mut Repeats,
    mut read: impl FnMut() -> Result<Option<Reading>, E>,
    mut read_reclaimable: impl FnMut() -> Result<u64, E>,
) -> Result<Reading, E> {
    for _ in 0..READINGS {
        let (before, reclaimable) = (reading, read_reclaimable()?);
        reading = read()?.unwrap_or(before);
        reading.reclaimable = Some(reclaimable);
        if !repeats.are_due(&before, &reading) {
            break;
        }
    }
    Ok(reading)
}

/// Whether to take a reading again.
#[derive(Debug)]
struct Repeats {
    /// The rate that use is known to grow at.
    rate: BytesPerSecond,
    /// How long the kernel takes for the reclaimable part at most where the thread does not have to wait.
    quick: Duration,
    /// How long that took in the quickest of these readings.
    quickest: Duration,
}

impl Repeats {
    /// `quickest` of the reading before: on a node with many cgroups and processors the kernel always takes long.
    fn new(rate: BytesPerSecond, quickest: Duration) -> Self {
        let (quick, quickest) = (QUICK.max(quickest.saturating_mul(2)), Duration::MAX);
        Self { rate, quick, quickest }
    }

    /// Whether use has moved between these two, before and after the reclaimable part, or may have taken the place of page cache in a
    /// wait. Not while a container grows so fast that it may reach its limit before another such reading and a write: all that has
    /// grown counts as used then, and the limit grows in time.
    fn are_due(&mut self, before: &Reading, after: &Reading) -> bool {
        let took = after.at.saturating_sub(before.at);
        self.quickest = self.quickest.min(took);
        if after.usage.abs_diff(before.usage) <= after.limit / MOVED && took <= self.quick {
            return false;
        }
        let rate = self
            .rate
            .max(per_second(after.usage.saturating_sub(before.usage), took));
        let left = time_for(after.limit.saturating_sub(after.used()), rate);
        left > took.min(self.quick) * 2 + QUICK
    }
}

impl Watched {
    pub(super) fn new(token: Token, listed: GuardedCgroup, cgroup: Cgroup, pod: Arc<GuardedPod>) -> Self {
        Self {
            token,
            listed,
            pod,
            cgroup: Arc::new(cgroup),
            track: Track::default(),
            throttling: Throttling::default(),
            due: Duration::ZERO,
            latest: Latest::default(),
            subscribed: false,
            subscribe_at: Duration::ZERO,
            alarms: Alarms::default(),
            refused: None,
            evidence_requested: false,
            lent: TemporaryMemory::default(),
        }
    }

    /// Replaces the terms, and the temporary limit by the one in the least limits.
    pub(super) fn set_terms(
        &mut self,
        pod: Arc<GuardedPod>,
        terms: Terms,
        lent: Option<Bytes>,
        (now, quiet): (Duration, Duration),
    ) {
        self.lent.for_pod = lent.is_some() && (self.lent.for_pod || terms.for_pod);
        if lent.is_none() {
            self.lent.ends_at = None;
        } else if self.lent.limit != lent || self.lent.ends_at.is_none() {
            self.restart_quiet_time(now, quiet);
        }
        self.lent.limit = lent;
        if (self.listed.terms.memory, &self.listed.terms.not_higher) != (terms.memory, &terms.not_higher) {
            (self.refused, self.due, self.latest.of_all) = (None, now, None);
        }
        if self.listed.terms.evidence != terms.evidence {
            self.due = now;
        }
        if self.listed.terms.cpu.map(|cpu| cpu.limit) != terms.cpu.map(|cpu| cpu.limit) {
            // What was counted so far says nothing about the new limit.
            (self.throttling.last, self.throttling.bad) = (None, 0);
        }
        self.evidence_requested &= terms.evidence.is_some();
        self.listed.terms = terms;
        self.pod = pod;
    }

    /// The container's name among all of the node.
    pub(super) fn of(&self) -> Guarded {
        Guarded {
            pod: self.pod.live.id.clone(),
            container: self.listed.terms.container.clone(),
        }
    }

    fn restart_quiet_time(&mut self, now: Duration, quiet: Duration) {
        (self.lent.peak, self.lent.needed) = (0, 0);
        self.lent.ends_at = Some(now + quiet);
    }

    /// Reads memory use, because an alarm rang or because a reading is due, and sets the time of the next reading.
    /// `None` for a container without a limit.
    pub(super) fn read_usage(
        &mut self,
        clock: impl Fn() -> Duration,
        act: Duration,
        rang: bool,
    ) -> Result<Option<(Reading, Verdict)>, CgroupError> {
        let now = clock();
        let watches = self.listed.terms.watches_memory();
        let read = watches.then(|| self.read_all_but_reclaimable(&clock)).transpose()?;
        let notifies_of_limit = self.subscribed && self.cgroup.outer().version() == CgroupVersion::V1;
        let Some(mut reading) = read.flatten() else {
            self.due = after(now, if notifies_of_limit { ANNOUNCED } else { LONGEST });
            return Ok(None);
        };
        let pace = Pace {
            act,
            tripwire: self.alarms.next(reading.limit, reading.usage),
            tripped: rang,
            notifies_of_reclaim: self.subscribed && !notifies_of_limit,
        };
        let mut repeats = Repeats::new(self.track.rate(), self.latest.quickest);
        let mut verdict = self.track.predict(reading, pace);
        if near(reading.limit, reading.usage) || self.lent.limit.is_some() || matches!(verdict, Verdict::Grow(_)) {
            // In this order: what is displaced between the two reads is seen at the next check.
            self.latest.refused_charges = self.refused_charges()?;
            let read = || self.read_all_but_reclaimable(&clock);
            reading = of_one_moment(reading, &mut repeats, read, || self.cgroup.outer().reclaimable())?;
            self.latest.quickest = repeats.quickest;
            verdict = self.track.predict(reading, pace);
        }
        self.lent.peak = self.lent.peak.max(reading.in_use());
        self.lent.needed = self.lent.needed.max(reading.needed());
        self.latest.grows = !matches!(verdict, Verdict::Wait(wait) if wait >= CALM);
        if let Verdict::Grow(need) = &mut verdict {
            need.at = now;
        } else if let Verdict::Wait(wait) = &mut verdict {
            if self.lent.limit.is_some() {
                *wait = (*wait).min(WHILE_LENT);
            }
            self.due = after(reading.at, *wait);
            self.latest.reading = Some((reading, *wait));
            self.latest.slack = self.track.slack(reading, act);
            self.refused
                .take_if(|(_, asked)| now.saturating_sub(*asked) > REPORT_AGAIN);
        }
        self.trace(&reading, &verdict, act);
        Ok(Some((reading, verdict)))
    }

    /// `None` without a limit. Taken again where the thread had to wait meanwhile: memory that was taken for longer than the reading's
    /// time says would be a rate many times as high.
    fn read_all_but_reclaimable(&self, clock: impl Fn() -> Duration) -> Result<Option<Reading>, CgroupError> {
        let (at, reading) = at_once(CLOSEST, clock, || {
            let MemoryLimit::Bytes(limit) = self.cgroup.memory_limit()? else {
                return Ok(None);
            };
            let above_high = above_high(limit, self.cgroup.memory_high()?);
            let usage = self.cgroup.outer().memory_usage()?.get().saturating_add(above_high);
            Ok::<_, CgroupError>(Some((limit, usage, above_high)))
        })?;
        Ok(reading.map(|(limit, usage, above_high)| Reading {
            at,
            limit,
            usage,
            above_high,
            reclaimable: None,
        }))
    }

    /// Whether the next reading can wait: use did not grow fast, the latest reading is not old, and all pods together have taken
    /// and given back less memory than the container would need to come close to its limit. At the limit, what a container takes moves
    /// no use, because the kernel reclaims page cache for it: v2 notifies of that, and v1 where use passes an alarm on the way there;
    /// elsewhere v1's counters of refused charges show it, which cost less than a reading.
    /// Where all pods together are `full`, the page cache of others gives way as well.
    pub(super) fn can_wait(&mut self, now: Duration, of_all: Option<u64>, full: bool) -> bool {
        let (Some(of_all), Some(at_reading), Some((reading, wait))) = (of_all, self.latest.of_all, self.latest.reading)
        else {
            return false;
        };
        let has_tripwire = self.alarms.next(reading.limit, reading.usage).is_some();
        let notifies_of_reclaim = self.subscribed && self.cgroup.outer().version() == CgroupVersion::V2;
        let comes_to_limit = is_pinned(reading.limit, reading.usage.saturating_add(self.latest.slack));
        // A container without page cache takes nothing that use does not show.
        let may_have_cache = reading
            .reclaimable
            .is_none_or(|reclaimable| has_cache(reading.limit, reclaimable));
        let may_hide = comes_to_limit && may_have_cache && !has_tripwire && !notifies_of_reclaim;
        let mut moved = of_all.saturating_sub(at_reading);
        let mut next = after(now, wait);
        if may_hide {
            if self.due > now || !self.hit_no_limit() || !self.keeps_usage(reading.usage) {
                return false;
            }
            // All that the container has taken since fitted below its limit. All such containers are due at once.
            moved = moved.min(reading.limit.saturating_sub(reading.usage));
            next = next_multiple(now, wait);
        }
        let announced = wait >= LONGEST && has_tripwire && self.subscribed && self.lent.limit.is_none();
        let mut itself = if announced { ANNOUNCED } else { ITSELF };
        if full && !has_tripwire {
            itself = itself.min(time_for(self.latest.slack.saturating_mul(2), SUDDEN_AT_LIMIT));
        }
        let quiet = !self.latest.grows
            && now.saturating_sub(reading.at) < itself
            && moved < self.latest.slack
            && self.lent.ends_at.is_none_or(|at| at > now);
        if quiet {
            self.due = self.due.max(next);
        }
        quiet
    }

    /// Whether no limit of the container or its pod has refused a charge since the latest reading, as far as the kernel counts that.
    fn hit_no_limit(&self) -> bool {
        let before = self.latest.refused_charges;
        before.is_some() && self.refused_charges().is_ok_and(|count| count == before)
    }

    /// Whether use has not fallen since the latest reading: what the container gives back it may take again below its limit.
    fn keeps_usage(&self, before: u64) -> bool {
        let usage = self.cgroup.outer().memory_usage();
        usage.is_ok_and(|usage| usage.get().saturating_add(self.latest.slack) >= before)
    }

    /// `None` on v2, which notifies of reclaim instead.
    fn refused_charges(&self) -> Result<Option<u64>, CgroupError> {
        let is_v1 = self.cgroup.outer().version() == CgroupVersion::V1;
        is_v1.then(|| self.cgroup.refused_charges()).transpose()
    }

    /// Logs a line for each reading, which shows why a limit grew too late (`vscaled::guard=trace`): in microseconds, bytes and
    /// bytes per second. A wait of 0 means a growth.
    fn trace(&self, reading: &Reading, verdict: &Verdict, act: Duration) {
        let wait = match verdict {
            Verdict::Wait(wait) => wait.as_micros(),
            Verdict::Grow(_) => 0,
        };
        let (container, rate) = (self.listed.name(), self.track.rate());
        let (at, act, limit, used) = (reading.at.as_micros(), act.as_micros(), reading.limit, reading.used());
        tracing::trace!(container, at, wait, act, limit, used, rate, "looked");
    }

    /// Notes a refusal; returns whether it differs from the reported one.
    pub(super) fn refuse(&mut self, now: Duration, kind: &'static str) -> bool {
        let before = self.refused.replace((kind, now));
        before.is_none_or(|(before, _)| before != kind)
    }

    /// Notes a growth that was not written; returns whether that is a failure to report. Nothing is to write where a pass has raised the
    /// limit meanwhile, or the container has ended.
    pub(super) fn did_not_grow(&mut self, now: Duration, outcome: &Outcome) -> bool {
        *outcome != Outcome::Unchanged && self.refuse(now, outcome.word())
    }

    /// The memory that is kept for evidence, until the guard requests it.
    pub(super) fn kept_for_evidence(&self) -> Option<Bytes> {
        self.listed.terms.evidence.filter(|_| !self.evidence_requested)
    }

    /// Notes that the guard requests evidence; returns the memory kept for that, once.
    pub(super) fn request_evidence(&mut self) -> Option<Bytes> {
        let kept = self.kept_for_evidence();
        self.evidence_requested |= kept.is_some();
        kept
    }

    /// Notes a new temporary limit.
    pub(super) fn lend(&mut self, to: Bytes, now: Duration, quiet: Duration) {
        self.refused = None;
        self.lent.limit = Some(to);
        self.due = now;
        self.restart_quiet_time(now, quiet);
    }

    /// Notes the room that the pod has below its limit: a temporary limit for the pod stays while the pod needs it.
    pub(super) fn note_room_of_pod(&mut self, limit_of_pod: u64, room: u64) {
        if let Some(limit) = self.lent.limit.filter(|_| self.lent.for_pod) {
            let [used, needed] = Reading::used_by_pod(limit.get(), limit_of_pod, room);
            (self.lent.peak, self.lent.needed) = (self.lent.peak.max(used), self.lent.needed.max(needed));
        }
    }

    /// Whether the cgroup is gone. A container that has ended lacks nothing.
    pub(super) fn has_ended(&self) -> bool {
        self.cgroup.outer().check().is_err_and(|error| error.is_gone())
    }

    /// Notes that the container has ended: nothing is due before this time.
    pub(super) fn postpone(&mut self, until: Duration) {
        self.due = self.due.max(until);
        self.throttling.due = self.throttling.due.max(until);
        self.lent.ends_at = self.lent.ends_at.map(|at| at.max(until));
    }

    /// When the next action is due.
    pub(super) fn next(&self) -> Duration {
        let throttle = self.listed.terms.cpu.map(|_| self.throttling.due);
        [self.lent.ends_at, throttle]
            .into_iter()
            .flatten()
            .fold(self.due, Duration::min)
    }

    /// The most memory in use in the quiet time, and the part of the limit that was needed, if that is over. The next quiet time begins.
    pub(super) fn end_quiet_time(&mut self, now: Duration, quiet: Duration) -> Option<[Bytes; 2]> {
        self.lent.ends_at.filter(|at| *at <= now)?;
        let (peak, needed) = (self.lent.peak, self.lent.needed);
        self.restart_quiet_time(now, quiet);
        Some([peak, needed.max(peak)].map(Bytes::new))
    }

    /// The alarms to order for a container at rest, and their limit.
    pub(super) fn wanted_alarms(&self, now: Duration) -> Option<(u64, Vec<u64>)> {
        let (reading, _) = self.latest.reading.filter(|_| !self.latest.grows)?;
        let amounts = self.alarms.wanted(now, reading.limit, reading.usage)?;
        Some((reading.limit, amounts))
    }
}

#[cfg(test)]
pub(super) mod tests;
