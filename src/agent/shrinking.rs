//! What the coordinator knows about one pod's lower memory limits: which are watched, which were undone, what was seen.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::coordinator::Event;
use crate::actuate::Node;
use crate::actuate::shrink::{Lowering, SeenBefore, ShrinkReport, Verdict, watch};
use crate::model::{LivePod, MemoryLimit, Target};
use crate::plan::shrink::{Holds, Progress, Regret, Regrets, Trouble};

/// A pod whose turn it is and that has nothing to show for so long keeps others of its workload waiting no more.
const LONGEST_TURN: SignedDuration = SignedDuration::from_mins(5);

/// The part of an entry that is about lower memory limits.
#[derive(Debug, Default)]
pub(super) struct Shrinking {
    /// What earlier tries have seen.
    pub(super) seen: SeenBefore,
    regrets: Regrets,
    /// When a shrink that was undone is to be tried again.
    again: Option<Timestamp>,
    watched: Option<Watched>,
    /// Since when it is the pod's turn, until its limits were lowered and watched.
    turn: Option<Timestamp>,
    /// What was lowered last and neither kept nor undone since. It outlasts its watch: whoever is killed for it may take with
    /// it what was watched, and is told of later.
    lately: Vec<Lowering>,
}

/// The watch of what was lowered lately.
#[derive(Debug)]
struct Watched {
    number: u64,
    /// Ends with this value.
    _task: AbortOnDropHandle<()>,
}

/// Which watch told something.
#[derive(Debug, Clone)]
pub(super) struct WatchId {
    /// The pod's entry.
    pub(super) key: String,
    /// The pass that began it: there may be a later one.
    pub(super) number: u64,
}

impl Shrinking {
    /// Takes in what a pass did, and watches what it lowered, together with what is watched already.
    pub(super) fn passed(
        &mut self,
        report: ShrinkReport,
        id: WatchId,
        node: Arc<Node>,
        live: Arc<LivePod>,
        events: mpsc::Sender<Event>,
    ) {
        self.seen.extend(report.seen);
        if report.touched.is_empty() {
            return;
        }
        if self.watched.take().is_none() {
            self.lately.clear();
        }
        self.lately.retain(|known| !report.touched.contains(&known.target));
        self.lately.extend(report.lowered);
        if self.lately.is_empty() {
            return;
        }
        let (number, watching) = (id.number, self.lately.clone());
        let task = tokio::spawn(async move {
            let verdict = watch(node, live, watching).await;
            // Fails only when the coordinator is gone, and then limits stay as they are.
            if events.send(Event::Watched(id, verdict)).await.is_err() {
                tracing::debug!("a watch ended after the agent did");
            }
        });
        self.watched = Some(Watched {
            number,
            _task: AbortOnDropHandle::new(task),
        });
    }

    /// Takes in how a watch ended; returns what went wrong, if anything did. Whatever came down with it goes up with it.
    pub(super) fn watch_ended(&mut self, number: u64, verdict: Verdict, now: Timestamp) -> Option<Ended> {
        self.watched.take_if(|watched| watched.number == number)?;
        self.turn = None;
        match verdict {
            Verdict::Gone => None,
            Verdict::Kept => {
                for lowering in self.lately.drain(..) {
                    self.regrets.forgive(&lowering.target);
                }
                Some(Ended::Kept)
            }
            Verdict::Trouble(target, trouble) => self.undo(&target, trouble, now),
        }
    }

    /// Takes in that somebody in this cgroup was killed for a limit that was lowered; returns what went wrong, unless that
    /// was known. Whatever came down with it goes up with it.
    pub(super) fn blamed(&mut self, target: &Target, now: Timestamp) -> Option<Ended> {
        let ended = self.undo(target, Trouble::Killed(1), now)?;
        self.watched = None;
        Some(ended)
    }

    fn undo(&mut self, target: &Target, trouble: Trouble, now: Timestamp) -> Option<Ended> {
        if self.lately.is_empty() {
            return None;
        }
        self.turn = None;
        let why = describe(target, trouble);
        for lowering in self.lately.drain(..) {
            let until = self.regrets.note(&lowering.target, lowering.from, &why, now);
            self.again = Some(self.again.map_or(until, |again| again.min(until)));
        }
        Some(Ended::Undone(why))
    }

    /// These limits come down from what they are once it is the pod's turn.
    pub(super) fn put_off(&mut self, lowered: &[(Target, MemoryLimit)], now: Timestamp) {
        self.regrets.end_waiting();
        for (target, before) in lowered {
            self.regrets.put_off(target, *before, now);
        }
    }

    /// It is the pod's turn.
    pub(super) fn begin_turn(&mut self, now: Timestamp) {
        self.regrets.end_waiting();
        self.turn = Some(now);
    }

