//! Calls to the API server: a [`Call`] → its answer, or an [`ApiError`]. Every call is counted, and few are made at once.
//!
//! Nothing is retried here: who calls knows what else has happened meanwhile, and how long it was told to wait. Where the
//! API server asks to be left alone, no call is made until then, whoever was told: callers get the same answer at once.

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
use super::pieces::{LARGEST_OBJECT, Layout, Piece, Splitter};
use crate::kubernetes::metrics::ApiMetrics;
use crate::pace::{Backoff, scattered};

/// How long a call may take, its answer's body included; and how long may be waited for the turn to make it.
const DEADLINE: Duration = Duration::from_secs(30);

/// Calls under way at once, watches apart; others wait for their turn. One recommendation may concern every pod of a node,
/// and of all other nodes at the same moment.
pub(super) const CALLS_AT_ONCE: usize = 10;

/// The longest that the API server is left alone because it asks for it: what asks for more is broken.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);

/// The longest pause of all calls that one answer brings about: not everything that answers speaks for all of the API server.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// About how much longer a pause is than asked for, so that not all agents end theirs together.
const PAUSE_SPREAD: Duration = Duration::from_secs(1);

/// The pauses between two probes of an API server that is away: about as long as it has been away, up to half a minute. Each
/// may be a handshake with one that starts, and all agents together may not keep it from starting.
const FIRST_PROBE: Duration = Duration::from_millis(500);
const LAST_PROBE: Duration = Duration::from_secs(30);

/// How much of an answer that is no success is read: a `metav1.Status`, or whatever stands between here and the API server.
const LARGEST_REFUSAL: usize = 64 << 10;

/// Watches on one connection before another is made. API servers allow 100 or 250 streams, and what is more would
/// wait until a watch ends.
const WATCHES_PER_CONNECTION: usize = 80;

/// What its watches hold, and what those of them hold that have begun: without one there may be no connection, and who makes
/// it holds the lock.
type WatchConnection = (kube::Client, Arc<()>, Arc<Mutex<()>>);

