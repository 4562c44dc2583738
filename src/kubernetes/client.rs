//! Calls to the API server: a [`Call`] → its answer, or an [`ApiError`]. Every call is counted, and few are made at once.
//!
//! Nothing is retried here: who calls knows what else has happened meanwhile, and how long it was told to wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::call::{Call, Verb};
use super::error::{ApiError, Problem, Status};
use crate::kubernetes::metrics::ApiMetrics;

/// How long a call may take, its answer's body included; and how long may be waited for the turn to make it.
const DEADLINE: Duration = Duration::from_secs(30);

/// Calls under way at once, watches apart; others wait for their turn. One recommendation may concern every pod of a node,
/// and of all other nodes at the same moment.
pub(super) const CALLS_AT_ONCE: usize = 10;

/// The longest that the API server is left alone because it asks for it: what asks for more is broken.
const LONGEST_WAIT: Duration = Duration::from_secs(60 * 60);

/// A longer line of a watch is not an object that etcd could hold.
const LONGEST_LINE: usize = 16 << 20;

/// Watches on one connection before another is made. API servers allow 100 or 250 streams, and what is more would wait
/// until a watch ends.
const WATCHES_PER_CONNECTION: usize = 80;

/// The way to the API server. Cheap to clone.
#[derive(Clone)]
pub struct ApiClient {
    calls: kube::Client,
    /// What is left of [`CALLS_AT_ONCE`].
    turns: Arc<Semaphore>,
    /// Each with what its open watches hold.
    watches: Arc<[(kube::Client, Arc<()>)]>,
    deadline: Duration,
    counted: ApiMetrics,
    /// Whether the API server may begin watches with what is there already.
    streams_lists: Arc<AtomicBool>,
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
        let unused = |client| (client, Arc::default());
        Self {
            calls,
            turns: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            watches: watches.into_iter().map(unused).collect(),
            deadline: DEADLINE,
            counted,
            streams_lists: Arc::new(AtomicBool::new(true)),
        }
    }

    /// Whether the API server may begin watches with what is there already: until it has said no.
    pub(super) fn streams_lists(&self) -> bool {
        self.streams_lists.load(Ordering::Relaxed)
    }

    /// It has said no.
    pub(super) fn streams_no_lists(&self) {
        self.streams_lists.store(false, Ordering::Relaxed);
    }

    /// Waits for the turn to make a call, and others after it.
    ///
    /// # Errors
    /// [`Problem::Timeout`] when those who have theirs are not answered either.
    pub async fn turn(&self, call: &Call) -> Result<Turn<'_>, ApiError> {
        match timeout(self.deadline, self.turns.acquire()).await {
            Ok(permit) => Ok(Turn {
                client: self,
                // There is always one: they are never closed.
                _permit: permit.ok(),
            }),
            Err(_) => self.counted(call, Err(Problem::Timeout(self.deadline))),
        }
    }

    /// Makes a call without a body; the answer is text in JSON.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn call(&self, call: &Call) -> Result<Vec<u8>, ApiError> {
        let _turn = self.turn(call).await?;
        self.counted(call, self.exchange(call, None).await)
    }

    /// Makes a call and decodes the answer.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn read<T: DeserializeOwned>(&self, call: &Call) -> Result<T, ApiError> {
        let body = self.call(call).await?;
        decode(call, &body)
    }

    /// Makes a call with a body: a new object, or a strategic merge patch.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn send<T: DeserializeOwned>(&self, call: &Call, body: &Value) -> Result<T, ApiError> {
        self.turn(call).await?.send(call, body).await
    }

    /// Begins a watch.
    ///
    /// # Errors
    /// [`ApiError`], until the API server has begun to answer.
    pub async fn watch(&self, call: &Call) -> Result<Lines, ApiError> {
        let begun = async {
            let open = self.watches.iter().map(|(_, open)| Arc::strong_count(open) - 1);
            let (client, open) = roomiest(open).map_or((&self.calls, None), |index| {
                let (client, open) = &self.watches[index];
                (client, Some(Arc::clone(open)))
            });
            let response = timeout(self.deadline, self.begin(client, call, None))
                .await
                .map_err(|_| Problem::Timeout(self.deadline))??;
            if !response.status().is_success() {
                return Err(self.refusal(call, response).await);
            }
            Ok(Lines {
                body: response.into_body(),
                buffer: Vec::new(),
                searched: 0,
                _open: open,
            })
        };
        self.counted(call, begun.await)
    }

    /// What is counted about the way to the API server.
    #[must_use]
    pub const fn counts(&self) -> &ApiMetrics {
        &self.counted
    }

    async fn exchange(&self, call: &Call, body: Option<&Value>) -> Result<Vec<u8>, Problem> {
        let exchanged = async {
            let response = self.begin(&self.calls, call, body).await?;
            if !response.status().is_success() {
                return Err(self.refusal(call, response).await);
            }
            let bytes = response
                .into_body()
                .collect_bytes()
                .await
                .map_err(|error| broken(&error))?;
            Ok(bytes.to_vec())
        };
        timeout(self.deadline, exchanged)
            .await
            .unwrap_or(Err(Problem::Timeout(self.deadline)))
    }

    async fn begin(&self, client: &kube::Client, call: &Call, body: Option<&Value>) -> Result<Response<Body>, Problem> {
        let unusable = |error: &dyn std::error::Error| Problem::Unreadable(format!("the call itself: {error}"));
        let content = body
            .map(serde_json::to_vec)
            .transpose()
            .map_err(|error| unusable(&error))?;
        let mut request = Request::builder()
            .method(call.method())
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
        let body = timeout(self.deadline, response.into_body().collect_bytes()).await;
        let body = body.map_or_else(
            |_| Vec::new(),
            |body| body.map_or_else(|_| Vec::new(), |bytes| bytes.to_vec()),
        );
        Problem::of(Status::read(code, &body), call, retry_after)
    }

    fn counted<T>(&self, call: &Call, outcome: Result<T, Problem>) -> Result<T, ApiError> {
        let code = outcome.as_ref().map_or_else(Problem::code, |_| "200".to_owned());
        self.counted.called(call.verb, call.resource(), code);
        outcome.map_err(|problem| ApiError {
            call: call.to_string(),
            problem,
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
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn send<T: DeserializeOwned>(&self, call: &Call, body: &Value) -> Result<T, ApiError> {
        let Self { client, .. } = self;
        let answer = client.counted(call, client.exchange(call, Some(body)).await)?;
        decode(call, &answer)
    }
}

/// Of connections with so many watches, which one takes the next: the first with room, or else the one with the fewest.
fn roomiest(open: impl IntoIterator<Item = usize>) -> Option<usize> {
    let least = |open: usize| if open < WATCHES_PER_CONNECTION { 0 } else { open };
    open.into_iter()
        .enumerate()
        .min_by_key(|(_, open)| least(*open))
        .map(|(index, _)| index)
}

fn decode<T: DeserializeOwned>(call: &Call, body: &[u8]) -> Result<T, ApiError> {
    let mut text = serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize(&mut text).map_err(|error| ApiError {
        call: call.to_string(),
        problem: Problem::Unreadable(error.to_string()),
    })
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

/// The lines of a watch as they come.
#[derive(Debug)]
pub struct Lines {
    body: Body,
    buffer: Vec<u8>,
    /// How much of the buffer holds no end of a line.
    searched: usize,
    /// Its place on a connection.
    _open: Option<Arc<()>>,
}

impl Lines {
    /// The next line; none once the API server has ended the watch. Cancel-safe.
    ///
    /// # Errors
    /// [`Problem::Unreachable`] when the connection breaks, [`Problem::Unreadable`] when a line never ends.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Problem> {
        loop {
            let found = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = found {
                let rest = self.buffer.split_off(self.searched + end + 1);
                let line = std::mem::replace(&mut self.buffer, rest);
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched > LONGEST_LINE {
                return Err(Problem::Unreadable(format!(
                    "a line of the watch is longer than {LONGEST_LINE} bytes"
                )));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.buffer.extend(frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(broken(&error)),
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests;
