//! The task behind a [`super::Follower`]: it lists, watches, and repeats.
//!
//! Where the API server offers it, the watch begins with the list, object by object (`sendInitialEvents`, KEP-3157): then
//! neither side holds the list as one text. An API server that does not offer it refuses once for all lists.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::state::{Followed, WatchResult};
use super::{SharedList, Timing};
use crate::kubernetes::call::{Call, Kind, Verb};
use crate::kubernetes::client::{ApiClient, ObjectStream};
use crate::kubernetes::error::{ApiError, Problem};
use crate::kubernetes::metrics::WatchEnd;
use crate::kubernetes::object::Object;
use crate::pace::{Backoff, scattered};
use crate::slots::Class;

/// A watch that ends sooner did not reach its `timeoutSeconds`.
const SHORT: Duration = Duration::from_secs(1);

/// A list is refused once it has been denied so often in a row, some seconds after the first time: an API server that starts denies
/// everything until it has read its rules. A kind is not served once as many attempts have found none of its versions: nor does such
/// an API server serve every kind yet, and a proxy may answer in its place.
const DENIALS: usize = 4;

/// The longest silence of an API server within a list.
const LIST_SILENCE: Duration = Duration::from_secs(20);

pub(super) struct Task<T> {
    pub(super) client: ApiClient,
    pub(super) namespace: Option<String>,
    pub(super) field_selector: String,
    pub(super) timing: Timing,
    pub(super) backoff: Backoff,
    /// The served version of the kind, as an index of [`Object::KINDS`].
    pub(super) served: usize,
    /// The newest version seen. No later list may be older.
    pub(super) version: Option<String>,
    /// Whether the next round begins with a list.
    pub(super) must_list: bool,
    /// How often the list has been denied in a row. A refused list stays refused until it is there.
    pub(super) denials: usize,
    /// How often in a row no version of the kind has been served.
    pub(super) absences: usize,
    pub(super) shared: Arc<SharedList<T>>,
}

type BegunWatch = (Call, ObjectStream);

/// What became of a list, or of the initial list of a watch.
enum FirstList {
    Applied,
    /// The watch goes on without one: the API server knows no such lists.
    NotSent,
    /// The watch did not bring the end of the list in time. A plain list does this time.
    Silent,
}

impl<T: Object> Task<T> {
    pub(super) async fn run(mut self) {
        self.client.metrics.watching(T::plural());
        // How long watches have lasted since the last list and the last new version.
        let mut mute = Duration::ZERO;
        loop {
            let Some(kind) = T::KINDS.get(self.served).copied() else {
                self.not_served().await;
                continue;
            };
            let listed = self.must_list;
            let streamed = match self.list(kind).await {
                Ok(streamed) => streamed,
                Err(error) => {
                    self.not_listed(kind, &error).await;
                    continue;
                }
            };
            (self.denials, self.absences) = (0, 0);
            self.client.unserved.lock().remove(T::plural());
            let from = self.version.clone();
            let (end, lasted) = self.watch(kind, streamed).await;
            // Not after a list alone: without a watch that lasts, the task must not list without a pause.
            if lasted >= SHORT {
                self.backoff.reset();
            }
            let counted = *end.as_ref().unwrap_or(&WatchEnd::Failed);
            self.client.metrics.watched(T::plural(), counted);
            mute = match self.version == from {
                true if listed => lasted,
                true => mute + lasted,
                false => Duration::ZERO,
            };
            // An etcd that was restored from a backup has not reached the version, so the API server sends nothing from there.
            let is_mute = mute >= self.timing.watch / 2;
            self.must_list |= is_mute || matches!(end, Ok(WatchEnd::Forgotten));
            if let Err(error) = end {
                self.must_list |= !error.problem.is_retryable();
                self.failed(&error, false).await;
            } else if lasted < SHORT && (listed || !self.must_list) {
                // A proxy may end watches as soon as they begin, and one API server may have forgotten what another lists.
                sleep(self.backoff.next(None)).await;
            } else if self.must_list {
                // After a restart of the API server, the watches of many agents are forgotten together.
                sleep(scattered(self.timing.first_pause)).await;
            }
        }
    }

