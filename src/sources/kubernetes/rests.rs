//! When a namespace is read again after a change. Pure.
//!
//! A tenant may have thousands of objects and change one of them all the time, and reading a namespace and deciding about it cost what it
//! has. So a namespace rests after a reading, in proportion to its objects. Those of others are read meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// How long a namespace rests for each object that was read: some ten times as long as it takes to read, to compare and to decide about it.
const FOR_EACH: Duration = Duration::from_micros(50);

/// The namespaces that rest: until when, and whether something has changed meanwhile.
#[derive(Debug, Default)]
pub(super) struct Rests(BTreeMap<String, (Instant, bool)>);

impl Rests {
    /// Those of the namespaces in which something has changed, now or while they rested, that rest no longer.
    pub(super) fn rested(&mut self, mut changed: BTreeSet<String>, now: Instant) -> BTreeSet<String> {
        self.0.retain(|namespace, (until, has_changed)| {
            *has_changed |= changed.contains(namespace);
            let rests = *until > now;
            if rests {
                changed.remove(namespace);
            } else if *has_changed {
                changed.insert(namespace.clone());
            }
            rests
        });
        changed
    }

    /// Notes that so many objects of a namespace were read.
    pub(super) fn rest(&mut self, namespace: &str, objects: usize, now: Instant) {
        let objects = u32::try_from(objects).unwrap_or(u32::MAX);
        self.0.insert(namespace.to_owned(), (now + FOR_EACH * objects, false));
    }

    /// Until when the namespace rests.
    pub(super) fn until(&self, namespace: &str) -> Option<Instant> {
        self.0.get(namespace).map(|(until, _)| *until)
    }

    /// When the first namespace is to be read that has changed while it rested.
    pub(super) fn next(&self) -> Option<Instant> {
        let changed = self.0.values().filter(|(_, has_changed)| *has_changed);
        changed.map(|(until, _)| *until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_namespace_rests_alone() {
        let (began, mut rests) = (Instant::now(), Rests::default());
        let mut rested = |namespaces: &[&str], millis: u64| {
            let now = began + Duration::from_millis(millis);
            let changed = namespaces.iter().map(|name| (*name).to_owned()).collect();
            let read: Vec<String> = rests.rested(changed, now).into_iter().collect();
            for name in &read {
                rests.rest(name, if name == "busy" { 4000 } else { 20 }, now);
            }
            let next = rests.next().map(|next| (next - began).as_millis());
            (read.join(" "), next)
        };
        let read = |names: &str, next| (names.to_owned(), next);
        assert_eq!(rested(&["busy", "quiet"], 0), read("busy quiet", None));
        assert_eq!(rested(&["busy"], 10), read("", Some(200)));
        assert_eq!(rested(&["busy", "quiet"], 20), read("quiet", Some(200)));
        assert_eq!(rested(&[], 199), read("", Some(200)));
        assert_eq!(rested(&[], 200), read("busy", None), "what changed while it rested");
        assert_eq!(rested(&[], 500), read("", None));
        assert_eq!(rests.until("busy"), None, "nothing is kept of a rest that is over");
    }
}
