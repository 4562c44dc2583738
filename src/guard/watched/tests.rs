use std::fs;
use std::path::Path;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::*;
use crate::actuate::Growable;
use crate::cgroup::Hierarchy;
use crate::guard::notifications::Notifications;
use crate::model::objects::PodId;
use crate::model::{CgroupPath, ContainerId, LiveContainer, LivePod, PodAmounts};

/// A guarded container, on plain files.
pub(in crate::guard) fn watched(root: &Path) -> Watched {
    let container = root.join("pod/app");
    fs::create_dir_all(&container).unwrap();
    for directory in [root, &root.join("pod"), &container] {
        let texts = [
            ("cgroup.controllers", "cpu memory\n"),
            ("cgroup.subtree_control", "cpu memory\n"),
            ("memory.max", "4096\n"),
            ("memory.current", "4096\n"),
            ("memory.events", "max 0\n"),
            ("memory.stat", ""),
            ("cpu.stat", ""),
        ];
        for (name, text) in texts {
            fs::write(directory.join(name), text).unwrap();
        }
    }
    fs::write(root.join("memory.max"), "max\n").unwrap();
    let path = |text| CgroupPath::new(text).unwrap();
    let (id, path, inner) = (ContainerId::of_test("c"), path("/pod"), path("/pod/app"));
    let live = LivePod {
        id: PodId {
            uid: "u".into(),
            namespace: "test".to_owned(),
            name: "web".to_owned(),
        },
        path,
        containers: indexmap::IndexMap::from([(
            "app".into(),
            LiveContainer {
                id: id.clone(),
                path: inner,
            },
        )]),
    };
    let cgroup = Cgroup::open(&Hierarchy::of_tree(root).unwrap(), &live.containers["app"].path).unwrap();
    let pod = Arc::new(GuardedPod {
        live: Arc::new(live),
        growable: Growable {
            pod: Arc::default(),
            targets: PodAmounts::default(),
        },
        containers: Vec::new(),
    });
    let terms = Terms {
        container: "app".into(),
        memory: Some(Bytes::new(1 << 30)),
        not_higher: None,
        for_pod: false,
        cpu: None,
        evidence: None,
    };
    let listed = GuardedCgroup {
        id,
        path: pod.live.path.clone(),
        terms,
        is_pod: false,
    };
    Watched::new(2, listed, cgroup, pod)
}

fn notifications() -> Notifications {
    let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap();
    Notifications::new(&Arc::new(wake)).unwrap()
}

#[test]
fn what_another_gives_back_hides_no_growth() {
    let root = tempfile::tempdir().unwrap();
    let mut watched = watched(root.path());
    let (second, of_all) = (Duration::from_secs(1), 7 << 20);
    let reading = Reading {
        at: second,
        limit: 128 << 20,
        usage: 28 << 20,
        above_high: 0,
        reclaimable: None,
    };
    (watched.latest.reading, watched.latest.of_all, watched.latest.slack) =
        (Some((reading, Duration::from_millis(20))), Some(of_all), 25 << 20);
    let later = second + Duration::from_millis(20);
    assert!(watched.can_wait(later, Some(of_all + (24 << 20)), false));
    assert!(!watched.can_wait(later, Some(of_all + (25 << 20)), false));
    assert!(!watched.can_wait(later, None, false));
    assert!(watched.can_wait(later, Some(of_all), true));
    let much_later = second + Duration::from_millis(200);
    assert!(watched.can_wait(much_later, Some(of_all), false));
    assert!(
        !watched.can_wait(much_later, Some(of_all), true),
        "others give way to growth"
    );
    let full = Reading {
        usage: 128 << 20,
        ..reading
    };
    watched.latest.reading = Some((full, Duration::from_millis(20)));
    assert!(
        !watched.can_wait(later, Some(of_all), false),
        "page cache gives way to growth"
    );
    watched.subscribed = true;
    assert!(watched.can_wait(later, Some(of_all), false), "the kernel tells of that");
    watched.subscribed = false;
    let without_cache = Reading {
        reclaimable: Some(0),
        ..full
    };
    watched.latest.reading = Some((without_cache, Duration::from_millis(20)));
    assert!(
        watched.can_wait(later, Some(of_all), false),
        "there is none to give way"
    );
}

