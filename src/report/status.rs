//! The state of reporting: for metrics, for `doctor`, for the list of problems.

use jiff::Timestamp;

use super::destination::Destination;
use super::log::Totals;

/// The state of the log and of every destination at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub log: LogStatus,
    pub destinations: Vec<DestinationStatus>,
}

/// The state of the log of kills.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// Reports that some destination has not acknowledged.
    pub reports: usize,
    /// The bytes they take.
    pub bytes: u64,
    pub totals: Totals,
    /// What is wrong with it, for people.
    pub problem: Option<String>,
    pub(super) pending_for: [usize; Destination::ALL.len()],
    /// The number of the last report.
    pub(super) last_number: u64,
}

/// The state of one destination's delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationStatus {
    pub destination: Destination,
    /// Whether it can be reached.
    pub link: Link,
    /// Reports it has not acknowledged.
    pub pending: usize,
}

/// Whether a destination can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    Starting,
    Connected,
    Waiting {
        error: String,
        /// The time of the next attempt.
        until: Timestamp,
    },
}

impl LogStatus {
    /// Reports that a destination has not acknowledged.
    #[must_use]
    pub const fn pending_for(&self, destination: Destination) -> usize {
        self.pending_for[destination.index()]
    }
}

impl Status {
    /// What is wrong, one sentence each.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let cut_off = self.destinations.iter().filter_map(|one| match &one.link {
            Link::Waiting { error, until } => Some(format!(
                "{}: {error}; {} reports wait, the next attempt is at {until:.0}",
                one.destination.as_str(),
                one.pending
            )),
            Link::Starting | Link::Connected => None,
        });
        self.log.problem.clone().into_iter().chain(cut_off)
    }
}
