//! Decides which calls a caller may make. Pure.
//!
//! Root and the agent's own user may make every call. So may the members of one configured group; the members of a
//! second one may make the calls that change nothing. The kernel recorded the caller's groups when the caller connected; a
//! database of users does not count: see [`connections`](super::connections).

use super::connections::Caller;

/// The right of a caller. A greater right includes the lesser ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    Read,
    Change,
}

/// A group of users of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub gid: u32,
    pub name: String,
}

/// The groups that may call, besides root and the agent's own user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    pub operators: Option<Group>,
    /// The group that may make the calls that change nothing.
    pub readers: Option<Group>,
}

impl Access {
    /// The right of a caller with these groups besides its first one, if it has any right.
    pub(super) fn right(&self, own_uid: u32, caller: Caller, groups: &[u32]) -> Option<Right> {
        let is_in = |group: &Group| caller.gid == group.gid || groups.contains(&group.gid);
        if caller.uid == 0 || caller.uid == own_uid || self.operators.as_ref().is_some_and(is_in) {
            Some(Right::Change)
        } else if self.readers.as_ref().is_some_and(is_in) {
            Some(Right::Read)
        } else {
            None
        }
    }

    /// Explains to a caller why it may not make a call that needs the right `needs`, and who may.
    pub(super) fn refusal(&self, caller: Caller, has: Option<Right>, needs: Right) -> String {
        let named = |group: &Group| format!("members of the group {}", group.name);
        let readers = self.readers.iter().filter(|_| needs == Right::Read);
        let mut groups: Vec<String> = self.operators.iter().chain(readers).map(named).collect();
        groups.insert(0, "root".to_owned());
        let who = format!("only {} may", groups.join(" and "));
        match has {
            Some(_) => format!("uid {} may only read: to change anything, {who}; try sudo", caller.uid),
            None => format!("uid {} may not call vscaled: {who}; try sudo", caller.uid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 500;

    fn access() -> Access {
        let group = |gid, name: &str| {
            Some(Group {
                gid,
                name: name.to_owned(),
            })
        };
        Access {
            operators: group(10, "ops"),
            readers: group(20, "look"),
        }
    }

    fn caller(uid: u32, gid: u32) -> Caller {
        Caller { uid, gid, pid: 1 }
    }

    #[test]
    fn each_role_has_its_rights_at_the_socket() {
        for (uid, gid, groups, right) in [
            (0, 0, &[][..], Some(Right::Change)),
            (OWN, 500, &[], Some(Right::Change)),
            (1000, 1000, &[4, 10], Some(Right::Change)),
            (1000, 10, &[], Some(Right::Change)),
            (1000, 1000, &[20], Some(Right::Read)),
            (1000, 20, &[10], Some(Right::Change)),
            (1000, 1000, &[0], None),
            (1000, 0, &[], None),
        ] {
            let caller = caller(uid, gid);
            assert_eq!(access().right(OWN, caller, groups), right, "{caller:?} {groups:?}");
        }
        assert_eq!(Access::default().right(OWN, caller(1000, 10), &[20]), None);
    }

    #[test]
    fn a_refusal_says_who_could() {
        let refusal = |has, needs| access().refusal(caller(1000, 1000), has, needs);
        assert_eq!(
            refusal(None, Right::Read),
            "uid 1000 may not call vscaled: only root and members of the group ops and members of the group look may; try sudo"
        );
        assert_eq!(
            refusal(Some(Right::Read), Right::Change),
            "uid 1000 may only read: to change anything, only root and members of the group ops may; try sudo"
        );
        assert_eq!(
            Access::default().refusal(caller(1000, 1000), None, Right::Read),
            "uid 1000 may not call vscaled: only root may; try sudo"
        );
    }
}
