//! Calls to the API server: a [`Call`] → its answer, or an [`ApiError`]. The client counts every call and limits how many are
//! under way at once.
//!
//! The client never repeats a call: the caller knows how long to wait and what has changed meanwhile. While the API server asks
//! for a pause, the client refuses every call at once with the answer that asked for it.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Collected, Limited};
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::call::{Call, Verb};
use super::error::{ApiError, Problem, Status};
use super::health::{ApiHealth, PATIENCE};
use super::splitter::{LARGEST_OBJECT, Layout, RawObject, Splitter};
use crate::kubernetes::metrics::ApiMetrics;
use crate::pace::{Backoff, scattered};

/// The longest duration of a call, its answer's body included, and the longest wait for a permit.
const DEADLINE: Duration = Duration::from_secs(30);

/// Calls under way at once, watches not counted. One recommendation may concern every pod of a node, and of all other
/// nodes at the same moment.
pub(super) const CALLS_AT_ONCE: usize = 10;

/// The longest `Retry-After` that the client believes.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);

/// The longest pause of all calls after one answer: a proxy's answer does not speak for the whole API server.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// About how much longer a pause is than asked for, so that the pauses of many agents do not end together.
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

struct WatchConnection {
    client: kube::Client,
    /// Every watch holds a clone, also while it begins.
    all: Arc<()>,
    /// Every watch that has begun holds a clone. Without one there may be no connection: the watch that makes
    /// the connection holds the lock.
    begun: Arc<Mutex<()>>,
}

/// The client of the API server. Cheap to clone.
#[derive(Clone)]
pub struct ApiClient {
    calls: kube::Client,
    permits: Arc<Semaphore>,
    watches: Arc<[WatchConnection]>,
    deadline: Duration,
    pub(super) metrics: ApiMetrics,
    /// Whether the API server begins watches with the list; true until it refuses.
    streams_lists: Arc<AtomicBool>,
    /// When the pause that the API server asked for ends.
    paused: Arc<std::sync::Mutex<Option<Instant>>>,
    keeps_pauses: bool,
    /// Whether the API server answers.
    pub health: ApiHealth,
}

