//! Pods without a runtime: cgroups as a kubelet creates and fills them, with live processes.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use vscaled::control::proto;
use vscaled::model::{CgroupPath, Settings};

use super::amounts::{Amounts, pod_manifest};
use super::tree::CgroupTree;

/// A cgroup tree and its processes. Dropping the value ends and removes everything.
#[derive(Debug)]
pub(crate) struct BareNode {
    processes: Vec<Process>,
    /// The number of containers so far.
    made: u32,
    cgroups: CgroupTree,
}

/// A process group. Dropping the value kills it.
#[derive(Debug)]
struct Process(Child);

/// A running pod.
#[derive(Debug, Clone)]
pub(crate) struct BarePod {
    pub(crate) name: &'static str,
    pub(crate) uid: &'static str,
    pub(crate) cgroup: CgroupPath,
    pub(crate) containers: BTreeMap<&'static str, BareContainer>,
}

/// A running container.
#[derive(Debug, Clone)]
pub(crate) struct BareContainer {
    pub(crate) id: String,
    pub(crate) pid: u32,
    pub(crate) cgroup: CgroupPath,
    /// The amounts in the manifest.
    pub(crate) amounts: Amounts,
}

impl BareNode {
    pub(crate) fn new() -> Self {
        Self {
            processes: Vec::new(),
            made: 0,
            cgroups: CgroupTree::new(),
        }
    }

    /// A node below the same cgroup as another tree.
    pub(crate) fn beside(others: &CgroupTree) -> Self {
        Self {
            cgroups: others.shared(),
            ..Self::new()
        }
    }

    pub(crate) const fn cgroups(&self) -> &CgroupTree {
        &self.cgroups
    }

    /// The root of all pods.
    pub(crate) fn kubepods(&self) -> CgroupPath {
        self.cgroups.make("kubepods")
    }

