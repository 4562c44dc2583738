//! The objects in JSON text, in any layout: one on a line, printed over several lines, in a list or in another object.
//!
//! In comes text line by line, which may be cut anywhere; out goes each object as soon as it is closed, an inner one before the
//! one around it. Keeps at most [`MOST_KEPT`] bytes.

use serde_json::{Map, Value};

/// Longer than the console's output of a machine within one string.
const MOST_KEPT: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Objects {
    /// The open objects as far as they were read. A closed object within them has become a `0`.
    text: Vec<u8>,
    /// Where in the text each open object begins.
    starts: Vec<usize>,
    in_string: bool,
    is_escaped: bool,
    /// What is no object after all, and what stands around the objects.
    broken: Vec<u8>,
}

impl Objects {
    /// Whether a line is JSON: its beginning is that of an object, or what can stand inside an open one.
    pub(super) fn accepts(&self, line: &[u8]) -> bool {
        let line = line.strip_prefix(b"data:").unwrap_or(line);
        let mut rest = line.iter().filter(|byte| !byte.is_ascii_whitespace() && **byte != 0x1e);
        if self.starts.is_empty() {
            return rest.find(|byte| **byte != b'[') == Some(&b'{');
        }
        let is_list_item = || {
            line.iter()
                .all(|byte| byte.is_ascii_digit() || b" \t\r,".contains(byte))
        };
        matches!(rest.next(), Some(b'"' | b'{' | b'}' | b']' | b',')) || is_list_item()
    }

    /// Takes a line or a part of one. Returns the objects that it closes.
    pub(super) fn push(&mut self, line: &[u8]) -> Vec<Map<String, Value>> {
        let mut closed = Vec::new();
        for &byte in line {
            if self.in_string {
                self.in_string = self.is_escaped || byte != b'"';
                self.is_escaped = byte == b'\\' && !self.is_escaped;
            } else if byte == b'{' {
                self.starts.push(self.text.len());
            } else if self.starts.is_empty() {
                self.broken.push(byte);
                continue;
            } else if byte.is_ascii_whitespace() {
                // The words of what is no JSON stay apart.
                let ends_word = self.text.last().is_some_and(u8::is_ascii_alphabetic);
                self.text.extend(ends_word.then_some(b' '));
                continue;
            } else {
                self.in_string = byte == b'"';
            }
            self.text.push(byte);
            if byte == b'}'
                && !self.in_string
                && let Some(start) = self.starts.pop()
            {
                match serde_json::from_str(&String::from_utf8_lossy(&self.text[start..])) {
                    Ok(object) => closed.push(object),
                    Err(_) => self.broken.extend_from_slice(&self.text[start..]),
                }
                self.text.truncate(start);
                let length = self.text.strip_suffix(b"0,").map_or(start, <[u8]>::len);
                self.text.truncate(length);
                self.text.extend((!self.starts.is_empty()).then_some(b'0'));
            }
            if self.text.len() > MOST_KEPT {
                self.abandon();
            }
        }
        closed
    }

    /// A line has ended. No string spans lines: one that is still open was cut.
    pub(super) fn end_line(&mut self) {
        if self.in_string {
            self.abandon();
        }
    }

    /// The text that follows is no part of the open objects.
    pub(super) fn abandon(&mut self) {
        let mut broken = std::mem::take(&mut self.broken);
        broken.append(&mut self.text);
        *self = Self {
            broken,
            ..Self::default()
        };
    }

    /// Bytes that are kept.
    #[cfg(test)]
    pub(super) const fn held(&self) -> usize {
        self.text.len() + self.broken.len() + self.starts.len()
    }

    /// The text since the last call that is no object.
    pub(super) fn take_broken(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.broken)
    }
}
