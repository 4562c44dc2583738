//! The destinations of reports, and sets of them.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

use enumflags2::{BitFlags, bitflags};
use strum::VariantArray;

use super::content::Report;
use crate::share::FairShare;

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

/// The reports that wait for their Events, up to a number of which each namespace has a fair share: one whose Events the API
/// server refuses for now leaves room for the reports of others.
#[derive(Debug)]
pub(super) struct SharedWindow {
    /// The namespaces of the reports in it, by number.
    pub(super) held: BTreeMap<u64, String>,
    shares: FairShare<String>,
    /// The namespaces that left out a report since the last release.
    full: BTreeSet<String>,
}

impl SharedWindow {
    /// Room for so many reports, a quarter of it divided in advance.
    pub(super) const fn new(most: usize) -> Self {
        Self {
            held: BTreeMap::new(),
            shares: FairShare::new(most as u64, most as u64 / 4),
            full: BTreeSet::new(),
        }
    }

    /// Takes a report in, unless it is in, or its namespace has its share.
    pub(super) fn take_in(&mut self, number: u64, report: &Report) -> bool {
        let namespace = report.namespace();
        if self.held.contains_key(&number) || self.full.contains(namespace) {
            return false;
        }
        let namespace = namespace.to_owned();
        let has_room = self.shares.take(&namespace, 1, 1).is_ok();
        if has_room {
            self.held.insert(number, namespace);
        } else {
            self.full.insert(namespace);
        }
        has_room
    }

    /// Releases these reports. Returns whether there may be room now for one that was left out.
    pub(super) fn release(&mut self, numbers: &[u64]) -> bool {
        for number in numbers {
            if let Some(namespace) = self.held.remove(number) {
                self.shares.give_back(&namespace, 1);
            }
        }
        self.shares.end_period();
        !take(&mut self.full).is_empty()
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
    use crate::report::testing::kill_of;

    #[test]
    fn a_refused_namespace_leaves_others_room() {
        let mut window = SharedWindow::new(16);
        let takes_in = |window: &mut SharedWindow, namespace: &str, number: u64| {
            let mut kill = kill_of("web", number);
            namespace.clone_into(&mut kill.facts.pod.as_mut().unwrap().namespace);
            window.take_in(number, &kill.into())
        };
        let refused = (0..99).filter(|number| takes_in(&mut window, "refused", *number));
        assert_eq!(refused.count(), 14);
        assert!(takes_in(&mut window, "shop", 100));
        assert!(!takes_in(&mut window, "shop", 100), "it is in");
        assert!(window.release(&[100]), "there may be room for those left out");
        assert!(!takes_in(&mut window, "refused", 99), "others keep their part");
        window.release(&(0..14).collect::<Vec<u64>>());
        assert!(takes_in(&mut window, "refused", 99));
    }

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

    #[test]
    fn each_destination_has_its_name_and_room() {
        let known = Destination::ALL.iter().map(|one| (one.as_str(), one.window()));
        assert_eq!(
            known.collect::<Vec<_>>(),
            [("pod-events", 512), ("vpa-events", 512), ("grpc", 64)]
        );
    }
}
