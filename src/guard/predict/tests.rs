use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn pace() -> Pace {
    Pace {
        act: ms(2),
        tripwire: None,
        tripped: false,
        notifies_of_reclaim: false,
    }
}

fn reading(at: u64, usage: u64) -> Reading {
    Reading {
        at: ms(at),
        limit: 128 * MIB,
        usage,
        above_high: 0,
        reclaimable: near(128 * MIB, usage).then_some(0),
    }
}

#[test]
fn constant_use_near_a_limit_is_left_alone() {
    let mut track = Track::default();
    for second in 0..20 {
        let verdict = track.predict(reading(second * 1000, 127 * MIB), pace());
        assert!(matches!(verdict, Verdict::Wait(_)), "{verdict:?}");
    }
}

#[test]
fn a_limit_grows_ahead_of_use() {
    let mut track = Track::default();
    assert!(matches!(track.predict(reading(0, 60 * MIB), pace()), Verdict::Wait(_)));
    let Verdict::Grow(need) = track.predict(reading(100, 110 * MIB), pace()) else {
        panic!("110 MiB of 128 at 500 MiB/s are 36 ms from the limit")
    };
    assert_eq!(need.rate, 500 * MIB);
    assert!(need.wanted >= Bytes::new((110 + 250) * MIB), "{need:?}");
    assert!(need.least > Bytes::new(128 * MIB) && need.least < need.wanted);
}

#[test]
fn a_higher_memory_high_is_no_growth() {
    let mut track = Track::default();
    for (at, above) in [(0, 12), (5, 16), (10, 20)] {
        let reading = Reading {
            above_high: above * MIB,
            reclaimable: Some(0),
            ..reading(at, (90 + above) * MIB)
        };
        assert!(matches!(track.predict(reading, pace()), Verdict::Wait(_)));
        assert_eq!(track.rate(), 0);
    }
}

#[test]
fn a_container_grows_by_what_its_pod_needs() {
    let mib = |mebibytes| Bytes::new(mebibytes * MIB);
    let of_pod = Need {
        at: ms(5),
        limit: mib(256),
        rate: 10 * MIB,
        used: mib(250),
        wanted: mib(320),
        least: mib(260),
    };
    let expected = Need {
        limit: mib(128),
        used: mib(122),
        wanted: mib(192),
        least: mib(132),
        ..of_pod
    };
    let need = |usage, verdict| of_pod.of_container(&reading(5, usage * MIB), verdict);
    let (rests, grows) = (Verdict::Wait(ms(10)), Verdict::Grow(expected));
    assert_eq!(need(60, &rests), Some(expected), "the pod leaves it 6 MiB of its limit");
    assert_eq!(need(122, &grows), None, "it reaches its own limit no later");
    assert_eq!(need(120, &grows), None, "a sandbox uses a little, too");
    assert_eq!(need(119, &grows), Some(expected));
    assert_eq!(need(128, &rests), Some(expected), "it is full, and grows for its pod");
}

#[test]
fn a_small_container_keeps_what_a_large_pod_needs() {
    // A container of 32 MiB got 256 MiB for a pod of 1 GiB, which has since given back a little.
    let (limit, limit_of_pod) = (288, 1280);
    for (room, expected) in [(40, [248, 288]), (80, [208, 288]), (260, [28, 108]), (360, [0, 8])] {
        let [used, needed] = Reading::used_by_pod(limit, limit_of_pod, room);
        assert_eq!([used, needed], expected);
        let without_the_rest = room - (limit - needed);
        assert!(room < 80 || without_the_rest >= 80, "{room}");
    }
}

#[test]
fn what_can_be_taken_back_is_no_reason() {
    let mut track = Track::default();
    for (at, usage) in [(0, 100), (20, 110), (40, 120), (60, 127)] {
        let cached = Reading {
            reclaimable: Some(90 * MIB),
            ..reading(at, usage * MIB)
        };
        assert!(
            matches!(track.predict(cached, pace()), Verdict::Wait(_)),
            "at {usage} MiB"
        );
    }
}

#[test]
fn growth_that_displaces_cache_is_seen() {
    let mut track = Track::default();
    let at = |at: u64, cache: u64| Reading {
        reclaimable: Some(cache * MIB),
        ..reading(at, 127 * MIB)
    };
    assert!(matches!(track.predict(at(0, 60), pace()), Verdict::Wait(_)));
    assert!(matches!(track.predict(at(20, 50), pace()), Verdict::Wait(_)));
    assert!(matches!(track.predict(at(80, 15), pace()), Verdict::Grow(_)));
}

#[test]
fn a_sudden_page_cache_is_told_from_growth() {
    let at = |at: u64, usage: u64, cache: u64| Reading {
        reclaimable: (cache > 0).then_some(cache * MIB),
        ..reading(at, usage * MIB)
    };
    let after_a_read = |later: Reading| {
        let mut track = Track::default();
        track.predict(at(0, 30, 0), pace());
        track.predict(at(1100, 40, 0), pace());
        // What grew by 78 MiB in 50 ms may be files, or not: 48 MiB of the use are.
        assert_eq!(track.predict(at(1150, 118, 48), pace()), Verdict::Wait(AGAIN));
        track.predict(later, pace())
    };
    assert!(matches!(after_a_read(at(1152, 121, 51)), Verdict::Wait(_)));
    assert!(matches!(after_a_read(at(1152, 121, 48)), Verdict::Grow(_)));
    let mut track = Track::default();
    track.predict(at(0, 40, 0), pace());
    let late = track.predict(at(50, 127, 28), pace());
    assert!(matches!(late, Verdict::Grow(_)), "no time to read again: {late:?}");
}

