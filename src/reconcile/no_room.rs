//! A recommendation that the node has no room for, or that a quota does not allow. Pure.

use jiff::Timestamp;

use crate::model::PodAmounts;

/// The next step of a pod whose recommendation has no room.
pub(super) const ROOM_AWAITED: &str = "The recommendation is followed once there is room for it: vscaled checks every minute, and at once when \
                            pods come, go or request less, or a quota changes.";

/// A recommendation that the node has no room for, or that a quota does not allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoRoomFor {
    targets: PodAmounts,
    /// The refusal with its numbers.
    pub(crate) why: String,
    /// When the node or a quota refused a recommendation for the pod first, and all others since.
    pub(crate) since: Timestamp,
    /// The refusal is in the history.
    recorded: bool,
    /// A refusal since then is in the log: recommenders change what they recommend all the time.
    logged: bool,
}

impl NoRoomFor {
    /// The refusal of these targets; `known` is the one before.
    pub(crate) fn after(known: Option<Self>, targets: PodAmounts, why: String, now: Timestamp) -> Self {
        let since = known.as_ref().map_or(now, |known| known.since);
        let logged = known.as_ref().is_some_and(|known| known.logged);
        let recorded = known.is_some_and(|known| known.recorded && known.targets == targets);
        Self {
            targets,
            why,
            since,
            recorded,
            logged,
        }
    }

    /// The refusal for the history, once for each recommendation, and whether it is also for the log.
    pub(crate) fn take_news(&mut self) -> Option<(String, bool)> {
        let is_recorded = std::mem::replace(&mut self.recorded, true);
        let is_logged = std::mem::replace(&mut self.logged, true);
        (!is_recorded).then(|| (self.why.clone(), !is_logged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refused_recommendation_is_news_once() {
        let targets = |name: &str| {
            let list = format!(r#"[{{"name": "{name}", "requests": {{"cpu": "1"}}}}]"#);
            serde_json::from_str::<PodAmounts>(&list).unwrap()
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut known = None;
        for (second, name, why, is_news) in [
            (1, "app", "full", true),
            (2, "app", "fuller", false),
            (3, "other", "full", true),
        ] {
            let mut no_room = NoRoomFor::after(known, targets(name), why.to_owned(), at(second));
            assert_eq!(
                (no_room.why.as_str(), no_room.since),
                (why, at(1)),
                "since the first refusal"
            );
            let for_log = second == 1;
            assert_eq!(no_room.take_news(), is_news.then(|| (why.to_owned(), for_log)));
            assert_eq!(no_room.take_news(), None);
            known = Some(no_room);
        }
    }
}
