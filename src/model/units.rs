//! Typed amounts: thousandths of a cpu and bytes of memory.

use serde::{Deserialize, Serialize, Serializer};
use strum::{Display, IntoStaticStr};

use super::quantity::{Quantity, QuantityError};

/// The two resources that vscaled manages, named like the kernel's controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Display, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Resource {
    Cpu,
    Memory,
}

impl Resource {
    /// All resources, in list order.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Memory];

    /// The name in the Kubernetes API, and of the kernel's controller.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Prints an amount of the resource (thousandths of a cpu, bytes) in the canonical Kubernetes notation: with the largest suffix that
    /// keeps the value exact.
    pub fn quantity(self, amount: u64) -> String {
        let amount = amount.min(Bytes::MAX.0);
        let (scale, suffix) = self.unit(&[amount]);
        format!("{}{suffix}", amount / scale)
    }

    /// Prints amounts that are compared: in one unit, unless a number would have more than six digits.
    pub fn quantities<const N: usize>(self, amounts: [u64; N]) -> [String; N] {
        let (scale, suffix) = self.unit(&amounts);
        let is_short = amounts.iter().all(|amount| amount / scale < 1_000_000);
        amounts.map(|amount| match amount {
            1.. if is_short => format!("{}{suffix}", amount / scale),
            _ => self.quantity(amount),
        })
    }

    /// The largest unit of which all these amounts are multiples, and its suffix.
    fn unit(self, amounts: &[u64]) -> (u64, &'static str) {
        const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        match (self, amounts.iter().fold(0_u64, |all, amount| all | amount)) {
            (Self::Cpu, _) if amounts.iter().all(|amount| amount.is_multiple_of(1000)) => (1000, ""),
            (Self::Cpu, _) => (1, "m"),
            (Self::Memory, 0) => (1, ""),
            (Self::Memory, all) => {
                let steps = all.trailing_zeros() / 10;
                (1 << (10 * steps), SUFFIXES[steps as usize])
            }
        }
    }
}

/// Thousandths of a cpu. At most `i64::MAX`, like a Kubernetes quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Deserialize, derive_more::Display)]
#[display("{}", Resource::Cpu.quantity(*_0))]
#[serde(from = "Quantity")]
pub struct MilliCpu(u64);

/// Bytes of memory. At most `i64::MAX`, like a Kubernetes quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Deserialize, derive_more::Display)]
#[display("{}", Resource::Memory.quantity(*_0))]
#[serde(from = "Quantity")]
pub struct Bytes(u64);

macro_rules! amount {
    ($name:ident, $of_quantity:ident) => {
        impl $name {
            /// The largest amount. Arithmetic saturates here.
            pub const MAX: Self = Self(i64::MAX as u64);
            pub const ZERO: Self = Self(0);

            /// Saturates at [`Self::MAX`].
            pub const fn new(amount: u64) -> Self {
                if amount > Self::MAX.0 {
                    Self::MAX
                } else {
                    Self(amount)
                }
            }

            pub const fn get(self) -> u64 {
                self.0
            }

            /// Whether the amount is zero. Upstream treats such a request as unset.
            pub const fn is_zero(self) -> bool {
                self.0 == 0
            }

            /// Saturates at [`Self::MAX`].
            #[must_use]
            pub const fn saturating_add(self, other: Self) -> Self {
                Self::new(self.0.saturating_add(other.0))
            }

            /// Saturates at zero.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl From<Quantity> for $name {
            fn from(quantity: Quantity) -> Self {
                Self(quantity.$of_quantity())
            }
        }

        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
                amounts.fold(Self::ZERO, Self::saturating_add)
            }
        }

        impl std::str::FromStr for $name {
            type Err = QuantityError;

            /// Parses a Kubernetes quantity, and rounds up to this unit.
            ///
            /// Errors: [`QuantityError`] if the text is malformed or negative.
            fn from_str(text: &str) -> Result<Self, QuantityError> {
                Quantity::parse(text).map(Self::from)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

amount!(MilliCpu, milli_value);
amount!(Bytes, value);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_print_as_kubernetes_writes_them() {
        assert_eq!(MilliCpu::new(1500).to_string(), "1500m");
        assert_eq!(MilliCpu::new(2000).to_string(), "2");
        assert_eq!(Bytes::new(128 << 20).to_string(), "128Mi");
        assert_eq!(Bytes::new(1_610_612_736).to_string(), "1536Mi");
        assert_eq!(Bytes::new(1000).to_string(), "1000");
        assert_eq!(Bytes::ZERO.to_string(), "0");
    }

    #[test]
    fn amounts_that_are_compared_have_one_unit() {
        let (cpu, memory) = (Resource::Cpu, Resource::Memory);
        assert_eq!(cpu.quantities([1500, 2000, 0]), ["1500m", "2000m", "0"]);
        assert_eq!(cpu.quantities([1000, 2000]), ["1", "2"]);
        assert_eq!(memory.quantities([1536 << 20, 2 << 30]), ["1536Mi", "2048Mi"]);
        // A number of bytes that is long is not made longer.
        assert_eq!(memory.quantities([297_164_212, 8 << 30]), ["297164212", "8Gi"]);
        assert_eq!(memory.quantities([0, 4 << 30]), ["0", "4Gi"]);
        assert_eq!(memory.quantities([u64::MAX]), [Bytes::MAX.to_string()]);
    }

    #[test]
    fn sums_saturate() {
        assert_eq!([Bytes::MAX, Bytes::MAX].into_iter().sum::<Bytes>(), Bytes::MAX);
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(digits in 0_u64..=i64::MAX as u64, zeros in 0_u32..63) {
            let amount = digits >> zeros << zeros;
            prop_assert_eq!(Bytes::new(amount).to_string().parse(), Ok(Bytes::new(amount)));
            prop_assert_eq!(MilliCpu::new(amount).to_string().parse(), Ok(MilliCpu::new(amount)));
        }
    }
}
