//! The dates of a pod where the wall clock is set: what is to last for a time lasts as long as before. Pure.
//!
//! The monotonic clock distinguishes a clock that was set from time that has passed. Nothing sets that clock. It stops while the
//! machine is suspended, so such a time does not count.

use std::time::Duration;

use jiff::SignedDuration;

use super::{Now, PodState};

/// A smaller step comes from the time between the readings of the two clocks, or is slewed by NTP.
const LEAST_STEP: Duration = Duration::from_secs(1);

impl Now {
    /// By how much the wall clock was set forward since this earlier moment; negative where it was set back.
    pub(crate) fn step_since(self, earlier: Self) -> Option<SignedDuration> {
        let passed = self.instant.saturating_duration_since(earlier.instant);
        let passed = SignedDuration::try_from(passed).ok()?;
        let step = self.wall.duration_since(earlier.wall).saturating_sub(passed);
        (step.unsigned_abs() >= LEAST_STEP).then_some(step)
    }
}

impl PodState {
    /// Moves every date along with the wall clock.
    pub(super) fn move_dates(&mut self, by: SignedDuration) {
        let dates = self.desired.dates().chain(self.shrink.dates());
        let dates = dates.chain(self.growth.dates()).chain(self.hooks.dates());
        let waits = self.decision.canary.waits.iter_mut();
        let dates = dates.chain(waits.map(|waits| &mut waits.since));
        let dates = dates.chain(self.drift.dates()).chain(self.work.dates());
        let no_room = self.no_room.iter_mut().map(|no_room| &mut no_room.since);
        for date in dates.chain(no_room).chain(&mut self.trouble) {
            *date = date.checked_add(by).unwrap_or(*date);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::decide::{CanaryWait, PodDecision};
    use crate::model::objects::{Pod, PodId};
    use crate::model::{
        CgroupPath, ContainerId, ContainerName, ControlFile, LivePod, MemoryLimit, Outcome, PodAmounts, Resource,
        Target,
    };
    use crate::plan::shrink::FailedShrinks;
    use crate::reconcile::desired::{BurstStart, Denied, DesiredState, TemporaryLimit};
    use crate::reconcile::no_room::NoRoomFor;
    use crate::reconcile::overrides::Override;
    use crate::reconcile::pod::{Effect, Located, PodInput};
    use crate::reconcile::store::{SavedPod, SavedTargets};
    use crate::reconcile::work::{Before, OperatorRequest};
    use crate::resize::Resize;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn any_pod() -> PodState {
        let pod = Arc::new(Pod::default());
        PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod))
    }

    fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
        at.checked_add(by).unwrap()
    }

    /// An override that lasts for an hour from this time on.
    fn for_an_hour(since: Timestamp) -> Override {
        Override {
            since,
            until: Some(later(since, HOUR)),
            ..Override::by_root(PodAmounts::default())
        }
    }

    #[test]
    fn time_that_passes_is_no_step() {
        let now = Now::read();
        let after = |seconds, set| {
            let passed = Duration::from_secs(seconds);
            Now {
                wall: later(now.wall + passed, SignedDuration::from_millis(set)),
                instant: now.instant + passed,
                ..now
            }
        };
        for (set, step) in [
            (0, None),
            (900, None),
            (1_000, Some(1)),
            (-900, None),
            (5_000, Some(5)),
            (-5_000, Some(-5)),
        ] {
            let step = step.map(SignedDuration::from_secs);
            assert_eq!(after(0, set).step_since(now), step, "{set}");
            assert_eq!(after(3600, set).step_since(now), step, "{set}");
        }
    }

    #[test]
    fn what_lasts_follows_a_clock_that_is_set() {
        for hours in [-5, 5] {
            let (by, now) = (SignedDuration::from_hours(hours), Now::read());
            let mut state = any_pod();
            state.desired.put_override(for_an_hour(now.wall));
            let given = TemporaryLimit::given("app".to_owned(), Resource::Memory, (1, 2), String::new(), now.wall);
            let ends = later(now.wall, HOUR);
            let why = String::new();
            state.desired.grow(TemporaryLimit {
                denied: Some(Denied { ends, why }),
                ..given
            });
            state.growth.deny(&state.pod, &state.desired.temporary, "a quota");
            let grows_at = state.growth.dates().next().copied().unwrap();
            let mut failed = FailedShrinks::default();
            let retried_at = failed.note(&Target::Pod, MemoryLimit::Max, "it hurt", now.wall);
            state.shrink.restore(failed, now.wall);
            state.hooks.restore([("app".into(), now.wall)].into());
            state.decision.canary.waits = Some(CanaryWait {
                since: now.wall,
                targets: PodAmounts::default(),
            });
            let no_room = NoRoomFor::after(None, PodAmounts::default(), String::new(), now.wall);
            state.no_room = Some(no_room);
            let start = BurstStart {
                id: ContainerId::of_test("a"),
                at: now.wall,
                throttled_us: 0,
                before: None,
            };
            state.desired.burst_starts.insert("app".into(), start);
            let set = Now {
                wall: later(now.wall, by),
                ..now
            };
            drop(state.apply(PodInput::ClockSet(by), set));
            drop(state.apply(PodInput::TimePassed, set));
            assert_eq!(state.desired.override_ends_at(), Some(later(set.wall, HOUR)), "{hours}");
            let limit = &state.desired.temporary[0];
            let denied = limit.denied.as_ref().unwrap();
            assert_eq!(denied.ends, later(set.wall, HOUR), "{hours}");
            assert_eq!((limit.since, limit.renewed), (set.wall, set.wall), "{hours}");
            let grows_later = state.growth.dates().next().copied();
            assert_eq!(grows_later, Some(later(grows_at, by)), "{hours}");
            assert_eq!(state.shrink.wakes_at(), Some(later(retried_at, by)), "{hours}");
            assert_eq!(state.holds(set.wall).len(), 1, "{hours}");
            assert_eq!(state.hooks.saved()["app"], set.wall, "{hours}");
            let burst = state.desired.burst_starts["app"].at;
            let refused = state.no_room.as_ref().map(|no_room| no_room.since);
            assert_eq!((burst, refused), (set.wall, Some(set.wall)), "{hours}");
            assert_eq!(state.decision.canary.waits.as_ref().unwrap().since, set.wall, "{hours}");
            let over = Now {
                wall: later(set.wall, HOUR),
                ..set
            };
            drop(state.apply(PodInput::TimePassed, over));
            assert!(
                state.desired.overridden.is_none() && state.desired.temporary.is_empty(),
                "{hours}"
            );
        }
    }

    #[test]
    fn requests_without_an_answer_follow_the_clock() {
        let (mut state, now) = (any_pod(), Timestamp::now());
        let mut replaced = DesiredState::default();
        replaced.put_override(for_an_hour(now));
        let mut shrinks = FailedShrinks::default();
        let retried_at = shrinks.note(&Target::Pod, MemoryLimit::Max, "it hurt", now);
        let replaced = Box::new((replaced, shrinks));
        state.work.wait_for_answer(1, Before::Override(replaced));
        let queued = OperatorRequest::Override(for_an_hour(now));
        assert!(state.work.enqueue(2, queued).is_none());
        state.move_dates(HOUR * 5);
        let ends = Some(later(now, HOUR * 6));
        let replaced = state.work.before_override().unwrap();
        assert_eq!(replaced.override_ends_at(), ends);
        let request = state.work.take_request();
        let Some(Before::Override(mut replaced)) = request.and_then(|request| request.before) else {
            panic!("the override waits for its pass");
        };
        assert_eq!(replaced.1.dates().next().copied(), Some(later(retried_at, HOUR * 5)));
        let Some(Effect::AdmitRequest {
            request: OperatorRequest::Override(queued),
            ..
        }) = state.work.admit_next()
        else {
            panic!("the override waits for its turn");
        };
        assert_eq!((queued.since, queued.until), (later(now, HOUR * 5), ends));
        state.work.wait_for_answer(3, Before::Release(for_an_hour(now)));
        state.move_dates(HOUR);
        let request = state.work.take_request();
        let Some(Before::Release(released)) = request.and_then(|request| request.before) else {
            panic!("the release waits for its pass");
        };
        let moved = (later(now, HOUR), Some(later(now, HOUR * 2)));
        assert_eq!((released.since, released.until), moved);
    }

    #[test]
    fn a_pause_of_repairs_follows_the_clock() {
        let (mut state, now) = (any_pod(), Timestamp::now());
        let mut writers = state.drift.writers().clone();
        for _ in 0..3 {
            writers.flipped(&Target::Pod, ControlFile::MemoryMax, now);
        }
        state.drift.ended(&Outcome::Applied, writers, true);
        let paused_at = |state: &PodState, at| state.drift.paused(at).count();
        state.move_dates(-HOUR);
        let set = later(now, -HOUR);
        assert_eq!((paused_at(&state, set), paused_at(&state, later(set, HOUR))), (1, 0));
    }

    /// A pod with what an earlier agent saved for it.
    fn restored(
        desired: DesiredState,
        failed_shrinks: FailedShrinks,
        evidence_at: BTreeMap<ContainerName, Timestamp>,
        now: Now,
    ) -> PodState {
        let id = PodId {
            uid: "u1".into(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let resize = Resize::default();
        let saved = SavedPod {
            pod: id.clone(),
            described: None,
            state: SavedTargets { desired, resize },
            failed_shrinks,
            pauses: BTreeMap::new(),
            evidence_at,
            waits: None,
        };
        let live = LivePod {
            id,
            path: CgroupPath::new("/kubepods/podu1").unwrap(),
            containers: <_>::default(),
        };
        let located = Located {
            live: Some(Arc::new(live)),
            saved: Some(saved),
            unsaved_limits: None,
        };
        let mut state = any_pod();
        drop(state.apply(PodInput::Located(Box::new(located)), now));
        state
    }

    #[test]
    fn a_future_override_begins_at_the_restart() {
        let now = Now::read();
        for (began, ends) in [(HOUR * 5, HOUR), (-HOUR / 2, HOUR / 2)] {
            let mut desired = DesiredState::default();
            desired.put_override(for_an_hour(later(now.wall, began)));
            let mut failed_shrinks = FailedShrinks::default();
            let retried_at = failed_shrinks.note(&Target::Pod, MemoryLimit::Max, "it hurt", later(now.wall, began));
            let state = restored(desired, failed_shrinks, BTreeMap::new(), now);
            assert_eq!(state.desired.override_ends_at(), Some(later(now.wall, ends)));
            // The other wait is over.
            let waits = (began > SignedDuration::ZERO).then(|| later(retried_at, -began));
            assert_eq!(state.shrink.wakes_at(), waits);
        }
    }

    #[test]
    fn evidence_of_the_future_is_of_the_restart() {
        let now = Now::read();
        for (ran, known) in [(HOUR * 5, SignedDuration::ZERO), (-HOUR / 2, -HOUR / 2)] {
            let evidence_at = BTreeMap::from([("app".into(), later(now.wall, ran))]);
            let state = restored(DesiredState::default(), FailedShrinks::default(), evidence_at, now);
            assert_eq!(state.hooks.saved()["app"], later(now.wall, known));
        }
    }
}
