//! One planned Event → the API server, however long it takes.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::PodMetadata;
use crate::kubernetes::events::{NamedEvent, PodReference, Posted, Subject, post};
use crate::kubernetes::{ApiClient, ApiError, Problem};
use crate::pace::Backoff;
use crate::report::events::PlannedEvent;
use crate::report::metrics::ReportOutcome;
use crate::report::queue::ReportQueue;

/// The wait after the first failure, about.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest, unless the API server asks for more.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The way of Events to the API server.
#[derive(Debug)]
pub(super) struct Poster {
    client: ApiClient,
    node: String,
    metadata: Arc<dyn PodMetadata>,
    backoff: Backoff,
    connected: bool,
}

/// What became of a planned Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The API server has it.
    Posted(Posted),
    /// The API server will never take it.
    Refused,
}

/// What is done when the API server will not take an Event about a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnRefusal {
    /// The node's Event tells of it.
    AboutNode,
    /// Nothing: it would mean nothing there.
    GiveUp,
}

impl Poster {
    pub(super) const fn new(client: ApiClient, node: String, metadata: Arc<dyn PodMetadata>) -> Self {
        Self {
            client,
            node,
            metadata,
            backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT),
            connected: false,
        }
    }

    pub(super) fn metadata(&self) -> &dyn PodMetadata {
        self.metadata.as_ref()
    }

    /// Tries until the API server has it or will never take it; none once told to stop. Whatever was under way then is
    /// posted again by the next agent, under the same name.
    pub(super) async fn post(
        &mut self,
        planned: &PlannedEvent,
        otherwise: OnRefusal,
        queue: &ReportQueue,
        stop: &CancellationToken,
    ) -> Option<Outcome> {
        let mut event = self.at_the_api(planned.event.clone());
        let mut sent = ReportOutcome::Sent;
        loop {
            queue.count(
                std::mem::replace(&mut sent, ReportOutcome::SentAgain),
                planned.reports.len(),
            );
            // Cancel-safe: posting it again is harmless.
            let posted = tokio::select! {
                () = stop.cancelled() => return None,
                posted = post(&self.client, &self.node, &event) => posted,
            };
            let error = match posted {
                Ok(posted) => {
                    self.succeeded(queue);
                    return Some(Outcome::Posted(posted));
                }
                Err(error) => error,
            };
            if !is_permanent(&error.problem) {
                self.wait(&error, queue, stop).await?;
                continue;
            }
            // It did answer.
            self.succeeded(queue);
            if event.subject == Subject::Node || otherwise == OnRefusal::GiveUp {
                tracing::error!(event = event.name, "an Event is given up: {error}");
                queue.count(ReportOutcome::Refused, planned.reports.len());
                return Some(Outcome::Refused);
            }
            tracing::warn!(event = event.name, "an Event on a pod becomes one on the node: {error}");
            event = about_node(event);
        }
    }

    fn succeeded(&mut self, queue: &ReportQueue) {
        self.backoff.reset();
        if !std::mem::replace(&mut self.connected, true) {
            queue.connected();
        }
    }

    /// None once told to stop.
    async fn wait(&mut self, error: &ApiError, queue: &ReportQueue, stop: &CancellationToken) -> Option<()> {
        self.connected = false;
        let wait = self.backoff.next(error.problem.retry_after());
        tracing::warn!(%error, ?wait, "Events about OOM kills are not delivered; they are kept");
        queue.waiting(error.to_string(), Timestamp::now() + wait);
        // Cancel-safe: nothing is in hand.
        tokio::select! {
            () = stop.cancelled() => None,
            () = tokio::time::sleep(wait) => Some(()),
        }
    }

    /// The Event about the pod as the API server knows it.
    fn at_the_api(&self, mut event: NamedEvent) -> NamedEvent {
        if let Subject::Pod(reference) = &mut event.subject {
            self.metadata.resolve(reference);
        }
        event
    }
}

/// The same where the API server takes no Event about the pod.
fn about_node(event: NamedEvent) -> NamedEvent {
    let whose = match &event.subject {
        Subject::Node => String::new(),
        Subject::Pod(PodReference { pod, container, .. }) => {
            let container = container.as_ref().map(|name| format!(", container {name}"));
            format!("Pod {}/{}{}: ", pod.namespace, pod.name, container.unwrap_or_default())
        }
    };
    NamedEvent {
        subject: Subject::Node,
        message: format!("{whose}{}", event.message),
        ..event
    }
}

/// Whether the same Event will be refused however often it is sent. Rights that lack and credentials that have expired
/// can be mended, and what cannot be read may have come from something in between.
const fn is_permanent(problem: &Problem) -> bool {
    match problem {
        Problem::NotFound(_) | Problem::Refused { .. } | Problem::Expired => true,
        Problem::Timeout(_)
        | Problem::Unreachable(_)
        | Problem::Unauthorised(_)
        | Problem::Forbidden { .. }
        | Problem::Conflict(_)
        | Problem::Throttled { .. }
        | Problem::Unavailable { .. }
        | Problem::Unreadable(_) => false,
    }
}
