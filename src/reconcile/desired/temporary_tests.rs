use proptest::prelude::*;

use super::temporary::FREE_PART;
use super::*;
use crate::model::Bytes;

const MIB: u64 = 1 << 20;

fn pod() -> Pod {
    tests::pod_with("{name: same, resources: {requests: {memory: 64Mi}, limits: {memory: 64Mi}}}")
}

fn grown(container: &str, from: u64, to: u64) -> TemporaryLimit {
    let limits = (from * MIB, to * MIB);
    TemporaryLimit::given(
        container.to_owned(),
        Resource::Memory,
        limits,
        String::new(),
        Timestamp::UNIX_EPOCH,
    )
}

fn memory_limits(desired: &DesiredState, pod: &Pod) -> Vec<Option<u64>> {
    let targets = desired.targets(pod).unwrap();
    targets
        .iter()
        .map(|(_, target)| target.limits.memory.map(|limit| limit.get() / MIB))
        .collect()
}

#[test]
fn a_temporary_limit_ends_in_the_spec() {
    let pod = pod();
    let mut desired = DesiredState::default();
    desired.grow(grown("app", 128, 200));
    desired.grow(grown("app", 200, 400));
    assert_eq!(memory_limits(&desired, &pod), [Some(400), Some(64)]);
    assert_eq!(desired.temporary.len(), 1);
    assert_eq!(desired.temporary[0].from, 128 * MIB, "where it began");
    desired.end_temporary(|limit| limit.is_of("app", Resource::Memory));
    assert!(desired.returning);
    assert_eq!(desired.targets(&pod), Some(pod.requirements()));
}

#[test]
fn a_request_that_equals_its_limit_follows_it() {
    let pod = pod();
    let mut desired = DesiredState::default();
    desired.grow(grown("same", 64, 100));
    let same = desired.targets(&pod).unwrap().containers.remove(1);
    assert_eq!(same.resources.requests.memory, Some(Bytes::new(100 * MIB)));
    assert_eq!(same.resources.limits.memory, Some(Bytes::new(100 * MIB)));
}

#[test]
fn a_higher_recommendation_ends_the_growth() {
    let pod = pod();
    let mut targets = pod.requirements();
    let mut desired = DesiredState::default();
    desired.grow(grown("app", 128, 200));
    for (limit, ended) in [(199, 0), (200, 1)] {
        targets.containers[0].resources.limits.memory = Some(Bytes::new(limit * MIB));
        desired.recommended = Some(Recommended {
            vpa: Some("web".to_owned()),
            at: Timestamp::UNIX_EPOCH,
            targets: targets.clone(),
            in_force: InForce::default(),
        });
        assert_eq!(desired.end_overtaken(&pod).len(), ended, "{limit}");
        assert_eq!(memory_limits(&desired, &pod)[0], Some(200));
        assert_eq!(desired.returning, ended > 0, "the recommendation may end first");
    }
}

