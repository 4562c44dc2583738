//! The state of a followed list, and the effect of each listed or watched object on it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::kubernetes::call::{Call, Verb};
use crate::kubernetes::error::Problem;
use crate::kubernetes::kept::ObjectMemory;
use crate::kubernetes::object::{Decoded, Named, Object};
use crate::kubernetes::splitter::RawObject;
use crate::share::LeftOut;

/// The names of the workloads above local pods of a namespace, of whatever kind.
pub type LocalWorkloads = BTreeSet<String>;

/// The state of a followed list.
#[derive(Debug)]
pub struct Followed<T> {
    /// By namespace and name.
    known_objects: BTreeMap<String, ObjectState<T>>,
    /// The objects without memory, by namespace.
    left_out: BTreeMap<String, LeftOutObjects>,
    /// The memory for the objects of this list and of others of the kind.
    memory: ObjectMemory,
    local: LocalWorkloads,
    /// By namespace, a key before which every known object is about local pods.
    others_from: BTreeMap<String, String>,
    /// Whether an object that was left out may be about a workload that arrived since; the next list shows.
    has_new_workloads: bool,
    lists: u64,
    /// The namespaces in which objects or problems have changed, until the reader is notified.
    pub(super) changed_namespaces: BTreeSet<String>,
    /// Whether one list was complete.
    pub known: bool,
    /// The reason why the list cannot be followed now. The objects may be outdated.
    pub trouble: Option<String>,
    /// Whether the list is refused until a change of rules.
    pub refused: bool,
}

#[derive(Debug)]
struct ObjectState<T> {
    object: Option<Arc<T>>,
    /// The latest `resourceVersion` with this state of the object; empty if the latest state cannot be used.
    version: String,
    /// The memory that the object takes, in bytes.
    bytes: usize,
    /// The reason why the object's latest state cannot be used.
    complaint: Option<String>,
    /// The number of the latest list that had begun when the object was seen.
    list: u64,
}

/// The objects of a namespace that are left out.
#[derive(Debug)]
struct LeftOutObjects {
    /// The name of the first one.
    first: String,
    count: usize,
    /// The size of the smallest one, in bytes of JSON.
    smallest: usize,
    why: LeftOut,
}

#[derive(Debug, Deserialize)]
struct WatchLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
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

impl<T> Followed<T> {
    pub(super) const fn new(memory: ObjectMemory) -> Self {
        Self {
            known_objects: BTreeMap::new(),
            left_out: BTreeMap::new(),
            memory,
            local: BTreeSet::new(),
            others_from: BTreeMap::new(),
            has_new_workloads: false,
            lists: 0,
            changed_namespaces: BTreeSet::new(),
            known: false,
            trouble: None,
            refused: false,
        }
    }

    /// The objects in their last usable state.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<T>> {
        self.known_objects.values().filter_map(|kept| kept.object.as_ref())
    }

    /// The objects of a namespace in their last usable state.
    pub fn objects_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<T>> {
        // The character after the slash: no key of the namespace is behind it.
        let all = self
            .known_objects
            .range(format!("{namespace}/")..format!("{namespace}0"));
        all.filter_map(|(_, kept)| kept.object.as_ref())
    }
}

impl<T> Drop for Followed<T> {
    fn drop(&mut self) {
        for (key, kept) in &self.known_objects {
            self.memory.give_back(namespace(key), kept.bytes);
        }
    }
}

impl<T: Object> Followed<T> {
    /// An object by name, in its last usable state.
    pub(super) fn object(&self, key: &str) -> Option<&Arc<T>> {
        self.known_objects.get(key)?.object.as_ref()
    }

    /// An object by name with the version of its latest state. None if that state cannot be used.
    pub(super) fn latest(&self, key: &str) -> Option<(&Arc<T>, &str)> {
        let kept = self.known_objects.get(key).filter(|kept| !kept.version.is_empty())?;
        Some((kept.object.as_ref()?, &kept.version))
    }

