//! The state of a followed list, and the effect of each listed or watched object on it. Pure.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::kubernetes::call::Call;
use crate::kubernetes::error::Problem;
use crate::kubernetes::object::{Decoded, Key, Object};
use crate::kubernetes::splitter::RawObject;

/// The state of a followed list.
#[derive(Debug, Default)]
pub struct Followed<T> {
    known_objects: BTreeMap<Key, ObjectState<T>>,
    /// The number of objects beyond their namespace's share, by namespace.
    left_out: BTreeMap<String, usize>,
    /// The number of lists begun.
    lists: u64,
    /// Whether objects that were left out may have room by now; the next list shows.
    pub(super) has_room: bool,
    /// Whether one list was complete.
    pub known: bool,
    /// The reason why the list cannot be followed now. The objects may be outdated.
    pub trouble: Option<String>,
    /// Whether the trouble lasts until a change of rules or credentials.
    pub refused: bool,
}

/// The state of one object.
#[derive(Debug, Default)]
struct ObjectState<T> {
    object: Option<Arc<T>>,
    /// The part of the namespace's share that the object takes.
    bytes: usize,
    /// The reason why the object's latest state cannot be used.
    complaint: Option<String>,
    /// The number of the latest list that had begun when the object was seen.
    list: u64,
}

/// The text of a list beside its objects, and the object of a bookmark.
#[derive(Debug, Deserialize)]
struct Envelope {
    metadata: EnvelopeMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EnvelopeMeta {
    resource_version: String,
    annotations: BTreeMap<String, String>,
}

/// A line of a watch.
#[derive(Debug, Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The annotation of the bookmark that ends the initial list of a watch (KEP-3157).
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The effect of a line of a watch.
#[derive(Debug)]
pub(super) enum WatchResult {
    /// An object changed. The watch now stands at this version.
    Change {
        /// Empty if the version cannot be read.
        version: String,
        news: bool,
    },
    /// Nothing changed up to this version.
    Bookmark(String),
    /// The initial list of the watch is complete, and this is its version.
    ListEnd(String),
}

impl<T: Object> Followed<T> {
    /// An object by name, in its last usable state.
    pub(super) fn object(&self, key: &Key) -> Option<&Arc<T>> {
        self.known_objects.get(key)?.object.as_ref()
    }

    /// The objects in their last usable state.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<T>> {
        self.known_objects.values().filter_map(|kept| kept.object.as_ref())
    }

