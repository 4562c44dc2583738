//! Parses durations, and prints times and durations for people.

use std::time::Duration;

use jiff::{RoundMode, Span, SpanRelativeTo, SpanRound, Timestamp, Unit};

use crate::control::LONGEST_TTL;

/// The life of an override. Zero, written as `0`, means that the override holds until an operator releases it.
///
/// Errors: the text is neither `0` nor a duration from a microsecond to [`LONGEST_TTL`].
pub(super) fn ttl(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(long) if long > LONGEST_TTL => {
            Err("too long: write at most 366d, or 0 to hold the values until they are released".to_owned())
        }
        Ok(short) if short.as_micros() == 0 && text != "0" => {
            Err("too short: write 0 to hold the values until they are released".to_owned())
        }
        read => read,
    }
}

/// A duration such as `1h30m`, `7d` or `0`. A day has 24 hours.
///
/// Errors: the text is no duration, or a negative one. The message says what to write.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let duration = text
        .parse()
        .and_then(|span: Span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    let duration = duration.map_err(|_error| {
        format!("{text:?} is not a duration: write a number with a unit, such as 90s, 30m, 1h30m or 7d")
    })?;
    Duration::try_from(duration).map_err(|_negative| format!("{text:?} is in the past"))
}

/// A duration in microseconds, in the unit that suits it; a dash for none.
pub(super) fn took(micros: u64) -> String {
    match micros {
        0 => "-".to_owned(),
        1..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{}.{} ms", micros / 1_000, micros / 100 % 10),
        _ => format!("{}.{} s", micros / 1_000_000, micros / 100_000 % 10),
    }
}

/// A duration in its two largest units, such as `1h 5m`.
pub(super) fn coarse(duration: Duration) -> String {
    let smallest = match duration.as_secs() {
        ..3_600 => Unit::Second,
        3_600..86_400 => Unit::Minute,
        86_400.. => Unit::Hour,
    };
    let units = SpanRound::new().largest(Unit::Day).smallest(smallest);
    let units = units.mode(RoundMode::Trunc).days_are_24_hours();
    let span = Span::try_from(duration).and_then(|span| span.round(units));
    format!("{:#}", span.unwrap_or_default())
}

/// The duration from one RFC 3339 time to another, at least zero; `None` if a text is no such time.
pub(super) fn between(from: &str, to: &str) -> Option<Duration> {
    let (from, to): (Timestamp, Timestamp) = (from.parse().ok()?, to.parse().ok()?);
    Some(Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO))
}

/// An RFC 3339 time to the second, in UTC. Any other text stays as it is.
pub(super) fn second(at: &str) -> String {
    at.parse::<Timestamp>()
        .map_or_else(|_error| at.to_owned(), |at| format!("{at:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, seconds) in [
            ("30m", 1800),
            ("1h30m", 5400),
            ("90s", 90),
            ("1h 5m", 3900),
            ("PT30M", 1800),
            ("7d", 7 * 86_400),
        ] {
            assert_eq!(ttl(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!((ttl("0"), duration("0")), (Ok(Duration::ZERO), Ok(Duration::ZERO)));
        assert_eq!(ttl("366d"), Ok(LONGEST_TTL));
        for text in [
            "",
            "30",
            "m",
            "-30m",
            "0s",
            "1ns",
            "soon",
            "1mo",
            "367d",
            "9999999999999d",
        ] {
            assert!(ttl(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_shown_short() {
        for (micros, shown) in [
            (0, "-"),
            (85, "85 µs"),
            (999, "999 µs"),
            (1_000, "1.0 ms"),
            (1_290, "1.2 ms"),
            (999_999, "999.9 ms"),
            (1_000_000, "1.0 s"),
            (61_700_000, "61.7 s"),
        ] {
            assert_eq!(took(micros), shown);
        }
        assert_eq!(coarse(Duration::from_secs(3599)), "59m 59s");
        assert_eq!(coarse(Duration::from_secs(3661)), "1h 1m");
        assert_eq!(coarse(Duration::from_secs(86_399)), "23h 59m");
        assert_eq!(coarse(Duration::from_secs(86_461)), "1d");
        assert_eq!(coarse(Duration::from_secs(0)), "0s");
        assert_eq!(coarse(Duration::from_secs(59)), "59s");
        assert_eq!(coarse(Duration::from_secs(1800)), "30m");
        assert_eq!(coarse(Duration::from_secs(3905)), "1h 5m");
        assert_eq!(coarse(Duration::from_secs(90_000)), "1d 1h");
    }

    #[test]
    fn times_that_are_over_leave_nothing() {
        let (early, late) = ("2026-01-31T12:00:00Z", "2026-01-31T12:30:00Z");
        assert_eq!(between(early, late), Some(Duration::from_secs(1800)));
        assert_eq!(between(late, early), Some(Duration::ZERO));
        assert_eq!(between("then", late), None);
        assert_eq!(second("2026-01-31T12:00:00.123456Z"), "2026-01-31T12:00:00Z");
        assert_eq!(second("then"), "then");
    }
}
