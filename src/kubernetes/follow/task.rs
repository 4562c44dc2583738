//! The task behind a [`super::Follower`]: it lists, watches, and repeats.
//!
//! Where the API server offers it, the watch begins with the list, object by object (`sendInitialEvents`, KEP-3157): then
//! neither side holds the list as one text. An API server that does not offer it refuses once for all lists.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::state::{Followed, WatchResult};
use super::{ListScope, SharedList, Timing};
use crate::kubernetes::call::{Call, Kind, Verb};
use crate::kubernetes::client::{ApiClient, ObjectStream};
use crate::kubernetes::error::{ApiError, Problem};
use crate::kubernetes::metrics::WatchEnd;
use crate::kubernetes::object::Object;
use crate::pace::{Backoff, scattered};

/// A watch that ends sooner did not reach its `timeoutSeconds`.
const SHORT: Duration = Duration::from_secs(1);

/// The longest silence of an API server within a list.
const LIST_SILENCE: Duration = Duration::from_secs(20);

pub(super) struct Task<T> {
    client: ApiClient,
    scope: ListScope,
    timing: Timing,
    backoff: Backoff,
    /// The served version of the kind, as an index of [`Object::KINDS`].
    served: usize,
    /// The newest version seen. No later list may be older.
    version: Option<String>,
    /// Whether the next round begins with a list.
    must_list: bool,
    /// Whether a list is complete and its watch has not begun.
    listed: bool,
    shared: Arc<SharedList<T>>,
}

