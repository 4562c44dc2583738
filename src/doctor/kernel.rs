//! The checks of the rights that the kernel gives this process.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use nix::libc::O_NONBLOCK;
use nix::sys::inotify::{InitFlags, Inotify};

use super::Check;
use crate::oom::kmsg;

/// The inotify watches of a full node: 250 pods with three containers each, on v1 with two cgroups for each container.
const ENOUGH_WATCHES: u64 = 2048;

/// The capabilities that the agent needs, with their bits (`linux/capability.h`).
const CAPABILITIES: [(&str, u32); 3] = [(DAC_OVERRIDE, 1), ("CAP_SYS_ADMIN", 21), ("CAP_SYSLOG", 34)];
/// The capability to write files of other users.
pub(super) const DAC_OVERRIDE: &str = "CAP_DAC_OVERRIDE";

/// The needed capabilities that are not effective in this process.
pub(super) fn missing_capabilities() -> Result<Vec<&'static str>, procfs::ProcError> {
    let status = procfs::process::Process::myself()?.status()?;
    Ok(missing_in(status.capeff))
}

fn missing_in(effective: u64) -> Vec<&'static str> {
    let missing = CAPABILITIES.iter().filter(|(_, bit)| effective >> bit & 1 == 0);
    missing.map(|(name, _)| *name).collect()
}

/// Whether this process can read the kernel's log, which names killed processes and reasons, and by which interface.
pub(super) fn kernel_log() -> Check {
    check_log(read_a_record(), kmsg::probe_syslog)
}

/// Reads one record through a descriptor of its own, so that other readers still get the record.
fn read_a_record() -> io::Result<()> {
    let mut log = OpenOptions::new()
        .read(true)
        .custom_flags(O_NONBLOCK)
        .open("/dev/kmsg")?;
    // As long as the longest record (CONSOLE_EXT_LOG_MAX): a shorter buffer is an error.
    let mut record = [0; 8192];
    match log.read(&mut record) {
        Ok(_) => Ok(()),
        // The log is empty, or the kernel overwrote the record during the read.
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::BrokenPipe) => Ok(()),
        Err(error) => Err(error),
    }
}

fn check_log(device: io::Result<()>, syslog: impl FnOnce() -> anyhow::Result<()>) -> Check {
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

/// Whether this process can watch files, and so notice changes by others at once.
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

    #[test]
    fn what_the_kernels_log_needs_is_said() {
        let absent = || Err(io::Error::from(ErrorKind::NotFound));
        assert_eq!(
            check_log(Ok(()), || Err(anyhow::anyhow!("refused"))).found,
            "/dev/kmsg is read"
        );
        let instead = check_log(absent(), || Ok(()));
        assert!(
            instead.status == "ok" && instead.found.starts_with("syslog(2) is read"),
            "{instead:?}"
        );
        let neither = check_log(absent(), || Err(anyhow::anyhow!("refused")));
        assert_eq!(neither.status, "warn");
        assert!(neither.mend.starts_with("grant CAP_SYSLOG"), "{neither:?}");
        let without_times = check_log(absent(), || {
            Err(anyhow::anyhow!("write Y to /sys/module/printk/parameters/time"))
        });
        assert!(
            without_times.found.contains("printk/parameters/time"),
            "{without_times:?}"
        );
    }

    #[test]
    fn too_few_watches_are_a_warning_with_the_number_to_set() {
        assert_eq!(check_inotify(Ok(()), Some(65536), Some(128)).status, "ok");
        let few = check_inotify(Ok(()), Some(100), Some(128));
        assert!(
            few.status == "warn" && few.mend.contains("max_user_watches=65536"),
            "{few:?}"
        );
        let none = check_inotify(Err(nix::errno::Errno::EMFILE), Some(65536), Some(0));
        assert!(none.mend.contains("max_user_instances"), "{none:?}");
        assert_eq!(check_inotify(Ok(()), None, None).status, "ok");
    }

    #[test]
    fn capabilities_are_named_where_they_are_missing() {
        assert!(missing_in(u64::MAX).is_empty());
        assert_eq!(missing_in(1 << 21), [DAC_OVERRIDE, "CAP_SYSLOG"]);
    }
}
