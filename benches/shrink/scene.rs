//! One container with a process in it that never rests.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use vscaled::control::proto;
use vscaled::model::{CgroupPath, CgroupVersion, MemoryLimit, Setting};

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::bare::{BareNode, BarePod};
use crate::support::churn;

const UID: &str = "0a1b2c3d-0000-4000-8000-000000000061";
/// The limit everything starts from, in MiB.
pub(crate) const ROOMY: u64 = 200;

/// A pod of one container.
pub(crate) struct Scene {
    node: BareNode,
    pod: BarePod,
    /// What each process uses at most, in MiB.
    most: u64,
    processes: usize,
}

impl Scene {
    /// With processes that use up to `most` MiB each.
    pub(crate) fn churning(most: u64, processes: usize) -> Self {
        let mut node = BareNode::new();
        node.kubepods();
        let amounts = Amounts {
            cpu: 100,
            cpu_limit: None,
            memory: 8,
            memory_limit: Some(ROOMY),
        };
        let pod = node.run("web", UID, &[("app", amounts)]);
        let mut scene = Self {
            node,
            pod,
            most,
            processes,
        };
        scene.revive();
        // Until they have used the most they will.
        sleep(Duration::from_secs(3));
        scene
    }

    /// Starts those again that were killed: whoever is killed makes room, and then nobody else is.
    pub(crate) fn revive(&mut self) {
        let killed = self.processes - self.running();
        for _ in 0..killed {
            self.node.spawn(&self.app(), &churn::command(5, self.most));
        }
        while killed > 0 && self.usage() < (self.most << 20) / 2 {
            sleep(Duration::from_millis(1));
        }
    }

    /// How many of the processes run.
    fn running(&self) -> usize {
        let directory = &self.node.cgroups().directories(&self.app())[0];
        let pids = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        let state = |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        pids.lines()
            .map(state)
            .filter(|stat| stat.contains("(perl)") && !stat.contains(") Z "))
            .count()
    }

    /// An agent that knows the pod.
    pub(crate) async fn agent(&self) -> Agent {
        let mut agent = Agent::new(&self.node.kubepods()).with("--log-level", "error");
        agent.write("pod.yaml", &self.pod.manifest());
        agent.start().await;
        agent.reaches("web", "NotManaged").await;
        agent
    }

    pub(crate) fn app(&self) -> CgroupPath {
        self.pod.containers["app"].cgroup.clone()
    }

    pub(crate) fn usage(&self) -> u64 {
        self.node.cgroups().memory_usage(&self.app())
    }

    pub(crate) fn kills(&self) -> u64 {
        self.node.cgroups().oom_kills(&self.app())
    }

    pub(crate) fn is_frozen(&self) -> bool {
        [self.app(), self.pod.cgroup.clone()].iter().any(|cgroup| {
            let directories = self.node.cgroups().directories(cgroup);
            directories.iter().any(|directory| {
                fs::read_to_string(directory.join("cgroup.freeze")).is_ok_and(|text| text.trim() == "1")
            })
        })
    }

    /// A request for this limit of the container's.
    pub(crate) fn limit(&self, mebibytes: u64) -> proto::ResizeRequest {
        proto::ResizeRequest {
            pod: self.pod.full_name(),
            containers: vec![proto::ContainerValues {
                name: "app".to_owned(),
                values: Some(proto::Requirements {
                    requests: None,
                    limits: Some(proto::Amounts {
                        cpu: None,
                        memory: Some(format!("{mebibytes}Mi")),
                    }),
                }),
            }],
            ..proto::ResizeRequest::default()
        }
    }
}

/// The version's file for a memory limit, with this many MiB.
pub(crate) const fn limit(version: CgroupVersion, mebibytes: u64) -> Setting {
    let limit = MemoryLimit::Bytes(mebibytes << 20);
    match version {
        CgroupVersion::V1 => Setting::MemoryLimit(limit),
        CgroupVersion::V2 => Setting::MemoryMax(limit),
    }
}

/// The same numbers in every run.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) const fn new() -> Self {
        Self(1)
    }

    /// One below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Between three tenths and nineteen twentieths of an amount.
    pub(crate) fn share_of(&mut self, amount: u64) -> u64 {
        amount * (30 + self.below(66)) / 100
    }
}
