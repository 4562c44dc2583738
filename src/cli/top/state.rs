//! What the agent said, and the rates that follow from two answers. Pure.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use crate::cli::amount::list;
use crate::cli::output::{Paint, clean};
use crate::cli::{change, oom, time};
use crate::control::proto::{self, Change, Container, GetReply, Lease, Pod, Requirements, Usage};
use crate::model::Resource;

/// So many changes and kills are shown.
const NEWS: usize = 32;

/// The pods of the node, as two answers and what was watched since tell.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) agent: proto::Agent,
    pub(super) pods: Vec<PodLines>,
    /// Changes and kills, oldest first.
    pub(super) news: VecDeque<News>,
    /// By UID of the pod and id of the container.
    readings: HashMap<(String, String), Usage>,
    /// By UID of the pod.
    last: HashMap<String, (Timestamp, String)>,
}

#[derive(Debug)]
pub(super) struct News {
    pub(super) text: String,
    pub(super) is_kill: bool,
}

/// A pod and its containers.
#[derive(Debug)]
pub(super) struct PodLines {
    uid: String,
    pub(super) pod: Line,
    pub(super) containers: Vec<Line>,
}

/// A pod as a whole, or one of its containers.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
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
    /// Part of the latest enforcement periods that was throttled; `None` without periods.
    pub(super) throttled_percent: Option<u64>,
    /// When the pod was changed last, and how.
    #[serde(serialize_with = "last_change")]
    pub(super) last: Option<(Timestamp, String)>,
}

/// Amounts of one resource, in thousandths of a cpu or in bytes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Amounts {
    pub(super) resource: Resource,
    pub(super) used: Option<u64>,
    /// In the pod's spec.
    pub(super) request: Option<u64>,
    /// What the kernel enforces.
    pub(super) limit: Option<u64>,
    /// The request that was decided, or set by hand.
    pub(super) target: Option<u64>,
    pub(super) lower_bound: Option<u64>,
    pub(super) upper_bound: Option<u64>,
    /// Until when the limit is a temporary one.
    pub(super) temporary_until: Option<String>,
}

impl Node {
    /// Takes in an answer. Rates are those since the answer before.
    pub(super) fn read(&mut self, reply: GetReply) {
        let before = std::mem::take(&mut self.readings);
        self.last.retain(|uid, _| reply.pods.iter().any(|pod| pod.uid == *uid));
        self.pods = reply.pods.iter().map(|pod| self.lines(pod, &before)).collect();
        self.agent = reply.agent.unwrap_or_default();
    }

    /// Takes in a change or a kill.
    pub(super) fn add(&mut self, change: &Change) {
        let (text, is_kill) = match &change.kill {
            Some(kill) => (oom::line(kill, Paint::PLAIN), true),
            None => (change::line(change, Paint::PLAIN), false),
        };
        if !is_kill && let Ok(at) = change.at.parse() {
            let last = (at, change::line_of_pod(change, Paint::PLAIN));
            for line in self
                .pods
                .iter_mut()
                .filter(|lines| lines.uid == change.uid)
                .flat_map(PodLines::all_mut)
            {
                line.last = Some(last.clone());
            }
            self.last.insert(change.uid.clone(), last);
        }
        self.news.push_back(News { text, is_kill });
        if self.news.len() > NEWS {
            self.news.pop_front();
        }
    }

    fn lines(&mut self, pod: &Pod, before: &HashMap<(String, String), Usage>) -> PodLines {
        let containers: Vec<Line> = pod
            .containers
            .iter()
            .map(|one| self.container(pod, one, before))
            .collect();
        let usage = pod.usage.as_ref();
        let [cpu, memory] = Resource::ALL.map(|resource| {
            let sum = |of: fn(&Amounts) -> Option<u64>| {
                let amounts = containers.iter().map(|line| of(line.of(resource)));
                amounts.flatten().reduce(u64::saturating_add)
            };
            Amounts {
                request: sum(|amounts| amounts.request),
                target: sum(|amounts| amounts.target),
                limit: usage.and_then(|usage| amount(usage.limits.as_ref(), resource)),
                ..Amounts::none(resource)
            }
        });
        let mut line = Line {
            container: None,
            cpu,
            memory,
            ..self.line(pod)
        };
        self.rates(&mut line, (&pod.uid, ""), usage, before);
        PodLines {
            uid: pod.uid.clone(),
            pod: line,
            containers,
        }
    }

    fn container(&mut self, pod: &Pod, container: &Container, before: &HashMap<(String, String), Usage>) -> Line {
        let [cpu, memory] = Resource::ALL.map(|resource| amounts(pod, container, resource));
        let mut line = Line {
            container: Some(clean(&container.name)),
            cpu,
            memory,
            ..self.line(pod)
        };
        let id = container.id.as_deref().unwrap_or_default();
        self.rates(&mut line, (&pod.uid, id), container.usage.as_ref(), before);
        line
    }

