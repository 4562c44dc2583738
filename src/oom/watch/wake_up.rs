//! Wakes the watcher when a counter may have risen, or is about to, where the kernel says so. Nothing it says means a kill:
//! the watcher only sweeps the counters.
//!
//! On v2 `memory.events` changes and can be watched. It also changes when that of a cgroup below does
//! (`memcg_memory_event`, include/linux/memcontrol.h), so one watch, on the root of all pods, is told of every kill in any of
//! them, at most ten milliseconds later. It is also told of every time a limit is reached.
//!
//! On v1 the kernel raises an eventfd every time memory runs out at the limit of a cgroup it was ordered for, or of one around
//! that ([`CgroupDir::alarm_at_oom`]). Ordered for every container, one eventfd hears of whatever happens at the limits of
//! containers, pods, QoS classes and of all pods. It does not hear of the node's memory, nor of limits that containers set
//! inside their own cgroups. It comes before a kill, for every container below the limit, several times, when nobody can be
//! killed, and when a container ends.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use crate::cgroup::{CgroupDir, Hierarchy, Identity};
use crate::model::CgroupPath;
use crate::oom::kmsg::async_fd;

/// Once raised, the eventfd is not listened to for so long: a process that cannot be killed raises it again and again. The
/// kernel spaces out its notices on v2 likewise (`CGROUP_FILE_NOTIFY_MIN_INTV`, kernel/cgroup/cgroup.c).
const MIN_INTERVAL: Duration = Duration::from_millis(10);

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
    events: Option<AsyncFd<Events>>,
    alarm: Option<AsyncFd<EventFd>>,
    /// The cgroups the alarm was ordered for that are still there. The kernel forgets the others by itself.
    ordered: HashMap<CgroupPath, Identity>,
    quiet_until: Option<Instant>,
}

#[derive(Debug)]
struct Events(Inotify);

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl WakeUp {
    /// Watches this counter (v2), too. The same one again costs nothing.
    ///
    /// Errors: what the kernel says; then a sweep once a second finds kills.
    pub(super) fn watch(&mut self, counter: &Path) -> io::Result<()> {
        let events = match self.events.take() {
            Some(events) => events,
            None => async_fd(Events(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?))?,
        };
        let events = self.events.insert(events);
        let added = events.get_ref().0.add_watch(counter, AddWatchFlags::IN_MODIFY);
        added.map(drop).map_err(io::Error::from)
    }

    /// Orders the alarm for those of these containers (v1) that it was not ordered for. One that is gone is nobody's loss.
    ///
    /// Errors: in words, why not all of them are heard of; then a sweep once a second finds kills there.
    pub(super) fn register<'c>(
        &mut self,
        hierarchy: &Hierarchy,
        containers: impl Iterator<Item = &'c CgroupPath>,
    ) -> Result<(), String> {
        let alarm = match self.alarm.take() {
            Some(alarm) => alarm,
            None => {
                self.ordered.clear();
                EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
                    .map_err(io::Error::from)
                    .and_then(async_fd)
                    .map_err(|error| format!("no eventfd: {error}"))?
            }
        };
        let alarm = self.alarm.insert(alarm);
        self.ordered
            .retain(|path, identity| match CgroupDir::open(hierarchy, path) {
                Ok(dir) => dir.identity() == *identity,
                Err(error) => !error.is_gone(),
            });
        let mut failed = Ok(());
        for path in containers {
            if self.ordered.contains_key(path) {
                continue;
            }
            let ordered = CgroupDir::open(hierarchy, path)
                .and_then(|dir| dir.alarm_at_oom(alarm.get_ref()).map(|()| dir.identity()));
            match ordered {
                Ok(identity) => drop(self.ordered.insert(path.clone(), identity)),
                Err(error) if error.is_gone() => {}
                Err(error) => failed = failed.and(Err(error.to_string())),
            }
        }
        failed
    }

    /// Waits until the kernel notifies. Cancel-safe: what was told stays told until it is read, which does not wait.
    pub(super) async fn notified(&mut self) -> io::Result<WakeUpReason> {
        let (events, alarm, quiet_until) = (&self.events, &self.alarm, self.quiet_until);
        let raised = async {
            if let Some(until) = quiet_until {
                sleep_until(until).await;
            }
            read_when_ready(alarm.as_ref(), |alarm| alarm.read().map(drop)).await
        };
        tokio::select! {
            told = read_when_ready(events.as_ref(), |events| events.0.read_events().map(drop)) => {
                if told.is_err() {
                    self.events = None;
                }
                told.map(|()| WakeUpReason::Counted)
            }
            told = raised => {
                match told {
                    Ok(()) => self.quiet_until = Some(Instant::now() + MIN_INTERVAL),
                    // The kernel takes back what was ordered for it.
                    Err(_) => self.alarm = None,
                }
                told.map(|()| WakeUpReason::Expected)
            }
        }
    }
}

async fn read_when_ready<T: AsRawFd>(
    descriptor: Option<&AsyncFd<T>>,
    read: impl Fn(&T) -> nix::Result<()>,
) -> io::Result<()> {
    let Some(descriptor) = descriptor else {
        return std::future::pending().await;
    };
    loop {
        let mut ready = descriptor.readable().await?;
        match read(ready.get_inner()) {
            Ok(()) => return Ok(()),
            Err(Errno::EAGAIN) => ready.clear_ready(),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests;
