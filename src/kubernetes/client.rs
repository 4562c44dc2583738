//! Calls to the API server: a [`Call`] → its answer, or an [`ApiError`]. The client counts every call and limits how many are
//! under way at once.
//!
//! The client repeats no call that the API server has accepted: the caller knows how long to wait and what has changed
//! meanwhile. While the API server asks for a pause, the client refuses every call at once with the answer that asked for it.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Collected, Limited};
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::call::{Call, Verb};
use super::connect::Connection;
use super::error::{ApiError, Problem, Status};
use super::health::{ApiHealth, PATIENCE};
use super::splitter::{LARGEST_OBJECT, Layout, RawObject, Splitter};
use crate::kubernetes::metrics::ApiMetrics;
use crate::pace::{Backoff, scattered};
use crate::slots::{Class, Slot, Slots};

/// The longest duration of a call, its answer's body included, and the longest wait for a permit.
const DEADLINE: Duration = Duration::from_secs(30);

/// Calls under way at once, watches not counted, shared among the namespaces that they are about. One recommendation may concern
/// every pod of a node, and of all other nodes at the same moment.
pub(super) const CALLS_AT_ONCE: usize = 12;

/// Of these, calls that only operators make.
const OF_OPERATORS: u64 = 2;

/// Lists under way at once, also those at the beginning of a watch. Each may hold an object of the largest size.
const LISTS_AT_ONCE: u64 = 8;

/// The longest `Retry-After` that the client believes.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);

/// The longest pause of all calls after one answer: a proxy may have sent it, not the API server.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// About how much longer a pause is than the requested one, so that the pauses of many agents do not end together.
const PAUSE_SPREAD: Duration = Duration::from_secs(1);

/// The shortest and the longest pause between two probes of an API server that is away. Each probe may cost it a TLS handshake:
/// the probes of all agents must not keep it from starting.
const FIRST_PROBE: Duration = Duration::from_millis(500);
const LAST_PROBE: Duration = Duration::from_secs(30);

/// The bytes read of an answer that is no success: a `metav1.Status`, or the text of a proxy.
const LARGEST_REFUSAL: usize = 64 << 10;

/// Watches on one connection before the client makes another. API servers allow 100 or 250 streams on a connection; a watch
/// beyond that would wait until another ends.
const WATCHES_PER_CONNECTION: usize = 80;

/// The client of the API server. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("ApiClient")]
pub struct ApiClient {
    calls: Arc<Connection>,
    /// The calls that may be under way, shared among namespaces: an admission webhook that takes long for the pods of one keeps no
    /// other waiting. Calls about no namespace share as one.
    slots: Slots<String>,
    /// The lists that may be under way, shared in the same way.
    pub(super) lists: Slots<String>,
    /// The connections for watches. Every watch holds a clone of its `Arc`, also while it begins.
    watches: Arc<[Arc<Connection>]>,
    deadline: Duration,
    pub(super) metrics: ApiMetrics,
    /// Whether the API server begins watches with the list; true until it refuses.
    pub(super) streams_lists: Arc<AtomicBool>,
    /// The kinds of which the API server has stayed without any version.
    pub(super) unserved: Arc<parking_lot::Mutex<HashSet<&'static str>>>,
    /// When the pause that the API server asked for ends.
    paused: watch::Sender<Instant>,
    /// Privileged for operators' calls, which ignore pauses.
    class: Class,
    /// Whether the API server answers.
    pub health: ApiHealth,
}

impl ApiClient {
    pub(super) fn new(calls: Connection, watches: impl IntoIterator<Item = Connection>, metrics: ApiMetrics) -> Self {
        Self {
            calls: Arc::new(calls),
            slots: Slots::new(CALLS_AT_ONCE as u64, OF_OPERATORS),
            lists: Slots::new(LISTS_AT_ONCE, 0),
            watches: watches.into_iter().map(Arc::new).collect(),
            deadline: DEADLINE,
            metrics,
            streams_lists: Arc::new(AtomicBool::new(true)),
            unserved: Arc::default(),
            paused: watch::Sender::new(Instant::now()),
            class: Class::Ordinary,
            health: ApiHealth::default(),
        }
    }

