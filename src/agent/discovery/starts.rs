//! Containers that were told to have started, and are not in the runtime's list yet.
//!
//! A runtime tells of a start as soon as there is a process, and marks its own record a moment later: containerd's tasks
//! and its CRI are two things. A list asked for in between lacks the container, and nobody tells of it again. In come
//! starts, ends and lists; out comes when to ask for another list. Pure: time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// How soon to ask again at first; each further time after twice as long.
const FIRST: Duration = Duration::from_millis(10);
/// How long to ask for: sandboxes have starts, too, and are never in the list.
const GIVE_UP: Duration = Duration::from_secs(5);

/// The starts that no list has confirmed.
#[derive(Debug, Default)]
pub(super) struct Starts {
    told: BTreeMap<String, Instant>,
    /// How often in a row a list lacked one.
    asked: u32,
}

impl Starts {
    /// Somebody told of a start.
    pub(super) fn started(&mut self, id: &str, now: Instant) {
        self.told.insert(id.to_owned(), now);
        self.asked = 0;
    }

    /// Somebody told of an end.
    pub(super) fn ended(&mut self, id: &str) {
        self.told.remove(id);
    }

    /// Compares with a list; returns how long to wait before the next one, if there has to be one.
    pub(super) fn next_list<'a>(&mut self, listed: impl Iterator<Item = &'a str>, now: Instant) -> Option<Duration> {
        for id in listed {
            self.told.remove(id);
        }
        self.told.retain(|_, told| now.duration_since(*told) < GIVE_UP);
        if self.told.is_empty() {
            self.asked = 0;
            return None;
        }
        let wait = FIRST.saturating_mul(1 << self.asked.min(16));
        self.asked += 1;
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_no_list_shows_is_asked_about_again_and_not_for_ever() {
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
        starts.ended("newer");
        assert_eq!(waits(&mut starts, &["old", "new"]), None);
        starts.started("sandbox", told);
        assert_eq!(waits(&mut starts, &[]), Some(10));
        assert_eq!(starts.next_list([].into_iter(), told + GIVE_UP), None);
    }
}
