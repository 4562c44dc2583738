//! What the rules did to a decision on its way, one fact each, for people who ask why.

use jiff::Timestamp;

use super::boost::{ANNOTATION, Lasts};
use super::matching::Unmatched;
use crate::lint::Finding;
use crate::model::objects::VerticalPodAutoscaler;
use crate::model::{QosClass, Resource};

/// The characters of an annotation that are shown.
const SHOWN: usize = 64;

/// A bound that changes a recommended request. In the order in which they are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, derive_more::Display)]
pub enum Rule {
    /// A LimitRange's minimum for pods.
    #[display("the LimitRange's minimum for pods")]
    PodMin,
    /// A LimitRange's maximum for pods.
    #[display("the LimitRange's maximum for pods")]
    PodMax,
    /// A LimitRange's minimum for containers.
    #[display("the LimitRange's minimum for containers")]
    ContainerMin,
    /// A LimitRange's maximum for containers, which bounds the limit and so the request.
    #[display("the LimitRange's maximum for containers")]
    ContainerMax,
    /// The VPA's `minAllowed`.
    #[display("the VPA's minAllowed")]
    MinAllowed,
    /// The VPA's `maxAllowed`.
    #[display("the VPA's maxAllowed")]
    MaxAllowed,
    /// The lowest memory limit under which a heap of fixed size has room.
    #[display("the memory limit keeps room for the container's fixed heap")]
    FixedHeap,
    /// The container's limit, which a VPA with `RequestsOnly` leaves alone.
    #[display("the container's limit, which RequestsOnly leaves alone")]
    OwnLimit,
}

/// One fact about a decision. Amounts are thousandths of a cpu or bytes, by their resource.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum Note {
    /// A bound changed a recommended request.
    #[display("{container}: {resource} request {} becomes {}: {rule}", resource.quantity(*from), resource.quantity(*to))]
    Capped {
        container: String,
        resource: Resource,
        rule: Rule,
        from: u64,
        to: u64,
    },
    /// A resource of a container is left as it is, because nothing would remain of its request.
    #[display("{container}: {resource} is left alone: its request would become zero")]
    NothingLeft { container: String, resource: Resource },
    /// A resource is left as it is, because containers that the VPA does not control fill the LimitRange's maximum.
    #[display(
        "{resource} is left alone: containers without recommendation take all of the {} that the LimitRange allows a pod",
        resource.quantity(*max)
    )]
    PodMaxTaken { resource: Resource, max: u64 },
    /// A container without a limit gets one, because the LimitRange has a default.
    #[display("{container}: {resource} gets a limit of {}: the LimitRange has a default", resource.quantity(*to))]
    LimitAdded {
        container: String,
        resource: Resource,
        to: u64,
    },
    /// A limit in proportion would lie below the request, and is raised to it.
    #[display(
        "{container}: {resource} limit {} is raised to the request of {}",
        resource.quantity(*from),
        resource.quantity(*to)
    )]
    LimitRaised {
        container: String,
        resource: Resource,
        from: u64,
        to: u64,
    },
    /// A limit in proportion is more than a quantity can say, and stays at the largest.
    #[display("{container}: {resource} limit stays at the largest quantity there is")]
    LimitSaturated { container: String, resource: Resource },
    /// The recommendation names a container that the pod lacks.
    #[display("{container}: recommended for, but the pod has no such container")]
    UnknownContainer { container: String },
    /// A recommendation for a container or resource that the VPA's own policy takes out.
    #[display("{container}: {resource} is left alone: the VPA's policy excludes it")]
    NotControlled { container: String, resource: Resource },
    /// A horizontal autoscaler follows the resource, so it is left as it is.
    #[display("{resource} is left alone: HorizontalPodAutoscaler {hpa} scales on it")]
    FollowedByHpa { resource: Resource, hpa: String },
    /// The kubelet's static manager has assigned the resource to the pod, so it is left as it is.
    #[display("{resource} is left alone: the kubelet's static {resource} manager has assigned it to the pod")]
    StaticallyAssigned { resource: Resource },
    /// Another VPA targets the same workload, but is younger or comes later in the alphabet.
    #[display("VerticalPodAutoscaler {vpa} targets the workload too, but is younger or later by name")]
    Outranked { vpa: String },
    /// Why no VPA can control the pod.
    Unmatched(Unmatched),
    /// When the pod will be old enough to be changed for a difference within the bounds.
    #[display("old enough to be changed from {at}")]
    ActsFrom { at: Timestamp },
    /// The class the pod has, and the one the change would give it.
    #[display("the pod is {from} and would become {to}, which the API refuses")]
    WouldChangeClass {
        from: QosClass,
        /// The class the API would refuse.
        to: QosClass,
    },
    /// Changing the resource restarts the container.
    #[display(
        "{container}: {resource} is left as it is: its resizePolicy restarts the container when {resource} changes"
    )]
    WouldRestart { container: String, resource: Resource },
    /// A container's limit, or the sum of all requests, would pass what the pod's own `spec.resources` allow.
    #[display(
        "containers would have {} of {resource}, and the pod's own resources allow {}",
        resource.quantity(*to),
        resource.quantity(*pod)
    )]
    WouldExceedPod {
        resource: Resource,
        /// What the containers would have.
        to: u64,
        pod: u64,
    },
    /// Two containers have this name.
    #[display("{container}: two containers have this name")]
    SharedName { container: String },
    /// A container has more cpu while its pod starts, and keeps it for now.
    #[display("{container}: cpu keeps its startup boost until {lasts}")]
    Boosted { container: String, lasts: Lasts },
    /// It is not known what a container had before its boost.
    #[display(
        "{container}: what it had before its startup boost is not known: annotation {ANNOTATION}{container} should hold the \
         requests and limits of then as JSON: {why}"
    )]
    BoostUnreadable {
        container: String,
        /// What is wrong with the pod's annotation.
        why: String,
    },
    /// The pod is among those that changed recommendations go to first.
    #[display("changed recommendations go to this pod first, as to {percent}% of the VPA's pods")]
    GoesFirst { percent: u64 },
    /// The pod waits for a change that others have first.
    #[display(
        "{percent}% of the VPA's pods have the change first; this one has it from {until:.0}, if none of them on this node is in \
         trouble, as none has been since {since:.0}"
    )]
    Waits {
        percent: u64,
        since: Timestamp,
        until: Timestamp,
    },
    /// An annotation of the VPA that is not understood.
    #[display("VerticalPodAutoscaler {vpa}: metadata.annotations[{annotation}]: {value:?}: allowed is {allowed}")]
    Unreadable {
        vpa: String,
        annotation: &'static str,
        /// The beginning of what it holds.
        value: String,
        allowed: String,
    },
    /// A setting inside a container that no resize reaches.
    #[display("{}: {_0}", _0.container)]
    OutOfReach(Box<Finding>),
    /// A boost cannot be taken back: the container had no request before.
    #[display(
        "{container}: cpu stays as its startup boost left it: it had no request before, and a request cannot be removed from a \
         running pod"
    )]
    BoostStays { container: String },
}