#[test]
fn the_wait_at_the_limit_depends_on_page_cache() {
    for (usage, cache, notifies_of_reclaim, micros) in [
        (127, 60, true, 1_000_000),
        // The first notice would come with the kill.
        (127, 3, true, 20_000),
        (127, 63, false, 62_500),
        (126, 62, true, 15_625),
        (120, 0, true, 10_000),
    ] {
        let reading = Reading {
            reclaimable: Some(cache * MIB),
            ..reading(0, usage * MIB)
        };
        let pace = Pace {
            notifies_of_reclaim,
            ..pace()
        };
        let verdict = Track::default().predict(reading, pace);
        assert_eq!(
            verdict,
            Verdict::Wait(Duration::from_micros(micros)),
            "{cache} of {usage} MiB"
        );
    }
}

#[test]
fn below_a_tripwire_nobody_looks_for_seconds() {
    let wired = Pace {
        tripwire: Some(90 * MIB),
        ..pace()
    };
    assert_eq!(
        Track::default().predict(reading(0, 60 * MIB), wired),
        Verdict::Wait(LONGEST)
    );
    let beyond = Track::default().predict(reading(0, 95 * MIB), wired);
    assert!(matches!(beyond, Verdict::Wait(wait) if wait <= ms(10)), "{beyond:?}");
}

/// Lets use grow steadily against the verdicts, and says at which use the limit was hit, if it was.
fn race(rate: u64, from: u64, until: u64, pace: Pace, late: Duration) -> Result<u64, u64> {
    let (mut track, mut limit, mut now, mut growths) = (Track::default(), 128 * MIB, Duration::ZERO, 0);
    loop {
        let usage = from + grown(rate, now);
        if usage > limit {
            return Err(usage);
        }
        if usage >= until {
            return Ok(growths);
        }
        let reading = Reading {
            at: now,
            limit,
            usage,
            above_high: 0,
            reclaimable: Some(0),
        };
        match track.predict(reading, pace) {
            Verdict::Wait(wait) => now += wait + late,
            Verdict::Grow(need) => {
                now += pace.act;
                if from + grown(rate, now) > limit {
                    return Err(from + grown(rate, now));
                }
                limit = need.wanted.get();
                growths += 1;
            }
        }
    }
}

#[test]
fn two_gibibytes_of_growth_take_few_steps() {
    for rate in [50, 200, 500, 2000] {
        let growths = race(rate * MIB, 30 * MIB, 2048 * MIB, pace(), ms(1)).unwrap();
        assert!((1..=24).contains(&growths), "{growths} growths at {rate} MiB/s");
    }
}

/// Lets use grow from rest at an amount, with the kernel's word that it passed an alarm half a mebibyte ago.
#[test]
fn growth_near_the_limit_is_seen_in_two_looks() {
    let resting = 120 * MIB;
    let rate = 500 * MIB;
    let mut track = Track::default();
    let armed = Pace {
        tripwire: Some(122 * MIB),
        ..pace()
    };
    assert_eq!(track.predict(reading(0, resting), armed), Verdict::Wait(LONGEST));
    let rang = Pace {
        tripwire: Some(124 * MIB),
        tripped: true,
        ..pace()
    };
    let heard = 122 * MIB + MIB / 2;
    assert_eq!(track.predict(reading(60_000, heard), rang), Verdict::Wait(AGAIN));
    let later = heard + grown(rate, AGAIN);
    let verdict = track.predict(reading(60_002, later), pace());
    assert!(
        matches!(verdict, Verdict::Grow(need) if need.rate >= rate),
        "{verdict:?}"
    );
    assert!(128 * MIB - later > grown(rate, ms(8)), "with time to act");
}

proptest! {
    #[test]
    fn a_reading_ages_before_growth_comes_too_late(
        rate in 1_u64..2000, from in 0_u64..120, step in 2_u64..200, act in 1_u64..60,
    ) {
        let (mut track, pace) = (Track::default(), Pace { act: ms(act), ..pace() });
        let latest = reading(step, (from * MIB + grown(rate * MIB, ms(step))).min(128 * MIB));
        track.predict(reading(0, from * MIB), pace);
        if matches!(track.predict(latest, pace), Verdict::Wait(_)) {
            let left = latest.limit - latest.used() - track.slack(latest, pace.act);
            prop_assert!(left >= reach(latest.limit, track.rate(), pace.act), "{left}");
        }
    }

    #[test]
    fn steady_growth_never_reaches_the_limit(
        rate in 1_u64..2000, from in 0_u64..64, late in 0_u64..3,
    ) {
        let hit = race(rate * MIB, from * MIB, 4096 * MIB, pace(), ms(late));
        prop_assert!(hit.is_ok(), "hit the limit at {:?} MiB", hit.map_err(|usage| usage / MIB));
    }

    #[test]
    fn growth_beyond_a_limit_waits_within_bounds(
        readings in prop::collection::vec((1_u64..500, 0_u64..(4 << 30), prop::option::of(0_u64..(4 << 30))), 1..40),
        limit in 4096_u64..(4 << 30), act in 0_u64..1000,
    ) {
        let (mut track, mut now) = (Track::default(), 0);
        for (step, usage, reclaimable) in readings {
            now += step;
            let reading = Reading { at: ms(now), limit, usage, above_high: 0, reclaimable };
            match track.predict(reading, Pace { act: ms(act), ..pace() }) {
                Verdict::Wait(wait) => prop_assert!((QUICKEST..=LONGEST).contains(&wait)),
                Verdict::Grow(need) => {
                    prop_assert!(need.wanted >= need.least && need.least.get() >= limit);
                    prop_assert!(need.wanted > need.used);
                }
            }
        }
    }
}
