//! One record of `/dev/kmsg`: `<prefix>,<seq>,<µs>,<flags>[,key=value…];<text>`, then dictionary lines.
//!
//! The grammar is that of Documentation/ABI/testing/dev-kmsg; `msg_add_ext_text` in kernel/printk/printk.c escapes. In
//! come the bytes of one `read`, out goes a [`Line`]. Only the header has a grammar: any text can be read.

use std::str::FromStr;

/// The kernel's own facility is 0, so its prefixes (`facility << 3 | level`) are below this. A record that a process
/// writes to `/dev/kmsg` gets at least facility 1 (`devkmsg_write`), so no process can forge a prefix of the kernel's.
pub(super) const FIRST_USER_PREFIX: u32 = 8;
/// Longer than any header: four numbers and a few short fields.
const LONGEST_HEADER: usize = 256;

/// A line in the log, or a part of one. Only lines of the kernel become kills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Whether the kernel itself printed the line: a process may have written a record to `/dev/kmsg`.
    pub from_kernel: bool,
    /// The number of the record, counted from boot, where the source numbers records. Readers see every number once,
    /// in order.
    pub seq: Option<u64>,
    /// Microseconds of the kernel's `local_clock()` since boot, where the source has times. Two CPUs may print slightly
    /// out of order.
    pub timestamp_us: Option<u64>,
    /// The task (`T123`) or CPU (`C1`) that printed the line, from kernels with CONFIG_PRINTK_CALLER.
    pub caller: Option<String>,
    pub part: Part,
    pub text: String,
}

/// Which part of a line a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The beginning of a line, mostly all of it.
    Start,
    Continued,
    /// Unknown: `dmesg` shows parts as if they were lines.
    Unmarked,
}

impl Line {
    /// A text of the kernel, from a source without numbers of records.
    pub(super) const fn of_text(text: String) -> Self {
        Self {
            from_kernel: true,
            seq: None,
            timestamp_us: None,
            caller: None,
            part: Part::Unmarked,
            text,
        }
    }

    /// Reads a record without its dictionary. Returns `None` when the bytes do not begin with a header.
    pub fn of_record(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().take(LONGEST_HEADER).position(|byte| *byte == b';')?;
        let mut fields = str::from_utf8(&bytes[..end]).ok()?.split(',');
        let prefix: u32 = number(fields.next()?)?;
        let (seq, timestamp_us) = (number(fields.next()?)?, number(fields.next()?)?);
        let part = match fields.next()? {
            "-" => Part::Start,
            // Before Linux 4.9 the first part has `c`, and the others have `+`.
            "c" | "+" => Part::Continued,
            _ => return None,
        };
        let caller = fields.find_map(|field| field.strip_prefix("caller="));
        let escaped = bytes[end + 1..].split(|byte| *byte == b'\n').next();
        Some(Self {
            from_kernel: prefix < FIRST_USER_PREFIX,
            seq: Some(seq),
            timestamp_us: Some(timestamp_us),
            caller: caller.map(str::to_owned),
            part,
            text: unescape(escaped.unwrap_or_default()),
        })
    }
}

/// Turns each `\xNN` back into a byte. Bytes that are no UTF-8 become U+FFFD.
fn unescape(mut escaped: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(escaped.len());
    while let Some((&byte, after)) = escaped.split_first() {
        let digits = escaped.strip_prefix(br"\x").and_then(<[u8]>::split_first_chunk);
        let whole = digits.and_then(|(&[high, low], after)| Some((hex_pair(high, low)?, after)));
        let (byte, after) = whole.unwrap_or((byte, after));
        bytes.push(byte);
        escaped = after;
    }
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// A number in decimal digits and nothing else: no sign, no blanks.
pub(super) fn number<T: FromStr>(text: &str) -> Option<T> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_digits)
}

/// The microseconds of a number of seconds with a fraction.
pub(super) fn micros(seconds: &str, fraction: &str) -> Option<u64> {
    let fraction: u64 = number(&format!("{fraction:0<6.6}"))?;
    let seconds: u64 = number(seconds)?;
    Some(seconds.saturating_mul(1_000_000).saturating_add(fraction))
}

fn hex_pair(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_record_has_header_text_and_dictionary() {
        let record = Line::of_record(b"6,17716,923743940,-;oom-kill:x\n SUBSYSTEM=pci\n DEVICE=+pci:0\n").unwrap();
        assert!(record.from_kernel && record.part == Part::Start);
        assert_eq!((record.seq, record.timestamp_us), (Some(17_716), Some(923_743_940)));
        assert_eq!(record.text, "oom-kill:x");
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let record = Line::of_record(b"4,1,2,c,caller=T123,more=1;;a;b").unwrap();
        assert_eq!((record.caller.as_deref(), record.part), (Some("T123"), Part::Continued));
        assert_eq!(record.text, ";a;b");
    }

    #[test]
    fn parts_of_older_kernels_have_a_plus() {
        assert_eq!(Line::of_record(b"6,1,2,+;x").unwrap().part, Part::Continued);
    }

    #[test]
    fn user_space_cannot_pass_for_the_kernel() {
        for (header, from_kernel) in [
            ("0", true),
            ("7", true),
            ("8", false),
            ("11", false),
            ("4294967295", false),
        ] {
            let bytes = format!("{header},1,2,-;Out of memory");
            assert_eq!(Line::of_record(bytes.as_bytes()).unwrap().from_kernel, from_kernel);
        }
    }

    #[test]
    fn escapes_become_bytes_again() {
        let text = |escaped: &str| Line::of_record(format!("6,1,2,-;{escaped}").as_bytes()).unwrap().text;
        assert_eq!(text(r"\xc3\xbcn\x0a\x5cx41"), "ün\n\\x41");
        assert_eq!(text(r"\x"), r"\x");
        assert_eq!(text(r"\xzz\x4"), r"\xzz\x4");
        assert_eq!(text(r"a\xffb"), "a\u{fffd}b");
    }

    #[test]
    fn what_is_not_a_header_is_not_a_record() {
        for bad in [
            "",
            ";",
            "6,1,2;x",
            "6,1,2,-",
            " 6,1,2,-;x",
            "+6,1,2,-;x",
            "6,-1,2,-;x",
            "6,1,2,z;x",
            "x",
            "99999999999,1,2,-;x",
        ] {
            assert_eq!(Line::of_record(bad.as_bytes()), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_survive_the_kernels_escaping(text in "\\PC{0,40}", seq: u64, timestamp: u64) {
            let escaped: String = text
                .bytes()
                .map(|byte| match byte {
                    0x20..0x7f if byte != b'\\' => char::from(byte).to_string(),
                    _ => format!("\\x{byte:02x}"),
                })
                .collect();
            let bytes = format!("3,{seq},{timestamp},-;{escaped}\n");
            let record = Line::of_record(bytes.as_bytes()).unwrap();
            prop_assert_eq!((record.seq, record.timestamp_us), (Some(seq), Some(timestamp)));
            prop_assert_eq!(record.text, text);
        }
    }
}
