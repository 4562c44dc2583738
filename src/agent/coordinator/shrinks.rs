//! What follows after memory limits were lowered.

use jiff::Timestamp;

use tokio::sync::mpsc;

use super::{Coordinator, Event};
use crate::actuate::shrink::Verdict;
use crate::agent::entry::Entry;
use crate::agent::metrics::ShrinkOutcome;
use crate::agent::oom::Kills;
use crate::agent::shrinking::{Ended, WatchId};
use crate::model::{Cause, Target};
use crate::oom::OomReport;
use crate::plan::shrink::{Progress, next_turns};

impl Coordinator {
    /// A watch ended. Where something went wrong, a pass raises the limits again, and they stay so for a while.
    pub(super) fn take_watched(&mut self, id: &WatchId, verdict: Verdict) {
        let Some(entry) = self.entries.get_mut(&id.key) else {
            return;
        };
        let ended = entry.shrinking.watch_ended(id.number, verdict, Timestamp::now());
        self.follow_up(&id.key, ended);
    }

    /// Somebody was killed for a limit that was lowered, and perhaps took along what was watched.
    pub(super) fn take_blame(&mut self, kill: &OomReport) {
        let Some(pod) = &kill.pod else { return };
        let key = format!("{}/{}", pod.namespace, pod.name);
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if entry.last_lived.as_ref().is_none_or(|id| id.uid != pod.uid) {
            return;
        }
        let container = kill.container.as_ref();
        let target = container.map_or(Target::Pod, |container| Target::Container(container.name.clone()));
        let ended = entry.shrinking.blamed(&target, Timestamp::now());
        self.follow_up(&key, ended);
    }

    fn follow_up(&mut self, key: &str, ended: Option<Ended>) {
        let (Some(ended), Some(entry)) = (ended, self.entries.get_mut(key)) else {
            return;
        };
        match ended {
            Ended::Kept => self.metrics.shrunk(ShrinkOutcome::Kept),
            Ended::Undone(why) => {
                tracing::warn!(pod = key, why, again = ?entry.shrinking.again(), "a shrink is undone");
                self.metrics.shrunk(ShrinkOutcome::Undone);
                entry.standing.return_later(&entry.pod);
                entry.start_over();
                entry.ask(Cause::Regret { why }, true);
            }
        }
        self.unsaved = true;
    }

    /// Lets pods whose turn it is lower their memory limits: of one workload a few at a time, and none while one of them has
    /// its own limits back.
    pub(super) fn give_turns(&mut self, now: Timestamp) {
        let progress = |entry: &Entry| entry.live.as_ref().and_then(|_| entry.shrinking.progress(now));
        if !self
            .entries
            .values()
            .any(|entry| progress(entry) == Some(Progress::Waits))
        {
            return;
        }
        let workload = |entry: &Entry| {
            let recommended = entry.standing.recommended.as_ref();
            let vpa = recommended.and_then(|recommended| recommended.vpa.clone());
            (entry.pod.metadata.namespace.clone(), vpa)
        };
        let (keys, pods): (Vec<_>, Vec<_>) = self
            .entries
            .iter()
            .filter_map(|(key, entry)| Some((key.clone(), (workload(entry), progress(entry)?))))
            .unzip();
        for index in next_turns(&pods) {
            if let Some(entry) = self.entries.get_mut(&keys[index]) {
                entry.shrinking.begin_turn(now);
                if entry.work.running.is_some() || entry.work.pending.is_none() {
                    entry.start_over();
                    entry.ask(Cause::Retry, true);
                }
                self.unsaved = true;
            }
        }
    }

    /// Tries again what was undone long enough ago.
    pub(super) fn try_shrinks_again(&mut self, now: Timestamp) {
        for entry in self.entries.values_mut() {
            if entry.shrinking.is_due(now) {
                entry.start_over();
                entry.ask(Cause::Retry, true);
            }
        }
    }
}

/// Tells of kills that are blamed on limits of the agent's own, until nobody tells of kills any more.
pub(in crate::agent) async fn tell_of_blame(mut kills: Kills, events: mpsc::Sender<Event>) {
    let newest = |kills: &mut Kills| kills.borrow_and_update().back().map(|kill| kill.id.clone());
    let mut told = newest(&mut kills);
    while kills.changed().await.is_ok() {
        let news: Vec<_> = {
            let all = kills.borrow_and_update();
            let news = all.iter().rev().take_while(|kill| Some(&kill.id) != told.as_ref());
            news.cloned().collect()
        };
        told = news.first().map(|kill| kill.id.clone()).or(told);
        for kill in news.into_iter().rev().filter(|kill| kill.own_write.is_some()) {
            if events.send(Event::Blamed(kill)).await.is_err() {
                return;
            }
        }
    }
}
