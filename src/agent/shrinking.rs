//! What the coordinator knows about one pod's lower memory limits: which are watched, which were undone, what was seen.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::coordinator::Event;
use crate::actuate::shrink::{Lowering, SeenBefore, ShrinkReport, Verdict, watch};
use crate::actuate::{LivePod, Node};
use crate::plan::Target;
use crate::plan::shrink::{Holds, Regret, Regrets, Trouble};

/// The part of an entry that is about lower memory limits.
#[derive(Debug, Default)]
pub(super) struct Shrinking {
    /// What earlier tries have seen.
    pub(super) seen: SeenBefore,
    regrets: Regrets,
    /// When a shrink that was undone is to be tried again.
    again: Option<Timestamp>,
    watched: Option<Watched>,
}

/// Limits that were lowered a moment ago.
#[derive(Debug)]
struct Watched {
    number: u64,
    lowered: Vec<Lowering>,
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
        let before = self.watched.take().map(|watched| watched.lowered).unwrap_or_default();
        let untouched = before
            .into_iter()
            .filter(|known| !report.touched.contains(&known.target));
        let lowered: Vec<Lowering> = untouched.chain(report.lowered).collect();
        if lowered.is_empty() {
            return;
        }
        let (number, watching) = (id.number, lowered.clone());
        let task = tokio::spawn(async move {
            let verdict = watch(node, live, watching).await;
            // Fails only when the coordinator is gone, and then limits stay as they are.
            if events.send(Event::Watched(id, verdict)).await.is_err() {
                tracing::debug!("a watch ended after the agent did");
            }
        });
        self.watched = Some(Watched {
            number,
            lowered,
            _task: AbortOnDropHandle::new(task),
        });
    }

    /// Takes in how a watch ended; returns what went wrong, if anything did. Whatever came down with it goes up with it.
    pub(super) fn watch_ended(&mut self, number: u64, verdict: Verdict, now: Timestamp) -> Option<Ended> {
        let watched = self.watched.take_if(|watched| watched.number == number)?;
        match verdict {
            Verdict::Gone => None,
            Verdict::Kept => {
                for lowering in &watched.lowered {
                    self.regrets.forgive(&lowering.target);
                }
                Some(Ended::Kept)
            }
            Verdict::Trouble(target, trouble) => {
                let why = describe(&target, trouble);
                for lowering in &watched.lowered {
                    let until = self.regrets.note(&lowering.target, lowering.from, &why, now);
                    self.again = Some(self.again.map_or(until, |again| again.min(until)));
                }
                Some(Ended::Undone(why))
            }
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
