//! The annotations that are read, by exact name. All others are dropped where an object comes in.

/// On a pod: `"true"` leaves the pod alone.
pub const IGNORE: &str = "vscaled.io/ignore";
/// On a VPA: `"true"` acts on the VPA whatever its mode says, `"false"` leaves its pods alone.
pub const ACT: &str = "vscaled.io/act";
/// On a VPA: the share of its pods that changed recommendations go to first, such as `10%`.
pub const CANARY: &str = "vscaled.io/canary";
/// On a VPA: how long the other pods wait then.
pub const CANARY_BAKE: &str = "vscaled.io/canary-bake";
/// On a pod: what is applied to it, where its kubelet does not resize.
pub const APPLIED: &str = "vscaled.io/applied";
/// On a pod: what is run in its containers before a memory limit comes down. A container's name may follow a dot.
pub const BEFORE_SHRINK: &str = "vscaled.io/before-shrink";
/// On a pod: how long that may take. A container's name may follow a dot.
pub const BEFORE_SHRINK_WAIT: &str = "vscaled.io/before-shrink-wait";
/// On a pod: what is run in its containers after a memory limit has grown. A container's name may follow a dot.
pub const AFTER_GROW: &str = "vscaled.io/after-grow";
/// On a pod: what is run in its containers when a memory limit will be reached that cannot grow. A container's name may follow a
/// dot.
pub const ON_MEMORY_PRESSURE: &str = "vscaled.io/on-memory-pressure";
/// On a pod: how long that may take. A container's name may follow a dot.
pub const ON_MEMORY_PRESSURE_WAIT: &str = "vscaled.io/on-memory-pressure-wait";
/// On a pod: the memory that is kept for that. A container's name may follow a dot.
pub const ON_MEMORY_PRESSURE_MEMORY: &str = "vscaled.io/on-memory-pressure-memory";
/// The annotations of hooks.
pub const HOOKS: [&str; 6] = [
    BEFORE_SHRINK,
    BEFORE_SHRINK_WAIT,
    AFTER_GROW,
    ON_MEMORY_PRESSURE,
    ON_MEMORY_PRESSURE_WAIT,
    ON_MEMORY_PRESSURE_MEMORY,
];
/// On a pod, by VPA's webhook: the containers that its updater looks at.
pub const OBSERVED: &str = "vpaObservedContainers";
/// On a pod, by VPA's updater: `"true"` once the updater resized the pod in place.
pub const UPDATED: &str = "vpaInPlaceUpdated";
/// On a pod, by VPA's webhook: what a container had before its startup boost. The container's name follows.
pub const BOOST_PREFIX: &str = "vpaCpuStartupBoost/";
/// On a mirror pod: the UID of the static pod. It cannot be resized through the API server.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
