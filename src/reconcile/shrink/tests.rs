use super::*;
use crate::model::objects::PodId;
use crate::model::{Bytes, CgroupPath, MemoryLimit};
use crate::plan::shrink::{Before, Holds, UsageHistory};

const BEFORE: MemoryLimit = MemoryLimit::Bytes(200 << 20);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn container(name: &str) -> Target {
    Target::Container(name.into())
}

/// A pod whose limits came down a moment ago, in the pass of that number.
fn lowered(number: u64, targets: &[Target]) -> ShrinkState {
    let lowering = |target: &Target| Lowering {
        target: target.clone(),
        from: BEFORE,
        to: Bytes::new(100 << 20),
        before: Before::of_test(),
    };
    ShrinkState {
        recent: targets.iter().map(lowering).collect(),
        watched: Some(number),
        ..ShrinkState::default()
    }
}

/// The report of the pass that lowered these limits.
fn report_of(lowered: &ShrinkState) -> ShrinkReport {
    ShrinkReport {
        touched: lowered.recent.iter().map(|lowering| lowering.target.clone()).collect(),
        lowered: lowered.recent.clone(),
        ..ShrinkReport::default()
    }
}

#[test]
fn what_came_down_goes_up_together() {
    let mut shrink_state = lowered(7, &[container("app"), container("side"), Target::Pod]);
    let trouble = Verdict::Trouble(container("app"), Trouble::Killed(1));
    let Some(Err(why)) = shrink_state.watch_ended(7, trouble, at(0)) else {
        panic!("nothing was undone");
    };
    assert_eq!(why, "container app: 1 processes were OOM killed");
    let holds = shrink_state.backoffs.holds(at(1));
    assert_eq!(holds.len(), 3);
    assert!(holds.values().all(|limit| *limit == BEFORE));
    assert_eq!(shrink_state.retry_at, Some(at(120)));
    assert!(!shrink_state.take_due(at(119)));
    assert!(shrink_state.take_due(at(120)) && !shrink_state.take_due(at(121)));
    assert!(shrink_state.backoffs.holds(at(120)).is_empty());
}

#[test]
fn an_undone_shrink_is_tried_again_in_a_turn() {
    let mut shrink_state = lowered(7, &[container("app")]);
    let trouble = || Verdict::Trouble(container("app"), Trouble::Killed(1));
    assert!(shrink_state.watch_ended(7, trouble(), at(0)).is_some());
    assert!(shrink_state.take_due(at(120)));
    assert_eq!(
        shrink_state.progress(at(121)),
        Some(Progress::Undone),
        "other pods of the workload wait for the result"
    );
    shrink_state.pass_ended(report_of(&lowered(8, &[container("app")])), 8);
    assert_eq!(shrink_state.progress(at(150)), Some(Progress::Undone));
    assert_eq!(shrink_state.watch_ended(8, Verdict::Kept, at(181)), Some(Ok(())));
    assert_eq!(shrink_state.progress(at(182)), None);
}

#[test]
fn a_cgroups_history_ends_with_its_limit() {
    let seen = [container("app"), container("side"), Target::Pod].map(|target| (target, UsageHistory::default()));
    let mut shrink_state = ShrinkState::default();
    let tried = ShrinkReport {
        seen: seen.into(),
        ..ShrinkReport::default()
    };
    shrink_state.pass_ended(tried, 1);
    assert_eq!(shrink_state.seen.len(), 3, "refused: every try adds to it");
    let grown = ShrinkReport {
        touched: vec![container("app"), Target::Pod],
        ..ShrinkReport::default()
    };
    shrink_state.pass_ended(grown, 2);
    let left: Vec<&Target> = shrink_state.seen.keys().collect();
    assert_eq!(left, [&container("side")]);
}

#[test]
fn an_overtaken_watch_says_nothing() {
    let mut shrink_state = lowered(8, &[container("app")]);
    let trouble = Verdict::Trouble(container("app"), Trouble::Killed(1));
    assert_eq!(shrink_state.watch_ended(7, trouble.clone(), at(0)), None);
    assert!(shrink_state.watch_ended(8, trouble, at(0)).is_some());
    assert_eq!(
        shrink_state.watch_ended(8, Verdict::Kept, at(1)),
        None,
        "it ended already"
    );
}

