//! When passes begin, and what becomes of those that wait.

use super::*;

#[test]
fn what_holds_is_looked_after_while_it_waits_and_what_failed_is_not() {
    let pod = Arc::new(Pod::default());
    let mut entry = Entry::new(Arc::clone(&pod), PodDecision::undecided(&pod));
    assert!(!entry.is_looked_after(), "nothing stands");
    entry.standing.returning = true;
    assert!(entry.is_looked_after());
    entry.back_off(Instant::now(), None);
    assert!(!entry.is_looked_after(), "it failed, and is tried again later");
    entry.holds = true;
    assert!(entry.is_looked_after(), "the API server is to be asked later");
}

#[test]
fn whoever_waits_for_a_pod_is_told_when_another_takes_its_name() {
    let pod = Arc::new(Pod::default());
    let mut entry = Entry::new(Arc::clone(&pod), PodDecision::undecided(&pod));
    let id = |uid: &str| PodId {
        uid: uid.to_owned(),
        namespace: "shop".to_owned(),
        name: "db-0".to_owned(),
    };
    assert!(!entry.settle_at(&id("u1")));
    let before = Some(ByHand {
        returning: true,
        ..ByHand::of(&entry)
    });
    let (reply, mut answer) = tokio::sync::oneshot::channel();
    entry.work.waiter = Some(Waiter { reply, before });
    assert!(!entry.settle_at(&id("u1")) && entry.work.waiter.is_some());
    assert!(entry.settle_at(&id("u2")));
    assert!(matches!(answer.try_recv(), Ok(Err(_))), "it would wait for ever");
    assert!(entry.standing.is_empty(), "what stood for the earlier one came back");
}

#[test]
fn a_first_action_waits_for_its_place_and_nothing_urgent_waits_with_it() {
    let pod = Arc::new(Pod::default());
    let recommended = || Cause::Recommendation {
        vpa: "web".to_owned(),
        resource_version: "7".to_owned(),
        reason: crate::model::Reason::NoVpa,
    };
    let not_before = |causes: &[Cause]| {
        let mut entry = Entry::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        entry.ask_after(recommended(), Duration::from_secs(20));
        for cause in causes {
            entry.ask(cause.clone(), false);
        }
        entry.work.pending.unwrap().not_before
    };
    let waits = not_before(&[]).unwrap().duration_since(Instant::now());
    assert!(waits > Duration::from_secs(19), "{waits:?}");
    assert!(not_before(&[Cause::Drift, Cause::Sweep, Cause::Kubelet]).is_some());
    let operator = Cause::Operator {
        uid: 0,
        pid: 1,
        reason: String::new(),
    };
    for urgent in [operator, Cause::ContainerStarted, Cause::Regret { why: String::new() }] {
        assert_eq!(not_before(&[urgent]), None);
    }
    let mut entry = Entry::new(Arc::clone(&pod), PodDecision::undecided(&pod));
    entry.ask(Cause::ContainerStarted, true);
    entry.ask_after(recommended(), Duration::from_secs(20));
    assert_eq!(entry.work.pending.unwrap().not_before, None, "it was to begin at once");
}

#[test]
fn agents_whose_passes_fail_together_do_not_try_again_together() {
    let waits = (0..50).map(|_| {
        let pod = Arc::new(Pod::default());
        let mut entry = Entry::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        entry.back_off(Instant::now(), Some(Duration::from_secs(7)))
    });
    let waits: std::collections::BTreeSet<_> = waits.collect();
    assert!(
        waits.len() > 40 && waits.iter().all(|wait| *wait > Duration::from_secs(7)),
        "{waits:?}"
    );
}
