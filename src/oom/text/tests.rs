use proptest::prelude::*;

use super::*;

const TEXT: &str = "Out of memory: Killed process 1 (x: y [z]) total-vm:1kB";

#[test]
fn usual_prints_of_a_log_are_equal() {
    let headers = [
        "",
        "[  123.456789] ",
        "[  123.456789][ T1234] ",
        "[  123.456789] [    C1] ",
        "[  123.456789][T1234@C1] ",
        "<3>[  123.456789] ",
        "kern  :err   : [  123.456789] ",
        "kern  :err   : [Fri Nov 21 02:53:00 2025] ",
        "[Fri Nov 21 02:53:00 2025] ",
        "[Nov21 02:53] ",
        "Fri Nov 21 02:53:00 2025] ",
        "166255 [  123.456789] ",
        "Nov 21 02:53:00 node-1 kernel: ",
        "Nov 21 02:53:00 node-1 kernel: [  123.456789] ",
        "Nov 21 02:53:00 node-1 kernel:[  123.456789] ",
        "2025-11-21T02:53:00+0000 node-1 kernel: ",
        "Fri 2025-11-21 02:53:00 UTC node-1 kernel: ",
        "kernel: ",
    ];
    for header in headers {
        let text = format!("{header}{TEXT}");
        let read = kernel_line(&text).unwrap();
        assert_eq!(read.line.text, TEXT, "{header:?}");
        let known = header.contains("123.456789").then_some(123_456_789);
        assert_eq!(read.line.timestamp_us, known, "{header:?}");
        assert_eq!(read.has_header, !header.is_empty(), "{header:?}");
    }
    for caller in ["[ T77]", "[T77@C1]"] {
        let text = format!("[    1.500000]{caller} x");
        let line = kernel_line(&text).unwrap().line;
        assert_eq!(line.caller.as_deref(), Some("T77"), "{caller}");
    }
}

/// A line about a process begins with the name of its command, where it has no header of its own.
#[test]
fn a_command_like_a_time_is_none() {
    for header in ["<6>[   12.345678] ", "Nov 21 02:53:00 node-1 kernel: [   12.345678] "] {
        let text = format!("{header}[99999.000000][77]: segfault at 0");
        let read = kernel_line(&text).unwrap();
        assert_eq!(read.line.timestamp_us, Some(12_345_678), "{header:?}");
        assert_eq!(read.line.text, "[99999.000000][77]: segfault at 0");
    }
}

#[test]
fn machine_and_time_are_read() {
    const MORNING: Option<u64> = Some((2 * 3600 + 53 * 60) * 1_000_000 + 123_456);
    for (header, host, clock) in [
        ("Nov 21 02:53:00.123456 node-1 kernel: ", "node-1", MORNING),
        ("2025-11-21T02:53:00,123456+00:00 ", "", MORNING),
        ("1763693580.123456 node-1 kernel: ", "node-1", MORNING),
        ("[    1.500000] node-1 kernel: ", "node-1", None),
        (
            "10.0.0.1: kern:    info: [2025-11-21T02:53:00.123456789Z]: ",
            "10.0.0.1",
            MORNING,
        ),
        ("Nov 21 02:53:00.123456 10.0.0.1 kernel: ", "10.0.0.1", MORNING),
        (
            "Nov 21 02:53:00.123456 node-1 kern.err kernel: [    1.500000] ",
            "node-1",
            MORNING,
        ),
        (
            "<3>1 2025-11-21T02:53:00.123456Z node-1 kernel - - - ",
            "node-1",
            MORNING,
        ),
        ("node-1  | [    1.500000] ", "node-1", None),
        ("[Nov21 02:53] ", "", None),
        // Cut in front, numbered, and without the machine's name.
        ("193605.506728] ", "", None),
        ("1763693580 node-1 [    1.500000] ", "", None),
        ("7 Nov 21 02:53:00.123456  kernel: ", "", MORNING),
        ("Nov 21 02:53:00.123456 ** kernel: ", "**", MORNING),
        (
            "Nov 21 02:53:00.123456 localhost.localdomain kernel: ",
            "localhost.localdomain",
            MORNING,
        ),
        ("Nov 21 02:53:00.123456 mail.lan kernel: ", "mail.lan", MORNING),
    ] {
        let text = format!("{header}{TEXT}");
        let read = kernel_line(&text).unwrap();
        assert_eq!(
            (&*read.line.text, read.host, read.clock_us),
            (TEXT, host, clock),
            "{header}"
        );
    }
}

#[test]
fn what_another_writer_wrote_is_passed_over() {
    for header in [
        "<12>[  1.500000] ",
        "user  :notice: [  1.500000] ",
        "local0:err   : [  1.500000] ",
        "10.0.0.1: user: warning: [2025-11-21T02:53:00Z]: ",
        "Nov 21 02:53:00 node-1 user.err app: ",
        "Nov 21 02:53:00 node-1 app[7]: ",
        "Nov 21 02:53:00 node-1 app: ",
        "Nov 21 02:53:00 node-1 app[7]: kernel: ",
        "Nov 21 02:53:00 node-1 app[7]: [    1.500000] ",
        "Nov 21 02:53:00 node-1 app[7]: the kernel: ",
        "Nov 21 02:53:00 node-1 kernel[7]: ",
        "Nov 21 02:53:00 node-1 my-kernel: ",
        "[    1.500000] node-1 app[7]: ",
        "<6>1 2025-11-21T02:53:00Z node-1 app 7 - - ",
    ] {
        assert!(kernel_line(&format!("{header}{TEXT}")).is_none(), "{header}");
    }
    for header in ["my kernel: ", "node-1 ", "Nov 21 02:53:00 node-1 "] {
        let text = format!("{header}{TEXT}");
        assert_ne!(kernel_line(&text).unwrap().line.text, TEXT, "{header}");
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
        assert_eq!(kernel_line(row).unwrap().line.text, row);
    }
}

proptest! {
    #[test]
    fn any_text_is_read_without_panic(line in "[\\[<]?(\\PC|kernel|\\[1\\]|: ){0,60}") {
        let text = kernel_line(&line).map(|read| read.line.text);
        prop_assert!(text.is_none_or(|text| line.ends_with(&text)));
    }
}
