//! The annotations that the agent reads, by exact name. It drops all others when it decodes an object.

/// On a pod: `"true"` leaves the pod alone.
pub const IGNORE: &str = "vscaled.io/ignore";
/// On a VPA: `"true"` or `"false"` decides whether the agent acts on the VPA, whatever its mode.
pub const ACT: &str = "vscaled.io/act";
/// On a VPA: the share of its pods that changed recommendations go to first, such as `10%`.
pub const CANARY: &str = "vscaled.io/canary";
/// On a VPA: how long the other pods wait after that.
pub const CANARY_BAKE: &str = "vscaled.io/canary-bake";
/// On a pod whose kubelet does not resize: the amounts that the agent has applied.
pub const APPLIED: &str = "vscaled.io/applied";
/// On a pod: the hook that runs in its containers before a memory limit comes down.
pub const BEFORE_SHRINK: &str = "vscaled.io/before-shrink";
/// On a pod: how long that hook may take.
pub const BEFORE_SHRINK_WAIT: &str = "vscaled.io/before-shrink-wait";
/// On a pod: the hook that runs in its containers after a memory limit has grown.
pub const AFTER_GROW: &str = "vscaled.io/after-grow";
/// On a pod: the hook that runs in its containers when they are about to reach a memory limit that cannot grow.
pub const ON_MEMORY_PRESSURE: &str = "vscaled.io/on-memory-pressure";
/// On a pod: how long that hook may take.
pub const ON_MEMORY_PRESSURE_WAIT: &str = "vscaled.io/on-memory-pressure-wait";
/// On a pod: the memory that is kept for that hook.
pub const ON_MEMORY_PRESSURE_MEMORY: &str = "vscaled.io/on-memory-pressure-memory";
/// The annotations of hooks. With a dot and a container's name after it, an annotation is for that container alone.
pub const HOOKS: [&str; 6] = [
    BEFORE_SHRINK,
    BEFORE_SHRINK_WAIT,
    AFTER_GROW,
    ON_MEMORY_PRESSURE,
    ON_MEMORY_PRESSURE_WAIT,
    ON_MEMORY_PRESSURE_MEMORY,
];
/// On a pod, by VPA's webhook: the containers that its updater considers.
pub const OBSERVED: &str = "vpaObservedContainers";
/// On a pod, by VPA's updater: `"true"` once the updater resized the pod in place.
pub const UPDATED: &str = "vpaInPlaceUpdated";
/// On a pod, by VPA's webhook: what a container had before its startup boost (`StartupCPUBoostAnnotation`, autoscaler
/// `pkg/utils/annotations`). The container's name follows.
pub const BOOST_PREFIX: &str = "vpaCpuStartupBoost/";
/// On a mirror pod: the UID of the static pod (`IsMirrorPod`, kubernetes `pkg/kubelet/types`). The API
/// server resizes no mirror pod.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