    /// The same client for an operator's calls, which ignore pauses and have a deadline of one second.
    #[must_use]
    pub fn for_operators(&self) -> Self {
        Self {
            class: Class::Privileged,
            deadline: PATIENCE,
            ..self.clone()
        }
    }

    /// Starts a task that probes `/readyz` while the API server may be away, until `stop`. The API server is
    /// away until its first answer.
    pub fn keep_probing(&self, stop: CancellationToken) {
        self.health.begin_unknown();
        let client = self.clone();
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            let mut pauses = Backoff::new(FIRST_PROBE, LAST_PROBE);
            loop {
                client.health.outage_suspected().await;
                client.probe().await;
                if client.health.away().is_some() {
                    sleep(pauses.next(None)).await;
                } else {
                    pauses.reset();
                }
            }
        }));
    }

    async fn probe(&self) {
        let mut request = Request::default();
        *request.uri_mut() = Uri::from_static("/readyz");
        let mut sent = pin!(self.calls.send(request));
        let mut answer = timeout(PATIENCE, &mut sent).await;
        if answer.is_err() {
            // The API server may be busy with handshakes. A probe that gives up would begin another handshake.
            self.health.observe::<()>(&Err(Problem::Timeout(PATIENCE)));
            answer = timeout(self.deadline, sent).await;
        }
        let answer = match answer {
            Err(_) => Err(Problem::Timeout(self.deadline)),
            Ok(Err(error)) => Err(broken(error.as_ref())),
            // An API server that is not ready answers 500, as does a call that fails.
            Ok(Ok(response)) if response.status().is_server_error() => Err(Problem::Refused(Status {
                code: 503,
                message: format!("/readyz answers {}", response.status().as_u16()),
                ..Status::default()
            })),
            Ok(Ok(_)) => Ok(()),
        };
        self.count(Verb::Get, "readyz".to_owned(), &answer);
    }

    /// Records the outcome of a call in metrics and health.
    fn count<T>(&self, verb: Verb, resource: String, outcome: &Result<T, Problem>) {
        let code = outcome.as_ref().map_or_else(Problem::code, |_| "200".to_owned());
        self.metrics.called(verb, resource, code);
        self.health.observe(outcome);
    }

    /// Refuses a call during a pause.
    fn check_pause(&self, call: &Call) -> Result<(), ApiError> {
        let left = self.paused.borrow().saturating_duration_since(Instant::now());
        if self.class == Class::Privileged || left.is_zero() {
            return Ok(());
        }
        let paused = Status {
            code: 429,
            message: "the server asked an earlier call to wait".to_owned(),
            retry_after: Some(left),
            ..Status::default()
        };
        Err(ApiError::of(call, Problem::Refused(paused)))
    }

    /// Waits until the call's namespace may have one more call under way.
    ///
    /// Errors: no other call ends within the deadline, which says nothing about the API server.
    async fn permit(&self, call: &Call) -> Result<Slot<String>, ApiError> {
        let namespace = call.namespace.clone().unwrap_or_default();
        if let Ok(permit) = timeout(self.deadline, self.slots.wait(&namespace, self.class)).await {
            return self.check_pause(call).map(|()| permit);
        }
        if self.class == Class::Privileged {
            // An operator waits no longer, and has the values in the kernel meanwhile.
            return Err(ApiError::of(call, Problem::Timeout(self.deadline)));
        }
        let busy = Status {
            code: 429,
            message: format!("the agent's other calls took more than {} s", self.deadline.as_secs()),
            ..Status::default()
        };
        Err(ApiError::of(call, Problem::Refused(busy)))
    }

    /// Makes a call without a body and decodes the answer.
    pub async fn read<T: DeserializeOwned>(&self, call: &Call) -> Result<T, ApiError> {
        self.exchange(call, None, Duration::MAX).await
    }

    /// Makes a call with a body: a new object, or a strategic merge patch.
    pub async fn send<T: DeserializeOwned>(&self, call: &Call, body: &Value) -> Result<T, ApiError> {
        self.exchange(call, Some(body), Duration::MAX).await
    }

    /// Begins a list.
    ///
    /// Errors: [`ApiError`], until the API server has begun to answer.
    pub(super) async fn list(&self, call: &Call) -> Result<ObjectStream, ApiError> {
        let permit = self.permit(call).await?;
        let opened = self.open(&self.calls, call, None).await;
        let mut stream = self.record(call, opened)?;
        stream._permit = Some(permit);
        Ok(stream)
    }

    /// Begins a watch, which needs no permit: watches are few and last.
    ///
    /// Errors: [`ApiError`], until the API server has begun to answer.
    pub(super) async fn watch(&self, call: &Call) -> Result<ObjectStream, ApiError> {
        self.check_pause(call)?;
        let connection = Arc::clone(&self.watches[roomiest(self.watches.iter().map(|one| Arc::strong_count(one) - 1))]);
        // Without a connection, one watch makes it and the others wait: each would make a connection of its own and drop it
        // after the handshake. Cancel-safe: a dropped lock attempt loses only its place in the queue.
        let first = tokio::select! {
            first = connection.begun.lock() => first,
            () = self.health.lasting_outage() => return Err(ApiError::of(call, Problem::Timeout(PATIENCE))),
        };
        let _first = (Arc::strong_count(&connection.begun) == 1).then_some(first);
        let opened = self.open(&connection, call, None).await;
        let mut stream = self.record(call, opened)?;
        stream._watch = Some((Arc::clone(&connection), Arc::clone(&connection.begun)));
        Ok(stream)
    }

    /// Makes a call whose answer is one object. The caller waits so long for the answer, not counting the wait for a permit. A call
    /// that is given up says nothing about the API server: an admission webhook may take long.
    pub(super) async fn exchange<T: DeserializeOwned>(
        &self,
        call: &Call,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<T, ApiError> {
        let _permit = self.permit(call).await?;
        let answer = async {
            let mut stream = self.open(&self.calls, call, body).await?;
            let answer = stream.next().await?;
            // A connection is free for another call only once the answer is read to its end.
            while stream.next().await?.is_some() {}
            match answer {
                Some(RawObject::Object(text)) => Ok(text),
                Some(_) => Err(Problem::Unreadable(format!(
                    "an object of more than {LARGEST_OBJECT} bytes, its long strings left out"
                ))),
                None => Err(Problem::Unreadable("no object in JSON".to_owned())),
            }
        };
        // Cancel-safe: a dropped call counts as one without an answer.
        let answer = tokio::select! {
            answer = timeout(self.deadline, answer) => answer.unwrap_or(Err(Problem::Timeout(self.deadline))),
            () = self.health.lasting_outage() => Err(Problem::Timeout(PATIENCE)),
            () = sleep(patience) => return Err(ApiError::of(call, Problem::Timeout(patience))),
        };
        let answer = self.record(call, answer)?;
        let mut text = serde_json::Deserializer::from_slice(&answer);
        serde_path_to_error::deserialize(&mut text)
            .map_err(|error| ApiError::of(call, Problem::Unreadable(error.to_string())))
    }

    /// Sends a call and waits for the head of a successful answer.
    async fn open(&self, to_server: &Connection, call: &Call, body: Option<&Value>) -> Result<ObjectStream, Problem> {
        let request = request(call, body).map_err(|error| Problem::Unreadable(format!("the call itself: {error}")))?;
        let response = timeout(self.deadline, to_server.send(request))
            .await
            .map_err(|_| Problem::Timeout(self.deadline))?
            .map_err(|error| broken(error.as_ref()))?;
        if !response.status().is_success() {
            return Err(self.refusal(call, response).await);
        }
        let layout = match call.verb {
            Verb::List => Layout::List,
            Verb::Get | Verb::Watch | Verb::Create | Verb::Patch => Layout::Objects,
        };
        Ok(ObjectStream {
            body: response.into_body(),
            splitter: Splitter::new(layout),
            health: self.health.clone(),
            _permit: None,
            _watch: None,
        })
    }

    /// Reads an answer that is no success.
    async fn refusal(&self, call: &Call, response: Response<Body>) -> Problem {
        let (code, retry_after) = (response.status(), retry_after(response.headers()));
        let body = Limited::new(response.into_body(), LARGEST_REFUSAL).collect();
        let body = timeout(self.deadline, body).await.ok().and_then(Result::ok);
        // Only a webhook writes more than that. What it asks for is about one object.
        let retry_after = retry_after.filter(|_| body.is_some());
        let body = body.map(Collected::to_bytes).unwrap_or_default();
        Problem::of(Status::read(code, &body, retry_after), call)
    }

    /// Records the outcome of a call. An error may begin a pause of all calls, a little longer than the API server asks for.
    fn record<T>(&self, call: &Call, outcome: Result<T, Problem>) -> Result<T, ApiError> {
        self.count(call.verb, call.resource(), &outcome);
        self.health.observe_rights(call, &outcome);
        outcome.map_err(|problem| {
            if let Some(asked_for) = problem.pause() {
                let until = Instant::now() + asked_for.min(LONGEST_PAUSE) + scattered(PAUSE_SPREAD);
                self.paused.send_modify(|paused| *paused = until.max(*paused));
            }
            ApiError::of(call, problem)
        })
    }
}

