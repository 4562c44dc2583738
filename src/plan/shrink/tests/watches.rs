//! After the write.

use super::*;
use crate::plan::shrink::{Trouble, WATCH_PERIOD, Watch, WatchStep};

const LIMIT: Bytes = mib(128);

fn calm() -> WatchReading {
    WatchReading {
        memory: reading(60, 60, 120),
        kills: 3,
        stalled: Some(Duration::from_secs(7)),
    }
}

fn earlier(clock: Clock, refaults: Bytes) -> Before {
    Before {
        last: calm(),
        at: clock.after(0.0),
        most: mib(70),
        refaults,
    }
}

fn watch(clock: Clock) -> Watch {
    Watch::new(LIMIT, clock.after(0.0), earlier(clock, Bytes::ZERO))
}

/// Follows a container whose state is a function of the seconds since the limit was lowered.
fn follow(watch: &mut Watch, clock: Clock, state: impl Fn(f64) -> WatchReading) -> (WatchStep, f64, u32) {
    let (mut now, mut looks) = (clock.after(0.0), 0);
    loop {
        let seconds = now.duration_since(clock.after(0.0)).as_secs_f64();
        looks += 1;
        match watch.next(&state(seconds), now) {
            WatchStep::LookAt(at) => now = at,
            end => return (end, seconds, looks),
        }
    }
}

fn trouble(step: WatchStep) -> Trouble {
    match step {
        WatchStep::RaiseAgain(trouble) => trouble,
        other => panic!("{other:?}"),
    }
}

#[test]
fn earlier_refaults_are_no_trouble() {
    let clock = Clock::new();
    let mut watch = Watch::new(LIMIT, clock.after(0.0), earlier(clock, Bytes::MAX));
    let (end, ..) = follow(&mut watch, clock, |seconds| {
        let mut reading = calm();
        reading.memory.usage = LIMIT;
        reading.memory.evictable = reading.memory.usage.saturating_sub(mib(60));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a minute of seconds"
        )]
        let bytes = (seconds * 1e6) as u64 * 4096;
        reading.memory.refaults = Bytes::new(bytes);
        reading
    });
    assert_eq!(end, WatchStep::Done);
}

#[test]
fn a_container_as_before_is_no_trouble() {
    let clock = Clock::new();
    let (end, seconds, looks) = follow(&mut watch(clock), clock, |_| calm());
    assert_eq!(end, WatchStep::Done);
    assert!(
        seconds >= WATCH_PERIOD.as_secs_f64() && seconds < WATCH_PERIOD.as_secs_f64() + 1.0,
        "{seconds}"
    );
    assert!(looks < 300, "{looks}: it costs little");
}

#[test]
fn a_kill_is_noticed_at_the_next_look() {
    let clock = Clock::new();
    let killed = |seconds| WatchReading {
        kills: if seconds < 5.0 { 3 } else { 5 },
        ..calm()
    };
    let (end, seconds, _) = follow(&mut watch(clock), clock, killed);
    assert_eq!(trouble(end), Trouble::Killed(2));
    assert!(seconds < 5.2, "{seconds}");
}

#[test]
fn growth_is_noticed_before_a_kill() {
    let clock = Clock::new();
    // 30 MiB in each second, 60 at first, and the cache gives way.
    let growing = |seconds: f64| {
        let held = Bytes::new(mib(60).get() + Duration::from_secs_f64(seconds * 30.0).as_secs() * mib(1).get());
        WatchReading {
            memory: MemoryReading {
                usage: LIMIT,
                anonymous: held,
                evictable: LIMIT.saturating_sub(held),
                ..reading(0, 0, 128)
            },
            ..calm()
        }
    };
    let (end, seconds, _) = follow(&mut watch(clock), clock, growing);
    let Trouble::Full { held, limit } = trouble(end) else {
        panic!()
    };
    assert!(held < limit && limit == LIMIT);
    assert!(seconds < 68.0 / 30.0 - 0.8, "{seconds}");
}

#[test]
fn slow_growth_up_to_the_limit_is_noticed() {
    let clock = Clock::new();
    // 1.2 MiB in each second: more than a second before the rest is used up, less than a part in 64 is left.
    let growing = |seconds: f64| {
        let millis = u64::try_from(Duration::from_secs_f64(seconds * 1.2).as_millis()).unwrap();
        let held = Bytes::new(mib(60).get() + mib(millis).get() / 1000);
        WatchReading {
            memory: MemoryReading {
                usage: LIMIT,
                anonymous: held,
                evictable: LIMIT.saturating_sub(held),
                ..reading(0, 0, 128)
            },
            ..calm()
        }
    };
    let (end, ..) = follow(&mut watch(clock), clock, growing);
    let Trouble::Full { held, .. } = trouble(end) else {
        panic!()
    };
    let kib = held.get() >> 10;
    assert!((126 << 10..(126 << 10) + 716).contains(&kib), "{kib}");
}

#[test]
fn a_start_is_not_endless_growth() {
    let clock = Clock::new();
    // Nothing at first, and within a few milliseconds all it ever needs.
    let starting = |seconds: f64| WatchReading {
        memory: reading(if seconds < 0.03 { 1 } else { 60 }, 0, 60),
        ..calm()
    };
    let unknown = Before {
        most: mib(1),
        last: starting(0.0),
        at: clock.after(0.0),
        refaults: Bytes::ZERO,
    };
    let mut watch = Watch::new(LIMIT, clock.after(0.0), unknown);
    assert_eq!(follow(&mut watch, clock, starting).0, WatchStep::Done);
}

