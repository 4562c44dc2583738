//! The latest changes, and the listeners for new ones.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;

use crate::feed::Feed;
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

/// The latest changes, oldest first.
#[derive(derive_more::Debug)]
pub(crate) struct History {
    pub(crate) records: VecDeque<Arc<ChangeRecord>>,
    listeners: Feed<Arc<ChangeRecord>>,
    /// Shows a change to the watchers at the socket.
    #[debug(skip)]
    show: Box<dyn Fn(&ChangeRecord) + Send + Sync>,
    pub(crate) audit: Audit,
}

impl History {
    pub(crate) fn new(
        listeners: Feed<Arc<ChangeRecord>>,
        audit: Audit,
        show: impl Fn(&ChangeRecord) + Send + Sync + 'static,
    ) -> Self {
        Self {
            records: VecDeque::new(),
            listeners,
            show: Box::new(show),
            audit,
        }
    }

    /// Numbers, keeps and publishes a record that is news. A record that is no news is only returned; listeners get it
    /// if a hook has begun.
    pub(crate) fn add(&mut self, mut record: ChangeRecord, news: bool) -> Arc<ChangeRecord> {
        if news {
            record.sequence = self.records.back().map_or(1, |last| last.sequence + 1);
        }
        record.at = Timestamp::now();
        let record = Arc::new(record);
        if news || matches!(record.cause, Cause::Hook { .. }) {
            self.listeners.send(Arc::clone(&record), bytes_of(&record));
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
            let size = |record: &ChangeRecord| (bytes_of(record) as u64).max(LEAST_BYTES);
            let all = self.records.iter().chain([new]);
            let sizes: Vec<_> = all
                .map(|record| (record.pod.namespace.as_str(), size(record)))
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
                self.listeners.send(Arc::clone(record), bytes_of(record));
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

/// About how many bytes a change has, also in an answer.
fn bytes_of(record: &ChangeRecord) -> usize {
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
    size_of::<ChangeRecord>() + steps + cause + printed + reason
}

/// Logs one line for each step, in the span of the pass.
fn log(record: &ChangeRecord) {
    if let Outcome::Withheld(withheld) = &record.outcome {
        let (word, reason) = (withheld.word(), withheld.reason());
        match withheld {
            Withheld::Postponed(_) => {}
            // Each new pod waits for its kubelet's first report.
            Withheld::Unanswered(_) => {
                tracing::info!(pod = %record.pod, outcome = word, reason, "the resize is not in force yet");
            }
            Withheld::Deferred(_) | Withheld::Infeasible(_) | Withheld::Failed(_) | Withheld::SpecLater(_) => {
                tracing::warn!(pod = %record.pod, outcome = word, reason, "the resize is not in force");
            }
        }
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
    use futures::FutureExt as _;

    use super::*;
    use crate::feed::{self, FeedListener};
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
        History::new(Feed::default(), Audit::default(), |_| {})
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

    /// The numbers of the changes that the listener can read now, each with the number of those lost before it.
    fn read(listener: &mut FeedListener<Arc<ChangeRecord>>) -> Vec<(u64, u64)> {
        let news = std::iter::from_fn(|| listener.next().now_or_never().flatten());
        news.map(|(record, missed)| (record.sequence, missed)).collect()
    }

    #[test]
    fn large_changes_wait_for_a_listener_in_part() {
        let mut history = empty();
        let mut slow = history.listeners.listen();
        let record = in_flight("u", true);
        let mut many = record.clone();
        many.steps = vec![record.steps[0].clone(); feed::MOST_BYTES / STEP_BYTES / 3];
        let mut words = record;
        words.outcome = Outcome::Refused("x".repeat(feed::MOST_BYTES / 3));
        for fat in [many.clone(), words.clone(), many, words] {
            history.add(fat, true);
        }
        assert_eq!(read(&mut slow), [(3, 2), (4, 0)]);
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
        let mut news = history.listeners.listen();
        history.mark_carried_out(&"u1".into());
        let words: Vec<_> = history.iter(None).map(|record| record.word()).collect();
        assert_eq!(words, ["InFlight", "Applied", "InFlight", "Applied"]);
        assert_eq!(read(&mut news), [(2, 0), (4, 0)]);
        history.mark_carried_out(&"u1".into());
        assert!(read(&mut news).is_empty(), "nothing is done twice");
    }

    #[test]
    fn a_hook_that_begins_is_no_news_for_the_history() {
        let mut history = empty();
        let (shown, shows) = std::sync::mpsc::channel();
        history.show = Box::new(move |record: &ChangeRecord| shown.send(record.cause.to_string()).unwrap());
        let mut listener = history.listeners.listen();
        let hook = Cause::Hook {
            moment: "after-grow",
            container: "app".to_owned(),
        };
        for (cause, is_news, is_heard) in [
            (Cause::Sweep, true, true),
            (Cause::Sweep, false, false),
            (hook, false, true),
        ] {
            let text = cause.to_string();
            let record = ChangeRecord {
                cause,
                ..in_flight("u1", false)
            };
            let returned = history.add(record, is_news);
            assert_eq!(returned.sequence, u64::from(is_news), "{text}");
            assert_eq!(read(&mut listener).len(), usize::from(is_heard), "{text}");
            assert_eq!(shows.try_iter().count(), usize::from(is_news), "{text}");
        }
        assert_eq!(history.records.len(), 1);
        let other = PodId {
            name: "db".to_owned(),
            ..history.records[0].pod.clone()
        };
        assert_eq!(history.iter(Some(&other)).count(), 0);
    }
}
