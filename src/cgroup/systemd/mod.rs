//! systemd's own record of a unit's limits.
//!
//! Where systemd makes the cgroups it also rewrites their files from its properties. Measured with systemd 252 on v2: any
//! changed property of a unit, `daemon-reload` and `daemon-reexec` put `cpu.max`, `cpu.weight` and `memory.max` back to
//! the properties' values; another unit started in the slice does not. Systemd 257 left `memory.max` alone at a reload. So
//! a pod slice's values are also set as properties, at runtime only (nothing of ours survives a reboot), by
//! `SetUnitProperties` over D-Bus, and read back. A property is not enough either: systemd writes the file some time
//! later, and stores quotas in whole percents of a cpu, rounded down.
//!
//! In come a [`Unit`] and [`Settings`](crate::model::Settings); [`properties()`] turns these into properties, purely;
//! [`Systemd`] carries them over the bus. It only ever changes a unit that is loaded, and never starts, stops or reloads
//! anything. cgroups-rs names the properties; its client is not used: it knows one bus only, connects anew for every
//! call, takes an unreachable bus for an absent unit, and an absent unit for success.

mod client;
mod properties;
mod unit;

pub use client::{Systemd, SystemdError};
pub use properties::{Property, QuotaWithoutPeriod, properties, settings};
pub use unit::Unit;
