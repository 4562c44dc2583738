//! The pods of the node as the agent describes them, and the rates between two answers. Pure.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use ratatui::style::Color;
use ratatui::text::Line as Text;
use serde::{Serialize, Serializer};

use crate::cli::amount::{list, short};
use crate::cli::output::optional;
use crate::cli::{change, time};
use crate::control::proto::{self, Change, Container, GetReply, Lease, OomKill, Pod, Requirements, Usage};
use crate::model::Resource;

/// The number of changes and kills that the screen keeps.
const NEWS: usize = 32;

/// The latest answer of the agent, and the changes and kills since.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) agent: proto::Agent,
    /// Each pod, and its containers after it.
    pub(super) lines: Vec<PodLine>,
    /// Changes and kills, oldest first.
    pub(super) news: VecDeque<Text<'static>>,
    /// The latest change of each pod, by UID.
    last: HashMap<String, LastChange>,
    /// The latest reading of each pod and container, by UID and container id.
    usage: HashMap<(String, Option<String>), Usage>,
}

/// The time of a change, and one line about it.
type LastChange = (Timestamp, String);

/// A pod as a whole, or one of its containers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodLine {
    #[serde(skip)]
    uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container: Option<String>,
    /// Kind and name.
    workload: String,
    pub(super) state: String,
    pub(super) detail: String,
    pub(super) cpu: Amounts,
    pub(super) memory: Amounts,
    /// The burst in percent of the cpu limit; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst_percent: Option<u32>,
    /// The throttled share of the enforcement periods since the answer before; `None` without periods.
    pub(super) throttled_percent: Option<u64>,
    #[serde(serialize_with = "last_change")]
    pub(super) last: Option<LastChange>,
}

/// Amounts of one resource, in thousandths of a cpu or in bytes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Amounts {
    pub(super) resource: Resource,
    /// The amounts that [`NAMES`] names.
    pub(super) values: [Option<u64>; 6],
    /// The end of the temporary limit, where the limit is one.
    pub(super) temporary_until: Option<String>,
}

/// The use; the request in the pod's spec; the limit that the kernel enforces; the request that the agent or an operator
/// decided; the bounds of the recommendation.
const NAMES: [&str; 6] = ["used", "request", "limit", "target", "lowerBound", "upperBound"];

impl Node {
    /// Replaces the pods by those of an answer. Rates are those since the answer before.
    pub(super) fn read(&mut self, reply: GetReply) {
        let before = std::mem::take(&mut self.usage);
        self.last.retain(|uid, _| reply.pods.iter().any(|pod| pod.uid == *uid));
        self.lines.clear();
        for pod in &reply.pods {
            for container in std::iter::once(None).chain(pod.containers.iter().map(Some)) {
                let key = (pod.uid.clone(), container.and_then(|container| container.id.clone()));
                let mut line = PodLine::new(pod, container, self.last.get(&pod.uid));
                if let Some(usage) = container.map_or(&pod.usage, |container| &container.usage) {
                    line.measure(usage, before.get(&key));
                    self.usage.insert(key, usage.clone());
                }
                self.lines.push(line);
            }
        }
        self.agent = reply.agent.unwrap_or_default();
    }

    /// Adds the latest changes and kills, in the order of their times.
    pub(super) fn add_latest(&mut self, mut changes: Vec<Change>, kills: Vec<OomKill>) {
        changes.extend(kills.into_iter().map(|kill| Change {
            at: kill.time.clone(),
            kill: Some(kill),
            ..Change::default()
        }));
        changes.sort_by_cached_key(|change| change.at.parse::<Timestamp>().ok());
        changes.iter().for_each(|change| self.add(change));
    }

    /// Adds a change or a kill to the news, and a change to its pod.
    pub(super) fn add(&mut self, change: &Change) {
        let colour = change.kill.as_ref().map_or(Color::Reset, |_| Color::Red);
        self.news
            .push_back(Text::styled(change::line(change).shown(false), colour));
        if self.news.len() > NEWS {
            self.news.pop_front();
        }
        if change.kill.is_none()
            && let Ok(at) = change.at.parse()
        {
            let last = (at, change::line_of_pod(change).shown(false));
            for line in self.lines.iter_mut().filter(|line| line.uid == change.uid) {
                line.last = Some(last.clone());
            }
            self.last.insert(change.uid.clone(), last);
        }
    }
}

