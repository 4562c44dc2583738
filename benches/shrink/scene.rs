//! One container with a process that allocates and frees memory all the time.

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
/// The initial limit in MiB.
pub(crate) const ROOMY: u64 = 200;

/// A pod of one container.
pub(crate) struct Scene {
    node: BareNode,
    pod: BarePod,
    /// The highest use of each process in MiB.
    most: u64,
    processes: usize,
}

impl Scene {
    /// Starts processes that use up to `most` MiB each.
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
        // Waits until the processes have reached their highest use.
        sleep(Duration::from_secs(3));
        scene
    }

    /// Restarts killed processes: a killed process frees memory, and then no other is killed.
    pub(crate) fn revive(&mut self) {
        let killed = self.processes - self.running();
        for _ in 0..killed {
            self.node.spawn(&self.app(), &churn::command(5, self.most));
        }
        while killed > 0 && self.usage() < (self.most << 20) / 2 {
            sleep(Duration::from_millis(1));
        }
    }

    /// The number of running processes.
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

    /// A request for this limit of the container.
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

/// A memory limit of this many MiB in the version's file.
pub(crate) const fn limit(version: CgroupVersion, mebibytes: u64) -> Setting {
    let limit = MemoryLimit::Bytes(mebibytes << 20);
    match version {
        CgroupVersion::V1 => Setting::MemoryLimit(limit),
        CgroupVersion::V2 => Setting::MemoryMax(limit),
    }
}

/// Pseudo-random numbers, the same in every run.
pub(crate) fn numbers() -> fastrand::Rng {
    fastrand::Rng::with_seed(1)
}

/// Between three tenths and nineteen twentieths of an amount.
pub(crate) fn share_of(numbers: &mut fastrand::Rng, amount: u64) -> u64 {
    amount * numbers.u64(30..96) / 100
}
