//! Which Events to write for the messages that are recorded. Pure; time is an argument.
//!
//! A new message is written at once, as long as neither the pod nor the node exceeds its rate; the first of its pod and
//! reason whatever the pod's rate. A message that repeats raises the count of its Event: soon the first time, then ever more
//! rarely. So does one that continues another, whose text it replaces. What exceeds a rate is counted with the last Event of its pod and reason, or held back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{EventMessage, PodReference};
use crate::rate_limiter::{Rate, RateLimiter};

#[cfg(test)]
mod tests;

/// How long an Event is kept in mind. The API server forgets it after an hour.
const REMEMBERED: Duration = Duration::from_secs(50 * 60);
/// The shortest time until an Event is changed. It doubles with each change.
const FIRST_CHANGE: Duration = Duration::from_secs(1);
/// The longest it becomes.
const BETWEEN_CHANGES: Duration = Duration::from_secs(64);
/// How long an Event is kept in mind when there are too many.
const REMEMBERED_OF_MANY: Duration = Duration::from_secs(10);
/// New Events about one pod: so many at once, then one in this time.
const OF_A_POD: Rate = Rate {
    burst: 8,
    every: Duration::from_secs(60),
};
/// Writes of this node: so many at once, then one in this time.
const OF_THE_NODE: Rate = Rate {
    burst: 40,
    every: Duration::from_secs(2),
};
/// Events and pods kept in mind; a node has fewer pods.
const MOST: usize = 1024;

/// Something to write: a new Event, or one that has happened again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Write {
    /// As it was said last.
    pub(super) message: EventMessage,
    /// Which Event.
    pub(super) ticket: Ticket,
    /// How often by now; 1 for a new one.
    pub(super) count: u32,
}

/// The number of an Event, which makes its name.
pub(super) type Ticket = u64;

#[derive(Debug)]
struct Known {
    last: EventMessage,
    ticket: Ticket,
    count: u32,
    /// How often as written.
    written: u32,
    /// How often it was changed.
    changes: u32,
    written_at: Instant,
    seen_at: Instant,
}

/// Events of one pod or container with one reason share their fate in floods.
type Topic = (PodReference, &'static str);

#[derive(Debug)]
pub(super) struct Limits {
    known: BTreeMap<Topic, Vec<Known>>,
    pods: BTreeMap<String, RateLimiter>,
    node: RateLimiter,
    tickets: Ticket,
    /// What was said and is in no Event.
    held_back: u64,
}

impl Known {
    /// When its Event may be changed, if it has happened again since.
    fn change_at(&self) -> Option<Instant> {
        let doubled = FIRST_CHANGE.saturating_mul(1_u32.checked_shl(self.changes).unwrap_or(u32::MAX));
        (self.count > self.written).then(|| self.written_at + doubled.min(BETWEEN_CHANGES))
    }
}

impl Limits {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            known: BTreeMap::new(),
            pods: BTreeMap::new(),
            node: RateLimiter::new(OF_THE_NODE, now),
            tickets: 0,
            held_back: 0,
        }
    }

    /// Takes in what is said; returns what to write now.
    pub(super) fn record(&mut self, message: EventMessage, now: Instant) -> Option<Write> {
        self.forget(now);
        let topic = (message.about.clone(), message.reason);
        let known = self.known.entry(topic).or_default();
        let continues = |known: &Known| message.continues.is_some() && known.last.continues == message.continues;
        let same = known.iter().position(|known| known.last == message);
        let mut counts_in = same.or_else(|| known.iter().position(continues));
        if counts_in.is_none() {
            let pod = self
                .pods
                .entry(message.about.pod.uid.clone())
                .or_insert_with(|| RateLimiter::new(OF_A_POD, now));
            // There are few reasons, and without a first Event there is none to count in.
            let is_first = known.is_empty();
            if (pod.try_use(now) || is_first) && self.node.try_use(now) {
                self.tickets += 1;
                known.push(Known {
                    last: message.clone(),
                    ticket: self.tickets,
                    count: 1,
                    written: 1,
                    changes: 0,
                    written_at: now,
                    seen_at: now,
                });
                return Some(Write {
                    message,
                    ticket: self.tickets,
                    count: 1,
                });
            }
            counts_in = known.len().checked_sub(1);
        }
        match counts_in.map(|index| &mut known[index]) {
            Some(begun) => {
                begun.last = message;
                begun.count += 1;
                begun.seen_at = now;
            }
            None => self.held_back += 1,
        }
        None
    }

    /// The next change of an Event that is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<Write> {
        let is_due = |known: &&mut Known| known.change_at().is_some_and(|at| at <= now);
        let known = self.known.values_mut().flatten().find(is_due)?;
        if !self.node.try_use(now) {
            return None;
        }
        known.written = known.count;
        known.changes = known.changes.saturating_add(1);
        known.written_at = now;
        Some(Write {
            message: known.last.clone(),
            ticket: known.ticket,
            count: known.count,
        })
    }

    /// How long until a change may be due.
    pub(super) fn next_due(&self, now: Instant) -> Option<Duration> {
        const NOT_AT_ONCE: Duration = Duration::from_millis(100);
        let first = self.known.values().flatten().filter_map(Known::change_at).min()?;
        // Due already, and yet not written: the node has written too much.
        Some(first.saturating_duration_since(now).max(NOT_AT_ONCE))
    }

    /// What was held back since this was last asked.
    pub(super) const fn take_held_back(&mut self) -> u64 {
        std::mem::replace(&mut self.held_back, 0)
    }

    /// Forgets Events that the API server has or will have forgotten, and a flood's when there are too many.
    fn forget(&mut self, now: Instant) {
        let all: usize = self.known.values().map(Vec::len).sum();
        let remembered = if all < MOST { REMEMBERED } else { REMEMBERED_OF_MANY };
        for known in self.known.values_mut() {
            known.retain(|known| known.seen_at + remembered > now || known.count > known.written);
        }
        self.known.retain(|_, known| !known.is_empty());
        self.pods.retain(|_, limiter| !limiter.is_full(now));
    }
}
