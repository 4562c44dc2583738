//! The state directory: locked, so that one process alone may write limits, with the state of an earlier process.
//!
//! The kernel releases the lock at the end of the process. The file stays and names the process: its removal would let two
//! processes lock two files of one name.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use jiff::Timestamp;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::actuate::shrink::Freezer;
use crate::guard::{LimitFiles, MarkedLimits};
use crate::model::objects::PodUid;
use crate::reconcile::store::{Restored, StateFile};

const FILE_NAME: &str = "vscaled.lock";
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// How long the disk may take before a log line says so, and the time between two such lines.
const UNANSWERED: Duration = Duration::from_secs(10);
/// The problem of marks without a state file, which the first agent saves before it writes to pods: it was removed, or an agent that set
/// one aside has ended before it saved another.
const MISSING: &str = "there is no state file at the start, although an earlier agent wrote to pods; overrides from before are lost, \
                       and these pods go back to what their specs and VPAs say";

/// The state directory of the one process that may write limits, with the state of an earlier process.
#[derive(Debug)]
pub(super) struct StateDirectory {
    pub(super) file: StateFile,
    pub(super) freezer: Arc<Freezer>,
    pub(super) restored: Restored,
    /// The files of temporary limits, and the limits of an earlier agent.
    pub(super) limit_files: Arc<LimitFiles>,
    pub(super) earlier_limits: BTreeMap<PodUid, MarkedLimits>,
    /// The drop releases the lock.
    pub(super) lock: File,
}

/// Runs work that may wait for the disk on another thread, so that the runtime goes on. While the disk does not answer, the log says so
/// every [`UNANSWERED`].
pub(super) async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    until_answered(spawn_blocking(work), UNANSWERED).await?
}

async fn until_answered<T>(answer: impl Future<Output = T>, patience: Duration) -> T {
    let mut answer = pin!(answer);
    loop {
        match timeout(patience, answer.as_mut()).await {
            Ok(answered) => return answered,
            Err(_) => tracing::error!("stateDir: no answer for {patience:?}; vscaled waits: check its disk"),
        }
    }
}

impl StateDirectory {
    /// Locks and reads the directory, and thaws the cgroups that an earlier agent had frozen when it was killed. A panic
    /// thaws cgroups, too. Blocks.
    ///
    /// Errors: another process has the lock for longer than `patience`, or the directory cannot be used.
    pub(super) fn open(directory: &Path, command: &str, patience: Duration) -> Result<Self> {
        allow_open_files();
        let file = StateFile::in_directory(directory).context("stateDir")?;
        check_entries(directory)?;
        let lock = lock(directory, command, patience).inspect_err(|_| thaw_without_lock(directory))?;
        let shown = directory.display();
        let unusable =
            |error| anyhow!("stateDir: cannot use {shown}: {error}; check that it is writable and has free space");
        // Before any step that could fail or block: processes may be frozen.
        let freezer = Arc::new(Freezer::below(directory).map_err(unusable)?);
        thaw(&freezer);
        freezer.thaw_on_panic();
        let (limit_files, earlier_limits) = LimitFiles::below(directory).map_err(unusable)?;
        let is_missing = !file.exists() && !earlier_limits.is_empty();
        let mut restored = file.load().context("stateDir")?;
        if is_missing {
            tracing::error!("{MISSING}");
            restored.problem = Some(MISSING.to_owned());
        }
        Ok(Self {
            restored,
            file,
            freezer,
            limit_files,
            earlier_limits,
            lock,
        })
    }

    /// Saves an empty state where no agent has saved one or written to pods: an agent that is killed early leaves marks, and has lost
    /// nothing.
    pub(super) fn save_first(&self) {
        if !self.file.exists()
            && self.earlier_limits.is_empty()
            && let Err(error) = self.file.save(BTreeMap::new())
        {
            tracing::warn!(%error, "the first state is not saved");
        }
    }
}

/// Thaws the cgroups that an agent had frozen when it was killed.
fn thaw(freezer: &Freezer) {
    for left in freezer.thaw_left_behind() {
        match left {
            Ok(cgroup) => {
                tracing::warn!(cgroup = %cgroup.display(), "was left frozen when the agent was killed; thawed");
            }
            Err(problem) => tracing::error!("a cgroup may have been left frozen: {problem}"),
        }
    }
}

