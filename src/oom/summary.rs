//! The lines that name cgroups. Everything in them but the keys can be chosen by whoever is being killed.
//!
//! A cgroup's name may hold any character except `/`, a command's name any at all, and neither is quoted. What cannot be
//! chosen decides: paths begin with `/`, a command has at most 15 bytes, the last `,pid=…,uid=…` is the kernel's, and
//! the cgroup a task was in is the one whose limit was hit or is below it.

use crate::model::CgroupPath;

use super::record::number;

/// `TASK_COMM_LEN` without the terminating zero. Characters stand for at least a byte each.
const LONGEST_COMM: usize = 15;

/// The cgroup whose limit was hit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Limit {
    Cgroup(CgroupPath),
    /// None: the node, or what a cpuset or memory policy leaves of it, had no memory left.
    Node,
    /// The kernel did not print it (its rate limit is ten in five seconds), or it was lost.
    #[default]
    Unknown,
}

/// `oom-kill:constraint=…`, printed since Linux 5.0 (`dump_oom_summary` in mm/oom_kill.c), unless rate-limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) pid: u32,
    pub(super) cgroups: Cgroups,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cgroups {
    pub(super) limit: Limit,
    /// Where the task was. On v1 a task already on its way out is in `/`.
    pub(super) task: CgroupPath,
}

/// Whether a text can be the name of a command. `dmesg` shows what cannot be printed as `\xNN`, for a byte each.
fn is_comm(text: &str) -> bool {
    text.chars().count() <= LONGEST_COMM + 3 * text.matches("\\x").count()
}

impl Summary {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("oom-kill:constraint=")?;
        let (rest, uid) = rest.rsplit_once(",uid=")?;
        // Printed with `%d`: users from 2^31 on are negative.
        number::<u32>(uid.strip_prefix('-').unwrap_or(uid))?;
        let (rest, pid) = rest.rsplit_once(",pid=")?;
        let before_comm = rest
            .match_indices(",task=")
            .find(|(at, key)| is_comm(&rest[at + key.len()..]))
            .map(|(at, _)| &rest[..at])?;
        Some(Self {
            pid: number(pid)?,
            cgroups: Cgroups::of_summary(before_comm)?,
        })
    }
}

impl Cgroups {
    /// Reads the part of a summary before the command. The constraint is not read: Linux 5.0 to 5.2 print the wrong one.
    /// Of all the ways to read a hostile line, the one where the task is below the limit; if there is none (the task moved,
    /// or is on its way out), the first.
    fn of_summary(text: &str) -> Option<Self> {
        let readings = || {
            text.match_indices(",oom_memcg=").flat_map(move |(at, key)| {
                let paths = &text[at + key.len()..];
                paths.match_indices(",task_memcg=").filter_map(move |(at, key)| {
                    let task = CgroupPath::new(&paths[at + key.len()..]).ok()?;
                    Some((CgroupPath::new(&paths[..at]).ok()?, task))
                })
            })
        };
        let below = readings().find(|(limit, task)| task.below(limit).is_some());
        if let Some((limit, task)) = below.or_else(|| readings().next()) {
            let limit = Limit::Cgroup(limit);
            return Some(Self { limit, task });
        }
        let (_, task) = text.split_once(",global_oom,task_memcg=")?;
        let task = CgroupPath::new(task).ok()?;
        let limit = Limit::Node;
        Some(Self { limit, task })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(cgroups: &str, comm: &str) -> Option<(u32, String, String)> {
        let text = format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0{cgroups},task={comm},pid=7,uid=0"
        );
        let Summary { pid, cgroups } = Summary::parse(&text)?;
        let limit = match cgroups.limit {
            Limit::Cgroup(path) => path.to_string(),
            Limit::Node => "node".to_owned(),
            Limit::Unknown => "unknown".to_owned(),
        };
        Some((pid, limit, cgroups.task.to_string()))
    }

    fn read(pid: u32, limit: &str, task: &str) -> Option<(u32, String, String)> {
        Some((pid, limit.to_owned(), task.to_owned()))
    }

    #[test]
    fn hostile_commands_do_not_move_the_pid_or_the_cgroups() {
        for comm in [
            "a,pid=1,uid=0",
            ",task=b,pid=2",
            "",
            ",task_memcg=/b",
            "x) total-vm:9kB",
            &"\\x01".repeat(15),
        ] {
            assert_eq!(
                parse(",oom_memcg=/a,task_memcg=/a/b", comm),
                read(7, "/a", "/a/b"),
                "{comm}"
            );
        }
    }

    #[test]
    fn hostile_cgroup_names_do_not_name_another_cgroup() {
        let evil = "/own/x,oom_memcg=/victim,task_memcg=/victim";
        assert_eq!(
            parse(&format!(",oom_memcg={evil},task_memcg={evil}"), "a"),
            read(7, evil, evil)
        );
        let evil = "/own/x,task=y,pid=1,uid=0";
        assert_eq!(
            parse(&format!(",oom_memcg=/own,task_memcg={evil}"), "a"),
            read(7, "/own", evil)
        );
        let evil = "/own/x,global_oom,task_memcg=/victim";
        assert_eq!(
            parse(&format!(",oom_memcg={evil},task_memcg={evil}/b"), "a"),
            read(7, evil, &format!("{evil}/b"))
        );
    }

    #[test]
    fn a_task_that_left_the_cgroup_is_where_the_kernel_says() {
        assert_eq!(parse(",oom_memcg=/a/b,task_memcg=/", "a"), read(7, "/a/b", "/"));
        assert_eq!(parse(",global_oom,task_memcg=/a b/c", "a"), read(7, "node", "/a b/c"));
    }

    #[test]
    fn users_beyond_those_an_int_holds_have_their_kills_explained() {
        let line = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=x,pid=7,uid=-2";
        assert_eq!(Summary::parse(line).unwrap().pid, 7);
        assert_eq!(Summary::parse(&line.replace("-2", "--2")), None);
    }

    #[test]
    fn a_line_that_lost_a_part_is_not_read() {
        for cgroups in [
            "",
            ",oom_memcg=,task_memcg=/a",
            ",oom_memcg=/a",
            "/a,task_memcg=/a",
            ",oom_memcg=/a,task_memcg=",
        ] {
            assert_eq!(parse(cgroups, "a"), None, "{cgroups}");
        }
    }
}
