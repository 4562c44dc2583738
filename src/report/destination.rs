//! The destinations of reports, and sets of them.

/// A destination of reports. Each acknowledges reports by itself, and none waits for another. The order gives the bits on disk:
/// it never changes, and new destinations come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::IntoStaticStr)]
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
    pub const ALL: [Self; 3] = [Self::PodEvents, Self::VpaEvents, Self::Grpc];

    /// The name in metrics, problems and the status.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// How many reports the destination may hold unacknowledged. One Event can tell of many reports that it holds,
    /// so there it is more.
    pub const fn window(self) -> usize {
        match self {
            Self::Grpc => 64,
            Self::PodEvents | Self::VpaEvents => 512,
        }
    }

    /// The index in an array of one value for each destination.
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of destinations, as bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destinations(u8);

impl Destinations {
    pub const NONE: Self = Self(0);

    /// Whether the destination is in the set.
    pub const fn contains(self, destination: Destination) -> bool {
        self.0 & destination.bit() != 0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds a destination to the set.
    pub const fn insert(&mut self, destination: Destination) {
        self.0 |= destination.bit();
    }

    /// The destinations of this set that are not in the other.
    pub(super) const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    pub fn iter(self) -> impl Iterator<Item = Destination> {
        let all = Destination::ALL.into_iter();
        all.filter(move |destination| self.contains(*destination))
    }

    pub(super) fn bits(self) -> u32 {
        self.0.into()
    }

    /// The set with these bits on disk. Leaves out bits that mean no destination here.
    pub(super) fn from_bits(bits: u32) -> Self {
        let all = Destination::ALL.into_iter();
        all.filter(|destination| bits & u32::from(destination.bit()) != 0)
            .collect()
    }
}

impl FromIterator<Destination> for Destinations {
    fn from_iter<I: IntoIterator<Item = Destination>>(destinations: I) -> Self {
        let bits = destinations.into_iter().map(Destination::bit);
        Self(bits.fold(0, |set, bit| set | bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in_and_comes_back_from_disk() {
        let set: Destinations = [Destination::Grpc, Destination::PodEvents].into_iter().collect();
        assert_eq!(Destinations::from_bits(set.bits() | 0x40), set);
        let set = set.without(Destinations::from_iter([Destination::PodEvents]));
        assert_eq!(set.iter().collect::<Vec<_>>(), [Destination::Grpc]);
        assert!(!set.contains(Destination::PodEvents) && !set.is_empty());
    }

    #[test]
    fn every_destination_has_a_place_of_its_own() {
        let bits: Destinations = Destination::ALL.into_iter().collect();
        assert_eq!(bits.bits().count_ones(), 3);
        for (place, destination) in Destination::ALL.into_iter().enumerate() {
            assert_eq!(destination.index(), place);
        }
    }
}
