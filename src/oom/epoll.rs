//! Descriptors that the event loop waits for.

use std::io;
use std::os::fd::AsRawFd;

use tokio::io::unix::AsyncFd;

/// Registers a descriptor, which is closed with it.
pub(super) fn async_fd<T: AsRawFd>(descriptor: T) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "the unsafe constructor wants a descriptor that stays open and the same: all that come here own theirs for life"
    )]
    AsyncFd::try_new(descriptor).map_err(io::Error::from)
}