    /// Creates a Burstable pod with one process for each container.
    pub(crate) fn run(
        &mut self,
        name: &'static str,
        uid: &'static str,
        containers: &[(&'static str, Amounts)],
    ) -> BarePod {
        self.run_below("kubepods/burstable", name, uid, containers)
    }

    /// The same below the cgroup of another QoS class; `kubepods` is that of Guaranteed pods.
    pub(crate) fn run_below(
        &mut self,
        class: &str,
        name: &'static str,
        uid: &'static str,
        containers: &[(&'static str, Amounts)],
    ) -> BarePod {
        let cgroup = self.cgroups.make(&format!("{class}/pod{uid}"));
        let mut pod = BarePod {
            name,
            uid,
            cgroup: cgroup.clone(),
            containers: BTreeMap::new(),
        };
        self.put(
            &cgroup,
            &Amounts::sum(containers.iter().map(|(_, amounts)| *amounts)).settings(self.cgroups.version()),
        );
        for (container, amounts) in containers {
            self.run_container(&mut pod, container, *amounts);
        }
        pod
    }

    /// Creates a container of a pod, in place of an earlier one of that name, with a new id.
    pub(crate) fn run_container(&mut self, pod: &mut BarePod, name: &'static str, amounts: Amounts) {
        self.made += 1;
        let id = format!("{:064x}", self.made);
        self.run_container_as(pod, name, &id, amounts);
    }

    /// Like [`Self::run_container`], with an id that may repeat an earlier one.
    pub(crate) fn run_container_as(&mut self, pod: &mut BarePod, name: &'static str, id: &str, amounts: Amounts) {
        let cgroup = self.cgroups.make_child(&pod.cgroup, id);
        self.put(&cgroup, &amounts.settings(self.cgroups.version()));
        let container = BareContainer {
            id: id.to_owned(),
            pid: self.spawn(&cgroup, "exec sleep 1000"),
            cgroup,
            amounts,
        };
        pod.containers.insert(name, container);
    }

    /// Starts a shell command in a cgroup and returns its pid.
    pub(crate) fn spawn(&mut self, cgroup: &CgroupPath, command: &str) -> u32 {
        let enter: Vec<String> = self
            .cgroups
            .directories(cgroup)
            .iter()
            .map(|directory| format!("echo $$ >{}/cgroup.procs", directory.display()))
            .collect();
        let child = Command::new("sh")
            .args(["-ec", &format!("{} && {command}", enter.join(" && "))])
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        self.processes.push(Process(child));
        self.cgroups.wait_for_process(pid.cast_signed(), cgroup);
        pid
    }

    /// Reaps killed processes. On v1 a zombie keeps its removed cgroup alive, and with it the quota, below which the
    /// parent's quota cannot go.
    pub(crate) fn reap(&mut self) {
        self.processes
            .retain_mut(|process| process.0.try_wait().unwrap().is_none());
    }

    /// Ends the process that was started last.
    pub(crate) fn end_last_process(&mut self) {
        drop(self.processes.pop());
    }

    /// Writes values as a foreign writer.
    pub(crate) fn put(&self, cgroup: &CgroupPath, settings: &Settings) {
        for setting in settings.iter() {
            self.cgroups.put(cgroup, setting);
        }
    }

    /// The current values of a pod (`pod`) and of its containers (their names).
    pub(crate) fn held(&self, pod: &BarePod) -> BTreeMap<&'static str, Settings> {
        let containers = pod
            .containers
            .iter()
            .map(|(name, container)| (*name, &container.cgroup));
        std::iter::once(("pod", &pod.cgroup))
            .chain(containers)
            .map(|(name, cgroup)| (name, self.cgroups.settings(cgroup)))
            .collect()
    }

    /// Whether every level of a pod holds the values for these amounts, where the spec still has the amounts of the
    /// containers' creation.
    pub(crate) fn holds(&self, pod: &BarePod, containers: &[(&str, Amounts)]) -> bool {
        let specs: Vec<_> = pod.containers.values().map(|container| container.amounts).collect();
        self.holds_beside(pod, containers, &specs)
    }

    /// Like [`Self::holds`], where the spec has these amounts too.
    pub(crate) fn holds_as_specified(&self, pod: &BarePod, containers: &[(&str, Amounts)]) -> bool {
        self.holds_beside(pod, containers, &[])
    }

    fn holds_beside(&self, pod: &BarePod, containers: &[(&str, Amounts)], specs: &[Amounts]) -> bool {
        let sum = Amounts::sum(containers.iter().map(|(_, amounts)| *amounts));
        let sum = sum.admitting(specs.iter().copied(), self.cgroups.version());
        self.cgroup_holds(&pod.cgroup, sum)
            && containers
                .iter()
                .all(|(name, amounts)| self.cgroup_holds(&pod.containers[name].cgroup, *amounts))
    }

    pub(crate) fn cgroup_holds(&self, cgroup: &CgroupPath, amounts: Amounts) -> bool {
        self.cgroups.holds(cgroup, &amounts.settings(self.cgroups.version()))
    }

    /// Whether every container's first process runs in its own cgroup.
    pub(crate) fn all_run(&self, pod: &BarePod) -> bool {
        pod.containers
            .values()
            .all(|container| self.cgroups.of_process(container.pid.cast_signed()) == container.cgroup)
    }
}

impl BarePod {
    /// A request to override the limits of the container `app`.
    pub(crate) fn limits_by_hand(&self, limits: proto::Amounts) -> proto::ResizeRequest {
        let values = proto::Requirements {
            requests: None,
            limits: Some(limits),
        };
        proto::ResizeRequest {
            pod: self.full_name(),
            containers: vec![proto::ContainerValues {
                name: "app".to_owned(),
                values: Some(values),
            }],
            ..proto::ResizeRequest::default()
        }
    }

    /// The manifest, with the containers' ids in the status.
    pub(crate) fn manifest(&self) -> String {
        let containers: Vec<_> = self
            .containers
            .iter()
            .map(|(name, container)| (*name, container.amounts, Some(container.id.as_str())))
            .collect();
        pod_manifest(self.name, self.uid, &containers)
    }

    pub(crate) fn full_name(&self) -> String {
        format!("test/{}", self.name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The children are in the same process group. An empty group is fine.
        killpg(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGKILL).unwrap_or_default();
        self.0
            .wait()
            .map_or_else(|error| eprintln!("process {}: {error}", self.0.id()), drop);
    }
}
