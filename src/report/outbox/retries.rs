//! Events that the API server refuses for now, by namespace and kind. [`EventRates`] know until when each namespace waits.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::Outgoing;
use crate::kubernetes::events::EventRates;
use crate::pace::Backoff;
use crate::report::destination::Destination;
use crate::report::metrics::ReportOutcome;

/// The pauses after Events that the API server refuses for now.
pub(super) const FIRST_RETRY: Duration = Duration::from_secs(1);
pub(super) const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// The Events that the API server refuses for now, and those behind them. Each namespace waits by itself: a webhook or a quota of one
/// keeps no other waiting.
#[derive(Debug, Default)]
pub(super) struct Retries(BTreeMap<(String, Option<Destination>), Retry>);

#[derive(Debug)]
struct Retry {
    backoff: Backoff,
    /// Oldest first; empty while the first one is sent again.
    events: VecDeque<Outgoing>,
}

impl Retries {
    fn entry(&mut self, outgoing: &Outgoing) -> &mut Retry {
        let key = (outgoing.namespace().to_owned(), outgoing.destination);
        self.0.entry(key).or_insert_with(|| Retry {
            backoff: Backoff::new(FIRST_RETRY, LONGEST_RETRY),
            events: VecDeque::new(),
        })
    }

    /// An Event that is due again, of the namespace that may have an attempt for longest; there, of the kind that failed least often.
    pub(super) fn take_due(&mut self, rates: &EventRates, now: Instant) -> Option<Outgoing> {
        let waiting = self.0.iter_mut().filter(|(_, retry)| !retry.events.is_empty());
        let due = waiting.filter_map(|((namespace, _), retry)| Some((rates.next_at(namespace)?, retry)));
        let (at, longest) = due.min_by_key(|(at, retry)| (*at, retry.backoff.failures()))?;
        if at <= now { longest.events.pop_front() } else { None }
    }

    /// Returns an Event that may be sent now. Otherwise puts it behind those of its namespace and kind.
    pub(super) fn admit(&mut self, outgoing: Outgoing, rates: &EventRates, now: Instant) -> Option<Outgoing> {
        let namespace = outgoing.namespace();
        let may_go = rates.next_at(namespace).is_some_and(|at| at <= now);
        if may_go && !self.hold(outgoing.destination, Some(namespace)) {
            return Some(outgoing);
        }
        self.push(outgoing);
        None
    }

    /// Puts an Event behind those of its namespace and kind.
    pub(super) fn push(&mut self, outgoing: Outgoing) {
        self.entry(&outgoing).events.push_back(outgoing);
    }

    /// Notes that an Event was refused for now. Returns how long its namespace waits.
    pub(super) fn failed(&mut self, outgoing: Outgoing, asked_for: Option<Duration>) -> Duration {
        let retry = self.entry(&outgoing);
        retry.events.push_front(Outgoing {
            outcome: ReportOutcome::SentAgain,
            ..outgoing
        });
        retry.backoff.next(asked_for)
    }

    /// Notes that the API server took an Event, or will never take it.
    pub(super) fn ended(&mut self, outgoing: &Outgoing) {
        let key = (outgoing.namespace().to_owned(), outgoing.destination);
        if let Some(retry) = self.0.get_mut(&key) {
            retry.backoff.reset();
            if retry.events.is_empty() {
                self.0.remove(&key);
            }
        }
    }

    /// Whether an Event of this kind, and of this namespace if there is one, waits or is sent again.
    pub(super) fn hold(&self, destination: Option<Destination>, namespace: Option<&str>) -> bool {
        let mut held = self.0.keys();
        held.any(|(name, kind)| *kind == destination && namespace.is_none_or(|namespace| namespace == name))
    }

    /// When the next one is due.
    pub(super) fn ready_at(&self, rates: &EventRates) -> Option<Instant> {
        let waiting = self.0.iter().filter(|(_, retry)| !retry.events.is_empty());
        waiting.filter_map(|((namespace, _), _)| rates.next_at(namespace)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::outbox::tests::outgoing;

    #[test]
    fn a_refused_namespace_keeps_no_other_waiting() {
        let start = Instant::now();
        let (mut retries, mut rates) = (Retries::default(), EventRates::new(start));
        let admit = |retries: &mut Retries, rates: &EventRates, namespace: &str, number: u64| {
            let admitted = retries.admit(outgoing(namespace, number), rates, start);
            admitted.map(|admitted| admitted.planned.event.count)
        };
        assert_eq!(admit(&mut retries, &rates, "shop", 1), Some(1));
        rates.begin("shop");
        let again = start + retries.failed(outgoing("shop", 1), None);
        rates.end("shop", again, start);
        assert!(again > start);
        assert_eq!(admit(&mut retries, &rates, "shop", 2), None, "behind the first");
        assert_eq!(admit(&mut retries, &rates, "bank", 3), Some(3));
        assert!(retries.take_due(&rates, start).is_none());
        assert_eq!(retries.ready_at(&rates), Some(again));

        let first = retries.take_due(&rates, again).unwrap();
        assert!(first.planned.event.count == 1 && first.outcome == ReportOutcome::SentAgain);
        rates.begin("shop");
        assert_eq!(retries.ready_at(&rates), None, "one attempt at a time");
        let later = again + retries.failed(first, Some(Duration::from_secs(9)));
        rates.end("shop", later, again);
        assert!(later > again + Duration::from_secs(9));
        let first = retries.take_due(&rates, later).unwrap();
        retries.ended(&first);
        let second = retries.take_due(&rates, later).unwrap();
        assert!(
            second.planned.event.count == 2 && second.outcome == ReportOutcome::Sent,
            "in order"
        );
        retries.ended(&second);
        assert!(!retries.hold(None, None));
    }

    #[test]
    fn namespaces_take_turns() {
        let (start, mut retries) = (Instant::now(), Retries::default());
        let mut rates = EventRates::new(start);
        for number in 0..3 {
            retries.push(outgoing("bank", number));
            retries.push(outgoing("shop", number));
        }
        let now = start + FIRST_RETRY * 2;
        let mut taken = Vec::new();
        while let Some(next) = retries.take_due(&rates, now) {
            taken.push((next.namespace().to_owned(), next.planned.event.count));
            let at = now - FIRST_RETRY / (1 + u32::try_from(taken.len()).unwrap());
            rates.end(next.namespace(), at, now);
            retries.ended(&next);
        }
        let turns = (0..3).flat_map(|number| ["bank", "shop"].map(|namespace| (namespace.to_owned(), number)));
        assert_eq!(taken, turns.collect::<Vec<_>>());
    }

    #[test]
    fn kinds_of_a_namespace_take_turns() {
        let (start, mut retries) = (Instant::now(), Retries::default());
        let rates = EventRates::new(start);
        let destination = Some(Destination::PodEvents);
        retries.push(outgoing("shop", 1));
        retries.push(Outgoing {
            destination,
            ..outgoing("shop", 2)
        });
        let taken = [(); 4].map(|()| {
            let next = retries.take_due(&rates, start).unwrap();
            let count = next.planned.event.count;
            retries.failed(next, None);
            count
        });
        assert_eq!(taken, [1, 2, 1, 2]);
    }
}
