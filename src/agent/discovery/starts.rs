//! Tracks containers whose start the runtime has reported, and which its list still lacks.
//!
//! A runtime reports a start as soon as there is a process, and updates its own record a moment later: containerd's tasks
//! and its CRI are separate. A list from in between lacks the container, and no further event follows. In come starts, ends
//! and lists; out comes the time to read the next list. Pure: time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The first pause. Each further pause is twice as long.
const FIRST: Duration = Duration::from_millis(10);
/// The longest wait for a container: what is no container of a pod is never in a list.
const GIVE_UP: Duration = Duration::from_secs(5);

/// The reported starts that no list has confirmed.
#[derive(Debug, Default)]
pub(super) struct Starts {
    reported: BTreeMap<String, Instant>,
    /// The number of lists in a row that lacked a container.
    misses: u32,
}

impl Starts {
    pub(super) fn started(&mut self, id: &str, now: Instant) {
        self.reported.insert(id.to_owned(), now);
        self.misses = 0;
    }

    /// Ends the wait for a container that has ended, or for a sandbox: the list of pods has it.
    pub(super) fn confirm(&mut self, id: &str) {
        self.reported.remove(id);
    }

    /// Removes the listed containers; returns the pause before the next list, if one is needed.
    pub(super) fn next_list<'a>(&mut self, listed: impl Iterator<Item = &'a str>, now: Instant) -> Option<Duration> {
        for id in listed {
            self.reported.remove(id);
        }
        self.reported.retain(|_, at| now.duration_since(*at) < GIVE_UP);
        if self.reported.is_empty() {
            return None;
        }
        let wait = FIRST.saturating_mul(1 << self.misses.min(16));
        self.misses += 1;
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlisted_start_is_listed_again() {
        let (mut starts, told) = (Starts::default(), Instant::now());
        assert_eq!(starts.next_list(["old"].into_iter(), told), None);
        starts.started("new", told);
        let waits = |starts: &mut Starts, listed: &[&'static str]| {
            starts
                .next_list(listed.iter().copied(), told)
                .map(|wait| wait.as_millis())
        };
        assert_eq!(waits(&mut starts, &["old"]), Some(10));
        assert_eq!(waits(&mut starts, &["old"]), Some(20));
        starts.started("newer", told);
        assert_eq!(waits(&mut starts, &["old", "new"]), Some(10));
        starts.confirm("newer");
        assert_eq!(waits(&mut starts, &["old", "new"]), None);
        starts.started("other", told);
        assert_eq!(waits(&mut starts, &[]), Some(10));
        assert_eq!(starts.next_list([].into_iter(), told + GIVE_UP), None);
    }
}