    /// Follows the watch that began with the list, or else another one. Returns how the watch ended, and how long it lasted.
    async fn watch(&mut self, kind: Kind, streamed: Option<BegunWatch>) -> (Result<WatchEnd, ApiError>, Duration) {
        let watching = match streamed {
            Some(watching) => Ok(watching),
            None => self.begin_watch(kind).await,
        };
        let begun = Instant::now();
        let end = match watching {
            Ok(watching) => self.follow_watch(watching).await,
            Err(error) => Err(error),
        };
        let end = match end {
            Err(error) if error.problem.status() == Some(410) => Ok(WatchEnd::Forgotten),
            end => end,
        };
        (end, begun.elapsed())
    }

    /// Lists the objects where that is due. Returns the watch that begins with the list, where the API server offers it.
    async fn list(&mut self, kind: Kind) -> Result<Option<BegunWatch>, ApiError> {
        if !self.must_list {
            return Ok(None);
        }
        let namespace = self.namespace.clone().unwrap_or_default();
        let _turn = self.client.lists.wait(&namespace, Class::Ordinary).await;
        // Not older than the objects seen, and from the API server's cache: an API server reads a list "as of now" from
        // etcd, every object of the kind, for any selector.
        let version = self.version.clone().unwrap_or_else(|| "0".to_owned());
        if self.client.streams_lists.load(Ordering::Relaxed) {
            let call = self
                .watching(kind, &version)
                .with("sendInitialEvents", "true")
                .with("resourceVersionMatch", "NotOlderThan");
            let refused = match self.client.watch(&call).await {
                Ok(mut stream) => match self.apply_list(&mut stream, &call).await? {
                    FirstList::Applied => return Ok(Some((call, stream))),
                    FirstList::NotSent => true,
                    FirstList::Silent => false,
                },
                // The list's error names the missing rule.
                Err(error) if error.problem.status() == Some(403) => false,
                // Before Kubernetes 1.27, and without the feature gate, `sendInitialEvents` or `resourceVersionMatch`
                // is an invalid option.
                Err(error) if matches!(error.problem.status(), Some(400 | 422)) => true,
                Err(error) => return Err(error),
            };
            if refused {
                tracing::debug!("the API server does not support watches that begin with a list");
                self.client.streams_lists.store(false, Ordering::Relaxed);
            }
        }
        let call = self.call(Verb::List, kind).with("resourceVersion", &version);
        let mut stream = self.client.list(&call).await?;
        self.apply_list(&mut stream, &call).await?;
        // A connection is free for another call only once the answer is read to its end.
        drop(timeout(LIST_SILENCE, stream.next()).await);
        Ok(None)
    }

    /// Applies a list, or the initial list of a watch, object by object.
    async fn apply_list(&mut self, stream: &mut ObjectStream, call: &Call) -> Result<FirstList, ApiError> {
        let failed = |problem| ApiError::of(call, problem);
        let mut news = false;
        self.shared.with(Followed::begin_list);
        loop {
            let piece = match timeout(LIST_SILENCE, stream.next()).await {
                Ok(piece) => piece.map_err(failed)?,
                Err(_) if call.verb == Verb::Watch => return Ok(FirstList::Silent),
                Err(_) => return Err(failed(Problem::Timeout(LIST_SILENCE))),
            };
            let piece = piece.ok_or_else(|| failed(Problem::Unreachable("the answer ended early".to_owned())))?;
            let applied = self.shared.with(|followed| followed.apply(&piece, call));
            match applied.map_err(failed)? {
                WatchResult::Change { news: changed, .. } => news |= changed,
                WatchResult::Bookmark(_) => return Ok(FirstList::NotSent),
                WatchResult::ListEnd(version) => {
                    news |= self.shared.with(Followed::end_list);
                    (self.version, self.must_list) = (Some(version), false);
                    self.shared.publish(news);
                    return Ok(FirstList::Applied);
                }
            }
        }
    }

    async fn not_listed(&mut self, kind: Kind, error: &ApiError) {
        match error.problem.status() {
            // The API server may serve an older version of the kind. Those of the core group it always serves: a proxy answered.
            Some(404) if !kind.group.is_empty() => return self.served += 1,
            // The version is too old, or newer than an etcd that was restored from a backup.
            Some(410 | 504) => self.version = None,
            _ => {}
        }
        self.absences = 0;
        if error.problem.is_denial() {
            self.denials += 1;
        } else if self.denials < DENIALS {
            // Refused credentials, one version too old, the text of a proxy and an outage say nothing of the list.
            self.denials = 0;
        }
        let refused = self.denials >= DENIALS;
        let news = self
            .shared
            .with(|followed| std::mem::replace(&mut followed.refused, refused) != refused);
        self.failed(error, news).await;
    }

