//! The node's files: counters, limits, `/proc`. All of it is quick, and none of it waits for anything but the kernel.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::kill_counters::{CounterScope, CounterTree};
use super::pod_names::NodePods;
use crate::cgroup::{Hierarchy, cgroup_of_pid, children};
use crate::model::{CgroupPath, CgroupVersion, Resource};
use crate::oom::counters::{Counter, EVENTS, OOM_CONTROL, Reading, machine_kill_count};
use crate::oom::kill::{Invoker, Kill};
use crate::oom::message::Limit;
use crate::oom::report::{HitLimit, Role};

const PROC: &str = "/proc";
/// Limit, usage and highest usage.
const V1_MEMORY: [&str; 3] = [
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
];
const V2_MEMORY: [&str; 3] = ["memory.max", "memory.current", "memory.peak"];
/// Limits from here on are none: the kernel prints the most its counter can hold.
pub(super) const NO_LIMIT: u64 = 1 << 60;
/// `PROC_PID_INIT_INO` and `PROC_CGROUP_INIT_INO` (include/linux/proc_ns.h): the namespaces the machine began with, which
/// are those of the kernel's log.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
const FIRST_CGROUP_NAMESPACE: &str = "cgroup:[4026531835]";

/// The node around a kill.
pub(super) trait NodeIo: CounterTree {
    /// The limit and the use of a cgroup's memory now, each absent without a limit, and where the kernel has no such file;
    /// `None` if the cgroup is gone.
    fn memory(&self, cgroup: &CgroupPath) -> Option<HitLimit>;
    /// The cgroup that is killed as a whole when a process in this one is killed for that limit
    /// (`mem_cgroup_get_oom_group`): the outermost with `memory.oom.group` set, up to the one whose limit it is.
    fn group_of(&self, cgroup: &CgroupPath, limit: &Limit) -> Option<CgroupPath>;
    /// The processes in a cgroup and below it; `None` if it is gone.
    fn processes(&self, cgroup: &CgroupPath) -> Option<Vec<u32>>;
    /// Whether this task is one of the agent's own threads.
    fn is_own_thread(&self, invoker: &Invoker) -> bool;
}

/// What `/proc` still knew of a victim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcProbe {
    /// Where it was; `/` says nothing.
    pub(super) cgroup: Option<CgroupPath>,
    /// What it was to its container.
    pub(super) role: Role,
}

impl ProcProbe {
    pub(super) const NONE: Self = Self {
        cgroup: None,
        role: Role::Unspecified,
    };
}

/// The node, as far as its files tell.
#[derive(Debug)]
pub(super) struct NodeFiles {
    tree: Option<Tree>,
    /// The first processes of containers, by the containers' cgroups.
    init_processes: HashMap<CgroupPath, InitSearch>,
    /// Whether process ids in the log are those in `/proc`.
    sees_pids: bool,
    /// Counters that are kept open for the looks that follow, and the cgroups in theirs.
    open: RefCell<HashMap<CgroupPath, OpenCounter>>,
}

#[derive(Debug)]
struct OpenCounter {
    counter: Counter,
    /// What is in the cgroup, and how many links its directory has with that. One that is removed and
    /// another that is made leave the number as it is; but the counter of the first is found gone.
    children: Option<(u64, Vec<CgroupPath>)>,
}

/// Counters kept open at most.
const MOST_OPEN: usize = 512;

/// How long a container's first process is searched for: some have none that can be told apart, and a runtime takes
/// its time to start one.
const INIT_SEARCH_TIME: Duration = Duration::from_secs(60);

/// The search for a container's first process.
#[derive(Debug, Clone, Copy)]
enum InitSearch {
    Found(u32),
    InVain(Duration),
}

#[derive(Debug)]
struct Tree {
    hierarchy: Hierarchy,
    mount: PathBuf,
    counter: &'static str,
}

impl NodeFiles {
    pub(super) fn new() -> Self {
        Self {
            tree: None,
            init_processes: HashMap::new(),
            sees_pids: is_namespace("pid", FIRST_PID_NAMESPACE),
            open: RefCell::default(),
        }
    }

    /// No look at the counters follows soon.
    pub(super) fn close_counters(&self) {
        self.open.take();
    }

    /// Whether the paths in the log begin further up than ours.
    pub(super) fn is_namespaced() -> bool {
        !is_namespace("cgroup", FIRST_CGROUP_NAMESPACE)
    }