#[test]
fn a_known_swing_of_use_is_no_trouble() {
    let clock = Clock::new();
    // From 30 MiB to 70 and back, ten times a second.
    let churning = |seconds: f64| {
        let phase = (Duration::from_secs_f64(seconds).as_millis() % 100).abs_diff(50);
        WatchReading {
            memory: reading(u64::try_from(30 + phase * 4 / 5).unwrap(), 20, 90),
            ..calm()
        }
    };
    assert_eq!(follow(&mut watch(clock), clock, churning).0, WatchStep::Done);
}

#[test]
fn new_refaults_are_noticed() {
    let clock = Clock::new();
    // 20 MiB in each second.
    let thrashing = |seconds: f64| WatchReading {
        memory: MemoryReading {
            usage: LIMIT,
            evictable: mib(68),
            refaults: mib(Duration::from_secs_f64(seconds * 20.0).as_secs()),
            ..reading(60, 0, 128)
        },
        ..calm()
    };
    let (end, seconds, _) = follow(&mut watch(clock), clock, thrashing);
    let Trouble::Refaults { rate, before, .. } = trouble(end) else {
        panic!()
    };
    assert!(rate > mib(15) && rate < mib(25), "{rate:?}");
    assert_eq!(before, Bytes::ZERO);
    assert!((1.0..2.0).contains(&seconds), "{seconds}");

    let mut known = Watch::new(LIMIT, clock.after(0.0), earlier(clock, mib(15)));
    assert_eq!(follow(&mut known, clock, thrashing).0, WatchStep::Done);

    let elsewhere = |seconds| WatchReading {
        memory: MemoryReading {
            usage: mib(100),
            ..thrashing(seconds).memory
        },
        ..calm()
    };
    assert_eq!(
        follow(&mut watch(clock), clock, elsewhere).0,
        WatchStep::Done,
        "the limit is not what is in the way"
    );
}

#[test]
fn a_late_watch_counts_since_its_reading() {
    let clock = Clock::new();
    // For half a minute before the watch and in it: each second 1 MiB more is held, up to 105, and 1 MiB is read again.
    let steady = |seconds: f64| {
        let whole = Duration::from_secs_f64(seconds).as_secs();
        let held = 60 + whole.min(45);
        WatchReading {
            memory: MemoryReading {
                refaults: mib(whole),
                ..reading(held, 128 - held, 128)
            },
            stalled: Some(Duration::from_secs(7) + Duration::from_secs_f64(seconds * 0.03)),
            ..calm()
        }
    };
    let before = Before {
        last: steady(0.0),
        ..earlier(clock, Bytes::ZERO)
    };
    let late = Clock(clock.after(30.0));
    let mut watch = Watch::new(LIMIT, late.after(0.0), before);
    let (end, ..) = follow(&mut watch, late, |seconds| steady(seconds + 30.0));
    assert_eq!(end, WatchStep::Done);
}

#[test]
fn a_late_watch_notices_sudden_growth() {
    let clock = Clock::new();
    // Calm for half a minute before the watch, then 100 MiB more in each second.
    let growing = |seconds: f64| {
        let grown = Duration::from_secs_f64(seconds * 100.0).as_secs();
        WatchReading {
            memory: reading(70 + grown, 0, 128),
            ..calm()
        }
    };
    let late = Clock(clock.after(30.0));
    let mut watch = Watch::new(LIMIT, late.after(0.0), earlier(clock, Bytes::ZERO));
    let (end, ..) = follow(&mut watch, late, growing);
    let Trouble::Full { held, .. } = trouble(end) else {
        panic!()
    };
    assert!(held < mib(80), "{held:?}");
}

#[test]
fn memory_stalls_are_noticed_with_psi() {
    let clock = Clock::new();
    let stalling = |share: f64| {
        move |seconds: f64| WatchReading {
            stalled: Some(Duration::from_secs(7) + Duration::from_secs_f64(seconds * share)),
            ..calm()
        }
    };
    let (end, ..) = follow(&mut watch(clock), clock, stalling(0.25));
    let Trouble::Stalled { milli } = trouble(end) else {
        panic!()
    };
    assert!((240..260).contains(&milli), "{milli}");
    assert_eq!(follow(&mut watch(clock), clock, stalling(0.05)).0, WatchStep::Done);
    let unaccounted = |seconds| WatchReading {
        stalled: None,
        ..stalling(0.9)(seconds)
    };
    assert_eq!(follow(&mut watch(clock), clock, unaccounted).0, WatchStep::Done);
}

#[test]
fn what_went_wrong_is_said_with_its_numbers() {
    for (trouble, words) in [
        (Trouble::Killed(2), "2 processes were OOM killed"),
        (
            Trouble::Full {
                held: Bytes::new(99),
                limit: Bytes::new(100),
            },
            "99 bytes that cannot be reclaimed nearly fill the limit of 100 bytes",
        ),
        (Trouble::Stalled { milli: 251 }, "25.1 % of the time"),
    ] {
        assert!(trouble.to_string().contains(words), "{trouble}");
    }
}
