//! The messages of Events, for people. Pure.

use crate::model::Bytes;
use crate::oom::{HitLimit, KillFacts, Level, OomReport, Role};
use crate::report::content::{Aggregate, Report};

/// Describes a report in a sentence or two.
pub(super) fn message(report: &Report) -> String {
    let cause = cause(report.facts());
    match report {
        Report::Kill(kill) => of_kill(kill, &cause),
        Report::Aggregate(sum) => {
            let Aggregate { count, first, last, .. } = &**sum;
            format!("The kernel killed {count} processes from {first:.0} to {last:.0}: {cause}")
        }
    }
}

fn of_kill(kill: &OomReport, cause: &str) -> String {
    let mut text = match &kill.victim {
        Some(victim) => {
            let role = match victim.role() {
                Role::Main => ", the container's main process",
                Role::Child => ", a child process; the container runs on",
                Role::Unspecified => "",
            };
            format!("The kernel killed \"{}\" (pid {}){role}", victim.comm, victim.pid)
        }
        None => "The kernel killed a process".to_owned(),
    };
    text.push_str(&format!(": {cause}"));
    if let Some(memory) = kill.victim.as_ref().and_then(|victim| victim.memory) {
        let [anon, file, shmem] =
            [memory.anon_rss_bytes, memory.file_rss_bytes, memory.shmem_rss_bytes].map(Bytes::new);
        text.push_str(&format!(
            ". Its memory: {anon} anonymous, {file} of files, {shmem} shared"
        ));
    }
    if let Some(write) = &kill.own_write {
        text.push_str(&format!(". vscaled had just lowered that limit: {}", write.what));
    }
    if let Some(evidence) = &kill.evidence {
        let (time, path) = (&evidence.time, evidence.path.as_deref());
        text.push_str(&match evidence.unfinished {
            Some(true) => format!(". A hook for evidence started at {time} and had not ended"),
            _ => format!(". Evidence from {time}: {}", path.unwrap_or("the hook named no file")),
        });
    }
    text
}

fn cause(facts: &KillFacts) -> String {
    let limit = |limit: &HitLimit| {
        let bytes = limit.limit_bytes.map(|limit| format!(" of {}", Bytes::new(limit)));
        bytes.unwrap_or_default()
    };
    let enforced = limit(&facts.limit);
    if let Some(own) = &facts.container_limit {
        let own = limit(own);
        return format!(
            "the container reached its memory limit{own}, and the kernel enforced the pod's limit{enforced}"
        );
    }
    let whose = match facts.level {
        Level::Container => "the container reached its memory limit",
        Level::Pod => "the pod reached its memory limit",
        Level::Qos => "the pods of its QoS class reached their memory limit",
        Level::Kubepods => "all pods together reached their memory limit",
        Level::Node => return "the node had no memory left".to_owned(),
        Level::Other => "a cgroup reached its memory limit",
        Level::Unspecified => return "it is not known whose limit was reached".to_owned(),
    };
    format!("{whose}{enforced}")
}