    fn line(&self, pod: &Pod) -> Line {
        Line {
            namespace: clean(&pod.namespace),
            name: clean(&pod.name),
            container: None,
            state: clean(&pod.state),
            detail: clean(&pod.detail),
            cpu: Amounts::none(Resource::Cpu),
            memory: Amounts::none(Resource::Memory),
            throttled_percent: None,
            last: self.last.get(&pod.uid).cloned(),
        }
    }

    /// What is used, and throttled, since the reading before; keeps this one for the next.
    fn rates(
        &mut self,
        line: &mut Line,
        (uid, id): (&str, &str),
        usage: Option<&Usage>,
        before: &HashMap<(String, String), Usage>,
    ) {
        let Some(usage) = usage else { return };
        let key = (uid.to_owned(), id.to_owned());
        line.memory.used = Some(usage.memory_bytes);
        if let Some(before) = before.get(&key) {
            let since = usage.read_at_us.saturating_sub(before.read_at_us).max(1);
            let time = usage
                .cpu_us
                .zip(before.cpu_us)
                .map(|(now, then)| now.saturating_sub(then));
            line.cpu.used = time.map(|time| time.saturating_mul(1000) / since);
            let periods = usage.periods.saturating_sub(before.periods);
            let throttled = usage.throttled_periods.saturating_sub(before.throttled_periods);
            line.throttled_percent = throttled.saturating_mul(100).checked_div(periods);
        }
        self.readings.insert(key, usage.clone());
    }
}

fn amounts(pod: &Pod, container: &Container, resource: Resource) -> Amounts {
    let requests = |values: &Option<Requirements>| amount(values.as_ref()?.requests.as_ref(), resource);
    let recommended = container.recommendation.as_ref();
    let lent = |lease: &&Lease| lease.container == container.name && lease.resource == resource.name();
    Amounts {
        request: requests(&container.spec),
        limit: (container.usage.as_ref()).and_then(|usage| amount(usage.limits.as_ref(), resource)),
        target: requests(&container.wanted),
        lower_bound: amount(recommended.and_then(|said| said.lower_bound.as_ref()), resource),
        upper_bound: amount(recommended.and_then(|said| said.upper_bound.as_ref()), resource),
        temporary_until: pod.leases.iter().find(lent).map(|lease| time::second(&lease.until)),
        ..Amounts::none(resource)
    }
}

fn amount(amounts: Option<&proto::Amounts>, resource: Resource) -> Option<u64> {
    list(amounts).get(resource)
}

impl PodLines {
    fn all_mut(&mut self) -> impl Iterator<Item = &mut Line> {
        std::iter::once(&mut self.pod).chain(&mut self.containers)
    }
}

impl Line {
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
        self.throttled_percent
            .map_or_else(|| "-".to_owned(), |part| format!("{part}%"))
    }
}

impl Amounts {
    const fn none(resource: Resource) -> Self {
        Self {
            resource,
            used: None,
            request: None,
            limit: None,
            target: None,
            lower_bound: None,
            upper_bound: None,
            temporary_until: None,
        }
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
        let tenth = rest * 10 / step;
        let suffix = units[unit];
        if tenth == 0 || whole >= 100 {
            format!("{whole}{suffix}")
        } else {
            format!("{whole}.{tenth}{suffix}")
        }
    }

    /// The limit, and whether it is a temporary one.
    pub(super) fn limit(&self) -> String {
        let mark = if self.temporary_until.is_some() {
            " (temporary)"
        } else {
            ""
        };
        self.short(self.limit) + mark
    }

    pub(super) fn bounds(&self) -> String {
        match (self.lower_bound, self.upper_bound) {
            (None, None) => "-".to_owned(),
            (lower, upper) => format!("{}..{}", self.short(lower), self.short(upper)),
        }
    }
}

impl Serialize for Amounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let amounts = [
            ("used", self.used),
            ("request", self.request),
            ("limit", self.limit),
            ("target", self.target),
            ("lowerBound", self.lower_bound),
            ("upperBound", self.upper_bound),
        ];
        let mut map = serializer.serialize_map(None)?;
        for (name, amount) in amounts {
            if let Some(amount) = amount {
                map.serialize_entry(name, &self.resource.quantity(amount))?;
            }
        }
        if let Some(until) = &self.temporary_until {
            map.serialize_entry("temporaryUntil", until)?;
        }
        map.end()
    }
}

fn last_change<S: Serializer>(last: &Option<(Timestamp, String)>, serializer: S) -> Result<S::Ok, S::Error> {
    last.as_ref().map(|(_, text)| text).serialize(serializer)
}
