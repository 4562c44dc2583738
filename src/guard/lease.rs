//! A growth in an emergency, and how it ends. Pure.
//!
//! A lease raises one limit of one container above what is decided for it. It ends when the decision has caught up, or
//! when the container has been quiet for a while and what it used meanwhile fits below the limit without the lease; it
//! is lowered to what was used where that is much less. It never ends in a limit that would be grown again at once.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::Resource;

/// What a container used at most in a quiet time must leave this part of a limit free.
const FREE: u64 = 8;
/// A lease is lowered if that gives back this part of it.
const WORTH: u64 = 5;

/// One limit that was grown before a decision was there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// The container.
    pub container: String,
    /// Which of its limits.
    pub resource: Resource,
    /// The limit before, in bytes or thousandths of a cpu.
    pub from: u64,
    /// The limit that is held, in the same unit.
    pub to: u64,
    /// Since when.
    pub since: Timestamp,
    /// When it was grown or lowered last.
    pub renewed: Timestamp,
    /// Why, in a sentence.
    pub why: String,
    /// The API server denies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<Denied>,
}

/// The API server's denial of a limit that was grown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Denied {
    /// When the lease ends, whatever is in use then.
    pub ends: Timestamp,
    /// The API server's words.
    pub why: String,
}

/// What becomes of a lease after a quiet time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterQuiet {
    /// It ends: without it the limit does.
    End,
    /// It is lowered.
    Lower {
        /// To this.
        to: u64,
    },
    /// It stays.
    Keep,
}

impl Lease {
    /// When it ends at the earliest, if the container is quiet for that long.
    #[must_use]
    pub fn until(&self, quiet: SignedDuration) -> Timestamp {
        self.renewed.checked_add(quiet).unwrap_or(Timestamp::MAX)
    }

    /// What becomes of it: `base` is the limit without it, `peak` the most that was used in the quiet time.
    #[must_use]
    pub const fn after_quiet(&self, base: u64, peak: u64) -> AfterQuiet {
        let enough = peak.saturating_add(peak / (FREE - 1)).saturating_add(1);
        if enough <= base {
            AfterQuiet::End
        } else if enough.saturating_add(self.to / WORTH) <= self.to {
            AfterQuiet::Lower { to: enough }
        } else {
            AfterQuiet::Keep
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lease(to: u64) -> Lease {
        Lease {
            container: "app".to_owned(),
            resource: Resource::Memory,
            from: 128,
            to,
            since: Timestamp::UNIX_EPOCH,
            renewed: Timestamp::UNIX_EPOCH,
            why: String::new(),
            denied: None,
        }
    }

    #[test]
    fn a_burst_that_is_over_gives_everything_back() {
        assert_eq!(lease(2048).after_quiet(1280, 1000), AfterQuiet::End);
    }

    #[test]
    fn a_burst_that_stays_keeps_what_it_needs() {
        assert_eq!(lease(2048).after_quiet(128, 700), AfterQuiet::Lower { to: 801 });
        assert_eq!(lease(2048).after_quiet(128, 1600), AfterQuiet::Keep);
    }

    proptest! {
        #[test]
        fn what_was_used_always_fits_with_room_to_spare(
            to in 1_u64..(1 << 50), base in 0_u64..(1 << 50), peak in 0_u64..(1 << 50),
        ) {
            let after = match lease(to).after_quiet(base, peak) {
                AfterQuiet::End => base,
                AfterQuiet::Lower { to: lower } => {
                    prop_assert!(lower < to);
                    lower
                }
                AfterQuiet::Keep => return Ok(()),
            };
            prop_assert!(after > peak && after - peak >= peak / FREE);
        }
    }
}