impl PodLine {
    fn new(pod: &Pod, container: Option<&Container>, last: Option<&LastChange>) -> Self {
        let [cpu, memory] = Resource::ALL.map(|resource| Amounts::new(pod, container, resource));
        let workload = pod.workload.as_ref();
        let workload = workload.map(|of| format!("{}/{}", of.kind, of.name));
        Self {
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            container: container.map(|container| container.name.clone()),
            workload: workload.unwrap_or_default(),
            state: pod.state.clone(),
            detail: pod.detail.clone(),
            cpu,
            memory,
            burst_percent: None,
            throttled_percent: None,
            last: last.cloned(),
        }
    }

    /// Adds the use of a reading, and the rates since the reading before.
    fn measure(&mut self, now: &Usage, before: Option<&Usage>) {
        self.memory.values[0] = Some(now.memory_bytes);
        self.burst_percent = now.burst_percent.filter(|percent| *percent > 0);
        let Some(before) = before else { return };
        let micros = now.read_at_us.saturating_sub(before.read_at_us).max(1);
        let cpu = |(now, before): (u64, u64)| now.saturating_sub(before).saturating_mul(1000) / micros;
        self.cpu.values[0] = now.cpu_us.zip(before.cpu_us).map(cpu);
        let periods = now.periods.saturating_sub(before.periods);
        let throttled = now
            .throttled_periods
            .saturating_sub(before.throttled_periods)
            .min(periods);
        self.throttled_percent = throttled.saturating_mul(100).checked_div(periods);
    }

    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The burst, to stand behind the cpu limit.
    pub(super) fn burst(&self, resource: Resource) -> String {
        let burst = self.burst_percent.filter(|_| resource == Resource::Cpu);
        burst.map_or_else(String::new, |percent| format!(" (burst {percent}%)"))
    }

    pub(super) fn throttled(&self) -> String {
        optional(self.throttled_percent.map(|percent| format!("{percent}%")))
    }
}

impl Amounts {
    /// The amounts of a container. Those of a pod are the limit of its own cgroup, and sums over its containers.
    fn new(pod: &Pod, container: Option<&Container>, resource: Resource) -> Self {
        let amount = |amounts: Option<&proto::Amounts>| list(amounts).get(resource);
        let containers = container.map_or(pod.containers.as_slice(), std::slice::from_ref);
        let requests = |values: fn(&Container) -> Option<&Requirements>| {
            let requests = containers
                .iter()
                .filter_map(|one| amount(values(one)?.requests.as_ref()));
            requests.reduce(u64::saturating_add)
        };
        let usage = container.map_or(&pod.usage, |container| &container.usage);
        let bounds = container.and_then(|container| container.recommendation.as_ref());
        let name = container.map(|container| &container.name);
        let lent = |lease: &&Lease| Some(&lease.container) == name && lease.resource == resource.name();
        Self {
            resource,
            values: [
                None,
                requests(|container| container.spec.as_ref()),
                amount(usage.as_ref().and_then(|usage| usage.limits.as_ref())),
                requests(|container| container.wanted.as_ref()),
                amount(bounds.and_then(|bounds| bounds.lower_bound.as_ref())),
                amount(bounds.and_then(|bounds| bounds.upper_bound.as_ref())),
            ],
            temporary_until: pod.leases.iter().find(lent).map(|lease| time::second(&lease.until)),
        }
    }

    /// For people: use, request, limit, which is marked where it is a temporary one, target and bounds.
    pub(super) fn texts(&self) -> [String; 5] {
        let [used, request, limit, target, lower, upper] = self.values.map(|amount| short(self.resource, amount));
        let mark = self.temporary_until.as_ref().map_or("", |_| " (temporary)");
        let bounds = match self.values {
            [.., None, None] => lower,
            _ => format!("{lower}..{upper}"),
        };
        [used, request, limit + mark, target, bounds]
    }
}

impl Serialize for Amounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let quantities = self
            .values
            .map(|amount| amount.map(|amount| self.resource.quantity(amount)));
        let until = [("temporaryUntil", self.temporary_until.clone())];
        let fields = NAMES.into_iter().zip(quantities).chain(until);
        serializer.collect_map(fields.filter_map(|(name, text)| Some((name, text?))))
    }
}

fn last_change<S: Serializer>(last: &Option<LastChange>, serializer: S) -> Result<S::Ok, S::Error> {
    last.as_ref().map(|(_, text)| text).serialize(serializer)
}
