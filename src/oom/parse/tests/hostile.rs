//! Whatever a container calls its processes and cgroups: the kill stays that of its own pod and container, at the level whose
//! limit was hit.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

const OWN_POD: &str = "/kubepods/burstable/pod6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77";
const OTHER: &str = "kubepods/burstable/podffffffff-0000-4000-8000-00000000000a/b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2";

/// What hostile names are made of: the kernel's own words, another tenant's path, and characters that some logs escape.
const PIECES: [&str; 21] = [
    "x",
    ",oom_memcg=",
    ",task_memcg=",
    ",global_oom",
    ",task=",
    ",pid=1",
    ",uid=0",
    ",mems_allowed=0",
    ",cpuset=",
    "/",
    "=",
    ",",
    " ",
    "\n",
    "\\x0a",
    ")",
    " total-vm:9kB",
    " killed as a result of limit of ",
    "(name too long)",
    OTHER,
    "[    1.500000] kernel: ",
];

fn name() -> impl Strategy<Value = String> {
    proptest::collection::vec(select(&PIECES[..]), 0..8).prop_map(|pieces| pieces.concat())
}

/// Cgroups that a container makes inside its own, as a path below that.
fn nested() -> impl Strategy<Value = String> {
    name().prop_filter_map("not a path", |name| {
        let path = if name.is_empty() {
            GROUP.to_owned()
        } else {
            format!("{GROUP}/{name}")
        };
        CgroupPath::new(&path).is_ok().then_some(path)
    })
}

/// The kernel cuts a command after 15 bytes.
fn comm() -> impl Strategy<Value = String> {
    name().prop_map(|name| name[..name.floor_char_boundary(15)].to_owned())
}

proptest! {
    #[test]
    fn hostile_names_change_no_attribution(
        task in nested(), own_limit in nested(), comm in comm(), cpuset in name(), invoker in comm(),
        hit in select(vec!["node", "pod", "container", "nested"]), has_left: bool, is_old: bool,
    ) {
        // A name of a cgroup has no slash.
        let cpuset = cpuset.replace('/', "");
        let (limit, level) = match hit {
            "node" => (None, Level::Node),
            "pod" => (Some(OWN_POD), Level::Pod),
            "container" => (Some(GROUP), Level::Container),
            _ => (Some(own_limit.as_str()), Level::Container),
        };
        // The victim is below the limit, or has left all cgroups.
        let task = if has_left && limit.is_some() { "/".to_owned() } else if hit == "nested" { format!("{own_limit}/{}", task.trim_start_matches('/')) } else { task };
        let lines = match limit {
            Some(limit) if is_old => vec![
                format!("{invoker} invoked oom-killer: gfp_mask=0xd0, order=0, oom_score_adj=984"),
                format!("Task in {task} killed as a result of limit of {limit}"),
                format!("Memory cgroup out of memory: Kill process 7 ({comm}) score 1250 or sacrifice child"),
                format!("Killed process 7 ({comm}), UID 5, total-vm:4kB, anon-rss:3kB"),
            ],
            _ => {
                let cgroup = limit.map_or("global_oom".to_owned(), |limit| format!("oom_memcg={limit}"));
                vec![
                    format!("{invoker} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"),
                    format!("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset={cpuset},mems_allowed=0,{cgroup},task_memcg={task},task={comm},pid=7,uid=0"),
                    format!("Killed process 7 ({comm}) total-vm:4kB, anon-rss:3kB"),
                ]
            }
        };
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let found = kills_in(&lines);
        prop_assert_eq!(found.len(), 1, "{:?}", lines);
        let kill = &found[0];
        prop_assert_eq!((kill.pid, &kill.comm), (7, &comm), "{:?}", lines);
        let (pod, container) = kill.victim();
        let pod = pod.map(|pod| pod.uid.to_string());
        let container = container.map(|container| container.to_string());
        let expected_pod = OWN_POD.rsplit_once("/pod").map(|(_, uid)| uid.to_owned());
        let expected_container = GROUP.rsplit_once('/').map(|(_, id)| id.to_owned());
        // For a process that has left, only the limit remains.
        let is_known = container.is_some() || !has_left && kill.task_cgroup.is_some();
        prop_assert!(pod == expected_pod || is_old && has_left && pod.is_none(), "{:?} {:?}", pod, lines);
        prop_assert!(container == expected_container || !is_known && container.is_none(), "{:?} {:?}", container, lines);
        let found_level = kill.limit.level();
        prop_assert!(found_level == level || is_old && found_level == Level::Unspecified, "{:?} {:?}", found_level, lines);
    }
}
