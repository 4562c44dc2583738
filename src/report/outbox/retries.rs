//! Events that the API server refuses for now, by namespace and kind.
//! [`EventRates`](crate::kubernetes::events::EventRates) know until when each namespace waits.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::pace::Backoff;
use crate::report::destination::Destination;
use crate::report::events::PlannedEvent;
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
    events: VecDeque<PlannedEvent>,
}

impl Retries {
    fn entry(&mut self, outgoing: &PlannedEvent) -> &mut Retry {
        let key = (outgoing.namespace().to_owned(), outgoing.destination);
        self.0.entry(key).or_insert_with(|| Retry {
            backoff: Backoff::new(FIRST_RETRY, LONGEST_RETRY),
            events: VecDeque::new(),
        })
    }

    /// The namespaces of Events that are sent again.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|(namespace, _)| namespace.as_str())
    }

    /// The next Event to send again in a namespace: of the kind that failed least often.
    pub(super) fn next_in(&mut self, namespace: &str) -> Option<PlannedEvent> {
        let here = self.0.iter_mut().filter(|((name, _), _)| name == namespace);
        let (_, retry) = here.min_by_key(|(_, retry)| retry.backoff.failures())?;
        retry.events.pop_front()
    }

    /// Puts an Event behind those of its namespace and kind.
    pub(super) fn push(&mut self, outgoing: PlannedEvent) {
        self.entry(&outgoing).events.push_back(outgoing);
    }

    /// Notes that an Event was refused for now. Returns how long its namespace waits.
    pub(super) fn failed(&mut self, outgoing: PlannedEvent, asked_for: Option<Duration>) -> Duration {
        let retry = self.entry(&outgoing);
        retry.events.push_front(PlannedEvent {
            outcome: ReportOutcome::SentAgain,
            ..outgoing
        });
        retry.backoff.next(asked_for)
    }

    /// Notes that the API server took an Event, or will never take it.
    pub(super) fn ended(&mut self, outgoing: &PlannedEvent) {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::outbox::tests::outgoing;

    #[test]
    fn a_refused_namespace_keeps_no_other_waiting() {
        let mut retries = Retries::default();
        assert!(!retries.hold(None, Some("shop")));
        assert!(retries.failed(outgoing("shop", 1), None) > Duration::ZERO);
        assert!(retries.hold(None, Some("shop")) && !retries.hold(None, Some("bank")));
        retries.push(outgoing("shop", 2));
        assert!(retries.next_in("bank").is_none());

        let first = retries.next_in("shop").unwrap();
        assert!(first.event.count == 1 && first.outcome == ReportOutcome::SentAgain);
        assert!(retries.hold(None, Some("shop")), "while it is sent again");
        let asked_for = Duration::from_secs(9);
        assert!(retries.failed(first, Some(asked_for)) > asked_for);
        let first = retries.next_in("shop").unwrap();
        assert_eq!(first.event.count, 1);
        retries.ended(&first);
        let second = retries.next_in("shop").unwrap();
        assert!(
            second.event.count == 2 && second.outcome == ReportOutcome::Sent,
            "in order"
        );
        retries.ended(&second);
        assert!(!retries.hold(None, None));
    }

    #[test]
    fn kinds_of_a_namespace_take_turns() {
        let mut retries = Retries::default();
        let destination = Some(Destination::PodEvents);
        retries.push(outgoing("shop", 1));
        retries.push(PlannedEvent {
            destination,
            ..outgoing("shop", 2)
        });
        let taken = [(); 4].map(|()| {
            let next = retries.next_in("shop").unwrap();
            let count = next.event.count;
            retries.failed(next, None);
            count
        });
        assert_eq!(taken, [1, 2, 1, 2]);
    }
}
