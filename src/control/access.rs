//! Who may make which calls. Pure.
//!
//! Root and the agent's own user may make every call. So may the members of one configured group; the members of a
//! second one may make the calls that change nothing. Membership is what the kernel recorded about the caller when it
//! connected, not what a database of users says now: see [`connections`](super::connections).

use super::connections::Caller;

/// What a caller may do. The greater includes the lesser.
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

/// Who may call, besides root and the agent's own user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    pub operators: Option<Group>,
    /// May make the calls that change nothing.
    pub readers: Option<Group>,
}

impl Access {
    /// What a caller may do who is in these groups besides its first one, if anything.
    pub(super) fn right(&self, own_uid: u32, caller: Caller, groups: &[u32]) -> Option<Right> {
        let member = |group: &Option<Group>| {
            group
                .as_ref()
                .is_some_and(|group| caller.gid == group.gid || groups.contains(&group.gid))
        };
        if caller.uid == 0 || caller.uid == own_uid || member(&self.operators) {
            Some(Right::Change)
        } else if member(&self.readers) {
            Some(Right::Read)
        } else {
            None
        }
    }

    /// Why a caller is turned away from a call that needs more than it may do, and who could make it.
    pub(super) fn refusal(&self, caller: Caller, has: Option<Right>, needs: Right) -> String {
        let mut groups: Vec<String> = self.operators.iter().map(named).collect();
        if needs == Right::Read {
            groups.extend(self.readers.iter().map(named));
        }
        let mut who = "only root may".to_owned();
        if !groups.is_empty() {
            who = format!("only root and {} may", groups.join(" and "));
        }
        match has {
            Some(_) => format!("uid {} may only read: to change anything, {who}; try sudo", caller.uid),
            None => format!("uid {} may not call vscaled: {who}; try sudo", caller.uid),
        }
    }
}

fn named(group: &Group) -> String {
    format!("members of the group {}", group.name)
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
    fn root_the_own_user_and_operators_may_do_everything_readers_may_look_and_others_nothing() {
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
