//! Changed recommendations go to a share of a workload's pods first.

use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::decide::{CanaryWait, EarlierDecisions, decide_pod};
use crate::model::Reason;

/// [`WEB`] with these annotations on its VPA, and a pod of that UID.
fn canaries(uid: &str, annotations: &str) -> KnownObjects {
    let named = WEB.replace(
        "kind: VerticalPodAutoscaler\nmetadata: {name: web}",
        &format!("kind: VerticalPodAutoscaler\nmetadata: {{name: web, uid: vpa-1, annotations: {{{annotations}}}}}"),
    );
    view(&named.replace("  name: web-0\n", &format!("  name: web-0\n  uid: {uid:?}\n")))
}

const TENTH: &str = "vscaled.io/canary: 10%, vscaled.io/canary-bake: 1h";

fn at(view: &KnownObjects, minutes: i64, waits: Option<&CanaryWait>, trouble: Option<i64>) -> PodDecision {
    let later = |minutes| now() + SignedDuration::from_mins(minutes);
    let known = EarlierDecisions {
        waits,
        trouble: trouble.map(later),
        ..EarlierDecisions::default()
    };
    decide_pod(&view.pods[0], &index(view), later(minutes), &Options::default(), known)
}

fn goes_first(uid: &str, percent: u64) -> bool {
    let view = canaries(uid, &format!("vscaled.io/canary: {percent}%"));
    decide_one(&view).canary.goes_first
}

/// A UID of a pod that goes first at ten percent, or of one that does not.
pub(super) fn uid(first: bool) -> String {
    let mut uids = (0..).map(|number| format!("pod-{number}"));
    uids.find(|uid| goes_first(uid, 10) == first).unwrap()
}

#[test]
fn the_rest_follows_once_the_share_is_well() {
    let first = at(&canaries(&uid(true), TENTH), 0, None, None);
    assert_eq!(
        (first.reason, cpu(&first, "app").as_str()),
        (Reason::OutOfBounds, "200m/600m")
    );
    assert!(
        notes(&first)
            .contains(&"this pod is among the 10% of the VPA's pods that get changed recommendations first".to_owned())
    );

    let view = canaries(&uid(false), TENTH);
    let rest = at(&view, 0, None, None);
    assert_eq!(
        (rest.reason, cpu(&rest, "app").as_str()),
        (Reason::CanaryFirst, "100m/300m")
    );
    assert_eq!(
        notes(&rest),
        [
            "10% of the VPA's pods get the change first; this one gets it at 2026-03-01T13:00:00Z, if none of them on this node is \
             in trouble until then (none has been since 2026-03-01T12:00:00Z)"
        ]
    );
    let waits = rest.canary.waits.as_ref();
    assert_eq!(at(&view, 59, waits, None).reason, Reason::CanaryFirst);
    let baked = at(&view, 60, waits, None);
    assert_eq!(
        (baked.reason, cpu(&baked, "app").as_str()),
        (Reason::OutOfBounds, "200m/600m")
    );
    assert_eq!(baked.next_change(), None);
}

#[test]
fn trouble_of_the_first_restarts_the_wait() {
    let view = canaries(&uid(false), TENTH);
    let waits = at(&view, 0, None, None).canary.waits;
    let later = at(&view, 60, waits.as_ref(), Some(30));
    assert_eq!(later.reason, Reason::CanaryFirst);
    assert_eq!(later.canary.until, Some(now() + SignedDuration::from_mins(90)));
    let waits = later.canary.waits.as_ref();
    assert_eq!(at(&view, 90, waits, Some(30)).reason, Reason::OutOfBounds);
    // Old trouble says nothing about the change, nor does what a clock that is wrong says.
    for trouble in [-600, 600] {
        assert_eq!(
            at(&view, 60, at(&view, 0, None, None).canary.waits.as_ref(), Some(trouble)).reason,
            Reason::OutOfBounds
        );
    }
}

#[test]
fn a_wait_from_the_future_begins_now() {
    let view = canaries(&uid(false), TENTH);
    let future = at(&view, 600, None, None).canary.waits;
    let set_back = at(&view, 0, future.as_ref(), None);
    assert_eq!(set_back.canary.until, Some(now() + SignedDuration::from_hours(1)));
}

#[test]
fn a_change_beyond_the_threshold_waits_anew() {
    let annotated = canaries(&uid(false), TENTH);
    let waits = at(&annotated, 0, None, None).canary.waits;
    let moved = |cpu: &str| {
        let mut view = annotated.clone();
        let vpa = &mut view.vpas[0];
        let recommendation = vpa.status.recommendation.as_mut().unwrap();
        recommendation.container_recommendations[0].target.cpu = Some(cpu.parse().unwrap());
        at(&view, 60, waits.as_ref(), None).reason
    };
    assert_eq!(moved("210m"), Reason::OutOfBounds);
    assert_eq!(moved("219m"), Reason::OutOfBounds);
    assert_eq!(moved("220m"), Reason::CanaryFirst, "ten percent are enough");
    assert_eq!(moved("230m"), Reason::CanaryFirst);
}

#[test]
fn a_wait_takes_a_minute_to_a_week() {
    let uid = uid(false);
    for (bake, minutes) in [
        ("", 30),
        (", vscaled.io/canary-bake: 1m", 1),
        (", vscaled.io/canary-bake: 168h", 168 * 60),
    ] {
        let rest = at(&canaries(&uid, &format!("vscaled.io/canary: 10%{bake}")), 0, None, None);
        let until = now() + SignedDuration::from_mins(minutes);
        assert_eq!(
            (rest.reason, rest.canary.until),
            (Reason::CanaryFirst, Some(until)),
            "{bake}"
        );
    }
}