/// The way to the API server. Cheap to clone.
#[derive(Clone)]
pub struct ApiClient {
    calls: kube::Client,
    /// What is left of [`CALLS_AT_ONCE`].
    turns: Arc<Semaphore>,
    watches: Arc<[WatchConnection]>,
    deadline: Duration,
    /// What is counted about the way to the API server.
    pub(super) counted: ApiMetrics,
    /// Whether the API server may begin watches with what is there already.
    streams_lists: Arc<AtomicBool>,
    /// Until when the API server is left alone.
    paused: Arc<std::sync::Mutex<Option<Instant>>>,
    keeps_pauses: bool,
    /// Whether the API server answers, as far as is known.
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
        counted: ApiMetrics,
    ) -> Self {
        let unused = |client| (client, Arc::default(), Arc::default());
        Self {
            calls,
            turns: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            watches: watches.into_iter().map(unused).collect(),
            deadline: DEADLINE,
            counted,
            streams_lists: Arc::new(AtomicBool::new(true)),
            paused: Arc::default(),
            keeps_pauses: true,
            health: ApiHealth::default(),
        }
    }

    /// The same, for calls that somebody waits for: they are made whatever pause others keep, and have a second.
    #[must_use]
    pub fn for_operators(&self) -> Self {
        Self {
            keeps_pauses: false,
            deadline: PATIENCE,
            ..self.clone()
        }
    }

    /// Asks whether the API server is ready whenever it may be away, until told to stop. Until the first answer it is away.
    pub fn keep_probing(&self, stop: CancellationToken) {
        self.health.begin();
        let client = self.clone();
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            let mut pauses = Backoff::new(FIRST_PROBE, LAST_PROBE);
            loop {
                client.health.doubtful().await;
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
            // One that is not ready says 500, which a call that fails does as well.
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
            // It is away, and busy perhaps with handshakes: who gives one up begins another.
            Err(_) => {
                self.health.observe::<()>(&Err(Problem::Timeout(PATIENCE)));
                let answer = timeout(self.deadline, answer).await;
                answer.unwrap_or(Err(Problem::Timeout(self.deadline)))
            }
        };
        let code = answer.as_ref().map_or_else(Problem::code, |()| "200".to_owned());
        self.counted.called(Verb::Get, "readyz".to_owned(), code);
        self.health.observe(&answer);
    }

    /// Refuses a call while the API server is to be left alone.
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

    /// Leaves the API server alone for as long as it asks for, and a little longer.
    fn pause(&self, asked_for: Duration) {
        let until = Instant::now() + asked_for.min(LONGEST_PAUSE) + scattered(PAUSE_SPREAD);
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        *paused = (*paused).max(Some(until));
    }

    /// Whether the API server may begin watches with what is there already: until it has said no.
    pub(super) fn streams_lists(&self) -> bool {
        self.streams_lists.load(Ordering::Relaxed)
    }

    pub(super) fn streams_no_lists(&self) {
        tracing::debug!("the API server does not begin watches with lists");
        self.streams_lists.store(false, Ordering::Relaxed);
    }

    /// Waits for the turn to make a call, and others after it.
    ///
    /// Errors: [`Problem::Timeout`] when those who have theirs are not answered either.
    pub async fn turn(&self, call: &Call) -> Result<Turn<'_>, ApiError> {
        match timeout(self.deadline, self.turns.acquire()).await {
            Ok(permit) => {
                self.check_pause(call)?;
                Ok(Turn {
                    client: self,
                    // There is always one: they are never closed.
                    _permit: permit.ok(),
                })
            }
            Err(_) => self.counted(call, Err(Problem::Timeout(self.deadline))),
        }
    }

    /// Makes a call without a body and decodes the answer.
    pub async fn read<T: DeserializeOwned>(&self, call: &Call) -> Result<T, ApiError> {
        self.turn(call).await?.exchange(call, None).await
    }

    /// Begins a list.
    ///
    /// Errors: [`ApiError`], until the API server has begun to answer.
    pub(super) async fn list(&self, call: &Call) -> Result<Pieces<'_>, ApiError> {
        let turn = self.turn(call).await?;
        let mut pieces: Pieces<'_> = self.counted(call, self.open(&self.calls, call, None, Layout::List).await)?;
        pieces._turn = Some(turn);
        Ok(pieces)
    }

    /// Makes a call with a body: a new object, or a strategic merge patch.
    pub async fn send<T: DeserializeOwned>(&self, call: &Call, body: &Value) -> Result<T, ApiError> {
        self.turn(call).await?.send(call, body).await
    }

    /// Begins a watch.
    ///
    /// Errors: [`ApiError`], until the API server has begun to answer.
    pub(super) async fn watch(&self, call: &Call) -> Result<Pieces<'static>, ApiError> {
        self.check_pause(call)?;
        let taken = self.watches.iter().map(|(_, taken, _)| Arc::strong_count(taken) - 1);
        let (client, taken, begun) = &self.watches[roomiest(taken)];
        let taken = Arc::clone(taken);
        // Of the watches that find no connection one makes it: each of the others would make one of its own, and drop it
        // after the handshake. Cancel-safe: what is dropped is a place in a queue.
        let first = tokio::select! {
            first = begun.lock() => first,
            () = self.health.stays_away() => return Err(ApiError::of(call, Problem::Timeout(PATIENCE))),
        };
        let _first = (Arc::strong_count(begun) == 1).then_some(first);
        let mut pieces = self.counted(call, self.open(client, call, None, Layout::Objects).await)?;
        pieces._watch = Some((taken, Arc::clone(begun)));
        Ok(pieces)
    }

    /// Makes a call whose answer is one object.
    async fn exchange(&self, call: &Call, body: Option<&Value>) -> Result<Vec<u8>, Problem> {
        let exchanged = async {
            let mut pieces = self.open(&self.calls, call, body, Layout::Objects).await?;
            let answer = pieces.next().await?;
            // To its end: a connection is used again only then.
            while pieces.next().await?.is_some() {}
            match answer {
                Some(Piece::Object(object)) => Ok(object),
                Some(Piece::TooLarge(_)) => Err(Problem::Unreadable(format!(
                    "an object of more than {LARGEST_OBJECT} bytes, its long strings left out"
                ))),
                None => Err(Problem::Unreadable("no object in JSON".to_owned())),
            }
        };
        // Cancel-safe: what is dropped is a call that comes to nothing.
        tokio::select! {
            exchanged = timeout(self.deadline, exchanged) => exchanged.unwrap_or(Err(Problem::Timeout(self.deadline))),
            () = self.health.stays_away() => Err(Problem::Timeout(PATIENCE)),
        }
    }

    /// Makes a call; its answer is a success and is still to be read.
    async fn open(
        &self,
        client: &kube::Client,
        call: &Call,
        body: Option<&Value>,
        layout: Layout,
    ) -> Result<Pieces<'static>, Problem> {
        let response = timeout(self.deadline, self.begin(client, call, body))
            .await
            .map_err(|_| Problem::Timeout(self.deadline))??;
        if !response.status().is_success() {
            return Err(self.refusal(call, response).await);
        }
        Ok(Pieces {
            body: response.into_body(),
            splitter: Splitter::new(layout),
            health: self.health.clone(),
            _turn: None,
            _watch: None,
        })
    }

    async fn begin(&self, client: &kube::Client, call: &Call, body: Option<&Value>) -> Result<Response<Body>, Problem> {
        let unusable = |error: &dyn std::error::Error| Problem::Unreadable(format!("the call itself: {error}"));
        let content = body
            .map(serde_json::to_vec)
            .transpose()
            .map_err(|error| unusable(&error))?;
        let mut request = Request::builder()
            .method(call.verb.method())
            .uri(call.path())
            .header(ACCEPT, "application/json");
        if content.is_some() {
            let kind = match call.verb {
                Verb::Patch => "application/strategic-merge-patch+json",
                Verb::Get | Verb::List | Verb::Watch | Verb::Create => "application/json",
            };
            request = request.header(CONTENT_TYPE, kind);
        }
        let request = request
            .body(Body::from(content.unwrap_or_default()))
            .map_err(|error| unusable(&error))?;
        client.send(request).await.map_err(|error| broken(&error))
    }

    /// What an answer says that is no success.
    async fn refusal(&self, call: &Call, response: Response<Body>) -> Problem {
        let (code, retry_after) = (response.status(), retry_after(response.headers()));
        let body = Limited::new(response.into_body(), LARGEST_REFUSAL).collect();
        let body = timeout(self.deadline, body).await.ok().and_then(Result::ok);
        let body = body.map(Collected::to_bytes).unwrap_or_default();
        Problem::of(Status::read(code, &body, retry_after), call)
    }

    fn counted<T>(&self, call: &Call, outcome: Result<T, Problem>) -> Result<T, ApiError> {
        let code = outcome.as_ref().map_or_else(Problem::code, |_| "200".to_owned());
        self.counted.called(call.verb, call.resource(), code);
        self.health.observe(&outcome);
        outcome.map_err(|problem| {
            if let Some(asked_for) = problem.retry_after() {
                self.pause(asked_for);
            }
            ApiError::of(call, problem)
        })
    }
}

