//! Why the kernel's log cannot be read, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Why the log cannot be read, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum KmsgError {
    #[error("cannot open {}: {source}; {}", device.display(), next_step(source))]
    Open { device: PathBuf, source: io::Error },
    /// Reading it failed for good.
    #[error("cannot read {}: {source}", device.display())]
    Read { device: PathBuf, source: io::Error },
    /// It has an end, which the kernel's log has not.
    #[error("{} came to its end: it is not the kernel's log", device.display())]
    Ended { device: PathBuf },
    /// syslog(2) is refused.
    #[error("syslog(2) is refused: grant CAP_SYSLOG")]
    SyslogRefused,
    /// syslog(2) failed.
    #[error("syslog(2): {0}")]
    Syslog(String),
    /// The log is text without times.
    #[error("the kernel's log has no times: write Y to /sys/module/printk/parameters/time")]
    NoTimes,
    /// There is no device, and syslog(2) failed, too.
    #[error("{syslog}; {device}")]
    Neither {
        /// Why there is no device.
        device: String,
        /// Why syslog(2) failed.
        syslog: String,
    },
    /// The boot cannot be told.
    #[error("cannot tell which boot this is: {0}; mount /proc")]
    Boot(String),
}

fn next_step(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "give the pod a hostPath volume for it (type CharDevice)",
        io::ErrorKind::PermissionDenied => {
            "grant CAP_SYSLOG (needed while the sysctl kernel.dmesg_restrict is 1) and access to the device (c 1:11 r)"
        }
        _ => "kills are still counted, without their detail",
    }
}
