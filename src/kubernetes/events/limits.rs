//! Which Events to write for what is said. Pure; time is an argument.
//!
//! What is new is written at once, as long as the pod and the node have not said too much lately; the first of its pod and
//! reason whatever else was said about the pod. What was said before raises the count of its Event: soon the first time, and
//! ever more rarely while it goes on. What is too much is counted with the last Event of its pod and reason, or held back.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{About, Saying};

#[cfg(test)]
mod tests;

/// A time in the writer's own clock: since it was started.
pub(super) type Time = Duration;

/// How long an Event is kept in mind. The API server forgets it after an hour.
const REMEMBERED: Duration = Duration::from_secs(50 * 60);
/// The shortest time until an Event is changed. It doubles with each change.
const FIRST_CHANGE: Duration = Duration::from_secs(1);
/// The longest it becomes.
const BETWEEN_CHANGES: Duration = Duration::from_secs(64);
/// How long an Event is kept in mind when there are too many.
const REMEMBERED_OF_MANY: Duration = Duration::from_secs(10);
/// New Events about one pod: so many at once, then one in this time.
const OF_A_POD: Rate = Rate(8, Duration::from_secs(60));
/// Writes of this node: so many at once, then one in this time.
const OF_THE_NODE: Rate = Rate(40, Duration::from_secs(2));
/// Events and pods kept in mind; a node has fewer pods.
const MOST: usize = 1024;

/// So many at once, then one in each such time.
#[derive(Debug, Clone, Copy)]
struct Rate(u32, Duration);

/// What is left of a rate.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// When it would be full again, if nothing more is taken.
    full_at: Time,
}

/// Something to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Write {
    /// A new Event.
    New(Saying, Ticket),
    /// An Event has happened again.
    Again {
        /// As it was said last.
        saying: Saying,
        /// Which Event.
        ticket: Ticket,
        /// How often by now.
        count: u32,
    },
}

/// The number of an Event, which makes its name.
pub(super) type Ticket = u64;

#[derive(Debug)]
struct Known {
    last: Saying,
    ticket: Ticket,
    count: u32,
    /// How often as written.
    written: u32,
    /// How often it was changed.
    changes: u32,
    written_at: Time,
    said_at: Time,
}

/// Events of one pod or container with one reason share their fate in floods.
type Topic = (About, &'static str);

#[derive(Debug)]
pub(super) struct Limits {
    known: BTreeMap<Topic, Vec<Known>>,
    pods: BTreeMap<String, Bucket>,
    node: Bucket,
    tickets: Ticket,
    /// What was said and is in no Event.
    held_back: u64,
}

impl Rate {
    /// Takes one, if there is one.
    fn take(self, bucket: &mut Bucket, now: Time) -> bool {
        let Self(burst, each) = self;
        let full_at = bucket.full_at.max(now) + each;
        let fits = full_at <= now + each * burst;
        if fits {
            bucket.full_at = full_at;
        }
        fits
    }
}

impl Known {
    /// When its Event may be changed, if it has happened again since.
    fn change_at(&self) -> Option<Time> {
        let doubled = FIRST_CHANGE.saturating_mul(1_u32.checked_shl(self.changes).unwrap_or(u32::MAX));
        (self.count > self.written).then(|| self.written_at + doubled.min(BETWEEN_CHANGES))
    }
}

impl Limits {
    pub(super) const fn new() -> Self {
        Self {
            known: BTreeMap::new(),
            pods: BTreeMap::new(),
            node: Bucket { full_at: Time::ZERO },
            tickets: 0,
            held_back: 0,
        }
    }

    /// Takes in what is said; returns what to write now.
    pub(super) fn say(&mut self, saying: Saying, now: Time) -> Option<Write> {
        self.forget(now);
        let topic = (saying.about.clone(), saying.reason);
        let known = self.known.entry(topic).or_default();
        if let Some(same) = known.iter_mut().find(|known| known.last == saying) {
            same.count += 1;
            same.said_at = now;
            return None;
        }
        let pod = self
            .pods
            .entry(saying.about.uid.clone())
            .or_insert(Bucket { full_at: Time::ZERO });
        // There are few reasons, and without a first Event there is none to count in.
        let is_first = known.is_empty();
        if (OF_A_POD.take(pod, now) || is_first) && OF_THE_NODE.take(&mut self.node, now) {
            self.tickets += 1;
            known.push(Known {
                last: saying.clone(),
                ticket: self.tickets,
                count: 1,
                written: 1,
                changes: 0,
                written_at: now,
                said_at: now,
            });
            return Some(Write::New(saying, self.tickets));
        }
        match known.last_mut() {
            Some(last) => {
                last.last = saying;
                last.count += 1;
                last.said_at = now;
            }
            None => self.held_back += 1,
        }
        None
    }

    /// The next change of an Event that is due.
    pub(super) fn due(&mut self, now: Time) -> Option<Write> {
        let is_due = |known: &&mut Known| known.change_at().is_some_and(|at| at <= now);
        let known = self.known.values_mut().flatten().find(is_due)?;
        if !OF_THE_NODE.take(&mut self.node, now) {
            return None;
        }
        known.written = known.count;
        known.changes = known.changes.saturating_add(1);
        known.written_at = now;
        Some(Write::Again {
            saying: known.last.clone(),
            ticket: known.ticket,
            count: known.count,
        })
    }

    /// How long until a change may be due.
    pub(super) fn next_due(&self, now: Time) -> Option<Duration> {
        const NOT_AT_ONCE: Duration = Duration::from_millis(100);
        let first = self.known.values().flatten().filter_map(Known::change_at).min()?;
        // Due already, and yet not written: the node has written too much.
        Some(first.saturating_sub(now).max(NOT_AT_ONCE))
    }

    /// What was held back since this was last asked.
    pub(super) const fn take_held_back(&mut self) -> u64 {
        std::mem::replace(&mut self.held_back, 0)
    }

    /// Forgets Events that the API server has or will have forgotten, and a flood's when there are too many.
    fn forget(&mut self, now: Time) {
        let all: usize = self.known.values().map(Vec::len).sum();
        let remembered = if all < MOST { REMEMBERED } else { REMEMBERED_OF_MANY };
        for known in self.known.values_mut() {
            known.retain(|known| known.said_at + remembered > now || known.count > known.written);
        }
        self.known.retain(|_, known| !known.is_empty());
        self.pods.retain(|_, bucket| bucket.full_at > now);
    }
}
