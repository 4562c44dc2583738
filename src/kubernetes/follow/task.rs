//! The task behind a [`super::Follower`]: list, watch, and again.
//!
//! Where the API server offers it, the list is the beginning of the watch, object by object (`sendInitialEvents`, KEP-3157):
//! neither side ever holds it whole as text. One that does not offer it says so once for all lists.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::state::{Followed, WatchResult};
use super::{Known, Place, Timing};
use crate::kubernetes::call::{Call, Kind, Verb};
use crate::kubernetes::client::{ApiClient, Pieces};
use crate::kubernetes::error::{ApiError, Problem};
use crate::kubernetes::metrics::WatchEnd;
use crate::kubernetes::object::Object;
use crate::pace::{Backoff, scattered};

/// A watch that ends sooner did not end because its time was over.
const SHORT: Duration = Duration::from_secs(1);

/// An API server that does not go on with a list for so long does not know that it was asked for one.
const LIST_SILENCE: Duration = Duration::from_secs(20);

pub(super) struct Task<T> {
    client: ApiClient,
    place: Place,
    timing: Timing,
    backoff: Backoff,
    /// Which of the kind's versions the API server serves; an index of [`Object::KINDS`].
    served: usize,
    /// The newest version seen, which no later list may fall behind.
    version: Option<String>,
    /// Whether the list is to be read before it is watched.
    must_list: bool,
    /// A list was read, and its watch has not begun yet.
    listed: bool,
    known: Arc<Known<T>>,
}