#[test]
fn constant_reclaim_at_the_limit_wakes_nobody() {
    let root = tempfile::tempdir().unwrap();
    let mut watched = watched(root.path());
    let mut notifications = notifications();
    let second = Duration::from_secs(1);
    let mut wakes = |watched: &mut Watched, now: Duration| {
        let mut wakes = 0;
        for reclaims in 0..100 {
            notifications.subscribe(watched, now);
            fs::write(root.path().join("pod/app/memory.events"), format!("max {reclaims}\n")).unwrap();
            for token in notifications.wait(Duration::ZERO).unwrap() {
                assert_eq!(token, watched.token);
                watched.alarms.note_alarm(now, CgroupVersion::V2);
                wakes += 1;
            }
        }
        wakes
    };
    let (first, noisy) = (wakes(&mut watched, second), wakes(&mut watched, second * 10));
    assert!(first < 60 && noisy == 0, "{first} {noisy}");
    assert!(
        wakes(&mut watched, second * 11) > 0,
        "after a while the guard listens again"
    );
}

#[test]
fn reclaim_at_the_pods_limit_wakes_the_guard() {
    let root = tempfile::tempdir().unwrap();
    let mut watched = watched(root.path());
    let mut notifications = notifications();
    notifications.subscribe(&mut watched, Duration::ZERO);
    fs::write(root.path().join("pod/memory.events"), "max 1\n").unwrap();
    assert_eq!(notifications.wait(Duration::ZERO).unwrap(), [watched.token]);
}

#[test]
fn a_pod_is_read_when_it_hits_its_own_limit() {
    let root = tempfile::tempdir().unwrap();
    let (mut watched, mut notifications) = (watched(root.path()), notifications());
    let (hierarchy, pod) = (Hierarchy::of_tree(root.path()).unwrap(), root.path().join("pod"));
    let cgroup = Cgroup::open(&hierarchy, &CgroupPath::new("/pod").unwrap()).unwrap();
    (watched.cgroup, watched.listed.is_pod) = (Arc::new(cgroup), true);
    fs::write(pod.join("memory.events.local"), "max 0\n").unwrap();
    notifications.subscribe(&mut watched, Duration::ZERO);
    let mut woken_by = |file: &str| {
        fs::write(pod.join(file), "max 1\n").unwrap();
        notifications.wait(Duration::ZERO).unwrap()
    };
    assert!(woken_by("memory.events").is_empty(), "a container hit its own");
    assert_eq!(woken_by("memory.events.local"), [watched.token]);
}

#[test]
fn refused_notices_are_tried_again_later() {
    let (root, seconds) = (tempfile::tempdir().unwrap(), Duration::from_secs);
    let (mut watched, mut notifications) = (watched(root.path()), notifications());
    let events = root.path().join("pod/app/memory.events");
    fs::remove_file(&events).unwrap();
    notifications.subscribe(&mut watched, seconds(1));
    fs::write(&events, "max 0\n").unwrap();
    let mut is_subscribed = |now: u64| {
        notifications.subscribe(&mut watched, seconds(now));
        watched.subscribed
    };
    assert_eq!([1, 10, 11].map(&mut is_subscribed), [false, false, true]);
}

