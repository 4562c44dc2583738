//! How many Events the node may send to the API server. Time is an argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Subject;
use crate::rate_limiter::{FairRateLimiter, KeyedRateLimiter, Rate};

/// About one pod and one topic. The first of all topics are fewer than client-go lets a source send about an object at once
/// (`EventSourceObjectSpamFilter`: 25).
pub const OF_A_POD: Rate = Rate::new(10, Duration::from_secs(60));
/// From the node.
pub const OF_THE_NODE: Rate = Rate::new(50, Duration::from_secs(2));

/// After an attempt that takes longer than this, the namespace waits so many times as long.
const SLOW: (Duration, u32) = (Duration::from_secs(2), 9);

/// What an Event is about. A pod's changes do not delay its kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    Change,
    Kill,
}

/// The rate of Events about each pod, and the rate of the node, of which each namespace has a fair share.
#[derive(Debug)]
pub struct EventRates {
    /// By UID; Events about the node have a rate, too.
    pods: KeyedRateLimiter<(String, Topic)>,
    node: FairRateLimiter<String>,
    /// The namespaces whose Events the API server refuses for now, and until when they wait.
    paused: BTreeMap<String, Instant>,
}

impl EventRates {
    /// Rates with all their turns.
    pub fn new(now: Instant) -> Self {
        Self {
            pods: KeyedRateLimiter::new(OF_A_POD),
            node: FairRateLimiter::new(OF_THE_NODE, now),
            paused: BTreeMap::new(),
        }
    }

    /// Uses a turn for an Event about this subject, if one is left; an urgent one needs only the node's turn.
    pub fn try_use(&mut self, subject: &Subject, topic: Topic, is_urgent: bool, now: Instant) -> bool {
        let pod = match subject {
            Subject::Pod(reference) => reference.pod.uid.to_string(),
            Subject::Node => String::new(),
        };
        let pod = (pod, topic);
        let is_free = (is_urgent || self.pods.is_ready(&pod, now)) && self.try_use_of_node(subject.namespace(), now);
        // An urgent Event uses the pod's turn only if there is one.
        is_free && (self.pods.try_use(pod, now) || is_urgent)
    }

    /// A namespace has no more turns until then: the API server has refused one of its Events for now.
    pub fn pause(&mut self, namespace: &str, until: Instant, now: Instant) {
        self.paused.retain(|_, until| *until > now);
        self.paused.insert(namespace.to_owned(), until);
    }

    /// An attempt of a namespace took so long. After a slow one, the namespace has no turns for a time: a webhook that answers
    /// slowly keeps no other namespace waiting. Returns for how long.
    pub fn attempted(&mut self, namespace: &str, took: Duration, now: Instant) -> Duration {
        let (slow, times) = SLOW;
        if took <= slow {
            return Duration::ZERO;
        }
        let pause = took * times;
        self.pause(namespace, now + pause, now);
        pause
    }

    /// Until when a namespace has no turns, if it has none for now.
    pub fn paused_until(&self, namespace: &str, now: Instant) -> Option<Instant> {
        self.paused.get(namespace).copied().filter(|until| *until > now)
    }

    /// Uses a turn of the node, if one is left for this namespace.
    pub fn try_use_of_node(&mut self, namespace: &str, now: Instant) -> bool {
        self.paused_until(namespace, now).is_none() && self.node.try_use(&namespace.to_owned(), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_namespace_keeps_no_other_waiting() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut rates = EventRates::new(now);
        rates.attempted("bank", second, now);
        rates.attempted("shop", second * 3, now);
        let mut may_go = |namespace: &str, seconds: u32| rates.try_use_of_node(namespace, now + second * seconds);
        assert!(may_go("bank", 0) && !may_go("shop", 26) && may_go("shop", 27));
    }
}
