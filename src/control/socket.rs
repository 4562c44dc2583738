//! The socket's file: who may see it, who owns it, when it goes.
//!
//! In comes a path, and who may call; out comes a listening socket there that has never been open to others. Whether
//! another agent may write limits is a matter of the state directory's lock, not of this file's.
//!
//! A file has one owner and one group. Where one group of callers is configured, the socket belongs to it and nobody else
//! can even connect (0660). Where there are two, everybody can (0666) and the server alone decides, as it does in any
//! case: an access list on the file would need a file system that has them, and a directory for each group a second
//! socket. Strangers then get an answer that says who may call, and a line in the audit log, and cannot keep others out
//! ([`connections`](super::connections)). A socket left behind by a dead agent is replaced, one that a living process answers at is not.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, fchmod};
use tokio::net::{UnixListener, UnixSocket, UnixStream};

use super::access::Access;

/// Callers that may wait to be accepted.
const BACKLOG: u32 = 128;

/// Why the agent cannot listen at a path.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else answers there, or is about to.
    #[error("another vscaled is running: it answers at {0}; stop it first, or listen elsewhere with --socket")]
    Running(PathBuf),
    /// Something that is not a socket is there; it is left alone.
    #[error("{0} exists and is not a socket: move it away, or listen elsewhere with --socket")]
    Occupied(PathBuf),
    /// Everybody may replace files in the directory.
    #[error("{} has mode {mode:04o}: anybody could put a socket of their own there; take the right to write from others", directory.display())]
    Exposed {
        /// Where the socket would be.
        directory: PathBuf,
        mode: u32,
    },
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl BindError {
    /// For `map_err`: a system call on `path` failed.
    fn io<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Self + use<E> {
        let path = path.to_owned();
        move |error| Self::Io {
            action,
            path,
            source: error.into(),
        }
    }
}

/// A listening socket, and who may call there. Its file goes when this is dropped.
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
    /// A directory that belongs to this user and holds nothing else gets mode 0700, or 0755 where groups may call: a
    /// kubelet makes the directory of a hostPath volume with 0755.
    ///
    /// The lock file beside the socket stays: removing it would let two agents hold two locks of one name.
    ///
    /// Errors: [`BindError`]; whatever was at `path` before is still there then, unless it was a dead agent's socket.
    pub async fn bind(path: &Path, access: Access) -> Result<Self, BindError> {
        prepare_directory(path, &access)?;
        let lock = lock(path)?;
        remove_stale(path).await?;
        let socket = UnixSocket::new_stream().map_err(BindError::io("make a socket for", path))?;
        // bind(2) gives the file the mode of the unbound socket (unix_bind_bsd in net/unix/af_unix.c), so there is no moment
        // at which it is wider; umask, which belongs to the whole process, is left alone.
        fchmod(socket.as_fd(), Mode::S_IRUSR | Mode::S_IWUSR).map_err(BindError::io("restrict", path))?;
        socket.bind(path).map_err(BindError::io("bind", path))?;
        let file = SocketFile::new(path, lock).map_err(BindError::io("look at", path))?;
        let listener = socket.listen(BACKLOG).map_err(BindError::io("listen at", path))?;
        open_to(path, &access)?;
        Ok(Self { listener, file, access })
    }
}

/// Lets the configured groups connect.
fn open_to(path: &Path, access: &Access) -> Result<(), BindError> {
    let Some(group) = access.operators.as_ref().or(access.readers.as_ref()) else {
        return Ok(());
    };
    let both = access.operators.is_some() && access.readers.is_some();
    // The directory belongs to the agent alone ([`BindError::Exposed`]), so the path still names this socket.
    lchown(path, None, Some(group.gid)).map_err(BindError::io("give to its group", path))?;
    let mode = Permissions::from_mode(if both { 0o666 } else { 0o660 });
    std::fs::set_permissions(path, mode).map_err(BindError::io("open to its group", path))
}

fn prepare_directory(path: &Path, access: &Access) -> Result<(), BindError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = parent.unwrap_or(Path::new("."));
    let made = DirBuilder::new().recursive(true).mode(0o755).create(directory);
    made.map_err(BindError::io("create the directory", directory))?;
    let found = directory.metadata().map_err(BindError::io("look at", directory))?;
    let mode = found.mode() & 0o7777;
    let (writable_by_others, sticky) = (mode & 0o002 != 0, mode & 0o1000 != 0);
    if writable_by_others && !sticky {
        let directory = directory.to_owned();
        return Err(BindError::Exposed { directory, mode });
    }
    if is_only_for(path, directory).map_err(BindError::io("look at", directory))? {
        let open = access.operators.is_some() || access.readers.is_some();
        let mode = Permissions::from_mode(if open { 0o755 } else { 0o700 });
        std::fs::set_permissions(directory, mode).map_err(BindError::io("restrict", directory))?;
    }
    Ok(())
}

/// Whether the directory is this user's and holds nothing but the socket and its lock.
fn is_only_for(path: &Path, directory: &Path) -> io::Result<bool> {
    if directory.metadata()?.uid() != nix::unistd::geteuid().as_raw() {
        return Ok(false);
    }
    let own = [path.to_owned(), lock_path(path)];
    for entry in directory.read_dir()? {
        let name = entry?.file_name();
        if !own.iter().any(|own| own.file_name() == Some(&name)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Locks the right to listen at `path`: of two processes that find a dead agent's socket, one removes it. The kernel
/// releases the lock when this process ends, however it ends.
fn lock(path: &Path) -> Result<File, BindError> {
    let lock_path = lock_path(path);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&lock_path).map_err(BindError::io("open", &lock_path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(BindError::Running(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(BindError::io("lock", &lock_path)(error)),
    }
}

/// Removes a socket at which nobody answers.
async fn remove_stale(path: &Path) -> Result<(), BindError> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Err(BindError::Occupied(path.to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(BindError::io("look at", path)(error)),
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(BindError::io("remove the stale socket", path))
        }
        // EAGAIN: so busy that its backlog is full, but alive.
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(BindError::io("see who answers at", path)(error)),
        Ok(_) | Err(_) => Err(BindError::Running(path.to_owned())),
    }
}

/// Removes the socket's file when dropped, unless somebody has put another one there.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    _lock: File,
}

impl SocketFile {
    fn new(path: &Path, lock: File) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            identity: identity(path)?,
            _lock: lock,
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let removed = match identity(&self.path) {
            Ok(found) if found == self.identity => std::fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), %error, "the control socket could not be removed");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Which file this is, whatever its name.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests;
