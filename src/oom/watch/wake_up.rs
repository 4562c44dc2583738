//! Wakes the watcher when a counter may have risen, or is about to, where the kernel says so.
//!
//! On v2 `memory.events` changes and can be watched ([`memory_events`]); on v1 the kernel raises an eventfd
//! ([`oom_eventfd`]). Neither means a kill: the watcher only sweeps the counters.

mod memory_events;
mod oom_eventfd;

use std::io;
use std::path::Path;

use memory_events::EventsWatch;
use oom_eventfd::OomEventfd;

pub(super) use oom_eventfd::RegistrationError;

use crate::cgroup::Hierarchy;
use crate::model::CgroupPath;

/// Why the watcher was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WakeUpReason {
    /// A counter changed: v2.
    Counted,
    /// A counter may change soon: v1.
    Expected,
}

/// What the kernel was asked to notify about.
#[derive(Debug, Default)]
pub(super) struct WakeUp {
    events: EventsWatch,
    oom_eventfd: OomEventfd,
}

impl WakeUp {
    /// Watches this counter (v2), too. The same one again costs nothing.
    ///
    /// Errors: what the kernel says; then a sweep once a second finds kills.
    pub(super) fn watch(&mut self, counter: &Path) -> io::Result<()> {
        self.events.watch(counter)
    }

    /// Registers these containers (v1), too. Those that are registered already cost a look at their directories.
    ///
    /// Errors: the first that the kernel refuses; then a sweep once a second finds kills there.
    pub(super) fn register<'c>(
        &mut self,
        hierarchy: &Hierarchy,
        containers: impl Iterator<Item = &'c CgroupPath>,
    ) -> Result<(), RegistrationError> {
        self.oom_eventfd.register(hierarchy, containers)
    }

    /// Waits until the kernel notifies. Cancel-safe, as both of those it waits for are.
    pub(super) async fn notified(&mut self) -> io::Result<WakeUpReason> {
        tokio::select! {
            told = self.events.notified() => told.map(|()| WakeUpReason::Counted),
            told = self.oom_eventfd.notified() => told.map(|()| WakeUpReason::Expected),
        }
    }
}

#[cfg(test)]
mod tests;