    /// A pass left everything as it should be. Where it lowered nothing that is watched, the turn is over.
    pub(super) fn pass_settled(&mut self) {
        self.turn.take_if(|_| self.watched.is_none());
    }

    /// How lower limits fare; `None` where there are none to speak of.
    pub(super) fn progress(&self, now: Timestamp) -> Option<Progress> {
        let has_turn = self.turn.is_some_and(|since| now.duration_since(since) < LONGEST_TURN);
        if self.next_regret(now).is_some() {
            Some(Progress::Undone)
        } else if self.regrets.waits(now) {
            Some(Progress::Waits)
        } else {
            (has_turn || self.watched.is_some()).then_some(Progress::Tried)
        }
    }

    /// The limits that are kept now although lower ones are wanted.
    pub(super) fn holds(&self, now: Timestamp) -> Holds {
        self.regrets.holds(now)
    }

    /// The shrink that was undone and is tried again first.
    pub(super) fn next_regret(&self, now: Timestamp) -> Option<&Regret> {
        self.regrets.next(now)
    }

    /// When a shrink that was undone is to be tried again.
    pub(super) const fn again(&self) -> Option<Timestamp> {
        self.again
    }

    /// Whether it is time for that, and from then on not any more.
    pub(super) fn is_due(&mut self, now: Timestamp) -> bool {
        let due = self.again.take_if(|again| *again <= now).is_some();
        if due {
            self.again = self.regrets.next(now).map(|regret| regret.until);
        }
        due
    }

    /// Everything that was undone, to be remembered.
    pub(super) const fn regrets(&self) -> &Regrets {
        &self.regrets
    }

    /// Takes over what an earlier agent remembered.
    pub(super) fn remember(&mut self, regrets: Regrets, now: Timestamp) {
        self.again = regrets.next(now).map(|regret| regret.until);
        self.regrets = regrets;
    }

    /// An operator wants other limits and knows better.
    pub(super) fn forget_regrets(&mut self) {
        self.regrets = Regrets::default();
        self.again = None;
    }

    /// Containers of the pod have ended or started: what was seen of it says nothing, but whoever is left is watched on.
    pub(super) fn live_changed(&mut self, earlier: Option<&LivePod>, live: Option<&LivePod>) {
        let same = |(earlier, live): (&LivePod, &LivePod)| earlier.id == live.id && earlier.path == live.path;
        if earlier.zip(live).is_some_and(same) {
            self.seen.clear();
        } else {
            self.start_over();
        }
    }

    /// The pod's cgroups are other ones now: what is known about the earlier ones says nothing.
    pub(super) fn start_over(&mut self) {
        self.seen.clear();
        self.watched = None;
    }
}

/// How watching after a shrink ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// The limit stays.
    Kept,
    /// It goes up again, for this reason.
    Undone(String),
}