impl std::fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiClient")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl ApiClient {
    pub(super) fn new(
        calls: kube::Client,
        watches: impl IntoIterator<Item = kube::Client>,
        metrics: ApiMetrics,
    ) -> Self {
        let unused = |client| WatchConnection {
            client,
            all: Arc::default(),
            begun: Arc::default(),
        };
        Self {
            calls,
            permits: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            watches: watches.into_iter().map(unused).collect(),
            deadline: DEADLINE,
            metrics,
            streams_lists: Arc::new(AtomicBool::new(true)),
            paused: Arc::default(),
            keeps_pauses: true,
            health: ApiHealth::default(),
        }
    }

    /// The same client for an operator's calls, which ignore pauses and have a deadline of one second.
    #[must_use]
    pub fn for_operators(&self) -> Self {
        Self {
            keeps_pauses: false,
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
        let mut answer = pin!(async {
            let request = Request::builder().uri("/readyz").body(Body::empty());
            let request = request.map_err(|error| Problem::Unreadable(error.to_string()))?;
            let response = self.calls.send(request).await.map_err(|error| broken(&error))?;
            // An API server that is not ready answers 500, as does a call that fails.
            match response.status().as_u16() {
                code @ 500.. => Err(Problem::Refused(Status {
                    code: 503,
                    message: format!("/readyz answers {code}"),
                    ..Status::default()
                })),
                _ => Ok(()),
            }
        });
        let answer = match timeout(PATIENCE, &mut answer).await {
            Ok(answer) => answer,
            // The API server may be busy with handshakes. A probe that gives up would begin another handshake.
            Err(_) => {
                self.health.observe::<()>(&Err(Problem::Timeout(PATIENCE)));
                let answer = timeout(self.deadline, answer).await;
                answer.unwrap_or(Err(Problem::Timeout(self.deadline)))
            }
        };
        let code = answer.as_ref().map_or_else(Problem::code, |()| "200".to_owned());
        self.metrics.called(Verb::Get, "readyz".to_owned(), code);
        self.health.observe(&answer);
    }

    /// Refuses a call during a pause.
    fn check_pause(&self, call: &Call) -> Result<(), ApiError> {
        let until = *self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let retry_after = left.filter(|left| self.keeps_pauses && !left.is_zero());
        if retry_after.is_none() {
            return Ok(());
        }
        let paused = Status {
            code: 429,
            message: "so another call was told".to_owned(),
            retry_after,
            ..Status::default()
        };
        Err(ApiError::of(call, Problem::Refused(paused)))
    }

    /// Begins a pause of all calls, a little longer than the API server asks for.
    fn pause(&self, asked_for: Duration) {
        let until = Instant::now() + asked_for.min(LONGEST_PAUSE) + scattered(PAUSE_SPREAD);
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        *paused = (*paused).max(Some(until));
    }

    /// Whether the API server begins watches with the list. True until it refuses.
    pub(super) fn streams_lists(&self) -> bool {
        self.streams_lists.load(Ordering::Relaxed)
    }

    pub(super) fn streams_no_lists(&self) {
        tracing::debug!("the API server does not begin watches with lists");
        self.streams_lists.store(false, Ordering::Relaxed);
    }

    /// Waits for the permit to make a call, and further calls after it.
    ///
    /// Errors: [`Problem::Timeout`] when no other call ends within the deadline.
    pub async fn permit(&self, call: &Call) -> Result<CallPermit<'_>, ApiError> {
        match timeout(self.deadline, self.permits.acquire()).await {
            Ok(permit) => {
                self.check_pause(call)?;
                Ok(CallPermit {
                    client: self,
                    // The semaphore is never closed.
                    _permit: permit.ok(),
                })
            }
            Err(_) => self.record(call, Err(Problem::Timeout(self.deadline))),
        }
    }

    /// Makes a call without a body and decodes the answer.
    pub async fn read<T: DeserializeOwned>(&self, call: &Call) -> Result<T, ApiError> {
        self.permit(call).await?.exchange(call, None).await
    }

    /// Makes a call with a body: a new object, or a strategic merge patch.
    pub async fn send<T: DeserializeOwned>(&self, call: &Call, body: &Value) -> Result<T, ApiError> {
        self.permit(call).await?.send(call, body).await
    }

    /// Begins a list.
    ///
    /// Errors: [`ApiError`], until the API server has begun to answer.
    pub(super) async fn list(&self, call: &Call) -> Result<ObjectStream<'_>, ApiError> {
        let permit = self.permit(call).await?;
        let mut stream: ObjectStream<'_> = self.record(call, self.open(&self.calls, call, None, Layout::List).await)?;
        stream._permit = Some(permit);
        Ok(stream)
    }

    /// Begins a watch, which needs no permit: watches are few and last.
    ///
    /// Errors: [`ApiError`], until the API server has begun to answer.
    pub(super) async fn watch(&self, call: &Call) -> Result<ObjectStream<'static>, ApiError> {
        self.check_pause(call)?;
        let open = self
            .watches
            .iter()
            .map(|connection| Arc::strong_count(&connection.all) - 1);
        let WatchConnection { client, all, begun } = &self.watches[roomiest(open)];
        let all = Arc::clone(all);
        // Without a connection, one watch makes it and the others wait: each would make a connection of its own and drop it
        // after the handshake. Cancel-safe: a dropped lock attempt loses only its place in the queue.
        let first = tokio::select! {
            first = begun.lock() => first,
            () = self.health.lasting_outage() => return Err(ApiError::of(call, Problem::Timeout(PATIENCE))),
        };
        let _first = (Arc::strong_count(begun) == 1).then_some(first);
        let mut stream = self.record(call, self.open(client, call, None, Layout::Objects).await)?;
        stream._watch = Some((all, Arc::clone(begun)));
        Ok(stream)
    }

    /// Makes a call whose answer is one object, and returns its text.
    async fn exchange(&self, call: &Call, body: Option<&Value>) -> Result<Vec<u8>, Problem> {
        let exchanged = async {
            let mut stream = self.open(&self.calls, call, body, Layout::Objects).await?;
            let answer = stream.next().await?;
            // A connection is free for another call only once the answer is read to its end.
            while stream.next().await?.is_some() {}
            match answer {
                Some(RawObject::Object(object)) => Ok(object),
                Some(RawObject::TooLarge(_)) => Err(Problem::Unreadable(format!(
                    "an object of more than {LARGEST_OBJECT} bytes, its long strings left out"
                ))),
                None => Err(Problem::Unreadable("no object in JSON".to_owned())),
            }
        };
        // Cancel-safe: a dropped call counts as one without an answer.
        tokio::select! {
            exchanged = timeout(self.deadline, exchanged) => exchanged.unwrap_or(Err(Problem::Timeout(self.deadline))),
            () = self.health.lasting_outage() => Err(Problem::Timeout(PATIENCE)),
        }
    }

    /// Sends a call and waits for the head of a successful answer.
    async fn open(
        &self,
        client: &kube::Client,
        call: &Call,
        body: Option<&Value>,
        layout: Layout,
    ) -> Result<ObjectStream<'static>, Problem> {
        let sent = async {
            let request =
                request(call, body).map_err(|error| Problem::Unreadable(format!("the call itself: {error}")))?;
            client.send(request).await.map_err(|error| broken(&error))
        };
        let response = timeout(self.deadline, sent)
            .await
            .map_err(|_| Problem::Timeout(self.deadline))??;
        if !response.status().is_success() {
            return Err(self.refusal(call, response).await);
        }
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
        let body = body.map(Collected::to_bytes).unwrap_or_default();
        Problem::of(Status::read(code, &body, retry_after), call)
    }

    /// Records the outcome of a call in metrics, health and pause.
    fn record<T>(&self, call: &Call, outcome: Result<T, Problem>) -> Result<T, ApiError> {
        let code = outcome.as_ref().map_or_else(Problem::code, |_| "200".to_owned());
        self.metrics.called(call.verb, call.resource(), code);
        self.health.observe(&outcome);
        outcome.map_err(|problem| {
            if let Some(asked_for) = problem.retry_after() {
                self.pause(asked_for);
            }
            ApiError::of(call, problem)
        })
    }
}

