//! v1: an eventfd that the kernel raises before it kills.
//!
//! It is told of every time memory runs out at the limit of a cgroup it was ordered for, or of one around that
//! ([`CgroupDir::alarm_at_oom`]). Ordered for every container, one eventfd hears of whatever happens at the limits of
//! containers, pods, QoS classes and of all pods. It does not hear of the node's memory, nor of limits that containers set
//! inside their own cgroups.
//!
//! That is no kill: it comes before one, for every container below the limit, several times, when nobody can be killed, and
//! when a container ends. So it says no more than that a look is worth while, and comes as often as it is listened to only.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::cgroup::{CgroupDir, CgroupError, Hierarchy, Identity, Reason};
use crate::model::CgroupPath;
use crate::oom::epoll::async_fd;

/// Once told, it is not listened to for so long: a process that cannot be killed raises it again and again. The kernel
/// spaces out its notices on v2 likewise (`CGROUP_FILE_NOTIFY_MIN_INTV`, kernel/cgroup/cgroup.c).
pub(super) const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// The eventfd, once there is a container to hear of.
#[derive(Debug, Default)]
pub(super) struct OomEventfd {
    told: Option<AsyncFd<EventFd>>,
    /// The cgroups it was ordered for that are still there. The kernel forgets the others by itself.
    ordered: HashMap<CgroupPath, Identity>,
    quiet_until: Option<Instant>,
}

/// Why not all containers are heard of.
#[derive(Debug, thiserror::Error)]
pub(in crate::oom::watch) enum RegistrationError {
    #[error("no eventfd: {0}")]
    NoDescriptor(#[from] io::Error),
    /// The first cgroup that was refused.
    #[error(transparent)]
    Refused(#[from] CgroupError),
}

impl OomEventfd {
    /// Orders it for those of these cgroups that it was not ordered for. One that is gone is nobody's loss.
    pub(super) fn register<'c>(
        &mut self,
        hierarchy: &Hierarchy,
        containers: impl Iterator<Item = &'c CgroupPath>,
    ) -> Result<(), RegistrationError> {
        let told = match self.told.take() {
            Some(told) => told,
            None => {
                self.ordered.clear();
                let told = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
                async_fd(told.map_err(io::Error::from)?)?
            }
        };
        let told = self.told.insert(told);
        self.ordered
            .retain(|path, identity| match CgroupDir::open(hierarchy, path) {
                Ok(dir) => dir.identity() == *identity,
                Err(error) => !is_gone(&error),
            });
        let mut failed = None;
        for path in containers {
            if self.ordered.contains_key(path) {
                continue;
            }
            let ordered = CgroupDir::open(hierarchy, path)
                .and_then(|dir| dir.alarm_at_oom(told.get_ref()).map(|()| dir.identity()));
            match ordered {
                Ok(identity) => drop(self.ordered.insert(path.clone(), identity)),
                Err(error) if is_gone(&error) => {}
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Waits until somebody may be about to be killed. Cancel-safe: what was told stays told until it is
    /// read, which does not wait.
    pub(super) async fn notified(&mut self) -> io::Result<()> {
        let Some(told) = &self.told else {
            return std::future::pending().await;
        };
        if let Some(until) = self.quiet_until {
            tokio::time::sleep_until(until).await;
        }
        let heard = async {
            loop {
                let mut ready = told.readable().await?;
                match ready.get_inner().read() {
                    Ok(_) => return Ok(()),
                    Err(Errno::EAGAIN) => ready.clear_ready(),
                    Err(Errno::EINTR) => {}
                    Err(errno) => return Err(io::Error::from(errno)),
                }
            }
        };
        let heard = heard.await;
        match heard {
            Ok(()) => self.quiet_until = Some(Instant::now() + MIN_INTERVAL),
            // The kernel takes back what was ordered for it.
            Err(_) => self.told = None,
        }
        heard
    }
}

#[cfg(test)]
impl OomEventfd {
    pub(super) fn raise(&self) {
        self.told.as_ref().unwrap().get_ref().write(1).unwrap();
    }
}

const fn is_gone(error: &CgroupError) -> bool {
    matches!(error.reason, Reason::Vanished | Reason::Recreated)
}
