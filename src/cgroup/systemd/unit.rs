//! The systemd units of cgroups.

use crate::cgroup::pair::scope_around;
use crate::model::CgroupPath;

/// The name of a slice or scope.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub struct Unit(String);

impl Unit {
    /// The unit of a cgroup: the cgroup's name, or the scope around crun's inner cgroup. `None` where systemd
    /// did not make the cgroup.
    pub fn of(path: &CgroupPath) -> Option<Self> {
        let scope = scope_around(path);
        let name = scope.as_ref().unwrap_or(path).name()?;
        // `<slice>:<runtime>:<id>` is a directory of a runtime that does not use systemd.
        let is_unit = !name.contains(':') && (name.ends_with(".slice") || name.ends_with(".scope"));
        is_unit.then(|| Self(name.to_owned()))
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// The D-Bus interface of the unit's resource properties.
    pub(super) fn interface(&self) -> &'static str {
        if self.0.ends_with(".slice") {
            "org.freedesktop.systemd1.Slice"
        } else {
            "org.freedesktop.systemd1.Scope"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_the_last_name_of_its_path() {
        let cases = [
            ("/kubepods.slice/kubepods-pod0123.slice", Some("kubepods-pod0123.slice")),
            ("/kubepods.slice/cri-containerd-a.scope", Some("cri-containerd-a.scope")),
            ("/kubepods.slice/crio-a.scope/container", Some("crio-a.scope")),
            ("/kubepods.slice/crio-a.scope/other", None),
            ("/kubepods/burstable/pod0123", None),
            (
                "/system.slice/containerd.service/kubepods-pod0123.slice:cri-containerd:a",
                None,
            ),
            ("/", None),
        ];
        for (path, unit) in cases {
            let found = Unit::of(&CgroupPath::new(path).unwrap());
            assert_eq!(found.as_ref().map(Unit::name), unit, "{path}");
        }
    }
}
