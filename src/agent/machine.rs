//! Reads the size of this machine and its groups of users.

use anyhow::{Context, Result};

use crate::control::Group;
use crate::model::{Bytes, MilliCpu, ResourceList};

/// The processors online and the main memory; absent where the kernel does not report them.
pub(super) fn capacity() -> ResourceList {
    use nix::unistd::{SysconfVar, sysconf};
    let cpus = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    let cpus = cpus.and_then(|cpus| u64::try_from(cpus).ok());
    let memory = nix::sys::sysinfo::sysinfo().ok().map(|info| info.ram_total());
    ResourceList {
        cpu: cpus.map(|cpus| MilliCpu::new(cpus.saturating_mul(1000))),
        memory: memory.map(Bytes::new),
    }
}

/// The configured group, by name or number. A number needs no name: in a container the numbers of the host's groups hold,
/// and their names are unknown.
///
/// Errors: this machine has no such group.
pub(super) fn group(key: &str, configured: Option<&str>) -> Result<Option<Group>> {
    let Some(name) = configured else { return Ok(None) };
    let named = || nix::unistd::Group::from_name(name).ok().flatten();
    // chown(2) takes the largest number for no group, and would leave the socket to that of root.
    let number = name.parse::<u32>().ok().filter(|gid| *gid != u32::MAX);
    let gid = number.or_else(|| Some(named()?.gid.as_raw()));
    let unknown = || format!("{key}: {name:?} is no group of this machine: name one of /etc/group, or give a number");
    let (gid, name) = (gid.with_context(unknown)?, name.to_owned());
    Ok(Some(Group { gid, name }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Resource;

    #[test]
    fn a_machine_has_processors_and_memory() {
        let capacity = capacity();
        assert!(capacity.amount(Resource::Cpu) >= 1000 && capacity.amount(Resource::Memory) > 1 << 20);
    }

    #[test]
    fn a_group_is_known_by_its_name_or_any_number() {
        assert_eq!(group("operatorGroup", None).unwrap(), None);
        let gid = |name| group("operatorGroup", Some(name)).map(|group| group.map(|group| group.gid));
        assert_eq!(gid("root").unwrap(), Some(0));
        assert_eq!(gid("54321").unwrap(), Some(54321));
        assert!(gid("4294967294").is_ok() && gid("4294967295").is_err(), "no group");
        let error = gid("no-such-group").unwrap_err().to_string();
        assert!(
            error.starts_with("operatorGroup: \"no-such-group\" is no group of this machine"),
            "{error}"
        );
    }
}
