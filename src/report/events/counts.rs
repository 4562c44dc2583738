//! Messages about changes → the Events to write. Pure; time is an argument.
//!
//! A new message becomes an Event once its namespace has an attempt, unless the pod or the node exceeds its rate then; the first
//! message of a pod and reason ignores the pod's rate. A repeated message raises the count of its Event: after a second at first, then
//! ever more rarely. A message that continues another raises the count likewise and replaces the text. A message beyond a rate counts in
//! the last Event of its pod and reason, or is held back.

use std::time::{Duration, Instant};

use super::stem;
use crate::kubernetes::events::{EventRates, NamedEvent, Topic, name};
use crate::share::places_of_most;

#[cfg(test)]
mod tests;

/// How long an Event is remembered. The API server forgets it after an hour.
const REMEMBERED: Duration = Duration::from_secs(50 * 60);
/// The shortest time between a write of an Event and its next change. It doubles with each change.
const FIRST_CHANGE: Duration = Duration::from_secs(1);
const BETWEEN_CHANGES: Duration = Duration::from_secs(64);
/// How long an Event is remembered while there are [`MANY`].
const REMEMBERED_OF_MANY: Duration = Duration::from_secs(10);
/// The usual bound of remembered Events; a node has fewer pods.
const MANY: usize = 1024;

/// In floods, the messages about one object with one reason count in one Event.
fn are_alike(one: &NamedEvent, other: &NamedEvent) -> bool {
    one.subject == other.subject && one.reason == other.reason
}

/// The number of an Event, which makes its name.
pub(in crate::report) type Ticket = i128;

/// An Event, or a message that waits to become one.
#[derive(Debug)]
struct KnownEvent {
    ticket: Ticket,
    /// The newest message: the Event without its name, its count and the time at which it is sent.
    message: NamedEvent,
    /// The number of messages in the Event.
    count: u32,
    /// The count at the API server; 0 before the Event is sent.
    written: u32,
    /// The number of changes at the API server.
    changes: u32,
    written_at: Instant,
    seen_at: Instant,
}

#[derive(Debug)]
pub(in crate::report) struct EventLimits {
    /// Oldest first.
    known: Vec<KnownEvent>,
    /// So many messages may wait to become Events.
    most: usize,
    /// The number of the last Event.
    tickets: Ticket,
    /// The number of messages that are in no Event.
    held_back: u64,
}

impl KnownEvent {
    /// The Event, without the time at which it is sent.
    fn event(&self) -> NamedEvent {
        NamedEvent {
            name: name(stem(&self.message.subject), &format!("{:x}", self.ticket)),
            count: self.written.into(),
            ..self.message.clone()
        }
    }

    fn namespace(&self) -> &str {
        self.message.subject.namespace()
    }

    /// When the Event may be sent, or its count at the API server be changed, if that is too low.
    fn change_at(&self) -> Option<Instant> {
        let doubled = FIRST_CHANGE.saturating_mul(1_u32.checked_shl(self.changes).unwrap_or(u32::MAX));
        let wait = if self.written == 0 { Duration::ZERO } else { doubled };
        (self.count > self.written).then(|| self.written_at + wait.min(BETWEEN_CHANGES))
    }

    fn add(&mut self, message: NamedEvent, count: u32, now: Instant) {
        self.message = message;
        self.count += count;
        self.seen_at = now;
    }
}

impl EventLimits {
    /// Numbers the Events from here on.
    pub(in crate::report) const fn new(tickets: Ticket, most: usize) -> Self {
        Self {
            known: Vec::new(),
            most,
            tickets,
            held_back: 0,
        }
    }

    /// Takes in a message. Of too many that wait, the newest of the namespace with most is lost. Returns how many messages are lost.
    pub(in crate::report) fn add(&mut self, message: NamedEvent, now: Instant) -> u32 {
        self.forget(now);
        let is_same = |KnownEvent { message: known, .. }: &&mut KnownEvent| {
            let continues = message.continues.is_some() && known.continues == message.continues;
            *known == message || (continues && are_alike(known, &message))
        };
        match self.known.iter_mut().rfind(is_same) {
            Some(known) => known.add(message, 1, now),
            None => self.known.push(KnownEvent {
                ticket: 0,
                message,
                count: 1,
                written: 0,
                changes: 0,
                written_at: now,
                seen_at: now,
            }),
        }
        let newest_first = self.known.iter().enumerate().rev();
        let waiting = newest_first.filter(|(_, known)| known.written == 0);
        let (places, namespaces): (Vec<_>, Vec<_>) = waiting.map(|(place, known)| (place, known.namespace())).unzip();
        let is_full = places.len() > self.most;
        let lost = is_full.then(|| places_of_most(namespaces)).flatten();
        lost.map_or(0, |(newest, _)| self.known.remove(places[newest]).count)
    }

    /// The next write in a namespace: a new Event, or else the change of one.
    pub(in crate::report) fn next(
        &mut self,
        namespace: &str,
        rates: &mut EventRates,
        now: Instant,
    ) -> Option<NamedEvent> {
        let is_new = |known: &KnownEvent| known.written == 0 && known.namespace() == namespace;
        while let Some(place) = self.known.iter().position(is_new) {
            let new = &self.known[place].message;
            let is_like = |known: &KnownEvent| known.written > 0 && are_alike(&known.message, new);
            let last = self.known[..place].iter().rposition(is_like);
            // There are few reasons, and later messages need a first Event to count in.
            if rates.try_use(&new.subject, Topic::Change, last.is_none(), now) {
                self.tickets += 1;
                let known = &mut self.known[place];
                (known.ticket, known.written, known.written_at) = (self.tickets, 1, now);
                return Some(known.event());
            }
            let KnownEvent { message, count, .. } = self.known.remove(place);
            match last {
                Some(last) => self.known[last].add(message, count, now),
                None => self.held_back += u64::from(count),
            }
        }
        let is_due =
            |known: &&mut KnownEvent| known.namespace() == namespace && known.change_at().is_some_and(|at| at <= now);
        let known = self.known.iter_mut().find(is_due)?;
        if !rates.try_use_of_node(namespace, now) {
            return None;
        }
        known.written = known.count;
        known.changes = known.changes.saturating_add(1);
        known.written_at = now;
        Some(known.event())
    }

    /// The namespaces of Events that wait to be sent or changed, each with the time from which on it may be.
    pub(in crate::report) fn waiting(&self) -> impl Iterator<Item = (&str, Instant)> {
        let known = self.known.iter();
        known.filter_map(|known| Some((known.namespace(), known.change_at()?)))
    }

    /// The number of messages held back since the last call.
    pub(in crate::report) const fn take_held_back(&mut self) -> u64 {
        std::mem::replace(&mut self.held_back, 0)
    }

    /// Forgets Events that the API server forgets, and in a flood also younger ones.
    fn forget(&mut self, now: Instant) {
        let is_full = self.known.len() >= MANY;
        let remembered = if is_full { REMEMBERED_OF_MANY } else { REMEMBERED };
        let is_needed = |known: &KnownEvent| known.seen_at + remembered > now || known.count > known.written;
        self.known.retain(is_needed);
    }
}