#[test]
fn page_cache_at_rest_on_v1_is_not_read_again_and_again() {
    let [v1, v2] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for controller in ["cpu", "memory"] {
        fs::create_dir_all(v1.path().join(controller).join("pod/app")).unwrap();
    }
    let pod = v1.path().join("memory/pod");
    let texts = [
        ("app/memory.limit_in_bytes", "16777216\n"),
        ("app/memory.usage_in_bytes", "16777216\n"),
        ("app/memory.stat", "total_inactive_file 12582912\n"),
        ("app/memory.failcnt", "7\n"),
        ("memory.failcnt", "7\n"),
    ];
    for (name, text) in texts {
        fs::write(pod.join(name), text).unwrap();
    }
    let mut watched = watched(v2.path());
    let hierarchy = Hierarchy::of_tree(v1.path()).unwrap();
    let path = CgroupPath::new("/pod/app").unwrap();
    watched.cgroup = Arc::new(Cgroup::open(&hierarchy, &path).unwrap());
    let (ms, of_others) = (Duration::from_millis, Some(64 << 20));
    for (file, at) in [("app/memory.failcnt", 1000), ("memory.failcnt", 2000)] {
        watched.read_usage(|| ms(at), ms(2), false).unwrap();
        watched.latest.of_all = Some(0);
        assert_eq!(watched.next(), ms(at + 20));
        assert!(watched.can_wait(ms(at + 20), of_others, false));
        assert_eq!(watched.next(), ms(at + 40));
        fs::write(pod.join(file), "8\n").unwrap();
        assert!(!watched.can_wait(ms(at + 40), of_others, false));
    }
    watched.read_usage(|| ms(3000), ms(2), false).unwrap();
    watched.latest.of_all = Some(0);
    fs::write(pod.join("app/memory.usage_in_bytes"), "12582912\n").unwrap();
    let may_wait = watched.can_wait(ms(3020), of_others, false);
    assert!(!may_wait, "it may take again what it gave back");
}

#[test]
fn a_limit_for_the_pod_counts_as_used() {
    let root = tempfile::tempdir().unwrap();
    let (mut watched, seconds) = (watched(root.path()), Duration::from_secs);
    watched.lend(Bytes::new(160), seconds(1), seconds(60));
    for (for_pod, expected, now) in [(false, [0, 0], 61), (true, [120, 140], 121)] {
        watched.lent.for_pod = for_pod;
        watched.note_room_of_pod(320, 40);
        let used = watched.end_quiet_time(seconds(now), seconds(60));
        assert_eq!(used, Some(expected.map(Bytes::new)));
    }
}

#[test]
fn another_highest_limit_is_tried_at_once() {
    let root = tempfile::tempdir().unwrap();
    let (mut watched, seconds) = (watched(root.path()), Duration::from_secs);
    assert!(watched.refuse(seconds(1), "ceiling") && !watched.refuse(seconds(2), "ceiling"));
    let terms = watched.listed.terms.clone();
    let higher = Terms {
        memory: Some(Bytes::new(2 << 30)),
        ..terms.clone()
    };
    let paused = Terms {
        not_higher: Some("the API server denies it".to_owned()),
        ..higher.clone()
    };
    for (terms, is_new) in [(terms, false), (higher, true), (paused, true)] {
        watched.due = seconds(90);
        let pod = Arc::clone(&watched.pod);
        watched.set_terms(pod, terms.clone(), None, (seconds(5), seconds(60)));
        assert_eq!(watched.listed.terms, terms);
        assert_eq!(watched.due == seconds(5), is_new);
        assert_eq!(watched.refuse(seconds(5), "ceiling"), is_new, "reported anew");
    }
}

#[test]
fn each_temporary_limit_has_a_quiet_time() {
    let root = tempfile::tempdir().unwrap();
    let (mut watched, seconds) = (watched(root.path()), Duration::from_secs);
    let mut is_over = |lent: Option<u64>, now, later| {
        let (pod, terms) = (Arc::clone(&watched.pod), watched.listed.terms.clone());
        watched.set_terms(pod, terms, lent.map(Bytes::new), (seconds(now), seconds(60)));
        assert_eq!(watched.lent.limit, lent.map(Bytes::new));
        watched.end_quiet_time(seconds(later), seconds(60)).is_some()
    };
    assert!(!is_over(Some(160), 1, 60));
    assert!(is_over(Some(160), 30, 61), "the same limit goes on");
    assert!(!is_over(Some(200), 70, 129) && is_over(Some(200), 129, 130));
    assert!(!is_over(None, 140, 999));
}