fn describe(target: &Target, trouble: Trouble) -> String {
    format!("{target}: {trouble}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bytes, MemoryLimit};
    use crate::plan::shrink::{Before, WatchReading};

    const BEFORE: MemoryLimit = MemoryLimit::Bytes(200 << 20);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn container(name: &str) -> Target {
        Target::Container(name.to_owned())
    }

    /// A pod whose limits came down a moment ago, in the pass of that number.
    fn lowered(number: u64, targets: &[Target]) -> Shrinking {
        let lowering = |target: &Target| Lowering {
            target: target.clone(),
            from: BEFORE,
            to: Bytes::new(100 << 20),
            before: Before {
                last: WatchReading {
                    memory: crate::plan::shrink::MemoryReading::default(),
                    kills: 0,
                    stalled: None,
                },
                most: Bytes::ZERO,
                refaults: Bytes::ZERO,
            },
        };
        Shrinking {
            lately: targets.iter().map(lowering).collect(),
            watched: Some(Watched {
                number,
                _task: AbortOnDropHandle::new(tokio::spawn(std::future::pending())),
            }),
            ..Shrinking::default()
        }
    }

    #[tokio::test]
    async fn what_came_down_together_goes_up_together_and_is_tried_again_later() {
        let mut shrinking = lowered(7, &[container("app"), container("side"), Target::Pod]);
        let trouble = Verdict::Trouble(container("app"), Trouble::Killed(1));
        let Some(Ended::Undone(why)) = shrinking.watch_ended(7, trouble, at(0)) else {
            panic!("nothing was undone");
        };
        assert_eq!(why, "container app: 1 processes were killed for want of memory");
        let holds = shrinking.holds(at(1));
        assert_eq!(holds.len(), 3);
        assert!(holds.values().all(|limit| *limit == BEFORE));
        assert_eq!(shrinking.again(), Some(at(120)));
        assert!(!shrinking.is_due(at(119)));
        assert!(shrinking.is_due(at(120)) && !shrinking.is_due(at(121)));
        assert!(shrinking.holds(at(120)).is_empty());
    }

    #[tokio::test]
    async fn a_watch_that_was_overtaken_says_nothing_any_more() {
        let mut shrinking = lowered(8, &[container("app")]);
        let trouble = Verdict::Trouble(container("app"), Trouble::Killed(1));
        assert_eq!(shrinking.watch_ended(7, trouble.clone(), at(0)), None);
        assert!(shrinking.watch_ended(8, trouble, at(0)).is_some());
        assert_eq!(shrinking.watch_ended(8, Verdict::Kept, at(1)), None, "it ended already");
    }

    #[tokio::test]
    async fn a_kill_that_ended_what_was_watched_is_blamed_once() {
        let mut shrinking = lowered(8, &[container("app"), Target::Pod]);
        shrinking.start_over();
        assert!(matches!(
            shrinking.blamed(&container("app"), at(0)),
            Some(Ended::Undone(why)) if why.starts_with("container app: 1 processes were killed")
        ));
        assert_eq!((shrinking.holds(at(1)).len(), shrinking.again()), (2, Some(at(120))));
        assert_eq!(shrinking.blamed(&container("app"), at(1)), None, "it was told twice");
    }

    #[tokio::test]
    async fn a_kill_is_not_blamed_on_what_is_undone_or_kept_already() {
        let trouble = Verdict::Trouble(container("app"), Trouble::Killed(1));
        for verdict in [trouble, Verdict::Kept] {
            let mut shrinking = lowered(8, &[container("app")]);
            assert!(shrinking.watch_ended(8, verdict, at(0)).is_some());
            assert_eq!(shrinking.blamed(&container("app"), at(1)), None);
        }
    }

    #[tokio::test]
    async fn a_shrink_that_goes_well_makes_good_for_earlier_ones() {
        let mut shrinking = lowered(1, &[container("app")]);
        let mut regrets = Regrets::default();
        regrets.note(&container("app"), BEFORE, "it hurt", at(-1000));
        regrets.note(&container("side"), BEFORE, "it hurt", at(-1000));
        shrinking.remember(regrets, at(0));
        assert_eq!(shrinking.watch_ended(1, Verdict::Kept, at(60)), Some(Ended::Kept));
        let mut left = Regrets::default();
        left.note(&container("side"), BEFORE, "it hurt", at(-1000));
        assert_eq!(*shrinking.regrets(), left);
    }

    #[test]
    fn an_operators_word_ends_what_is_kept() {
        let mut shrinking = Shrinking::default();
        let mut regrets = Regrets::default();
        regrets.note(&container("app"), BEFORE, "it hurt", at(0));
        shrinking.remember(regrets, at(1));
        assert_eq!((shrinking.holds(at(1)).len(), shrinking.again()), (1, Some(at(120))));
        shrinking.forget_regrets();
        assert_eq!((shrinking.holds(at(1)).len(), shrinking.again()), (0, None));
    }

    #[tokio::test]
    async fn what_is_put_off_keeps_its_limit_until_its_turn_and_again_when_that_failed() {
        let mut shrinking = Shrinking::default();
        assert_eq!(shrinking.progress(at(0)), None);
        shrinking.put_off(&[(container("app"), BEFORE)], at(0));
        assert_eq!(shrinking.progress(at(1)), Some(Progress::Waits));
        assert_eq!(shrinking.holds(at(1)), Holds::from([(container("app"), BEFORE)]));
        assert!(shrinking.next_regret(at(1)).is_none(), "nothing was refused");
        shrinking.begin_turn(at(2));
        assert_eq!(shrinking.progress(at(2)), Some(Progress::Tried));
        assert_eq!(shrinking.holds(at(2)), Holds::new());
        let mut tried = lowered(7, &[container("app")]);
        tried.begin_turn(at(2));
        tried.pass_settled();
        assert_eq!(tried.progress(at(3)), Some(Progress::Tried), "it is watched");
        assert!(tried.blamed(&container("app"), at(4)).is_some());
        assert_eq!(tried.progress(at(5)), Some(Progress::Undone));
        // Another recommendation: what is left alone stays so for as long as before.
        tried.put_off(&[(container("app"), BEFORE)], at(6));
        assert_eq!(tried.again(), Some(at(124)));
        assert_eq!(tried.progress(at(125)), None);
        tried.put_off(&[(container("app"), BEFORE)], at(126));
        tried.begin_turn(at(127));
        assert_eq!(tried.regrets().next(at(127)), None);
    }

    #[test]
    fn a_turn_ends_with_a_pass_that_lowered_nothing_and_at_the_latest_after_a_while() {
        let mut shrinking = Shrinking::default();
        shrinking.begin_turn(at(0));
        assert_eq!(shrinking.progress(at(299)), Some(Progress::Tried));
        assert_eq!(shrinking.progress(at(300)), None);
        shrinking.pass_settled();
        assert_eq!(shrinking.progress(at(1)), None);
    }
}
