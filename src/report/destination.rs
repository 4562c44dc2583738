//! The destinations of reports, and sets of them.

use enumflags2::{BitFlags, bitflags};
use strum::VariantArray;

/// A destination of reports. Each acknowledges reports by itself, and none waits for another. The order gives the bits on disk:
/// it never changes, and new destinations come last.
#[bitflags]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
#[repr(u8)]
pub enum Destination {
    /// A Kubernetes Event on the pod.
    PodEvents,
    /// The Event that an unmodified VPA recommender reads.
    VpaEvents,
    /// A receiver of `vscaled.report.v1`.
    Grpc,
}

impl Destination {
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The name in metrics, problems and the status.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// How many reports the destination may hold unacknowledged. One Event can cover many reports,
    /// so there it is more.
    pub const fn window(self) -> usize {
        match self {
            Self::Grpc => 64,
            Self::PodEvents | Self::VpaEvents => 512,
        }
    }

    /// The index in an array of one value for each destination.
    pub(super) const fn index(self) -> usize {
        (self as u8).trailing_zeros() as usize
    }
}

/// A set of destinations.
pub type Destinations = BitFlags<Destination>;

/// The set with these bits on disk. Leaves out bits that mean no destination here.
pub(super) fn from_bits(bits: u32) -> Destinations {
    Destinations::from_bits_truncate(bits.to_le_bytes()[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_comes_back_from_disk() {
        let set: Destinations = [Destination::Grpc, Destination::PodEvents].into_iter().collect();
        assert_eq!(from_bits(u32::from(set.bits()) | 0x140), set);
        let set = set & !Destination::PodEvents;
        assert_eq!(set.iter().collect::<Vec<_>>(), [Destination::Grpc]);
        assert!(!set.contains(Destination::PodEvents) && !set.is_empty());
    }

    #[test]
    fn every_destination_has_a_place_of_its_own() {
        let bits: Destinations = Destination::ALL.iter().copied().collect();
        assert_eq!(bits.bits().count_ones(), 3);
        for (place, destination) in Destination::ALL.iter().enumerate() {
            assert_eq!(destination.index(), place);
        }
    }
}