#[test]
fn evidence_is_requested_once_for_its_terms() {
    let root = tempfile::tempdir().unwrap();
    let mut watched = watched(root.path());
    let evidence = Some(Bytes::new(64 << 20));
    for requested in [evidence, None, evidence] {
        let (pod, terms) = (Arc::clone(&watched.pod), watched.listed.terms.clone());
        let with = Terms {
            evidence,
            ..terms.clone()
        };
        watched.set_terms(Arc::clone(&pod), with, None, (Duration::ZERO, Duration::ZERO));
        assert_eq!(watched.kept_for_evidence(), requested);
        assert_eq!(watched.request_evidence(), requested);
        if requested.is_none() {
            let without = Terms {
                evidence: None,
                ..terms
            };
            watched.set_terms(pod, without, None, (Duration::ZERO, Duration::ZERO));
        }
    }
}

#[test]
fn a_new_guard_knows_a_limit_for_the_pod() {
    let root = tempfile::tempdir().unwrap();
    let mut watched = watched(root.path());
    let terms = Terms {
        for_pod: true,
        ..watched.listed.terms.clone()
    };
    for (lent, expected) in [(Some(Bytes::new(160)), true), (None, false)] {
        let (pod, times) = (Arc::clone(&watched.pod), (Duration::ZERO, Duration::from_secs(60)));
        watched.set_terms(pod, terms.clone(), lent, times);
        assert_eq!(watched.lent.for_pod, expected);
    }
}

#[test]
fn an_ended_container_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let seconds = Duration::from_secs;
    let mut watched = watched(root.path());
    watched.lend(Bytes::new(1 << 20), seconds(1), seconds(60));
    assert_eq!(watched.next(), seconds(1));
    watched.postpone(seconds(90));
    assert_eq!(watched.next(), seconds(90));
}

#[test]
fn a_limit_that_a_pass_has_raised_meanwhile_is_no_failure() {
    let root = tempfile::tempdir().unwrap();
    let (mut watched, now) = (watched(root.path()), Duration::from_secs(1));
    let failed = Outcome::RolledBack("memory.max: read-only".to_owned());
    assert!(!watched.did_not_grow(now, &Outcome::Unchanged));
    assert!(watched.did_not_grow(now, &failed));
    assert!(!watched.did_not_grow(now, &failed), "it is reported already");
}

#[test]
fn a_container_at_memory_high_grows() {
    let (root, ms) = (tempfile::tempdir().unwrap(), Duration::from_millis);
    let app = root.path().join("pod/app");
    for (high, expected) in [("max", None), ("1024", None), ("3584", Some([4096, 4076, 512]))] {
        let mut watched = watched(root.path());
        fs::write(app.join("memory.high"), format!("{high}\n")).unwrap();
        let readings = [(1000, 3560), (1010, 3564)].map(|(at, used)| {
            fs::write(app.join("memory.current"), format!("{used}\n")).unwrap();
            watched.read_usage(|| ms(at), ms(2), false).unwrap().unwrap()
        });
        let [_, (reading, verdict)] = readings;
        let grows = match verdict {
            Verdict::Grow(need) => Some([need.limit.get(), need.used.get(), reading.above_high]),
            Verdict::Wait(_) => None,
        };
        assert_eq!(grows, expected, "{high}");
        assert_eq!(watched.lent.peak, 3564, "what is above memory.high is not in use");
        assert_eq!(watched.lent.needed, 3564 * 4096 / (4096 - reading.above_high));
    }
}

#[test]
fn page_cache_at_memory_high_grows_nothing() {
    let (root, ms) = (tempfile::tempdir().unwrap(), Duration::from_millis);
    let mut watched = watched(root.path());
    let app = root.path().join("pod/app");
    fs::write(app.join("memory.high"), "3584\n").unwrap();
    for (at, used, cache) in [(1000, 3560, 2048), (1010, 3584, 2070), (1020, 3588, 2072)] {
        fs::write(app.join("memory.current"), format!("{used}\n")).unwrap();
        fs::write(app.join("memory.stat"), format!("inactive_file {cache}\n")).unwrap();
        let (reading, verdict) = watched.read_usage(|| ms(at), ms(2), false).unwrap().unwrap();
        assert!(matches!(verdict, Verdict::Wait(_)), "{verdict:?}");
        let room = reading.limit - reading.used();
        assert_eq!((room, reading.above_high), (3584 + cache - used, 512));
    }
    assert_eq!(watched.lent.peak, 1516);
}

