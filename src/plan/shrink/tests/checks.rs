//! Before the write.

use proptest::prelude::*;

use super::*;
use crate::model::PageSize;
use crate::plan::shrink::{CheckStep, RECLAIM_STEP, Reclaim, ShrinkCheck, UsageHistory, leaves_room, slack};

fn check(wanted: u64, reclaim: Reclaim) -> ShrinkCheck {
    ShrinkCheck::new(mib(wanted), reclaim, UsageHistory::default())
}

/// Follows a check while the container stays as it is, apart from what is reclaimed from it. Returns how it ends, and how
/// many seconds that took.
fn settle(check: &mut ShrinkCheck, mut reading: MemoryReading, from: Instant) -> (CheckStep, f64) {
    let mut now = from;
    loop {
        match check.next(&reading, now) {
            CheckStep::LookAt(at) => {
                assert!(at > now);
                now = at;
            }
            CheckStep::Reclaim(bytes) => {
                assert!(bytes > Bytes::ZERO && bytes <= RECLAIM_STEP);
                let dropped = bytes.min(reading.evictable);
                reading.usage = reading.usage.saturating_sub(dropped);
                reading.evictable = reading.evictable.saturating_sub(dropped);
            }
            end => return (end, now.duration_since(from).as_secs_f64()),
        }
    }
}

fn refused(step: CheckStep) -> String {
    match step {
        CheckStep::Refused(why) => why,
        other => panic!("{other:?}"),
    }
}

