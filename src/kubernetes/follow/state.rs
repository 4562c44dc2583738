//! The state of a followed list, and the effect of each listed or watched object on it. Pure.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::kubernetes::call::{Call, Verb};
use crate::kubernetes::error::Problem;
use crate::kubernetes::object::{Decoded, Named, Object};
use crate::kubernetes::splitter::RawObject;

/// The state of a followed list.
#[derive(Debug, Default)]
pub struct Followed<T> {
    /// By namespace and name.
    known_objects: BTreeMap<String, ObjectState<T>>,
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

/// A line of a watch.
#[derive(Debug, Deserialize)]
struct WatchLine<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The annotation of the bookmark that ends the initial list of a watch (KEP-3157).
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The effect of an item of a list or a line of a watch.
#[derive(Debug)]
pub(super) enum WatchResult {
    /// An object changed. A watch has now reached this version.
    Change {
        /// Empty if the version cannot be read.
        version: String,
        news: bool,
    },
    /// Nothing changed up to this version.
    Bookmark(String),
    /// The list, or the initial list of the watch, is complete, and this is its version.
    ListEnd(String),
}

impl<T: Object> Followed<T> {
    /// An object by name, in its last usable state.
    pub(super) fn object(&self, key: &str) -> Option<&Arc<T>> {
        self.known_objects.get(key)?.object.as_ref()
    }

    /// The objects in their last usable state.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<T>> {
        self.known_objects.values().filter_map(|kept| kept.object.as_ref())
    }

    /// The objects that cannot be used, and the numbers of those left out.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let about = |(key, kept): (&String, &ObjectState<T>)| Some(format!("{key}: {}", kept.complaint.as_ref()?));
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

    /// Ends a complete list. Returns whether the state changed.
    pub(super) fn end_list(&mut self) -> bool {
        let gone = self.known_objects.iter().filter(|(_, kept)| kept.list < self.lists);
        let gone: Vec<String> = gone.map(|(key, _)| key.clone()).collect();
        for key in &gone {
            self.remove(key);
        }
        !std::mem::replace(&mut self.known, true) || !gone.is_empty()
    }

    /// Applies a piece of the list or watch that `call` began.
    ///
    /// Errors: the API server's error, or [`Problem::Unreadable`].
    pub(super) fn apply(&mut self, piece: &RawObject, call: &Call) -> Result<WatchResult, Problem> {
        let nonsense = |error: serde_json::Error| Problem::Unreadable(error.to_string());
        let is_list = call.verb == Verb::List;
        let (decoded, is_new) = match piece {
            RawObject::Envelope(text) => {
                let Named { metadata } = serde_json::from_slice(text).map_err(nonsense)?;
                return Ok(WatchResult::ListEnd(metadata.resource_version));
            }
            RawObject::TooLarge(beginning) => (Decoded::too_large(beginning), is_list),
            RawObject::Object(text) if is_list => (Decoded::parse(&String::from_utf8_lossy(text)), true),
            RawObject::Object(text) => {
                let WatchLine { kind, object } = serde_json::from_slice(text).map_err(nonsense)?;
                match kind.as_str() {
                    "ADDED" => (Decoded::parse(object.get()), true),
                    "MODIFIED" => (Decoded::parse(object.get()), false),
                    "DELETED" => {
                        let decoded = Decoded::<T>::parse(object.get());
                        let news = self.remove(&decoded.key);
                        let version = decoded.resource_version;
                        return Ok(WatchResult::Change { version, news });
                    }
                    "BOOKMARK" => {
                        let Named { metadata } = serde_json::from_str(object.get()).map_err(nonsense)?;
                        let version = metadata.resource_version;
                        return Ok(match metadata.annotations.get(INITIAL_EVENTS_END).map(String::as_str) {
                            Some("true") => WatchResult::ListEnd(version),
                            Some(_) | None => WatchResult::Bookmark(version),
                        });
                    }
                    "ERROR" => {
                        let status = serde_json::from_str(object.get()).map_err(nonsense)?;
                        return Err(Problem::of(status, call));
                    }
                    other => return Err(Problem::Unreadable(format!("a line of the unknown type {other}"))),
                }
            }
        };
        let version = decoded.resource_version.clone();
        let news = self.store(decoded, is_new);
        Ok(WatchResult::Change { version, news })
    }

    /// The number and the bytes of the other objects in the key's namespace.
    fn others(&self, key: &str) -> (usize, usize) {
        let first = format!("{}/", namespace(key));
        let objects = self.known_objects.range(first.clone()..);
        objects
            .take_while(|(other, _)| other.starts_with(&first))
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
        let lacks_room = self.left_out.contains_key(namespace(&key));
        let kept = match self.known_objects.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) if others >= T::SHARE.objects || !fits => {
                let count = self.left_out.entry(namespace(entry.key()).to_owned()).or_default();
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
    pub(super) fn remove(&mut self, key: &str) -> bool {
        let was_known = self.known_objects.remove(key).is_some();
        if let Some(count) = self.left_out.get_mut(namespace(key)) {
            self.has_room |= was_known;
            *count -= usize::from(!was_known);
            if *count == 0 {
                self.left_out.remove(namespace(key));
            }
        }
        was_known
    }
}

fn namespace(key: &str) -> &str {
    key.split_once('/').map_or(key, |(namespace, _)| namespace)
}

fn old(why: &str) -> String {
    format!("{why}; its last usable state stays, if there was one")
}
