//! The two system calls of vscaled that neither nix nor rustix has: `getsockopt(SO_PEERGROUPS)` and syslog(2).
//!
//! This is the only crate of vscaled with `unsafe` code. Each block makes one call and states why the call is sound. Both
//! calls only read.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd as _};

use libc::{SO_PEERGROUPS, SOL_SOCKET, c_int, getsockopt, gid_t, klogctl, socklen_t};

/// The most groups of a process (`NGROUPS_MAX`, linux/limits.h).
const MOST_GROUPS: usize = 65_536;
/// Actions of syslog(2).
const SYSLOG_ACTION_READ_ALL: c_int = 3;
const SYSLOG_ACTION_SIZE_BUFFER: c_int = 10;

/// The supplementary groups of the peer of a unix socket, as the kernel recorded them at connect(2).
///
/// Errors: `ENOPROTOOPT` on a kernel before 4.13; those of getsockopt(2).
pub fn peer_groups(socket: &impl AsFd) -> Result<Vec<u32>> {
    let mut groups: Vec<gid_t> = vec![0; MOST_GROUPS];
    let mut bytes = socklen_t::try_from(size_of_val(&*groups)).map_err(|_| ErrorKind::InvalidInput)?;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `groups` is writable memory of `bytes` bytes and `bytes` a valid length, both for the whole call. The kernel
    // writes at most `bytes` bytes of group numbers, for which every bit pattern is a valid `gid_t`, and then sets `bytes`
    // to the number of written bytes. `fd` is open: `socket` borrows it.
    let result = unsafe {
        getsockopt(
            fd,
            SOL_SOCKET,
            SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return Err(Error::last_os_error());
    }
    let bytes = usize::try_from(bytes).map_err(|_| ErrorKind::InvalidData)?;
    groups.truncate(bytes / size_of::<gid_t>());
    groups.shrink_to_fit();
    Ok(groups)
}

/// The size of the kernel's log in bytes.
///
/// Errors: `EPERM` without `CAP_SYSLOG`.
pub fn kernel_log_size() -> Result<usize> {
    syslog(SYSLOG_ACTION_SIZE_BUFFER, &mut [])
}

/// Copies the last bytes of the kernel's log that fit into `buffer`, and returns their number. Other readers miss nothing.
///
/// Errors: `EPERM` without `CAP_SYSLOG`.
pub fn read_kernel_log(buffer: &mut [u8]) -> Result<usize> {
    syslog(SYSLOG_ACTION_READ_ALL, buffer)
}

fn syslog(action: c_int, buffer: &mut [u8]) -> Result<usize> {
    let length = c_int::try_from(buffer.len()).map_err(|_| ErrorKind::InvalidInput)?;
    // SAFETY: `buffer` is writable memory of `length` bytes for the whole call, and every bit pattern is a valid byte. Of the
    // two actions, one writes at most `length` bytes there and the other one writes nothing.
    let result = unsafe { klogctl(action, buffer.as_mut_ptr().cast(), length) };
    usize::try_from(result).map_err(|_| Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_groups_of_a_peer_are_those_of_its_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut groups = peer_groups(&ours).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let own = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let mut own: Vec<u32> = own.split_whitespace().map(|group| group.parse().unwrap()).collect();
        groups.sort_unstable();
        own.sort_unstable();
        assert_eq!(groups, own);
    }

    #[test]
    fn only_a_socket_has_a_peer() {
        let file = std::fs::File::open("/proc/self/status").unwrap();
        assert_eq!(peer_groups(&file).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }

    #[test]
    fn the_kernels_log_fills_at_most_the_buffer_or_is_refused() {
        let mut buffer = [0; 64];
        match (kernel_log_size(), read_kernel_log(&mut buffer)) {
            (Ok(size), Ok(read)) => assert!(size > 0 && read <= buffer.len(), "{size} {read}"),
            (Err(size), Err(read)) => {
                assert_eq!(
                    (size.raw_os_error(), read.raw_os_error()),
                    (Some(libc::EPERM), Some(libc::EPERM))
                );
            }
            other => panic!("{other:?}"),
        }
    }
}
