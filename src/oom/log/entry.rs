//! An entry of the journal or another log with named fields: from lines `KEY=value` (`journalctl -o export` and `verbose`) or
//! from a JSON object (`journalctl -o json`, `dmesg --json`, collectors of logs).
//!
//! Fields come in, a [`Message`] goes out, unless the fields name a writer other than the kernel. The fields that begin with `_`
//! are the journal's own; no process can write them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::oom::DAY_US;
use crate::oom::parse::may_matter;
use crate::oom::record::{FIRST_USER_PREFIX, micros, number};

/// The fields that are kept of `KEY=value` lines.
const KEYS: [&str; 10] = [
    "MESSAGE",
    "PRIORITY",
    "SYSLOG_FACILITY",
    "SYSLOG_IDENTIFIER",
    "_BOOT_ID",
    "_HOSTNAME",
    "_SOURCE_MONOTONIC_TIMESTAMP",
    "_TRANSPORT",
    "__MONOTONIC_TIMESTAMP",
    "__REALTIME_TIMESTAMP",
];
/// Bytes of the length before a value that is no text, in the format of `journalctl -o export`.
const LENGTH: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Entry {
    fields: BTreeMap<String, String>,
    /// A value of which the length is known or still to come.
    binary: Option<Vec<u8>>,
}

/// The texts of an entry.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// Whether the entry itself says that the kernel wrote it: else each text has a header of its own, or none.
    pub is_kernels: bool,
    pub host: String,
    pub timestamp_us: Option<u64>,
    /// Microseconds since midnight.
    pub clock_us: Option<u64>,
    pub texts: Vec<String>,
}

impl Entry {
    pub(super) fn of_object(object: Map<String, Value>) -> Self {
        let fields = object.into_iter().filter_map(|(key, value)| Some((key, text(value)?)));
        Self {
            fields: fields.collect(),
            binary: None,
        }
    }

    /// Takes a line if it is a field of this entry.
    pub(super) fn take_line(&mut self, line: &[u8]) -> bool {
        if let Some(mut bytes) = self.binary.take() {
            bytes.extend_from_slice(line);
            let length = bytes.first_chunk::<LENGTH>().map(|length| u64::from_le_bytes(*length));
            match length {
                Some(length) if length <= (bytes.len() - LENGTH) as u64 => {
                    let value = String::from_utf8_lossy(&bytes[LENGTH..]).into_owned();
                    self.fields.insert("MESSAGE".to_owned(), value);
                }
                Some(length) if length > super::LONGEST_LINE as u64 => {}
                _ => {
                    bytes.push(b'\n');
                    self.binary = Some(bytes);
                }
            }
            return true;
        }
        let line = line.trim_ascii_start();
        if line == b"MESSAGE" {
            self.binary = Some(Vec::new());
            return true;
        }
        let is_key = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
        let key = line.iter().take_while(|byte| is_key(byte)).count();
        let (key, value) = line.split_at(key);
        let Some(value) = value.strip_prefix(b"=").filter(|_| !key.is_empty()) else {
            return false;
        };
        // An entry of the export format begins with this field.
        if key == b"__CURSOR" && !self.fields.is_empty() {
            return false;
        }
        let known = KEYS.iter().find(|known| known.as_bytes() == key);
        self.fields
            .extend(known.map(|known| ((*known).to_owned(), String::from_utf8_lossy(value).into_owned())));
        true
    }

    /// Bytes that are kept.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.fields.values().map(String::len).sum::<usize>() + self.binary.as_ref().map_or(0, Vec::len)
    }

    /// The message, unless another writer than the kernel wrote it.
    pub(super) fn into_message(self) -> Option<Message> {
        let field = |key: &str| self.fields.get(key).map(String::as_str);
        let count = |key: &str| field(key).and_then(number::<u64>);
        let is = |key: &str, kernels: &[&str]| field(key).is_none_or(|value| kernels.contains(&value));
        let has_transport = field("_TRANSPORT").is_some();
        let is_other = !is("_TRANSPORT", &["kernel"])
            || !has_transport && !is("SYSLOG_IDENTIFIER", &["kernel"])
            || !is("SYSLOG_FACILITY", &["0"])
            || !is("fac", &["kern"])
            || count("pri").is_some_and(|priority| priority >= FIRST_USER_PREFIX.into());
        if is_other {
            return None;
        }
        let seconds = |text: &str| {
            let (seconds, fraction) = text.trim().split_once('.')?;
            micros(seconds, fraction)
        };
        let monotonic = || count("_SOURCE_MONOTONIC_TIMESTAMP").or_else(|| count("__MONOTONIC_TIMESTAMP"));
        let is_dmesg = field("msg").is_some() && field("pri").is_some();
        let of_kernel = field("MESSAGE")
            .filter(|_| has_transport)
            .or_else(|| field("msg").filter(|_| is_dmesg));
        let texts = match of_kernel {
            Some(text) => vec![text.split(NEXT_LINE).next().unwrap_or_default().to_owned()],
            None => {
                let lines = self.fields.values().flat_map(|value| value.lines());
                lines.filter(|line| may_matter(line)).map(str::to_owned).collect()
            }
        };
        Some(Message {
            is_kernels: of_kernel.is_some(),
            host: field("_BOOT_ID")
                .or_else(|| field("_HOSTNAME"))
                .unwrap_or_default()
                .to_owned(),
            timestamp_us: monotonic().or_else(|| seconds(field("time")?)),
            clock_us: count("__REALTIME_TIMESTAMP").map(|time| time % DAY_US),
            texts,
        })
    }
}

/// The text of a value; of a list, its texts as lines.
fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Array(all) => {
            let byte = |value: &Value| u8::try_from(value.as_u64()?).ok();
            // The journal's form of a text with control characters.
            let bytes: Option<Vec<u8>> = all.iter().map(byte).collect();
            Some(match bytes {
                Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                None => all.into_iter().filter_map(text).collect::<Vec<_>>().join("\n"),
            })
        }
        Value::Object(_) | Value::Bool(_) | Value::Null => None,
    }
}

/// `dmesg --json` of a file (util-linux 2.38) repeats all lines after the message in it.
const NEXT_LINE: &str = "\n<";
