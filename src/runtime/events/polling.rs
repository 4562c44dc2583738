//! Pure: what must have happened between two lists of containers.

use std::collections::BTreeMap;

use super::super::proto;
use super::{Happened, RuntimeEvent};

/// The containers of one list, and whether each runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Containers(BTreeMap<String, bool>);

impl Containers {
    pub(super) fn of(listed: &[proto::Container]) -> Self {
        let running = i32::from(proto::ContainerState::ContainerRunning);
        Self(
            listed
                .iter()
                .map(|container| (container.id.clone(), container.state == running))
                .collect(),
        )
    }

    /// What happened since an earlier list. A container that came and went in between was never there.
    pub(super) fn events_since(&self, before: &Self) -> impl Iterator<Item = RuntimeEvent> {
        let removed = before
            .0
            .keys()
            .filter(|id| !self.0.contains_key(*id))
            .map(|id| RuntimeEvent::container(id, Happened::Removed));
        let changed = self.0.iter().filter_map(|(id, runs)| {
            let ran = before.0.get(id).copied().unwrap_or(false);
            match (ran, *runs) {
                (false, true) => Some(RuntimeEvent::container(id, Happened::Started)),
                (true, false) => Some(RuntimeEvent::container(id, Happened::Stopped)),
                _ => None,
            }
        });
        removed.chain(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn containers(listed: &[(&str, bool)]) -> Containers {
        Containers(listed.iter().map(|(id, runs)| ((*id).to_owned(), *runs)).collect())
    }

    #[test]
    fn differences_are_told_once_each() {
        let before = containers(&[("gone", true), ("stays", true), ("stops", true), ("starts", false)]);
        let now = containers(&[
            ("stays", true),
            ("stops", false),
            ("starts", true),
            ("new", true),
            ("made", false),
        ]);
        let events: Vec<_> = now.events_since(&before).collect();
        assert_eq!(
            events,
            [
                RuntimeEvent::container("gone", Happened::Removed),
                RuntimeEvent::container("new", Happened::Started),
                RuntimeEvent::container("starts", Happened::Started),
                RuntimeEvent::container("stops", Happened::Stopped),
            ]
        );
    }

    #[test]
    fn the_same_list_twice_is_silence() {
        let now = containers(&[("a", true), ("b", false)]);
        assert_eq!(now.events_since(&now).count(), 0);
    }
}
