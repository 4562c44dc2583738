//! The task that writes Events.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::limits::{Limits, Ticket, Write};
use super::{EVENTS, Saying, body};
use crate::kubernetes::call::{Call, Verb};
use crate::kubernetes::client::ApiClient;
use crate::kubernetes::error::{ApiError, Problem};
use crate::kubernetes::metrics::EventMetrics;
use crate::pace::Backoff;

pub(super) struct Writer {
    client: ApiClient,
    node: String,
    limits: Limits,
    counted: EventMetrics,
    started: Instant,
    /// Tells this writer's Events from those of one before it.
    run: jiff::Timestamp,
}

impl Writer {
    pub(super) fn new(client: ApiClient, node: String, counted: EventMetrics) -> Self {
        Self {
            client,
            node,
            limits: Limits::new(),
            counted,
            started: Instant::now(),
            run: jiff::Timestamp::now(),
        }
    }

    /// Writes until nobody says anything any more.
    pub(super) async fn run(mut self, mut said: mpsc::Receiver<Saying>) {
        const LONG: Duration = Duration::from_secs(3600);
        loop {
            let due = self.limits.next_due(self.started.elapsed()).unwrap_or(LONG);
            // Cancel-safe: `recv` loses nothing, the other only tells the time.
            let new = tokio::select! {
                saying = said.recv() => match saying {
                    Some(saying) => self.limits.say(saying, self.started.elapsed()),
                    None => return,
                },
                () = sleep(due) => None,
            };
            // Also when something was said: whoever never pauses would put off what is due for ever.
            if let Some(write) = new.or_else(|| self.limits.due(self.started.elapsed())) {
                self.write(&write).await;
            }
            self.counted.held_back(self.limits.take_held_back());
        }
    }

    /// Writes one Event, however long the API server is away. What it refuses is given up.
    async fn write(&self, write: &Write) {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        loop {
            let error = match self.attempt(write).await {
                Ok(()) => return self.counted.written(),
                Err(error) => error,
            };
            if !error.problem.is_retryable() {
                tracing::warn!("an Event was not written: {error}");
                return self.counted.lost();
            }
            tracing::debug!("an Event waits: {error}");
            sleep(backoff.next(error.problem.retry_after())).await;
        }
    }

    async fn attempt(&self, write: &Write) -> Result<(), ApiError> {
        let now = jiff::Timestamp::now();
        match write {
            Write::New(saying, ticket) => self.create(saying, *ticket, 1, now).await,
            Write::Again { saying, ticket, count } => {
                let name = body::name(&saying.about.pod, &self.once(*ticket));
                let call = Call::new(Verb::Patch, EVENTS)
                    .within(Some(&saying.about.namespace))
                    .named(&name);
                match self
                    .client
                    .send::<Value>(&call, &body::again(&saying.message, *count, now))
                    .await
                {
                    Ok(_) => Ok(()),
                    // The API server has forgotten it.
                    Err(error) if matches!(error.problem, Problem::NotFound(_)) => {
                        self.create(saying, *ticket, *count, now).await
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }

    async fn create(&self, saying: &Saying, ticket: Ticket, count: u32, now: jiff::Timestamp) -> Result<(), ApiError> {
        let event = body::event(&self.node, saying, &self.once(ticket), count, now);
        let call = Call::new(Verb::Create, EVENTS).within(Some(&saying.about.namespace));
        match self.client.send::<Value>(&call, &event).await {
            Ok(_) => Ok(()),
            // An attempt before this one was not in vain.
            Err(error) if matches!(error.problem, Problem::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn once(&self, ticket: Ticket) -> String {
        format!("{} {} {ticket}", self.node, self.run)
    }
}
