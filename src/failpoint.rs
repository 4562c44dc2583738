//! Named points between two steps of an operation, at which a test has a debug build end as by a crash.
//!
//! `VSCALED_FAILPOINT=freeze.written:3` kills the process with SIGKILL when it comes to that point for the third time. A
//! release build has nothing of this.

/// The process may be told to end here.
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

/// Nothing.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn failpoint(_: &'static str) {}
