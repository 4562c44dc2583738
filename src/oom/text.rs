//! The header of a line of text: which machine printed the line, and when.
//!
//! In comes a line as `dmesg`, `journalctl`, a syslog daemon, `talosctl` or a console prints it. Out goes the kernel's text, or
//! nothing where the header names a writer other than the kernel. A log without such names (plain `dmesg`) may hold forged
//! lines; in a record of `/dev/kmsg` a forgery is recognised.
//!
//! There is one grammar for all of them: a header is a row of parts, each of which may be missing, in any order:
//! - a priority: `<3>`, in RFC 5424 with a version: `<3>1`;
//! - a facility and a level, perhaps after the name of the machine: `kern  :err   :`, `kern.err`, `10.0.0.1: kern: err:`;
//! - a date of several words, with a time in it: `Nov 21 02:53:00`, `2025-11-21T02:53:00,123456+00:00`, `1763693580.123`;
//! - a host and `kernel:`, or in RFC 5424 `kernel - - -`;
//! - the time since boot, a date or a difference in brackets, and the caller, which CONFIG_PRINTK_CALLER adds:
//!   `[  123.456789]`, `[Fri Nov 21 02:53:00 2025 <    0.000012>]`, `[  +0.000012]`, `[ T1234]`;
//! - up to two other words before a part with a time: what a tool puts before each line.
//!
//! The text begins where the row ends.

use std::borrow::Cow;
use std::net::Ipv4Addr;
use std::sync::LazyLock;

use regex_lite::{Captures, Regex};

use super::DAY_US;
use super::parse::begins_message;
use super::record::{FIRST_USER_PREFIX, Line, micros, number};

/// The names of syslog(3): a machine may be named `localhost.localdomain`.
const FACILITIES: &str = "kern|user|mail|daemon|auth|authpriv|syslog|lpr|news|uucp|cron|ftp|local[0-7]";
const LEVELS: &str = "emerg|panic|alert|crit|err|error|warn|warning|notice|info|debug";
static FACILITY: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(&format!(
        r"^(?:(?<host>[^\s\[<]\S*): +)?(?<facility>{FACILITIES}) *[:.] *(?<level>{LEVELS})(?: *:)? +"
    ))
    .ok()
});
static KERNEL: LazyLock<Option<Regex>> = LazyLock::new(|| {
    const TAG: &str = r"kernel(?:\[0\])?(?:: ?|(?: (?:-|\[[A-Za-z][^\]]*\]))+(?: |$))(?:\x{feff})?";
    Regex::new(&format!(
        r"^(?:(?<host>\S*[^\s:]) +)??(?:(?<facility>{FACILITIES})\.(?:{LEVELS}) +)?{TAG}"
    ))
    .ok()
});
static CLOCK: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?:^|\D)(\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?").ok());
static COLOUR: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\x{1b}\[[0-9;]*m").ok());

/// A line of the kernel, from a text with lines of any machine.
#[derive(Debug)]
pub(super) struct TextLine<'a> {
    /// The machine's name; empty where the header has none.
    pub host: &'a str,
    /// Microseconds since midnight, where the header has a time of day with seconds.
    pub clock_us: Option<u64>,
    pub has_header: bool,
    pub line: Line,
}

/// The latest part of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Latest {
    Nothing,
    Facility,
    Date,
    /// `kernel:`, or the brackets after it or of a line with a priority: the kernel's own text follows.
    Kernel,
    Bracket,
}