#[test]
fn a_kill_of_the_watched_is_blamed_once() {
    let mut shrink_state = lowered(8, &[container("app"), Target::Pod]);
    shrink_state.live_changed(None, None);
    assert!(matches!(
        shrink_state.killed(&container("app"), at(0)),
        Some(Err(why)) if why.starts_with("container app: 1 processes were OOM killed")
    ));
    assert_eq!(
        (shrink_state.backoffs.holds(at(1)).len(), shrink_state.retry_at),
        (2, Some(at(120)))
    );
    assert_eq!(shrink_state.killed(&container("app"), at(1)), None, "it was told twice");
}

#[test]
fn a_kill_blames_no_finished_shrink() {
    let trouble = Verdict::Trouble(container("app"), Trouble::Killed(1));
    for verdict in [trouble, Verdict::Kept] {
        let mut shrink_state = lowered(8, &[container("app")]);
        assert!(shrink_state.watch_ended(8, verdict, at(0)).is_some());
        assert_eq!(shrink_state.killed(&container("app"), at(1)), None);
    }
}

#[test]
fn a_good_shrink_forgives_earlier_ones() {
    let mut shrink_state = lowered(1, &[container("app")]);
    let mut regrets = FailedShrinks::default();
    regrets.note(&container("app"), BEFORE, "it hurt", at(-1000));
    regrets.note(&container("side"), BEFORE, "it hurt", at(-1000));
    shrink_state.restore(regrets, at(0));
    assert_eq!(shrink_state.watch_ended(1, Verdict::Kept, at(60)), Some(Ok(())));
    let mut left = FailedShrinks::default();
    left.note(&container("side"), BEFORE, "it hurt", at(-1000));
    assert_eq!(shrink_state.backoffs, left);
}

#[test]
fn an_operators_word_ends_what_is_kept() {
    let mut shrink_state = ShrinkState::default();
    let mut regrets = FailedShrinks::default();
    regrets.note(&container("app"), BEFORE, "it hurt", at(0));
    shrink_state.restore(regrets, at(1));
    assert_eq!(
        (shrink_state.backoffs.holds(at(1)).len(), shrink_state.retry_at),
        (1, Some(at(120)))
    );
    let mut forgotten = shrink_state.clone();
    assert_eq!(forgotten.forget_all(), shrink_state.backoffs);
    assert!(forgotten.backoffs.is_empty() && forgotten.retry_at.is_none());
    shrink_state.restore(FailedShrinks::default(), at(1));
    assert_eq!(
        (shrink_state.backoffs.holds(at(1)).len(), shrink_state.retry_at),
        (0, None)
    );
}

#[test]
fn a_put_off_limit_waits_for_its_turn() {
    let mut shrink_state = ShrinkState::default();
    assert_eq!(shrink_state.progress(at(0)), None);
    shrink_state.backoffs.put_off(&[(container("app"), BEFORE)], at(0));
    assert_eq!(shrink_state.progress(at(1)), Some(Progress::Waits));
    assert_eq!(
        shrink_state.backoffs.holds(at(1)),
        Holds::from([(container("app"), BEFORE)])
    );
    assert!(shrink_state.backoffs.next(at(1)).is_none(), "nothing was refused");
    shrink_state.begin_turn(at(2));
    assert_eq!(shrink_state.progress(at(2)), Some(Progress::Tried));
    assert_eq!(shrink_state.backoffs.holds(at(2)), Holds::new());
    let mut tried = lowered(7, &[container("app")]);
    tried.begin_turn(at(2));
    tried.end_turn_unless_watched();
    assert_eq!(tried.progress(at(3)), Some(Progress::Tried), "it is watched");
    assert!(tried.killed(&container("app"), at(4)).is_some());
    assert_eq!(tried.progress(at(5)), Some(Progress::Undone));
    // Another recommendation: what is left alone stays so for as long as before.
    tried.backoffs.put_off(&[(container("app"), BEFORE)], at(6));
    assert_eq!(tried.retry_at, Some(at(124)));
    assert_eq!(
        tried.progress(at(125)),
        Some(Progress::Waits),
        "then it needs a turn again"
    );
    tried.backoffs.put_off(&[(container("app"), BEFORE)], at(126));
    tried.begin_turn(at(127));
    assert_eq!(tried.backoffs.next(at(127)), None);
}

