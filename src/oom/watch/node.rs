//! Reads the node's files: counters, limits, `/proc`. All reads are quick and wait only for the kernel.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use procfs::process::{Process, Stat};

use super::kill_counters::CounterTree;
use super::pod_names::NodePods;
use crate::cgroup::{Hierarchy, cgroup_of_pid, children};
use crate::model::{CgroupPath, CgroupVersion, Resource};
use crate::oom::counters::{Counter, EVENTS, OOM_CONTROL, Reading, machine_kill_count};
use crate::oom::kill::{Kill, Limit};
use crate::oom::report::{HitLimit, Role};

const PROC: &str = "/proc";
/// Limit, usage and highest usage.
const V1_MEMORY: [&str; 3] = [
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
];
const V2_MEMORY: [&str; 3] = ["memory.max", "memory.current", "memory.peak"];
/// Bytes. A limit from here on is no limit: the kernel prints the most that its counter can hold.
pub(super) const NO_LIMIT: u64 = 1 << 60;
/// `PROC_PID_INIT_INO` and `PROC_CGROUP_INIT_INO` (include/linux/proc_ns.h): the first namespaces of the machine. Pids
/// and paths in the kernel's log are those of these namespaces.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
const FIRST_CGROUP_NAMESPACE: &str = "cgroup:[4026531835]";

/// The files read to describe a kill.
pub(super) trait NodeIo: CounterTree {
    /// The limit and the usage of a cgroup's memory now. Each is absent without a limit, or where the kernel has no
    /// such file. Returns `None` if the cgroup is gone.
    fn memory(&self, cgroup: &CgroupPath) -> Option<HitLimit>;
    /// The cgroup that the kernel kills as a whole when it kills a process in this one for that limit
    /// (`mem_cgroup_get_oom_group`): the outermost one with `memory.oom.group` set, up to the one with the limit.
    fn group_of(&self, cgroup: &CgroupPath, limit: &Limit) -> Option<CgroupPath>;
    /// The processes in a cgroup and below; `None` if the cgroup is gone, or cannot be read.
    fn processes(&self, cgroup: &CgroupPath) -> Option<Vec<u32>>;
    /// Whether this task is one of the agent's own threads.
    fn is_own_thread(&self, task: u32) -> bool;
}

#[derive(Debug)]
pub(super) struct NodeFiles {
    hierarchy: Option<Hierarchy>,
    /// The first process of each container, once it is found, and when the search for it began, by the containers'
    /// cgroups.
    init_processes: HashMap<CgroupPath, (Option<u32>, Duration)>,
    /// Whether the agent's pid namespace is that of the kernel's log.
    sees_pids: bool,
    /// The open counters for the next sweeps.
    open: RefCell<HashMap<CgroupPath, OpenCounter>>,
}

#[derive(Debug)]
struct OpenCounter {
    counter: Counter,
    /// The number of links of the directory, and the cgroups inside. One removed and one new cgroup leave that number as
    /// it is; then the counter of the removed one is found gone.
    listed: Option<(u64, Vec<CgroupPath>)>,
}

/// The most counters to keep open.
const MOST_OPEN: usize = 512;

/// How long to search for a container's first process: a runtime takes a while to start one, and in some containers no
/// process is recognisable as the first.
const INIT_SEARCH_TIME: Duration = Duration::from_secs(60);

impl NodeFiles {
    pub(super) fn new() -> Self {
        Self {
            hierarchy: None,
            init_processes: HashMap::new(),
            sees_pids: is_namespace("pid", FIRST_PID_NAMESPACE),
            open: RefCell::default(),
        }
    }

    /// Closes the counters: no sweep follows soon.
    pub(super) fn close_counters(&self) {
        self.open.take();
    }

    /// Whether the paths in the log begin further up than those that the agent sees.
    pub(super) fn is_namespaced() -> bool {
        !is_namespace("cgroup", FIRST_CGROUP_NAMESPACE)
    }

    /// Takes the agent's inventory. Returns the version of the counters and the root of all pods,
    /// once the agent knows them.
    pub(super) fn set_node_pods(&mut self, node: &NodePods, now: Duration) -> Option<(CgroupVersion, CgroupPath)> {
        let (hierarchy, root) = node.tree.as_ref()?;
        let known = std::mem::take(&mut self.init_processes);
        let containers = node.pods.iter().flat_map(|pod| pod.containers.values());
        let search = |path: &CgroupPath| known.get(path).copied().unwrap_or((None, now));
        self.init_processes = containers
            .map(|container| (container.path.clone(), search(&container.path)))
            .collect();
        self.open.take();
        self.hierarchy = Some(hierarchy.clone());
        Some((hierarchy.version(), root.clone()))
    }

