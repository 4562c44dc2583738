//! Events that the API server refuses for now, by namespace. Time is an argument.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::pace::Backoff;

/// The pauses after Events that the API server refuses for now.
pub(super) const FIRST_RETRY: Duration = Duration::from_secs(1);
pub(super) const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// The Events of one kind that the API server refuses for now. Each namespace waits by itself: a webhook or a quota of one keeps no
/// other waiting.
#[derive(Debug)]
pub(super) struct Retries<E>(BTreeMap<String, Retry<E>>);

#[derive(Debug)]
struct Retry<E> {
    at: Instant,
    backoff: Backoff,
    /// Oldest first; empty while the first one is sent again.
    events: VecDeque<E>,
}

impl<E> Default for Retries<E> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<E> Retry<E> {
    const fn new(at: Instant) -> Self {
        Self {
            at,
            backoff: Backoff::new(FIRST_RETRY, LONGEST_RETRY),
            events: VecDeque::new(),
        }
    }
}

impl<E> Retries<E> {
    /// An Event that is due again, of the namespace that is due longest.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<E> {
        let retries = self.0.values_mut().filter(|retry| !retry.events.is_empty());
        let longest = retries.min_by_key(|retry| retry.at)?;
        (longest.at <= now).then(|| longest.events.pop_front())?
    }

    /// Puts an Event behind those of its namespace, if that waits.
    pub(super) fn hold(&mut self, namespace: &str, event: E) -> Option<E> {
        match self.0.get_mut(namespace) {
            Some(retry) => {
                retry.events.push_back(event);
                None
            }
            None => Some(event),
        }
    }

    /// Puts an Event that nobody has refused behind those of its namespace.
    pub(super) fn again(&mut self, namespace: &str, event: E, at: Instant) {
        let retry = self.0.entry(namespace.to_owned()).or_insert_with(|| Retry::new(at));
        retry.events.push_back(event);
    }

    /// Notes that an Event was refused for now. Returns when its namespace tries again.
    pub(super) fn failed(&mut self, namespace: &str, event: E, asked_for: Option<Duration>, now: Instant) -> Instant {
        let retry = self.0.entry(namespace.to_owned()).or_insert_with(|| Retry::new(now));
        retry.events.push_front(event);
        retry.at = now + retry.backoff.next(asked_for);
        retry.at
    }

    /// Notes that the API server took an Event of this namespace, or will never take it. The next one is due `at` this time: those of
    /// namespaces that are due longer go first.
    pub(super) fn ended(&mut self, namespace: &str, at: Instant) {
        if let Some(retry) = self.0.get_mut(namespace) {
            retry.backoff.reset();
            retry.at = at;
            if retry.events.is_empty() {
                self.0.remove(namespace);
            }
        }
    }

    /// The number of Events that wait.
    pub(super) fn len(&self) -> usize {
        self.0.values().map(|retry| retry.events.len()).sum()
    }

    /// When the next one is due.
    pub(super) fn ready_at(&self) -> Option<Instant> {
        let waiting = self.0.values().filter(|retry| !retry.events.is_empty());
        waiting.map(|retry| retry.at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_namespace_keeps_no_other_waiting() {
        let (start, mut retries) = (Instant::now(), Retries::default());
        assert_eq!(retries.hold("shop", 1), Some(1));
        let again = retries.failed("shop", 1, None, start);
        assert!(again > start);
        assert_eq!(retries.hold("shop", 2), None, "behind the first");
        assert_eq!(retries.hold("bank", 3), Some(3));
        assert_eq!((retries.take_due(start), retries.len()), (None, 2));
        assert_eq!(retries.ready_at(), Some(again));

        assert_eq!(retries.take_due(again), Some(1));
        let later = retries.failed("shop", 1, Some(Duration::from_secs(9)), again);
        assert!(later > again + Duration::from_secs(9));
        assert_eq!(retries.take_due(later), Some(1));
        retries.ended("shop", later);
        assert_eq!(retries.take_due(later), Some(2), "in order");
        retries.ended("shop", later);
        assert_eq!(retries.hold("shop", 4), Some(4));
    }

    #[test]
    fn namespaces_take_turns() {
        let (start, mut retries) = (Instant::now(), Retries::default());
        for number in 0..3 {
            retries.again("bank", ("bank", number), start);
            retries.again("shop", ("shop", number), start + FIRST_RETRY);
        }
        let now = start + FIRST_RETRY * 2;
        let mut taken = Vec::new();
        while let Some((namespace, number)) = retries.take_due(now) {
            taken.push((namespace, number));
            let at = now - FIRST_RETRY / (1 + u32::try_from(taken.len()).unwrap());
            retries.ended(namespace, at);
        }
        let turns = (0..3).flat_map(|number| ["bank", "shop"].map(|namespace| (namespace, number)));
        assert_eq!(taken, turns.collect::<Vec<_>>());
    }
}
