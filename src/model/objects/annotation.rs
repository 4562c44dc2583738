//! The annotations that the agent reads: the only list of them. The agent drops every other annotation when it decodes an
//! object.

use super::HOOK_VARIABLES;

/// The kind of object that an annotation is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnnotatedKind {
    Pod,
    Vpa,
}

macro_rules! annotations {
    ($($(#[$doc:meta])* $kind:ident $constant:ident = $name:literal;)*) => {
        $($(#[$doc])* pub const $constant: &str = $name;)*

        /// A container's name follows a name that ends with a slash.
        const ALL: &[(AnnotatedKind, &str)] = &[$((AnnotatedKind::$kind, $name)),*];
    };
}

annotations! {
    /// `"true"` leaves the pod alone.
    Pod IGNORE = "vscaled.io/ignore";
    /// Whether the agent acts on the VPA, regardless of its mode: `"true"`, `"false"`, or `"on-trouble"` for pods in trouble alone.
    Vpa ACT = "vscaled.io/act";
    /// How a memory limit follows its request: `ratio`, `keep`, `request+256Mi` or `request*1.5`.
    Vpa MEMORY_LIMIT = "vscaled.io/memory-limit";
    /// How a cpu limit follows its request: `ratio`, `keep`, `request+500m` or `request*1.5`.
    Vpa CPU_LIMIT = "vscaled.io/cpu-limit";
    /// The burst of the VPA's pods in percent of their cpu quotas: `0%` to `100%`.
    Vpa CPU_BURST = "vscaled.io/cpu-burst";
    /// The share of the VPA's pods that changed recommendations go to first, such as `10%`.
    Vpa CANARY = "vscaled.io/canary";
    /// How long the other pods wait after that.
    Vpa CANARY_BAKE = "vscaled.io/canary-bake";
    /// On a pod whose kubelet does not resize: the amounts that the agent has applied.
    Pod APPLIED = "vscaled.io/applied";
    /// By VPA's webhook: the containers that its updater considers.
    Pod OBSERVED = "vpaObservedContainers";
    /// By VPA's updater: `"true"` once the updater resized the pod in place.
    Pod UPDATED = "vpaInPlaceUpdated";
    /// By VPA's webhook: a container's amounts before its startup boost (`StartupCPUBoostAnnotation`, autoscaler
    /// `pkg/utils/annotations`).
    Pod BOOST_PREFIX = "vpaCpuStartupBoost/";
    /// On a mirror pod: the UID of the static pod (`IsMirrorPod`, kubernetes `pkg/kubelet/types`). The API server resizes no
    /// mirror pod.
    Pod MIRROR = "kubernetes.io/config.mirror";
}

/// The variable that replaces an annotation which declared a hook in earlier versions, and the container that the annotation names.
pub fn former_hook(annotation: &str) -> Option<(&'static str, Option<&str>)> {
    let name = annotation.strip_prefix("vscaled.io/")?;
    let (name, container) = name.split_once('.').map_or((name, None), |(name, of)| (name, Some(of)));
    let replaces = |variable: &&str| variable["VSCALED_".len()..].to_lowercase().replace('_', "-") == name;
    let variable = HOOK_VARIABLES.as_flattened().iter().copied().find(replaces)?;
    Some((variable, container))
}

/// Whether the agent reads an annotation of an object; `has_container` says whether the object has a container of a name.
pub fn is_read(kind: AnnotatedKind, annotation: &str, has_container: impl Fn(&str) -> bool) -> bool {
    let is_hook = |(_, container): (_, Option<&str>)| container.is_none_or(&has_container);
    if kind == AnnotatedKind::Pod && former_hook(annotation).is_some_and(is_hook) {
        return true;
    }
    let mut of_kind = ALL.iter().filter(|(of, _)| *of == kind);
    of_kind.any(|(_, name)| match annotation.strip_prefix(name) {
        None => false,
        Some(container) if name.ends_with('/') => has_container(container),
        Some(rest) => rest.is_empty(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_annotation_is_read_from_its_kind_alone() {
        let is_app = |container: &str| container == "app";
        for (kind, name) in ALL {
            let name = match name.ends_with('/') {
                true => format!("{name}app"),
                false => (*name).to_owned(),
            };
            assert!(is_read(*kind, &name, is_app), "{name}");
            assert!(!is_read(*kind, &format!("{name}x"), is_app), "{name}");
            let other = [AnnotatedKind::Pod, AnnotatedKind::Vpa]
                .into_iter()
                .find(|other| other != kind);
            assert!(!other.is_some_and(|other| is_read(other, &name, is_app)), "{name}");
        }
    }
}