#[test]
fn a_pod_that_was_just_killed_waits_for_nothing() {
    let mut view = canaries(&uid(false), TENTH);
    let status = "
- name: app
  lastState: {terminated: {reason: OOMKilled, startedAt: '2026-03-01T11:58:00Z', finishedAt: '2026-03-01T11:59:00Z'}}
";
    pod_of(&mut view).status.container_statuses = serde_saphyr::from_str(status).unwrap();
    assert_eq!(decide_one(&view).reason, Reason::QuickOOM);
}

#[test]
fn an_unknown_word_says_what_is_allowed() {
    let bake = "vscaled.io/canary: 10%, vscaled.io/canary-bake";
    for (annotations, complaint) in [
        (
            "vscaled.io/canary: ten",
            "metadata.annotations[vscaled.io/canary]: \"ten\": allowed is 1% to 100%",
        ),
        (
            "vscaled.io/canary: '10'",
            "metadata.annotations[vscaled.io/canary]: \"10\": allowed is 1% to 100%",
        ),
        (
            "vscaled.io/canary: 0%",
            "metadata.annotations[vscaled.io/canary]: \"0%\": allowed is 1% to 100%",
        ),
        (
            "vscaled.io/canary: 101%",
            "metadata.annotations[vscaled.io/canary]: \"101%\": allowed is 1% to 100%",
        ),
        (
            "vscaled.io/canary: +5%",
            "metadata.annotations[vscaled.io/canary]: \"+5%\": allowed is 1% to 100%",
        ),
        (
            &format!("{bake}: 59s"),
            "metadata.annotations[vscaled.io/canary-bake]: \"59s\": allowed is 1m to 168h",
        ),
        (
            &format!("{bake}: 169h"),
            "metadata.annotations[vscaled.io/canary-bake]: \"169h\": allowed is 1m to 168h",
        ),
        (
            &format!("{bake}: -30m"),
            "metadata.annotations[vscaled.io/canary-bake]: \"-30m\": allowed is 1m to 168h",
        ),
        (
            &format!("{bake}: soon"),
            "metadata.annotations[vscaled.io/canary-bake]: \"soon\": allowed is 1m to 168h",
        ),
    ] {
        let decision = decide_one(&canaries("a", annotations));
        assert_eq!(decision.reason, Reason::CanaryUnreadable, "{annotations}");
        assert_eq!(notes(&decision), [format!("VerticalPodAutoscaler web: {complaint}")]);
        assert_eq!(decision.change(), None);
    }
}

#[test]
fn an_unreadable_act_leaves_the_mode() {
    let decision = decide_one(&canaries("a", "vscaled.io/act: 'yes'"));
    assert_eq!(decision.reason, Reason::OutOfBounds);
    let complaint = "VerticalPodAutoscaler web: metadata.annotations[vscaled.io/act]: \"yes\": allowed is true, false or on-trouble; \
        until then the VPA's mode decides";
    assert_eq!(notes(&decision), [complaint]);
    assert_eq!(decision.unreadable().as_deref(), Some(complaint));
}

#[test]
fn agents_of_all_versions_agree_who_goes_first() {
    // The CRC-32 of both UIDs, as a percentage of its range.
    for (uid, percent) in [("a", 86), ("pod-0", 28), ("0a1b2c3d-0000-4000-8000-000000000012", 22)] {
        let shares = [percent - 1, percent].map(|percent| goes_first(uid, percent));
        assert_eq!(shares, [false, true], "{uid}");
    }
}

#[test]
fn about_the_share_goes_first_on_whatever_nodes() {
    for percent in [1, 10, 50, 90] {
        let first = (0..2_000).filter(|number| {
            let uid = format!("{:08x}-58ff-4d36-9d5c-0a6f4c9f2a11", number * 7_919_u32);
            goes_first(&uid, percent)
        });
        let share = first.count() as u64 / 20;
        assert!(share.abs_diff(percent) <= 3, "{share} of {percent} %");
    }
}

proptest! {
    #[test]
    fn who_goes_first_stays_first_in_every_larger_share(uid in "[a-z0-9-]{1,40}", percent in 1_u64..100, more in 1_u64..100) {
        let larger = (percent + more).min(100);
        prop_assert!(!goes_first(&uid, percent) || goes_first(&uid, larger));
        prop_assert!(goes_first(&uid, 100));
    }

    #[test]
    fn no_annotation_does_harm(percent in "\\PC{0,80}", bake in "\\PC{0,80}", uid in "[a-z0-9]{0,8}") {
        let mut view = canaries(&uid, TENTH);
        let annotations = &mut view.vpas[0].metadata.annotations;
        annotations.insert("vscaled.io/canary".to_owned(), percent);
        annotations.insert("vscaled.io/canary-bake".to_owned(), bake);
        let decision = decide_one(&view);
        let allowed = [Reason::OutOfBounds, Reason::CanaryFirst, Reason::CanaryUnreadable];
        prop_assert!(allowed.contains(&decision.reason), "{:?}", decision.reason);
        prop_assert!(notes(&decision).iter().all(|note| note.len() < 1024));
    }
}