/// The kernel's line without its header. Returns `None` when the header names another writer. A line without
/// a header is all text.
pub(super) fn kernel_line(line: &str) -> Option<TextLine<'_>> {
    let mut rest = line.trim_start_matches(['\u{feff}', ' ', '\t']);
    let (mut host, mut clock_us, mut timestamp_us, mut caller) = ("", None, None, None);
    let (priority, is_rfc_5424, after) = priority(rest).unwrap_or((None, false, rest));
    if priority >= Some(FIRST_USER_PREFIX) {
        return None;
    }
    rest = after;
    let (mut latest, mut is_timed) = (Latest::Nothing, false);
    while !begins_message(rest) {
        // The kernel's own time is the first one after its priority or name. A command may be named like another.
        let found = bracket(rest).filter(|(bracket, _)| !(is_timed && matches!(bracket, Bracket::Time(_))));
        if let Some((bracket, after)) = found {
            let is_own = priority.is_some() || latest == Latest::Kernel;
            match bracket {
                Bracket::Time(time) => (timestamp_us, is_timed) = (time, is_own),
                Bracket::Clock(clock) => clock_us = clock,
                Bracket::Caller(task) => caller = Some(task.to_owned()),
            }
            rest = after;
            latest = if is_own { Latest::Kernel } else { Latest::Bracket };
        } else if let Some(tag) = tag(rest, latest) {
            if tag.name("facility").is_some_and(|facility| facility.as_str() != "kern") {
                return None;
            }
            host = tag.name("host").map_or(host, |host| host.as_str());
            latest = tag.name("level").map_or(Latest::Kernel, |_| Latest::Facility);
            rest = &rest[tag.get(0)?.end()..];
        } else if matches!(latest, Latest::Kernel | Latest::Bracket) {
            break;
        } else if let Some((clock, after)) = date(rest) {
            (clock_us, rest, latest) = (clock, after, Latest::Date);
        } else if let Some((word, after)) = words_before_time(rest) {
            (host, rest) = (word, after);
        } else {
            break;
        }
    }
    let is_kernels = matches!(latest, Latest::Kernel | Latest::Facility) || begins_message(rest);
    let facility = FACILITY.as_ref();
    let is_facility = |word: &str| facility.is_some_and(|pattern| pattern.is_match(&format!("{word} ")));
    let is_name = |word: &str| is_rfc_5424 || word.ends_with(':') || is_facility(word);
    let has_pid = |word: &str| word.ends_with("]:") && word.contains('[');
    let is_writer = |word: &str| has_pid(word) || latest == Latest::Date && is_name(word);
    if !is_kernels && rest.split_ascii_whitespace().take(2).any(is_writer) {
        return None;
    }
    Some(TextLine {
        host,
        clock_us,
        has_header: rest.len() != line.len(),
        line: Line {
            timestamp_us,
            caller,
            ..Line::of_text(rest.to_owned())
        },
    })
}

/// The facility, or the kernel's name, that a text begins with.
fn tag(text: &str, latest: Latest) -> Option<Captures<'_>> {
    let captures = |pattern: &LazyLock<Option<Regex>>| pattern.as_ref()?.captures(text);
    let tag = match latest {
        Latest::Nothing | Latest::Date => captures(&FACILITY).or_else(|| captures(&KERNEL)),
        Latest::Bracket | Latest::Facility => captures(&KERNEL),
        Latest::Kernel => None,
    };
    tag.filter(|tag| latest != Latest::Nothing || tag.name("level").is_some() || tag.name("host").is_none())
}

/// The text of a line that goes on with the message of the line before: `dmesg` and `journalctl` indent it by the width of
/// the header, whoever wrote the message.
pub(super) fn continuation<'a>(before: &str, line: &'a str) -> Option<&'a str> {
    const LEAST_INDENT: &str = "        ";
    if !line.starts_with(LEAST_INDENT) || before.starts_with(' ') {
        return None;
    }
    let (first, _) = before.split_once('\n').unwrap_or((before, ""));
    let width = match kernel_line(first) {
        Some(read) => first.len() - read.line.text.len(),
        None => first.find(": ")? + 2,
    };
    let (indent, text) = line.split_at_checked(width)?;
    let is_indented = width >= LEAST_INDENT.len() && indent.bytes().all(|byte| byte == b' ');
    (is_indented && !text.is_empty()).then_some(text)
}

/// The text without the sequences by which `dmesg` and `journalctl` colour a line.
pub(super) fn without_colours(line: &str) -> Cow<'_, str> {
    let colour = COLOUR.as_ref().filter(|_| line.contains('\u{1b}'));
    colour.map_or(line.into(), |colour| colour.replace_all(line, ""))
}

/// A priority, whether a version follows it, and the rest.
fn priority(text: &str) -> Option<(Option<u32>, bool, &str)> {
    let (digits, rest) = text.strip_prefix('<')?.split_once('>')?;
    let priority = Some(number(digits)?);
    let (version, after) = rest.split_once(' ')?;
    let is_rfc_5424 = number::<u8>(version).is_some();
    Some((priority, is_rfc_5424, if is_rfc_5424 { after } else { rest }))
}

#[derive(Debug)]
enum Bracket<'a> {
    /// Microseconds since boot; unknown where only a difference is shown.
    Time(Option<u64>),
    Clock(Option<u64>),
    Caller(&'a str),
}