    /// Takes in where cgroups are and who lives in them now, a moment of CLOCK_MONOTONIC. Returns what the counters of the
    /// tree count, once it is known.
    pub(super) fn set_node_pods(&mut self, residents: &NodePods, now: Duration) -> Option<(CounterScope, CgroupPath)> {
        let (hierarchy, root) = residents.tree.as_ref()?;
        let mount = hierarchy.mount(Resource::Memory).to_owned();
        let (counter, counting) = match hierarchy.version() {
            CgroupVersion::V1 => (OOM_CONTROL, CounterScope::Local),
            CgroupVersion::V2 if has_local_events(&mount) => (EVENTS, CounterScope::Local),
            CgroupVersion::V2 => (EVENTS, CounterScope::Below),
        };
        let known = std::mem::take(&mut self.init_processes);
        let containers = residents.pods.iter().flat_map(|pod| pod.containers.values());
        let search = |path: &CgroupPath| known.get(path).copied().unwrap_or(InitSearch::InVain(now));
        self.init_processes = containers
            .map(|container| (container.path.clone(), search(&container.path)))
            .collect();
        self.open.take();
        self.tree = Some(Tree {
            hierarchy: hierarchy.clone(),
            mount,
            counter,
        });
        Some((counting, root.clone()))
    }

    /// Looks for first processes that are not known yet. Whether any is still worth looking for.
    pub(super) fn find_init_processes(&mut self, now: Duration) -> bool {
        let Some(tree) = self.tree.as_ref().filter(|_| self.sees_pids) else {
            return false;
        };
        let mut missing = false;
        for (path, sought) in &mut self.init_processes {
            if let InitSearch::InVain(since) = *sought
                && now.saturating_sub(since) < INIT_SEARCH_TIME
            {
                match init_process(&tree.mount, path) {
                    Some(first) => *sought = InitSearch::Found(first),
                    None => missing = true,
                }
            }
        }
        missing
    }

    /// The file of the counter that rises with every kill in the tree, where there is one.
    pub(super) fn top_counter(&self, root: &CgroupPath) -> Option<PathBuf> {
        let tree = self.tree.as_ref()?;
        Some(root.under(&tree.mount).join(tree.counter))
    }

    /// Looks what `/proc` still knows of a victim.
    pub(super) fn probe(&self, kill: &Kill) -> ProcProbe {
        let root = CgroupPath::root();
        let named = kill.task_cgroup.as_ref().filter(|path| **path != root);
        let mut role = named.and_then(|path| self.role_in(path, kill.pid));
        let mut cgroup = None;
        let process = Path::new(PROC).join(kill.pid.to_string());
        // The process may be gone, and its id another's.
        let is_there = || read(&process.join("comm")).is_some_and(|comm| comm.trim_end_matches('\n') == kill.comm);
        if self.sees_pids && role.is_none() && is_there() {
            if let (None, Some(tree), Ok(pid)) = (named, &self.tree, kill.pid.try_into()) {
                cgroup = cgroup_of_pid(&tree.hierarchy, Path::new(PROC), pid);
            }
            let is_first = || is_init_of_its_namespace(&process, kill.pid).then_some(Role::Main);
            role = cgroup
                .as_ref()
                .and_then(|path| self.role_in(path, kill.pid))
                .or_else(is_first);
        }
        ProcProbe {
            cgroup,
            role: role.unwrap_or(Role::Unspecified),
        }
    }

    /// What a process in this cgroup is to its container, if that container's first process is known.
    fn role_in(&self, cgroup: &CgroupPath, pid: u32) -> Option<Role> {
        let mut outwards = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent);
        match outwards.find_map(|path| self.init_processes.get(&path).copied())? {
            InitSearch::Found(first) if first == pid => Some(Role::Main),
            InitSearch::Found(_) => Some(Role::Child),
            InitSearch::InVain(_) => None,
        }
    }

    fn file(&self, cgroup: &CgroupPath, name: &str) -> Option<String> {
        read(&cgroup.under(&self.tree.as_ref()?.mount).join(name))
    }
}

