//! What is known of a list, and what each object of a list or of a watch does to it. Pure.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::kubernetes::call::Call;
use crate::kubernetes::error::Problem;
use crate::kubernetes::object::{Decoded, Key, Object, decode};
use crate::kubernetes::pieces::{LARGEST_OBJECT, Piece};

/// What is known of a list.
#[derive(Debug, Default)]
pub struct Followed<T> {
    known_objects: BTreeMap<Key, Kept<T>>,
    /// How many objects have no place in their namespace's share, by namespace.
    left_out: BTreeMap<String, usize>,
    /// Counts the times that the list was begun.
    lists: u64,
    /// Whether objects that were left out may have a place since: the next list tells.
    pub(super) has_room: bool,
    /// Whether the list was ever seen whole.
    pub known: bool,
    /// Why it cannot be followed now; what is known may be old.
    pub trouble: Option<String>,
    /// Whether that lasts until somebody changes something: a rule is missing, credentials are wrong.
    pub refused: bool,
}

/// What is known of one object.
#[derive(Debug, Default)]
struct Kept<T> {
    object: Option<Arc<T>>,
    /// What that takes of its namespace's share.
    bytes: usize,
    /// What is wrong with its latest state.
    complaint: Option<String>,
    /// The list that it was seen in or after.
    list: u64,
}

/// What a list says beside its objects, and what a bookmark says.
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

/// The annotation of the bookmark that ends what was there when a watch began (KEP-3157).
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// What a line of a watch was.
#[derive(Debug)]
pub(super) enum WatchResult {
    /// An object changed; the watch now stands at this version.
    Change {
        /// The version; empty where it cannot be read.
        version: String,
        /// Whether that changed what is known.
        news: bool,
    },
    /// Nothing changed up to this version.
    Bookmark(String),
    /// The list with which the watch began is whole, and this is its version.
    ListEnd(String),
}

impl<T: Object> Followed<T> {
    /// The object of that name, in its last good state.
    pub(super) fn object(&self, key: &Key) -> Option<&Arc<T>> {
        self.known_objects.get(key)?.object.as_ref()
    }

