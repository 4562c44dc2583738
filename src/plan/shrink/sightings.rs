//! How much a container was seen to hold lately: the evidence for a limit below what it once used.

use std::time::{Duration, Instant};

use crate::model::Bytes;

/// The most that a cgroup was seen to hold, over a time in which it would have fitted under the wanted limit.
///
/// It is looked at during a try only; the time between two tries counts as well, because what was not seen then did not
/// last. Every try adds to it, so that a limit refused for want of evidence is accepted in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sightings {
    calm: Option<Calm>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Calm {
    since: Instant,
    most: Bytes,
}

impl Sightings {
    /// Notes how much is held now. What does not fit under `limit` ends what was known: it is looked at anew.
    pub fn note(&mut self, now: Instant, held: Bytes, limit: Bytes) {
        if held > limit {
            self.calm = None;
            return;
        }
        let known = self.calm.filter(|calm| calm.most <= limit);
        self.calm = Some(known.map_or(Calm { since: now, most: held }, |calm| Calm {
            most: held.max(calm.most),
            ..calm
        }));
    }

    /// The most that was seen.
    pub fn most(&self) -> Option<Bytes> {
        self.calm.map(|calm| calm.most)
    }

    /// The time between the first use seen and now.
    pub fn span(&self, now: Instant) -> Duration {
        self.calm
            .map_or(Duration::ZERO, |calm| now.saturating_duration_since(calm.since))
    }
}