/// Thaws cgroups before the process ends because it cannot write to the directory: no later start could either. Leaves the cgroups
/// of another process, which has the lock, alone.
fn thaw_without_lock(directory: &Path) {
    let Ok(file) = File::open(directory.join(FILE_NAME)) else {
        return;
    };
    if file.try_lock().is_ok() {
        match Freezer::below(directory) {
            Ok(freezer) => thaw(&freezer),
            Err(error) => tracing::error!(%error, "cgroups may have been left frozen"),
        }
    }
}

/// Errors: an entry is a pipe or a device, which to open or to read may take for ever.
fn check_entries(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory).context("stateDir")? {
        let path = entry.context("stateDir")?.path();
        // A link without a target blocks nothing, nor does a socket: the agent's own may be here.
        let may_block = |kind: fs::FileType| kind.is_fifo() || kind.is_char_device() || kind.is_block_device();
        let is_foreign = fs::metadata(&path).is_ok_and(|entry| may_block(entry.file_type()));
        if is_foreign {
            bail!(
                "stateDir: {} is neither a file nor a directory: move it away",
                path.display()
            );
        }
    }
    Ok(())
}

/// Locks the state directory, which exists, in the name of this command. Waits at most `patience` for
/// the end of another process.
///
/// Errors: another process has the lock, which the message names, or the file cannot be opened, locked or written.
fn lock(state_dir: &Path, command: &str, patience: Duration) -> Result<File> {
    let name = state_dir.join(FILE_NAME);
    let path = &name.display();
    let failed = |action| {
        move |error: io::Error| {
            anyhow!(
                "stateDir: cannot {action} {path}: {error}; check that stateDir is on a local disk, is writable and has \
                 free space"
            )
        }
    };
    let mut options = OpenOptions::new();
    // A user who may open the file may lock it, and keep every agent from starting.
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&name).map_err(failed("open"))?;
    let until = Instant::now() + patience;
    let mut waits = false;
    while let Err(error) = file.try_lock() {
        if let TryLockError::Error(error) = error {
            return Err(failed("lock")(error));
        }
        let holder = fs::read_to_string(&name).map_err(failed("read"))?;
        let holder = match holder.trim() {
            "" => "an unknown process",
            holder => holder,
        };
        if Instant::now() >= until {
            bail!(
                "another vscaled is running: {holder}; it has locked {path}; stop it first (`systemctl stop vscaled`, or \
                 take the node out of the DaemonSet)"
            );
        }
        if !std::mem::replace(&mut waits, true) {
            tracing::warn!(%holder, ?patience, "another vscaled still runs; waiting for its end");
        }
        thread::sleep(TRY_AGAIN);
    }
    // The host name, which is the pod's, distinguishes agents in containers: they all have the same process id.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (pid, host, since) = (std::process::id(), host.trim(), Timestamp::now());
    let holder = format!("vscaled {command}, pid {pid} on {host}, since {since:.0}\n");
    if let Err(error) = fs::write(&name, holder) {
        // The lock holds without its holder's name.
        tracing::warn!(%error, "stateDir: cannot write {path}; is the disk full?");
    }
    Ok(file)
}

