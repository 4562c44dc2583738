//! How the kernel wakes the guard, so that it can sleep.
//!
//! One epoll descriptor waits for all events: watchlists, v1's alarms at amounts of memory in use (one eventfd for each
//! container), and v2's notices that the kernel had to reclaim at a limit (one inotify descriptor for all). Setting an alarm
//! blocks for the kernel's RCU grace period, some ten milliseconds, so a thread of its own sets the alarms.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::watched::Watched;
use crate::cgroup::{Cgroup, Watch};
use crate::model::{CgroupVersion, ControlFile};

/// Identifies a container; never used twice.
pub(super) type Token = u64;

/// The token of the agent's wake-ups.
const WAKE: Token = 0;
/// The token of the kernel's notices about files; returned where the kernel dropped some, of any container.
pub(super) const FILES: Token = 1;
/// The first token of a container.
pub(super) const FIRST: Token = 2;
const SIGNALS: usize = 64;
/// The time between two tries to get notices of a container: the kernel may refuse those of thousands (`fs.inotify.max_user_watches`).
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(10);

/// Everything that wakes the guard.
#[derive(Debug)]
pub(super) struct Notifications {
    epoll: Epoll,
    files: Option<Watch<Token>>,
    orders: mpsc::Sender<(Arc<Cgroup>, Arc<AlarmFd>)>,
}

/// Alarms of one container. They end when this is dropped.
#[derive(Debug)]
pub(super) struct AlarmFd {
    /// Bytes in use, in rising order.
    pub(super) amounts: Vec<u64>,
    pub(super) event_fd: EventFd,
    /// Whether the kernel has the alarms.
    pub(super) is_set: AtomicBool,
}

impl Notifications {
    /// Opens the descriptors and starts the thread that sets alarms. Each write to `wake` ends a wait.
    ///
    /// Errors: the kernel refuses a descriptor or the thread.
    pub(super) fn new(wake: &Arc<EventFd>) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&**wake, raised(WAKE))?;
        // Without an inotify descriptor the guard reads by the clock alone.
        let files = Watch::new()
            .inspect_err(|error| tracing::warn!(%error, "no inotify descriptor for the guard"))
            .ok();
        if let Some(files) = &files {
            epoll.add(files, EpollEvent::new(EpollFlags::EPOLLIN, FILES))?;
        }
        let (orders, to_arm) = mpsc::channel();
        std::thread::Builder::new()
            .name("guard-alarms".to_owned())
            .spawn(move || set_alarms(&to_arm))?;
        Ok(Self { epoll, files, orders })
    }

    /// Waits for an event, or for so long. Returns the containers that the kernel notifies about, and [`FILES`] if that may be any.
    ///
    /// Errors: the kernel's errno, except EINTR.
    pub(super) fn wait(&mut self, longest: Duration) -> io::Result<Vec<Token>> {
        let mut signals = [EpollEvent::empty(); SIGNALS];
        // Rounded up: a reading that is too early finds nothing.
        let millis = longest.as_nanos().div_ceil(1_000_000);
        let timeout = EpollTimeout::try_from(u32::try_from(millis).unwrap_or(u32::MAX).min(3_600_000))
            .map_err(|_| io::Error::from(Errno::EINVAL))?;
        let count = match self.epoll.wait(&mut signals, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        let mut tokens = Vec::new();
        for signal in &signals[..count] {
            match signal.data() {
                WAKE => {}
                FILES => {
                    let written = self.files.as_mut().map(Watch::drain).transpose()?;
                    tokens.extend(written.flatten().unwrap_or_else(|| [FILES].into()));
                }
                token => tokens.push(token),
            }
        }
        Ok(tokens)
    }

    /// Has the kernel notify when a process writes the limit, and on v2 when the kernel reclaims at the container's limit or at
    /// its pod's, until that is noise. Where both limits are the same, the kernel reaches the pod's first, and counts that for
    /// the pod alone. About a pod it notifies only at the pod's own limit.
    pub(super) fn subscribe(&mut self, watched: &mut Watched, now: Duration) {
        let outer = watched.cgroup.outer();
        let names: &[&str] = match (outer.version(), watched.listed.is_pod) {
            (CgroupVersion::V1, _) => &[ControlFile::MemoryLimit.name()],
            (CgroupVersion::V2, true) => &["memory.events.local", "memory.max"],
            (CgroupVersion::V2, false) => &["memory.events", "../memory.events", "memory.max"],
        };
        let is_noise = outer.version() == CgroupVersion::V2 && watched.alarms.are_noisy(now);
        let is_due = watched.subscribed == is_noise && watched.subscribe_at <= now;
        let Some(files) = self.files.as_mut().filter(|_| is_due) else {
            return;
        };
        if is_noise {
            files.remove(&watched.token);
            watched.subscribed = false;
            return;
        }
        let mut names = names.iter();
        let added = names.try_for_each(|name| files.add_file(outer.memory_dir(), name, &watched.token));
        if let Err(error) = &added {
            tracing::debug!(%error, "no notifications: polling instead");
            files.remove(&watched.token);
            watched.subscribe_at = now + SUBSCRIBE_AGAIN;
        }
        watched.subscribed = added.is_ok();
    }

    /// Ends the notices about a container.
    pub(super) fn forget(&mut self, token: Token) {
        if let Some(files) = &mut self.files {
            files.remove(&token);
        }
    }

    /// Orders the alarms that a container at rest lacks (v1).
    pub(super) fn order_alarms(&self, watched: &mut Watched, now: Duration) {
        let Some((limit, amounts)) = watched.wanted_alarms(now) else {
            return;
        };
        let alarms = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).and_then(|event_fd| {
            self.epoll.add(&event_fd, raised(watched.token))?;
            let is_set = AtomicBool::new(false);
            Ok(Arc::new(AlarmFd {
                amounts,
                event_fd,
                is_set,
            }))
        });
        let alarms = alarms
            .inspect_err(|errno| tracing::debug!(error = %errno, "no alarms: polling instead"))
            .ok();
        let order = alarms.clone().map(|alarms| (Arc::clone(&watched.cgroup), alarms));
        if order.is_some_and(|order| self.orders.send(order).is_err()) {
            tracing::error!("the thread that sets alarms has ended: polling instead");
        }
        watched.alarms.order(now, limit, alarms);
    }
}

/// Waits for each write to an eventfd. Edge-triggered, so the guard never has to read the counter.
fn raised(token: Token) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, token)
}

/// Sets alarms, one container after the other, until the guard ends.
fn set_alarms(orders: &mpsc::Receiver<(Arc<Cgroup>, Arc<AlarmFd>)>) {
    for (cgroup, alarms) in orders {
        match cgroup.outer().alarm_at(&alarms.amounts, &alarms.event_fd) {
            Ok(()) => alarms.is_set.store(true, Relaxed),
            Err(error) => tracing::debug!(%error, "no alarms: polling instead"),
        }
    }
}
