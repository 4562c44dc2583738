//! What is known of a list, and what each line of a watch does to it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::kubernetes::error::Status;
use crate::kubernetes::object::{Decoded, Key, Object, decode};

/// What is known of a list.
#[derive(Debug)]
pub struct Followed<T> {
    /// The objects, in their last good state.
    pub objects: BTreeMap<Key, Arc<T>>,
    /// Why the latest state of an object cannot be used.
    pub unusable: BTreeMap<Key, String>,
    /// Whether the list was ever seen whole.
    pub known: bool,
    /// Why it cannot be followed now; what is known may be old.
    pub trouble: Option<String>,
    /// Whether that lasts until somebody changes something: a rule is missing, credentials are wrong.
    pub refused: bool,
}

impl<T> Default for Followed<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            unusable: BTreeMap::new(),
            known: false,
            trouble: None,
            refused: false,
        }
    }
}

/// A list as the API server answers it; each item is read by itself.
#[derive(Debug, Deserialize)]
pub(super) struct Page<'a> {
    metadata: PageMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMeta {
    resource_version: String,
}

/// A line of a watch.
#[derive(Debug, Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Debug, Deserialize)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BookmarkMeta {
    resource_version: String,
    annotations: BTreeMap<String, String>,
}

/// The annotation of the bookmark that ends what was there when a watch began (KEP-3157).
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// What a line says.
enum Said<T> {
    Is(Decoded<T>),
    Gone(Decoded<T>),
    /// Up to this version; whether everything that was there has been told.
    UpTo(String, bool),
    No(Status),
    Nonsense(String),
}

/// A list that comes line by line at the beginning of a watch.
#[derive(Debug)]
pub(super) struct Arriving<T>(Vec<Decoded<T>>);

impl<T> Default for Arriving<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// What a line of an arriving list was.
#[derive(Debug)]
pub(super) enum Arrived {
    /// An object.
    More,
    /// The list is whole, and this its version.
    Whole(String),
    /// A bookmark like any other: the API server knows nothing of lists in watches.
    NotAList,
    /// The API server says no.
    Error(Status),
    /// It makes no sense.
    Nonsense(String),
}

impl<T: Object> Arriving<T> {
    /// Takes in a line.
    pub(super) fn hear(&mut self, line: &[u8]) -> Arrived {
        match read::<T>(line) {
            Said::Is(decoded) => {
                self.0.push(decoded);
                Arrived::More
            }
            Said::Gone(decoded) => {
                self.0.retain(|known| known.key != decoded.key);
                Arrived::More
            }
            Said::UpTo(version, true) => Arrived::Whole(version),
            Said::UpTo(_, false) => Arrived::NotAList,
            Said::No(status) => Arrived::Error(status),
            Said::Nonsense(why) => Arrived::Nonsense(why),
        }
    }
}

/// What a line of a watch was.
#[derive(Debug)]
pub(super) enum Heard {
    /// An object changed; the watch now stands at this version. Whether that changed anything here, too.
    Change {
        /// The version.
        version: String,
        /// Whether what is known changed.
        news: bool,
    },
    /// Nothing changed up to this version.
    Bookmark(String),
    /// The API server says no.
    Error(Status),
    /// It makes no sense.
    Nonsense(String),
}

impl<T: Object> Followed<T> {
    /// Takes over a whole list; what it lacks is gone. Returns its version and whether anything changed.
    pub(super) fn list(&mut self, body: &[u8]) -> Result<(String, bool), String> {
        let page: Page<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let items = page.items.unwrap_or_default();
        let news = self.replace(items.into_iter().filter_map(|item| decode::<T>(item.get())));
        Ok((page.metadata.resource_version, news))
    }

    /// The same with a list that has arrived line by line. Returns whether anything changed.
    pub(super) fn take(&mut self, arrived: Arriving<T>) -> bool {
        self.replace(arrived.0.into_iter())
    }

    fn replace(&mut self, list: impl Iterator<Item = Decoded<T>>) -> bool {
        let mut before = std::mem::take(&mut self.objects);
        let unusable_before = std::mem::take(&mut self.unusable);
        let mut news = false;
        for Decoded { key, object, .. } in list {
            // What did not change stays the same object.
            let last = before.remove(&key);
            if let Some(last) = last {
                self.objects.insert(key.clone(), last);
            }
            news |= self.put(key, object);
        }
        news |= !before.is_empty() || self.unusable != unusable_before || !self.known;
        self.known = true;
        news
    }

    /// Takes in a line of a watch.
    pub(super) fn hear(&mut self, line: &[u8]) -> Heard {
        match read::<T>(line) {
            Said::Is(decoded) => Heard::Change {
                news: self.put(decoded.key, decoded.object),
                version: decoded.resource_version,
            },
            Said::Gone(decoded) => {
                let was_unusable = self.unusable.remove(&decoded.key).is_some();
                Heard::Change {
                    news: self.objects.remove(&decoded.key).is_some() || was_unusable,
                    version: decoded.resource_version,
                }
            }
            Said::UpTo(version, _) => Heard::Bookmark(version),
            Said::No(status) => Heard::Error(status),
            Said::Nonsense(why) => Heard::Nonsense(why),
        }
    }

    /// Takes over an object's state, or why it is unusable. An object that another of its name followed is not its state.
    fn put(&mut self, key: Key, object: Result<T, String>) -> bool {
        match object {
            Ok(object) => {
                let mended = self.unusable.remove(&key).is_some();
                if self.objects.get(&key).is_some_and(|last| **last == object) {
                    return mended;
                }
                self.objects.insert(key, Arc::new(object));
                true
            }
            Err(why) => self.unusable.insert(key, why.clone()) != Some(why),
        }
    }
}

/// Reads a line of a watch.
fn read<T: Object>(line: &[u8]) -> Said<T> {
    let Line { kind, object } = match serde_json::from_slice(line) {
        Ok(line) => line,
        Err(error) => return Said::Nonsense(error.to_string()),
    };
    let nonsense = |error: serde_json::Error| Said::Nonsense(error.to_string());
    match kind.as_str() {
        "ADDED" | "MODIFIED" | "DELETED" => match decode::<T>(object.get()) {
            Some(decoded) if kind == "DELETED" => Said::Gone(decoded),
            Some(decoded) => Said::Is(decoded),
            None => Said::Nonsense(format!("{kind} without the name of an object")),
        },
        "BOOKMARK" => serde_json::from_str(object.get()).map_or_else(nonsense, |bookmark: Bookmark| {
            let is_end = bookmark
                .metadata
                .annotations
                .get(INITIAL_END)
                .is_some_and(|value| value == "true");
            Said::UpTo(bookmark.metadata.resource_version, is_end)
        }),
        "ERROR" => serde_json::from_str(object.get()).map_or_else(nonsense, Said::No),
        other => Said::Nonsense(format!("a line of the unknown type {other}")),
    }
}
