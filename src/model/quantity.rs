//! Kubernetes quantities: decimal numbers with SI (`m`, `k`, `M`, …), binary (`Ki`, `Mi`, …) or exponent suffixes.
//!
//! Follows `k8s.io/apimachinery/pkg/api/resource.ParseQuantity`: rounds up to whole nano units, away from zero, and saturates
//! at `i64`.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::repeat_n;

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Resource;

/// A text is not a quantity, or a negative one. Holds the text, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is {1}")]
pub struct QuantityError(String, &'static str);

const MALFORMED: &str = "not a quantity: write a number with an optional suffix (n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or \
                         e<exponent>), such as 250m or 1.5Gi";
const NEGATIVE: &str = "negative: allowed are values from 0 upwards";

/// Nano units in one unit.
const NANO: i128 = 1_000_000_000;
/// Above every value that saturation to `i64` leaves unchanged, and low enough that no arithmetic here overflows.
const CEILING: i128 = i64::MAX as i128 * NANO;

/// An exact non-negative quantity, in nano units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity(i128);

impl Quantity {
    /// Parses the notation of the Kubernetes API.
    ///
    /// Errors: [`QuantityError`] if the text is malformed or negative.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let malformed = || QuantityError(text.to_owned(), MALFORMED);
        let trimmed = text.trim();
        let (negative, unsigned) = match trimmed.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
        };
        let number_len = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_len);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(malformed());
        }
        let (ten, two) = powers(suffix).ok_or_else(malformed)?;
        let nano = scaled(whole, fraction, ten, NANO << two);
        if negative && nano > 0 {
            return Err(QuantityError(text.to_owned(), NEGATIVE));
        }
        Ok(Self(nano))
    }

    /// The value in whole units, rounded up and saturated to `i64::MAX` (`Quantity.Value()` upstream).
    pub fn value(self) -> u64 {
        Self::saturate(self.0, NANO)
    }

    /// The value in thousandths, rounded up and saturated to `i64::MAX` (`Quantity.MilliValue()` upstream).
    pub fn milli_value(self) -> u64 {
        Self::saturate(self.0, NANO / 1000)
    }

    /// The value in thousandths for cpu, in whole units for memory, saturated to `i64::MAX`. `None` if it is a fraction of them.
    pub fn exact(self, resource: Resource) -> Option<u64> {
        let unit = match resource {
            Resource::Cpu => NANO / 1000,
            Resource::Memory => NANO,
        };
        (self.0 % unit == 0).then(|| Self::saturate(self.0, unit))
    }

    fn saturate(nano: i128, unit: i128) -> u64 {
        let rounded_up = (nano + unit - 1) / unit;
        u64::try_from(rounded_up.min(i128::from(i64::MAX))).unwrap_or(0)
    }
}

impl fmt::Display for Quantity {
    /// The exact value, in the largest of units, thousandths and nano units that holds it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(nano) = *self;
        match nano {
            _ if nano % NANO == 0 => write!(f, "{}", nano / NANO),
            _ if nano % (NANO / 1000) == 0 => write!(f, "{}m", nano / (NANO / 1000)),
            _ => write!(f, "{nano}n"),
        }
    }
}

