//! What can happen to a pod in the properties of its state.

use proptest::prelude::*;

use super::super::*;
use crate::model::{CgroupPath, ContainerId, LiveContainer, MemoryLimit, Outcome};
use crate::plan::shrink::{Before, WatchReading};
use crate::sources::parse_manifests;

pub(super) const MIB: u64 = 1 << 20;
pub(super) const CONTAINERS: [&str; 2] = ["app", "side"];

/// Without a UID, as in a manifest: the object describes any pod of its name.
const POD: &str = r#"
kind: Pod
metadata:
  name: web
  generation: 1
spec:
  containers:
  - name: app
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}
    env:
    - {name: VSCALED_BEFORE_SHRINK, value: '["free", "{new}"]'}
    - {name: VSCALED_AFTER_GROW, value: 'signal: SIGHUP'}
    - {name: VSCALED_ON_MEMORY_PRESSURE, value: 'signal: SIGUSR1'}
  - name: side
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}
    env:
    - {name: VSCALED_BEFORE_SHRINK, value: '["free", "{new}"]'}
    - {name: VSCALED_ON_MEMORY_PRESSURE, value: 'signal: SIGUSR1'}
"#;

/// The status of a pod whose kubelet resizes in place.
const STATUS: &str = "
status:
  observedGeneration: 1
  containerStatuses:
  - {name: app, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}
  - {name: side, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}
";

pub(super) fn pod(in_place: bool) -> Arc<Pod> {
    let text = format!("{POD}{}", if in_place { STATUS.trim_start() } else { "" });
    Arc::clone(&parse_manifests("test", &text).unwrap().view.pods[0])
}

pub(super) fn limits(mib: u64) -> PodAmounts {
    let mut targets = pod(false).requirements();
    targets.containers[0].resources.limits.memory = Some(Bytes::new(mib * MIB));
    targets
}

pub(super) fn live(uid: &str) -> Arc<LivePod> {
    let path = CgroupPath::new("/kubepods/podu").unwrap();
    let containers = CONTAINERS.map(|name| {
        let container = LiveContainer {
            id: ContainerId::of_test(&format!("{uid}-{name}")),
            path: path.clone(),
        };
        (name.into(), container)
    });
    Arc::new(LivePod {
        id: PodId {
            uid: uid.into(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        },
        path,
        containers: indexmap::IndexMap::from(containers),
    })
}

/// Something that happens to the pod.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    Decided {
        mib: Option<u64>,
        no_room: bool,
    },
    /// Another pod gets the change first.
    DecidedToWait {
        mib: u64,
    },
    Runs(bool),
    /// Another pod has the name.
    AnotherRuns,
    Removed,
    /// The agent starts again from the state file. Sources that answer first bring a decision.
    AgentRestarts {
        decided: Option<u64>,
    },
    /// The watch brings the spec that the API server has accepted, or that somebody else has set.
    WatchBrings,
    SomebodyElseSets {
        mib: u64,
    },
    Asks {
        mib: u64,
    },
    Releases,
    Grown {
        mib: u64,
    },
    Pressed {
        mib: u64,
    },
    Quiet {
        mib: u64,
    },
    Throttled(bool),
    PassBegins,
    /// The pass that begins resizes in this way.
    PassResizes(usize),
    PassEnds {
        outcome: usize,
        denied: bool,
    },
    HookEnds(bool),
    StalePassEnds,
    ShrinkEnds(bool),
    Killed,
    PodLevelIs {
        low: bool,
        repair: bool,
    },
    PodLevelRaised(bool),
    Simple(usize),
    Waits {
        seconds: i64,
    },
    /// The same for the second container.
    InSide(Box<Happening>),
}

pub(super) fn happening() -> impl Strategy<Value = Happening> {
    let mib = || 64_u64..512;
    let limits = prop_oneof![
        mib().prop_map(|mib| Happening::Grown { mib }),
        mib().prop_map(|mib| Happening::Pressed { mib }),
        mib().prop_map(|mib| Happening::Quiet { mib }),
        any::<bool>().prop_map(Happening::Throttled),
        any::<bool>().prop_map(Happening::HookEnds),
    ];
    let limits = limits.boxed();
    let pod = prop_oneof![
        4 => any::<bool>().prop_map(Happening::Runs),
        1 => Just(Happening::AnotherRuns),
        1 => Just(Happening::Removed),
        2 => proptest::option::of(mib()).prop_map(|decided| Happening::AgentRestarts { decided }),
        2 => Just(Happening::WatchBrings),
        2 => mib().prop_map(|mib| Happening::SomebodyElseSets { mib }),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(low, repair)| Happening::PodLevelIs { low, repair }),
        2 => any::<bool>().prop_map(Happening::PodLevelRaised),
    ];
    let passes = prop_oneof![
        2 => Just(Happening::PassBegins),
        2 => (0_usize..6).prop_map(Happening::PassResizes),
        3 => (0_usize..9, any::<bool>()).prop_map(|(outcome, denied)| Happening::PassEnds { outcome, denied }),
        1 => Just(Happening::StalePassEnds),
        1 => any::<bool>().prop_map(Happening::ShrinkEnds),
        1 => Just(Happening::Killed),
    ];
    prop_oneof![
        4 => limits.clone(),
        2 => limits.prop_map(|happening| Happening::InSide(Box::new(happening))),
        4 => pod,
        5 => passes,
        1 => (proptest::option::of(mib()), any::<bool>()).prop_map(|(mib, no_room)| Happening::Decided { mib, no_room }),
        1 => mib().prop_map(|mib| Happening::DecidedToWait { mib }),
        1 => mib().prop_map(|mib| Happening::Asks { mib }),
        1 => Just(Happening::Releases),
        1 => (0_usize..9).prop_map(Happening::Simple),
        1 => (0_i64..2000).prop_map(|seconds| Happening::Waits { seconds }),
    ]
}

pub(super) fn outcome(which: usize) -> Outcome {
    let reason = "no".to_owned();
    match which {
        0 => Outcome::Applied,
        1 => Outcome::Unchanged,
        2 => Outcome::RuntimeOwed(reason),
        3 => Outcome::Refused(reason),
        4 => Outcome::Interrupted(reason),
        5 => Outcome::Withheld(Withheld::SpecLater(reason)),
        6 => Outcome::Withheld(Withheld::Deferred(reason)),
        7 => Outcome::RolledBack(reason),
        _ => Outcome::Incomplete(reason),
    }
}

pub(super) fn lowering() -> Lowering {
    let memory = crate::plan::shrink::MemoryReading::default();
    Lowering {
        target: Target::Pod,
        from: MemoryLimit::Bytes(512 * MIB),
        to: Bytes::new(256 * MIB),
        before: Before {
            last: WatchReading {
                memory,
                kills: 0,
                stalled: None,
            },
            most: Bytes::ZERO,
            refaults: Bytes::ZERO,
        },
    }
}