/// A watch that has begun.
type Watching = (Call, Pieces<'static>);

impl<T: Object> Task<T> {
    pub(super) fn new(client: ApiClient, place: Place, timing: Timing, known: Arc<Known<T>>) -> Self {
        Self {
            client,
            place,
            timing,
            backoff: Backoff::new(timing.first_pause, timing.longest_pause),
            served: 0,
            version: None,
            must_list: true,
            listed: false,
            known,
        }
    }

    pub(super) async fn run(mut self) {
        self.client.counted.watching(Self::plural());
        loop {
            let Some(kind) = T::KINDS.get(self.served).copied() else {
                self.not_served().await;
                continue;
            };
            let streamed = if self.must_list {
                match self.list(kind).await {
                    Ok(streamed) => streamed,
                    Err(error) => {
                        self.not_listed(&error).await;
                        continue;
                    }
                }
            } else {
                None
            };
            self.must_list = false;
            let begun = Instant::now();
            let end = match self.watch(kind, streamed).await {
                Err(error) if error.problem.status() == Some(410) => Ok(WatchEnd::Forgotten),
                end => end,
            };
            let counted = *end.as_ref().unwrap_or(&WatchEnd::Failed);
            self.client.counted.watched(Self::plural(), counted);
            match end {
                Ok(WatchEnd::Forgotten) => {
                    self.must_list = true;
                    // Many agents forget together: when the API server was restarted.
                    sleep(scattered(self.timing.first_pause)).await;
                }
                Ok(_) if begun.elapsed() >= SHORT => {}
                // Somebody ends watches as soon as they begin.
                Ok(_) => sleep(self.backoff.next(None)).await,
                Err(error) => {
                    self.must_list = !error.problem.is_retryable();
                    self.failed(&error).await;
                }
            }
        }
    }

    /// Gets to know the list; where the API server streams it, its watch has begun.
    async fn list(&mut self, kind: Kind) -> Result<Option<Watching>, ApiError> {
        // Not older than what was seen already, and from the API server's cache: a list "as of now" would read every
        // object of the kind from etcd, whatever the selector.
        let version = self.version.clone().unwrap_or_else(|| "0".to_owned());
        if self.client.streams_lists() {
            let call = self
                .watching(kind, version.clone())
                .with("sendInitialEvents", "true")
                .with("resourceVersionMatch", "NotOlderThan");
            match self.client.watch(&call).await {
                Ok(mut pieces) => {
                    let arrived = self.known.arrive(&mut pieces, &call).await;
                    if let Some((version, news)) = arrived.map_err(|problem| ApiError::of(&call, problem))? {
                        self.listed(version, news);
                        self.begun();
                        return Ok(Some((call, pieces)));
                    }
                    self.client.streams_no_lists();
                }
                // The list says which rule is missing.
                Err(error) => match error.problem.status() {
                    Some(403) => {}
                    // Before Kubernetes 1.27, and where its feature gate is off, `sendInitialEvents` or what goes with it
                    // is an invalid option.
                    Some(400 | 422) => self.client.streams_no_lists(),
                    _ => return Err(error),
                },
            }
        }
        let call = self
            .selecting(Call::new(Verb::List, kind))
            .with("resourceVersion", version);
        let client = self.client.clone();
        let list = self.known.take_list(client.list(&call).await?).await;
        let (version, news) = list.map_err(|problem| ApiError::of(&call, problem))?;
        self.listed(version, news);
        Ok(None)
    }

    fn listed(&mut self, version: String, news: bool) {
        self.version = Some(version);
        self.listed = true;
        self.known.publish(news);
    }

    /// The watch has begun. Only that makes a list a success: what may be listed and not watched must not
    /// be listed all the time.
    fn begun(&mut self) {
        if std::mem::take(&mut self.listed) {
            self.backoff.reset();
        }
    }

    async fn not_listed(&mut self, error: &ApiError) {
        match error.problem.status() {
            // An older version of the kind may be served.
            Some(404) => return self.served += 1,
            // The version cannot be had: it is too old, or newer than an etcd that was restored from a backup.
            Some(410 | 504) => self.version = None,
            _ => {}
        }
        self.failed(error).await;
    }

    /// No version of the kind is served: there are no such objects until it is. But those that are known are not
    /// gone, or the watch would have said so: an API server that is starting does not serve everything yet, and
    /// others may answer in its place.
    async fn not_served(&mut self) {
        self.must_list = true;
        self.served = 0;
        let names = Self::plural();
        let (news, none) = self.known.with(|followed| {
            let news = !std::mem::replace(&mut followed.known, true);
            (news, followed.objects().next().is_none())
        });
        let (what, pause) = if none {
            let what = "their CustomResourceDefinition is not installed";
            (what, scattered(self.timing.unknown))
        } else {
            ("what was known of them before counts", self.backoff.next(None))
        };
        self.known
            .trouble(&format!("the API server knows no {names}: {what}"), news);
        sleep(pause).await;
    }

    /// Watches from where the list or the last watch ended, until the watch ends.
    async fn watch(&mut self, kind: Kind, streamed: Option<Watching>) -> Result<WatchEnd, ApiError> {
        let (call, pieces) = match streamed {
            Some(watching) => watching,
            None => {
                let call = self.watching(kind, self.version.clone().unwrap_or_default());
                let pieces = self.client.watch(&call).await?;
                self.begun();
                self.known.publish(false);
                (call, pieces)
            }
        };
        let end = self.listen(&call, pieces).await;
        end.map_err(|problem| ApiError::of(&call, problem))
    }

    async fn listen(&mut self, call: &Call, mut pieces: Pieces<'_>) -> Result<WatchEnd, Problem> {
        let mut bookmarks_come = false;
        // When to list again because objects that were left out may have a place now.
        let mut list_at = None;
        loop {
            let patience = if bookmarks_come {
                self.timing.silence
            } else {
                self.timing.long_silence
            };
            if list_at.is_none() && self.known.with(|known| known.has_room) {
                list_at = Some(Instant::now() + scattered(self.timing.room));
            }
            let patience = Instant::now() + scattered(patience).max(patience);
            let line = match timeout_at(list_at.map_or(patience, |at| patience.min(at)), pieces.next()).await {
                Ok(Ok(Some(line))) => line,
                Ok(Ok(None)) => return Ok(WatchEnd::Over),
                Ok(Err(problem)) => return Err(problem),
                Err(_) if list_at.is_some_and(|at| at <= Instant::now()) => return Ok(WatchEnd::Forgotten),
                Err(_) => {
                    tracing::debug!(%call, "nothing was heard for long: watching anew");
                    return Ok(if bookmarks_come {
                        WatchEnd::Silent
                    } else {
                        WatchEnd::Over
                    });
                }
            };
            match self.known.with(|known| known.apply(&line, call))? {
                WatchResult::Change { version, news } => {
                    if !version.is_empty() {
                        self.version = Some(version);
                    }
                    self.backoff.reset();
                    self.known.publish(news);
                }
                WatchResult::Bookmark(version) | WatchResult::ListEnd(version) => {
                    self.version = Some(version);
                    self.backoff.reset();
                    bookmarks_come = true;
                }
            }
        }
    }

    fn watching(&self, kind: Kind, version: String) -> Call {
        let lasting = scattered(self.timing.watch).max(Duration::from_secs(1));
        self.selecting(Call::new(Verb::Watch, kind))
            .with("allowWatchBookmarks", "true")
            .with("resourceVersion", version)
            .with("timeoutSeconds", lasting.as_secs().to_string())
    }

    fn selecting(&self, call: Call) -> Call {
        let call = call.within(self.place.namespace.as_deref());
        if self.place.field_selector.is_empty() {
            call
        } else {
            call.with("fieldSelector", self.place.field_selector.clone())
        }
    }

    /// Says that what is known may be old, and waits.
    async fn failed(&mut self, error: &ApiError) {
        let pause = self.backoff.next(error.problem.retry_after());
        let refused = !error.problem.is_retryable();
        let news = self
            .known
            .with(|known| std::mem::replace(&mut known.refused, refused) != refused);
        self.known.trouble(&error.to_string(), news);
        let health = &self.client.health;
        // Cancel-safe: both only wait.
        tokio::select! {
            () = sleep(pause) => {}
            () = health.stays_away() => {}
        }
        // While it is away one probe finds out when it is back, and not each watch with a connection. Then nobody is left
        // waiting for as long as the outage lasted.
        if health.away().is_some() {
            drop(timeout(self.timing.longest_pause, health.returned()).await);
            sleep(scattered(self.timing.first_pause)).await;
        }
    }

    /// The kind's name in any of its versions.
    fn plural() -> &'static str {
        T::KINDS.first().map_or("", |kind| kind.plural)
    }
}