    /// Searches for the first processes of containers. Returns whether to search again.
    pub(super) fn find_init_processes(&mut self, now: Duration) -> bool {
        let Some(hierarchy) = self.hierarchy.as_ref().filter(|_| self.sees_pids) else {
            return false;
        };
        let mut missing = false;
        for (path, (first, since)) in &mut self.init_processes {
            if first.is_none() && now.saturating_sub(*since) < INIT_SEARCH_TIME {
                *first = init_process(&path.under(hierarchy.mount(Resource::Memory)));
                missing |= first.is_none();
            }
        }
        missing
    }

    fn directory(&self, cgroup: &CgroupPath) -> Option<PathBuf> {
        Some(cgroup.under(self.hierarchy.as_ref()?.mount(Resource::Memory)))
    }

    /// The file of the counter of a cgroup, once the agent knows the tree.
    pub(super) fn counter_file(&self, cgroup: &CgroupPath) -> Option<PathBuf> {
        let name = match self.hierarchy.as_ref()?.version() {
            CgroupVersion::V1 => OOM_CONTROL,
            CgroupVersion::V2 => EVENTS,
        };
        Some(self.directory(cgroup)?.join(name))
    }

    /// Reads a victim's entry in `/proc`, if it still exists: its cgroup, where `/` counts as unknown, and its role.
    pub(super) fn probe(&self, kill: &Kill) -> (Option<CgroupPath>, Role) {
        let root = CgroupPath::root();
        let named = kill.task_cgroup.as_ref().filter(|path| **path != root);
        let mut role = named.and_then(|path| self.role_in(path, kill.pid));
        let mut cgroup = None;
        let process = Path::new(PROC).join(kill.pid.to_string());
        // The process may be gone, and another one may have its id. Through syslog(2) a line may be forged where the log's clock is
        // coarse.
        let is_victim = || stat(kill.pid).is_some_and(|stat| stat.comm == kill.comm && is_ending(&stat));
        let find = || {
            let hierarchy = self.hierarchy.as_ref().filter(|_| named.is_none());
            let cgroup = hierarchy.zip(kill.pid.try_into().ok());
            let cgroup = cgroup.and_then(|(hierarchy, pid)| cgroup_of_pid(hierarchy, Path::new(PROC), pid));
            let known = cgroup.as_ref().and_then(|path| self.role_in(path, kill.pid));
            let is_first = || is_init_of_its_namespace(&process, kill.pid).then_some(Role::Main);
            (cgroup, known.or_else(is_first))
        };
        if self.sees_pids && role.is_none() {
            let start_time = || stat(kill.pid).map(|stat| stat.starttime);
            let found = of_one_process(start_time, || is_victim().then(find));
            (cgroup, role) = found.flatten().unwrap_or_default();
        }
        (cgroup, role.unwrap_or_default())
    }

    /// The role of a process in its container, if the agent knows that container's first process.
    fn role_in(&self, cgroup: &CgroupPath, pid: u32) -> Option<Role> {
        let mut outwards = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent);
        let (first, _) = outwards.find_map(|path| self.init_processes.get(&path))?;
        first.map(|first| if first == pid { Role::Main } else { Role::Child })
    }

    fn file(&self, cgroup: &CgroupPath, name: &str) -> Option<String> {
        read(&self.directory(cgroup)?.join(name))
    }
}

impl CounterTree for NodeFiles {
    fn read(&self, cgroup: &CgroupPath) -> Result<Option<Reading>> {
        let mut open = self.open.borrow_mut();
        if let Some(known) = open.get(cgroup) {
            if let Some(reading) = known.counter.read()? {
                return Ok(Some(reading));
            }
            open.remove(cgroup);
        }
        let Some(counter) = self.counter_file(cgroup).map_or(Ok(None), Counter::open)? else {
            // Another cgroup may have its place in the number of links. Its own counter may not have been open.
            if let Some(around) = cgroup.parent().and_then(|parent| open.get_mut(&parent)) {
                around.listed.take_if(|(_, inside)| inside.contains(cgroup));
            }
            return Ok(None);
        };
        let reading = counter.read();
        if open.len() < MOST_OPEN {
            let listed = None;
            open.insert(cgroup.clone(), OpenCounter { counter, listed });
        }
        reading
    }

    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>> {
        let Some(hierarchy) = &self.hierarchy else {
            return Ok(Vec::new());
        };
        let mount = hierarchy.mount(Resource::Memory);
        let links = fs::metadata(cgroup.under(mount)).map(|directory| directory.nlink());
        let mut open = self.open.borrow_mut();
        let (Ok(links), Some(known)) = (links, open.get_mut(cgroup)) else {
            return children(mount, cgroup);
        };
        match &known.listed {
            Some((of, inside)) if *of == links => Ok(inside.clone()),
            _ => {
                let inside = children(mount, cgroup)?;
                known.listed = Some((links, inside.clone()));
                Ok(inside)
            }
        }
    }

