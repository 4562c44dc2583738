//! Messages about changes → the Events to write. Pure; time is an argument.
//!
//! A new message becomes an Event at once, unless the pod or the node exceeds its rate; the first message of a pod and
//! reason ignores the pod's rate. A repeated message raises the count of its Event: after a second at first, then ever
//! more rarely. A message that continues another raises the count likewise and replaces the text. A message beyond a
//! rate counts in the last Event of its pod and reason, or is held back.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::stem;
use crate::kubernetes::events::{EventRates, NamedEvent, Severity, Subject, Topic, name};

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

/// A message about a change of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::report) struct EventMessage {
    pub(in crate::report) subject: Subject,
    pub(in crate::report) severity: Severity,
    /// The machine-readable reason, such as `ResourcesResized`.
    pub(in crate::report) reason: &'static str,
    pub(in crate::report) message: String,
    /// Messages with the same value share an Event, which has the newest text.
    pub(in crate::report) continues: Option<String>,
}

/// The number of an Event, which makes its name.
pub(in crate::report) type Ticket = i128;

#[derive(Debug)]
struct KnownEvent {
    ticket: Ticket,
    /// The newest message.
    message: EventMessage,
    /// The number of messages in the Event.
    count: u32,
    /// The count at the API server.
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
    /// The number of the last Event.
    tickets: Ticket,
    /// The number of messages that are in no Event.
    held_back: u64,
}

impl KnownEvent {
    /// The Event, without the time at which it is sent.
    fn event(&self) -> NamedEvent {
        let message = self.message.clone();
        NamedEvent {
            name: name(stem(&message.subject), &format!("{:x}", self.ticket)),
            subject: message.subject,
            severity: message.severity,
            reason: message.reason,
            message: message.message,
            first: Timestamp::UNIX_EPOCH,
            last: Timestamp::UNIX_EPOCH,
            count: self.count.into(),
            annotations: Vec::new(),
        }
    }

    fn namespace(&self) -> &str {
        self.message.subject.namespace()
    }

    /// When the Event's count at the API server may be changed, if it is too low.
    fn change_at(&self) -> Option<Instant> {
        let doubled = FIRST_CHANGE.saturating_mul(1_u32.checked_shl(self.changes).unwrap_or(u32::MAX));
        (self.count > self.written).then(|| self.written_at + doubled.min(BETWEEN_CHANGES))
    }
}

impl EventLimits {
    /// Numbers the Events from here on.
    pub(in crate::report) const fn new(tickets: Ticket) -> Self {
        Self {
            known: Vec::new(),
            tickets,
            held_back: 0,
        }
    }

    /// Counts a message; returns the write that is due for it now.
    pub(in crate::report) fn record(
        &mut self,
        message: EventMessage,
        rates: &mut EventRates,
        now: Instant,
    ) -> Option<NamedEvent> {
        self.forget(now);
        let place = |of_same: &dyn Fn(&EventMessage) -> bool| {
            let mut messages = self.known.iter().map(|known| &known.message);
            messages.rposition(of_same)
        };
        // In floods, the messages about one object with one reason count in one Event.
        let is_like = |known: &EventMessage| known.subject == message.subject && known.reason == message.reason;
        let last = place(&is_like);
        let continued = || {
            message.continues.as_ref()?;
            place(&|known| is_like(known) && known.continues == message.continues)
        };
        let mut counts_in = place(&|known| *known == message).or_else(continued);
        if counts_in.is_none() {
            // There are few reasons, and later messages need a first Event to count in.
            if rates.try_use(&message.subject, Topic::Change, last.is_none(), now) {
                self.tickets += 1;
                let known = KnownEvent {
                    ticket: self.tickets,
                    message,
                    count: 1,
                    written: 1,
                    changes: 0,
                    written_at: now,
                    seen_at: now,
                };
                let event = known.event();
                self.known.push(known);
                return Some(event);
            }
            counts_in = last;
        }
        match counts_in.map(|index| &mut self.known[index]) {
            Some(known) => {
                known.message = message;
                known.count += 1;
                known.seen_at = now;
            }
            None => self.held_back += 1,
        }
        None
    }

    /// The namespaces of Events whose count at the API server is too low, each with the time from which on it may be changed.
    pub(in crate::report) fn changes(&self) -> impl Iterator<Item = (&str, Instant)> {
        let known = self.known.iter();
        known.filter_map(|known| Some((known.namespace(), known.change_at()?)))
    }

    /// The change of an Event that is due in a namespace.
    pub(in crate::report) fn due(
        &mut self,
        namespace: &str,
        rates: &mut EventRates,
        now: Instant,
    ) -> Option<NamedEvent> {
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