#[test]
fn a_limit_far_above_memory_high_still_comes_down() {
    let root = tempfile::tempdir().unwrap();
    let mut watched = watched(root.path());
    let app = root.path().join("pod/app");
    fs::write(app.join("memory.high"), "3584\n").unwrap();
    fs::write(app.join("memory.current"), "350\n").unwrap();
    let read = watched.read_usage(|| Duration::from_secs(1), Duration::from_millis(2), false);
    assert!(read.unwrap().is_some());
    // The old limit may be less than the part of this one that is above its memory.high.
    assert_eq!((watched.lent.peak, watched.lent.needed), (350, 400));
}

#[test]
fn a_refusal_is_reported_again_after_ten_calm_minutes() {
    let seconds = Duration::from_secs;
    for (second, expected) in [(601, false), (602, true)] {
        let root = tempfile::tempdir().unwrap();
        let mut watched = watched(root.path());
        assert!(watched.refuse(seconds(1), "ceiling"));
        let read = watched.read_usage(|| seconds(second), Duration::from_millis(2), false);
        assert!(matches!(read, Ok(Some((_, Verdict::Wait(_))))), "{read:?}");
        assert_eq!(watched.refuse(seconds(second), "ceiling"), expected, "{second}");
    }
}

#[test]
fn a_memory_high_below_half_is_anothers() {
    let above = |high| above_high(4096, MemoryLimit::Bytes(high));
    assert_eq!([4096, 3584, 2048, 2047].map(above), [0, 512, 2048, 0]);
    assert_eq!(above_high(4096, MemoryLimit::Max), 0);
}

#[test]
fn page_cache_that_grows_meanwhile_is_read_again() {
    // Use, and the page cache of it, at each moment; some other memory stays.
    let cache = [40, 90, 91, 91_u64];
    let read = |limit: u64| {
        let now = std::cell::Cell::new(0);
        let usage = || Reading {
            at: QUICK * u32::try_from(now.get()).unwrap(),
            limit,
            usage: cache[now.get()] + 100,
            above_high: 0,
            reclaimable: None,
        };
        let next = || {
            now.set(now.get() + 1);
            Ok::<_, ()>(Some(usage()))
        };
        let mut repeats = Repeats::new(0, Duration::ZERO);
        let reading = of_one_moment(usage(), &mut repeats, next, || Ok(cache[now.get()])).unwrap();
        (reading.usage, reading.reclaimable)
    };
    assert_eq!(read(1024), (191, Some(90)), "steady at the second reading");
    assert_eq!(read(256 * 60), (190, Some(40)), "so little is no growth");
}

#[test]
fn a_reading_ends_while_use_goes_on_growing() {
    let mut growing = Reading {
        at: Duration::ZERO,
        limit: 100_000,
        usage: 0,
        above_high: 0,
        reclaimable: None,
    };
    let (first, mut repeats) = (growing, Repeats::new(0, Duration::ZERO));
    let grows = || {
        growing.at += QUICK;
        growing.usage += 1000;
        Ok::<_, ()>(Some(growing))
    };
    let expected = Reading {
        at: QUICK * 3,
        usage: 3000,
        reclaimable: Some(7),
        ..first
    };
    assert_eq!(of_one_moment(first, &mut repeats, grows, || Ok(7)), Ok(expected));
    let without_limit = of_one_moment(first, &mut repeats, || Ok::<_, ()>(None), || Ok(7)).unwrap();
    assert_eq!((without_limit.usage, without_limit.reclaimable), (0, Some(7)));
}

