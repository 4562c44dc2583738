//! Promise: on a node whose cgroups systemd makes, what vscaled sets is in systemd's own record too, so that systemd does
//! not undo it; and systemd's answers, or their absence, are told as what they are.

pub(crate) mod fake_bus;
mod systemd_real;
mod systemd_real_agent;
mod systemd_real_package;
