//! Annotations of a VPA about limits, and changes that wait for trouble.

use super::*;
use crate::decide::decide_pod;
use crate::model::Reason;
use crate::model::objects::annotation::{ACT, CANARY, CPU_BURST, CPU_LIMIT, IGNORE, MEMORY_LIMIT};
use jiff::SignedDuration;

fn with(annotations: &[(&str, &str)]) -> KnownObjects {
    annotated(view(WEB), annotations)
}

fn annotated(mut view: KnownObjects, annotations: &[(&str, &str)]) -> KnownObjects {
    let of_vpa = &mut view.vpas[0].metadata.annotations;
    of_vpa.extend(
        annotations
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    view
}

#[test]
fn limits_follow_the_annotations() {
    let decision = decide_one(&with(&[(MEMORY_LIMIT, "request+64Mi"), (CPU_LIMIT, "request*1.5")]));
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("200m/300m".into(), "200Mi/264Mi".into())
    );
    assert_eq!(
        notes(&decision),
        [
            "app: cpu limit becomes 300m: vscaled.io/cpu-limit of the VPA",
            "app: memory limit becomes 264Mi: vscaled.io/memory-limit of the VPA"
        ]
    );
}

#[test]
fn a_kept_limit_bounds_the_request() {
    let decision = decide_one(&with(&[(CPU_LIMIT, "keep"), (MEMORY_LIMIT, "ratio")]));
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("200m/300m".into(), "200Mi/600Mi".into())
    );
    assert_eq!(decision.ceilings[0].limits.cpu, None, "the guard leaves it alone too");
    assert!(decision.ceilings[0].limits.memory.is_some());
}

#[test]
fn a_limit_range_bounds_headroom() {
    let range = "kind: LimitRange\nmetadata: {name: r}\nspec: {limits: [{type: Container, max: {memory: 256Mi}}]}";
    let decision = decide_one(&annotated(web_and(range), &[(MEMORY_LIMIT, "request+64Mi")]));
    assert_eq!(memory(&decision, "app"), "192Mi/256Mi");
}

#[test]
fn a_malformed_limit_annotation_changes_nothing() {
    let decision = decide_one(&with(&[(MEMORY_LIMIT, "request+64MB")]));
    assert_eq!(decision.reason, Reason::LimitUnreadable);
    assert_eq!(
        decision.unreadable().unwrap(),
        "VerticalPodAutoscaler web: metadata.annotations[vscaled.io/memory-limit]: \"request+64MB\": allowed is ratio, keep, \
         request+AMOUNT (such as request+256Mi), or request*FACTOR with 1 to 100"
    );
}

#[test]
fn changes_wait_for_trouble() {
    let quiet = with(&[(ACT, "on-trouble")]);
    let reason = |view: &KnownObjects, own_trouble| {
        let known = EarlierDecisions {
            own_trouble,
            ..EarlierDecisions::default()
        };
        decide_pod(&view.pods[0], &index(view), now(), &Options::default(), known).reason
    };
    let ago = |minutes| Some(now() - SignedDuration::from_mins(minutes));
    assert_eq!(reason(&quiet, None), Reason::NoTrouble);
    assert_eq!(reason(&quiet, ago(59)), Reason::OutOfBounds);
    assert_eq!(reason(&quiet, ago(60)), Reason::NoTrouble);
    assert_eq!(reason(&quiet, ago(0)), Reason::OutOfBounds);
    assert_eq!(reason(&quiet, ago(-5)), Reason::NoTrouble, "a clock was set back");
    let end = "containerStatuses: [{name: app, lastState: {terminated: {reason: OOMKilled, finishedAt: '2026-03-01T11:30:00Z'}}}]";
    let killed = view(&WEB.replace("startTime:", &format!("{end}, startTime:")));
    assert_eq!(
        reason(&annotated(killed, &[(ACT, "on-trouble")]), None),
        Reason::OutOfBounds
    );
    let failed = view(&WEB.replace(
        "startTime:",
        &format!("{}, startTime:", end.replace("OOMKilled", "Error")),
    ));
    assert_eq!(
        reason(&annotated(failed, &[(ACT, "on-trouble")]), None),
        Reason::NoTrouble
    );
}

/// The burst that a pod gets, with the decision, where one is configured and the pod has one already.
fn burst(view: &KnownObjects, configured: Option<&str>, known: Option<&str>) -> (Option<String>, PodDecision) {
    let read = |text: Option<&str>| text.map(|text| text.parse().unwrap());
    let options = Options {
        burst: read(configured),
        ..Options::default()
    };
    let known = EarlierDecisions {
        burst: read(known),
        ..EarlierDecisions::default()
    };
    let decision = decide_pod(&view.pods[0], &index(view), now(), &options, known);
    (decision.burst.map(|burst| burst.to_string()), decision)
}

#[test]
fn an_annotated_burst_precedes_the_configured() {
    let of = |view: &KnownObjects, configured, known| burst(view, configured, known).0;
    let (half, plain) = (with(&[(CPU_BURST, "50%")]), view(WEB));
    assert_eq!(of(&half, Some("20%"), Some("10%")).as_deref(), Some("50%"));
    assert_eq!(of(&plain, Some("20%"), None).as_deref(), Some("20%"));
    assert_eq!(of(&plain, None, None), None, "left alone");
    assert_eq!(of(&plain, None, Some("50%")).as_deref(), Some("0%"), "taken back");
    for left in [with(&[(CPU_BURST, "50%"), (ACT, "false")]), view("")] {
        let pods = plain.pods.clone();
        let left = KnownObjects { pods, ..left };
        assert_eq!(of(&left, Some("20%"), None), None, "no VPA that is followed");
        assert_eq!(of(&left, Some("20%"), Some("50%")).as_deref(), Some("0%"));
    }
    let mut ignored = half.clone();
    let pod = Arc::make_mut(&mut ignored.pods[0]);
    pod.metadata.annotations.insert(IGNORE.to_owned(), "true".to_owned());
    assert_eq!(of(&ignored, None, Some("50%")).as_deref(), Some("0%"));
}

#[test]
fn a_malformed_burst_ends_as_a_malformed_canary() {
    for malformed in ["50", "101%", "+5%", "", "-1%", "5 %", "50.5%"] {
        let (kept, decision) = burst(&with(&[(CPU_BURST, malformed)]), Some("20%"), Some("10%"));
        assert_eq!(
            (kept.as_deref(), decision.reason),
            (Some("10%"), Reason::BurstUnreadable)
        );
        assert_eq!(decision.change(), None);
        let words = format!("[vscaled.io/cpu-burst]: {malformed:?}: allowed is 0% to 100%");
        assert!(decision.unreadable().unwrap().ends_with(&words));
    }
    let malformed = [(CPU_BURST, "50"), (CANARY, "100%")];
    let decision = decide_one(&with(&malformed));
    assert_eq!(decision.reason, Reason::BurstUnreadable, "canaries go no further");
    // A container that was just killed waits for no annotation.
    let end = "{reason: OOMKilled, startedAt: '2026-03-01T11:58:00Z', finishedAt: '2026-03-01T11:59:00Z'}";
    let status = format!("containerStatuses: [{{name: app, lastState: {{terminated: {end}}}}}], startTime:");
    let killed = view(&WEB.replace("startTime:", &status));
    let reasons = [CPU_BURST, CANARY].map(|name| decide_one(&annotated(killed.clone(), &[(name, "50")])).reason);
    assert_eq!(reasons, [Reason::QuickOOM; 2]);
}
