//! The bytes of an answer as they arrive → its objects, one at a time. Pure.
//!
//! The splitter keeps one object at a time and none above [`LARGEST_OBJECT`]. It replaces a string above [`LONGEST_STRING`]
//! by [`LEFT_OUT`], because the agent reads no string of that length. So long annotations, whole lists and unread fields
//! never fill the memory.

use std::collections::VecDeque;

/// The longest string that the splitter keeps, in bytes of JSON.
pub(super) const LONGEST_STRING: usize = 8 << 10;

/// The text in place of a longer string.
pub(super) const LEFT_OUT: &str = "(left out: longer than 8192 bytes)";

/// The largest object that the splitter keeps, in bytes of JSON without its long strings. etcd stores 1.5 MiB with them.
pub(super) const LARGEST_OBJECT: usize = 1 << 20;

/// The layout of an answer: the depth of its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Layout {
    /// Objects one after the other: a watch, or one object.
    #[default]
    Objects = 0,
    /// Objects in the array of an enclosing object: a list.
    List = 2,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum RawObject {
    /// The whole object without its long strings.
    Object(Vec<u8>),
    /// The beginning of an object above [`LARGEST_OBJECT`].
    TooLarge(Vec<u8>),
    /// A list without its objects, after the objects.
    Envelope(Vec<u8>),
}

#[derive(Debug, Default)]
pub(super) struct Splitter {
    layout: Layout,
    /// The text outside of objects: of a list, beside its objects.
    envelope: Vec<u8>,
    object: Option<Vec<u8>>,
    depth: usize,
    is_among_items: bool,
    string: Option<Text>,
    ready: VecDeque<RawObject>,
}

#[derive(Debug)]
struct Text {
    /// The position of the string in the kept text.
    begins: usize,
    length: usize,
    is_escaped: bool,
}

impl Splitter {
    pub(super) fn new(layout: Layout) -> Self {
        Self {
            layout,
            ..Self::default()
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.push_byte(*byte);
        }
    }

    pub(super) fn next(&mut self) -> Option<RawObject> {
        self.ready.pop_front()
    }

    fn push_byte(&mut self, byte: u8) {
        let Some(text) = &mut self.string else {
            return self.push_beside_strings(byte);
        };
        let ends = byte == b'"' && !text.is_escaped;
        text.is_escaped = byte == b'\\' && !text.is_escaped;
        text.length += 1;
        let (begins, length) = (text.begins, text.length);
        if ends {
            self.string = None;
        } else if length == LONGEST_STRING + 1 && self.kept().len() > begins {
            self.kept().truncate(begins);
            LEFT_OUT.bytes().for_each(|byte| self.keep(byte));
        }
        if ends || length <= LONGEST_STRING {
            self.keep(byte);
        }
    }

    fn push_beside_strings(&mut self, byte: u8) {
        let outside = self.layout as usize;
        let is_between = self.object.is_none() && self.depth == outside && (outside == 0 || self.is_among_items);
        match byte {
            b'"' => {
                self.keep(byte);
                let begins = self.kept().len();
                self.string = Some(Text {
                    begins,
                    length: 0,
                    is_escaped: false,
                });
            }
            b'{' | b'[' => {
                if byte == b'{' && is_between {
                    self.object = Some(Vec::new());
                }
                self.is_among_items |= byte == b'[' && self.depth == 1;
                self.depth += 1;
                self.keep(byte);
            }
            b'}' | b']' => {
                self.keep(byte);
                self.depth = self.depth.saturating_sub(1);
                self.is_among_items &= self.depth > 1;
                if self.depth == outside
                    && let Some(object) = self.object.take()
                {
                    self.ready.push_back(match object.len() {
                        ..LARGEST_OBJECT => RawObject::Object(object),
                        _ => RawObject::TooLarge(object),
                    });
                } else if self.depth == 0 {
                    self.ready
                        .push_back(RawObject::Envelope(std::mem::take(&mut self.envelope)));
                }
            }
            // Drops the commas and line ends between objects.
            _ if is_between => {}
            _ => self.keep(byte),
        }
    }

    fn kept(&mut self) -> &mut Vec<u8> {
        self.object.as_mut().unwrap_or(&mut self.envelope)
    }