/// The powers of ten and of two that a suffix stands for.
fn powers(suffix: &str) -> Option<(i32, u32)> {
    let mut decimal = (-9..).step_by(3).zip(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"]);
    if let Some((ten, _)) = decimal.find(|(_, known)| *known == suffix) {
        return Some((ten, 0));
    }
    let mut binary = (10..).step_by(10).zip(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]);
    if let Some((two, _)) = binary.find(|(_, known)| *known == suffix) {
        return Some((0, two));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // An exponent too long for i32 saturates: its value is zero or above the ceiling anyway.
    let power = digits.parse().unwrap_or(i32::MAX);
    is_number.then_some((if exponent.starts_with('-') { -power } else { power }, 0))
}

/// The digits of `whole.fraction` times ten to the `exponent`, times the `factor`, rounded up to an integer, at most [`CEILING`].
fn scaled(whole: &str, fraction: &str, exponent: i32, factor: i128) -> i128 {
    let digits = [whole, fraction].concat();
    let exponent = i64::from(exponent);
    let [whole, fraction] = [whole, fraction].map(|text| i64::try_from(text.len()).unwrap_or(i64::MAX));
    let point = whole.saturating_add(exponent);
    let (before, after) = digits.split_at(usize::try_from(point).map_or(0, |point| point.min(digits.len())));
    // More zeros than these reach the ceiling too, or leave a remainder alone.
    let zeros = |count: i64| repeat_n(b'0', usize::try_from(count.clamp(0, 38)).unwrap_or(0));
    let before = before.bytes().chain(zeros(exponent.saturating_sub(fraction)));
    let units = before.fold(0_i128, |sum, digit| (sum * 10 + i128::from(digit - b'0')).min(CEILING));
    let after = after.bytes().rev().chain(zeros(point.saturating_neg()));
    let (part, is_more) = after.fold((0_i128, false), |(part, is_more), digit| {
        let part = part + i128::from(digit - b'0') * factor;
        (part / 10, is_more || part % 10 > 0)
    });
    let sum = units.saturating_mul(factor).saturating_add(part + i128::from(is_more));
    sum.min(CEILING)
}

/// Reads a quantity from a string or a number, as the API server does, and refuses anything else before it is read.
struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity such as 250m, 1.5Gi or 128974848")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Quantity, E> {
        Quantity::parse(text).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

/// Quantities by name. Of other resources than cpu and memory only the names are read: whatever else they have changes nothing.
#[derive(Debug, Default)]
pub struct Quantities(pub(super) BTreeMap<String, Option<Quantity>>);

impl<'de> Visitor<'de> for Quantities {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut all: M) -> Result<Self, M::Error> {
        while let Some(name) = all.next_key::<String>()? {
            let of_quota = ["requests.", "limits."].iter().find_map(|list| name.strip_prefix(list));
            let quantity = match of_quota.unwrap_or(&name) {
                "cpu" | "memory" => all.next_value()?,
                _ => all.next_value().map(|IgnoredAny| None)?,
            };
            self.0.insert(name, quantity);
        }
        Ok(self)
    }
}

impl<'de> Deserialize<'de> for Quantities {
    fn deserialize<D: Deserializer<'de>>(all: D) -> Result<Self, D::Error> {
        all.deserialize_map(Self::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(text: &str) -> u64 {
        Quantity::parse(text).unwrap().value()
    }

    fn milli(text: &str) -> u64 {
        Quantity::parse(text).unwrap().milli_value()
    }

    #[test]
    fn every_notation_of_the_api_is_read() {
        assert_eq!(milli("250m"), 250);
        assert_eq!(milli("0.25"), 250);
        assert_eq!(milli(".25"), 250);
        assert_eq!(milli("1."), 1000);
        assert_eq!(milli("1e0"), 1000);
        assert_eq!(milli("25E-2"), 250);
        assert_eq!(value("1.5Gi"), 1_610_612_736);
        assert_eq!(value("128974848000m"), 128_974_848);
        assert_eq!(value("129e6"), 129_000_000);
        assert_eq!(value("1E"), 1_000_000_000_000_000_000);
        assert_eq!(value("+123Mi"), 128_974_848);
        assert_eq!(value("-0"), 0);
    }

    #[test]
    fn fractions_round_up_and_huge_values_saturate() {
        assert_eq!(value("250m"), 1);
        assert_eq!(milli("100u"), 1);
        assert_eq!(value("1n"), 1);
        assert_eq!(value("0.0000000000000001"), 1);
        assert_eq!(value("9Ei"), i64::MAX as u64);
        assert_eq!(milli("9E"), i64::MAX as u64);
        assert_eq!(value("1e99999999999"), i64::MAX as u64);
        assert_eq!(value("1e-99999999999"), 1);
        assert_eq!(value("0e99999999999"), 0);
    }

    #[test]
    fn a_fraction_of_a_binary_unit_is_exact() {
        let least = "0.000000000000000000867361737988403547205962240695953369140625Ei";
        for (text, bytes) in [("1.0009765625Gi", 1025 << 20), ("0.0009765625Ki", 1), (least, 1)] {
            let quantity = Quantity::parse(text).unwrap();
            assert_eq!(quantity.exact(Resource::Memory), Some(bytes), "{text}");
            assert_eq!(quantity.value(), bytes, "{text}");
        }
        assert_eq!(value("1.00000000001Gi"), (1 << 30) + 1);
    }

    #[test]
    fn each_suffix_has_its_power() {
        for (suffix, power) in ["", "k", "M", "G", "T", "P", "E"].into_iter().zip(0..) {
            assert_eq!(value(&format!("2{suffix}")), 2 * 1000_u64.pow(power), "{suffix}");
        }
        for (suffix, power) in ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].into_iter().zip(1..) {
            assert_eq!(value(&format!("2{suffix}")), 2 * 1024_u64.pow(power), "{suffix}");
        }
        assert_eq!(["3m", "3000u", "3000000n"].map(milli), [3; 3]);
    }

