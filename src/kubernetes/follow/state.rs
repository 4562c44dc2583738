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
    metadata: PageMeta,
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
        let mut before = std::mem::take(&mut self.objects);
        let unusable_before = std::mem::take(&mut self.unusable);
        let mut news = false;
        for item in page.items.unwrap_or_default() {
            let Some(Decoded { key, object, .. }) = decode::<T>(item.get()) else {
                continue;
            };
            // What did not change stays the same object.
            let last = before.remove(&key);
            if let Some(last) = last {
                self.objects.insert(key.clone(), last);
            }
            news |= self.put(key, object);
        }
        news |= !before.is_empty() || self.unusable != unusable_before || !self.known;
        self.known = true;
        Ok((page.metadata.resource_version, news))
    }

    /// Takes in a line of a watch.
    pub(super) fn hear(&mut self, line: &[u8]) -> Heard {
        let Line { kind, object } = match serde_json::from_slice(line) {
            Ok(line) => line,
            Err(error) => return Heard::Nonsense(error.to_string()),
        };
        match kind.as_str() {
            "ADDED" | "MODIFIED" | "DELETED" => {
                let Some(decoded) = decode::<T>(object.get()) else {
                    return Heard::Nonsense(format!("{kind} without the name of an object"));
                };
                let news = if kind == "DELETED" {
                    let was_unusable = self.unusable.remove(&decoded.key).is_some();
                    self.objects.remove(&decoded.key).is_some() || was_unusable
                } else {
                    self.put(decoded.key, decoded.object)
                };
                Heard::Change {
                    version: decoded.resource_version,
                    news,
                }
            }
            "BOOKMARK" => match serde_json::from_str::<Bookmark>(object.get()) {
                Ok(bookmark) => Heard::Bookmark(bookmark.metadata.resource_version),
                Err(error) => Heard::Nonsense(error.to_string()),
            },
            "ERROR" => match serde_json::from_str(object.get()) {
                Ok(status) => Heard::Error(status),
                Err(error) => Heard::Nonsense(error.to_string()),
            },
            other => Heard::Nonsense(format!("a line of the unknown type {other}")),
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
