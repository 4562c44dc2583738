//! The value of a memory setting, in the notation of its runtime.

use crate::model::Bytes;
use crate::model::objects::{MemoryOption, MemorySetting, NODE_MEMORY};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    /// A number of bytes for any limit.
    Fixed(Bytes),
    /// What the process finds when it starts: a share of the limit, or a value that is filled in. The size is that under the
    /// limit of now, if it is known.
    AtStart(Option<Bytes>),
    /// The runtime does not accept the value.
    Unreadable,
    Unset,
}

/// The smallest heap in which any runtime can start.
pub(super) const LEAST_HEAP: Bytes = Bytes::new(1 << 20);
/// One, in the unit of [`millionths`].
const ONE: u64 = 1_000_000;

/// What the setting gives the runtime in a container with this limit.
pub(super) fn amount(setting: &MemorySetting, limit: Option<Bytes>) -> Amount {
    match &setting.filled_in {
        Some(filled_in) => match amount_of(setting.option, filled_in, limit) {
            // Without a limit of its own the container gets the node's memory, of which only the order is known.
            Amount::Fixed(heap) => Amount::AtStart(Some(heap)),
            amount => amount,
        },
        None => amount_of(setting.option, &setting.value, limit),
    }
}

/// The share of the limit that the setting gives the runtime, in millionths; `None` if it is no share.
pub(super) fn share(option: MemoryOption, text: &str) -> Option<u64> {
    use MemoryOption as Setting;
    let share = match option {
        Setting::JavaMaxRamPercentage
        | Setting::JavaMinRamPercentage
        | Setting::JavaInitialRamPercentage
        | Setting::NodeOldSpacePercentage => millionths(text)? / 100,
        // `initOnce` of VictoriaMetrics (`lib/memory/memory.go`) ends the process below one percent.
        Setting::VictoriaMetricsPercent => millionths(text).filter(|percent| *percent >= ONE)? / 100,
        Setting::JavaMaxRamFraction | Setting::JavaMinRamFraction | Setting::JavaInitialRamFraction => {
            ONE.checked_div(digits(text, 10)?)?
        }
        Setting::DotnetHeapLimitPercent => hexadecimal(text)?.checked_mul(ONE / 100)?,
        _ if option.slot() == Setting::GoShare => millionths(text)?,
        _ => return None,
    };
    (1..=ONE).contains(&share).then_some(share)
}

/// This share of an amount.
pub(super) fn part_of(amount: Bytes, millionths: u64) -> Bytes {
    let part = u128::from(amount.get()) * u128::from(millionths) / u128::from(ONE);
    Bytes::new(u64::try_from(part).unwrap_or(u64::MAX))
}

/// An amount that stands in proportion to [`NODE_MEMORY`], in proportion to this limit.
pub(super) fn with_limit(amount: Bytes, limit: Bytes) -> Bytes {
    let product = u128::from(amount.get()) * u128::from(limit.get());
    Bytes::new(u64::try_from(product / u128::from(NODE_MEMORY.get())).unwrap_or(u64::MAX))
}

fn amount_of(option: MemoryOption, text: &str, limit: Option<Bytes>) -> Amount {
    use MemoryOption as Option;
    if text.contains(['{', '$', '`']) {
        return Amount::AtStart(None);
    }
    match option.slot() {
        Option::JavaMaxHeap | Option::JavaInitialHeap | Option::JavaMaxRam => fixed(java_bytes(text)),
        Option::GoMemoryLimit | Option::GoShare if matches!(text, "" | "off") => Amount::Unset,
        Option::DotnetHeapLimit | Option::VictoriaMetricsBytes if text.is_empty() => Amount::Unset,
        Option::GoMemoryLimit => fixed(go_bytes(text)),
        Option::NodeOldSpace => fixed(digits(text, 10).and_then(|mebibytes| mebibytes.checked_mul(1 << 20))),
        Option::DotnetHeapLimit => fixed(hexadecimal(text)),
        Option::RedisMaxMemory => fixed(redis_bytes(text)),
        Option::DragonflyMaxMemory => fixed(dragonfly_bytes(text)),
        Option::VictoriaMetricsBytes => fixed(victoria_metrics_bytes(text)),
        // A number and one letter, as in HotSpot.
        Option::InnodbBufferPool => fixed(java_bytes(text)),
        Option::WiredTigerCache => fixed(decimal(text, |unit| unit.is_empty().then_some(1 << 30))),
        Option::PostgresBuffers => fixed(postgres_bytes(text)),
        // A share of 0 switches it off in prometheus-operator.
        _ if option == Option::GoShareDashedFlag && millionths(text) == Some(0) => Amount::Unset,
        _ => share(option, text).map_or(Amount::Unreadable, |share| {
            Amount::AtStart(limit.map(|limit| part_of(limit, share)))
        }),
    }
}