    /// Whether the kind has been in no version for some attempts, or for those of another list of the kind.
    fn stays_unserved(&self) -> bool {
        let mut unserved = self.client.unserved.lock();
        self.absences >= DENIALS && unserved.insert(T::plural()) || unserved.contains(T::plural())
    }

    /// Handles a kind that the API server serves in no version. If that stays so, the list is empty. Known objects stay, because
    /// their removal would have been a watch event.
    async fn not_served(&mut self) {
        self.served = 0;
        self.absences += 1;
        let is_empty = self.stays_unserved();
        let (news, none) = self.shared.with(|followed| {
            let news = is_empty && !std::mem::replace(&mut followed.known, true);
            (news, followed.objects().next().is_none())
        });
        let what = if none {
            "their CustomResourceDefinition is not installed"
        } else {
            "the last known ones stay"
        };
        // Another list's absence may be over, and a proxy have answered this one.
        let pause = if none && self.absences >= DENIALS {
            scattered(self.timing.unknown)
        } else {
            self.backoff.next(None)
        };
        let trouble = format!("the API server knows no {}: {what}", T::plural());
        self.shared.trouble(&trouble, true, news);
        sleep(pause).await;
    }

    /// Begins a watch from the version of the list or of the last watch.
    async fn begin_watch(&self, kind: Kind) -> Result<BegunWatch, ApiError> {
        let call = self.watching(kind, self.version.as_deref().unwrap_or_default());
        let stream = self.client.watch(&call).await?;
        self.shared.publish(false);
        Ok((call, stream))
    }

    async fn follow_watch(&mut self, (call, mut stream): BegunWatch) -> Result<WatchEnd, ApiError> {
        let failed = |problem| ApiError::of(&call, problem);
        let (mut silence, mut at_silence) = (self.timing.long_silence, WatchEnd::Over);
        // The time of the next list, once there may be room for objects that were left out.
        let mut list_at = None;
        loop {
            if list_at.is_none() && self.shared.with(|followed| followed.must_list_again()) {
                list_at = Some(Instant::now() + scattered(self.timing.room));
            }
            let patience = Instant::now() + scattered(silence).max(silence);
            let line = match timeout_at(list_at.map_or(patience, |at| patience.min(at)), stream.next()).await {
                Ok(Ok(Some(line))) => line,
                Ok(Ok(None)) => return Ok(WatchEnd::Over),
                Ok(Err(problem)) => return Err(failed(problem)),
                Err(_) if list_at.is_some_and(|at| at <= Instant::now()) => return Ok(WatchEnd::Forgotten),
                Err(_) => {
                    tracing::debug!(%call, "the watch was silent for too long: starting another");
                    return Ok(at_silence);
                }
            };
            let applied = self.shared.with(|followed| followed.apply(&line, &call));
            // Another watch from this version may meet the same error.
            match applied.inspect_err(|_| self.must_list = true).map_err(failed)? {
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

    fn watching(&self, kind: Kind, version: &str) -> Call {
        let lasting = scattered(self.timing.watch).max(Duration::from_secs(1));
        self.call(Verb::Watch, kind)
            .with("allowWatchBookmarks", "true")
            .with("resourceVersion", version)
            .with("timeoutSeconds", &lasting.as_secs().to_string())
    }

    fn call(&self, verb: Verb, kind: Kind) -> Call {
        let call = Call::new(verb, kind).within(self.namespace.as_deref());
        match self.field_selector.as_str() {
            "" => call,
            selector => call.with("fieldSelector", selector),
        }
    }

    /// Notes the trouble, and waits.
    async fn failed(&mut self, error: &ApiError, news: bool) {
        let pause = self.backoff.next(error.problem.retry_after());
        let health = &self.client.health;
        // An outage has a line of its own, and a connection that broke is mostly made again at once.
        let is_first = self.shared.with(|followed| followed.trouble.is_none());
        let for_log = !error.problem.is_silence() || health.away().is_none() && !is_first;
        self.shared.trouble(&error.to_string(), for_log, news);
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
        } else if pause >= self.timing.longest_pause / 2 {
            // Others have their answers, and this list has failed many times.
            self.shared.trouble(&error.to_string(), true, false);
        }
    }
}