/// The turn to make calls, one after the other. Watches need none: there are few, and they never end.
#[derive(Debug)]
pub struct Turn<'a> {
    client: &'a ApiClient,
    _permit: Option<SemaphorePermit<'a>>,
}

impl Turn<'_> {
    /// Makes a call with a body, as [`ApiClient::send`] does.
    pub async fn send<T: DeserializeOwned>(&self, call: &Call, body: &Value) -> Result<T, ApiError> {
        self.exchange(call, Some(body)).await
    }

    async fn exchange<T: DeserializeOwned>(&self, call: &Call, body: Option<&Value>) -> Result<T, ApiError> {
        let answer = self.client.counted(call, self.client.exchange(call, body).await)?;
        let mut text = serde_json::Deserializer::from_slice(&answer);
        serde_path_to_error::deserialize(&mut text)
            .map_err(|error| ApiError::of(call, Problem::Unreadable(error.to_string())))
    }
}

/// Of connections with so many watches, which one takes the next: the first with room, or else the one with the fewest.
fn roomiest(open: impl IntoIterator<Item = usize>) -> usize {
    let least = |open: usize| if open < WATCHES_PER_CONNECTION { 0 } else { open };
    let roomiest = open.into_iter().enumerate().min_by_key(|(_, open)| least(*open));
    roomiest.map_or(0, |(index, _)| index)
}

/// A connection that could not be made, or broke. The innermost cause says why.
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

/// The objects of an answer as they come.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    body: Body,
    splitter: Splitter,
    health: ApiHealth,
    /// A call's turn lasts until its answer is read.
    _turn: Option<Turn<'a>>,
    /// A watch's place on a connection.
    _watch: Option<(Arc<()>, Arc<Mutex<()>>)>,
}

impl Pieces<'_> {
    /// The next object; none at the end of the answer. Cancel-safe.
    ///
    /// Errors: [`Problem::Unreachable`] when the connection breaks.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, Problem> {
        loop {
            if let Some(piece) = self.splitter.next() {
                return Ok(Some(piece));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.splitter.push(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => {
                    self.health.doubt();
                    return Err(broken(&error));
                }
                None => return Ok(None),
            }
        }
    }

    /// What a list says beside its objects, once these are read.
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
