//! systemd's properties of a unit's limits.
//!
//! Where systemd makes the cgroups it also rewrites their files from its properties. Measured with systemd 252 on v2: any
//! changed property of a unit, `daemon-reload` and `daemon-reexec` put `cpu.max`, `cpu.weight` and `memory.max` back to
//! the properties' values; starting another unit in the slice does not. systemd 257 leaves `memory.max` alone at a reload. So
//! the agent also sets a pod slice's values as properties, at runtime only (they do not survive a reboot), by
//! `SetUnitProperties` over D-Bus, and reads them back. The properties alone are not enough: systemd writes the file some time
//! later, and stores quotas in whole percents of a cpu, rounded down.
//!
//! In come a [`Unit`] and [`Settings`](crate::model::Settings). [`properties()`] turns the settings into properties, purely;
//! [`Systemd`] sends them over the bus. It changes only a unit that is loaded, and never starts, stops or reloads one.
//! cgroups-rs names the properties. The agent does not use its client, which knows one bus only, connects for every call,
//! reports an unreachable bus as an absent unit, and an absent unit as success.

mod client;
mod properties;
mod unit;

pub use client::{Systemd, SystemdError};
pub use properties::{Properties, properties, settings};
pub use unit::Unit;
