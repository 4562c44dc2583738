//! Reports → messages.

use jiff::Timestamp;

use super::words;
use crate::oom::{HitLimit, OomReport, OwnWrite, ReportedContainer, ReportedMemory, ReportedPod, Victim};
use crate::report::content::{Aggregate, Report};
use crate::report::proto;

impl From<&Report> for proto::Report {
    /// Without a sequence: that belongs to a stream.
    fn from(report: &Report) -> Self {
        let message = match report {
            Report::Kill(kill) => of_kill(kill),
            Report::Aggregate(folded) => of_aggregate(report, folded),
        };
        Self {
            id: report.id().into_owned(),
            ..message
        }
    }
}

fn of_kill(kill: &OomReport) -> proto::Report {
    proto::Report {
        sequence: 0,
        id: String::new(),
        node: kill.node.clone(),
        count: 1,
        time: Some(time(kill.time)),
        first_time: None,
        pod: kill.pod.as_ref().map(pod),
        container: kill.container.as_ref().map(container),
        cgroup: kill.cgroup.clone().unwrap_or_default(),
        level: words::level(kill.level).into(),
        limit: Some(limit(&kill.limit)),
        container_limit: kill.container_limit.as_ref().map(limit),
        limit_of: words::level(kill.limit_of()).into(),
        victim: kill.victim.as_ref().map(victim),
        group: kill.group.clone(),
        own_write: kill.own_write.as_ref().map(own_write),
        confidence: words::confidence(kill.confidence).into(),
        candidates: kill.candidates.iter().map(victim).collect(),
        more_candidates: kill.more_candidates,
        while_down: kill.while_down,
    }
}

fn of_aggregate(report: &Report, folded: &Aggregate) -> proto::Report {
    proto::Report {
        node: folded.node.clone(),
        count: folded.count,
        time: Some(time(folded.last)),
        first_time: Some(time(folded.first)),
        pod: folded.pod.as_ref().map(pod),
        container: folded.container.as_ref().map(container),
        level: words::level(folded.level).into(),
        limit: Some(limit(&folded.limit)),
        container_limit: folded.container_limit.as_ref().map(limit),
        limit_of: words::level(report.limit_of()).into(),
        ..proto::Report::default()
    }
}

fn time(time: Timestamp) -> prost_types::Timestamp {
    // jiff's nanoseconds have the sign of its seconds; the protocol's are never negative.
    let nanos = time.subsec_nanosecond();
    let (seconds, nanos) = if nanos < 0 {
        (time.as_second() - 1, nanos + 1_000_000_000)
    } else {
        (time.as_second(), nanos)
    };
    prost_types::Timestamp { seconds, nanos }
}

fn pod(pod: &ReportedPod) -> proto::Pod {
    proto::Pod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    }
}

fn container(container: &ReportedContainer) -> proto::Container {
    proto::Container {
        name: container.name.clone(),
        id: container.id.clone(),
    }
}

fn limit(limit: &HitLimit) -> proto::HitLimit {
    proto::HitLimit {
        cgroup: limit.cgroup.clone(),
        limit_bytes: limit.limit_bytes,
        usage_bytes: limit.usage_bytes,
        peak_bytes: limit.peak_bytes,
    }
}

fn victim(victim: &Victim) -> proto::Victim {
    proto::Victim {
        pid: victim.pid,
        comm: victim.comm.clone(),
        role: words::role(victim.role).into(),
        memory: victim.memory.as_ref().map(memory),
        oom_score_adj: victim.oom_score_adj,
        uid: victim.uid,
    }
}

const fn memory(memory: &ReportedMemory) -> proto::Memory {
    proto::Memory {
        total_vm_bytes: memory.total_vm_bytes,
        anon_rss_bytes: memory.anon_rss_bytes,
        file_rss_bytes: memory.file_rss_bytes,
        shmem_rss_bytes: memory.shmem_rss_bytes,
    }
}

fn own_write(write: &OwnWrite) -> proto::OwnWrite {
    proto::OwnWrite {
        time: Some(time(write.time)),
        what: write.what.clone(),
    }
}
