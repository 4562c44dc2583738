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

/// The largest text of a list beside its objects. Kind and version take a hundred bytes.
const LARGEST_ENVELOPE: usize = 64 << 10;

/// The layout of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Objects one after the other: a watch, or one object.
    Objects,
    /// Objects in the array of an enclosing object: a list.
    List,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum RawObject {
    /// The whole object without its long strings.
    Object(Vec<u8>),
    /// The beginning of an object above [`LARGEST_OBJECT`].
    TooLarge(Vec<u8>),
}

#[derive(Debug)]
pub(super) struct Splitter {
    layout: Layout,
    /// The text beside a list's objects.
    envelope: Vec<u8>,
    object: Option<Vec<u8>>,
    is_too_large: bool,
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
    pub(super) const fn new(layout: Layout) -> Self {
        Self {
            layout,
            envelope: Vec::new(),
            object: None,
            is_too_large: false,
            depth: 0,
            is_among_items: false,
            string: None,
            ready: VecDeque::new(),
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

    /// The text beside the objects, and whether the answer ended at the end of an object.
    pub(super) fn rest(&self) -> (&[u8], bool) {
        (&self.envelope, self.depth == 0 && self.string.is_none())
    }

    fn push_byte(&mut self, byte: u8) {
        if let Some(text) = &mut self.string {
            let ends = byte == b'"' && !text.is_escaped;
            text.is_escaped = byte == b'\\' && !text.is_escaped;
            if ends {
                self.string = None;
                return self.keep(&[byte]);
            }
            text.length += 1;
            let (begins, length) = (text.begins, text.length);
            if length <= LONGEST_STRING {
                self.keep(&[byte]);
            } else if length == LONGEST_STRING + 1 && !self.is_too_large {
                self.kept().truncate(begins);
                self.keep(LEFT_OUT.as_bytes());
            }
            return;
        }
        match byte {
            b'"' => {
                self.keep(&[byte]);
                self.string = Some(Text {
                    begins: self.kept().len(),
                    length: 0,
                    is_escaped: false,
                });
            }
            b'{' | b'[' => {
                let begins = match self.layout {
                    Layout::Objects => self.depth == 0,
                    Layout::List => self.depth == 2 && self.is_among_items,
                };
                if begins && byte == b'{' {
                    self.object = Some(Vec::new());
                    self.is_too_large = false;
                }
                self.is_among_items |= byte == b'[' && self.depth == 1;
                self.depth += 1;
                self.keep(&[byte]);
            }
            b'}' | b']' => {
                self.keep(&[byte]);
                self.depth = self.depth.saturating_sub(1);
                self.is_among_items &= self.depth > 1;
                let outside = match self.layout {
                    Layout::Objects => 0,
                    Layout::List => 2,
                };
                if self.depth == outside
                    && let Some(mut object) = self.object.take()
                {
                    object.shrink_to_fit();
                    self.ready.push_back(if self.is_too_large {
                        RawObject::TooLarge(object)
                    } else {
                        RawObject::Object(object)
                    });
                }
            }
            // Drops the commas between the items of a list.
            _ if self.object.is_none() && self.is_among_items && self.depth == 2 => {}
            _ => self.keep(&[byte]),
        }
    }

    fn kept(&mut self) -> &mut Vec<u8> {
        self.object.as_mut().unwrap_or(&mut self.envelope)
    }

    fn keep(&mut self, bytes: &[u8]) {
        match &mut self.object {
            Some(_) if self.is_too_large => {}
            Some(object) if object.len() + bytes.len() > LARGEST_OBJECT => {
                self.is_too_large = true;
                object.truncate(LONGEST_STRING);
                object.shrink_to_fit();
            }
            Some(object) => object.extend(bytes),
            None if self.envelope.len() + bytes.len() <= LARGEST_ENVELOPE => self.envelope.extend(bytes),
            None => {}
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
        let pieces = std::iter::from_fn(|| splitter.next()).collect();
        let (rest, whole) = splitter.rest();
        (pieces, String::from_utf8(rest.to_vec()).unwrap(), whole)
    }

    fn objects(pieces: Vec<RawObject>) -> Vec<Value> {
        let read = |piece| match piece {
            RawObject::Object(text) => serde_json::from_slice(&text).unwrap(),
            RawObject::TooLarge(_) => panic!("{piece:?}"),
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
        fn nothing_that_is_kept_is_larger_than_it_may_be(
            lengths in prop::collection::vec(0_usize..3 * LONGEST_STRING, 0..8), braces in "[\\[{}\\]\"\\\\,:]{0,2000}"
        ) {
            let strings: Vec<_> = lengths.iter().map(|length| "\\".repeat(*length)).collect();
            for text in [json!({"items": [{"strings": strings}]}).to_string(), braces] {
                for layout in [Layout::List, Layout::Objects] {
                    let mut splitter = Splitter::new(layout);
                    for byte in text.bytes() {
                        splitter.push(&[byte]);
                        let object = splitter.object.as_ref().map_or(0, Vec::len);
                        prop_assert!(object <= LARGEST_OBJECT && splitter.envelope.len() <= LARGEST_ENVELOPE);
                    }
                }
            }
        }
    }

    #[test]
    fn of_a_long_string_it_is_kept_that_it_was_there() {
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
        let large = json!({"metadata": {"name": "fat"}, "many": vec!["x".repeat(1000); 2000]});
        let list = json!({"items": [{"a": 1}, large, {"b": 2}]});
        let (pieces, _, whole) = split(Layout::List, &list.to_string(), 4096);
        assert!(whole && pieces.len() == 3);
        let RawObject::TooLarge(beginning) = &pieces[1] else {
            panic!("{pieces:?}");
        };
        assert!(beginning.len() <= LONGEST_STRING);
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
