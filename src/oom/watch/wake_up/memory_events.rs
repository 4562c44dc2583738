//! v2: `memory.events`, watched by inotify.
//!
//! The kernel tells everybody who watches `memory.events` of a cgroup whenever it changes, and it also changes when that
//! of a cgroup below does (`memcg_memory_event`, include/linux/memcontrol.h). So one watch, on the root of all pods, is
//! told of every kill in any of them, at most ten milliseconds later. It is also told of every time a limit is reached.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

use crate::oom::epoll::async_fd;

#[derive(Debug, Default)]
pub(super) struct EventsWatch {
    watch: Option<AsyncFd<Descriptor>>,
}

#[derive(Debug)]
struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl EventsWatch {
    /// Watches this file, too. The same one again costs nothing.
    pub(super) fn watch(&mut self, file: &Path) -> io::Result<()> {
        let watch = match self.watch.take() {
            Some(watch) => watch,
            None => async_fd(Descriptor(Inotify::init(
                InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK,
            )?))?,
        };
        let added = watch.get_ref().0.add_watch(file, AddWatchFlags::IN_MODIFY);
        self.watch = Some(watch);
        added.map(drop).map_err(io::Error::from)
    }

    /// Waits until a counter may have risen. Cancel-safe: what was told stays told until it is
    /// drained, which does not wait.
    pub(super) async fn notified(&mut self) -> io::Result<()> {
        let Some(watch) = &mut self.watch else {
            return std::future::pending().await;
        };
        let told = async {
            let mut ready = watch.readable_mut().await?;
            loop {
                match ready.get_inner_mut().0.read_events() {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(Errno::EAGAIN) => break,
                    Err(errno) => return Err(io::Error::from(errno)),
                }
            }
            ready.clear_ready();
            Ok(())
        };
        let told = told.await;
        if told.is_err() {
            self.watch = None;
        }
        told
    }
}