/// The limit that a refusal names as acceptable.
fn floor(why: &str) -> Bytes {
    let (before, _) = why.split_once(" bytes would be accepted now").unwrap();
    Bytes::new(before.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn a_limit_above_use_is_written_at_once() {
    let now = Clock::new().after(0.0);
    for reclaim in [Reclaim::OnRequest, Reclaim::ByTheWrite, Reclaim::Never] {
        assert_eq!(check(128, reclaim).next(&reading(90, 20, 120), now), CheckStep::Ready);
    }
}

#[test]
fn held_memory_is_never_cut_into() {
    let now = Clock::new().after(0.0);
    let step = check(64, Reclaim::OnRequest).next(&reading(100, 20, 120), now);
    assert_eq!(
        refused(step),
        "not shrinkable now: 125829120 bytes are in use, more than the wanted limit of 67108864 bytes has room for: \
         104857600 of them cannot be reclaimed; 129761280 bytes would be accepted now: choose a higher limit, or wait \
         until less is in use"
    );
    assert_eq!(
        check(104, Reclaim::Never).next(&reading(100, 0, 100), now),
        CheckStep::Ready
    );
    assert!(matches!(
        check(102, Reclaim::Never).next(&reading(100, 0, 100), now),
        CheckStep::Refused(_)
    ));
}

/// Lets a check refuse its limit, and another check accept the limit that the refusal names, in the kernel's pages.
fn accepts_what_it_names(check: &mut ShrinkCheck, reclaim: Reclaim, container: MemoryReading, now: Instant) {
    let (end, _) = settle(check, container, now);
    let named = PageSize::KIB_64.round_down(floor(&refused(end)));
    let mut again = ShrinkCheck::new(named, reclaim, UsageHistory::default());
    let (end, _) = settle(&mut again, container, now);
    assert_eq!(end, CheckStep::Ready, "{reclaim:?} {container:?}");
}

#[test]
fn the_limit_that_a_refusal_names_is_accepted() {
    let now = Clock::new().after(0.0);
    for reclaim in [Reclaim::OnRequest, Reclaim::ByTheWrite, Reclaim::Never] {
        for container in [
            reading(100, 20, 120),
            reading(100, 20, 500),
            reading(100, 300, 500),
            reading(60, 0, 500),
            // Its spare is no whole number of large pages.
            reading(101, 0, 101),
        ] {
            accepts_what_it_names(&mut check(64, reclaim), reclaim, container, now);
        }
    }
    // What stays free grows with a small limit. The kernel finds nothing to reclaim.
    let stubborn = reading(1, 4, 4);
    let mut check = check(5, Reclaim::OnRequest);
    let why = loop {
        match check.next(&stubborn, now) {
            CheckStep::Reclaim(_) => {}
            end => break refused(end),
        }
    };
    let mut named = ShrinkCheck::new(floor(&why), Reclaim::OnRequest, UsageHistory::default());
    assert_eq!(named.next(&stubborn, now), CheckStep::Ready);
}

#[test]
fn a_hook_makes_room_for_a_quarter_more() {
    let fits = |held, cached, wanted| leaves_room(&reading(held, cached, 500), mib(wanted));
    assert!(fits(40, 0, 50) && !fits(40, 0, 49));
    assert!(fits(40, 400, 50), "the kernel can drop what is cached");
    let least = 1536 << 10;
    let fits = |wanted| leaves_room(&reading(1, 0, 500), Bytes::new(wanted));
    assert!(fits(least) && !fits(least - 1), "half a mebibyte at least");
    let free = [8, 16, 100].map(|limit| slack(mib(limit)));
    assert_eq!(free, [512 << 10, 1 << 20, 1 << 20].map(Bytes::new));
}

#[test]
fn earlier_use_makes_a_check_longer() {
    let clock = Clock::new();
    let (end, took) = settle(
        &mut check(64, Reclaim::OnRequest),
        reading(40, 0, 100),
        clock.after(0.0),
    );
    assert_eq!(end, CheckStep::Ready);
    assert!(took >= 2.0, "{took}");

    // Whoever takes it up again meanwhile is found out.
    let mut check = check(64, Reclaim::OnRequest);
    assert!(matches!(
        check.next(&reading(40, 0, 100), clock.after(0.0)),
        CheckStep::LookAt(_)
    ));
    let step = check.next(&reading(60, 0, 100), clock.after(1.0));
    let later = check.next(&reading(20, 0, 100), clock.after(1.1));
    let is_same = later == step;
    let why = refused(step);
    let most = mib(60).get();
    assert!(
        why.contains(&format!("up to {most} bytes that cannot be reclaimed were seen")),
        "{why}"
    );
    assert!(is_same || floor(&why) > mib(64));
}

/// Before Linux 5.19 v2 has no `memory.peak`.
#[test]
fn an_unknown_peak_makes_a_check_longer() {
    let now = Clock::new().after(0.0);
    let next = |held| {
        let unknown = MemoryReading {
            peak: None,
            ..reading(held, 0, 0)
        };
        check(64, Reclaim::OnRequest).next(&unknown, now)
    };
    assert!(matches!(next(40), CheckStep::LookAt(_)));
    let why = refused(next(60));
    let seen = format!("62914560 bytes are in use, up to {} bytes that cannot", mib(60).get());
    assert!(why.contains(&seen), "{why}");
}

#[test]
fn longer_observation_needs_less_spare() {
    let clock = Clock::new();
    let mut seen = UsageHistory::default();
    let mut accepted = Vec::new();
    for (seconds, wanted) in [(0.0, 110), (30.0, 110), (70.0, 110), (80.0, 113), (700.0, 104)] {
        let mut check = ShrinkCheck::new(mib(wanted), Reclaim::OnRequest, seen);
        let (end, _) = settle(&mut check, reading(100, 0, 200), clock.after(seconds));
        accepted.push(end == CheckStep::Ready);
        seen = check.history();
    }
    assert_eq!(accepted, [false, false, false, true, true]);
}

#[test]
fn earlier_use_that_fitted_asks_for_no_more_spare() {
    let clock = Clock::new();
    // The later one leaves less than an eighth, and may come back.
    for (earlier, expected) in [(107, true), (115, false)] {
        let mut seen = UsageHistory::default();
        let mut accepted = Vec::new();
        for (seconds, held) in [(0.0, earlier), (5.0, 10)] {
            let mut check = ShrinkCheck::new(mib(128), Reclaim::OnRequest, seen);
            let (end, _) = settle(&mut check, reading(held, 0, 200), clock.after(seconds));
            accepted.push(end == CheckStep::Ready);
            seen = check.history();
        }
        assert_eq!(accepted, [false, expected]);
        assert_eq!(seen.most(), Some(mib(earlier)), "the watch knows it");
    }
}

#[test]
fn refaults_count_over_half_a_second_or_more() {
    let clock = Clock::new();
    let mut check = check(64, Reclaim::OnRequest);
    assert_eq!(check.refaults(), Bytes::ZERO);
    for (seconds, refaults, rate) in [(0.0, 10, 0), (0.4, 90, 0), (2.0, 30, 10)] {
        let refaults = mib(refaults);
        let reading = MemoryReading {
            refaults,
            ..reading(40, 0, 100)
        };
        check.next(&reading, clock.after(seconds));
        assert_eq!(check.refaults(), mib(rate), "after {seconds} s");
    }
}

#[test]
fn what_does_not_fit_ends_what_was_known() {
    let clock = Clock::new();
    let mut seen = UsageHistory::default();
    seen.note(clock.after(0.0), mib(50), mib(64));
    assert_eq!((seen.most(), seen.span(clock.after(9.0)).as_secs()), (Some(mib(50)), 9));
    seen.note(clock.after(10.0), mib(65), mib(64));
    assert_eq!((seen.most(), seen.span(clock.after(11.0)).as_secs()), (None, 0));
    seen.note(clock.after(12.0), mib(50), mib(64));
    // A lower limit is another question.
    seen.note(clock.after(20.0), mib(30), mib(40));
    assert_eq!(
        (seen.most(), seen.span(clock.after(21.0)).as_secs()),
        (Some(mib(30)), 1)
    );
}

#[test]
fn cache_is_reclaimed_in_bounded_steps() {
    let clock = Clock::new();
    let mut container = reading(40, 200, 240);
    let mut check = check(100, Reclaim::OnRequest);
    let mut now = clock.after(0.0);
    let mut reclaimed = Bytes::ZERO;
    loop {
        match check.next(&container, now) {
            CheckStep::LookAt(at) => now = at,
            CheckStep::Reclaim(bytes) => {
                container.usage = container.usage.saturating_sub(bytes);
                container.evictable = container.evictable.saturating_sub(bytes);
                reclaimed = reclaimed.saturating_add(bytes);
            }
            CheckStep::Ready => break,
            CheckStep::Refused(why) => panic!("{why}"),
        }
    }
    assert_eq!(container.usage.saturating_add(slack(mib(100))), mib(100));
    assert_eq!(reclaimed, mib(141));
}

#[test]
fn reclaim_ends_when_nothing_is_found() {
    let clock = Clock::new();
    // Dirty pages, or pages that are locked without being counted.
    let stubborn = reading(40, 100, 140);
    let mut check = check(100, Reclaim::OnRequest);
    let (mut now, mut asked) = (clock.after(0.0), 0);
    let why = loop {
        match check.next(&stubborn, now) {
            CheckStep::LookAt(at) => now = at,
            CheckStep::Reclaim(_) => asked += 1,
            end => break refused(end),
        }
    };
    assert_eq!(asked, 3);
    assert!(why.contains("found nothing more to reclaim"), "{why}");
}

#[test]
fn memory_taken_again_ends_a_try() {
    let clock = Clock::new();
    let mut check = check(100, Reclaim::OnRequest);
    let (mut now, mut asked) = (clock.after(0.0), 0);
    let why = loop {
        // Every second reclaim has an effect, and the next reading shows as much in use as before.
        let cached = if asked % 2 == 0 { 200 } else { 190 };
        match check.next(&reading(40, cached, 240), now) {
            CheckStep::LookAt(at) => now = at,
            CheckStep::Reclaim(_) => asked += 1,
            end => break refused(end),
        }
        assert!(asked < 1000, "the kernel is asked for ever");
    };
    assert!(
        why.contains("the container takes again what the kernel reclaims"),
        "{why}"
    );
}

#[test]
fn steady_progress_ends_no_try() {
    let clock = Clock::new();
    let mut container = reading(40, 4000, 4040);
    let mut check = check(100, Reclaim::OnRequest);
    let mut now = clock.after(0.0);
    let end = loop {
        match check.next(&container, now) {
            CheckStep::LookAt(at) => now = at,
            CheckStep::Reclaim(bytes) => {
                // Hardly more than an eighth, in whole pages.
                let pages = bytes.get() / 8 / 4096 + 1;
                container.usage = container.usage.saturating_sub(Bytes::new(pages * 4096));
                container.evictable = container.evictable.saturating_sub(Bytes::new(pages * 4096));
            }
            end => break end,
        }
    };
    assert_eq!(end, CheckStep::Ready);
}

#[test]
fn more_than_an_eighth_of_a_reclaim_is_progress() {
    let clock = Clock::new();
    // Of each 32 MiB, the kernel finds this many.
    for (found, is_progress) in [(4, false), (5, true)] {
        let mut container = reading(40, 400, 440);
        let mut check = check(100, Reclaim::OnRequest);
        let (mut now, mut asked) = (clock.after(0.0), 0);
        let end = loop {
            match check.next(&container, now) {
                CheckStep::LookAt(at) => now = at,
                CheckStep::Reclaim(_) => {
                    asked += 1;
                    container.usage = container.usage.saturating_sub(mib(found));
                    container.evictable = container.evictable.saturating_sub(mib(found));
                }
                end => break end,
            }
        };
        assert_eq!(
            (end == CheckStep::Ready, asked > 3),
            (is_progress, is_progress),
            "{end:?}"
        );
    }
}

#[test]
fn old_kernels_reclaim_with_the_write() {
    let clock = Clock::new();
    let container = reading(40, 100, 140);
    let (end, _) = settle(&mut check(100, Reclaim::Never), container, clock.after(0.0));
    let why = refused(end);
    assert!(why.contains("this kernel cannot be asked to reclaim"), "{why}");
    let (end, _) = settle(&mut check(100, Reclaim::ByTheWrite), container, clock.after(0.0));
    assert_eq!(end, CheckStep::Ready);
}

proptest! {
    /// Whatever a container does while it is looked at, the limit is only ever written above what it holds, with room.
    #[test]
    fn no_limit_is_ready_below_what_is_held(
        wanted in 1_u64..500,
        container in prop::collection::vec((0_u64..600, 0_u64..600), 1..60),
        peak in prop::option::of(0_u64..1200),
        reclaim in prop::sample::select(vec![Reclaim::OnRequest, Reclaim::ByTheWrite, Reclaim::Never]),
    ) {
        let clock = Clock::new();
        let mut check = check(wanted, reclaim);
        let mut most = Bytes::ZERO;
        for (index, (held, cached)) in container.iter().enumerate() {
            // Small enough a number to be a time.
            let now = clock.after(f64::from(u32::try_from(index).unwrap()) * 0.1);
            let current = MemoryReading {
                peak: peak.map(|peak| mib(peak.max(held + cached))),
                ..reading(*held, *cached, 0)
            };
            most = most.max(mib(*held));
            match check.next(&current, now) {
                CheckStep::Ready => {
                    prop_assert!(most < mib(wanted));
                    if reclaim != Reclaim::ByTheWrite {
                        prop_assert!(current.usage.saturating_add(slack(mib(wanted))) <= mib(wanted));
                    }
                    break;
                }
                CheckStep::Refused(why) => {
                    prop_assert!(floor(&why) > mib(wanted), "{why}");
                    break;
                }
                CheckStep::Reclaim(bytes) => {
                    prop_assert!(reclaim == Reclaim::OnRequest);
                    prop_assert!(bytes <= RECLAIM_STEP && bytes <= current.usage);
                }
                CheckStep::LookAt(at) => prop_assert!(at > now),
            }
        }
    }
}
