//! Promises to users, one file each, tested with real components where possible.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod admission_policy;
mod architecture;
mod arm64_programs;
mod cgroup_files;
mod cluster_api;
mod cluster_deploy;
mod cluster_events;
mod cluster_fleet;
mod cluster_kills;
mod cluster_kubelet;
mod cluster_policy;
mod cluster_today;
mod cluster_upstream;
mod control_socket;
mod decide_command;
mod decisions;
mod host_chaos;
mod host_deployed;
mod host_logs;
mod host_metrics;
mod kernel_agent_containerd;
mod kernel_agent_files;
mod kernel_agent_oom;
mod kernel_cri;
mod kernel_demo;
mod kernel_guard;
mod kernel_oom;
mod kernel_resize;
mod kernel_shrink;
mod kernel_top;
mod kubectl_fleet;
mod kubectl_plugin;
mod kubelet_recordings;
mod lint_command;
mod notify_terminal;
mod observability;
mod oom_recordings;
mod pictures;
mod plan_command;
mod privileges;
mod release_files;
mod reports;
mod resize_recordings;
mod runtime_faults;
mod shell_help;
mod support;
mod systemd_units;
