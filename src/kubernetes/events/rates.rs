//! How many Events the node may send to the API server. Time is an argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Subject;
use crate::rate_limiter::{FairRateLimiter, KeyedRateLimiter, Rate};

/// About one pod and one topic. The first of all topics are fewer than client-go lets a source send about an object at once
/// (`EventSourceObjectSpamFilter`: 25).
pub const OF_A_POD: Rate = Rate::new(10, Duration::from_secs(60));
pub const OF_THE_NODE: Rate = Rate::new(50, Duration::from_secs(2));

/// A namespace whose last attempt is longer ago has its next one like a namespace that had none.
const REMEMBERED: Duration = Duration::from_secs(60);

/// What an Event is about. A pod's changes do not delay its kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    Change,
    Kill,
}

/// The rate of Events about each pod, and the rate of the node, of which each namespace has a fair share. Beside that, the attempts of
/// the namespaces: each has one at a time.
#[derive(Debug)]
pub struct EventRates {
    /// By UID; Events about the node have a rate, too.
    pods: KeyedRateLimiter<(String, Topic)>,
    node: FairRateLimiter<String>,
    /// When the namespaces of recent attempts may have the next one; none while one is under way.
    next_at: BTreeMap<String, Option<Instant>>,
    /// When all other namespaces may have one.
    began: Instant,
}

impl EventRates {
    /// Rates with all their turns.
    pub fn new(now: Instant) -> Self {
        Self {
            pods: KeyedRateLimiter::new(OF_A_POD),
            node: FairRateLimiter::new(OF_THE_NODE, now),
            next_at: BTreeMap::new(),
            began: now,
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

    /// Begins an attempt of a namespace, which has no other until [`Self::end`].
    pub fn begin(&mut self, namespace: &str) {
        self.next_at.insert(namespace.to_owned(), None);
    }

    /// Ends the attempt of a namespace, which may have the next one at that time.
    pub fn end(&mut self, namespace: &str, next_at: Instant, now: Instant) {
        let is_recent = |at: Instant| at + REMEMBERED > now;
        self.next_at.retain(|_, next_at| next_at.is_none_or(is_recent));
        self.next_at.insert(namespace.to_owned(), Some(next_at));
    }

    /// When a namespace may have its next attempt, if none is under way.
    pub fn next_at(&self, namespace: &str) -> Option<Instant> {
        self.next_at.get(namespace).copied().unwrap_or(Some(self.began))
    }

    /// Those of the namespaces that may have an attempt now, by their places in the list: first the one that may for longest, so that
    /// all take turns.
    pub fn in_turn<'a>(&self, namespaces: impl IntoIterator<Item = &'a str>, now: Instant) -> Vec<usize> {
        let next_at = namespaces.into_iter().map(|namespace| self.next_at(namespace));
        let places = next_at.enumerate();
        let mut ready: Vec<_> = places.filter(|(_, at)| at.is_some_and(|at| at <= now)).collect();
        ready.sort_by_key(|(_, at)| *at);
        ready.into_iter().map(|(place, _)| place).collect()
    }

    /// Uses a turn of the node, if one is left for this namespace.
    pub fn try_use_of_node(&mut self, namespace: &str, now: Instant) -> bool {
        self.node.try_use(&namespace.to_owned(), now)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PodReference;
    use super::*;
    use crate::model::objects::PodId;

    fn pod(name: &str) -> Subject {
        Subject::Pod(PodReference {
            pod: PodId {
                uid: name.into(),
                namespace: "shop".to_owned(),
                name: name.to_owned(),
            },
            container: None,
            init: false,
        })
    }

    #[test]
    fn changes_of_a_pod_delay_none_of_its_kills() {
        let now = Instant::now();
        let mut rates = EventRates::new(now);
        let mut uses = |topic, is_urgent| rates.try_use(&pod("web"), topic, is_urgent, now);
        assert_eq!((0..11).filter(|_| uses(Topic::Change, false)).count(), 10);
        assert!(uses(Topic::Kill, false));
        assert!(uses(Topic::Change, true), "an urgent one needs no turn of the pod");
    }

    #[test]
    fn an_event_that_is_held_back_uses_no_turn() {
        let start = Instant::now();
        let used = |rates: &mut EventRates, names: &dyn Fn(u32) -> String, now| {
            let tries = (0..100).map(|number| pod(&names(number)));
            tries
                .filter(|pod| rates.try_use(pod, Topic::Change, false, now))
                .count()
        };
        let (web, others) = (|_: u32| "web".to_owned(), |number: u32| number.to_string());
        let mut rates = EventRates::new(start);
        let all = used(&mut rates, &others, start);
        assert_eq!(used(&mut rates, &web, start), 0, "the node has none left");
        let later = start + OF_THE_NODE.every * 20;
        assert_eq!(used(&mut rates, &web, later), 10, "the pod has all of its own");
        let mut rates = EventRates::new(start);
        assert_eq!(used(&mut rates, &web, start), 10);
        assert_eq!(used(&mut rates, &others, start), all - 10);
    }

    #[test]
    fn namespaces_take_turns_with_one_attempt_each() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut rates = EventRates::new(now);
        let in_turn = |rates: &EventRates, seconds: u32| {
            let namespaces = ["shop", "bank", "shop", "farm"];
            let places = rates.in_turn(namespaces, now + second * seconds);
            places.into_iter().map(|place| namespaces[place]).collect::<Vec<_>>()
        };
        assert_eq!(in_turn(&rates, 0), ["shop", "bank", "shop", "farm"]);
        rates.begin("shop");
        rates.begin("bank");
        assert_eq!(in_turn(&rates, 1), ["farm"]);
        rates.end("shop", now + second * 3, now + second * 2);
        assert_eq!(in_turn(&rates, 2), ["farm"], "the other one is refused for now");
        rates.end("bank", now + second * 2, now + second * 2);
        assert_eq!(in_turn(&rates, 3), ["farm", "bank", "shop", "shop"]);
        rates.begin("farm");
        rates.end("farm", now + second * 90, now + second * 90);
        assert_eq!(rates.next_at.len(), 1, "the others had none for a minute");
    }
}
