//! The task that writes Events.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::limits::{EventLimits, EventWrite, Ticket};
use super::{EVENTS, EventMessage, NamedEvent, Subject, post};
use crate::failpoint::failpoint;
use crate::kubernetes::call::{Call, Verb};
use crate::kubernetes::client::ApiClient;
use crate::kubernetes::error::ApiError;
use crate::kubernetes::metrics::{EventMetrics, EventOutcome};
use crate::pace::Backoff;

pub(super) struct EventWriter {
    pub(super) client: ApiClient,
    pub(super) node: String,
    pub(super) limits: EventLimits,
    pub(super) metrics: EventMetrics,
    /// The start of this writer, which its Events have in their names.
    pub(super) started: Timestamp,
}

impl EventWriter {
    /// Writes until the last recorder is gone.
    pub(super) async fn run(mut self, mut messages: mpsc::Receiver<EventMessage>) {
        const LONG: Duration = Duration::from_secs(3600);
        let now = || Instant::now().into_std();
        loop {
            let due = self.limits.next_due(now()).unwrap_or(LONG);
            // Cancel-safe: `recv` loses no message.
            let new = tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => self.limits.record(message, now()),
                    None => return,
                },
                () = sleep(due) => None,
            };
            // Also after a message, so that a stream of messages does not delay due changes.
            if let Some(write) = new.or_else(|| self.limits.due(now())) {
                self.write(&write).await;
            }
            let held_back = self.limits.take_held_back();
            self.metrics.count(EventOutcome::HeldBack, held_back);
        }
    }

    /// Writes one Event, and waits for the end of an outage. Drops an Event that the API server refuses.
    async fn write(&self, write: &EventWrite) {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        loop {
            let error = match self.attempt(write).await {
                Ok(()) => {
                    failpoint("event.posted");
                    return self.metrics.count(EventOutcome::Written, 1);
                }
                Err(error) => error,
            };
            if !error.problem.is_retryable() {
                tracing::warn!("an Event was not written: {error}");
                return self.metrics.count(EventOutcome::Lost, 1);
            }
            tracing::debug!("an Event waits: {error}");
            sleep(backoff.next(error.problem.retry_after())).await;
        }
    }

    async fn attempt(&self, write: &EventWrite) -> Result<(), ApiError> {
        let EventWrite { message, ticket, count } = write;
        let (now, name) = (Timestamp::now(), self.name(message, *ticket));
        if *count > 1 {
            let call = Call::new(Verb::Patch, EVENTS)
                .within(Some(&message.about.pod.namespace))
                .named(&name);
            let patch = post::repeated(&message.message, *count, now);
            match self.client.send::<Value>(&call, &patch).await {
                Ok(_) => return Ok(()),
                // The API server has forgotten the Event.
                Err(error) if error.problem.status() == Some(404) => {}
                Err(error) => return Err(error),
            }
        }
        let event = NamedEvent {
            name,
            subject: Subject::Pod(message.about.clone()),
            severity: message.severity,
            reason: message.reason,
            message: message.message.clone(),
            first: now,
            last: now,
            count: (*count).into(),
            annotations: Vec::new(),
        };
        // An existing Event is from an earlier attempt.
        post(&self.client, &self.node, &event).await.map(drop)
    }

    fn name(&self, message: &EventMessage, ticket: Ticket) -> String {
        let number = self.started.as_nanosecond() + i128::from(ticket);
        post::name(&message.about.pod.name, &format!("{number:x}"))
    }
}