impl Note {
    /// An annotation of the VPA that is not understood.
    pub(super) fn unreadable(
        vpa: &VerticalPodAutoscaler,
        annotation: &'static str,
        value: &str,
        allowed: String,
    ) -> Self {
        Self::Unreadable {
            vpa: vpa.metadata.name.clone(),
            annotation,
            value: value.chars().take(SHOWN).collect(),
            allowed,
        }
    }

    /// The container and the resource it is about, as far as it is about one.
    pub fn about(&self) -> (Option<&str>, Option<Resource>) {
        match self {
            Self::Capped {
                container, resource, ..
            }
            | Self::NothingLeft { container, resource }
            | Self::LimitAdded {
                container, resource, ..
            }
            | Self::LimitRaised {
                container, resource, ..
            }
            | Self::LimitSaturated { container, resource }
            | Self::NotControlled { container, resource }
            | Self::WouldRestart { container, resource } => (Some(container), Some(*resource)),
            Self::PodMaxTaken { resource, .. }
            | Self::FollowedByHpa { resource, .. }
            | Self::StaticallyAssigned { resource }
            | Self::WouldExceedPod { resource, .. } => (None, Some(*resource)),
            Self::Boosted { container, .. }
            | Self::BoostUnreadable { container, .. }
            | Self::BoostStays { container } => (Some(container), Some(Resource::Cpu)),
            Self::OutOfReach(finding) => (Some(&finding.container), Some(Resource::Memory)),
            Self::UnknownContainer { container } | Self::SharedName { container } => (Some(container), None),
            Self::Outranked { .. }
            | Self::Unmatched(_)
            | Self::ActsFrom { .. }
            | Self::GoesFirst { .. }
            | Self::Waits { .. }
            | Self::Unreadable { .. }
            | Self::WouldChangeClass { .. } => (None, None),
        }
    }
}
