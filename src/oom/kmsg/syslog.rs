//! Reads the kernel's log through syslog(2), for pods without the device. The pod needs only CAP_SYSLOG.
//!
//! The call copies the whole log and takes nothing from other readers (`SYSLOG_ACTION_READ_ALL`). A process cannot wait
//! for new lines, so the agent calls when a counter may have risen ([`Source::wake`]), at most twice a second, and
//! returns only the lines that are new since the call before ([`Unread`]).
//!
//! The kernel puts the header of a record before each of its lines (`record_print_text`, kernel/printk/printk.c), also where
//! the line break is in a name that a process chose. So lines with one header are one text again, as in `/dev/kmsg`.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::Duration;

use anyhow::Result;
use futures::future::BoxFuture;
use tokio::time::{Instant, sleep_until};

use super::{Attempt, Source};
use crate::oom::assemble::continues_line;
use crate::oom::clock::monotonic;
use crate::oom::parse::SUMMARY;
use crate::oom::record::Line;
use crate::oom::text;

/// The time between two calls. A call takes milliseconds, in which the agent reads no counter.
const BETWEEN_CALLS: Duration = Duration::from_millis(500);
/// Bytes of text for each byte of the log's buffer: the text repeats the time in each line.
const TEXT_PER_BYTE: usize = 2;
/// The most bytes to read, the last ones of the log.
const MOST_READ: usize = 2 << 20;

/// Microseconds. Times of a clock that advances with the kernel's timer do not differ by less, and records share them.
const LEAST_TICK_US: u64 = 1000;

/// Why the log cannot be read through syslog(2).
#[derive(Debug, thiserror::Error)]
pub enum SyslogError {
    #[error("syslog(2) is refused: {}", self.mend())]
    Refused,
    #[error("the kernel's log has no times: {}", self.mend())]
    NoTimes,
    #[error("syslog(2): {0}")]
    Failed(io::Error),
}

impl SyslogError {
    /// What to do about it.
    pub const fn mend(&self) -> &'static str {
        match self {
            Self::Refused => "grant CAP_SYSLOG",
            Self::NoTimes => "write Y to /sys/module/printk/parameters/time",
            Self::Failed(_) => "give the agent /dev/kmsg (a device, `c 1:11 r`)",
        }
    }
}

impl From<io::Error> for SyslogError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::PermissionDenied => Self::Refused,
            _ => Self::Failed(error),
        }
    }
}

type ReadAll = Box<dyn FnMut() -> Result<Vec<u8>, SyslogError> + Send>;

/// The state of reading the log in calls.
#[derive(derive_more::Debug)]
#[debug("Syslog")]
pub(super) struct Syslog {
    read_all: ReadAll,
    unread: Unread,
    /// Whether the times of the log have shown that no timer's tick makes them: then a time belongs to one record.
    has_fine_clock: bool,
    /// The results of the last call that [`Source::read`] has not returned yet.
    attempts: VecDeque<Attempt>,
    /// Whether a call is wanted.
    woken: bool,
    called: Instant,
}

impl Syslog {
    pub(super) fn open() -> Result<Self, SyslogError> {
        Self::new(Box::new(read_all))
    }

    /// Reads another log, for tests.
    pub(super) fn new(read_all: ReadAll) -> Result<Self, SyslogError> {
        let mut syslog = Self {
            read_all,
            unread: Unread::default(),
            has_fine_clock: false,
            attempts: VecDeque::new(),
            woken: true,
            called: Instant::now(),
        };
        syslog.call(true)?;
        Ok(syslog)
    }

    fn call(&mut self, is_first: bool) -> Result<(), SyslogError> {
        self.woken = false;
        let as_of = monotonic();
        let log = (self.read_all)()?;
        self.called = Instant::now();
        let (text, lost) = self.unread.after(&log);
        self.attempts.extend(lost.then_some(Attempt::Lost));
        let lines = self.records(text)?;
        // The lines of the first call may be days old.
        let last = lines.last().filter(|_| !is_first).and_then(|line| line.timestamp_us);
        self.attempts.extend(last.map(|logged_us| Attempt::Late {
            logged_us,
            by: monotonic(),
        }));
        self.attempts.extend(lines.into_iter().map(Attempt::Line));
        self.attempts.push_back(Attempt::AtEnd(as_of));
        Ok(())
    }

    /// The kernel's records in a text. Records of a coarse clock come line by line.
    fn records(&mut self, text: &[u8]) -> Result<Vec<Line>, SyslogError> {
        let mut lines = Vec::new();
        for bytes in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let text = String::from_utf8_lossy(bytes);
            let Some(text::TextLine { line, .. }) = text::kernel_line(&text) else {
                continue;
            };
            let logged_us = line.timestamp_us.ok_or(SyslogError::NoTimes)?;
            lines.push((header(bytes), logged_us, line));
        }
        let mut steps = lines.windows(2).map(|pair| pair[0].1.abs_diff(pair[1].1));
        self.has_fine_clock |= steps.any(|step| (1..LEAST_TICK_US).contains(&step));
        let (mut records, mut latest) = (Vec::<Line>::new(), None);
        for (header, _, line) in lines {
            let is_same = latest.replace(header) == Some(header);
            let is_own =
                |text: &str| continues_line(text, &line.text) || is_task(text) && line.text.starts_with(SUMMARY);
            match records.last_mut() {
                Some(record) if self.has_fine_clock && is_same && !is_own(&record.text) => {
                    record.text.extend(["\n", line.text.as_str()]);
                }
                _ => records.push(line),
            }
        }
        Ok(records)
    }
}

