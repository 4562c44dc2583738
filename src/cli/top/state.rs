//! The pods of the node as the agent describes them, and the rates between two answers. Pure.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use ratatui::style::Color;
use ratatui::text::Line as Text;
use serde::{Serialize, Serializer};

use crate::cli::amount::list;
use crate::cli::output::{clean, optional, plain};
use crate::cli::{change, time};
use crate::control::proto::{self, Change, Container, GetReply, Lease, Pod, Requirements, Usage};
use crate::model::Resource;

/// The number of changes and kills that the screen keeps.
const NEWS: usize = 32;

/// The latest answer of the agent, and the changes and kills since.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) agent: proto::Agent,
    pub(super) pods: Vec<PodLines>,
    /// Changes and kills, oldest first.
    pub(super) news: VecDeque<Text<'static>>,
    /// The latest change of each pod, by UID.
    last: HashMap<String, LastChange>,
}

/// The time of a change, and one line about it.
type LastChange = (Timestamp, String);

/// A pod and its containers.
#[derive(Debug)]
pub(super) struct PodLines {
    uid: String,
    pub(super) pod: Line,
    pub(super) containers: Vec<Line>,
}

/// A pod as a whole, or one of its containers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    pub(super) namespace: String,
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container: Option<String>,
    pub(super) state: String,
    pub(super) detail: String,
    pub(super) cpu: Amounts,
    pub(super) memory: Amounts,
    /// The throttled share of the enforcement periods since the answer before; `None` without periods.
    pub(super) throttled_percent: Option<u64>,
    #[serde(serialize_with = "last_change")]
    pub(super) last: Option<LastChange>,
    #[serde(skip)]
    container_id: Option<String>,
    #[serde(skip)]
    usage: Option<Usage>,
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
        let before = std::mem::take(&mut self.pods);
        let before: HashMap<&str, &PodLines> = before.iter().map(|lines| (lines.uid.as_str(), lines)).collect();
        self.last.retain(|uid, _| reply.pods.iter().any(|pod| pod.uid == *uid));
        let lines = |pod: &Pod| PodLines::new(pod, before.get(pod.uid.as_str()).copied(), self.last.get(&pod.uid));
        self.pods = reply.pods.iter().map(lines).collect();
        self.agent = reply.agent.unwrap_or_default();
    }

    /// Adds a change or a kill to the news, and a change to its pod.
    pub(super) fn add(&mut self, change: &Change) {
        let colour = if change.kill.is_some() {
            Color::Red
        } else {
            Color::Reset
        };
        self.news.push_back(Text::styled(plain(&change::line(change)), colour));
        if change.kill.is_none()
            && let Ok(at) = change.at.parse()
        {
            let last = (at, plain(&change::line_of_pod(change)));
            for PodLines { pod, containers, .. } in self.pods.iter_mut().filter(|pod| pod.uid == change.uid) {
                let lines = std::iter::once(pod).chain(containers);
                lines.for_each(|line| line.last = Some(last.clone()));
            }
            self.last.insert(change.uid.clone(), last);
        }
        if self.news.len() > NEWS {
            self.news.pop_front();
        }
    }
}

impl PodLines {
    fn new(pod: &Pod, before: Option<&Self>, last: Option<&LastChange>) -> Self {
        let line = |container: &Container| {
            let amounts = Resource::ALL.map(|resource| Amounts::of_container(pod, container, resource));
            let same = |line: &&Line| line.container_id == container.id;
            let before = before.and_then(|before| before.containers.iter().find(same));
            Line {
                container: Some(clean(&container.name)),
                container_id: container.id.clone(),
                ..Line::new(pod, amounts, container.usage.as_ref(), before, last)
            }
        };
        let containers: Vec<Line> = pod.containers.iter().map(line).collect();
        let amounts = Resource::ALL.map(|resource| Amounts::of_pod(pod, &containers, resource));
        let before = before.map(|before| &before.pod);
        Self {
            uid: pod.uid.clone(),
            pod: Line::new(pod, amounts, pod.usage.as_ref(), before, last),
            containers,
        }
    }
}