#[test]
fn a_limit_of_zero_is_the_highest() {
    let limited = |memory: &str| -> PodAmounts {
        serde_json::from_str(&format!(r#"[{{"name":"app","limits":{{"memory":"{memory}"}}}}]"#)).unwrap()
    };
    let waits = |before: &str, after: &str| {
        let mut shrink_state = ShrinkState::default();
        shrink_state.put_off(&limited(before), &limited(after), at(0));
        shrink_state.backoffs.holds(at(1))
    };
    let unbounded = Holds::from([(container("app"), MemoryLimit::Max)]);
    assert_eq!(waits("0", "128Mi"), unbounded);
    assert_eq!(waits("128Mi", "0"), Holds::new());
}

/// The kubelet raised the limit in between, so the watch of the earlier shrink still runs.
#[test]
fn a_good_end_of_an_earlier_shrink_ends_no_wait() {
    let mut shrink_state = lowered(7, &[container("app")]);
    shrink_state.backoffs.put_off(&[(container("app"), BEFORE)], at(0));
    assert_eq!(shrink_state.watch_ended(7, Verdict::Kept, at(60)), Some(Ok(())));
    assert_eq!(shrink_state.progress(at(61)), Some(Progress::Waits));
    assert_eq!(shrink_state.backoffs.holds(at(61)).len(), 1);
    shrink_state.begin_turn(at(62));
    assert!(shrink_state.backoffs.is_empty());
}

#[test]
fn a_turn_ends_without_a_lowered_limit() {
    let mut shrink_state = ShrinkState::default();
    shrink_state.begin_turn(at(0));
    assert_eq!(shrink_state.progress(at(299)), Some(Progress::Tried));
    assert_eq!(shrink_state.progress(at(300)), None);
    shrink_state.end_turn_unless_watched();
    assert_eq!(shrink_state.progress(at(1)), None);
}

#[test]
fn shrinks_of_several_passes_are_watched_together() {
    let watched = |state: &ShrinkState| {
        let (number, lowered) = state.watch()?;
        let targets = lowered.iter().map(|lowering| lowering.target.clone());
        Some((number, targets.collect::<Vec<_>>()))
    };
    let [app, side] = ["app", "side"].map(container);
    let mut shrink_state = lowered(7, std::slice::from_ref(&app));
    shrink_state.pass_ended(report_of(&lowered(8, std::slice::from_ref(&side))), 8);
    assert_eq!(watched(&shrink_state), Some((8, vec![app.clone(), side.clone()])));
    let raised = ShrinkReport {
        touched: vec![app.clone()],
        ..ShrinkReport::default()
    };
    shrink_state.pass_ended(raised, 9);
    assert_eq!(watched(&shrink_state), Some((9, vec![side.clone()])));
    assert_eq!(shrink_state.watch_ended(9, Verdict::Gone, at(0)), None);
    assert_eq!(watched(&shrink_state), None);
    // The container was killed, and the report comes now.
    assert!(shrink_state.clone().killed(&side, at(1)).is_some());
    shrink_state.pass_ended(report_of(&lowered(10, std::slice::from_ref(&app))), 10);
    assert_eq!(watched(&shrink_state), Some((10, vec![app])), "a new watch");
}

#[test]
fn a_watch_ends_with_the_cgroup_of_its_pod() {
    let live = |uid: &str, path: &str| LivePod {
        id: PodId {
            uid: uid.into(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        },
        path: CgroupPath::new(path).unwrap(),
        containers: <_>::default(),
    };
    let known = live("u1", "/kubepods/podu1");
    for (next, lasts) in [
        (Some(known.clone()), true),
        (Some(live("u1", "/kubepods/burstable/podu1")), false),
        (Some(live("u2", "/kubepods/podu1")), false),
        (None, false),
    ] {
        let mut shrink_state = lowered(7, &[container("app")]);
        shrink_state.seen = [(container("app"), UsageHistory::default())].into();
        shrink_state.live_changed(Some(&known), next.as_ref());
        assert_eq!(shrink_state.watch().is_some(), lasts, "{next:?}");
        assert!(shrink_state.seen.is_empty());
    }
}

#[test]
fn each_date_of_a_shrink_follows_the_clock() {
    let mut shrink_state = ShrinkState::default();
    let mut failed = FailedShrinks::default();
    failed.note(&container("app"), BEFORE, "it hurt", at(0));
    shrink_state.restore(failed, at(0));
    shrink_state.begin_turn(at(0));
    for date in shrink_state.dates() {
        *date = date.checked_add(SignedDuration::from_hours(1)).unwrap();
    }
    assert_eq!(
        (shrink_state.retry_at, shrink_state.turn),
        (Some(at(3720)), Some(at(3600)))
    );
    let until = shrink_state.backoffs.next(at(3600)).map(|failed| failed.until);
    assert_eq!(until, Some(at(3720)));
}
