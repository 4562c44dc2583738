//! An object of any source → the part that the agent keeps, and the memory for such parts.
//!
//! The API server, the kubelet and manifests give objects of any size and number. Every one of them passes [`reduce`], which
//! keeps the annotations of one list ([`annotation`]), bounds labels and size, and checks the object. What the objects of one
//! kind take together comes from one [`ObjectMemory`] for the node, which is fair among namespaces.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;

use super::splitter::{LEFT_OUT, LONGEST_STRING};
use crate::model::objects::ObjectMeta;
use crate::model::objects::annotation::{self, AnnotatedKind};
use crate::printable::beginning_of;
use crate::share::{FairShare, LeftOut};

/// The largest size of a kept object, in bytes of JSON.
pub(super) const LARGEST_KEPT: usize = 64 << 10;

/// The largest size of one object's labels, in bytes.
const LARGEST_LABELS: usize = 16 << 10;

/// The longest complaint, in characters. Longer ones quote a long value.
const LONGEST_COMPLAINT: usize = 400;

/// The memory of an object beside its JSON, in bytes: its keys, its place in lists, and fields that JSON leaves out.
const BESIDE_JSON: usize = 512;

/// A kind of object of which the agent keeps a part.
pub trait KeptObject: Serialize + Clone {
    /// Whether `resourceVersion` is kept, because records cite it. Every write of the object is then a change of its state.
    const IS_CITED: bool = false;
    const KEEPS_LABELS: bool = false;
    /// The kind's name in the list of annotations. Without one, the agent reads no annotation of the kind.
    const ANNOTATED: Option<AnnotatedKind> = None;

    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    /// Whether the object has a container of that name.
    fn has_container(&self, _name: &str) -> bool {
        false
    }

    /// Checks the object.
    ///
    /// Errors: the field and the reason why the object cannot be used.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Reduces an object to what the agent keeps. Returns its size in bytes of JSON, and the parts that the agent reads and that are
/// too long to keep.
///
/// Errors: the reason why the object cannot be used.
pub fn reduce<T: KeptObject>(object: &mut T) -> Result<(usize, Option<String>), String> {
    let left_out = keep_what_is_read(object);
    if !T::IS_CITED {
        object.metadata_mut().resource_version = String::new();
    }
    object.check().map_err(shortened)?;
    // A copy has no spare capacity: a decoded list has room for four entries, and most have one.
    *object = object.clone();
    // An object that cannot be serialized counts as too large.
    match serde_json::to_vec(object).map_or(usize::MAX, |json| json.len()) {
        size @ ..=LARGEST_KEPT => Ok((size, left_out)),
        size => Err(format!(
            "the fields that vscaled reads take {size} bytes; allowed are {LARGEST_KEPT}"
        )),
    }
}

/// Drops annotations and labels that the agent does not read. Returns the names of those that are too long to keep.
fn keep_what_is_read<T: KeptObject>(object: &mut T) -> Option<String> {
    let mut complaints = Vec::new();
    let mut annotations = std::mem::take(&mut object.metadata_mut().annotations);
    annotations.retain(|name, value| {
        let has_container = |container: &str| object.has_container(container);
        let is_read = T::ANNOTATED.is_some_and(|kind| annotation::is_read(kind, name, has_container));
        let is_long = value == LEFT_OUT || value.len() > LONGEST_STRING;
        if is_read && is_long {
            complaints.push(format!(
                "metadata.annotations[{name}]: longer than {LONGEST_STRING} bytes, so it is ignored"
            ));
        }
        is_read && !is_long
    });
    let metadata = object.metadata_mut();
    metadata.annotations = annotations;
    let labels = metadata.labels.iter().map(|(name, value)| name.len() + value.len());
    let labels: usize = labels.sum();
    if T::KEEPS_LABELS && labels > LARGEST_LABELS {
        complaints.push(format!(
            "metadata.labels: {labels} bytes; allowed are {LARGEST_LABELS}, so all of them are ignored"
        ));
    }
    if !T::KEEPS_LABELS || labels > LARGEST_LABELS {
        metadata.labels.clear();
    }
    (!complaints.is_empty()).then(|| complaints.join(", "))
}

/// A complaint without the rest of a long value.
pub(super) fn shortened(complaint: String) -> String {
    beginning_of(complaint, LONGEST_COMPLAINT)
}

/// The memory for the objects of one kind on this node, in bytes, shared fairly among namespaces. Half of it is divided in
/// advance among the namespaces of local pods. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ObjectMemory(Arc<Mutex<FairShare<String>>>);

impl ObjectMemory {
    /// Memory for objects of so many bytes in all.
    pub fn new(total: u64) -> Self {
        Self(Arc::new(Mutex::new(FairShare::new(total, total / 2))))
    }

    /// Replaces the namespaces that have a part of the memory before they use it.
    pub fn expect(&self, namespaces: impl IntoIterator<Item = String>) {
        self.0.lock().expect(namespaces);
    }

    /// Takes the memory for an object with so many bytes of JSON, where the object's namespace holds `held` for it already.
    /// Returns what is held from now on.
    ///
    /// Errors: the namespace has its share; nothing changes then.
    pub fn take(&self, namespace: &str, held: usize, json: usize) -> Result<usize, LeftOut> {
        let needed = json.saturating_add(BESIDE_JSON);
        let (held, needs) = (held as u64, needed as u64);
        let mut share = self.0.lock();
        let more = needs.saturating_sub(held);
        share.take(&namespace.to_owned(), more, more)?;
        share.give_back(&namespace.to_owned(), held.saturating_sub(needs));
        Ok(needed)
    }

    /// Gives back what was held.
    pub fn give_back(&self, namespace: &str, held: usize) {
        self.0.lock().give_back(&namespace.to_owned(), held as u64);
    }

    /// Whether a namespace could take the memory for one more object.
    pub(super) fn has_room(&self, namespace: &str, json: usize) -> bool {
        let taken = self.take(namespace, 0, json);
        taken.map(|taken| self.give_back(namespace, taken)).is_ok()
    }

    /// Forgets what namespaces asked for and did not get some time ago.
    pub(super) fn end_period(&self) {
        self.0.lock().end_period();
    }
}
