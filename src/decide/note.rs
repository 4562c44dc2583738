//! Notes on the effects of rules on a decision, one fact each, for people.

use std::fmt::Display;

use crate::lint::Finding;
use crate::model::Resource;
use crate::model::objects::VerticalPodAutoscaler;

/// A note shows at most this many characters of an annotation.
const SHOWN: usize = 64;

/// The most notes that one rule adds for a list in an object, such as the VPAs of a workload.
const LISTED: usize = 8;

/// One fact about a decision.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{fact}")]
pub struct Note {
    /// The container that the fact is about, if it is about one.
    pub container: Option<String>,
    /// The resource that the fact is about, if it is about one.
    pub resource: Option<Resource>,
    pub fact: Fact,
}

/// The fact of a note.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum Fact {
    Text(String),
    /// An annotation of the VPA is malformed.
    Unreadable(String),
    /// No resize reaches a memory setting inside a container.
    #[display("{}: {_0}", _0.container)]
    OutOfReach(Box<Finding>),
}

impl Note {
    /// Adds a note for each of these, up to a number, and one note that counts the others, which are `what`.
    pub(super) fn list<T>(
        notes: &mut Vec<Self>,
        mut all: impl Iterator<Item = T>,
        note: impl Fn(T) -> Self,
        what: &str,
    ) {
        notes.extend(all.by_ref().take(LISTED).map(note));
        let more = all.count();
        if more > 0 {
            notes.push(Self::new(None, None, format!("and {more} more {what}")));
        }
    }

    /// Whether the note is about this amount, of this container or of all.
    pub fn is_about(&self, container: &str, resource: Resource) -> bool {
        self.resource == Some(resource) && self.container.as_deref().is_none_or(|named| named == container)
    }

    /// A sentence about a container or the pod. A container's name precedes the text.
    pub(super) fn new(container: Option<&str>, resource: Option<Resource>, text: impl Display) -> Self {
        let text = container.map_or_else(|| text.to_string(), |name| format!("{name}: {text}"));
        Self {
            container: container.map(str::to_owned),
            resource,
            fact: Fact::Text(text),
        }
    }

    /// An annotation of the VPA is malformed.
    pub(super) fn unreadable(vpa: &VerticalPodAutoscaler, annotation: &str, value: &str, allowed: &str) -> Self {
        let (vpa, value) = (&vpa.metadata.name, value.chars().take(SHOWN).collect::<String>());
        Self {
            container: None,
            resource: None,
            fact: Fact::Unreadable(format!(
                "VerticalPodAutoscaler {vpa}: metadata.annotations[{annotation}]: {value:?}: allowed is {allowed}"
            )),
        }
    }

    /// No resize reaches a memory setting inside a container.
    pub(super) fn out_of_reach(finding: Finding) -> Self {
        Self {
            container: Some(finding.container.clone()),
            resource: Some(Resource::Memory),
            fact: Fact::OutOfReach(Box::new(finding)),
        }
    }
}