    /// The objects, in their last good state.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<T>> {
        self.known_objects.values().filter_map(|kept| kept.object.as_ref())
    }

    /// What is wrong with objects, and how many were left out.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let about = |(key, kept): (&Key, &Kept<T>)| Some(format!("{key}: {}", kept.complaint.as_ref()?));
        let plural = T::KINDS.first().map_or("", |kind| kind.plural);
        let left_out = self.left_out.iter().map(move |(namespace, count)| {
            format!(
                "{namespace}: {count} {plural} are left out, for a namespace may have {} of {} KiB together",
                T::SHARE.objects,
                T::SHARE.bytes >> 10,
            )
        });
        left_out.chain(self.known_objects.iter().filter_map(about))
    }

    /// A list begins: what is not seen until its end is gone.
    pub(super) fn begin_list(&mut self) {
        self.lists += 1;
        self.has_room = false;
        self.left_out.clear();
    }

    /// Takes in an object of a list. Returns whether that changed what is known.
    pub(super) fn list_object(&mut self, piece: &Piece) -> bool {
        let decoded = match piece {
            Piece::Object(text) => std::str::from_utf8(text).ok().and_then(decode::<T>),
            Piece::TooLarge(_) => None,
        };
        self.put(decoded.unwrap_or_else(|| unreadable(piece)), true)
    }

    /// The list is whole. Returns whether that changed what is known.
    pub(super) fn end_list(&mut self) -> bool {
        let gone = |kept: &Kept<T>| kept.list < self.lists;
        let gone: Vec<Key> = (self.known_objects.iter().filter(|(_, kept)| gone(kept)))
            .map(|(key, _)| key.clone())
            .collect();
        for key in &gone {
            self.remove(key);
        }
        !std::mem::replace(&mut self.known, true) || !gone.is_empty()
    }

    /// The version of a list, from what it says beside its objects.
    pub(super) fn version(envelope: &[u8]) -> Result<String, String> {
        let envelope: Envelope = serde_json::from_slice(envelope).map_err(|error| error.to_string())?;
        Ok(envelope.metadata.resource_version)
    }

    /// Takes in a line of the watch that a call began.
    ///
    /// Errors: what the API server says, or [`Problem::Unreadable`].
    pub(super) fn apply(&mut self, line: &Piece, call: &Call) -> Result<WatchResult, Problem> {
        let Piece::Object(text) = line else {
            return Ok(WatchResult::Change {
                version: String::new(),
                news: self.put(unreadable(line), false),
            });
        };
        let nonsense = |error: serde_json::Error| Problem::Unreadable(error.to_string());
        let Line { kind, object } = serde_json::from_slice(text).map_err(nonsense)?;
        match kind.as_str() {
            "ADDED" | "MODIFIED" | "DELETED" => {
                let decoded = decode::<T>(object.get());
                let decoded = decoded.unwrap_or_else(|| unreadable(&Piece::Object(object.get().into())));
                let version = decoded.resource_version.clone();
                let news = match kind.as_str() {
                    "DELETED" => self.remove(&decoded.key),
                    kind => self.put(decoded, kind == "ADDED"),
                };
                Ok(WatchResult::Change { version, news })
            }
            "BOOKMARK" => {
                let Envelope { metadata } = serde_json::from_str(object.get()).map_err(nonsense)?;
                let ends_list = metadata
                    .annotations
                    .get(INITIAL_END)
                    .is_some_and(|value| value == "true");
                let bookmark = if ends_list {
                    WatchResult::ListEnd
                } else {
                    WatchResult::Bookmark
                };
                Ok(bookmark(metadata.resource_version))
            }
            "ERROR" => {
                let status = serde_json::from_str(object.get()).map_err(nonsense)?;
                Err(Problem::of(status, call))
            }
            other => Err(Problem::Unreadable(format!("a line of the unknown type {other}"))),
        }
    }

    /// How many other objects the namespace of this one has here, and how many bytes they take.
    fn others(&self, key: &Key) -> (usize, usize) {
        let first = Key {
            namespace: key.namespace.clone(),
            name: String::new(),
        };
        let namespace = self.known_objects.range(first..).map_while(|(other, kept)| {
            let is_neighbour = other.namespace == key.namespace;
            is_neighbour.then_some(if other == key { (0, 0) } else { (1, kept.bytes) })
        });
        namespace.fold((0, 0), |(objects, bytes), (object, size)| {
            (objects + object, bytes + size)
        })
    }

    /// Takes over an object's state, or why it is unusable. An object that another of its name followed is not its state.
    pub(super) fn put(&mut self, decoded: Decoded<T>, is_new: bool) -> bool {
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
            Entry::Vacant(entry) => entry.insert(Kept::default()),
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

    /// Forgets an object; returns whether it was known.
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

/// An object whose text cannot be kept or says no name. Its name is what looks like one, for people.
pub(super) fn unreadable<T>(piece: &Piece) -> Decoded<T> {
    let (text, why) = match piece {
        Piece::Object(text) => (text, "it has no name, or is no object".to_owned()),
        Piece::TooLarge(text) => (
            text,
            format!("larger than {LARGEST_OBJECT} bytes, its long strings left out"),
        ),
    };
    let text = String::from_utf8_lossy(text);
    let field = |name: &str| {
        let (_, rest) = text.split_once(&format!("\"{name}\":\""))?;
        Some(rest.split('"').next().unwrap_or_default().chars().take(253).collect())
    };
    Decoded {
        key: Key {
            namespace: field("namespace").unwrap_or_default(),
            name: field("name").unwrap_or_else(|| "?".to_owned()),
        },
        resource_version: String::new(),
        object: Err(why),
        left_out: None,
    }
}
