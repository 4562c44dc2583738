//! The checks of this machine, with the rights of this process. Blocks for a moment.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::libc::O_NONBLOCK;
use nix::sys::inotify::{InitFlags, Inotify};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};

use super::{Check, Found, Locations};
use crate::cgroup::Hierarchy;
use crate::model::Resource;
use crate::oom::kmsg::{self, SyslogError};

/// The least free space in bytes without a warning.
const LEAST_ROOM: u64 = 64 << 20;
/// The inotify watches of a full node: 250 pods with three containers each, on v1 with two cgroups for each container.
const ENOUGH_WATCHES: u64 = 2048;

/// The capabilities that the agent needs, with their bits (`linux/capability.h`).
const CAPABILITIES: [(&str, u32); 3] = [(DAC_OVERRIDE, 1), ("CAP_SYS_ADMIN", 21), ("CAP_SYSLOG", 34)];
/// The capability to write files of other users.
const DAC_OVERRIDE: &str = "CAP_DAC_OVERRIDE";

/// A check by its name.
type Named = (&'static str, fn(&Locations) -> Found);

/// Every check that needs no agent, in the order of the output.
const CHECKS: [Named; 8] = [
    ("kernel", |_| kernel()),
    ("cgroups", cgroups),
    ("cgroup files", cgroup_files),
    ("privileges", |_| privileges()),
    ("kernel log", |locations| {
        check_log(&locations.kmsg, read_a_record, kmsg::probe_syslog)
    }),
    ("inotify", |_| inotify()),
    ("state directory", |locations| {
        usable_directory(&locations.state_dir, "overrides would not survive a restart (stateDir)")
    }),
    ("audit log", audit_log),
];

/// Runs every check with the rights of this process.
pub fn local(locations: &Locations) -> Vec<Check> {
    CHECKS
        .iter()
        .map(|(name, check)| Check::new(name, check(locations)))
        .collect()
}

fn kernel() -> Found {
    let unknown = |error| Check::warn(format!("uname: {error}"), "nothing depends on it");
    let name = nix::sys::utsname::uname().map_err(unknown)?;
    let text = |part: &OsStr| part.to_string_lossy().into_owned();
    Ok([name.sysname(), name.release(), name.machine()].map(text).join(" "))
}

fn cgroups(locations: &Locations) -> Found {
    let hierarchy = Hierarchy::discover(locations.cgroup_root.as_deref());
    let hierarchy =
        hierarchy.map_err(|error| Check::fail(error.to_string(), "mount the host's /sys/fs/cgroup here"))?;
    let mut mounts = Resource::ALL
        .map(|one| hierarchy.mount(one).display().to_string())
        .to_vec();
    mounts.dedup();
    Ok(format!("{} at {}", hierarchy.version(), mounts.join(" and ")))
}

/// Whether this user may write limits on this mount.
fn cgroup_files(locations: &Locations) -> Found {
    let hierarchy = Hierarchy::discover(locations.cgroup_root.as_deref());
    let hierarchy = hierarchy.map_err(|_error| Check::fail("not found", "see the check cgroups"))?;
    for controller in Resource::ALL {
        // A file, as the agent writes files: without capabilities the directory at the top is read-only.
        let file = hierarchy.mount(controller).join("cgroup.procs");
        if let Err(error) = access(&file, AccessFlags::W_OK) {
            let found = format!("{} may not be written: {error}", file.display());
            let mend = match error {
                nix::errno::Errno::EROFS => {
                    "mount it read-write (in a container: the host's /sys/fs/cgroup as a hostPath volume, named by cgroupRoot)"
                }
                _ => "run as root",
            };
            return Err(Check::fail(found, mend));
        }
    }
    Ok("may be written".to_owned())
}

fn privileges() -> Found {
    let uid = nix::unistd::geteuid().as_raw();
    let status = procfs::process::Process::myself().and_then(|process| process.status());
    let unknown = |error| Check::warn(format!("uid {uid}, capabilities unknown: {error}"), "mount /proc");
    let missing = missing_in(status.map_err(unknown)?.capeff);
    let found = match missing.as_slice() {
        [] => format!("uid {uid}, every capability that matters"),
        names => format!("uid {uid}, without {}", names.join(", ")),
    };
    if uid == 0 || !missing.contains(&DAC_OVERRIDE) {
        return Ok(found);
    }
    let mend = format!("run as root, or grant {}", missing.join(" and "));
    Err(Check::fail(found, mend))
}

/// The needed capabilities that are not effective.
fn missing_in(effective: u64) -> Vec<&'static str> {
    let missing = CAPABILITIES.iter().filter(|(_, bit)| effective >> bit & 1 == 0);
    missing.map(|(name, _)| *name).collect()
}

