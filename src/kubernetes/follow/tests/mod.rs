//! Following a list: against a script of answers, for what a real API server cannot be made to say at will.

mod lines;
mod local;
mod streamed;
mod task;

use serde::{Deserialize, Serialize};

use super::super::call::Kind;
use super::super::kept::{KeptObject, ObjectMemory};
use super::super::object::Object;
use super::state::Followed;
use crate::model::objects::ObjectMeta;

/// An object of two versions that has nothing but a size.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Thing {
    metadata: ObjectMeta,
    size: u32,
}

impl Object for Thing {
    const KINDS: &'static [Kind] = &[Kind::new("test", "v2", "things"), Kind::new("test", "v1", "things")];

    const MEMORY: u64 = 1 << 20;
}

impl KeptObject for Thing {
    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn check(&self) -> Result<(), String> {
        if self.size < 100 {
            Ok(())
        } else {
            Err("size: at most 99".to_owned())
        }
    }
}

fn memory() -> ObjectMemory {
    ObjectMemory::new(Thing::MEMORY)
}

/// A list without objects, with memory for many.
fn nothing() -> Followed<Thing> {
    Followed::new(memory())
}

/// A thing as the API server writes it.
fn thing(name: &str, version: u32, size: u32) -> String {
    format!(r#"{{"metadata":{{"name":"{name}","namespace":"a","resourceVersion":"{version}"}},"size":{size}}}"#)
}

/// The same in a namespace.
fn thing_in(namespace: &str, name: &str, size: u32) -> String {
    thing(name, 1, size).replace("\"a\"", &format!("\"{namespace}\""))
}

fn list(version: u32, things: &[String]) -> String {
    format!(
        r#"{{"metadata":{{"resourceVersion":"{version}"}},"items":[{}]}}"#,
        things.join(",")
    )
}

fn line(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

fn bookmark(version: u32) -> String {
    line(
        "BOOKMARK",
        &format!(r#"{{"metadata":{{"resourceVersion":"{version}"}}}}"#),
    )
}
