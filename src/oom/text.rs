//! A kernel log that people paste: what `dmesg` and `journalctl -k` print, and the files syslog writes.
//!
//! Each line may carry a level, a time and a name before the text; which of them depends on the options of the command. It
//! may be coloured, as terminals are told to, and set in by tabs, as quotations are.
//! A line whose header names a writer other than the kernel is passed over. A log without such names (plain `dmesg`)
//! cannot be told from a forgery: only [`Record`](super::record::Record)s can.

use std::borrow::Cow;

use super::line::{Line, Part};
use super::record::number;

/// Times, a host name and an identifier take less.
const LONGEST_SYSLOG_HEADER: usize = 96;
/// `Fri 2025-11-21 02:53:00 UTC host`: no header before ` kernel: ` has more words.
const MOST_SYSLOG_WORDS: usize = 5;
/// What `dmesg -x` calls facilities (util-linux `sys-utils/dmesg.c`), cut to what a first word can be.
const OTHER_FACILITIES: [&str; 12] = [
    "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "res",
];

/// A pasted line without what stands before the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stripped<'a> {
    timestamp_us: Option<u64>,
    caller: Option<&'a str>,
    text: &'a str,
}

/// The kernel's line in a pasted one; `None` when its header names another writer. Without a header, all is text.
#[must_use]
pub(super) fn kernel_line(pasted: &str) -> Option<Line> {
    let plain = plain(pasted);
    let Stripped {
        timestamp_us,
        caller,
        text,
    } = strip(plain.trim_start_matches('\t'))?;
    Some(Line {
        seq: None,
        timestamp_us,
        caller: caller.map(str::to_owned),
        part: Part::Unmarked,
        text: text.to_owned(),
    })
}

/// Whether the line has a header as `dmesg`, `journalctl` or syslog write it.
#[must_use]
pub(super) fn has_header(pasted: &str) -> bool {
    let plain = plain(pasted);
    let line = plain.trim_start_matches('\t');
    strip(line).is_none_or(|stripped| stripped.text.len() != line.len())
}

/// The line without colours: without the sequences that set them (`ESC [ … m`) or clear the line in them (`ESC [ K`, as grep
/// prints beside each).
fn plain(pasted: &str) -> Cow<'_, str> {
    const SEQUENCE: &str = "\x1b[";
    let Some((first, rest)) = pasted.split_once(SEQUENCE) else {
        return Cow::Borrowed(pasted);
    };
    let mut plain = first.to_owned();
    for part in rest.split(SEQUENCE) {
        let after = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';' || c == ':');
        if let Some(text) = after.strip_prefix(['m', 'K']) {
            plain.push_str(text);
        } else {
            plain.push_str(SEQUENCE);
            plain.push_str(part);
        }
    }
    Cow::Owned(plain)
}

fn strip(pasted: &str) -> Option<Stripped<'_>> {
    let rest = without_facility(without_priority(pasted)?)?;
    let rest = after_syslog_header(rest);
    let Some((stamp, rest)) = after_stamp(rest) else {
        let text = after_iso_time(rest);
        return Some(Stripped {
            timestamp_us: None,
            caller: None,
            text,
        });
    };
    let (caller, rest) = after_caller(rest);
    // `journalctl -o short-monotonic` puts host and identifier behind the time.
    let text = match split_at_identifier(rest) {
        Some((host, text)) if !host.contains(' ') => text,
        _ => rest,
    };
    Some(Stripped {
        timestamp_us: stamp,
        caller,
        text,
    })
}

/// `dmesg -r`: `<3>`. `None` when the priority is not one of the kernel's.
fn without_priority(line: &str) -> Option<&str> {
    let Some((priority, rest)) = line.strip_prefix('<').and_then(|rest| rest.split_once('>')) else {
        return Some(line);
    };
    match number::<u32>(priority) {
        Some(priority) => (priority < 8).then_some(rest),
        None => Some(line),
    }
}

/// `dmesg -x`: `kern  :err   : `. `None` when the facility is not the kernel's.
fn without_facility(line: &str) -> Option<&str> {
    let Some((facility, (level, rest))) = line
        .split_once(':')
        .and_then(|(facility, rest)| Some((facility.trim_end(), rest.split_once(':')?)))
    else {
        return Some(line);
    };
    let is_level = ["emerg", "alert", "crit", "err", "warn", "notice", "info", "debug"].contains(&level.trim_end());
    match rest.strip_prefix(' ') {
        Some(rest) if is_level && facility == "kern" => Some(rest),
        Some(_) if is_level && (OTHER_FACILITIES.contains(&facility) || facility.starts_with("local")) => None,
        _ => Some(line),
    }
}

