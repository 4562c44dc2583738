//! One list at the API server, followed: a kind and a place → what is there now, for everybody to look at.
//!
//! One task for each list. It lists once, from the API server's own cache, then watches, and lists again only when the
//! API server has forgotten what came since (410). A watch that is silent for too long is begun again where it stood. While
//! the API server is away, what was last seen stays; each failure lengthens the pause before the next attempt, scattered so
//! that a cluster's agents do not come back together.
//!
//! An object that cannot be read is named, keeps its last good state, and hides no other. The objects of a namespace fill no
//! more than their [`Share`](super::Share); how many were left out is named.

mod kubelet;
mod state;
mod task;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::client::ApiClient;
use super::object::Object;
use task::Task;

pub use crate::proto::kubelet as kubelet_proto;
#[cfg(any(test, fuzzing))]
pub(super) use kubelet::decode_pod;
pub use kubelet::follow_kubelet;
pub use state::Followed;

/// Which objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Place {
    /// Those of one namespace; none for all.
    pub namespace: Option<String>,
    /// Those a field selector selects; empty for all.
    pub field_selector: String,
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long a watch lasts before it is begun again, about. The API server spreads its load by it.
    pub watch: Duration,
    /// How long a watch may be silent on which bookmarks have come before: they come every minute.
    pub silence: Duration,
    /// How long a watch may be silent on which no bookmark has come: none come for kinds of which nothing ever changed.
    pub long_silence: Duration,
    /// The first pause after a failure, about.
    pub first_pause: Duration,
    /// The longest pause after failures, about.
    pub longest_pause: Duration,
    /// How long after room was made for objects that were left out the list is read again, about.
    pub room: Duration,
    /// The time after which a kind that the API server does not know is asked for again, about.
    pub unknown: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            watch: Duration::from_secs(60 * 60),
            silence: Duration::from_secs(150),
            long_silence: Duration::from_secs(60 * 60),
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(60),
            room: Duration::from_secs(5 * 60),
            unknown: Duration::from_secs(5 * 60),
        }
    }
}

/// A list that is followed for as long as this exists.
#[derive(Debug)]
pub struct Follower<T> {
    known: Arc<Known<T>>,
    _task: AbortOnDropHandle<()>,
}

/// What the task knows, shared with those who look.
#[derive(Debug)]
struct Known<T> {
    followed: Mutex<Followed<T>>,
    /// The list, for people.
    about: String,
    changed: Arc<Notify>,
}

impl<T> Known<T> {
    fn with<R>(&self, act: impl FnOnce(&mut Followed<T>) -> R) -> R {
        // Whole between any two objects, whatever happened in between.
        act(&mut self.followed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says that what is known is up to date.
    fn publish(&self, news: bool) {
        let mended = self.with(|known| {
            known.refused = false;
            known.trouble.take()
        });
        if mended.is_some() {
            tracing::info!(list = %self.about, "followed again");
        }
        if news || mended.is_some() {
            self.changed.notify_one();
        }
    }

    /// Says that what is known may be old.
    fn trouble(&self, trouble: &str, news: bool) {
        let before = self.with(|known| known.trouble.replace(trouble.to_owned()));
        let other = before.as_deref() != Some(trouble);
        if other {
            tracing::warn!(list = %self.about, "{trouble}");
        }
        if news || other {
            self.changed.notify_one();
        }
    }
}

impl<T: Default> Follower<T> {
    /// A follower that is kept up to date by a task.
    fn of<F>(about: String, changed: Arc<Notify>, task: impl FnOnce(Arc<Known<T>>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let known = Arc::new(Known {
            followed: Mutex::default(),
            about,
            changed,
        });
        Self {
            // Cancel-safe: what is dropped is a connection and a place in a list.
            _task: AbortOnDropHandle::new(tokio::spawn(task(Arc::clone(&known)))),
            known,
        }
    }
}

impl<T> Follower<T> {
    /// Reads the list as it is now. Nothing changes it meanwhile.
    pub fn read<R>(&self, read: impl FnOnce(&Followed<T>) -> R) -> R {
        self.known.with(|known| read(known))
    }
}

/// Follows a list, and tells `changed` whenever what is there, or whether that is known, changes.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn follow<T: Object>(client: ApiClient, place: Place, timing: Timing, changed: Arc<Notify>) -> Follower<T> {
    let kind = T::KINDS.first().map_or("", |kind| kind.plural);
    let about = match &place.namespace {
        Some(namespace) => format!("{kind} in {namespace}"),
        None => kind.to_owned(),
    };
    Follower::of(about, changed, |known| Task::new(client, place, timing, known).run())
}
