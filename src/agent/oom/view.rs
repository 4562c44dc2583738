//! A report in the words of the control protocol. Pure.

use crate::control::proto;
use crate::oom::{OomReport, Victim};

pub(in crate::agent) fn kill(report: &OomReport) -> proto::OomKill {
    let facts = &report.facts;
    proto::OomKill {
        id: report.id.clone(),
        node: facts.node.clone(),
        time: report.time.to_string(),
        pod: facts.pod.clone(),
        container: facts.container.clone(),
        cgroup: report.cgroup.clone(),
        level: facts.level.to_string(),
        limit: Some(facts.limit.clone()),
        limit_of: facts.limit_of().to_string(),
        container_limit: facts.container_limit.clone(),
        victim: report.victim.as_ref().map(victim),
        group: report.group.clone(),
        own_write: report.own_write.as_ref().map(|write| proto::OomOwnWrite {
            time: write.time.to_string(),
            what: write.what.clone(),
        }),
        evidence: report.evidence.clone(),
        confidence: report.confidence.to_string(),
        candidates: report.candidates.iter().map(victim).collect(),
        more_candidates: report.more_candidates,
        while_down: report.while_down,
    }
}

/// Whether a kill is of the pod a caller means: `namespace/name`, a UID, or the beginning of a container's id. Empty means
/// every kill. Pods that are gone have no other place where they could be found.
pub(in crate::agent) fn is_of(report: &OomReport, text: &str) -> bool {
    let (pod, container) = (report.facts.pod.as_ref(), report.facts.container.as_ref());
    text.is_empty()
        || pod.is_some_and(|pod| pod.uid == text || text.split_once('/') == Some((&pod.namespace, &pod.name)))
        || container.is_some_and(|container| container.id.starts_with(text))
}

fn victim(victim: &Victim) -> proto::OomVictim {
    proto::OomVictim {
        pid: victim.pid,
        comm: victim.comm.clone(),
        role: victim.role.to_string(),
        memory: victim.memory,
        oom_score_adj: victim.oom_score_adj,
        uid: victim.uid,
    }
}