impl Line {
    /// Rates are those since `before`, which is the same line in the answer before.
    fn new(
        pod: &Pod,
        [cpu, memory]: [Amounts; 2],
        usage: Option<&Usage>,
        before: Option<&Self>,
        last: Option<&LastChange>,
    ) -> Self {
        let mut line = Self {
            namespace: clean(&pod.namespace),
            name: clean(&pod.name),
            container: None,
            state: clean(&pod.state),
            detail: clean(&pod.detail),
            cpu,
            memory,
            throttled_percent: None,
            last: last.cloned(),
            container_id: None,
            usage: usage.cloned(),
        };
        line.memory.values[0] = usage.map(|usage| usage.memory_bytes);
        if let Some((now, before)) = usage.zip(before.and_then(|line| line.usage.as_ref())) {
            let micros = now.read_at_us.saturating_sub(before.read_at_us).max(1);
            let cpu = now
                .cpu_us
                .zip(before.cpu_us)
                .map(|(now, before)| now.saturating_sub(before));
            line.cpu.values[0] = cpu.map(|cpu| cpu.saturating_mul(1000) / micros);
            let periods = now.periods.saturating_sub(before.periods);
            let throttled = now.throttled_periods.saturating_sub(before.throttled_periods);
            line.throttled_percent = throttled.saturating_mul(100).checked_div(periods);
        }
        line
    }

    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    pub(super) const fn of(&self, resource: Resource) -> &Amounts {
        match resource {
            Resource::Cpu => &self.cpu,
            Resource::Memory => &self.memory,
        }
    }

    pub(super) fn throttled(&self) -> String {
        optional(self.throttled_percent.map(|percent| format!("{percent}%")))
    }
}

impl Amounts {
    fn of_container(pod: &Pod, container: &Container, resource: Resource) -> Self {
        let amount = |list_of: Option<&proto::Amounts>| list(list_of).get(resource);
        let request = |values: &Option<Requirements>| amount(values.as_ref()?.requests.as_ref());
        let recommended = container.recommendation.as_ref();
        let lent = |lease: &&Lease| lease.container == container.name && lease.resource == resource.name();
        Self {
            resource,
            values: [
                None,
                request(&container.spec),
                amount(container.usage.as_ref().and_then(|usage| usage.limits.as_ref())),
                request(&container.wanted),
                amount(recommended.and_then(|bounds| bounds.lower_bound.as_ref())),
                amount(recommended.and_then(|bounds| bounds.upper_bound.as_ref())),
            ],
            temporary_until: pod.leases.iter().find(lent).map(|lease| time::second(&lease.until)),
        }
    }

    /// The limit of the pod's own cgroup, and the sums of its containers' requests and targets.
    fn of_pod(pod: &Pod, containers: &[Line], resource: Resource) -> Self {
        let sum = |which: usize| {
            let amounts = containers.iter().filter_map(|line| line.of(resource).values[which]);
            amounts.reduce(u64::saturating_add)
        };
        let limit = list(pod.usage.as_ref().and_then(|usage| usage.limits.as_ref())).get(resource);
        Self {
            resource,
            values: [None, sum(1), limit, sum(3), None, None],
            temporary_until: None,
        }
    }

    /// All amounts for people, then the limit marked where it is a temporary one, and the bounds.
    pub(super) fn texts(&self) -> ([String; 6], String, String) {
        let texts = self.values.map(|amount| self.short(amount));
        let mark = self.temporary_until.as_ref().map_or("", |_| " (temporary)");
        let limit = format!("{}{mark}", texts[2]);
        let bounds = match self.values {
            [.., None, None] => "-".to_owned(),
            _ => format!("{}..{}", texts[4], texts[5]),
        };
        (texts, limit, bounds)
    }

    /// Three or four digits and a unit, or a dash.
    pub(super) fn short(&self, amount: Option<u64>) -> String {
        let Some(amount) = amount else { return "-".to_owned() };
        let (units, step): (&[&str], _) = match self.resource {
            Resource::Cpu if amount < 1000 => return format!("{amount}m"),
            Resource::Cpu => (&["m", "", "k"], 1000),
            Resource::Memory => (&["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1024),
        };
        let (mut whole, mut rest, mut unit) = (amount, 0, 0);
        while whole >= step && unit + 1 < units.len() {
            (whole, rest, unit) = (whole / step, whole % step, unit + 1);
        }
        match rest * 10 / step {
            tenth if tenth > 0 && whole < 100 => format!("{whole}.{tenth}{}", units[unit]),
            _ => format!("{whole}{}", units[unit]),
        }
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