/// `journalctl -k` and syslog: a time, a host, `kernel: `, of which only the last may be there. Leaves a line alone that has
/// another identifier: its text does not begin where a kernel message would.
fn after_syslog_header(line: &str) -> &str {
    match split_at_identifier(line) {
        Some((header, rest)) if header.is_empty() || is_syslog_header(header) => rest,
        _ => line,
    }
}

/// What is before and after the first `kernel: `. Some loggers add a process id: init's or none, as the kernel has no other;
/// any process may call itself `kernel`, but not have these.
fn split_at_identifier(line: &str) -> Option<(&str, &str)> {
    line.match_indices("kernel").find_map(|(at, name)| {
        let (before, after) = (&line[..at], &line[at + name.len()..]);
        let header = match before {
            "" => before,
            _ => before.strip_suffix(' ')?,
        };
        let after = ["[0]", "[1]"]
            .into_iter()
            .find_map(|id| after.strip_prefix(id))
            .unwrap_or(after);
        Some((header, after.strip_prefix(": ")?))
    })
}

fn is_syslog_header(header: &str) -> bool {
    let words: Vec<&str> = header.split_ascii_whitespace().collect();
    let is_unix_time = |word: &str| {
        word.split_once('.')
            .is_some_and(|(s, us)| number::<u64>(s).and(number::<u64>(us)).is_some())
    };
    header.len() <= LONGEST_SYSLOG_HEADER
        && words.len() <= MOST_SYSLOG_WORDS
        && !words.iter().any(|word| word.ends_with(':'))
        && (has_clock_time(header) || words.first().is_some_and(|word| is_unix_time(word)))
}

/// `dmesg --time-format iso`: `2025-11-21T02:53:00,123456+00:00 `.
fn after_iso_time(line: &str) -> &str {
    match line.split_once(' ') {
        Some((time, rest)) if time.as_bytes().get(10) == Some(&b'T') && has_clock_time(time) => rest,
        _ => line,
    }
}

