//! Lines the kernel printed, whatever they were copied from.

use super::record::Record;

/// A line of the kernel's, or a part of one. Only what the kernel itself wrote becomes a `Line`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The record's number, if known.
    pub seq: Option<u64>,
    /// Microseconds since boot, if known.
    pub timestamp_us: Option<u64>,
    /// Who printed it, if known.
    pub caller: Option<String>,
    /// Whether it goes on with an earlier line.
    pub part: Part,
    pub text: String,
}

/// Where a text stands in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It begins a line, and mostly is all of it.
    Start,
    /// It goes on with a line.
    Continued,
    /// The source does not say: `dmesg` shows parts as if they were lines.
    Unmarked,
}

impl Line {
    /// The line in a record; `None` when user space wrote the record.
    #[must_use]
    pub fn of_record(record: &Record<'_>) -> Option<Self> {
        record.is_from_kernel().then(|| Self {
            seq: Some(record.seq),
            timestamp_us: Some(record.timestamp_us),
            caller: record.caller.map(str::to_owned),
            part: if record.fragment { Part::Continued } else { Part::Start },
            text: record.text(),
        })
    }
}
