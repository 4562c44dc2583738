//! A model of how an unmodified VPA recommender (autoscaler 1.0 to 1.7) handles Events: its watch
//! (`WatchEvictionEventsWithRetries` in input/cluster_feeder.go), its parser (`parseEvictionEvent` in
//! input/oom/observer.go), and the memory sample that follows (`RecordOOM` in model/container.go).

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use vscaled::model::quantity::Quantity;

/// The length of a memory window (`--memory-aggregation-interval`).
const WINDOW: SignedDuration = SignedDuration::from_hours(24);
/// `--oom-min-bump-up-bytes` and, in percent, `--oom-bump-up-ratio`.
const MIN_BUMP_UP: u64 = 100 << 20;
const BUMP_UP_PERCENT: u64 = 120;

/// Namespace, pod and container.
pub(crate) type ContainerId = (String, String, String);

/// The kill that the recommender reads from an Event.
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
    /// The highest sample from a kill.
    pub(crate) oom: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Recommender {
    pub(crate) containers: BTreeMap<ContainerId, Peaks>,
    /// All kills received, including known ones.
    pub(crate) told: Vec<OomInfo>,
}

impl Recommender {
    /// A recommender that knows these containers and ignores kills of others.
    pub(crate) fn knowing(containers: &[ContainerId]) -> Self {
        Self {
            containers: containers.iter().map(|id| (id.clone(), Peaks::default())).collect(),
            told: Vec::new(),
        }
    }

    /// Starts a watch without a resource version: existing Events arrive as ADDED.
    pub(crate) fn watch_begins(&mut self, there: &[Value]) {
        there.iter().for_each(|event| self.watched("ADDED", event));
    }

    /// Handles one watch event; the field selector is `reason=Evicted`.
    pub(crate) fn watched(&mut self, change: &str, event: &Value) {
        if event["reason"] == "Evicted" && change == "ADDED" {
            for info in parse(event) {
                self.record(&info);
                self.told.push(info);
            }
        }
    }

    /// Handles a usage sample of the metrics server.
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
        // As in all releases up to 1.7.1; later ones compare with the last sample.
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

/// The kills in an Event; empty unless the Event looks like an eviction because of memory.
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
