//! Locks the state directory, so that one process alone may write limits.
//!
//! The kernel releases the lock at the end of the process. The file stays and names the process: its removal would let two
//! processes lock two files of one name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use jiff::Timestamp;
use tokio::time::Instant;

const FILE_NAME: &str = "vscaled.lock";
/// The longest text that the agent reads from the lock file, in bytes.
const LONGEST_HOLDER: u64 = 512;
/// The pause between two attempts.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// The lock. The drop releases it.
#[derive(Debug)]
pub(super) struct StateLock {
    _file: File,
}

impl StateLock {
    /// Locks the state directory, which exists, in the name of this command. Waits at most `patience` for
    /// the end of another process.
    ///
    /// Errors: another process has the lock, which the message names, or the file cannot be opened, locked or written.
    pub(super) async fn acquire(state_dir: &Path, command: &str, patience: Duration) -> Result<Self> {
        let file = state_dir.join(FILE_NAME);
        let path = &file.display();
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
        let mut file = options.open(&file).map_err(failed("open"))?;
        let until = Instant::now() + patience;
        let mut waits = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(failed("lock")(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            let holder = holder(&file).map_err(failed("read"))?;
            if Instant::now() >= until {
                bail!(
                    "another vscaled is running: {holder}; it has locked {path}; stop it first (`systemctl stop vscaled`, or \
                     take the node out of the DaemonSet)"
                );
            }
            if !std::mem::replace(&mut waits, true) {
                tracing::warn!(%holder, ?patience, "another vscaled still runs; waiting for its end");
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
        write_holder(&mut file, command).map_err(failed("write"))?;
        Ok(Self { _file: file })
    }
}

fn holder(mut file: &File) -> io::Result<String> {
    let mut text = String::new();
    file.rewind()?;
    file.take(LONGEST_HOLDER).read_to_string(&mut text)?;
    Ok(match text.trim() {
        "" => "a process that has not said which".to_owned(),
        text => text.to_owned(),
    })
}

/// The host name, which is the pod's, tells agents in containers apart: they all have the same process id.
fn write_holder(file: &mut File, command: &str) -> io::Result<()> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (pid, host, since) = (std::process::id(), host.trim(), Timestamp::now());
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "vscaled {command}, pid {pid} on {host}, since {since:.0}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn a_second_process_is_told_who_has_the_lock_and_gets_it_when_that_ends() {
        let directory = tempfile::tempdir().unwrap();
        let first = StateLock::acquire(directory.path(), "run", Duration::ZERO)
            .await
            .unwrap();
        let file = std::fs::metadata(directory.path().join(FILE_NAME)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "others can lock it");
        let error = StateLock::acquire(directory.path(), "restore", Duration::ZERO)
            .await
            .unwrap_err();
        let said = error.to_string();
        let pid = format!("vscaled run, pid {} on ", std::process::id());
        assert!(
            said.starts_with("another vscaled is running: ") && said.contains(&pid),
            "{said}"
        );
        assert!(said.contains("since 20") && said.contains("vscaled.lock"), "{said}");
        let waiting = StateLock::acquire(directory.path(), "run", Duration::from_secs(60));
        let (second, ()) = tokio::join!(waiting, async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(first);
        });
        second.unwrap();
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(FILE_NAME)).unwrap();
        let error = StateLock::acquire(directory.path(), "run", Duration::ZERO)
            .await
            .unwrap_err();
        assert!(error.to_string().starts_with("stateDir: cannot open "), "{error}");
    }
}
