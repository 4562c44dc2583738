//! What an unmodified VPA recommender (autoscaler 1.0 to 1.7) makes of the Events at an API server: its watch
//! (`WatchEvictionEventsWithRetries` in input/cluster_feeder.go), its reading of one Event (`parseEvictionEvent` in
//! input/oom/observer.go), and the memory sample it makes of it (`RecordOOM` in model/container.go).

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use vscaled::model::quantity::Quantity;

/// The length of a memory window (`--memory-aggregation-interval`).
const WINDOW: SignedDuration = SignedDuration::from_hours(24);
/// `--oom-min-bump-up-bytes` and, in percent, `--oom-bump-up-ratio`.
const MIN_BUMP_UP: u64 = 100 << 20;
const BUMP_UP_PERCENT: u64 = 120;

/// One container, as the recommender knows it: namespace, pod, container.
pub(crate) type ContainerId = (String, String, String);

/// What the recommender takes from an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OomInfo {
    pub(crate) container: ContainerId,
    pub(crate) at: Timestamp,
    pub(crate) bytes: u64,
}

/// The peaks of a container's current window.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peaks {
    window_end: Option<Timestamp>,
    /// The highest measured usage.
    pub(crate) usage: u64,
    /// The highest sample made of a kill.
    pub(crate) oom: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Recommender {
    pub(crate) containers: BTreeMap<ContainerId, Peaks>,
    /// What it was told, also what it knew already.
    pub(crate) told: Vec<OomInfo>,
}

impl Recommender {
    /// With these containers in its state; others it does not know are lost on it.
    pub(crate) fn knowing(containers: &[ContainerId]) -> Self {
        Self {
            containers: containers.iter().map(|id| (id.clone(), Peaks::default())).collect(),
            told: Vec::new(),
        }
    }

    /// A watch begins without a resource version: what is there comes as ADDED.
    pub(crate) fn watch_begins(&mut self, there: &[Value]) {
        there.iter().for_each(|event| self.watched("ADDED", event));
    }

    /// One change that the watch brings; its field selector is `reason=Evicted`.
    pub(crate) fn watched(&mut self, change: &str, event: &Value) {
        if event["reason"] == "Evicted" && change == "ADDED" {
            for info in parse(event) {
                self.record(&info);
                self.told.push(info);
            }
        }
    }

    /// A usage sample of the metrics server.
    pub(crate) fn measured(&mut self, container: &ContainerId, at: Timestamp, bytes: u64) {
        if let Some(peaks) = self.containers.get_mut(container) {
            peaks.open_window(at);
            peaks.usage = peaks.usage.max(bytes);
        }
    }

    fn record(&mut self, info: &OomInfo) {
        let Some(peaks) = self.containers.get_mut(&info.container) else {
            return;
        };
        // Of all releases until 1.7.1; later ones compare with the last sample.
        if peaks.window_end.is_some_and(|end| info.at < end - WINDOW) {
            return;
        }
        peaks.open_window(info.at);
        let used = info.bytes.max(peaks.usage);
        peaks.oom = peaks.oom.max((used + MIN_BUMP_UP).max(used * BUMP_UP_PERCENT / 100));
    }
}

impl Peaks {
    fn open_window(&mut self, at: Timestamp) {
        if self.window_end.is_none_or(|end| at > end) {
            *self = Self {
                window_end: Some(at + WINDOW),
                ..Self::default()
            };
        }
    }
}

/// The kills in an Event; none if it is not in the shape of an eviction for want of memory.
pub(crate) fn parse(event: &Value) -> Vec<OomInfo> {
    if event["reason"] != "Evicted" || event["involvedObject"]["kind"] != "Pod" {
        return Vec::new();
    }
    let list = |name: &str| -> Vec<String> {
        let value = event["metadata"]["annotations"][name].as_str();
        value.map_or_else(Vec::new, |value| value.split(',').map(str::to_owned).collect())
    };
    let containers = list("offending_containers");
    let usages = list("offending_containers_usage");
    let resources = list("starved_resource");
    if containers.len() != usages.len() || containers.len() != resources.len() {
        return Vec::new();
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["involvedObject"];
    let at = text(&event["metadata"]["creationTimestamp"]).parse().unwrap();
    let entries = containers.into_iter().zip(usages).zip(resources);
    let memory = entries.filter(|(_, resource)| resource == "memory");
    memory
        .filter_map(|((container, usage), _)| {
            Some(OomInfo {
                container: (text(&object["namespace"]), text(&object["name"]), container),
                at,
                bytes: bytes_of(&usage)?,
            })
        })
        .collect()
}

fn bytes_of(quantity: &str) -> Option<u64> {
    Quantity::parse(quantity).ok().map(Quantity::value)
}
