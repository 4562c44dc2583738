//! Lets tokio wait for descriptors that are no sockets.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};

use nix::sys::inotify::{InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the event loop, which owns the descriptor from then on.
///
/// Errors: the reactor refuses the descriptor.
///
/// Panics: outside of a tokio runtime with I/O enabled.
pub(crate) fn async_fd<T: AsRawFd>(descriptor: T) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "the unsafe constructor wants a descriptor that stays open and the same: all that come here own theirs for life"
    )]
    AsyncFd::try_new(descriptor).map_err(io::Error::from)
}

/// nix's inotify has no `AsRawFd`, which [`AsyncFd`] needs.
#[derive(Debug)]
pub(crate) struct InotifyFd(pub(crate) Inotify);

impl AsRawFd for InotifyFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Opens inotify. Watches nothing yet.
///
/// Errors: EMFILE when this user has `fs.inotify.max_user_instances`.
pub(crate) fn inotify() -> io::Result<AsyncFd<InotifyFd>> {
    async_fd(InotifyFd(Inotify::init(
        InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK,
    )?))
}