    #[test]
    fn json_numbers_are_quantities_too() {
        let read = |json: &str| serde_json::from_str::<Quantity>(json).map(Quantity::milli_value);
        for (json, milli) in [("2", 2000), ("0.25", 250), ("\"250m\"", 250)] {
            assert_eq!(read(json).unwrap(), milli);
        }
        for refused in ["-1", "true", "null", "[1]", "{}"] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn other_resources_need_no_quantity() {
        let read = serde_json::from_str::<Quantities>;
        let odd = r#"{"cpu": "1", "limits.memory": "2", "nvidia.com/gpu": "${GPUS}", "a": "-1", "hugepages-2Mi": {}}"#;
        let all = read(odd).unwrap().0;
        assert_eq!(all["cpu"].map(Quantity::value), Some(1));
        assert_eq!(all["limits.memory"].map(Quantity::value), Some(2));
        assert_eq!([all["nvidia.com/gpu"], all["a"], all["hugepages-2Mi"]], [None; 3]);
        for refused in [
            r#"{"cpu": "-1"}"#,
            r#"{"requests.memory": "x"}"#,
            r#"{"limits.cpu": {}}"#,
        ] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn an_exact_value_is_printed() {
        for (text, printed) in [("2", "2"), ("1Ki", "1024"), ("1.5", "1500m"), ("100u", "100000n")] {
            assert_eq!(Quantity::parse(text).unwrap().to_string(), printed);
        }
    }

    #[test]
    fn malformed_quantities_are_quoted() {
        for text in [
            "", "m", ".", "1.2.3", "1x", "1KI", "--1", "1e", "1e+", "0x10", "1 Gi", "NaN", "inf",
        ] {
            assert_eq!(
                Quantity::parse(text),
                Err(QuantityError(text.to_owned(), MALFORMED)),
                "{text}"
            );
        }
        assert_eq!(Quantity::parse("-1"), Err(QuantityError("-1".to_owned(), NEGATIVE)));
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_printed_alike(
            text in "\\PC*|[+-]?[0-9]{0,22}(\\.[0-9]{0,12})?(n|u|m|k|E|Ki|Ei|e-?[0-9]{1,3})?",
        ) {
            if let Ok(quantity) = Quantity::parse(&text) {
                prop_assert_eq!(Quantity::parse(&quantity.to_string()), Ok(quantity));
            }
        }

        #[test]
        fn whole_numbers_survive(number in 0_u64..=i64::MAX as u64) {
            prop_assert_eq!(value(&number.to_string()), number);
        }

        #[test]
        fn value_is_the_ceiling_of_milli_value(number in 0_u64..1_000_000_000_000) {
            let text = format!("{number}m");
            prop_assert_eq!(value(&text), number.div_ceil(1000));
            prop_assert_eq!(milli(&text), number);
        }
    }
}