    fn machine_kills(&self) -> Option<u64> {
        machine_kill_count()
    }
}

impl NodeIo for NodeFiles {
    fn memory(&self, cgroup: &CgroupPath) -> Option<HitLimit> {
        let names = match self.hierarchy.as_ref()?.version() {
            CgroupVersion::V1 => V1_MEMORY,
            CgroupVersion::V2 => V2_MEMORY,
        };
        let [limit, usage, peak] = names.map(|name| self.file(cgroup, name));
        let bytes = |text: String| text.trim().parse().ok();
        Some(HitLimit {
            cgroup: Some(cgroup.to_string()),
            limit_bytes: bytes(limit?).filter(|limit| *limit < NO_LIMIT),
            usage_bytes: usage.and_then(bytes),
            peak_bytes: peak.and_then(bytes),
        })
    }

    fn group_of(&self, cgroup: &CgroupPath, limit: &Limit) -> Option<CgroupPath> {
        let domain = limit.cgroup().cloned().unwrap_or_else(CgroupPath::root);
        let outwards = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent);
        outwards
            .take_while(|path| path.below(&domain).is_some())
            .filter(|path| self.file(path, "memory.oom.group").is_some_and(|set| set.trim() == "1"))
            .last()
    }

    fn processes(&self, cgroup: &CgroupPath) -> Option<Vec<u32>> {
        let mut processes = pids(&self.file(cgroup, "cgroup.procs")?);
        for inner in self.children(cgroup).ok()? {
            processes.extend(self.processes(&inner).unwrap_or_default());
        }
        Some(processes)
    }

    fn is_own_thread(&self, task: u32) -> bool {
        self.sees_pids && Path::new(PROC).join("self/task").join(task.to_string()).exists()
    }
}

/// The first process of a container: process 1 of the container's own pid namespace, and in no namespace further in. A
/// container in the pid namespace of its pod or of the host has no such process.
fn init_process(directory: &Path) -> Option<u32> {
    let here = read(&directory.join("cgroup.procs"))?;
    let mut processes = pids(&here);
    if processes.is_empty() {
        // crun puts the processes one level further in.
        processes = pids(&read(&directory.join("container/cgroup.procs"))?);
    }
    let is_first = |pid: &u32| is_init_of_its_namespace(&Path::new(PROC).join(pid.to_string()), *pid);
    processes.into_iter().find(is_first)
}

fn stat(pid: u32) -> Option<Stat> {
    Process::new(pid.try_into().ok()?).ok()?.stat().ok()
}

/// What was found out about a process by its id, unless another process has got the id meanwhile.
fn of_one_process<T>(start_time: impl Fn() -> Option<u64>, find: impl FnOnce() -> T) -> Option<T> {
    let before = start_time();
    let found = find();
    start_time().is_none_or(|after| Some(after) == before).then_some(found)
}

/// Whether a process ends, or is about to: the kernel sends SIGKILL to a victim before it logs the kill (`__oom_kill_process`).
const fn is_ending(process: &Stat) -> bool {
    /// `PF_EXITING` and `PF_SIGNALED` (include/linux/sched.h).
    const ENDING: u32 = 0x4 | 0x400;
    const SIGKILL: u64 = 1 << 8;
    process.flags & ENDING != 0 || process.signal & SIGKILL != 0
}

