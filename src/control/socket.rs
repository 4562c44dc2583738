//! Creates the socket's file with its mode and its group, and removes it at the end.
//!
//! In come a path and the groups that may call; out comes a listening socket that was never open to others. The lock of the
//! state directory, not this file, decides which agent may write limits.
//!
//! A file has one owner and one group. With one configured group, the socket belongs to that group, and no other user can
//! connect (0660). With two groups, every user can connect (0666) and the server alone decides, as it does in any case: an
//! access list on the file needs support of the file system, and a directory for each group needs a second socket. A
//! stranger then gets an answer that names the groups, and a line in the audit log, and cannot keep others out
//! ([`connections`](super::connections)). The agent replaces the socket of a dead agent, but not that of a living process.

use std::ffi::OsString;
use std::fs::{DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, anyhow, bail};
use nix::sys::stat::{Mode, fchmod};
use tokio::net::{UnixListener, UnixSocket, UnixStream};

use super::access::Access;

/// The connections that may wait for accept(2).
const BACKLOG: u32 = 128;

/// For `map_err`: a system call on `path` failed.
fn failed<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Error + use<E> {
    let path = path.display().to_string();
    move |error| anyhow!("cannot {action} {path}: {}", error.into())
}

/// A listening socket, and the groups that may call there. The drop removes its file.
#[derive(Debug)]
pub struct ControlSocket {
    pub(super) listener: UnixListener,
    pub(super) file: SocketFile,
    pub(super) access: Access,
}

impl ControlSocket {
    /// Listens at `path` for root, this process's user and the groups in `access`, and creates the
    /// directory where it is missing.
    ///
    /// A directory that belongs to this user, holds nothing else and is not sticky gets mode 0700, or 0755 where groups may
    /// call: a kubelet makes the directory of a hostPath volume with 0755.
    ///
    /// Errors: another process answers there, the file there is no socket, every user may replace files in the directory,
    /// or a system call failed. The file at `path` is then unchanged, unless it was the socket of a dead agent.
    pub async fn bind(path: &Path, access: Access) -> Result<Self> {
        prepare_directory(path, &access)?;
        remove_stale(path).await?;
        let socket = UnixSocket::new_stream().map_err(failed("make a socket for", path))?;
        // bind(2) gives the file the mode of the unbound socket (unix_bind_bsd in net/unix/af_unix.c), so the file never has
        // a wider mode. umask belongs to the whole process and stays as it is.
        fchmod(socket.as_fd(), Mode::S_IRUSR | Mode::S_IWUSR).map_err(failed("restrict", path))?;
        socket.bind(path).map_err(failed("bind", path))?;
        let file = SocketFile {
            path: path.to_owned(),
            identity: identity(path).map_err(failed("look at", path))?,
        };
        let listener = socket.listen(BACKLOG).map_err(failed("listen at", path))?;
        open_to(path, &access)?;
        Ok(Self { listener, file, access })
    }
}

/// Lets the configured groups connect.
fn open_to(path: &Path, access: &Access) -> Result<()> {
    let Some(group) = access.operators.as_ref().or(access.readers.as_ref()) else {
        return Ok(());
    };
    let both = access.operators.is_some() && access.readers.is_some();
    // `prepare_directory` refuses a directory in which everybody could replace the socket, so the path still names it.
    lchown(path, None, Some(group.gid)).map_err(failed("give to its group", path))?;
    let mode = Permissions::from_mode(if both { 0o666 } else { 0o660 });
    std::fs::set_permissions(path, mode).map_err(failed("open to its group", path))
}

fn prepare_directory(path: &Path, access: &Access) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = parent.unwrap_or(Path::new("."));
    let made = DirBuilder::new().recursive(true).mode(0o755).create(directory);
    made.map_err(failed("create the directory", directory))?;
    let found = directory.metadata().map_err(failed("look at", directory))?;
    let mode = found.mode() & 0o7777;
    // A sticky directory such as /tmp is for every user, also while it is empty. Nobody can replace the files of others there.
    let is_sticky = mode & 0o1000 != 0;
    if mode & 0o002 != 0 && !is_sticky {
        bail!(
            "{} has mode {mode:04o}: anybody could put a socket of their own there; take the right to write from others",
            directory.display()
        );
    }
    let is_own = found.uid() == nix::unistd::geteuid().as_raw() && !is_sticky;
    if is_own && holds_only(path, directory).map_err(failed("look at", directory))? {
        let open = access.operators.is_some() || access.readers.is_some();
        let mode = Permissions::from_mode(if open { 0o755 } else { 0o700 });
        std::fs::set_permissions(directory, mode).map_err(failed("restrict", directory))?;
    }
    Ok(())
}

/// Whether the directory holds nothing but the socket, and the lock that earlier agents left beside it.
fn holds_only(path: &Path, directory: &Path) -> io::Result<bool> {
    let socket = path.file_name().unwrap_or_default();
    let lock = OsString::from_iter([socket, ".lock".as_ref()]);
    directory.read_dir()?.try_fold(true, |all, entry| {
        let name = entry?.file_name();
        Ok(all && (name == socket || name == lock))
    })
}

/// Removes a socket at which no process answers.
async fn remove_stale(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => bail!(
            "{} exists and is not a socket: move it away, or listen elsewhere with --socket",
            path.display()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", path)(error)),
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed("remove the stale socket", path))
        }
        // EAGAIN: the agent lives, and its backlog is full.
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(failed("connect to", path)(error)),
        Ok(_) | Err(_) => bail!(
            "another vscaled is running: it answers at {}; stop it first, or listen elsewhere with --socket",
            path.display()
        ),
    }
}

/// Removes the socket's file when dropped, unless another file has its place.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let removed = identity(&self.path).and_then(|found| match found == self.identity {
            true => std::fs::remove_file(&self.path),
            false => Ok(()),
        });
        if let Err(error) = removed
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "the control socket could not be removed");
        }
    }
}

/// The device and the inode of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests;
