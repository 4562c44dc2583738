//! Reads a kernel log as text: the output of `dmesg`, `journalctl -k` and syslog(2).
//!
//! The reader skips a line whose header names a writer other than the kernel. A log without such names (plain
//! `dmesg`) may hold forged lines; in a record of `/dev/kmsg` a forgery is recognised.

use std::sync::LazyLock;

use regex_lite::Regex;

use super::record::{FIRST_USER_PREFIX, Line, Part, number};

/// The header of a line. Each part of it may be missing:
/// - a priority: `<3>` (`dmesg -r`);
/// - a facility and a level: `kern  :err   : ` (`dmesg -x`; util-linux `sys-utils/dmesg.c`);
/// - a date, a host and `kernel: ` (syslog). A line with another identifier has no such part: no message of the kernel
///   begins where that line begins;
/// - the time since boot, or a date in its place (`dmesg -T`): `[ 123.456789] `;
/// - the caller, which CONFIG_PRINTK_CALLER adds after the time: `[ T1234] `.
const HEADER: &str = concat!(
    r"^(?:<(?<priority>\d{1,9})>)?",
    r"(?:(?<facility>[0-9A-Za-z]+) *:(?:emerg|alert|crit|err|warn|notice|info|debug) *: )?",
    r"(?:(?:(?:\w(?:\S*[^\s:])? +){0,3}(?:\w\S*)?\d\d:\d\d(?:\S*[^\s:])? +(?:\w(?:\S*[^\s:])? +){0,2})?kernel: )?",
    r"(?:\[(?: *(?<seconds>\d{1,12})\.(?<micros>\d{6}) *|[^\]]{0,16}\d\d:\d\d[^\]]{0,16})\] ?)?",
    r"(?:\[ *(?<caller>[TC]\d{1,9}) *\] ?)?",
);
static HEADER_PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(HEADER).ok());

/// The kernel's line without its header. Returns `None` when the header names another writer. A line without
/// a header is all text.
pub(super) fn kernel_line(line: &str) -> Option<Line> {
    let header = HEADER_PATTERN.as_ref()?.captures(line)?;
    let field = |name| header.name(name).map(|field| field.as_str());
    let count = |name| field(name).and_then(number::<u64>);
    let from_kernel = field("facility").is_none_or(|facility| facility == "kern")
        && count("priority").is_none_or(|priority| priority < FIRST_USER_PREFIX.into());
    let time = count("seconds").zip(count("micros"));
    from_kernel.then(|| Line {
        from_kernel,
        seq: None,
        timestamp_us: time.map(|(seconds, micros)| seconds * 1_000_000 + micros),
        caller: field("caller").map(str::to_owned),
        part: Part::Unmarked,
        text: line[header.get(0).map_or(0, |header| header.end())..].to_owned(),
    })
}

/// Whether the line has a header as `dmesg` or `journalctl` write it.
pub(super) fn has_header(line: &str) -> bool {
    kernel_line(line).is_none_or(|kernel| kernel.text.len() != line.len())
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
