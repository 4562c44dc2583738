//! The latest changes, and the listeners for new ones.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::broadcast;

use crate::model::objects::{PodId, PodUid};
use crate::model::{Cause, ChangeRecord, ControlFile, HookEnd, Outcome, Withheld, micros};
use crate::observe::audit::Audit;
use crate::share::places_of_largest;

/// How many bytes all changes together may have, as estimated. Of more, the oldest of the namespace with most goes.
const MOST_BYTES: u64 = 2 << 20;
/// A change counts with at least so many: 256 changes are kept, unless pods have dozens of containers.
const LEAST_BYTES: u64 = MOST_BYTES / 256;
/// The bytes of a step, without the text of an error.
const STEP_BYTES: usize = 256;
/// How many bytes all changes together may have that wait for a listener, as estimated.
const MOST_WAITING: u64 = 4 << 20;

/// The latest changes, oldest first.
#[derive(derive_more::Debug)]
pub(crate) struct History {
    pub(crate) records: VecDeque<Arc<ChangeRecord>>,
    pub(crate) listeners: Listeners,
    /// Shows a change to the watchers at the socket.
    #[debug(skip)]
    pub(crate) show: Box<dyn Fn(&ChangeRecord) + Send + Sync>,
    pub(crate) audit: Audit,
}

impl History {
    /// Numbers, keeps and publishes a record that is news. A record that is no news is only returned; listeners get it
    /// if a hook has begun.
    pub(crate) fn add(&mut self, mut record: ChangeRecord, news: bool) -> Arc<ChangeRecord> {
        if news {
            record.sequence = self.records.back().map_or(1, |last| last.sequence + 1);
        }
        record.at = Timestamp::now();
        let record = Arc::new(record);
        if news || matches!(record.cause, Cause::Hook { .. }) {
            self.listeners.send(&record);
        }
        if news {
            self.make_room(&record);
            self.records.push_back(Arc::clone(&record));
            (self.show)(&record);
            self.audit.change(&record);
            log(&record);
        }
        record
    }

    /// Removes changes until there is room for this one.
    fn make_room(&mut self, new: &Arc<ChangeRecord>) {
        loop {
            let all = self.records.iter().chain([new]);
            let sizes: Vec<_> = all
                .map(|record| (record.pod.namespace.as_str(), bytes_of(record).max(LEAST_BYTES)))
                .collect();
            let sum = sizes.iter().fold(0, |sum: u64, (_, size)| sum.saturating_add(*size));
            match places_of_largest(sizes) {
                Some((oldest, _)) if sum > MOST_BYTES && oldest < self.records.len() => self.records.remove(oldest),
                _ => return,
            };
        }
    }

    /// Notes that the kubelet has carried out the latest request for this pod: publishes the records since then again, as done.
    /// A request that a later one overtook stays in flight.
    pub(crate) fn mark_carried_out(&mut self, uid: &PodUid) {
        let of_pod = |record: &ChangeRecord| record.pod.uid == *uid;
        let request = self
            .records
            .iter()
            .rposition(|record| of_pod(record) && record.has_request());
        for record in self.records.range_mut(request.unwrap_or_default()..) {
            if of_pod(record) && record.in_flight {
                Arc::make_mut(record).in_flight = false;
                self.listeners.send(record);
                (self.show)(record);
            }
        }
    }

    /// The changes of all pods or of one, oldest first.
    pub(crate) fn iter<'a>(&'a self, pod: Option<&'a PodId>) -> impl DoubleEndedIterator<Item = &'a Arc<ChangeRecord>> {
        let records = self.records.iter();
        records.filter(move |record| pod.is_none_or(|pod| record.pod == *pod))
    }
}

/// Passes changes on to the tasks that listen. A change waits until every one of them has read it.
#[derive(Debug)]
pub(crate) struct Listeners {
    sender: broadcast::Sender<Arc<ChangeRecord>>,
    /// The bytes of each change that waits, oldest first, and before these of changes that do not wait any more.
    waiting: VecDeque<u64>,
    /// Whether the latest change was lost.
    has_lost: bool,
}

impl Listeners {
    pub(crate) const fn new(sender: broadcast::Sender<Arc<ChangeRecord>>) -> Self {
        Self {
            sender,
            waiting: VecDeque::new(),
            has_lost: false,
        }
    }

    /// Sends a change, unless too many bytes wait for a listener that lags behind.
    fn send(&mut self, record: &Arc<ChangeRecord>) {
        let read = self.waiting.len().saturating_sub(self.sender.len());
        self.waiting.drain(..read);
        let size = bytes_of(record);
        let sum = self.waiting.iter().fold(size, |sum, one| sum.saturating_add(*one));
        let is_lost = sum > MOST_WAITING && !self.waiting.is_empty();
        if is_lost && !self.has_lost {
            tracing::warn!(
                bytes = sum,
                "changes are not passed on: a task of the agent lags behind"
            );
        }
        self.has_lost = is_lost;
        // An error: there are no listeners.
        if !is_lost && self.sender.send(Arc::clone(record)).is_ok() {
            self.waiting.push_back(size);
        }
    }
}

