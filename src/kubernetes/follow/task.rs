//! The task behind a [`super::Follower`]: list, watch, and again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::state::Heard;
use super::{Known, Place, Timing};
use crate::kubernetes::call::{Call, Verb};
use crate::kubernetes::client::{ApiClient, Lines};
use crate::kubernetes::delay::{Backoff, scattered};
use crate::kubernetes::error::{ApiError, Problem};
use crate::kubernetes::object::Object;
use crate::observe::metrics::WatchEnd;

/// A watch that ends sooner did not end because its time was over.
const SHORT: Duration = Duration::from_secs(1);

pub(super) struct Task<T> {
    client: ApiClient,
    place: Place,
    timing: Timing,
    backoff: Backoff,
    /// Which of the kind's versions the API server serves; an index of [`Object::KINDS`].
    served: usize,
    /// The newest version seen, which no later list may fall behind.
    version: Option<String>,
    known: Known<T>,
    changed: Arc<Notify>,
}

/// How a watch ended.
enum End {
    /// Its time was over, or nothing was ever heard on it: it goes on where it stands.
    Over,
    /// Not even a bookmark was heard where they had come before: it goes on where it stands.
    Silent,
    /// What came since is not known any more.
    Forgotten,
    /// Something is wrong.
    Failed(ApiError),
}

impl End {
    const fn counted(&self) -> WatchEnd {
        match self {
            Self::Over => WatchEnd::Over,
            Self::Silent => WatchEnd::Silent,
            Self::Forgotten => WatchEnd::Forgotten,
            Self::Failed(_) => WatchEnd::Failed,
        }
    }
}

impl<T: Object> Task<T> {
    pub(super) fn new(client: ApiClient, place: Place, timing: Timing, known: Known<T>, changed: Arc<Notify>) -> Self {
        Self {
            client,
            place,
            timing,
            backoff: Backoff::new(timing.first_pause, timing.longest_pause),
            served: 0,
            version: None,
            known,
            changed,
        }
    }

