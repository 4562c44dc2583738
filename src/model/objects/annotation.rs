//! The annotations that the agent reads, by exact name. It drops all others when it decodes an object.

use super::HOOK_VARIABLES;

/// On a pod: `"true"` leaves the pod alone.
pub const IGNORE: &str = "vscaled.io/ignore";
/// On a VPA: `"true"` or `"false"` decides whether the agent acts on the VPA, regardless of its mode.
pub const ACT: &str = "vscaled.io/act";
/// On a VPA: the share of its pods that changed recommendations go to first, such as `10%`.
pub const CANARY: &str = "vscaled.io/canary";
/// On a VPA: how long the other pods wait after that.
pub const CANARY_BAKE: &str = "vscaled.io/canary-bake";
/// On a pod whose kubelet does not resize: the amounts that the agent has applied.
pub const APPLIED: &str = "vscaled.io/applied";
/// On a pod, by VPA's webhook: the containers that its updater considers.
pub const OBSERVED: &str = "vpaObservedContainers";
/// On a pod, by VPA's updater: `"true"` once the updater resized the pod in place.
pub const UPDATED: &str = "vpaInPlaceUpdated";
/// On a pod, by VPA's webhook: a container's amounts before its startup boost (`StartupCPUBoostAnnotation`, autoscaler
/// `pkg/utils/annotations`). The container's name follows.
pub const BOOST_PREFIX: &str = "vpaCpuStartupBoost/";
/// On a mirror pod: the UID of the static pod (`IsMirrorPod`, kubernetes `pkg/kubelet/types`). The API
/// server resizes no mirror pod.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// The variable that replaces an annotation which declared a hook in earlier versions, and the container that the annotation names.
pub fn former_hook(annotation: &str) -> Option<(&'static str, Option<&str>)> {
    let name = annotation.strip_prefix("vscaled.io/")?;
    let (name, container) = name.split_once('.').map_or((name, None), |(name, of)| (name, Some(of)));
    let replaces = |variable: &&str| variable["VSCALED_".len()..].to_lowercase().replace('_', "-") == name;
    let variable = HOOK_VARIABLES.as_flattened().iter().copied().find(replaces)?;
    Some((variable, container))
}