impl CounterTree for NodeFiles {
    fn read(&self, cgroup: &CgroupPath) -> Result<Option<Reading>> {
        let Some(tree) = &self.tree else { return Ok(None) };
        let mut open = self.open.borrow_mut();
        if let Some(known) = open.get(cgroup) {
            let reading = known.counter.read()?;
            if reading.is_some() {
                return Ok(reading);
            }
            open.remove(cgroup);
            if let Some(around) = cgroup.parent().and_then(|parent| open.get_mut(&parent)) {
                around.children = None;
            }
        }
        let Some(counter) = Counter::open(cgroup.under(&tree.mount).join(tree.counter))? else {
            return Ok(None);
        };
        let reading = counter.read();
        if open.len() < MOST_OPEN {
            let children = None;
            open.insert(cgroup.clone(), OpenCounter { counter, children });
        }
        reading
    }

    fn children(&self, cgroup: &CgroupPath) -> Vec<CgroupPath> {
        let Some(tree) = &self.tree else { return Vec::new() };
        let mut open = self.open.borrow_mut();
        let mut known = open.get_mut(cgroup).map(|open| &mut open.children);
        let links = fs::metadata(cgroup.under(&tree.mount))
            .ok()
            .map(|directory| directory.nlink());
        if let Some(Some((then, children))) = &known
            && links == Some(*then)
        {
            return children.clone();
        }
        let found = children(&tree.mount, cgroup).unwrap_or_else(|error| {
            tracing::warn!(%error, "kills in these cgroups are found by the log only");
            Vec::new()
        });
        if let Some(known) = &mut known {
            **known = links.map(|links| (links, found.clone()));
        }
        found
    }

    fn machine_kills(&self) -> Option<u64> {
        machine_kill_count()
    }
}

impl NodeIo for NodeFiles {
    fn memory(&self, cgroup: &CgroupPath) -> Option<HitLimit> {
        let names = match self.tree.as_ref()?.counter {
            OOM_CONTROL => V1_MEMORY,
            _ => V2_MEMORY,
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
        let domain = match limit {
            Limit::Cgroup(domain) => domain.clone(),
            Limit::Node | Limit::Unknown => CgroupPath::root(),
        };
        let outwards = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent);
        outwards
            .take_while(|path| path.below(&domain).is_some())
            .filter(|path| self.file(path, "memory.oom.group").is_some_and(|set| set.trim() == "1"))
            .last()
    }

    fn processes(&self, cgroup: &CgroupPath) -> Option<Vec<u32>> {
        let mut processes = pids(&self.file(cgroup, "cgroup.procs")?);
        for inner in self.children(cgroup) {
            processes.extend(self.processes(&inner).unwrap_or_default());
        }
        Some(processes)
    }

    fn is_own_thread(&self, invoker: &Invoker) -> bool {
        let is_thread = |task: u32| Path::new(PROC).join("self/task").join(task.to_string()).exists();
        self.sees_pids && invoker.pid.is_some_and(is_thread)
    }
}

/// Whether v2 is mounted so that `memory.events` counts kills in the cgroup alone.
fn has_local_events(mount: &Path) -> bool {
    let table = procfs::process::Process::myself().and_then(|me| me.mountinfo());
    let is_local = |mounts: procfs::process::MountInfos| {
        let here = mounts.into_iter().find(|other| other.mount_point == mount);
        here.is_some_and(|here| here.super_options.contains_key("memory_localevents"))
    };
    table.is_ok_and(is_local)
}

/// The first process of a container with a pid namespace of its own: the one that is process 1 there, and is in no
/// namespace further in. Neither a container with the host's processes nor one with its pod's has such a one.
fn init_process(mount: &Path, container: &CgroupPath) -> Option<u32> {
    let directory = container.under(mount);
    let here = read(&directory.join("cgroup.procs"))?;
    let mut processes = pids(&here);
    if processes.is_empty() {
        // crun puts them one level further in.
        processes = pids(&read(&directory.join("container/cgroup.procs"))?);
    }
    let is_first = |pid: &u32| is_init_of_its_namespace(&Path::new(PROC).join(pid.to_string()), *pid);
    processes.into_iter().find(is_first)
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

/// A file of the kernel's; `None` when it is gone, as what it belongs to may be at any time.
fn read(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oom::parse_log;

    #[test]
    fn a_victim_that_is_gone_or_whose_id_is_another_process_by_now_tells_nothing() {
        let gone = 1 << 30;
        for pid in [gone, std::process::id()] {
            let log =
                format!("Out of memory: Killed process {pid} (no such name) total-vm:4kB, anon-rss:3kB, file-rss:2kB");
            let [kill] = parse_log(log.as_bytes()).try_into().unwrap();
            assert_eq!((kill.pid, NodeFiles::new().probe(&kill)), (pid, ProcProbe::NONE));
        }
    }
}