/// A watch that has begun.
type Watching = (Call, ObjectStream<'static>);

impl<T: Object> Task<T> {
    pub(super) fn new(client: ApiClient, scope: ListScope, timing: Timing, shared: Arc<SharedList<T>>) -> Self {
        Self {
            client,
            scope,
            timing,
            backoff: Backoff::new(timing.first_pause, timing.longest_pause),
            served: 0,
            version: None,
            must_list: true,
            listed: false,
            shared,
        }
    }

    pub(super) async fn run(mut self) {
        self.client.metrics.watching(T::plural());
        loop {
            let Some(kind) = T::KINDS.get(self.served).copied() else {
                self.not_served().await;
                continue;
            };
            let mut streamed = None;
            if std::mem::take(&mut self.must_list) {
                match self.list(kind).await {
                    Ok(watching) => streamed = watching,
                    Err(error) => {
                        self.not_listed(&error).await;
                        continue;
                    }
                }
            }
            let begun = Instant::now();
            let end = match self.watch(kind, streamed).await {
                Err(error) if error.problem.status() == Some(410) => Ok(WatchEnd::Forgotten),
                end => end,
            };
            let counted = *end.as_ref().unwrap_or(&WatchEnd::Failed);
            self.client.metrics.watched(T::plural(), counted);
            match end {
                Ok(WatchEnd::Forgotten) => {
                    self.must_list = true;
                    // After a restart of the API server, the watches of many agents are forgotten together.
                    sleep(scattered(self.timing.first_pause)).await;
                }
                Ok(_) if begun.elapsed() >= SHORT => {}
                // A proxy may end watches as soon as they begin.
                Ok(_) => sleep(self.backoff.next(None)).await,
                Err(error) => {
                    self.must_list = !error.problem.is_retryable();
                    self.failed(&error).await;
                }
            }
        }
    }

    /// Lists the objects. Returns the watch that begins with the list, where the API server offers it.
    async fn list(&mut self, kind: Kind) -> Result<Option<Watching>, ApiError> {
        // Not older than the objects seen, and from the API server's cache: an API server reads a list "as of now" from
        // etcd, every object of the kind, whatever the selector.
        let version = self.version.clone().unwrap_or_else(|| "0".to_owned());
        if self.client.streams_lists() {
            let call = self
                .watching(kind, version.clone())
                .with("sendInitialEvents", "true")
                .with("resourceVersionMatch", "NotOlderThan");
            match self.client.watch(&call).await {
                Ok(mut stream) => {
                    let arrived = self.shared.apply_initial_list(&mut stream, &call).await;
                    if let Some((version, news)) = arrived.map_err(|problem| ApiError::of(&call, problem))? {
                        self.listed(version, news);
                        self.begun();
                        return Ok(Some((call, stream)));
                    }
                    self.client.streams_no_lists();
                }
                // The list's error names the missing rule.
                Err(error) => match error.problem.status() {
                    Some(403) => {}
                    // Before Kubernetes 1.27, and without the feature gate, `sendInitialEvents` or `resourceVersionMatch`
                    // is an invalid option.
                    Some(400 | 422) => self.client.streams_no_lists(),
                    _ => return Err(error),
                },
            }
        }
        let call = self.call(Verb::List, kind).with("resourceVersion", version);
        let list = self.shared.apply_list(self.client.list(&call).await?).await;
        let (version, news) = list.map_err(|problem| ApiError::of(&call, problem))?;
        self.listed(version, news);
        Ok(None)
    }

    fn listed(&mut self, version: String, news: bool) {
        self.version = Some(version);
        self.listed = true;
        self.shared.publish(news);
    }

    /// Ends the pauses after a list once its watch has begun: without the right to watch, the task must
    /// not list without a pause.
    fn begun(&mut self) {
        if std::mem::take(&mut self.listed) {
            self.backoff.reset();
        }
    }

    async fn not_listed(&mut self, error: &ApiError) {
        self.must_list = true;
        match error.problem.status() {
            // The API server may serve an older version of the kind.
            Some(404) => return self.served += 1,
            // The version is too old, or newer than an etcd that was restored from a backup.
            Some(410 | 504) => self.version = None,
            _ => {}
        }
        self.failed(error).await;
    }

    /// Handles a kind that the API server serves in no version: the list is empty. Known objects stay, because their
    /// removal would have been a watch event: an API server that starts does not serve every kind yet, and a proxy
    /// may answer in its place.
    async fn not_served(&mut self) {
        self.must_list = true;
        self.served = 0;
        let (news, none) = self.shared.with(|followed| {
            let news = !std::mem::replace(&mut followed.known, true);
            (news, followed.objects().next().is_none())
        });
        let (what, pause) = if none {
            let what = "their CustomResourceDefinition is not installed";
            (what, scattered(self.timing.unknown))
        } else {
            ("what was known of them before counts", self.backoff.next(None))
        };
        self.shared
            .trouble(&format!("the API server knows no {}: {what}", T::plural()), news);
        sleep(pause).await;
    }

    /// Watches from the version of the list or of the last watch, until the watch ends.
    async fn watch(&mut self, kind: Kind, streamed: Option<Watching>) -> Result<WatchEnd, ApiError> {
        let (call, stream) = match streamed {
            Some(watching) => watching,
            None => {
                let call = self.watching(kind, self.version.clone().unwrap_or_default());
                let stream = self.client.watch(&call).await?;
                self.begun();
                self.shared.publish(false);
                (call, stream)
            }
        };
        let end = self.follow_watch(&call, stream).await;
        end.map_err(|problem| ApiError::of(&call, problem))
    }

    async fn follow_watch(&mut self, call: &Call, mut stream: ObjectStream<'_>) -> Result<WatchEnd, Problem> {
        let (mut silence, mut at_silence) = (self.timing.long_silence, WatchEnd::Over);
        // The time of the next list, once there may be room for objects that were left out.
        let mut list_at = None;
        loop {
            if list_at.is_none() && self.shared.with(|followed| followed.has_room) {
                list_at = Some(Instant::now() + scattered(self.timing.room));
            }
            let patience = Instant::now() + scattered(silence).max(silence);
            let line = match timeout_at(list_at.map_or(patience, |at| patience.min(at)), stream.next()).await {
                Ok(Ok(Some(line))) => line,
                Ok(Ok(None)) => return Ok(WatchEnd::Over),
                Ok(Err(problem)) => return Err(problem),
                Err(_) if list_at.is_some_and(|at| at <= Instant::now()) => return Ok(WatchEnd::Forgotten),
                Err(_) => {
                    tracing::debug!(%call, "nothing was heard for long: watching anew");
                    return Ok(at_silence);
                }
            };
            match self.shared.with(|followed| followed.apply(&line, call))? {
                WatchResult::Change { version, news } => {
                    if !version.is_empty() {
                        self.version = Some(version);
                    }
                    self.backoff.reset();
                    self.shared.publish(news);
                }
                WatchResult::Bookmark(version) | WatchResult::ListEnd(version) => {
                    self.version = Some(version);
                    self.backoff.reset();
                    (silence, at_silence) = (self.timing.silence, WatchEnd::Silent);
                }
            }
        }
    }

    fn watching(&self, kind: Kind, version: String) -> Call {
        let lasting = scattered(self.timing.watch).max(Duration::from_secs(1));
        self.call(Verb::Watch, kind)
            .with("allowWatchBookmarks", "true")
            .with("resourceVersion", version)
            .with("timeoutSeconds", lasting.as_secs().to_string())
    }

    fn call(&self, verb: Verb, kind: Kind) -> Call {
        let call = Call::new(verb, kind).within(self.scope.namespace.as_deref());
        match self.scope.field_selector.as_str() {
            "" => call,
            selector => call.with("fieldSelector", selector),
        }
    }

    /// Notes the trouble, and waits.
    async fn failed(&mut self, error: &ApiError) {
        let pause = self.backoff.next(error.problem.retry_after());
        // 410 refuses one version, and not the list.
        let refused = !error.problem.is_retryable() && error.problem.status() != Some(410);
        let news = self
            .shared
            .with(|followed| std::mem::replace(&mut followed.refused, refused) != refused);
        self.shared.trouble(&error.to_string(), news);
        let health = &self.client.health;
        // Cancel-safe: both branches only wait.
        tokio::select! {
            () = sleep(pause) => {}
            () = health.lasting_outage() => {}
        }
        // During an outage one probe waits for the API server, and not a connection of each watch. After the outage no
        // watch continues the long pause of its backoff.
        if health.away().is_some() {
            drop(timeout(self.timing.longest_pause, health.returned()).await);
            sleep(scattered(self.timing.first_pause)).await;
        }
    }
}

impl<T: Object> SharedList<T> {
    /// Applies a list, object by object. Returns its version and whether the state changed.
    async fn apply_list(&self, mut stream: ObjectStream<'_>) -> Result<(String, bool), Problem> {
        let mut news = false;
        self.with(Followed::begin_list);
        while let Some(object) = timeout(LIST_SILENCE, stream.next())
            .await
            .map_err(|_| Problem::Timeout(LIST_SILENCE))??
        {
            news |= self.with(|followed| followed.list_object(&object));
        }
        let version = Followed::<T>::version(stream.envelope()?).map_err(Problem::Unreadable)?;
        news |= self.with(Followed::end_list);
        Ok((version, news))
    }

    /// Applies the initial list of a watch. Returns its version and whether the state changed, or none if the API
    /// server sends no such list.
    async fn apply_initial_list(
        &self,
        stream: &mut ObjectStream<'_>,
        call: &Call,
    ) -> Result<Option<(String, bool)>, Problem> {
        let mut changed = false;
        self.with(Followed::begin_list);
        loop {
            let Ok(line) = timeout(LIST_SILENCE, stream.next()).await else {
                return Ok(None);
            };
            let cut_short = || Problem::Unreadable("the list ended before it was whole".to_owned());
            let line = line?.ok_or_else(cut_short)?;
            match self.with(|followed| followed.apply(&line, call))? {
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
