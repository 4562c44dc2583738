//! What the configuration tells each task of the agent.

use procfs::Current;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::guard;
use crate::model::Bytes;
use crate::observe::audit::{Audit, AuditOptions, DURABLE_WITHIN};
use crate::reconcile::controller::{Hooks, Options};

pub(super) fn options(config: &Config) -> Options {
    Options {
        decide: config.decide_options(),
        sweep_interval: config.sweep_interval,
        observe_only: config.observe_only,
        repair_pod_level: config.repair_pod_level,
        ask_when_full: config.ask_when_full,
        annotate: config.applied_annotation,
        hooks: Hooks {
            enabled: config.hooks,
            forbidden: config.hooks_forbidden_namespaces.clone(),
        },
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
