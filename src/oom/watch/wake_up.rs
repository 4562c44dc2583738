//! Wakes the watcher when the kernel notifies that a counter has risen or may rise soon. A notification does not mean a
//! kill: the watcher only sweeps the counters.
//!
//! v2: the kernel notifies watches on `memory.events`, also for changes in cgroups below (`memcg_memory_event`,
//! include/linux/memcontrol.h). So one watch on the root of all pods hears of every kill in them, at most ten
//! milliseconds later. The watch also hears of every limit that is reached.
//!
//! v1: the kernel raises an eventfd when memory runs out at the limit of a cgroup with an alarm, or of one around it
//! ([`CgroupDir::alarm_at_oom`]). One eventfd with an alarm for each container hears of the limits of containers, pods,
//! QoS classes and all pods. It does not hear of the node's memory, nor of limits that containers set inside their own
//! cgroups. The kernel raises it before a kill, several times, for every container below the limit, also if there is no
//! process to kill, and when a container ends.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::AddWatchFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use crate::cgroup::{CgroupDir, Hierarchy};
use crate::descriptors::{InotifyFd, async_fd, inotify};
use crate::model::{CgroupPath, Resource};

/// The watcher ignores the eventfd for this long after a notification: a process that cannot be killed raises the
/// eventfd again and again. On v2 the kernel waits as long between notifications (`CGROUP_FILE_NOTIFY_MIN_INTV`,
/// kernel/cgroup/cgroup.c).
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// The meaning of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WakeUpReason {
    /// A counter changed: v2.
    Counted,
    /// A counter may change soon: v1.
    Expected,
}

/// What the kernel notifies the watcher of.
#[derive(Debug, Default)]
pub(super) enum WakeUp {
    #[default]
    Nothing,
    /// Changes of counters: v2.
    Changes(AsyncFd<InotifyFd>),
    /// Cgroups whose memory has run out: v1.
    Alarms {
        alarm: AsyncFd<EventFd>,
        /// The existing cgroups with an alarm, by the inode of their directory. The kernel itself removes the alarms of the
        /// others.
        registered: HashMap<CgroupPath, u64>,
        quiet_until: Option<Instant>,
    },
}

impl WakeUp {
    /// Watches a counter (v2). Watching the same one again has no effect.
    ///
    /// Errors: those of the kernel. Then only the sweep once a second finds kills.
    pub(super) fn watch(&mut self, counter: &Path) -> io::Result<()> {
        if !matches!(self, Self::Changes(_)) {
            *self = Self::Changes(inotify()?);
        }
        if let Self::Changes(events) = self {
            events.get_ref().0.add_watch(counter, AddWatchFlags::IN_MODIFY)?;
        }
        Ok(())
    }

    /// Sets the alarm for those of these containers (v1) that have none. Ignores a container that is gone.
    ///
    /// Errors: the first failure, in words. Then only the sweep once a second finds kills in that container.
    pub(super) fn register<'c>(
        &mut self,
        hierarchy: &Hierarchy,
        containers: impl Iterator<Item = &'c CgroupPath>,
    ) -> Result<(), String> {
        if !matches!(self, Self::Alarms { .. }) {
            let alarm = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
            let alarm = alarm.map_err(io::Error::from).and_then(async_fd);
            *self = Self::Alarms {
                alarm: alarm.map_err(|error| format!("no eventfd: {error}"))?,
                registered: HashMap::new(),
                quiet_until: None,
            };
        }
        let Self::Alarms { alarm, registered, .. } = self else {
            return Ok(());
        };
        let inode =
            |path: &CgroupPath| fs::metadata(path.under(hierarchy.mount(Resource::Memory))).map(|found| found.ino());
        registered.retain(|path, registered| inode(path).is_ok_and(|inode| inode == *registered));
        let mut failed = Ok(());
        for path in containers {
            if registered.contains_key(path) {
                continue;
            }
            // Read before the alarm is set: a cgroup that is made anew meanwhile gets its alarm the next time.
            let inode = inode(path).unwrap_or_default();
            match CgroupDir::open(hierarchy, path).and_then(|dir| dir.alarm_at_oom(alarm.get_ref())) {
                Ok(()) => drop(registered.insert(path.clone(), inode)),
                Err(error) if error.is_gone() => {}
                Err(error) => failed = failed.and(Err(error.to_string())),
            }
        }
        failed
    }

    /// Waits for a notification. Cancel-safe: a notification stays until it is read, and the read does not wait.
    pub(super) async fn notified(&mut self) -> io::Result<WakeUpReason> {
        let notified = match self {
            Self::Nothing => std::future::pending().await,
            Self::Changes(events) => {
                let read = read_when_ready(events, |events| events.0.read_events().map(drop)).await;
                read.map(|()| WakeUpReason::Counted)
            }
            Self::Alarms { alarm, quiet_until, .. } => {
                if let Some(until) = *quiet_until {
                    sleep_until(until).await;
                }
                let read = read_when_ready(alarm, |alarm| alarm.read().map(drop)).await;
                *quiet_until = Some(Instant::now() + MIN_INTERVAL);
                read.map(|()| WakeUpReason::Expected)
            }
        };
        if notified.is_err() {
            // The kernel removes the alarms of a closed eventfd.
            *self = Self::Nothing;
        }
        notified
    }
}

async fn read_when_ready<T: AsRawFd>(descriptor: &AsyncFd<T>, read: impl Fn(&T) -> nix::Result<()>) -> io::Result<()> {
    let read = |descriptor: &T| read(descriptor).map_err(io::Error::from);
    descriptor.async_io(Interest::READABLE, read).await
}

#[cfg(test)]
mod tests;