/// Zero selects the runtime's default.
fn fixed(bytes: Option<u64>) -> Amount {
    match bytes {
        Some(0) => Amount::Unset,
        Some(bytes) if i64::try_from(bytes).is_ok() => Amount::Fixed(Bytes::new(bytes)),
        Some(_) | None => Amount::Unreadable,
    }
}

/// Digits only: `from_str_radix` also accepts a sign.
fn digits(text: &str, radix: u32) -> Option<u64> {
    let plain = text.chars().all(|character| character.is_digit(radix));
    u64::from_str_radix(text, radix).ok().filter(|_| plain)
}

fn hexadecimal(text: &str) -> Option<u64> {
    let bare = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    digits(bare.unwrap_or(text), 16)
}

/// `parse_integer` of HotSpot (`src/hotspot/share/utilities/parseInteger.hpp`): one letter after the digits.
fn java_bytes(text: &str) -> Option<u64> {
    let number = |number: &str| match number.strip_prefix("0x") {
        Some(hexadecimal) => digits(hexadecimal, 16),
        None => digits(number, 10),
    };
    with_unit(&text.to_ascii_lowercase(), &["", "k", "m", "g", "t"], 1024, number)
}

/// `parseByteCount` of Go (`src/runtime/string.go`): bytes, or a number with a binary unit.
fn go_bytes(text: &str) -> Option<u64> {
    with_unit(text, &["B", "KiB", "MiB", "GiB", "TiB"], 1024, |number| {
        digits(number, 10)
    })
}

/// `memtoull` of Redis (`src/util.c`): `k` is 1000 bytes, and `kb` is 1024.
fn redis_bytes(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let binary = text.strip_suffix('b');
    let base = if binary.is_some() { 1024 } else { 1000 };
    with_unit(binary.unwrap_or(&text), &["", "k", "m", "g"], base, |number| {
        digits(number, 10)
    })
}

/// `ParseHumanReadableBytes` of Dragonfly (`src/server/common.cc`): a decimal number and the first letter of a binary unit.
fn dragonfly_bytes(text: &str) -> Option<u64> {
    decimal(&text.to_ascii_lowercase(), |unit| {
        let power = "bkmgtpe".find(unit.chars().next().unwrap_or('b'))?;
        Some(1 << (10 * power))
    })
}

/// `Bytes.Set` of VictoriaMetrics (`lib/flagutil/bytes.go`): a decimal number with a decimal or a binary unit.
fn victoria_metrics_bytes(text: &str) -> Option<u64> {
    decimal(&text.to_ascii_lowercase(), |unit| {
        let base = if unit.ends_with("ib") { 1024 } else { 1000 };
        bytes_of(&unit.replace("ib", "b"), &["", "kb", "mb", "gb", "tb"], base)
    })
}

/// `parse_int` of PostgreSQL (`src/backend/utils/misc/guc.c`): a decimal number of blocks, or with a binary unit.
fn postgres_bytes(text: &str) -> Option<u64> {
    decimal(text, |unit| match unit {
        "" => Some(8 << 10),
        unit => bytes_of(unit, &["B", "kB", "MB", "GB", "TB"], 1024),
    })
}

/// The bytes of a unit, of which each is `base` times the one before.
fn bytes_of(unit: &str, units: &[&str], base: u64) -> Option<u64> {
    let (power, _) = (0..).zip(units).find(|(_, known)| **known == unit)?;
    Some(base.pow(power))
}

/// A decimal number, perhaps with an exponent, and a unit of so many bytes, or none.
fn decimal(text: &str, bytes: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let number = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let bytes = bytes(&text[number.len()..])?;
    let (number, exponent) = number.split_once('e').unwrap_or((number, "0"));
    let number = millionths(number).filter(|_| !number.is_empty())?;
    let bytes = bytes.checked_mul(10_u64.checked_pow(exponent.parse().ok()?)?)?;
    Some(part_of(Bytes::new(bytes), number).get())
}

