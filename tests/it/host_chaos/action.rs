//! The possible events and their frequency. The random numbers alone decide; results of earlier events have no
//! influence.

use std::time::Duration;

use super::pods::NAMES;
use crate::support::apimodel::Effect;

/// The failpoints at which the agent may be killed.
pub(super) const FAILPOINTS: [&str; 21] = [
    "event.posted",
    "file.filled",
    "file.renamed",
    "freeze.asked",
    "freeze.marked",
    "freeze.thawed",
    "growth.written",
    "kills.acknowledged",
    "kills.appended",
    "kills.seen",
    "pass.not_taken_back",
    "pass.patched",
    "pass.room_made",
    "pass.written",
    "patch.saved",
    "runtime.asked",
    "runtime.updated",
    "shrink.frozen",
    "shrink.written",
    "step.undone",
    "step.written",
];

/// The failpoints that an agent reaches on any kernel. They are drawn more often.
const OFTEN: [&str; 12] = [
    "event.posted",
    "file.filled",
    "file.renamed",
    "growth.written",
    "kills.appended",
    "pass.patched",
    "pass.room_made",
    "pass.written",
    "patch.saved",
    "runtime.asked",
    "runtime.updated",
    "step.written",
];

/// Millicores and MiB.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) cpu: u64,
    pub(super) memory: u64,
}

