//! The value of a memory setting, in the notation of its runtime.

use crate::model::Bytes;
use crate::model::objects::{MemoryOption, MemorySetting};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    /// A number of bytes for any limit.
    Fixed(Bytes),
    /// A share of the limit that the process finds when it starts.
    ShareAtStart,
    /// A value that is known only when the container starts.
    KnownAtStart,
    /// The runtime does not accept the value.
    Unreadable,
    Unset,
}

/// The smallest heap in which any runtime can start.
pub(super) const LEAST_HEAP: Bytes = Bytes::new(1 << 20);

pub(super) fn amount(setting: &MemorySetting) -> Amount {
    amount_of(setting.option, &setting.value)
}

/// The amount that the kubelet fills in at the start, if its size shows a wrong unit.
pub(super) fn with_wrong_unit(setting: &MemorySetting, limit: Option<Bytes>) -> Option<Amount> {
    let amount = amount_of(setting.option, setting.filled_in.as_deref()?);
    let is_wrong = match amount {
        Amount::Fixed(heap) => heap < LEAST_HEAP || limit.is_some_and(|limit| heap > limit),
        amount => amount == Amount::Unreadable,
    };
    is_wrong.then_some(amount)
}

fn amount_of(option: MemoryOption, text: &str) -> Amount {
    use MemoryOption as Option;
    if text.contains(['{', '$', '`']) {
        return Amount::KnownAtStart;
    }
    match option {
        Option::JavaMaxHeap | Option::JavaMaxHeapSize | Option::JavaInitialHeap | Option::JavaInitialHeapSize => {
            fixed(java_bytes(text))
        }
        Option::GoMemoryLimit if matches!(text, "" | "off") => Amount::Unset,
        Option::GoMemoryLimit => fixed(go_bytes(text)),
        Option::NodeOldSpace => fixed(digits(text, 10).and_then(|mebibytes| mebibytes.checked_mul(1 << 20))),
        Option::DotnetHeapLimit if text.is_empty() => Amount::Unset,
        Option::DotnetHeapLimit => fixed(hexadecimal(text)),
        Option::JavaMaxRamPercentage | Option::NodeOldSpacePercentage if is_percentage(text) => Amount::ShareAtStart,
        Option::JavaMaxRamFraction if digits(text, 10) > Some(0) => Amount::ShareAtStart,
        Option::DotnetHeapLimitPercent if matches!(hexadecimal(text), Some(1..=100)) => Amount::ShareAtStart,
        Option::JavaMaxRamPercentage
        | Option::NodeOldSpacePercentage
        | Option::JavaMaxRamFraction
        | Option::DotnetHeapLimitPercent => Amount::Unreadable,
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
    let units = [("k", 10), ("m", 20), ("g", 30), ("t", 40)];
    with_unit(&text.to_ascii_lowercase(), &units, |number| {
        match number.strip_prefix("0x") {
            Some(hexadecimal) => digits(hexadecimal, 16),
            None => digits(number, 10),
        }
    })
}

/// `parseByteCount` of Go (`src/runtime/string.go`): bytes, or a number with a binary unit.
fn go_bytes(text: &str) -> Option<u64> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("B", 0)];
    with_unit(text, &units, |number| digits(number, 10))
}

fn with_unit(text: &str, units: &[(&str, u32)], number: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let mut units = units.iter();
    let found = units.find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (text, shift) = found.unwrap_or((text, 0));
    number(text)?.checked_mul(1 << shift)
}

fn is_percentage(text: &str) -> bool {
    let plain = text
        .chars()
        .all(|character| character.is_ascii_digit() || character == '.');
    plain && text.parse().is_ok_and(|percent: f64| percent > 0.0 && percent <= 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::objects::SettingSource;

    fn of(option: MemoryOption, value: &str) -> Amount {
        amount(&MemorySetting {
            option,
            source: SettingSource::Args,
            value: value.to_owned(),
            filled_in: None,
        })
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
            (Option::JavaMaxHeap, "{limits.memory}m", Amount::KnownAtStart),
            (Option::GoMemoryLimit, "400MiB", bytes(400 << 20)),
            (Option::GoMemoryLimit, "419430400", bytes(400 << 20)),
            (Option::GoMemoryLimit, "419430400B", bytes(400 << 20)),
            (Option::GoMemoryLimit, "off", Amount::Unset),
            (Option::GoMemoryLimit, "400Mi", Amount::Unreadable),
            (Option::GoMemoryLimit, "400mib", Amount::Unreadable),
            (Option::GoMemoryLimit, "1.5GiB", Amount::Unreadable),
            (Option::NodeOldSpace, "4096", bytes(4 << 30)),
            (Option::NodeOldSpace, "4g", Amount::Unreadable),
            (Option::DotnetHeapLimit, "C800000", bytes(200 << 20)),
            (Option::DotnetHeapLimit, "0xc800000", bytes(200 << 20)),
            (Option::DotnetHeapLimit, "200m", Amount::Unreadable),
            (Option::DotnetHeapLimitPercent, "4B", Amount::ShareAtStart),
            (Option::DotnetHeapLimitPercent, "75", Amount::Unreadable),
            (Option::JavaMaxRamPercentage, "75.0", Amount::ShareAtStart),
            (Option::JavaMaxRamPercentage, "175", Amount::Unreadable),
            (Option::JavaMaxRamPercentage, "NaN", Amount::Unreadable),
            (Option::JavaMaxRamFraction, "2", Amount::ShareAtStart),
        ] {
            assert_eq!(of(option, value), expected, "{option:?} {value:?}");
        }
    }
}