/// Raises the limit of open files. Every guarded container needs three descriptors on v1 and one on v2, and two more if crun
/// made an inner cgroup: 1024 are too few for a full node.
fn allow_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) if soft < hard => setrlimit(Resource::RLIMIT_NOFILE, hard, hard),
        known => known.map(drop),
    };
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files could not be raised; a full node may need more");
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::task::Poll;

    use tokio::runtime::Builder;

    use super::*;
    use crate::observe::log::LogFormat;
    use crate::observe::log::tests::logged;

    #[test]
    fn a_second_process_learns_who_has_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let first = lock(directory.path(), "run", Duration::ZERO).unwrap();
        let file = fs::metadata(directory.path().join(FILE_NAME)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "others can lock it");
        let error = lock(directory.path(), "restore", Duration::ZERO).unwrap_err();
        let said = error.to_string();
        let pid = format!("vscaled run, pid {} on ", std::process::id());
        assert!(
            said.starts_with("another vscaled is running: ") && said.contains(&pid),
            "{said}"
        );
        assert!(said.contains("since 20") && said.contains("vscaled.lock"), "{said}");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock(directory.path(), "run", Duration::from_secs(60)));
            drop(first);
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_disk_that_hangs_is_told_again_and_again() {
        let mut polls = 0;
        // It answers after two waits at least: each wait asks at most twice.
        let disk = poll_fn(|_| {
            polls += 1;
            if polls > 4 { Poll::Ready("state") } else { Poll::Pending }
        });
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let text = logged(LogFormat::Text, "error", |_| {
            assert_eq!(runtime.block_on(until_answered(disk, Duration::ZERO)), "state");
        });
        assert!(text.matches("stateDir: no answer for 0ns").count() >= 2, "{text}");
    }

    #[test]
    fn a_full_disk_keeps_no_agent_from_starting() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", directory.path().join(FILE_NAME)).unwrap();
        lock(directory.path(), "run", Duration::ZERO).unwrap();
    }

    #[test]
    fn a_pipe_among_the_files_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("state.json");
        fs::create_dir(directory.path().join("lent")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("vscaled.sock")).unwrap();
        check_entries(directory.path()).unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = check_entries(directory.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("{} is neither", pipe.display())), "{error}");
    }

    #[test]
    fn marks_without_a_state_file_show_its_loss() {
        for (is_marked, is_saved, is_lost) in [(false, false, false), (true, false, true), (true, true, false)] {
            let directory = tempfile::tempdir().unwrap();
            if is_marked {
                let marks = directory.path().join("lent");
                fs::create_dir(&marks).unwrap();
                fs::write(marks.join("uid-a"), "").unwrap();
            }
            if is_saved {
                let file = StateFile::in_directory(directory.path()).unwrap();
                file.save(BTreeMap::new()).unwrap();
            }
            let opened = StateDirectory::open(directory.path(), "run", Duration::ZERO).unwrap();
            assert_eq!(opened.restored.problem.is_some(), is_lost, "{is_marked} {is_saved}");
        }
    }

    #[test]
    fn a_first_agent_that_is_killed_loses_nothing() {
        let directory = tempfile::tempdir().unwrap();
        for is_marked in [false, true] {
            if is_marked {
                fs::write(directory.path().join("lent/uid-a"), "").unwrap();
            }
            let opened = StateDirectory::open(directory.path(), "run", Duration::ZERO).unwrap();
            assert_eq!((opened.file.exists(), &opened.restored.problem), (is_marked, &None));
            opened.save_first();
        }
    }

    #[test]
    fn an_unwritable_directory_leaves_nothing_frozen() {
        let directory = tempfile::tempdir().unwrap();
        let [cgroup, markers] = ["cgroup", "frozen"].map(|name| directory.path().join(name));
        fs::create_dir(&cgroup).unwrap();
        fs::create_dir(&markers).unwrap();
        fs::write(cgroup.join("cgroup.freeze"), "1\n").unwrap();
        fs::write(cgroup.join("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        let number = fs::metadata(&cgroup).unwrap().ino();
        let marker = format!("{{\"cgroup\": \"{}\", \"number\": {number}}}", cgroup.display());
        fs::write(markers.join("1.json"), marker).unwrap();
        // It can be opened for reading alone, also by root.
        fs::create_dir(directory.path().join(FILE_NAME)).unwrap();
        let opened = StateDirectory::open(directory.path(), "run", Duration::ZERO);
        assert!(opened.unwrap_err().to_string().starts_with("stateDir: cannot open "));
        let freeze = fs::read_to_string(cgroup.join("cgroup.freeze")).unwrap();
        assert_eq!(freeze.trim(), "0");
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join(FILE_NAME)).unwrap();
        let error = lock(directory.path(), "run", Duration::ZERO).unwrap_err();
        assert!(error.to_string().starts_with("stateDir: cannot open "), "{error}");
    }
}
