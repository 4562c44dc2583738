//! What the kernel allows this process.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use nix::libc::O_NONBLOCK;
use nix::sys::inotify::{InitFlags, Inotify};

use super::Check;
use crate::oom::kmsg::{self, KmsgError};

/// A full node has so many watches: two hundred and fifty pods, three containers each, on v1 two cgroups for each.
const ENOUGH_WATCHES: u64 = 2048;

/// The rights that matter, which root has and others can be given, with their bits (`linux/capability.h`).
const CAPABILITIES: [(&str, u32); 3] = [
    ("CAP_DAC_OVERRIDE", DAC_OVERRIDE),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_SYSLOG", 34),
];
const DAC_OVERRIDE: u32 = 1;

/// The effective capabilities of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Capabilities(u64);

impl Capabilities {
    pub(super) fn of_this_process() -> Result<Self, procfs::ProcError> {
        let status = procfs::process::Process::myself()?.status()?;
        Ok(Self(status.capeff))
    }

    const fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }

    /// Whether files of other users may be written.
    pub(super) const fn may_write_anything(self) -> bool {
        self.has(DAC_OVERRIDE)
    }

    /// Those of the ones that matter that are not there.
    pub(super) fn missing(self) -> Vec<&'static str> {
        let missing = CAPABILITIES.iter().filter(|(_, bit)| !self.has(*bit));
        missing.map(|(name, _)| *name).collect()
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing();
        if missing.is_empty() {
            f.write_str("every capability that matters")
        } else {
            write!(f, "without {}", missing.join(", "))
        }
    }
}

/// Whether the kernel's log can be read, which says what was killed and why, and through what.
pub(super) fn kernel_log() -> Check {
    check_log(read_a_record(), kmsg::probe_syslog)
}

/// Reads one record through a descriptor of its own: others still see it.
fn read_a_record() -> io::Result<()> {
    let mut log = OpenOptions::new()
        .read(true)
        .custom_flags(O_NONBLOCK)
        .open("/dev/kmsg")?;
    // Longer than any record (CONSOLE_EXT_LOG_MAX): a shorter read is an error.
    let mut record = [0; 8192];
    match log.read(&mut record) {
        Ok(_) => Ok(()),
        // Nothing was logged yet, or a record was overwritten while it was read.
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::BrokenPipe) => Ok(()),
        Err(error) => Err(error),
    }
}

fn check_log(device: io::Result<()>, syslog: impl FnOnce() -> Result<(), KmsgError>) -> Check {
    const NAME: &str = "kernel log";
    const WITHOUT: &str = "until then kills are counted, and who was killed and why is not known";
    let Err(device) = device else {
        return Check::ok(NAME, "/dev/kmsg is read");
    };
    match syslog() {
        Ok(()) => Check::ok(NAME, format!("syslog(2) is read: /dev/kmsg cannot be ({device})")),
        Err(error) => Check::warn(
            NAME,
            format!("neither /dev/kmsg ({device}) nor syslog(2) can be read: {error}"),
            format!("grant CAP_SYSLOG (with /dev/kmsg as a device, `c 1:11 r`, kills are seen sooner); {WITHOUT}"),
        ),
    }
}

/// Whether files can be watched, so that changes by others are noticed at once.
pub(super) fn inotify() -> Check {
    let limit = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let opened = Inotify::init(InitFlags::IN_CLOEXEC).map(drop);
    check_inotify(opened, limit("max_user_watches"), limit("max_user_instances"))
}

fn check_inotify(opened: nix::Result<()>, watches: Option<u64>, instances: Option<u64>) -> Check {
    const NAME: &str = "inotify";
    const WITHOUT: &str = "until then changes by others are found by the periodic check only (sweepInterval)";
    let number = |limit: Option<u64>| limit.map_or_else(|| "unknown".to_owned(), |limit| limit.to_string());
    let found = format!(
        "max_user_watches {}, max_user_instances {}",
        number(watches),
        number(instances)
    );
    match opened {
        Err(error) => Check::warn(
            NAME,
            format!("no descriptor: {error}; {found}"),
            format!("sysctl fs.inotify.max_user_instances=1024; {WITHOUT}"),
        ),
        Ok(()) if watches.is_some_and(|watches| watches < ENOUGH_WATCHES) => Check::warn(
            NAME,
            found,
            format!("sysctl fs.inotify.max_user_watches=65536, as a full node needs {ENOUGH_WATCHES}; {WITHOUT}"),
        ),
        Ok(()) => Check::ok(NAME, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn what_the_kernels_log_needs_is_said() {
        let absent = || Err(io::Error::from(ErrorKind::NotFound));
        assert_eq!(
            check_log(Ok(()), || Err(KmsgError::SyslogRefused)).found,
            "/dev/kmsg is read"
        );
        let instead = check_log(absent(), || Ok(()));
        assert!(
            instead.status == Status::Ok && instead.found.starts_with("syslog(2) is read"),
            "{instead:?}"
        );
        let neither = check_log(absent(), || Err(KmsgError::SyslogRefused));
        assert_eq!(neither.status, Status::Warn);
        assert!(neither.mend.starts_with("grant CAP_SYSLOG"), "{neither:?}");
        let without_times = check_log(absent(), || Err(KmsgError::NoTimes));
        assert!(
            without_times.found.contains("printk/parameters/time"),
            "{without_times:?}"
        );
    }

    #[test]
    fn too_few_watches_are_a_warning_with_the_number_to_set() {
        assert_eq!(check_inotify(Ok(()), Some(65536), Some(128)).status, Status::Ok);
        let few = check_inotify(Ok(()), Some(100), Some(128));
        assert!(
            few.status == Status::Warn && few.mend.contains("max_user_watches=65536"),
            "{few:?}"
        );
        let none = check_inotify(Err(nix::errno::Errno::EMFILE), Some(65536), Some(0));
        assert!(none.mend.contains("max_user_instances"), "{none:?}");
        assert_eq!(check_inotify(Ok(()), None, None).status, Status::Ok);
    }

    #[test]
    fn capabilities_are_named_where_they_are_missing() {
        let all = Capabilities(u64::MAX);
        assert!(all.missing().is_empty() && all.may_write_anything());
        let none = Capabilities(1 << 21);
        assert_eq!(none.to_string(), "without CAP_DAC_OVERRIDE, CAP_SYSLOG");
        assert!(!none.may_write_anything());
    }
}