#[test]
fn what_an_operator_sets_is_the_operators() {
    let pod = pod();
    let mut desired = DesiredState::default();
    desired.grow(grown("app", 128, 400));
    desired.grow(grown("same", 64, 100));
    let by_hand = Override::by_root(tests::values("app", r#"{"limits":{"memory":"256Mi"}}"#));
    desired.set_override(&pod, by_hand, PageSize::KIB_4).unwrap();
    assert_eq!(memory_limits(&desired, &pod), [Some(256), Some(100)]);
    assert!(desired.is_overridden("app", Resource::Memory));
    assert!(!desired.is_overridden("app", Resource::Cpu) && !desired.is_overridden("same", Resource::Memory));
}

#[test]
fn an_avoided_kill_counts_once() {
    let mut desired = DesiredState::default();
    assert!(desired.used("app", 200 * MIB).is_none(), "nothing was lent");
    desired.grow(grown("app", 128, 256));
    assert!(
        desired.used("app", 128 * MIB).is_none(),
        "it fits below the limit that was there before"
    );
    assert!(desired.used("same", 200 * MIB).is_none());
    assert!(desired.used("app", 200 * MIB).is_some());
    desired.grow(grown("app", 256, 512));
    assert!(desired.used("app", 400 * MIB).is_none(), "it is the same loan");
    desired.end_temporary(|_| true);
    desired.grow(grown("app", 128, 256));
    assert!(desired.used("app", 200 * MIB).is_some());
}

#[test]
fn a_quiet_time_leaves_whole_mebibytes() {
    let (pod, now) = (pod(), Timestamp::from_second(9).unwrap());
    let mut desired = DesiredState::default();
    desired.grow(grown("app", 128, 1000));
    let mut lowers = |needed| {
        let lowers = desired.lower_quiet(&pod, "app", Bytes::new(needed), now).is_some();
        let limit = desired.temporary_limit("app", Resource::Memory);
        (lowers, limit.map(|limit| (limit.to, limit.renewed)))
    };
    // 300 MiB are seven eighths of 342.9 MiB.
    let kept = Some((343 * MIB, now));
    assert_eq!(lowers(300 * MIB), (true, kept));
    assert_eq!(lowers(250 * MIB), (false, kept), "that would free too little");
    assert_eq!(lowers(100 * MIB), (true, None), "it fits without");
}

#[test]
fn a_denied_cpu_limit_ends_at_once() {
    let (pod, now, quiet) = (pod(), Timestamp::UNIX_EPOCH, SignedDuration::from_mins(10));
    let mut desired = DesiredState::default();
    desired.grow(grown("app", 128, 200));
    desired.grow(grown("same", 64, 100));
    let (app, why) = ("app".to_owned(), String::new());
    desired.grow(TemporaryLimit::given(app, Resource::Cpu, (200, 400), why, now));
    // The guard has given one of the limits since the patch.
    let mut asked = desired.targets(&pod).unwrap();
    asked.containers[1].resources.limits.memory = Some(Bytes::new(99 * MIB));
    let denied = desired.deny(&pod, Some(&asked), "a quota", now, quiet);
    let ends = |limit: &TemporaryLimit| (limit.resource, limit.denied.as_ref().unwrap().ends);
    let later = now.checked_add(quiet).unwrap();
    let expected = [(Resource::Memory, later), (Resource::Cpu, now)];
    assert_eq!(denied.iter().map(ends).collect::<Vec<_>>(), expected);
    assert_eq!(desired.next_end(), Some(now));
    assert_eq!(desired.deny(&pod, Some(&asked), "a quota", later, quiet), [], "known");
    assert_eq!(desired.accept(&asked), ["app", "app"]);
    assert_eq!(desired.next_end(), None);
}

#[test]
fn a_failed_override_brings_temporary_limits_back() {
    let pod = pod();
    let mut desired = DesiredState::default();
    desired.grow(grown("app", 128, 400));
    desired.grow(grown("same", 64, 100));
    let before = desired.clone();
    let wanted = Override::by_root(tests::values("app", r#"{"limits":{"memory":"256Mi"}}"#));
    desired.set_override(&pod, wanted, PageSize::KIB_4).unwrap();
    // The guard grows the other limit during the pass.
    desired.grow(grown("same", 100, 150));
    desired.undo_override(before, false);
    assert_eq!(memory_limits(&desired, &pod), [Some(400), Some(150)]);
    assert!(!desired.is_overridden("app", Resource::Memory));
}

#[test]
fn a_grown_limit_is_renewed() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut desired = DesiredState::default();
    for (second, to, for_pod) in [(1, 200, true), (5, 300, false)] {
        let why = to.to_string();
        let given = TemporaryLimit {
            for_pod,
            ..TemporaryLimit::given("app".to_owned(), Resource::Memory, (128, to), why, at(second))
        };
        desired.grow(given);
    }
    let limit = desired.temporary_limit("app", Resource::Memory).unwrap();
    assert_eq!(
        (limit.since, limit.renewed, limit.until(SignedDuration::from_secs(2))),
        (at(1), at(5), at(7))
    );
    assert_eq!((limit.to, limit.why.as_str(), limit.for_pod), (300, "300", true));
    let cpu = TemporaryLimit::given("same".to_owned(), Resource::Cpu, (1, 2), String::new(), at(1));
    desired.grow(cpu);
    assert_eq!(desired.memory_limits().collect::<Vec<_>>(), [("app", Bytes::new(300))]);
}

#[test]
fn only_the_unused_limit_of_a_hook_comes_down() {
    let now = Timestamp::from_second(9).unwrap();
    for (from, lent, lowers, left) in [
        (128, (128, 160), true, None),
        (128, (144, 160), true, Some(144)),
        (128, (128, 144), false, Some(160)),
        (128, (160, 160), false, Some(160)),
    ] {
        let mut desired = DesiredState::default();
        desired.grow(grown("app", from, 160));
        let limits = (lent.0 * MIB, lent.1 * MIB);
        assert_eq!(desired.lower_unused("app", limits, now).is_some(), lowers, "{lent:?}");
        let limit = desired.temporary_limit("app", Resource::Memory);
        assert_eq!(limit.map(|limit| limit.to / MIB), left, "{lent:?}");
        assert_eq!(desired.returning, left.is_none(), "{lent:?}");
    }
}

#[test]
fn a_limit_that_the_spec_has_is_not_denied() {
    let (pod, now, quiet) = (pod(), Timestamp::UNIX_EPOCH, SignedDuration::from_mins(10));
    for (to, is_denied) in [(128, false), (129, true)] {
        let mut desired = DesiredState::default();
        desired.grow(grown("app", 64, to));
        let denied = desired.deny(&pod, None, "a quota", now, quiet);
        assert_eq!(denied.len(), usize::from(is_denied), "{to}");
        let sentences = denied.iter().filter_map(TemporaryLimit::denied_detail);
        let said: Vec<_> = sentences.collect();
        let ends = "the temporary memory limit of container app ends at 1970-01-01T00:10:00Z";
        assert!(said.iter().all(|sentence| sentence == ends), "{said:?}");
    }
}

#[test]
fn a_restored_limit_is_the_higher_one() {
    for (since, left) in [(150, 200), (200, 200), (250, 250)] {
        let mut desired = DesiredState::default();
        desired.grow(grown("app", 128, since));
        desired.restore_temporary(vec![grown("app", 128, 200), grown("same", 64, 100)]);
        let limits: Vec<u64> = desired.temporary.iter().map(|limit| limit.to / MIB).collect();
        assert_eq!(limits, [left, 100]);
    }
}

fn limit(to: u64) -> TemporaryLimit {
    TemporaryLimit {
        container: "app".to_owned(),
        resource: Resource::Memory,
        from: 128,
        to,
        since: Timestamp::UNIX_EPOCH,
        renewed: Timestamp::UNIX_EPOCH,
        why: String::new(),
        for_pod: false,
        exceeded: false,
        denied: None,
    }
}

#[test]
fn a_burst_that_is_over_gives_everything_back() {
    assert_eq!(limit(2048).after_quiet(1280, 1000), Some(1280));
}

#[test]
fn a_burst_that_stays_keeps_what_it_needs() {
    assert_eq!(limit(2048).after_quiet(128, 700), Some(801));
    assert_eq!(limit(2048).after_quiet(128, 1600), None);
}

proptest! {
    #[test]
    fn what_was_used_always_fits_with_room_to_spare(
        to in 1_u64..(1 << 50), base in 0_u64..(1 << 50), peak in 0_u64..(1 << 50),
    ) {
        let Some(after) = limit(to).after_quiet(base, peak) else {
            return Ok(());
        };
        prop_assert!(after == base || after < to);
        prop_assert!(after > peak && after - peak >= peak / FREE_PART);
    }
}