fn request(call: &Call, body: Option<&Value>) -> http::Result<Request<String>> {
    let (method, kind) = match call.verb {
        Verb::Get | Verb::List | Verb::Watch => (Method::GET, "application/json"),
        Verb::Create => (Method::POST, "application/json"),
        Verb::Patch => (Method::PATCH, "application/strategic-merge-patch+json"),
    };
    let request = Request::builder().method(method).uri(call.path());
    request
        .header(ACCEPT, "application/json")
        .header(CONTENT_TYPE, kind)
        .body(body.map(Value::to_string).unwrap_or_default())
}

/// The index of the connection for the next watch: the first with room, or else the one with the fewest watches.
fn roomiest(open: impl IntoIterator<Item = usize>) -> usize {
    let least = |open: usize| if open < WATCHES_PER_CONNECTION { 0 } else { open };
    let roomiest = open.into_iter().enumerate().min_by_key(|(_, open)| least(*open));
    roomiest.map_or(0, |(index, _)| index)
}

/// The problem of a connection that cannot be made, or broke: the innermost cause.
fn broken(error: &(dyn std::error::Error + 'static)) -> Problem {
    let innermost = anyhow::Chain::new(error).next_back();
    Problem::Unreachable(innermost.unwrap_or(error).to_string())
}

/// Whole seconds; the API server gives no dates.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_WAIT))
}

/// The objects of an answer as they arrive.
#[derive(derive_more::Debug)]
pub(super) struct ObjectStream {
    body: Body,
    splitter: Splitter,
    health: ApiHealth,
    /// A list holds its permit until its answer is read.
    _permit: Option<Slot<String>>,
    /// A watch's place on its connection.
    #[debug(skip)]
    _watch: Option<(Arc<Connection>, Arc<Mutex<()>>)>,
}

impl ObjectStream {
    /// The next object; none at the end of the answer. Cancel-safe.
    ///
    /// Errors: [`Problem::Unreachable`] when the connection breaks.
    pub(super) async fn next(&mut self) -> Result<Option<RawObject>, Problem> {
        loop {
            if let Some(piece) = self.splitter.next() {
                return Ok(Some(piece));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.splitter.push(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => {
                    self.health.suspect_outage();
                    return Err(broken(&error));
                }
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests;