    /// Never ends.
    pub(super) async fn run(mut self) {
        self.client.counts().watching(Self::plural());
        loop {
            if !self.list().await {
                continue;
            }
            loop {
                let begun = Instant::now();
                let end = self.watch().await;
                self.client.counts().watched(Self::plural(), end.counted());
                match end {
                    End::Over | End::Silent if begun.elapsed() >= SHORT => {}
                    // Somebody ends watches as soon as they begin.
                    End::Over | End::Silent => sleep(self.backoff.next(None)).await,
                    End::Forgotten => {
                        // Many agents forget together: when the API server was restarted.
                        sleep(scattered(self.timing.first_pause)).await;
                        break;
                    }
                    End::Failed(error) => {
                        self.failed(&error).await;
                        if !error.problem.is_retryable() {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Lists, and says whether that succeeded; if not, waits.
    async fn list(&mut self) -> bool {
        let Some(kind) = T::KINDS.get(self.served) else {
            return self.not_served().await;
        };
        // Not older than what was seen already, and from the API server's cache: a list "as of now" would read every
        // object of the kind from etcd, whatever the selector.
        let version = self.version.clone().unwrap_or_else(|| "0".to_owned());
        let call = self
            .selecting(Call::new(Verb::List, *kind))
            .with("resourceVersion", version);
        match self.client.call(&call).await {
            Ok(body) => match self.known.with(|known| known.list(&body)) {
                Ok((version, news)) => {
                    self.version = Some(version);
                    self.backoff.reset();
                    self.publish(news);
                    true
                }
                Err(why) => {
                    let error = ApiError {
                        call: call.to_string(),
                        problem: Problem::Unreadable(why),
                    };
                    self.failed(&error).await;
                    false
                }
            },
            Err(error) => {
                match &error.problem {
                    // An older version of the kind may be served.
                    Problem::NotFound(_) => self.served += 1,
                    // The version cannot be had: it is too old, or newer than an etcd that was restored from a backup.
                    Problem::Expired | Problem::Unavailable { code: 504, .. } => {
                        self.version = None;
                        self.failed(&error).await;
                    }
                    _ => self.failed(&error).await,
                }
                false
            }
        }
    }

    /// No version of the kind is served: there are no such objects until it is.
    async fn not_served(&mut self) -> bool {
        self.served = 0;
        let names = Self::plural();
        let news = self.known.with(|followed| {
            let news = !followed.known || !followed.objects.is_empty();
            followed.objects.clear();
            followed.known = true;
            news
        });
        self.trouble(
            &format!("the API server knows no {names}: their CustomResourceDefinition is not installed"),
            news,
        );
        sleep(scattered(self.timing.unknown)).await;
        false
    }

    /// Watches from where the list or the last watch ended.
    async fn watch(&mut self) -> End {
        let Some(kind) = T::KINDS.get(self.served) else {
            return End::Forgotten;
        };
        let lasting = scattered(self.timing.watch).max(Duration::from_secs(1));
        let call = self
            .selecting(Call::new(Verb::Watch, *kind))
            .with("allowWatchBookmarks", "true")
            .with("resourceVersion", self.version.clone().unwrap_or_default())
            .with("timeoutSeconds", lasting.as_secs().to_string());
        match self.client.watch(&call).await {
            Ok(lines) => {
                self.publish(false);
                self.listen(&call, lines).await
            }
            Err(error) => ended(error),
        }
    }

    async fn listen(&mut self, call: &Call, mut lines: Lines) -> End {
        let failed = |problem| {
            ended(ApiError {
                call: call.to_string(),
                problem,
            })
        };
        let mut bookmarks_come = false;
        loop {
            let patience = if bookmarks_come {
                self.timing.silence
            } else {
                self.timing.long_silence
            };
            let line = match timeout(scattered(patience).max(patience), lines.next()).await {
                Ok(Ok(Some(line))) => line,
                Ok(Ok(None)) => return End::Over,
                Ok(Err(problem)) => return failed(problem),
                Err(_) => {
                    tracing::debug!(%call, "nothing was heard for long: watching anew");
                    return if bookmarks_come { End::Silent } else { End::Over };
                }
            };
            match self.known.with(|known| known.hear(&line)) {
                Heard::Change { version, news } => {
                    self.version = Some(version);
                    self.backoff.reset();
                    self.publish(news);
                }
                Heard::Bookmark(version) => {
                    self.version = Some(version);
                    self.backoff.reset();
                    bookmarks_come = true;
                }
                Heard::Error(status) => return failed(Problem::of(status, call, None)),
                Heard::Nonsense(why) => return failed(Problem::Unreadable(why)),
            }
        }
    }

    fn selecting(&self, call: Call) -> Call {
        let call = call.within(self.place.namespace.as_deref());
        if self.place.field_selector.is_empty() {
            call
        } else {
            call.with("fieldSelector", self.place.field_selector.clone())
        }
    }

    /// Says that what is known is up to date.
    fn publish(&self, news: bool) {
        let mended = self.known.with(|known| {
            known.refused = false;
            known.trouble.take()
        });
        if mended.is_some() {
            tracing::info!(list = %self.about(), "followed again");
        }
        if news || mended.is_some() {
            self.changed.notify_one();
        }
    }

    /// Says that what is known may be old, and waits.
    async fn failed(&mut self, error: &ApiError) {
        let pause = self.backoff.next(error.problem.retry_after());
        let refused = !error.problem.is_retryable();
        let news = self
            .known
            .with(|known| std::mem::replace(&mut known.refused, refused) != refused);
        self.trouble(&error.to_string(), news);
        sleep(pause).await;
    }

    fn trouble(&self, trouble: &str, news: bool) {
        let before = self.known.with(|known| known.trouble.replace(trouble.to_owned()));
        let other = before.as_deref() != Some(trouble);
        if other {
            tracing::warn!(list = %self.about(), "{trouble}");
        }
        if news || other {
            self.changed.notify_one();
        }
    }

    /// The kind's name in any of its versions.
    fn plural() -> &'static str {
        T::KINDS.first().map_or("", |kind| kind.plural)
    }

    fn about(&self) -> String {
        let kind = Self::plural();
        match &self.place.namespace {
            Some(namespace) => format!("{kind} in {namespace}"),
            None => kind.to_owned(),
        }
    }
}

/// What an error means for a watch.
fn ended(error: ApiError) -> End {
    match error.problem {
        Problem::Expired => End::Forgotten,
        _ => End::Failed(error),
    }
}