/// The permit to make calls, one after the other.
#[derive(Debug)]
pub struct CallPermit<'a> {
    client: &'a ApiClient,
    _permit: Option<SemaphorePermit<'a>>,
}

impl CallPermit<'_> {
    /// Makes a call with a body, as [`ApiClient::send`] does.
    pub async fn send<T: DeserializeOwned>(&self, call: &Call, body: &Value) -> Result<T, ApiError> {
        self.exchange(call, Some(body)).await
    }

    async fn exchange<T: DeserializeOwned>(&self, call: &Call, body: Option<&Value>) -> Result<T, ApiError> {
        let answer = self.client.record(call, self.client.exchange(call, body).await)?;
        let mut text = serde_json::Deserializer::from_slice(&answer);
        serde_path_to_error::deserialize(&mut text)
            .map_err(|error| ApiError::of(call, Problem::Unreadable(error.to_string())))
    }
}

fn request(call: &Call, body: Option<&Value>) -> anyhow::Result<Request<Body>> {
    let request = Request::builder()
        .method(call.verb.method())
        .uri(call.path())
        .header(ACCEPT, "application/json");
    let Some(body) = body else {
        return Ok(request.body(Body::empty())?);
    };
    let kind = match call.verb {
        Verb::Patch => "application/strategic-merge-patch+json",
        Verb::Get | Verb::List | Verb::Watch | Verb::Create => "application/json",
    };
    Ok(request
        .header(CONTENT_TYPE, kind)
        .body(serde_json::to_vec(body)?.into())?)
}

/// The index of the connection for the next watch: the first with room, or else the one with the fewest watches.
fn roomiest(open: impl IntoIterator<Item = usize>) -> usize {
    let least = |open: usize| if open < WATCHES_PER_CONNECTION { 0 } else { open };
    let roomiest = open.into_iter().enumerate().min_by_key(|(_, open)| least(*open));
    roomiest.map_or(0, |(index, _)| index)
}

/// The problem of a connection that cannot be made, or broke: the innermost cause.
fn broken(error: &dyn std::error::Error) -> Problem {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    Problem::Unreachable(innermost.to_string())
}

/// Whole seconds; the API server gives no dates.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_WAIT))
}

/// The objects of an answer as they arrive.
#[derive(Debug)]
pub(super) struct ObjectStream<'a> {
    body: Body,
    splitter: Splitter,
    health: ApiHealth,
    /// A list holds its permit until its answer is read.
    _permit: Option<CallPermit<'a>>,
    /// A watch's place on its [`WatchConnection`].
    _watch: Option<(Arc<()>, Arc<Mutex<()>>)>,
}

impl ObjectStream<'_> {
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

    /// The text of a list beside its objects, once the objects are read.
    ///
    /// Errors: [`Problem::Unreachable`] when the answer broke off.
    pub(super) fn envelope(&self) -> Result<&[u8], Problem> {
        match self.splitter.rest() {
            (envelope, true) => Ok(envelope),
            (_, false) => Err(Problem::Unreachable("the answer broke off".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
