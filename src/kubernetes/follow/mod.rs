//! One followed list: a kind and a scope → the current objects.
//!
//! One task follows each list. It lists once from the API server's cache, then watches. It lists again after the API server has
//! forgotten the changes since (410), has refused a watch, has sent an error in one, or no new version for half the time of a watch,
//! and once there is room for objects that were left out. It begins a watch that is silent for too long again from its last version.
//! During an outage the last objects stay. Each failure lengthens the pause before the next attempt; the pauses are scattered, so
//! that the agents of a cluster do not come back together.
//!
//! An object that cannot be decoded is reported, keeps its last usable state, and does not affect the others. All lists of a
//! kind share one [`ObjectMemory`], which is fair among namespaces. Within a namespace, objects about local workloads come
//! first. The first object left out and the number of the others are reported.

pub(super) mod kubelet;
mod state;
mod task;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::client::ApiClient;
use super::kept::ObjectMemory;
use super::object::Object;
use crate::pace::Backoff;
use task::Task;

pub use kubelet::follow_kubelet;
pub use state::{Followed, LocalWorkloads};

/// The durations of following a list. All are scattered, apart from the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The duration of a watch. The API server distributes its load by the ends of watches.
    pub watch: Duration,
    /// The longest silence of a watch with bookmarks, which come every minute.
    pub silence: Duration,
    /// The longest silence of a watch without bookmarks: none come for kinds of which no object ever changed.
    pub long_silence: Duration,
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// The time from new room for objects that were left out to the next list.
    pub room: Duration,
    /// The time until the next list of a kind that the API server does not serve.
    pub unknown: Duration,
    /// The longest wait of a first view for the Node and for the objects about its pods, from the first list of pods on.
    pub first_view: Duration,
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
            first_view: Duration::from_secs(20),
        }
    }
}

/// The namespaces in which followed lists have changed since the task that reads these lists has last taken them. It is notified also of
/// a change without a namespace.
pub type ListChanges = watch::Sender<BTreeSet<String>>;

/// A list that a task follows until this handle is dropped.
#[derive(Debug)]
pub struct Follower<T> {
    shared: Arc<SharedList<T>>,
    _task: AbortOnDropHandle<()>,
}

/// The objects of a list while a task follows it, and the last ones afterwards.
#[derive(Debug, Clone)]
pub struct Latest<T>(Arc<SharedList<T>>);

impl<T: Object + Clone> Latest<T> {
    /// The latest state of an object, by `namespace/name`, with its resource version. None if that state cannot be used.
    pub fn get(&self, key: &str) -> Option<T> {
        self.0.with(|followed| {
            let (object, version) = followed.latest(key)?;
            let mut object = T::clone(object);
            version.clone_into(&mut object.metadata_mut().resource_version);
            Some(object)
        })
    }
}

/// The state that the task and the handle share.
#[derive(Debug)]
struct SharedList<T> {
    followed: Mutex<Followed<T>>,
    /// The name of the list in logs.
    about: String,
    /// The namespace of the list, unless it is of all namespaces.
    namespace: Option<String>,
    changes: ListChanges,
    /// Whether the log has the trouble.
    is_logged: AtomicBool,
}

impl<T> SharedList<T> {
    fn new(about: String, namespace: Option<&str>, memory: ObjectMemory, changes: ListChanges) -> Arc<Self> {
        Arc::new(Self {
            followed: Mutex::new(Followed::new(memory)),
            about,
            namespace: namespace.map(str::to_owned),
            changes,
            is_logged: AtomicBool::new(false),
        })
    }

    fn with<R>(&self, act: impl FnOnce(&mut Followed<T>) -> R) -> R {
        act(&mut self.followed.lock())
    }

    /// Notes that the state is current.
    fn publish(&self, news: bool) {
        let mended = self.with(|followed| {
            followed.refused = false;
            followed.trouble.take()
        });
        if self.is_logged.swap(false, Ordering::Relaxed) {
            tracing::info!(list = %self.about, "the watch works again");
        }
        self.notify(news || mended.is_some());
    }

    /// Notes that the state may be outdated. Logs that once, if it is for the log.
    fn trouble(&self, trouble: &str, for_log: bool, news: bool) {
        let before = self.with(|followed| followed.trouble.replace(trouble.to_owned()));
        let other = before.as_deref() != Some(trouble);
        if for_log && (!self.is_logged.swap(true, Ordering::Relaxed) || other) {
            tracing::warn!(list = %self.about, "{trouble}");
        }
        self.notify(news || other);
    }

    /// Notifies the reader of the namespaces of changed objects, and of the list's own. Not without news, unless there are such
    /// namespaces: a list that broke off may have left them.
    fn notify(&self, news: bool) {
        let changed = self.with(|followed| std::mem::take(&mut followed.changed_namespaces));
        if news || !changed.is_empty() {
            let changed = changed.into_iter().chain(self.namespace.clone());
            self.changes.send_modify(|namespaces| namespaces.extend(changed));
        }
    }
}

impl<T> Follower<T> {
    /// Spawns the task that follows the list.
    fn of(shared: Arc<SharedList<T>>, task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            shared,
            // Cancel-safe: a dropped task loses only its connection and its position in the list.
            _task: AbortOnDropHandle::new(tokio::spawn(task)),
        }
    }

    /// Reads the state. The lock is held meanwhile.
    pub fn read<R>(&self, read: impl FnOnce(&Followed<T>) -> R) -> R {
        self.shared.with(|followed| read(followed))
    }

    /// Access to the latest states of the objects.
    pub fn latest(&self) -> Latest<T> {
        Latest(Arc::clone(&self.shared))
    }

    /// Replaces the workloads above local pods: objects about them come before others where memory is short.
    pub fn set_local(&self, local: &LocalWorkloads)
    where
        T: Object,
    {
        self.shared.with(|followed| followed.set_local(local));
    }
}

/// Follows a list, and notifies `changes` whenever its objects or its trouble change. Without a namespace, the list is of all
/// namespaces; with an empty field selector, of all objects. The objects take their memory from `memory`.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn follow<T: Object>(
    client: ApiClient,
    namespace: Option<&str>,
    field_selector: &str,
    timing: Timing,
    memory: ObjectMemory,
    changes: ListChanges,
) -> Follower<T> {
    let about = match namespace {
        Some(namespace) => format!("{} in {namespace}", T::plural()),
        None => T::plural().to_owned(),
    };
    let shared = SharedList::new(about, namespace, memory, changes);
    let task = Task {
        client,
        namespace: namespace.map(str::to_owned),
        field_selector: field_selector.to_owned(),
        timing,
        backoff: Backoff::new(timing.first_pause, timing.longest_pause),
        served: 0,
        version: None,
        must_list: true,
        denials: 0,
        absences: 0,
        shared: Arc::clone(&shared),
    };
    Follower::of(shared, task.run())
}