fn is_init_of_its_namespace(process: &Path, pid: u32) -> bool {
    let status = read(&process.join("status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let ids: Vec<&str> = ids.unwrap_or_default().split_whitespace().collect();
    matches!(ids.as_slice(), [outside, "1"] if outside.parse() == Ok(pid))
}

fn pids(procs: &str) -> Vec<u32> {
    procs.lines().filter_map(|pid| pid.parse().ok()).collect()
}

fn is_namespace(kind: &str, first: &str) -> bool {
    fs::read_link(Path::new(PROC).join("self/ns").join(kind)).is_ok_and(|link| link.as_os_str() == first)
}

/// The text of a kernel file; `None` when the file is gone, because its cgroup or process may end at any time.
fn read(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::oom::parse_log;

    #[test]
    fn a_process_that_lives_on_is_no_victim() {
        let ends = |pid: u32| stat(pid).is_some_and(|stat| is_ending(&stat));
        assert!(!ends(std::process::id()));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!ends(child.id()));
        child.kill().unwrap();
        // For a moment it has taken the signal and is not marked yet.
        assert!((0..1000).any(|_| ends(child.id())));
        while stat(child.id()).unwrap().state != 'Z' {
            std::thread::yield_now();
        }
        assert!(ends(child.id()), "nobody has waited for it");
        child.wait().unwrap();
        assert!(stat(child.id()).is_none());
    }

    #[test]
    fn a_reused_process_id_is_no_victim() {
        let of = |[before, after]: [Option<u64>; 2]| {
            let now = std::cell::Cell::new(before);
            let find = || {
                now.set(after);
                "its cgroup"
            };
            of_one_process(|| now.get(), find).is_some()
        };
        assert!(of([Some(5), Some(5)]) && of([Some(5), None]), "it may end meanwhile");
        assert!(!of([Some(5), Some(6)]) && !of([None, Some(6)]));
    }

    /// The files of a node with cgroup v1.
    fn on_files(root: &Path) -> NodeFiles {
        fs::create_dir(root.join("cpu")).unwrap();
        fs::create_dir_all(root.join("memory/pod/app/inner")).unwrap();
        NodeFiles {
            hierarchy: Some(Hierarchy::of_tree(root).unwrap()),
            ..NodeFiles::new()
        }
    }

    fn path(text: &str) -> CgroupPath {
        CgroupPath::new(text).unwrap()
    }

    #[test]
    fn a_gone_counter_makes_the_list_new() {
        let root = tempfile::tempdir().unwrap();
        let files = on_files(root.path());
        let make = |cgroup: &str| {
            let directory = root.path().join("memory").join(cgroup);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(OOM_CONTROL), "oom_kill 0\n").unwrap();
            path(&format!("/{cgroup}"))
        };
        let read = |cgroup: &CgroupPath| files.read(cgroup).unwrap().is_some();
        let (pod, app) = (make("pod"), make("pod/app"));
        assert!(read(&pod));
        assert_eq!(files.children(&pod).unwrap(), std::slice::from_ref(&app));
        for number in 1..MOST_OPEN {
            assert!(read(&make(&format!("other{number}"))));
        }
        assert!(read(&app) && files.open.borrow().len() == MOST_OPEN);
        fs::remove_dir_all(root.path().join("memory/pod/app")).unwrap();
        let next = make("pod/next");
        assert!(!read(&app));
        assert_eq!(files.children(&pod).unwrap(), [next]);
    }

    #[test]
    fn the_outermost_group_below_the_limit_dies() {
        let root = tempfile::tempdir().unwrap();
        let files = on_files(root.path());
        for (groups, limit, expected) in [
            (["0", "0", "0"], Some("/pod"), None),
            (["1", "1", "1"], Some("/pod"), Some("/pod")),
            (["1", "1", "1"], Some("/pod/app"), Some("/pod/app")),
            (["1", "0", "1"], Some("/pod/app"), Some("/pod/app/inner")),
            (["1", "0", "0"], Some("/pod/app"), None),
            (["0", "1", "0"], None, Some("/pod/app")),
        ] {
            for (cgroup, group) in ["pod", "pod/app", "pod/app/inner"].into_iter().zip(groups) {
                let file = root.path().join("memory").join(cgroup).join("memory.oom.group");
                fs::write(file, format!("{group}\n")).unwrap();
            }
            let limit = limit.map_or(Limit::Node, |limit| Limit::Cgroup(path(limit)));
            let found = files.group_of(&path("/pod/app/inner"), &limit);
            assert_eq!(found, expected.map(path), "{groups:?} {limit:?}");
        }
    }

    #[test]
    fn a_limit_has_its_usage_and_peak() {
        let root = tempfile::tempdir().unwrap();
        let files = on_files(root.path());
        let write = |name: &str, text: &str| fs::write(root.path().join("memory/pod").join(name), text).unwrap();
        write("memory.usage_in_bytes", "4096\n");
        write("memory.max_usage_in_bytes", "8192\n");
        for (text, limit_bytes) in [("67108864\n", Some(64 << 20)), ("9223372036854771712\n", None)] {
            write("memory.limit_in_bytes", text);
            let expected = HitLimit {
                cgroup: Some("/pod".to_owned()),
                limit_bytes,
                usage_bytes: Some(4096),
                peak_bytes: Some(8192),
            };
            assert_eq!(files.memory(&path("/pod")), Some(expected));
        }
        assert_eq!(files.memory(&path("/gone")), None);
    }

    #[test]
    fn a_gone_victim_has_no_facts() {
        let gone = 1 << 30;
        for pid in [gone, std::process::id()] {
            let log =
                format!("Out of memory: Killed process {pid} (no such name) total-vm:4kB, anon-rss:3kB, file-rss:2kB");
            let [kill] = parse_log(log.as_bytes()).try_into().unwrap();
            assert_eq!((kill.pid, NodeFiles::new().probe(&kill)), (pid, <_>::default()));
        }
    }
}