/// About how many bytes a change has, also in an answer.
fn bytes_of(record: &ChangeRecord) -> u64 {
    let steps = record.steps.iter();
    let steps: usize = steps
        .map(|step| STEP_BYTES + step.error.as_ref().map_or(0, String::len))
        .sum();
    let cause = match &record.cause {
        Cause::TemporaryLimitDenied { why, .. } | Cause::FailedShrink { why } => why.len(),
        _ => 0,
    };
    let printed = match &record.outcome {
        Outcome::Hook(HookEnd { output, .. }) => output.len(),
        _ => 0,
    };
    let reason = record.outcome.reason().map_or(0, str::len);
    let size = u64::try_from(size_of::<ChangeRecord>() + steps + cause + printed + reason);
    size.unwrap_or(u64::MAX)
}

/// Logs one line for each step, in the span of the pass.
fn log(record: &ChangeRecord) {
    if let Outcome::Withheld(withheld) = &record.outcome
        && !matches!(withheld, Withheld::Postponed(_))
    {
        let (word, reason) = (withheld.word(), withheld.reason());
        tracing::warn!(pod = %record.pod, outcome = word, reason, "the resize is not in force");
    }
    for step in &record.steps {
        let took_us = micros(step.took);
        let (from, to) = step.change.texts();
        let file = step.change.file().map(ControlFile::name).unwrap_or_default();
        tracing::info!(
            via = %step.change.via(), cgroup = %step.target, file, from, to,
            took_us, error = step.error.as_deref().unwrap_or_default(), rollback = step.rollback,
            "step"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Change, Requirements, StepRecord, Target};

    /// A record of a pod whose resize is in flight, with a request or without.
    fn in_flight(uid: &str, has_request: bool) -> ChangeRecord {
        let pod = PodId {
            uid: uid.into(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let (from, to) = (Requirements::default(), Requirements::default());
        let step = StepRecord {
            target: Target::Pod,
            change: Change::Resize { from, to },
            took: std::time::Duration::ZERO,
            error: None,
            rollback: false,
        };
        ChangeRecord {
            in_flight: true,
            steps: Vec::from_iter(has_request.then_some(step)),
            ..ChangeRecord::new(pod, Cause::Kubelet, Outcome::Applied)
        }
    }

    fn empty() -> History {
        History {
            records: VecDeque::new(),
            listeners: Listeners::new(broadcast::channel(8).0),
            show: Box::new(|_| {}),
            audit: Audit::default(),
        }
    }

    #[test]
    fn large_changes_of_a_namespace_leave_others_theirs() {
        let mut history = empty();
        let record = |namespace: &str, steps| {
            let mut record = in_flight("u", true);
            record.pod.namespace = namespace.to_owned();
            record.steps = vec![record.steps[0].clone(); steps];
            record
        };
        for _ in 0..300 {
            history.add(record("shop", 1), true);
        }
        assert_eq!(history.records.len(), 256);
        for _ in 0..300 {
            history.add(record("hostile", 1000), true);
        }
        let mut kept = [0; 2];
        for record in &history.records {
            kept[usize::from(record.pod.namespace == "hostile")] += 1;
        }
        assert!(kept[0] >= 100 && kept[1] > 0, "each has half of the bytes: {kept:?}");
        assert_eq!(history.records.back().map(|record| record.sequence), Some(600));
        let mut fat = record("other", 1);
        fat.outcome = Outcome::Refused("x".repeat(3 << 20));
        history.add(fat, true);
        let [shop, hostile] = kept;
        assert_eq!(history.records.len(), shop + hostile + 1, "it takes nobody's room");
    }

    #[test]
    fn a_slow_listener_lets_few_bytes_wait() {
        let mut history = empty();
        let mut slow = history.listeners.sender.subscribe();
        let third = usize::try_from(MOST_WAITING / 3).unwrap();
        for _ in 0..2 {
            for _ in 0..4 {
                let mut fat = in_flight("u", true);
                fat.outcome = Outcome::Refused("x".repeat(third));
                history.add(fat, true);
            }
            let read = std::iter::from_fn(|| slow.try_recv().ok());
            assert_eq!(read.count(), 2);
        }
    }

    #[test]
    fn a_settled_request_is_done_with_all_that_followed() {
        let mut history = empty();
        for record in [
            in_flight("u1", true),
            in_flight("u1", true),
            in_flight("u2", true),
            in_flight("u1", false),
        ] {
            history.add(record, true);
        }
        let mut news = history.listeners.sender.subscribe();
        history.mark_carried_out(&"u1".into());
        let words: Vec<_> = history.iter(None).map(|record| record.word()).collect();
        assert_eq!(words, ["InFlight", "Applied", "InFlight", "Applied"]);
        let told: Vec<_> = std::iter::from_fn(|| news.try_recv().ok())
            .map(|record| record.sequence)
            .collect();
        assert_eq!(told, [2, 4]);
        history.mark_carried_out(&"u1".into());
        assert!(news.try_recv().is_err(), "nothing is done twice");
    }
}