/// How often the reclaimable part is read, where the kernel takes so many milliseconds for it and use grows by so much meanwhile.
fn times_read(mut repeats: Repeats, takes: u64, growth: u64) -> u32 {
    let mut reading = Reading {
        at: Duration::ZERO,
        limit: 128 << 20,
        usage: 112 << 20,
        above_high: 0,
        reclaimable: None,
    };
    let (first, mut times) = (reading, 0);
    let next = || {
        reading.at += Duration::from_millis(takes);
        reading.usage += growth;
        Ok::<_, ()>(Some(reading))
    };
    let reclaimable = || {
        times += 1;
        Ok(0)
    };
    of_one_moment(first, &mut repeats, next, reclaimable).unwrap();
    times
}

#[test]
fn fast_growth_leaves_no_time_to_read_again() {
    let with_rate = |rate| Repeats::new(rate, Duration::ZERO);
    assert_eq!(times_read(with_rate(0), 5, 1 << 20), 3, "200 MiB/s, and 16 MiB left");
    assert_eq!(times_read(with_rate(0), 5, 10 << 20), 1, "2000 MiB/s");
    assert_eq!(times_read(with_rate(2 << 30), 5, 1 << 20), 1, "it was as fast before");
}

#[test]
fn a_slow_kernel_is_no_wait() {
    let after = |quickest| Repeats::new(0, Duration::from_millis(quickest));
    assert_eq!(
        [0, 5, 6, 12].map(|before| times_read(after(before), 12, 0)),
        [3, 3, 1, 1]
    );
}

#[test]
fn a_wait_during_a_reading_is_no_rate() {
    let (ms, mib) = (Duration::from_millis, |mebibytes: u64| format!("{}\n", mebibytes << 20));
    // The clock is read before the second reading, before and after its files, and before and after they are read again.
    for waits in 3..=5 {
        let root = tempfile::tempdir().unwrap();
        let mut watched = watched(root.path());
        let write = |name: &str, text: String| fs::write(root.path().join("pod/app").join(name), text).unwrap();
        write("memory.max", mib(8));
        write("memory.current", mib(8));
        write("memory.stat", format!("inactive_file {}", mib(4)));
        watched.read_usage(|| ms(1000), ms(2), false).unwrap();
        let calls = std::cell::Cell::new(0);
        let clock = || {
            calls.set(calls.get() + 1);
            if calls.get() == waits {
                // A process takes a MiB from the page cache in the two seconds for which the thread has to wait.
                write("memory.stat", format!("inactive_file {}", mib(3)));
            }
            ms(if calls.get() < waits { 1010 } else { 3000 })
        };
        let (reading, _) = watched.read_usage(clock, ms(2), false).unwrap().unwrap();
        assert_eq!((reading.at, reading.used()), (ms(3000), 5 << 20), "{waits}");
        assert!(watched.due > reading.at, "{waits}");
        assert_eq!(watched.track.rate(), (1 << 20) / 2, "{waits}");
    }
}

#[test]
fn another_cpu_limit_is_judged_anew() {
    use crate::cgroup::Periods;
    use crate::guard::throttle::{EVERY, ThrottleFinding};
    use crate::guard::watchlist::CpuTerms;
    use crate::model::MilliCpu;
    let (root, quiet) = (tempfile::tempdir().unwrap(), Duration::from_secs(60));
    for (limit, expected) in [
        (1000, ThrottleFinding::Sustained(100)),
        (2000, ThrottleFinding::Nothing),
    ] {
        let mut watched = watched(root.path());
        let with_limit = |watched: &mut Watched, limit| {
            let cpu = CpuTerms {
                limit: MilliCpu::new(limit),
                ceiling: MilliCpu::new(8000),
                lent: false,
            };
            let terms = Terms {
                cpu: Some(cpu),
                ..watched.listed.terms.clone()
            };
            watched.set_terms(Arc::clone(&watched.pod), terms, None, (Duration::ZERO, quiet));
        };
        with_limit(&mut watched, 1000);
        let mut found = ThrottleFinding::Nothing;
        for reading in 0..6 {
            if reading == 5 {
                with_limit(&mut watched, limit);
            }
            let periods = Periods {
                all: u64::from(reading) * 20,
                throttled: u64::from(reading) * 20,
                ..Periods::default()
            };
            found = watched.throttling.observe(EVERY * reading, periods, quiet);
        }
        assert_eq!(found, expected, "{limit}");
    }
}
