//! How reporting fares: for metrics, for `doctor`, for the list of problems.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::destination::Destination;
use super::spool::{Spool, Totals};

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// What is kept.
    pub spool: SpoolStatus,
    /// The selected destinations.
    pub destinations: Vec<DestinationStatus>,
}

/// What is kept until it is acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpoolStatus {
    /// Pending reports.
    pub reports: usize,
    /// The bytes they take.
    pub bytes: u64,
    /// Counts since the start.
    pub totals: Totals,
    /// What is wrong with it, for people.
    pub problem: Option<String>,
    owed: [usize; Destination::ALL.len()],
}

/// One destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationStatus {
    /// Which.
    pub destination: Destination,
    /// Whether it can be reached.
    pub link: Link,
    /// Reports it has not acknowledged.
    pub owed: usize,
    /// Those of them that are on the way.
    pub on_the_way: usize,
}

/// Whether a destination can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Link {
    /// Not known yet.
    Starting,
    /// It can.
    Connected {
        /// Since when.
        since: Timestamp,
    },
    /// It cannot.
    Waiting {
        /// Why, for people.
        error: String,
        /// When it is tried again.
        until: Timestamp,
    },
}

impl SpoolStatus {
    /// Of that spool.
    pub(super) fn of(spool: &Spool) -> Self {
        Self {
            reports: spool.reports(),
            bytes: spool.bytes(),
            totals: spool.totals(),
            problem: spool.problem(),
            owed: Destination::ALL.map(|one| spool.owed(one)),
        }
    }

    /// Reports that a destination has not acknowledged.
    #[must_use]
    pub const fn owed(&self, destination: Destination) -> usize {
        self.owed[destination.index()]
    }
}

impl Status {
    /// What is wrong, one sentence each.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let cut_off = self.destinations.iter().filter_map(|one| match &one.link {
            Link::Waiting { .. } => Some(one.to_string()),
            Link::Starting | Link::Connected { .. } => None,
        });
        self.spool.problem.clone().into_iter().chain(cut_off)
    }
}

impl fmt::Display for DestinationStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (destination, owed) = (self.destination.as_str(), self.owed);
        match &self.link {
            Link::Starting => write!(formatter, "{destination}: starting, {owed} reports wait"),
            Link::Connected { since } => write!(
                formatter,
                "{destination}: connected since {since:.0}, {owed} reports are not acknowledged"
            ),
            Link::Waiting { error, until } => write!(
                formatter,
                "{destination}: {error}; {owed} reports wait, the next attempt is at {until:.0}"
            ),
        }
    }
}
