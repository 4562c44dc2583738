//! Promises made to users, one file each, against real parts wherever they can be had.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod architecture;
mod cgroup_files;
mod decide_command;
mod decisions;
mod kernel_cri;
mod kernel_oom;
mod oom_recordings;
mod support;
mod systemd_units;