    /// The objects that cannot be used, and the numbers of those left out.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let about = |(key, kept): (&Key, &ObjectState<T>)| Some(format!("{key}: {}", kept.complaint.as_ref()?));
        let left_out = self.left_out.iter().map(|(namespace, count)| {
            format!(
                "{namespace}: {count} {} are left out, for a namespace may have {} of {} KiB together",
                T::plural(),
                T::SHARE.objects,
                T::SHARE.bytes >> 10,
            )
        });
        left_out.chain(self.known_objects.iter().filter_map(about))
    }

    /// Begins a list. [`Self::end_list`] removes the objects that the list does not contain.
    pub(super) fn begin_list(&mut self) {
        self.lists += 1;
        self.has_room = false;
        self.left_out.clear();
    }

    /// Applies an object of a list. Returns whether the state changed.
    pub(super) fn list_object(&mut self, object: &RawObject) -> bool {
        self.store(Decoded::of(object), true)
    }

    /// Ends a complete list. Returns whether the state changed.
    pub(super) fn end_list(&mut self) -> bool {
        let gone = self.known_objects.iter().filter(|(_, kept)| kept.list < self.lists);
        let gone: Vec<Key> = gone.map(|(key, _)| key.clone()).collect();
        for key in &gone {
            self.remove(key);
        }
        !std::mem::replace(&mut self.known, true) || !gone.is_empty()
    }

    /// The version of a list, from the text beside its objects.
    pub(super) fn version(envelope: &[u8]) -> Result<String, String> {
        let envelope: Envelope = serde_json::from_slice(envelope).map_err(|error| error.to_string())?;
        Ok(envelope.metadata.resource_version)
    }

    /// Applies a line of the watch that `call` began.
    ///
    /// Errors: the API server's error, or [`Problem::Unreadable`].
    pub(super) fn apply(&mut self, line: &RawObject, call: &Call) -> Result<WatchResult, Problem> {
        let RawObject::Object(text) = line else {
            return Ok(WatchResult::Change {
                version: String::new(),
                news: self.store(Decoded::of(line), false),
            });
        };
        let nonsense = |error: serde_json::Error| Problem::Unreadable(error.to_string());
        let Line { kind, object } = serde_json::from_slice(text).map_err(nonsense)?;
        match kind.as_str() {
            "ADDED" | "MODIFIED" | "DELETED" => {
                let decoded = Decoded::parse(object.get());
                let version = decoded.resource_version.clone();
                let news = match kind.as_str() {
                    "DELETED" => self.remove(&decoded.key),
                    kind => self.store(decoded, kind == "ADDED"),
                };
                Ok(WatchResult::Change { version, news })
            }
            "BOOKMARK" => {
                let Envelope { metadata } = serde_json::from_str(object.get()).map_err(nonsense)?;
                let ends_list = metadata
                    .annotations
                    .get(INITIAL_EVENTS_END)
                    .is_some_and(|value| value == "true");
                let version = metadata.resource_version;
                Ok(if ends_list {
                    WatchResult::ListEnd(version)
                } else {
                    WatchResult::Bookmark(version)
                })
            }
            "ERROR" => {
                let status = serde_json::from_str(object.get()).map_err(nonsense)?;
                Err(Problem::of(status, call))
            }
            other => Err(Problem::Unreadable(format!("a line of the unknown type {other}"))),
        }
    }

    /// The number and the bytes of the other objects in the key's namespace.
    fn others(&self, key: &Key) -> (usize, usize) {
        let first = Key {
            namespace: key.namespace.clone(),
            name: String::new(),
        };
        let namespace = self.known_objects.range(first..);
        namespace
            .take_while(|(other, _)| other.namespace == key.namespace)
            .filter(|(other, _)| *other != key)
            .fold((0, 0), |(objects, bytes), (_, kept)| (objects + 1, bytes + kept.bytes))
    }

    /// Stores an object's state, or the reason why it cannot be used.
    pub(super) fn store(&mut self, decoded: Decoded<T>, is_new: bool) -> bool {
        let Decoded {
            key, object, left_out, ..
        } = decoded;
        let (others, their_bytes) = self.others(&key);
        let size = object.as_ref().map_or(0, |(_, size)| *size);
        let fits = their_bytes + size <= T::SHARE.bytes;
        let lacks_room = self.left_out.contains_key(&key.namespace);
        let kept = match self.known_objects.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) if others >= T::SHARE.objects || !fits => {
                let count = self.left_out.entry(entry.into_key().namespace).or_default();
                let first = *count == 0;
                *count += usize::from(is_new || first);
                return first;
            }
            Entry::Vacant(entry) => entry.insert(ObjectState::default()),
        };
        kept.list = self.lists;
        let (complaint, changed) = match object {
            Ok((object, bytes)) if fits => {
                self.has_room |= lacks_room && bytes < kept.bytes;
                kept.bytes = bytes;
                let changed = kept.object.as_deref() != Some(&object);
                if changed {
                    kept.object = Some(Arc::new(object));
                }
                (left_out, changed)
            }
            Ok(_) => (
                Some(old(&format!(
                    "it does not fit into what a namespace may have, {} KiB",
                    T::SHARE.bytes >> 10
                ))),
                false,
            ),
            Err(why) => (Some(old(&why)), false),
        };
        let news = kept.complaint != complaint;
        kept.complaint = complaint;
        changed || news
    }

    /// Removes an object; returns whether it was known.
    pub(super) fn remove(&mut self, key: &Key) -> bool {
        let was_known = self.known_objects.remove(key).is_some();
        if let Some(count) = self.left_out.get_mut(&key.namespace) {
            self.has_room |= was_known;
            *count -= usize::from(!was_known);
            if *count == 0 {
                self.left_out.remove(&key.namespace);
            }
        }
        was_known
    }
}

fn old(why: &str) -> String {
    format!("{why}; its last usable state counts, if there was one")
}