/// A part in brackets, and the rest.
fn bracket(text: &str) -> Option<(Bracket<'_>, &str)> {
    const LONGEST: usize = 64;
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    let inside = Some(inside.trim()).filter(|inside| inside.len() <= LONGEST)?;
    let rest = rest.strip_prefix(':').unwrap_or(rest);
    let rest = rest.strip_prefix(' ').unwrap_or(rest);
    let (first, difference) = inside.split_once('<').unwrap_or((inside, ""));
    let seconds = |text: &str| {
        let (seconds, fraction) = text.trim().trim_start_matches('+').split_once('.')?;
        // Some kernels for phones print the processor behind the time.
        let (fraction, _) = fraction.split_once(',').unwrap_or((fraction, ""));
        micros(seconds, fraction).filter(|_| fraction.len() == 6 && seconds.len() <= 12)
    };
    // Android's kernels print `T1234@C1`.
    let mut callers = inside.split('@').map(|caller| caller.strip_prefix(['T', 'C']));
    let is_caller = callers.all(|id| id.and_then(number::<u32>).is_some());
    let found = match seconds(first) {
        Some(_) if first.starts_with('+') => Bracket::Time(None),
        Some(time) => Bracket::Time(Some(time)),
        // The task may print its next line on another CPU.
        None if is_caller => Bracket::Caller(inside.split_once('@').map_or(inside, |(task, _)| task)),
        None if first.is_empty() && seconds(difference.trim_end_matches('>')).is_some() => Bracket::Time(None),
        None => Bracket::Clock(clock(first).or_else(|| since_1970(first))?),
    };
    Some((found, rest))
}

/// The time of day in a text, as far as it has seconds. Returns `None` for a text without a time.
fn clock(text: &str) -> Option<Option<u64>> {
    let found = CLOCK.as_ref()?.captures(text)?;
    let part = |index| found.get(index).map_or("", |part| part.as_str());
    let minutes = number::<u64>(part(1))? * 60 + number::<u64>(part(2))?;
    Some(micros(part(3), part(4)).map(|micros| minutes * 60_000_000 + micros))
}

/// A date of one or several words with a time in it, and the rest.
fn date(text: &str) -> Option<(Option<u64>, &str)> {
    const NAMES: [&str; 19] = [
        "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep",
        "Oct", "Nov", "Dec",
    ];
    const MOST_WORDS: usize = 6;
    let (mut rest, mut found) = (text, None);
    for _ in 0..MOST_WORDS {
        let Some((word, after)) = split_word(rest) else {
            break;
        };
        // A text copied from behind its first character has lost the bracket before the time.
        let cut = word.strip_suffix(']');
        let word = cut.unwrap_or(word);
        let is_number = word.starts_with(|first: char| first.is_ascii_digit() || first == '+')
            && word
                .bytes()
                .all(|byte| byte.is_ascii_digit() || b":.,+-/TZ".contains(&byte))
            && word.parse::<Ipv4Addr>().is_err();
        let is_zone = found.is_some() && word.len() <= 5 && word.bytes().all(|byte| byte.is_ascii_uppercase());
        if !is_number && !is_zone && !NAMES.contains(&word) {
            break;
        }
        let since_boot = cut.filter(|time| time.contains('.')).map(|_| None);
        found = found
            .or_else(|| clock(word))
            .or_else(|| since_1970(word))
            .or(since_boot);
        rest = after;
    }
    found.map(|clock| (clock, rest))
}

/// Seconds since 1970 with a fraction.
fn since_1970(word: &str) -> Option<Option<u64>> {
    let (seconds, fraction) = word.split_once('.').filter(|(seconds, _)| seconds.len() >= 9)?;
    Some(Some(micros(seconds, fraction)? % DAY_US))
}

/// The first of one or two words without a colon before a part with a time, and that part with the rest. The number of a line
/// counts as a word, and names no machine.
fn words_before_time(text: &str) -> Option<(&str, &str)> {
    let numbered = text.split_once(':').filter(|(line, _)| number::<u32>(line).is_some());
    if let Some((_, rest)) = numbered.filter(|(_, rest)| bracket(rest).is_some()) {
        return Some(("", rest));
    }
    let (first, after) = split_word(text)?;
    let both = [Some((first, after)), split_word(after)];
    let mut free = both.into_iter().flatten().take_while(|(word, _)| !word.ends_with(':'));
    let (_, rest) = free.find(|(_, rest)| bracket(rest).is_some() || date(rest).is_some())?;
    let is_number = number::<u64>(first).is_some();
    Some((if is_number { "" } else { first }, rest))
}

/// The first word and the text after the blanks that follow it.
fn split_word(text: &str) -> Option<(&str, &str)> {
    let (word, rest) = text.split_once(' ')?;
    (!word.is_empty()).then(|| (word, rest.trim_start_matches(' ')))
}

#[cfg(test)]
mod tests;