/// Reads one record of the kernel's log through a descriptor of its own, so that other readers still get the record.
fn read_a_record(device: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut log = options.read(true).custom_flags(O_NONBLOCK).open(device)?;
    let kind = log.metadata()?.file_type();
    // What is read from a pipe is gone for its other readers.
    if kind.is_fifo() {
        return Ok(());
    }
    if !kind.is_char_device() {
        return Err(io::Error::other("it is no device"));
    }
    // As long as the longest record (CONSOLE_EXT_LOG_MAX): a shorter buffer is an error.
    let mut record = [0; 8192];
    match log.read(&mut record) {
        // A log has no end; /dev/null, which some hand to containers in its place, has one.
        Ok(0) => Err(io::Error::other("it is no log: it has an end")),
        // The log is empty, or the kernel overwrote the record during the read.
        Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::BrokenPipe) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Whether this process can read the kernel's log, which names killed processes and reasons, and by which interface: as the
/// agent opens the configured one.
fn check_log(
    configured: &Path,
    read: impl FnOnce(&Path) -> io::Result<()>,
    syslog: impl FnOnce() -> Result<(), SyslogError>,
) -> Found {
    const WITHOUT: &str = "until then OOM kills are counted, without process and cause";
    let shown = configured.display();
    let is = |name: &str| configured == Path::new(name);
    let device = if is(kmsg::SYSLOG) { None } else { Some(read(configured)) };
    let (found, missing) = match device {
        Some(Ok(())) => return Ok(format!("{shown} is read")),
        Some(Err(error)) if !is(kmsg::DEVICE) => {
            let mend = format!("set kmsg to a device that can be read, or to syslog; {WITHOUT}");
            return Err(Check::warn(format!("{shown} cannot be read: {error}"), mend));
        }
        Some(Err(error)) => (
            format!("syslog(2) is read: {shown} cannot be ({error})"),
            format!("neither {shown} ({error}) nor syslog(2) can be read"),
        ),
        None => ("syslog(2) is read".to_owned(), "syslog(2) cannot be read".to_owned()),
    };
    match syslog() {
        Ok(()) => Ok(found),
        Err(error) => Err(Check::warn(
            format!("{missing}: {error}"),
            format!("{}; {WITHOUT}", error.mend()),
        )),
    }
}

/// Whether this process can watch files, and so notice changes by others at once.
fn inotify() -> Found {
    let limit = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let opened = Inotify::init(InitFlags::IN_CLOEXEC).map(drop);
    check_inotify(opened, limit("max_user_watches"), limit("max_user_instances"))
}

fn check_inotify(opened: nix::Result<()>, watches: Option<u64>, instances: Option<u64>) -> Found {
    const WITHOUT: &str = "until then changes by others are found by the periodic check only (sweepInterval)";
    let [most, most_instances] =
        [watches, instances].map(|limit| limit.map_or("unknown".to_owned(), |limit| limit.to_string()));
    let found = format!("max_user_watches {most}, max_user_instances {most_instances}");
    match opened {
        Err(error) => Err(Check::warn(
            format!("no descriptor: {error}; {found}"),
            format!("sysctl fs.inotify.max_user_instances=1024; {WITHOUT}"),
        )),
        Ok(()) if watches.is_some_and(|watches| watches < ENOUGH_WATCHES) => Err(Check::warn(
            found,
            format!("sysctl fs.inotify.max_user_watches=65536, as a full node needs {ENOUGH_WATCHES}; {WITHOUT}"),
        )),
        Ok(()) => Ok(found),
    }
}

fn audit_log(locations: &Locations) -> Found {
    let Some(file) = &locations.audit_file else {
        return Ok("none is configured here".to_owned());
    };
    let directory = file.parent().unwrap_or(Path::new("/"));
    usable_directory(directory, "who changed what would not be kept (auditLog)")?;
    let bytes = fs::metadata(file).map_or(0, |metadata| metadata.len());
    Ok(format!("{}, {} KiB", file.display(), bytes / 1024))
}

/// A writable directory, which exists or can be created, with free space.
fn usable_directory(directory: &Path, consequence: &str) -> Found {
    let shown = directory.display();
    let there = directory.ancestors().find(|ancestor| ancestor.exists());
    let there = there.ok_or_else(|| Check::fail(format!("{shown} does not exist"), consequence))?;
    access(there, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|error| {
        let found = format!("{} may not be written: {error}", there.display());
        Check::fail(found, format!("let this user write to it, or {consequence}"))
    })?;
    let info = statvfs(there).map_err(|error| Check::warn(format!("{shown}: {error}"), consequence))?;
    let room = info.blocks_available().saturating_mul(info.fragment_size());
    let will_be_made = if there == directory { "" } else { " will be made" };
    let found = format!("{shown}{will_be_made}, {} MiB free", room >> 20);
    match room {
        LEAST_ROOM.. => Ok(found),
        _ => Err(Check::warn(found, format!("make room, or {consequence}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::path::PathBuf;

    #[test]
    fn a_missing_directory_is_made_or_fails() {
        let temp = tempfile::tempdir().unwrap();
        let wanted = temp.path().join("a/b");
        let check = Check::new("state directory", usable_directory(&wanted, "x"));
        assert!(check.found.contains("will be made"), "{check:?}");
        assert!(!wanted.exists());
        let check = Check::new(
            "state directory",
            usable_directory(Path::new("/proc/self/nothing"), "all is lost"),
        );
        assert_eq!((&*check.status, check.mend.is_empty()), ("fail", false), "{check:?}");
    }

    #[test]
    fn every_check_that_fails_says_what_to_do() {
        let temp = tempfile::tempdir().unwrap();
        let locations = Locations {
            cgroup_root: Some(PathBuf::from("/nowhere")),
            state_dir: temp.path().to_owned(),
            audit_file: Some(temp.path().join("audit.jsonl")),
            ..Locations::default()
        };
        let checks = local(&locations);
        assert_eq!(checks.len(), CHECKS.len());
        for check in &checks {
            assert!(!check.found.is_empty(), "{check:?}");
            assert_eq!(check.status == "ok", check.mend.is_empty(), "{check:?}");
        }
        let cgroups = checks.iter().find(|check| check.name == "cgroups").unwrap();
        assert_eq!(cgroups.status, "fail");
    }

    fn log(device: io::Result<()>, syslog: impl FnOnce() -> Result<(), SyslogError>) -> Check {
        Check::new("kernel log", check_log(kmsg::DEVICE.as_ref(), |_| device, syslog))
    }

    fn limits(opened: nix::Result<()>, watches: Option<u64>, instances: Option<u64>) -> Check {
        Check::new("inotify", check_inotify(opened, watches, instances))
    }

    #[test]
    fn what_the_kernels_log_needs_is_said() {
        let absent = || Err(io::Error::from(ErrorKind::NotFound));
        assert_eq!(log(Ok(()), || Err(SyslogError::Refused)).found, "/dev/kmsg is read");
        let instead = log(absent(), || Ok(()));
        assert!(
            instead.status == "ok" && instead.found.starts_with("syslog(2) is read"),
            "{instead:?}"
        );
        let neither = log(absent(), || Err(SyslogError::Refused));
        assert_eq!(neither.status, "warn");
        assert!(neither.mend.starts_with("grant CAP_SYSLOG"), "{neither:?}");
        let without_times = log(absent(), || Err(SyslogError::NoTimes));
        assert!(
            without_times
                .mend
                .starts_with("write Y to /sys/module/printk/parameters/time"),
            "{without_times:?}"
        );
    }

    #[test]
    fn the_configured_log_is_the_one_examined() {
        let absent = |_: &Path| -> io::Result<()> { Err(ErrorKind::NotFound.into()) };
        let check = |configured: &str, read: &dyn Fn(&Path) -> io::Result<()>, syslog: Result<(), SyslogError>| {
            Check::new("kernel log", check_log(configured.as_ref(), read, || syslog))
        };
        let elsewhere = check("/host/kmsg", &|_| Ok(()), Err(SyslogError::Refused));
        assert_eq!(elsewhere.found, "/host/kmsg is read");
        let wrong = check("/host/kmsg", &absent, Ok(()));
        assert!(
            wrong.status == "warn" && wrong.found.starts_with("/host/kmsg cannot be read: "),
            "the agent uses no other log: {wrong:?}"
        );
        assert_eq!(check(kmsg::SYSLOG, &absent, Ok(())).found, "syslog(2) is read");
        let refused = check(kmsg::SYSLOG, &|_| Ok(()), Err(SyslogError::Refused));
        assert!(refused.found.starts_with("syslog(2) cannot be read: "), "{refused:?}");
    }

    #[test]
    fn what_is_in_a_pipe_is_left_there() {
        let temp = tempfile::tempdir().unwrap();
        let pipe = temp.path().join("kmsg");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut both = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        both.write_all(b"record").unwrap();
        read_a_record(&pipe).unwrap();
        let mut left = [0; 6];
        both.read_exact(&mut left).unwrap();
        assert_eq!(&left, b"record");
        for no_log in [temp.path(), Path::new("/dev/null")] {
            assert!(read_a_record(no_log).is_err(), "{}", no_log.display());
        }
    }

    #[test]
    fn few_watches_warn_with_the_number_to_set() {
        assert_eq!(limits(Ok(()), Some(65536), Some(128)).status, "ok");
        let few = limits(Ok(()), Some(100), Some(128));
        assert!(
            few.status == "warn" && few.mend.contains("max_user_watches=65536"),
            "{few:?}"
        );
        let none = limits(Err(nix::errno::Errno::EMFILE), Some(65536), Some(0));
        assert!(none.mend.contains("max_user_instances"), "{none:?}");
        assert_eq!(limits(Ok(()), None, None).status, "ok");
    }

    #[test]
    fn missing_capabilities_are_named() {
        assert!(missing_in(u64::MAX).is_empty());
        assert_eq!(missing_in(1 << 21), [DAC_OVERRIDE, "CAP_SYSLOG"]);
    }

    #[test]
    fn room_and_size_are_shown() {
        let temp = tempfile::tempdir().unwrap();
        let mut locations = Locations {
            state_dir: temp.path().to_owned(),
            ..Locations::default()
        };
        assert_eq!(audit_log(&locations).unwrap(), "none is configured here");
        let file = temp.path().join("audit.jsonl");
        fs::write(&file, "x".repeat(3 << 10)).unwrap();
        locations.audit_file = Some(file.clone());
        // A full disk is a warning.
        if let Ok(found) = audit_log(&locations) {
            assert_eq!(found, format!("{}, 3 KiB", file.display()));
        }
        let check = Check::new("state directory", usable_directory(temp.path(), "all is lost"));
        let begins = format!("{}, ", temp.path().display());
        assert!(
            check.found.starts_with(&begins) && check.found.ends_with(" MiB free"),
            "{check:?}"
        );
    }
}
