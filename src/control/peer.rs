//! Who is at the other end of a socket, by what the kernel recorded when the peer connected.
//!
//! `SO_PEERCRED` tells user, first group and process; `SO_PEERGROUPS` (Linux 4.13) the other groups. Both come from one
//! record, made at connect(2) and never changed (`sk_peer_cred`, net/unix/af_unix.c), so there is no moment at which
//! somebody else's groups could be read. The alternatives have one: `/proc/PID/status` shows what the process became
//! since, another program or another process of that number included, and a look-up of the user's groups by name shows
//! what the user might have rather than what the process has, in a database that a container does not share.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{GetOsString, PeerCredentials};

use super::backend::Caller;

/// Room for so many groups; a caller in more is treated as one in none.
const MOST_GROUPS: usize = 1024;
const GID_BYTES: usize = size_of::<libc::gid_t>();

/// The option, which nix does not have itself: bytes as the kernel copies them.
#[derive(Debug, Clone, Copy)]
struct PeerGroups;
nix::getsockopt_impl!(
    PeerGroups,
    libc::SOL_SOCKET,
    libc::SO_PEERGROUPS,
    OsString,
    GetOsString<[u8; MOST_GROUPS * GID_BYTES]>
);

/// Who connected, and which groups it is in besides its first one.
pub(super) fn identify(socket: &impl AsFd) -> io::Result<(Caller, Vec<u32>)> {
    let credentials = getsockopt(socket, PeerCredentials)?;
    let caller = Caller {
        uid: credentials.uid(),
        gid: credentials.gid(),
        pid: credentials.pid(),
    };
    let groups = match getsockopt(socket, PeerGroups) {
        Ok(bytes) => numbers(bytes.as_bytes()),
        Err(Errno::ERANGE) => {
            tracing::warn!(
                uid = caller.uid,
                "a caller is in more than {MOST_GROUPS} groups: none counts"
            );
            Vec::new()
        }
        // A kernel before 4.13: the first group is all that is known.
        Err(Errno::ENOPROTOOPT) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    Ok((caller, groups))
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    let (gids, _) = bytes.as_chunks::<GID_BYTES>();
    gids.iter().map(|gid| u32::from_ne_bytes(*gid)).collect()
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