/// The failpoint at which the next agent kills itself, and on which visit (counted from one).
pub(super) type Failpoint = Option<(&'static str, u32)>;

/// One event. Pods and containers are numbers.
#[derive(Debug)]
pub(super) enum Action {
    Recommend {
        pod: usize,
        sizes: [Size; 2],
    },
    RestartContainer {
        pod: usize,
        container: usize,
    },
    /// A new pod takes the name of this one; in some cases while no agent runs.
    ReplacePod {
        pod: usize,
        unseen: bool,
    },
    /// A foreign writer changes cpu (or memory) limits.
    Foreign {
        pod: usize,
        container: usize,
        memory: bool,
        amount: u64,
    },
    /// This number of calls fails.
    Fault {
        verb: &'static str,
        resource: &'static str,
        times: u32,
        effect: Effect,
    },
    /// The link to the API server is cut, or silent.
    Outage {
        silent: bool,
        lasts: Duration,
    },
    /// The API server forgets old versions.
    Compact,
    /// The kubelet's answer to resizes for a while.
    Kubelet {
        fault: KubeletFault,
        lasts: Duration,
    },
    Resize {
        pod: usize,
        cpu: Option<u64>,
        memory: Option<u64>,
        ttl: Option<Duration>,
    },
    Release {
        pod: usize,
    },
    /// The disk of the state directory is full for a while.
    FullDisk {
        lasts: Duration,
    },
    /// The kernel kills a process.
    Kill {
        container: usize,
    },
    /// A process allocates this many MiB, at a rate in MiB per second.
    Grow {
        until: u64,
        rate: u64,
    },
    /// The container runtime crashes, or hangs, for a while.
    Runtime {
        hangs: bool,
        lasts: Duration,
    },
    /// The agent's wall clock jumps to this many seconds off the right time.
    Clock {
        seconds: i64,
    },
    /// Other processes write lines into the kernel's log.
    Noise {
        lines: u32,
    },
    /// The agent is killed and started again.
    Crash {
        down: Duration,
        next: Failpoint,
    },
    /// The agent is stopped and started again.
    Stop {
        next: Failpoint,
    },
}

#[derive(Debug, Clone, Copy)]
pub(super) enum KubeletFault {
    Asleep,
    Deferred,
    Infeasible,
    Failing,
}

impl Action {
    pub(super) fn draw(random: &mut fastrand::Rng) -> Self {
        let pod = random.usize(..NAMES.len());
        let container = random.usize(..2);
        let millis = |random: &mut fastrand::Rng, most| Duration::from_millis(random.u64(..most));
        match random.u32(..1000) {
            0..260 => Self::Recommend {
                pod,
                sizes: [size(random), size(random)],
            },
            260..310 => Self::RestartContainer { pod, container },
            310..345 => Self::ReplacePod {
                pod,
                unseen: random.bool(),
            },
            345..420 => Self::Foreign {
                pod,
                container,
                memory: random.bool(),
                amount: random.u64(90..400),
            },
            420..520 => fault(random),
            520..535 => Self::Runtime {
                hangs: random.bool(),
                lasts: millis(random, 1500),
            },
            535..550 => Self::Clock {
                seconds: [0, 3600, -3600, 90, -90, 40_000_000][random.usize(..6)],
            },
            550..575 => Self::Outage {
                silent: random.bool(),
                lasts: millis(random, 1500),
            },
            575..590 => Self::Compact,
            590..640 => Self::Kubelet {
                fault: [
                    KubeletFault::Asleep,
                    KubeletFault::Deferred,
                    KubeletFault::Infeasible,
                    KubeletFault::Failing,
                ][random.usize(..4)],
                lasts: millis(random, 1500),
            },
            640..670 => Self::Grow {
                until: random.u64(100..400),
                rate: random.u64(50..300),
            },
            670..740 => {
                let (cpu, memory) = (random.u64(850..1200), random.u64(130..300));
                let which = random.u32(..3);
                Self::Resize {
                    pod,
                    cpu: (which != 0).then_some(cpu),
                    memory: (which != 1).then_some(memory),
                    ttl: random.bool().then(|| Duration::from_millis(random.u64(500..3000))),
                }
            }
            740..802 => Self::Release { pod },
            802..805 => Self::FullDisk {
                lasts: millis(random, 1500),
            },
            805..850 => Self::Kill { container },
            850..860 => Self::Noise {
                lines: random.u32(1..200),
            },
            860..985 => Self::Crash {
                down: millis(random, 200),
                next: failpoint(random),
            },
            _ => Self::Stop {
                next: failpoint(random),
            },
        }
    }
}

fn size(random: &mut fastrand::Rng) -> Size {
    Size {
        cpu: random.u64(100..400),
        memory: random.u64(24..120),
    }
}

fn fault(random: &mut fastrand::Rng) -> Action {
    let later = "the server is busy";
    let places = [
        ("patch", "pods/resize"),
        ("patch", "pods/resize"),
        ("patch", "pods/resize"),
        ("get", "pods"),
        ("list", "pods"),
        ("watch", "pods"),
        ("watch", "verticalpodautoscalers"),
        ("create", "events"),
    ];
    let (verb, resource) = places[random.usize(..places.len())];
    let slow = Duration::from_millis(random.u64(..400));
    let effect = match random.u32(..8) {
        0 => Effect::Says(
            409,
            "Conflict",
            "the object has been modified; please apply your changes to the latest version and try again",
            None,
        ),
        1 => Effect::Says(429, "TooManyRequests", later, Some(1)),
        2 => Effect::Says(500, "InternalError", later, None),
        3 => Effect::Says(503, "ServiceUnavailable", later, None),
        4 => Effect::Says(
            403,
            "Forbidden",
            "exceeded quota: q, requested: limits.memory=1Gi",
            None,
        ),
        5 if verb == "watch" => Effect::Says(410, "Expired", "too old resource version", None),
        5 => Effect::Mute,
        6 => Effect::Torn,
        _ => Effect::Slow(slow),
    };
    Action::Fault {
        verb,
        resource,
        times: random.u32(1..3),
        effect,
    }
}

/// In a quarter of all cases there is no failpoint, and the agent runs until the test kills it.
fn failpoint(random: &mut fastrand::Rng) -> Failpoint {
    let (which, point) = (random.u32(..4), random.usize(..FAILPOINTS.len() * OFTEN.len()));
    let name = match which {
        0 => FAILPOINTS[point % FAILPOINTS.len()],
        1 | 2 => OFTEN[point % OFTEN.len()],
        _ => return None,
    };
    Some((name, random.u32(1..5)))
}