/// Whether a text is a row of `dump_tasks`: numbers and a command. The summary of a kill follows the last one at once.
fn is_task(text: &str) -> bool {
    const LONGEST_COMM: usize = 15;
    let columns = &text.as_bytes()[..text.len().saturating_sub(LONGEST_COMM)];
    let is_of_numbers = |byte: &u8| byte.is_ascii_digit() || b"[] -".contains(byte);
    columns.starts_with(b"[") && columns.iter().all(is_of_numbers)
}

/// The priority, the time and the caller of a line with a time.
fn header(line: &[u8]) -> &[u8] {
    let end = line.windows(2).position(|pair| pair == b"] ");
    &line[..end.unwrap_or(line.len())]
}

impl Source for Syslog {
    fn name(&self) -> &'static str {
        "syslog(2)"
    }

    /// The next line, from a new call if one is wanted and due.
    fn read(&mut self) -> Result<Option<Attempt>> {
        if self.attempts.is_empty() && self.woken && self.called.elapsed() >= BETWEEN_CALLS {
            self.call(false)?;
        }
        Ok(self.attempts.pop_front())
    }

    /// Waits until a call is wanted and due.
    fn readable(&mut self) -> BoxFuture<'_, Result<()>> {
        let due = self.woken.then(|| self.called + BETWEEN_CALLS);
        Box::pin(async move {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
            Ok(())
        })
    }

    fn wake(&mut self) {
        self.woken = true;
    }
}

/// Copies the log, or the last [`MOST_READ`] bytes of it.
fn read_all() -> Result<Vec<u8>, SyslogError> {
    let size = vscaled_sys::kernel_log_size()?;
    let mut log = vec![0; size.saturating_mul(TEXT_PER_BYTE).min(MOST_READ)];
    let read = vscaled_sys::read_kernel_log(&mut log)?;
    log.truncate(read);
    Ok(log)
}

/// Bytes at the end of the last copy to find again in the next one. The times make lines unlike each other.
const COMPARED: usize = 1024;

/// The end of the last copy.
#[derive(Debug, Default)]
struct Unread {
    tail: Vec<u8>,
}

impl Unread {
    /// The part of a copy that comes after the last copy, and whether lines between the two were overwritten or cleared
    /// away.
    fn after<'t>(&mut self, log: &'t [u8]) -> (&'t [u8], bool) {
        let end = self.end_in(log);
        let new = (&log[end.unwrap_or(0)..], end.is_none() && !self.tail.is_empty());
        if !log.is_empty() {
            let from = log.len().saturating_sub(COMPARED);
            log[from..].clone_into(&mut self.tail);
        }
        new
    }

    /// Where in this copy the last copy ends. This copy may begin in the middle of [`Self::tail`].
    fn end_in(&self, log: &[u8]) -> Option<usize> {
        let (_, before) = self.tail.split_last()?;
        let last_line = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let last_line = &self.tail[last_line..];
        let ends = (1..=log.len())
            .rev()
            .filter(|end| *end == log.len() || log[*end - 1] == b'\n');
        let mut ends = ends.filter(|end| log[..*end].ends_with(last_line));
        ends.find(|end| {
            let compared = self.tail.len().min(*end);
            log[..*end].ends_with(&self.tail[self.tail.len() - compared..])
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(number: usize) -> String {
        format!("<6>[{:12}.000000] {}\n", number, "x".repeat(number % 90))
    }

    fn log(numbers: std::ops::Range<usize>) -> Vec<u8> {
        numbers.map(line).collect::<String>().into_bytes()
    }

    #[test]
    fn all_is_new_at_first_and_then_what_was_added() {
        let mut unread = Unread::default();
        let first = log(0..100);
        assert_eq!(unread.after(&first), (&first[..], false));
        assert_eq!(unread.after(&first), (&b""[..], false));
        assert_eq!(
            unread.after(&log(40..103)).0,
            log(100..103),
            "its beginning was overwritten"
        );
    }

    #[test]
    fn a_wrapped_or_cleared_log_is_new() {
        let mut unread = Unread::default();
        assert_eq!(unread.after(b""), (&b""[..], false));
        unread.after(&log(0..100));
        let wrapped = log(300..400);
        assert_eq!(unread.after(&wrapped), (&wrapped[..], true));
        assert_eq!(unread.after(b""), (&b""[..], true));
        let later = log(401..402);
        assert_eq!(unread.after(&later), (&later[..], true));
    }

    #[test]
    fn of_what_was_read_the_last_line_is_enough() {
        let mut unread = Unread::default();
        unread.after(&log(0..100));
        assert_eq!(unread.after(&log(99..103)), (&log(100..103)[..], false));
    }

    proptest! {
        #[test]
        fn every_line_is_new_once_or_counts_as_lost(reads in prop::collection::vec((0_usize..60, 1_usize..80), 1..20)) {
            let mut unread = Unread::default();
            let (mut end, mut expected) = (0, 0);
            for (added, kept) in reads {
                end += added;
                let from = end.saturating_sub(kept);
                let text = log(from..end);
                let new = unread.after(&text);
                let first_new = expected.max(from);
                prop_assert_eq!(new.0, log(first_new..end));
                prop_assert_eq!(new.1, expected > 0 && from >= expected);
                expected = end;
            }
        }
    }
}