    /// The objects that cannot be used, and the numbers of those left out.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let about = |(key, kept): (&String, &ObjectState<T>)| {
            let complaint = kept.complaint.as_ref()?;
            Some(format!("{}: {complaint}", T::kind_and_name(key)))
        };
        let left_out = self.left_out.iter().map(|(namespace, objects)| {
            let LeftOutObjects { first, count, why, .. } = objects;
            let others = count - 1;
            let (plural, share, total) = (T::plural(), why.share >> 10, why.total >> 10);
            format!(
                "{namespace}: {plural}: {first} and {others} more are left out: the node keeps {total} KiB of {plural}, of \
                 which this namespace may have {share} KiB for now"
            )
        });
        left_out.chain(self.known_objects.iter().filter_map(about))
    }

    /// Replaces the workloads above local pods. Objects about them come before others.
    pub(super) fn set_local(&mut self, local: &LocalWorkloads) {
        self.has_new_workloads |= !self.left_out.is_empty() && !local.is_subset(&self.local);
        if self.local != *local {
            self.local.clone_from(local);
            self.others_from.clear();
        }
    }

    /// Whether another list may find room for objects that were left out.
    pub(super) fn must_list_again(&self) -> bool {
        let mut left_out = self.left_out.iter();
        self.has_new_workloads || left_out.any(|(namespace, one)| self.memory.has_room(namespace, one.smallest))
    }

    /// Begins a list. [`Self::end_list`] removes the objects that the list does not contain.
    pub(super) fn begin_list(&mut self) {
        self.lists += 1;
        self.has_new_workloads = false;
        self.changed_namespaces
            .extend(std::mem::take(&mut self.left_out).into_keys());
    }

    /// Ends a complete list. Returns whether the state changed.
    pub(super) fn end_list(&mut self) -> bool {
        let gone = self.known_objects.iter().filter(|(_, kept)| kept.list < self.lists);
        let gone: Vec<String> = gone.map(|(key, _)| key.clone()).collect();
        for key in &gone {
            self.remove(key);
        }
        self.memory.end_period();
        !std::mem::replace(&mut self.known, true) || !gone.is_empty()
    }

    /// Applies a piece of the list or watch that `call` began.
    ///
    /// Errors: the API server's error, or [`Problem::Unreadable`].
    pub(super) fn apply(&mut self, piece: &RawObject, call: &Call) -> Result<WatchResult, Problem> {
        let nonsense = |error: serde_json::Error| Problem::Unreadable(error.to_string());
        let is_list = call.verb == Verb::List;
        let (kind, decoded) = match piece {
            RawObject::Envelope(text) => {
                let Named { metadata } = serde_json::from_slice(text).map_err(nonsense)?;
                return Ok(WatchResult::ListEnd(metadata.resource_version));
            }
            RawObject::TooLarge(beginning) if is_list => ("ADDED", Decoded::too_large(beginning)),
            RawObject::TooLarge(beginning) => (type_of(beginning), Decoded::too_large(beginning)),
            RawObject::Object(text) if is_list => ("ADDED", Decoded::parse(&String::from_utf8_lossy(text))),
            RawObject::Object(text) => {
                let WatchLine { kind, object } = serde_json::from_slice(text).map_err(nonsense)?;
                match kind {
                    "ADDED" | "MODIFIED" | "DELETED" => (kind, Decoded::parse(object.get())),
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
        let news = match kind {
            "DELETED" => self.remove(&decoded.key),
            kind => self.store(decoded, kind == "ADDED"),
        };
        Ok(WatchResult::Change { version, news })
    }

    /// Stores an object's state, or the reason why it cannot be used.
    pub(super) fn store(&mut self, decoded: Decoded<T>, is_new: bool) -> bool {
        let Decoded {
            key,
            resource_version,
            object,
            left_out,
        } = decoded;
        let held = self.known_objects.get(&key).map(|kept| kept.bytes);
        let bytes = object.as_ref().map_or_else(String::len, |(_, bytes)| *bytes);
        let is_local = object.as_ref().is_ok_and(|(object, _)| concerns(object, &self.local));
        let taken = match (&object, held) {
            // The last usable state stays.
            (Err(_), Some(held)) => Ok(held),
            _ => self.take(&key, held.unwrap_or_default(), bytes, is_local),
        };
        if let (Err(why), None) = (&taken, held) {
            return self.leave_out(&key, bytes, *why, is_new);
        }
        // Without memory the last state stays, which may be about no local pod.
        let may_be_other = !is_local || taken.is_err();
        let from = self.others_from.get_mut(namespace(&key));
        if let Some(from) = from.filter(|from| may_be_other && **from > key) {
            from.clone_from(&key);
        }
        let (lists, changed_in) = (self.lists, namespace(&key).to_owned());
        let kept = self.known_objects.entry(key).or_insert_with(|| ObjectState {
            object: None,
            version: String::new(),
            bytes: 0,
            complaint: None,
            list: lists,
        });
        kept.list = lists;
        kept.version.clear();
        let (complaint, changed) = match (object, taken) {
            (Ok((object, _)), Ok(bytes)) => {
                kept.bytes = bytes;
                kept.version = resource_version;
                let changed = kept.object.as_deref() != Some(&object);
                if changed {
                    kept.object = Some(Arc::new(object));
                }
                (left_out, changed)
            }
            (Ok(_), Err(why)) => {
                let share = why.share >> 10;
                let why = format!("it does not fit into the {share} KiB that its namespace may have for now");
                (Some(old(&why)), false)
            }
            (Err(why), taken) => {
                kept.bytes = taken.unwrap_or(kept.bytes);
                (Some(old(&why)), false)
            }
        };
        let news = changed || kept.complaint != complaint;
        kept.complaint = complaint;
        self.changed_namespaces.extend(news.then_some(changed_in));
        news
    }

    /// Takes memory for an object. An object about local pods replaces others of its namespace that are about none. Each search for
    /// those goes on where the last one ended: a namespace may have thousands of objects that do not fit.
    fn take(&mut self, key: &str, held: usize, bytes: usize, is_local: bool) -> Result<usize, LeftOut> {
        let namespace = namespace(key);
        loop {
            let taken = self.memory.take(namespace, held, bytes);
            let Err(why) = taken else { return taken };
            if !is_local {
                return taken;
            }
            let first = format!("{namespace}/");
            let from = self.others_from.get(namespace).unwrap_or(&first);
            let objects = self.known_objects.range(from.clone()..);
            let mut objects = objects.take_while(|(other, _)| other.starts_with(&first));
            let other = objects.find(|(other, kept)| {
                let object = kept.object.as_deref();
                *other != key && !object.is_some_and(|object| concerns(object, &self.local))
            });
            let other = other.map(|(other, kept)| (other.clone(), kept.bytes));
            // The character after the slash: no key of the namespace is behind it.
            let end = || format!("{namespace}0");
            let from = other.as_ref().map_or_else(end, |(other, _)| other.clone());
            self.others_from.insert(namespace.to_owned(), from);
            let Some((other, bytes)) = other else { return taken };
            self.remove(&other);
            self.leave_out(&other, bytes, why, true);
        }
    }

    /// Counts an object that is left out; returns whether it is the first of its namespace.
    fn leave_out(&mut self, key: &str, bytes: usize, why: LeftOut, is_new: bool) -> bool {
        let (namespace, name) = key.split_once('/').unwrap_or_default();
        let none = || LeftOutObjects {
            first: name.to_owned(),
            count: 0,
            smallest: bytes,
            why,
        };
        let objects = self.left_out.entry(namespace.to_owned()).or_insert_with(none);
        let is_first = objects.count == 0;
        if is_new || is_first {
            objects.count += 1;
            self.changed_namespaces.insert(namespace.to_owned());
        }
        objects.smallest = objects.smallest.min(bytes);
        is_first
    }

    /// Removes an object; returns whether it was known.
    pub(super) fn remove(&mut self, key: &str) -> bool {
        let namespace = namespace(key);
        if let Some(kept) = self.known_objects.remove(key) {
            self.memory.give_back(namespace, kept.bytes);
            self.changed_namespaces.insert(namespace.to_owned());
            return true;
        }
        if let Some(objects) = self.left_out.get_mut(namespace) {
            objects.count -= 1;
            if objects.count == 0 {
                self.left_out.remove(namespace);
            }
            self.changed_namespaces.insert(namespace.to_owned());
        }
        false
    }
}

/// The type of a line of which only the beginning is kept. The API server writes it first.
fn type_of(beginning: &[u8]) -> &'static str {
    let begins = |kind: &&str| beginning.starts_with(format!("{{\"type\":\"{kind}\"").as_bytes());
    ["ADDED", "DELETED"].into_iter().find(begins).unwrap_or("MODIFIED")
}

/// Whether an object may be about a workload above a local pod, or is about no workload in particular.
fn concerns<T: Object>(object: &T, local: &LocalWorkloads) -> bool {
    object.target().is_none_or(|target| local.contains(&target.name))
}

fn namespace(key: &str) -> &str {
    key.split_once('/').map_or(key, |(namespace, _)| namespace)
}

fn old(why: &str) -> String {
    format!("{why}; its last usable version stays in use, if there was one")
}
