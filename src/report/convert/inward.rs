//! Messages → reports, for receivers written here.

use jiff::Timestamp;

use super::words;
use crate::oom::{HitLimit, OomReport, OwnWrite, ReportedContainer, ReportedMemory, ReportedPod, Victim};
use crate::report::content::{Aggregate, Report};
use crate::report::proto;

/// A message that is no report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// A field that every report has is missing, or holds what cannot be.
    #[error("the field {0} of a report is missing or impossible")]
    Field(&'static str),
}

impl TryFrom<proto::Report> for Report {
    type Error = BadMessage;

    fn try_from(message: proto::Report) -> Result<Self, BadMessage> {
        if message.id.is_empty() {
            return Err(BadMessage::Field("id"));
        }
        match message.first_time {
            Some(first) => folded(first, message).map(|folded| Self::Aggregate(Box::new(folded))),
            None if message.count == 1 => kill(message).map(|kill| Self::Kill(Box::new(kill))),
            None => Err(BadMessage::Field("count")),
        }
    }
}

fn kill(message: proto::Report) -> Result<OomReport, BadMessage> {
    Ok(OomReport {
        id: message.id,
        node: message.node,
        time: time(message.time, "time")?,
        pod: message.pod.map(pod),
        container: message.container.map(container),
        cgroup: Some(message.cgroup).filter(|cgroup| !cgroup.is_empty()),
        level: words::level_of(message.level),
        limit: message.limit.map(limit).unwrap_or_default(),
        container_limit: message.container_limit.map(limit),
        victim: message.victim.map(victim),
        group: message.group,
        own_write: message.own_write.map(own_write).transpose()?,
        confidence: words::confidence_of(message.confidence).ok_or(BadMessage::Field("confidence"))?,
        candidates: message.candidates.into_iter().map(victim).collect(),
        more_candidates: message.more_candidates,
        while_down: message.while_down,
    })
}

fn folded(first: prost_types::Timestamp, message: proto::Report) -> Result<Aggregate, BadMessage> {
    let suffix = format!("+{}", message.count);
    let first_id = message.id.strip_suffix(&suffix).ok_or(BadMessage::Field("id"))?;
    Ok(Aggregate {
        first_id: first_id.to_owned(),
        node: message.node,
        first: time(Some(first), "first_time")?,
        last: time(message.time, "time")?,
        count: message.count,
        pod: message.pod.map(pod),
        container: message.container.map(container),
        level: words::level_of(message.level),
        limit: message.limit.map(limit).unwrap_or_default(),
        container_limit: message.container_limit.map(limit),
    })
}

fn time(time: Option<prost_types::Timestamp>, field: &'static str) -> Result<Timestamp, BadMessage> {
    time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok())
        .ok_or(BadMessage::Field(field))
}

fn pod(pod: proto::Pod) -> ReportedPod {
    ReportedPod {
        namespace: pod.namespace,
        name: pod.name,
        uid: pod.uid,
    }
}

fn container(container: proto::Container) -> ReportedContainer {
    ReportedContainer {
        name: container.name,
        id: container.id,
    }
}

fn limit(limit: proto::HitLimit) -> HitLimit {
    HitLimit {
        cgroup: limit.cgroup,
        limit_bytes: limit.limit_bytes,
        usage_bytes: limit.usage_bytes,
        peak_bytes: limit.peak_bytes,
    }
}

fn victim(victim: proto::Victim) -> Victim {
    Victim {
        role: words::role_of(victim.role),
        pid: victim.pid,
        comm: victim.comm,
        memory: victim.memory.map(memory),
        oom_score_adj: victim.oom_score_adj,
        uid: victim.uid,
    }
}

const fn memory(memory: proto::Memory) -> ReportedMemory {
    ReportedMemory {
        total_vm_bytes: memory.total_vm_bytes,
        anon_rss_bytes: memory.anon_rss_bytes,
        file_rss_bytes: memory.file_rss_bytes,
        shmem_rss_bytes: memory.shmem_rss_bytes,
    }
}

fn own_write(write: proto::OwnWrite) -> Result<OwnWrite, BadMessage> {
    Ok(OwnWrite {
        time: time(write.time, "own_write.time")?,
        what: write.what,
    })
}
