//! Learns at once that a counter may have risen, or is about to, where the kernel says so.
//!
//! It says so in two ways: v2 changes a file that can be watched ([`events`]), v1 raises an eventfd ([`alarm`]). Neither
//! tells of a kill. What comes out of here may only have the counters looked at.

mod alarm;
mod events;

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use tokio::io::unix::AsyncFd;

use alarm::Alarm;
use events::Events;

pub(super) use alarm::Unheard;

use crate::cgroup::{CgroupPath, Hierarchy};

/// What the kernel told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// Something was counted: v2.
    Counted,
    /// Something may be counted soon: v1.
    Expected,
}

/// What the kernel was asked to tell.
#[derive(Debug, Default)]
pub(super) struct Hint {
    events: Events,
    alarm: Alarm,
}

impl Hint {
    /// Watches this counter (v2), too. The same one again costs nothing.
    ///
    /// # Errors
    /// What the kernel says; then the counters are looked at once a second.
    pub(super) fn watch(&mut self, counter: &Path) -> io::Result<()> {
        self.events.watch(counter)
    }

    /// Has the kernel tell of these containers (v1), too. Those it was asked about before cost a look at their directories.
    ///
    /// # Errors
    /// The first that the kernel refuses; then the counters are looked at once a second for that one.
    pub(super) fn order<'c>(
        &mut self,
        hierarchy: &Hierarchy,
        containers: impl Iterator<Item = &'c CgroupPath>,
    ) -> Result<(), Unheard> {
        self.alarm.order(hierarchy, containers)
    }

    /// Waits until the kernel tells something. Cancel-safe, as both of those it waits for are.
    pub(super) async fn told(&mut self) -> io::Result<Sign> {
        tokio::select! {
            told = self.events.told() => told.map(|()| Sign::Counted),
            told = self.alarm.told() => told.map(|()| Sign::Expected),
        }
    }
}

fn listening<T: AsRawFd>(descriptor: T) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "the unsafe constructor wants a descriptor that stays open and the same: all that come here own theirs for life"
    )]
    AsyncFd::try_new(descriptor).map_err(io::Error::from)
}

#[cfg(test)]
mod tests;