    fn keep(&mut self, byte: u8) {
        let kept = self.kept();
        if kept.len() < LARGEST_OBJECT {
            kept.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn split(layout: Layout, text: &str, chunk: usize) -> (Vec<RawObject>, String, bool) {
        let mut splitter = Splitter::new(layout);
        text.as_bytes().chunks(chunk).for_each(|chunk| splitter.push(chunk));
        let mut pieces: Vec<_> = std::iter::from_fn(|| splitter.next()).collect();
        let whole = splitter.depth == 0 && splitter.string.is_none();
        let rest = match pieces.pop_if(|piece| matches!(piece, RawObject::Envelope(_))) {
            Some(RawObject::Envelope(rest)) => rest,
            _ => splitter.envelope,
        };
        (pieces, String::from_utf8(rest).unwrap(), whole)
    }

    fn objects(pieces: Vec<RawObject>) -> Vec<Value> {
        let read = |piece| match piece {
            RawObject::Object(text) => serde_json::from_slice(&text).unwrap(),
            RawObject::TooLarge(_) | RawObject::Envelope(_) => panic!("{piece:?}"),
        };
        pieces.into_iter().map(read).collect()
    }

    /// Any JSON object, with braces, quotes and backslashes in its strings.
    fn any_object() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            r#"[\{\}\[\]"\\a-cé \n]{0,12}"#.prop_map(Value::from),
        ];
        let tree = leaf.prop_recursive(4, 24, 4, |inner| {
            let key = r#"[\{\}\[\]"\\a-c]{0,4}"#;
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::btree_map(key, inner, 0..4).prop_map(|map| json!(map)),
            ]
        });
        tree.prop_map(|value| json!({"metadata": {"name": "x"}, "value": value}))
    }

    proptest! {
        #[test]
        fn every_object_comes_out_as_it_went_in(things in prop::collection::vec(any_object(), 0..5), chunk in 1_usize..40) {
            let list = json!({"kind": "List", "metadata": {"resourceVersion": "7", "x": [[{}]]}, "items": things});
            let (pieces, rest, whole) = split(Layout::List, &list.to_string(), chunk);
            prop_assert!(whole);
            prop_assert_eq!(objects(pieces), things.clone());
            let rest: Value = serde_json::from_str(&rest).unwrap();
            let envelope = json!({"kind": "List", "metadata": {"resourceVersion": "7", "x": [[{}]]}, "items": []});
            prop_assert_eq!(rest, envelope);
            let lines: String = things.iter().map(|thing| format!("{thing}\n")).collect();
            let (pieces, _, whole) = split(Layout::Objects, &lines, chunk);
            prop_assert!(whole);
            prop_assert_eq!(objects(pieces), things);
        }

        #[test]
        fn kept_objects_have_bounded_sizes(
            lengths in prop::collection::vec(0_usize..3 * LONGEST_STRING, 0..8), braces in "[\\[{}\\]\"\\\\,:]{0,2000}"
        ) {
            let strings: Vec<_> = lengths.iter().map(|length| "\\".repeat(*length)).collect();
            for text in [json!({"items": [{"strings": strings}]}).to_string(), braces] {
                for layout in [Layout::List, Layout::Objects] {
                    let mut splitter = Splitter::new(layout);
                    for byte in text.bytes() {
                        splitter.push(&[byte]);
                        let object = splitter.object.as_ref().map_or(0, Vec::len);
                        prop_assert!(object <= LARGEST_OBJECT && splitter.envelope.len() <= LARGEST_OBJECT);
                    }
                }
            }
        }
    }

    #[test]
    fn a_long_string_leaves_a_trace() {
        for (length, kept) in [(LONGEST_STRING, false), (LONGEST_STRING + 1, true), (1 << 20, true)] {
            let thing = json!({"fat": "x".repeat(length), "after": "\"{"});
            let (pieces, _, whole) = split(Layout::Objects, &thing.to_string(), 1000);
            let read = objects(pieces).remove(0);
            assert!(whole && read["after"] == "\"{");
            assert_eq!(read["fat"] == LEFT_OUT, kept, "{length}");
        }
        // A cut through an escape or a letter of several bytes would not be JSON any more.
        for fat in ["\\", "\u{1}", "é", "𝄞"] {
            for before in 0..8 {
                let thing = json!({"fat": format!("{}{}", "x".repeat(before), fat.repeat(LONGEST_STRING))});
                let (pieces, ..) = split(Layout::Objects, &thing.to_string(), 999);
                assert_eq!(objects(pieces)[0]["fat"], LEFT_OUT);
            }
        }
    }

    #[test]
    fn an_object_that_is_too_large_is_passed_over() {
        let metadata = json!({"managedFields": vec!["x".repeat(1000); 20], "name": "fat"});
        let large = json!({"metadata": metadata, "status": vec!["x".repeat(1000); 2000]});
        let list = json!({"items": [{"a": 1}, large, {"b": 2}]});
        let (pieces, _, whole) = split(Layout::List, &list.to_string(), 4096);
        assert!(whole && pieces.len() == 3);
        let RawObject::TooLarge(beginning) = &pieces[1] else {
            panic!("{pieces:?}");
        };
        assert_eq!(beginning.len(), LARGEST_OBJECT);
        assert!(String::from_utf8_lossy(beginning).contains("\"name\":\"fat\""));
        assert_eq!(pieces[2], RawObject::Object(br#"{"b":2}"#.to_vec()));
    }

    #[test]
    fn an_answer_that_breaks_off_is_not_whole() {
        let list = json!({"items": [{"a": 1}], "metadata": {}}).to_string();
        for end in 1..list.len() {
            assert!(!split(Layout::List, &list[..end], 7).2, "{}", &list[..end]);
        }
    }
}
