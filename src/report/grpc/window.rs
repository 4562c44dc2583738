//! What is on the way on one stream. Pure: time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::report::proto::Ack;

/// The reports that were sent on a stream and not acknowledged, oldest first.
#[derive(Debug)]
pub(super) struct Window {
    limit: usize,
    last_sequence: u64,
    sent: VecDeque<Sent>,
    /// When there was last something to be glad of: an acknowledgement, or nothing to wait for.
    good: Instant,
}

#[derive(Debug)]
struct Sent {
    sequence: u64,
    number: u64,
    id: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// The numbers in the spool of what was received.
    pub(super) numbers: Vec<u64>,
    /// How many of the things acknowledged are not on the way.
    pub(super) strange: usize,
}

impl Window {
    /// For a stream that begins now.
    pub(super) const fn new(limit: usize, now: Instant) -> Self {
        Self {
            limit,
            last_sequence: 0,
            sent: VecDeque::new(),
            good: now,
        }
    }

    /// A report is being sent; returns its sequence.
    pub(super) fn send(&mut self, number: u64, id: String, now: Instant) -> u64 {
        if self.sent.is_empty() {
            self.good = now;
        }
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        self.sent.push_back(Sent { sequence, number, id });
        sequence
    }

    /// The receiver has acknowledged something.
    pub(super) fn acknowledge(&mut self, ack: &Ack, now: Instant) -> Acknowledged {
        let mut acknowledged = Acknowledged::default();
        if ack.up_to > self.last_sequence {
            acknowledged.strange += 1;
        } else {
            let count = self.sent.partition_point(|sent| sent.sequence <= ack.up_to);
            acknowledged
                .numbers
                .extend(self.sent.drain(..count).map(|sent| sent.number));
        }
        for id in &ack.ids {
            match self.sent.iter().position(|sent| sent.id == *id) {
                Some(at) => acknowledged
                    .numbers
                    .extend(self.sent.remove(at).map(|sent| sent.number)),
                None => acknowledged.strange += 1,
            }
        }
        if !acknowledged.numbers.is_empty() {
            self.good = now;
        }
        acknowledged
    }

    /// How many more may be sent now. Nothing until half the window is free, so that they are fetched many at a time.
    pub(super) fn room(&self) -> usize {
        if self.sent.len() <= self.limit / 2 {
            self.limit - self.sent.len()
        } else {
            0
        }
    }

    /// How many are on the way.
    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    /// When a receiver that acknowledges nothing is taken for stuck; never with nothing on the way.
    pub(super) fn deadline(&self, patience: Duration) -> Option<Instant> {
        (!self.sent.is_empty()).then(|| self.good + patience)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ack(up_to: u64, ids: &[&str]) -> Ack {
        Ack {
            up_to,
            ids: ids.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn reports_are_acknowledged_by_sequence_and_by_id_and_once() {
        let now = Instant::now();
        let mut window = Window::new(8, now);
        for (number, id) in [(10, "a"), (20, "b"), (30, "c"), (40, "d")] {
            window.send(number, id.to_owned(), now);
        }
        assert_eq!(window.acknowledge(&ack(2, &["d"]), now).numbers, [10, 20, 40]);
        let again = window.acknowledge(&ack(2, &["d"]), now);
        assert_eq!((again.numbers, again.strange), (vec![], 1));
        let never_sent = window.acknowledge(&ack(99, &["x"]), now);
        assert_eq!((never_sent.numbers, never_sent.strange), (vec![], 2));
        assert_eq!(window.len(), 1);
    }

    #[test]
    fn patience_begins_anew_with_each_acknowledgement_and_lasts_for_ever_with_nothing_sent() {
        let start = Instant::now();
        let second = |count| start + Duration::from_secs(count);
        let patience = Duration::from_secs(30);
        let mut window = Window::new(8, start);
        assert_eq!(window.deadline(patience), None);
        window.send(1, "a".to_owned(), second(100));
        window.send(2, "b".to_owned(), second(110));
        assert_eq!(window.deadline(patience), Some(second(130)));
        window.acknowledge(&ack(0, &["x"]), second(115));
        assert_eq!(window.deadline(patience), Some(second(130)), "nonsense is no progress");
        window.acknowledge(&ack(1, &[]), second(120));
        assert_eq!(window.deadline(patience), Some(second(150)));
        window.acknowledge(&ack(2, &[]), second(121));
        assert_eq!(window.deadline(patience), None);
    }

    proptest! {
        #[test]
        fn whatever_is_acknowledged_was_sent_and_is_acknowledged_once(
            acks in prop::collection::vec((0u64..30, prop::collection::vec(0u64..30, 0..4)), 0..20),
            limit in 1usize..20,
        ) {
            let now = Instant::now();
            let mut window = Window::new(limit, now);
            let (mut next, mut settled) = (0, std::collections::BTreeSet::new());
            for (up_to, ids) in acks {
                for _ in 0..window.room() {
                    next += 1;
                    prop_assert_eq!(window.send(next + 1000, next.to_string(), now), next);
                }
                prop_assert!(window.len() <= limit);
                let ids = ids.iter().map(ToString::to_string).collect();
                for number in window.acknowledge(&Ack { up_to, ids }, now).numbers {
                    prop_assert!((1001..=next + 1000).contains(&number));
                    prop_assert!(settled.insert(number), "{} twice", number);
                }
            }
            prop_assert_eq!(settled.len() + window.len(), usize::try_from(next).unwrap());
        }
    }
}
