//! Named points between two steps of an operation, at which a test can make a debug build crash.
//!
//! `VSCALED_FAILPOINT=freeze.written:3` kills the process with SIGKILL when it reaches that point for the third time. Release
//! builds have no failpoints.

/// Kills the process if a test has armed this point.
#[cfg(debug_assertions)]
pub fn failpoint(point: &'static str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static ARMED: LazyLock<Option<(String, AtomicU32)>> = LazyLock::new(|| {
        let armed = std::env::var("VSCALED_FAILPOINT").ok()?;
        let (point, times) = armed.split_once(':').unwrap_or((&armed, "1"));
        Some((point.to_owned(), AtomicU32::new(times.parse().ok()?)))
    });
    if let Some((_, left)) = ARMED.as_ref().filter(|(armed, _)| armed == point)
        && left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        eprintln!("ends at the failpoint {point}");
        nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL).unwrap_or_default();
    }
}

/// Does nothing in a release build.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn failpoint(_: &'static str) {}
