//! Summaries of kills with hostile names.

use super::super::message::{SUMMARY, summary};
use super::*;

fn parse(cgroups: &str, comm: &str) -> Option<(u32, String, String)> {
    let text = format!(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0{cgroups},task={comm},pid=7,uid=0"
    );
    let kill = summary(&text)?;
    let limit = match kill.limit {
        Limit::Cgroup(path) => path.to_string(),
        Limit::Node => "node".to_owned(),
        Limit::Unknown => "unknown".to_owned(),
    };
    Some((kill.pid, limit, kill.task_cgroup?.to_string()))
}

fn read(pid: u32, limit: &str, task: &str) -> Option<(u32, String, String)> {
    Some((pid, limit.to_owned(), task.to_owned()))
}

#[test]
fn hostile_commands_move_no_pid() {
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
fn hostile_cgroups_name_no_other() {
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
fn a_moved_task_is_where_the_kernel_says() {
    assert_eq!(parse(",oom_memcg=/a/b,task_memcg=/", "a"), read(7, "/a/b", "/"));
    assert_eq!(parse(",global_oom,task_memcg=/a b/c", "a"), read(7, "node", "/a b/c"));
}

#[test]
fn a_path_too_long_to_print_names_no_other() {
    for (limit, read) in [("/own", "/own"), ("/own/x,task_memcg=/victim/y", "/own/x")] {
        let line = format!(
            "{SUMMARY}CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={limit},task_memcg=(name too long),task=x,pid=7,uid=0"
        );
        let kill = summary(&line).unwrap();
        assert_eq!(kill.limit.cgroup().map(CgroupPath::as_str), Some(read));
        assert_eq!((kill.pid, kill.task_cgroup), (7, None), "{limit}");
    }
}

#[test]
fn large_user_ids_are_read() {
    let line = format!(
        "{SUMMARY}CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=x,pid=7,uid=-2"
    );
    assert_eq!(summary(&line).unwrap().pid, 7);
    assert_eq!(summary(&line.replace("-2", "--2")), None);
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