impl<T: Object> Known<T> {
    /// Takes in a list, object by object; returns its version and whether anything changed.
    async fn take_list(&self, mut pieces: Pieces<'_>) -> Result<(String, bool), Problem> {
        let mut news = false;
        self.with(Followed::begin_list);
        while let Some(piece) = timeout(LIST_SILENCE, pieces.next())
            .await
            .map_err(|_| Problem::Timeout(LIST_SILENCE))??
        {
            news |= self.with(|known| known.list_object(&piece));
        }
        let version = Followed::<T>::version(pieces.envelope()?).map_err(Problem::Unreadable)?;
        news |= self.with(Followed::end_list);
        Ok((version, news))
    }

    /// Takes in the list at the beginning of a watch; returns its version and whether anything changed, or none if the API
    /// server does not tell it there.
    async fn arrive(&self, pieces: &mut Pieces<'_>, call: &Call) -> Result<Option<(String, bool)>, Problem> {
        let mut changed = false;
        self.with(Followed::begin_list);
        loop {
            let Ok(line) = timeout(LIST_SILENCE, pieces.next()).await else {
                return Ok(None);
            };
            let cut_short = || Problem::Unreadable("the list ended before it was whole".to_owned());
            let line = line?.ok_or_else(cut_short)?;
            match self.with(|known| known.apply(&line, call))? {
                WatchResult::Change { news, .. } => changed |= news,
                WatchResult::ListEnd(version) => {
                    changed |= self.with(Followed::end_list);
                    return Ok(Some((version, changed)));
                }
                WatchResult::Bookmark(_) => return Ok(None),
            }
        }
    }
}
