//! The task that writes Events.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::limits::{Limits, Ticket, Write};
use super::{EVENTS, EventMessage, NamedEvent, Subject, post};
use crate::failpoint::failpoint;
use crate::kubernetes::call::{Call, Verb};
use crate::kubernetes::client::ApiClient;
use crate::kubernetes::error::ApiError;
use crate::kubernetes::metrics::{EventMetrics, EventOutcome};
use crate::pace::Backoff;

pub(super) struct Writer {
    client: ApiClient,
    node: String,
    limits: Limits,
    counted: EventMetrics,
    /// Tells this writer's Events from those of one before it.
    run: Timestamp,
}

impl Writer {
    pub(super) fn new(client: ApiClient, node: String, counted: EventMetrics) -> Self {
        Self {
            client,
            node,
            limits: Limits::new(Instant::now().into_std()),
            counted,
            run: Timestamp::now(),
        }
    }

    /// Writes until the last recorder is gone.
    pub(super) async fn run(mut self, mut messages: mpsc::Receiver<EventMessage>) {
        const LONG: Duration = Duration::from_secs(3600);
        let now = || Instant::now().into_std();
        loop {
            let due = self.limits.next_due(now()).unwrap_or(LONG);
            // Cancel-safe: `recv` loses nothing, the other only tells the time.
            let new = tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => self.limits.record(message, now()),
                    None => return,
                },
                () = sleep(due) => None,
            };
            // Also after a message: messages without a pause must not put off what is due.
            if let Some(write) = new.or_else(|| self.limits.due(now())) {
                self.write(&write).await;
            }
            let held_back = self.limits.take_held_back();
            self.counted.count(EventOutcome::HeldBack, held_back);
        }
    }

    /// Writes one Event, however long the API server is away. What it refuses is given up.
    async fn write(&self, write: &Write) {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        loop {
            let error = match self.attempt(write).await {
                Ok(()) => {
                    failpoint("event.posted");
                    return self.counted.count(EventOutcome::Written, 1);
                }
                Err(error) => error,
            };
            if !error.problem.is_retryable() {
                tracing::warn!("an Event was not written: {error}");
                return self.counted.count(EventOutcome::Lost, 1);
            }
            tracing::debug!("an Event waits: {error}");
            sleep(backoff.next(error.problem.retry_after())).await;
        }
    }

    async fn attempt(&self, write: &Write) -> Result<(), ApiError> {
        let Write { message, ticket, count } = write;
        let (now, name) = (Timestamp::now(), self.name(message, *ticket));
        if *count > 1 {
            let call = Call::new(Verb::Patch, EVENTS)
                .within(Some(&message.about.pod.namespace))
                .named(&name);
            let patch = post::repeated(&message.message, *count, now);
            match self.client.send::<Value>(&call, &patch).await {
                Ok(_) => return Ok(()),
                // The API server has forgotten it.
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
        // An Event that exists is one of an attempt before this one.
        post(&self.client, &self.node, &event).await.map(drop)
    }

    fn name(&self, message: &EventMessage, ticket: Ticket) -> String {
        let number = self.run.as_nanosecond() + i128::from(ticket);
        post::name(&message.about.pod.name, &format!("{number:x}"))
    }
}
