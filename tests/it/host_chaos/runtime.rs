//! A containerd with one of the pods, which crashes and hangs.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use vscaled::model::MemoryLimit;

use super::pods::{AT_FIRST, CONTAINERS, NAMES, REAL, start_amounts};
use super::world::World;
use crate::support::amounts::Amounts;
use crate::support::bare::{BareContainer, BareNode, BarePod};
use crate::support::containerd::{Containerd, OciRuntime};
use crate::support::pods::{ContainerSpec, Pod, PodSpec};

const UID: &str = "0a1b2c3d-0000-4000-8000-0000000000c1";

/// The runtime and its pod.
pub(super) struct Runtime {
    containerd: Containerd,
    spec: PodSpec,
    pod: Pod,
    /// The number of container restarts.
    attempts: u32,
    /// The end of the outage, and whether the runtime hangs.
    away: Option<(Instant, bool)>,
}

impl Runtime {
    pub(super) async fn start() -> Self {
        let containerd = Containerd::start(OciRuntime::Runc).await;
        let amounts = Amounts::doubled(AT_FIRST.cpu, AT_FIRST.memory);
        let containers = CONTAINERS.map(|name| ContainerSpec {
            name,
            script: "while true; do sleep 1000; done",
            resources: amounts.cri(),
            mounts: Vec::new(),
        });
        let spec = PodSpec {
            name: NAMES[REAL],
            uid: UID,
            memory_limit: MemoryLimit::Max,
            containers: containers.into(),
        };
        let pod = containerd.run(&spec).await;
        for setting in Amounts::sum([amounts; 2])
            .settings(containerd.cgroups().version())
            .iter()
        {
            containerd.cgroups().put(&pod.cgroup, setting);
        }
        Self {
            containerd,
            spec,
            pod,
            attempts: 0,
            away: None,
        }
    }

    /// A node for the other pods beside this one.
    pub(super) fn node(&self) -> BareNode {
        BareNode::beside(self.containerd.cgroups())
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.containerd.socket()
    }

    /// The runtime's pod in the form of the other pods.
    pub(super) fn pod(&self) -> BarePod {
        let amounts = Amounts::doubled(AT_FIRST.cpu, AT_FIRST.memory);
        let containers = (0..CONTAINERS.len()).map(|index| (CONTAINERS[index], self.container(index, amounts)));
        BarePod {
            name: self.spec.name,
            uid: self.spec.uid,
            cgroup: self.pod.cgroup.clone(),
            containers: containers.collect(),
        }
    }

    fn container(&self, index: usize, amounts: Amounts) -> BareContainer {
        let container = &self.pod.containers[index];
        BareContainer {
            id: container.id.clone(),
            pid: container.pid.unsigned_abs(),
            cgroup: container.cgroup.clone(),
            amounts,
        }
    }

    /// Crashes or hangs the runtime for this time.
    pub(super) fn start_outage(&mut self, hangs: bool, lasts: Duration) {
        if self.away.is_some() {
            return;
        }
        if hangs {
            self.containerd.hang(true);
        } else {
            self.containerd.stop();
        }
        self.away = Some((Instant::now() + lasts, hangs));
    }

    /// Ends an outage that is due at this time; with `None`, any outage.
    pub(super) async fn end_outage(&mut self, now: Option<Instant>) {
        let due = |(at, _): &mut (Instant, bool)| now.is_none_or(|now| *at <= now);
        match self.away.take_if(due) {
            Some((_, true)) => self.containerd.hang(false),
            Some((_, false)) => self.containerd.launch().await,
            None => {}
        }
    }
}

impl World {
    /// Ends a container of the runtime's pod. The kubelet restarts it if the runtime is available.
    pub(super) async fn restart_real(&mut self, index: usize) {
        let runtime = &mut self.runtime;
        if runtime.away.is_some() {
            return;
        }
        let (slot, name) = (&mut self.slots[REAL], CONTAINERS[index]);
        let granted = slot.granted(&self.api, name);
        runtime.containerd.end(&runtime.pod.containers[index]).await;
        runtime.attempts += 1;
        runtime.spec.containers[index].resources = start_amounts(granted).cri();
        let Runtime {
            containerd,
            spec,
            pod,
            attempts,
            ..
        } = runtime;
        containerd.restart(pod, spec, index, *attempts).await;
        slot.pod.containers.insert(name, self.runtime.container(index, granted));
        slot.restarted(&self.node, &self.api, name);
    }
}
