//! What the configuration tells each task of the agent.

use std::path::Path;

use procfs::Current;
use tokio::task::JoinHandle;

use super::discovery::{DiscoveryOptions, RuntimeChoice};
use crate::config::{Config, PathSetting};
use crate::guard;
use crate::model::Bytes;
use crate::observe::audit::{Audit, AuditOptions, DURABLE_WITHIN};
use crate::reconcile::controller::Options;

pub(super) fn options(config: &Config) -> Options {
    Options {
        decide: config.decide_options(),
        sweep_interval: config.sweep_interval,
        observe_only: config.observe_only,
        repair_pod_level: config.repair_pod_level,
        ask_when_full: config.ask_when_full,
        annotate: config.applied_annotation,
        guard: config.guard.then(|| guard_settings(config)),
    }
}

fn guard_settings(config: &Config) -> guard::Settings {
    // Without knowing how much memory there is, parts of it are nothing: nothing is given out then.
    let all = procfs::Meminfo::current().map_or(0, |meminfo| meminfo.mem_total);
    let all = Bytes::new(all);
    guard::Settings {
        reserve: config.guard_reserve.of(all),
        budget: guard::budgets::Budget {
            pod: config.guard_pod_budget.of(all),
            node: config.guard_node_budget.of(all),
        },
        quiet: config.guard_quiet_period,
    }
}

pub(super) fn discovery_options(config: &Config) -> DiscoveryOptions {
    DiscoveryOptions {
        cgroup_root: Some(config.cgroup_root.clone()).filter(|root| root != Path::new("/sys/fs/cgroup")),
        kubepods: config.kubepods.clone(),
        driver: config.cgroup_driver,
        weight: config.weight_formula,
        kubelet: config.kubelet_version,
        kubelet_dir: config.kubelet_dir.clone(),
        runtime: match &config.runtime_socket {
            PathSetting::Auto => RuntimeChoice::Auto,
            PathSetting::None => RuntimeChoice::None,
            PathSetting::Path(socket) => RuntimeChoice::Socket(socket.clone()),
        },
        deadlines: config.deadlines(),
    }
}

/// Starts the audit log, if one is to be kept.
pub(super) fn start_audit(config: &Config) -> Option<(Audit, JoinHandle<()>)> {
    let options = AuditOptions {
        path: config.audit_file()?,
        bytes: config.audit_log_size.get(),
        files: config.audit_log_files,
        sync_within: DURABLE_WITHIN,
    };
    Some(Audit::start(options))
}
