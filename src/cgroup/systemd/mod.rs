//! systemd's own record of a unit's limits.
//!
//! Where systemd makes the cgroups it writes their files from its properties: when another property of the unit changes,
//! and, depending on version and property, on `daemon-reload`. So a pod slice's values are also set as properties, at
//! runtime only (nothing of ours survives a reboot), by `SetUnitProperties` over D-Bus, and read back.
//!
//! In come a [`Unit`] and [`Settings`](crate::resources::Settings); [`properties`] turns these into properties, purely;
//! [`Systemd`] carries them over the bus. It only ever changes a unit that is loaded, and never starts, stops or reloads
//! anything. cgroups-rs names the properties; its client is not used: it knows one bus only, connects anew for every
//! call, takes an unreachable bus for an absent unit, and an absent unit for success.

mod client;
mod properties;
mod unit;

pub use client::{Systemd, SystemdError};
pub use properties::{Property, QuotaWithoutPeriod, properties, settings};
pub use unit::Unit;