/// `[  123.456789] `, also with a delta (`-d`), as a delta (`-e`) or as a date (`-T`): only the first is a time since
/// boot.
fn after_stamp(line: &str) -> Option<(Option<u64>, &str)> {
    let (inside, rest) = line.trim_start().strip_prefix('[')?.split_once(']')?;
    let first = inside.split('<').next().unwrap_or(inside).trim();
    let stamp = micros(first);
    let is_time = stamp.is_some()
        || inside
            .trim_start()
            .strip_prefix(['+', '<'])
            .is_some_and(|delta| micros(delta.trim_matches([' ', '>'])).is_some())
        || (inside.len() <= 32 && has_clock_time(inside));
    is_time.then(|| (stamp, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// `[ T1234] `, as CONFIG_PRINTK_CALLER adds. It may directly follow the time.
fn after_caller(rest: &str) -> (Option<&str>, &str) {
    let caller = || {
        let (inside, rest) = rest.strip_prefix('[')?.split_once(']')?;
        let caller = inside.trim();
        number::<u32>(caller.strip_prefix(['T', 'C'])?)?;
        Some((Some(caller), rest.strip_prefix(' ').unwrap_or(rest)))
    };
    caller().unwrap_or((None, rest))
}

/// `123.456789` in microseconds.
fn micros(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let micros: u64 = match fraction.len() {
        1..=6 => number::<u64>(fraction)? * 10_u64.pow(u32::try_from(6 - fraction.len()).ok()?),
        7..=9 => number(fraction.get(..6)?)?,
        _ => return None,
    };
    number::<u64>(seconds)?.checked_mul(1_000_000)?.checked_add(micros)
}

/// Whether there is an `HH:MM` in the text.
fn has_clock_time(text: &str) -> bool {
    text.as_bytes().windows(5).any(|window| {
        let [a, b, colon, c, d] = *window else { return false };
        colon == b':' && [a, b, c, d].iter().all(u8::is_ascii_digit)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "Out of memory: Killed process 1 (x: y [z]) total-vm:1kB";

    #[test]
    fn every_way_to_print_a_kernel_log_gives_the_same_text() {
        let headers = [
            "",
            "[  123.456789] ",
            "[  123.456789][ T1234] ",
            "[  123.456789] [    C1] ",
            "[  123.456789 <    0.000012>] ",
            "<3>[  123.456789] ",
            "kern  :err   : [  123.456789] ",
            "kern  :err   : [Fri Nov 21 02:53:00 2025] ",
            "[Fri Nov 21 02:53:00 2025] ",
            "[Nov21 02:53] ",
            "[  +0.000003] ",
            "2025-11-21T02:53:00,123456+00:00 ",
            "Nov 21 02:53:00 node-1 kernel: ",
            "Nov 21 02:53:00 node-1 kernel: [  123.456789] ",
            "Nov 21 02:53:00.123456 node-1 kernel: ",
            "2025-11-21T02:53:00+0000 node-1 kernel: ",
            "Fri 2025-11-21 02:53:00 UTC node-1 kernel: ",
            "1763693580.123456 node-1 kernel: ",
            "[  123.456789] node-1 kernel: ",
            "kernel: ",
            "kernel: [  123.456789] ",
            "kernel[1]: ",
            "Nov 21 02:53:00 node-1 kernel[1]: [  123.456789] ",
            "Nov 21 02:53:00 kernel kernel[0]: ",
            "\x1b[32m[  123.456789] \x1b[0m",
            "\x1b[32m[Nov21 02:53] \x1b[0m\x1b[01;31m\x1b[K",
            "Nov 21 02:53:00 node-1 kernel: \x1b[0;1;31m",
            "\t\t[  123.456789] ",
            "\t<3>[  123.456789] ",
        ];
        for header in headers {
            let line = kernel_line(&format!("{header}{TEXT}")).unwrap();
            assert_eq!(line.text, TEXT, "{header:?}");
            let known = header.contains("123.456789").then_some(123_456_789);
            assert_eq!(line.timestamp_us, known, "{header:?}");
            assert_eq!(has_header(&format!("{header}{TEXT}")), !header.is_empty(), "{header:?}");
        }
        assert_eq!(kernel_line("[    1.5][ T77] x").unwrap().caller.as_deref(), Some("T77"));
        assert_eq!(kernel_line("[    1.5] x").unwrap().timestamp_us, Some(1_500_000));
    }

    #[test]
    fn colours_and_indentation_are_no_text() {
        let coloured = "\t\x1b[33mOut of memory\x1b[0m: \x1b[1;31m\x1b[KKilled\x1b[m\x1b[K process 1 (x: y [z]) total-vm:1kB\x1b[0m";
        assert_eq!(kernel_line(coloured).unwrap().text, TEXT);
        assert!(!has_header(coloured));
        for other in ["\x1b[2J", "\x1b[", "\x1b[31", "\x1b]0;m", "x\t"] {
            assert_eq!(kernel_line(other).unwrap().text, other);
        }
    }

    #[test]
    fn other_writers_are_passed_over_or_keep_their_header() {
        assert_eq!(kernel_line(&format!("<12>[  1.5] {TEXT}")), None);
        assert_eq!(kernel_line(&format!("user  :notice: [  1.5] {TEXT}")), None);
        assert_eq!(kernel_line(&format!("local0:err   : [  1.5] {TEXT}")), None);
        for other in [
            format!("Nov 21 02:53:00 node-1 app[7]: {TEXT}"),
            format!("Nov 21 02:53:00 node-1 app[7]: kernel: {TEXT}"),
            format!("Nov 21 02:53:00 node-1 app[7]: the kernel: {TEXT}"),
            format!("2025-11-21T02:53:00+0000 node-1 app[7]: {TEXT}"),
            format!("Nov 21 02:53:00 node-1 kernel[7]: {TEXT}"),
            format!("Nov 21 02:53:00 node-1 my-kernel: {TEXT}"),
            format!("my kernel: {TEXT}"),
        ] {
            assert_ne!(kernel_line(&other).unwrap().text, TEXT, "{other}");
        }
    }

    #[test]
    fn rows_of_tables_are_not_headers() {
        for row in [
            "[   9270]     0  9270    15609 hog",
            "[  pid  ]   uid  tgid",
            "[<ffffffff81a>] dump",
            "[",
            "[1.x] y",
        ] {
            assert_eq!(kernel_line(row).unwrap().text, row);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(line in "[\\[<]?(\\PC|kernel|\\[1\\]|: ){0,60}") {
            let text = kernel_line(&line).map(|line| line.text);
            prop_assert!(text.is_none_or(|text| line.ends_with(&text)));
        }

        #[test]
        fn what_is_no_colour_stays(line in "(\x1b|\\[|[0-9;:mKJ]|\t|\\PC){0,40}") {
            let text = plain(&line);
            prop_assert!(text.len() <= line.len() && (line.contains("\x1b[") || *text == line));
        }
    }
}
