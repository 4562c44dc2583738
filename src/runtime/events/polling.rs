//! Pure: what must have happened between two lists of containers.

use std::collections::BTreeMap;

use super::super::proto;
use super::{Happened, RuntimeEvent};

/// The containers of one list, by id, and whether each runs.
pub(super) type Containers = BTreeMap<String, bool>;

pub(super) fn containers(listed: Vec<proto::Container>) -> Containers {
    let running = i32::from(proto::ContainerState::ContainerRunning);
    let containers = listed.into_iter();
    containers
        .map(|container| (container.id, container.state == running))
        .collect()
}

/// What happened between two lists. A container that came and went in between was never there.
pub(super) fn changes(before: &Containers, now: &Containers) -> impl Iterator<Item = RuntimeEvent> {
    let removed = before.keys().filter(|id| !now.contains_key(*id));
    let removed = removed.map(|id| RuntimeEvent::container(id, Happened::Removed));
    let changed = now.iter().filter_map(|(id, runs)| {
        let happened = match (before.get(id).is_some_and(|ran| *ran), *runs) {
            (false, true) => Happened::Started,
            (true, false) => Happened::Stopped,
            _ => return None,
        };
        Some(RuntimeEvent::container(id, happened))
    });
    removed.chain(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn containers(listed: &[(&str, bool)]) -> Containers {
        listed.iter().map(|(id, runs)| ((*id).to_owned(), *runs)).collect()
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
        let events: Vec<_> = changes(&before, &now).collect();
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
        assert_eq!(changes(&now, &now).count(), 0);
    }
}
