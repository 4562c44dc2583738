//! Who is at the other end of a socket, by what the kernel recorded when the peer connected.
//!
//! `SO_PEERCRED` tells user, first group and process; `SO_PEERGROUPS` (Linux 4.13) the other groups. Both come from one
//! record, made at connect(2) and never changed (`sk_peer_cred`, net/unix/af_unix.c), so there is no moment at which
//! somebody else's groups could be read. The alternatives have one: `/proc/PID/status` shows what the process became
//! since, another program or another process of that number included, and a look-up of the user's groups by name shows
//! what the user might have rather than what the process has, in a database that a container does not share.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use uapi::c::{SO_PEERGROUPS, SOL_SOCKET};

/// As many groups as the kernel lets a process have (`NGROUPS_MAX`, linux/limits.h).
const MOST_GROUPS: usize = 65_536;
/// As many as nearly every process has.
const USUAL_GROUPS: usize = 64;

/// Who calls: what the kernel recorded about the peer when it connected (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Process, 0 if it lives in a pid namespace that is not visible from here.
    pub pid: i32,
}

/// Who connected, and which groups it is in besides its first one.
pub(super) fn identify(socket: &impl AsFd) -> io::Result<(Caller, Vec<u32>)> {
    let credentials = getsockopt(socket, PeerCredentials)?;
    let caller = Caller {
        uid: credentials.uid(),
        gid: credentials.gid(),
        pid: credentials.pid(),
    };
    let groups = match groups(socket, USUAL_GROUPS) {
        Err(error) if is(&error, Errno::ERANGE) => groups(socket, MOST_GROUPS),
        groups => groups,
    };
    match groups {
        // A kernel before 4.13: the first group is all that is known.
        Err(error) if is(&error, Errno::ENOPROTOOPT) => Ok((caller, Vec::new())),
        groups => Ok((caller, groups?)),
    }
}

/// The groups, if they are no more than that. nix has no such option: the one call it would take is uapi's.
fn groups(socket: &impl AsFd, at_most: usize) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; at_most];
    let bytes = uapi::getsockopt(socket.as_fd().as_raw_fd(), SOL_SOCKET, SO_PEERGROUPS, &mut groups[..])
        .map_err(io::Error::from)?;
    groups.truncate(bytes / size_of::<u32>());
    Ok(groups)
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_kernel_says_who_connected_and_in_which_groups_it_is() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (caller, mut groups) = identify(&ours).unwrap();
        assert_eq!(caller.uid, nix::unistd::geteuid().as_raw());
        assert_eq!(caller.gid, nix::unistd::getegid().as_raw());
        assert_eq!(caller.pid, nix::unistd::getpid().as_raw());
        let mut own: Vec<u32> = nix::unistd::getgroups()
            .unwrap()
            .iter()
            .map(|gid| gid.as_raw())
            .collect();
        own.sort_unstable();
        groups.sort_unstable();
        assert_eq!(groups, own);
    }
}