/// A number with a unit, of which each is `base` times the one before, or without one.
fn with_unit(text: &str, units: &[&str], base: u64, number: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let fits = |(power, unit): (u32, &&str)| Some((text.strip_suffix(*unit)?, base.pow(power)));
    // A longer unit ends as a shorter one does.
    let (text, bytes) = (0..).zip(units).filter_map(fits).last().unwrap_or((text, 1));
    number(text)?.checked_mul(bytes)
}

/// A decimal number in millionths.
fn millionths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction = digits(&format!("{fraction:0<6.6}"), 10)?;
    let whole = if whole.is_empty() { 0 } else { digits(whole, 10)? };
    whole.checked_mul(ONE)?.checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(option: MemoryOption, value: &str) -> Amount {
        amount_of(option, value, None)
    }

    const fn bytes(bytes: u64) -> Amount {
        Amount::Fixed(Bytes::new(bytes))
    }

    #[test]
    fn each_runtime_has_units_of_its_own() {
        use MemoryOption as Option;
        for (option, value, expected) in [
            (Option::JavaMaxHeap, "512m", bytes(512 << 20)),
            (Option::JavaMaxHeap, "2G", bytes(2 << 30)),
            (Option::JavaInitialHeap, "65536k", bytes(64 << 20)),
            (Option::JavaMaxHeapSize, "1t", bytes(1 << 40)),
            (Option::JavaMaxHeap, "0x10m", bytes(16 << 20)),
            (Option::JavaMaxHeap, "1048576", bytes(1 << 20)),
            (Option::JavaMaxHeap, "512mb", Amount::Unreadable),
            (Option::JavaMaxHeap, "512Mi", Amount::Unreadable),
            (Option::JavaMaxHeap, "0.5g", Amount::Unreadable),
            (Option::JavaMaxHeap, "-1", Amount::Unreadable),
            (Option::JavaMaxHeap, "+1m", Amount::Unreadable),
            (Option::JavaMaxHeap, "é", Amount::Unreadable),
            (Option::JavaMaxHeap, "", Amount::Unreadable),
            (Option::JavaMaxHeap, "99999999999t", Amount::Unreadable),
            (Option::JavaMaxHeap, "9999999t", Amount::Unreadable),
            (Option::JavaMaxHeap, "{limits.memory}m", Amount::AtStart(None)),
            (Option::GoMemoryLimit, "400MiB", bytes(400 << 20)),
            (Option::GoMemoryLimit, "419430400", bytes(400 << 20)),
            (Option::GoMemoryLimit, "419430400B", bytes(400 << 20)),
            (Option::GoMemoryLimit, "off", Amount::Unset),
            (Option::GoMemoryLimit, "400Mi", Amount::Unreadable),
            (Option::GoMemoryLimit, "400mib", Amount::Unreadable),
            (Option::GoMemoryLimit, "1.5GiB", Amount::Unreadable),
            (Option::NodeOldSpace, "4096", bytes(4 << 30)),
            (Option::NodeOldSpace, "4g", Amount::Unreadable),
            (Option::RedisMaxMemory, "512MB", bytes(512 << 20)),
            (Option::RedisMaxMemory, "512m", bytes(512_000_000)),
            (Option::RedisMaxMemory, "2gb", bytes(2 << 30)),
            (Option::RedisMaxMemory, "1048576", bytes(1 << 20)),
            (Option::RedisMaxMemory, "1048576b", bytes(1 << 20)),
            (Option::RedisMaxMemory, "0", Amount::Unset),
            (Option::RedisMaxMemory, "512Mi", Amount::Unreadable),
            (Option::RedisMaxMemory, "", Amount::Unreadable),
            (Option::DragonflyMaxMemory, "512Mi", bytes(512 << 20)),
            (Option::DragonflyMaxMemory, "1.25GiB", bytes(5 << 28)),
            (Option::DragonflyMaxMemory, "2G", bytes(2 << 30)),
            (Option::DragonflyMaxMemory, "256mb", bytes(256 << 20)),
            (Option::DragonflyMaxMemory, "1048576", bytes(1 << 20)),
            (Option::DragonflyMaxMemory, "1e9", bytes(1_000_000_000)),
            (Option::DragonflyMaxMemory, "1e", bytes(1 << 60)),
            (Option::DragonflyMaxMemory, "0", Amount::Unset),
            (Option::DragonflyMaxMemory, "gb", Amount::Unreadable),
            (Option::DragonflyMaxMemory, "80%", Amount::Unreadable),
            (Option::VictoriaMetricsBytes, "1.5GiB", bytes(3 << 29)),
            (Option::VictoriaMetricsBytes, "512mb", bytes(512_000_000)),
            (Option::VictoriaMetricsBytes, "1048576", bytes(1 << 20)),
            (Option::VictoriaMetricsBytes, "1e9", bytes(1_000_000_000)),
            (Option::VictoriaMetricsBytes, "1.5E+3MiB", bytes(1500 << 20)),
            (Option::VictoriaMetricsBytes, "1e99", Amount::Unreadable),
            (Option::VictoriaMetricsBytes, "1e", Amount::Unreadable),
            (Option::VictoriaMetricsBytes, "e9", Amount::Unreadable),
            (Option::VictoriaMetricsBytes, "0", Amount::Unset),
            (Option::VictoriaMetricsBytes, "", Amount::Unset),
            (Option::VictoriaMetricsBytes, "512Mi", Amount::Unreadable),
            (Option::VictoriaMetricsBytes, "GB", Amount::Unreadable),
            (Option::InnodbBufferPool, "512M", bytes(512 << 20)),
            (Option::InnodbBufferPool, "1073741824", bytes(1 << 30)),
            (Option::InnodbBufferPool, "1GB", Amount::Unreadable),
            (Option::WiredTigerCache, "0.25", bytes(1 << 28)),
            (Option::WiredTigerCache, "1GB", Amount::Unreadable),
            (Option::PostgresBuffers, "16384", bytes(128 << 20)),
            (Option::PostgresBuffers, "1.5GB", bytes(3 << 29)),
            (Option::PostgresBuffers, "131072kB", bytes(128 << 20)),
            (Option::PostgresBuffers, "128mb", Amount::Unreadable),
            (Option::DotnetHeapLimit, "C800000", bytes(200 << 20)),
            (Option::DotnetHeapLimit, "0xc800000", bytes(200 << 20)),
            (Option::DotnetHeapLimit, "200m", Amount::Unreadable),
            (Option::DotnetHeapLimitPercent, "4B", Amount::AtStart(None)),
            (Option::DotnetHeapLimitPercent, "75", Amount::Unreadable),
            (Option::JavaMaxRamPercentage, "75.0", Amount::AtStart(None)),
            (Option::JavaMaxRamPercentage, "175", Amount::Unreadable),
            (Option::JavaMaxRamPercentage, "NaN", Amount::Unreadable),
            (Option::JavaMaxRamFraction, "2", Amount::AtStart(None)),
        ] {
            assert_eq!(of(option, value), expected, "{option:?} {value:?}");
        }
    }

    #[test]
    fn shares_are_exact_bytes_of_the_limit() {
        use MemoryOption as Option;
        let of = |option, value| amount_of(option, value, Some(Bytes::new(1 << 30)));
        let share = |bytes| Amount::AtStart(Some(Bytes::new(bytes)));
        for (option, value, expected) in [
            (Option::JavaMaxRamPercentage, "100", share(1 << 30)),
            (Option::JavaMaxRamPercentage, "75.5", share((1 << 30) * 755 / 1000)),
            (Option::JavaMaxRamPercentage, "100.1", Amount::Unreadable),
            (Option::JavaMaxRamPercentage, "", Amount::Unreadable),
            (Option::JavaMaxRamPercentage, "1e2", Amount::Unreadable),
            (Option::JavaMaxRamFraction, "1", share(1 << 30)),
            (Option::JavaMinRamFraction, "4", share(1 << 28)),
            (Option::JavaMaxRamFraction, "0", Amount::Unreadable),
            (Option::NodeOldSpacePercentage, "50", share(1 << 29)),
            (Option::VictoriaMetricsPercent, "50", share(1 << 29)),
            (Option::VictoriaMetricsPercent, "0.5", Amount::Unreadable),
            (Option::DotnetHeapLimitPercent, "64", share(1 << 30)),
            (Option::GoShare, "0.5", share(1 << 29)),
            (Option::GoShare, "1.0", share(1 << 30)),
            (Option::GoShare, "90", Amount::Unreadable),
            (Option::GoShare, "off", Amount::Unset),
        ] {
            assert_eq!(of(option, value), expected, "{option:?} {value:?}");
        }
    }
}
