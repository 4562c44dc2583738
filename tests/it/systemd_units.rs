//! Promise: on a node whose cgroups systemd creates, systemd's records have vscaled's values too, so systemd does not
//! revert them. vscaled reports systemd's errors, and its absence, with their cause.

pub(crate) mod fake_bus;
mod systemd_real;
mod systemd_real_agent;
mod systemd_real_package;
