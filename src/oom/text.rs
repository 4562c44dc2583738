//! Reads a kernel log as text: the output of `dmesg`, `journalctl -k` and syslog(2).
//!
//! A line may carry a priority (`dmesg -r`), a facility (`dmesg -x`), a syslog header, a time and a caller before the
//! text. The reader skips a line whose header names a writer other than the kernel. A log without such names (plain
//! `dmesg`) may hold forged lines; in a [`Record`](super::record::Record) a forgery is recognised.

use super::record::{Line, Part, number};

/// The names of levels in `dmesg -x` (util-linux `sys-utils/dmesg.c`).
const LEVELS: [&str; 8] = ["emerg", "alert", "crit", "err", "warn", "notice", "info", "debug"];
/// The words of the longest syslog header: `Fri 2025-11-21 02:53:00 UTC host`.
const MOST_HEADER_WORDS: usize = 5;

/// The kernel's line without its header. Returns `None` when the header names another writer. A line without
/// a header is all text.
pub(super) fn kernel_line(line: &str) -> Option<Line> {
    let rest = after_syslog_header(after_facility(after_priority(line)?)?);
    let (timestamp_us, rest) = after_time(rest).unwrap_or((None, rest));
    let (caller, text) = after_caller(rest);
    Some(Line {
        seq: None,
        timestamp_us,
        caller: caller.map(str::to_owned),
        part: Part::Unmarked,
        text: text.to_owned(),
    })
}

/// Whether the line has a header as `dmesg` or `journalctl` write it.
pub(super) fn has_header(line: &str) -> bool {
    kernel_line(line).is_none_or(|kernel| kernel.text.len() != line.len())
}

/// The line after `<3>`. Returns `None` when the priority is not one of the kernel's.
fn after_priority(line: &str) -> Option<&str> {
    let priority = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    match priority.and_then(|(priority, rest)| Some((number::<u32>(priority)?, rest))) {
        Some((priority, rest)) => (priority < 8).then_some(rest),
        None => Some(line),
    }
}

/// The line after `kern  :err   : `. Returns `None` when the facility is not the kernel's.
fn after_facility(line: &str) -> Option<&str> {
    let mut fields = line.splitn(3, ':');
    let (Some(facility), Some(level), Some(rest)) = (fields.next(), fields.next(), fields.next()) else {
        return Some(line);
    };
    let facility = facility.trim_end();
    let is_facility = !facility.is_empty() && facility.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match rest.strip_prefix(' ') {
        Some(rest) if is_facility && LEVELS.contains(&level.trim_end()) => (facility == "kern").then_some(rest),
        _ => Some(line),
    }
}

/// The line after a time, a host and `kernel: `. A line with another identifier stays as it is: no message of the
/// kernel begins where it begins.
fn after_syslog_header(line: &str) -> &str {
    match line.split_once("kernel: ") {
        Some(("", rest)) => rest,
        Some((header, rest)) if header.ends_with(' ') && is_syslog_header(header) => rest,
        _ => line,
    }
}

fn is_syslog_header(header: &str) -> bool {
    let words: Vec<&str> = header.split_ascii_whitespace().collect();
    words.len() <= MOST_HEADER_WORDS && !words.iter().any(|word| word.ends_with(':')) && has_clock_time(header)
}

/// The microseconds since boot and the line after `[ 123.456789] `. A date in its place (`dmesg -T`)
/// is no time since boot.
fn after_time(line: &str) -> Option<(Option<u64>, &str)> {
    let (inside, rest) = line.strip_prefix('[')?.split_once(']')?;
    let timestamp_us = micros(inside.trim());
    let is_time = timestamp_us.is_some() || (inside.len() <= 32 && has_clock_time(inside));
    is_time.then(|| (timestamp_us, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// The caller and the line after `[ T1234] `, which CONFIG_PRINTK_CALLER adds after the time.
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
    let micros = number::<u64>(fraction).filter(|_| fraction.len() == 6)?;
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
    fn every_usual_way_to_print_a_kernel_log_gives_the_same_text() {
        let headers = [
            "",
            "[  123.456789] ",
            "[  123.456789][ T1234] ",
            "[  123.456789] [    C1] ",
            "<3>[  123.456789] ",
            "kern  :err   : [  123.456789] ",
            "kern  :err   : [Fri Nov 21 02:53:00 2025] ",
            "[Fri Nov 21 02:53:00 2025] ",
            "[Nov21 02:53] ",
            "Nov 21 02:53:00 node-1 kernel: ",
            "Nov 21 02:53:00 node-1 kernel: [  123.456789] ",
            "2025-11-21T02:53:00+0000 node-1 kernel: ",
            "Fri 2025-11-21 02:53:00 UTC node-1 kernel: ",
            "kernel: ",
        ];
        for header in headers {
            let line = kernel_line(&format!("{header}{TEXT}")).unwrap();
            assert_eq!(line.text, TEXT, "{header:?}");
            let known = header.contains("123.456789").then_some(123_456_789);
            assert_eq!(line.timestamp_us, known, "{header:?}");
            assert_eq!(has_header(&format!("{header}{TEXT}")), !header.is_empty(), "{header:?}");
        }
        assert_eq!(
            kernel_line("[    1.500000][ T77] x").unwrap().caller.as_deref(),
            Some("T77")
        );
    }

    #[test]
    fn other_writers_are_passed_over_or_keep_their_header() {
        assert_eq!(kernel_line(&format!("<12>[  1.500000] {TEXT}")), None);
        assert_eq!(kernel_line(&format!("user  :notice: [  1.500000] {TEXT}")), None);
        assert_eq!(kernel_line(&format!("local0:err   : [  1.500000] {TEXT}")), None);
        for other in [
            format!("Nov 21 02:53:00 node-1 app[7]: {TEXT}"),
            format!("Nov 21 02:53:00 node-1 app[7]: kernel: {TEXT}"),
            format!("Nov 21 02:53:00 node-1 app[7]: the kernel: {TEXT}"),
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
    }
}
