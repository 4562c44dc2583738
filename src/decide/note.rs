//! Notes on what the rules did to a decision, one fact each, for people who ask why.

use jiff::Timestamp;

use super::boost::{ANNOTATION, BoostEnd};
use super::matching::Unmatched;
use crate::lint::Finding;
use crate::model::objects::VerticalPodAutoscaler;
use crate::model::{QosClass, Resource};

/// A note shows at most this many characters of an annotation.
const SHOWN: usize = 64;

/// A bound that changes a recommended request, in the order in which they apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, derive_more::Display)]
pub enum Rule {
    #[display("the LimitRange's minimum for pods")]
    PodMin,
    #[display("the LimitRange's maximum for pods")]
    PodMax,
    #[display("the LimitRange's minimum for containers")]
    ContainerMin,
    /// Bounds the limit, and so the request.
    #[display("the LimitRange's maximum for containers")]
    ContainerMax,
    #[display("the VPA's minAllowed")]
    MinAllowed,
    #[display("the VPA's maxAllowed")]
    MaxAllowed,
    /// The lowest memory limit under which a heap of fixed size has room.
    #[display("the memory limit keeps room for the container's fixed heap")]
    FixedHeap,
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
    /// A resource of a container keeps its amounts, because nothing would remain of its request.
    #[display("{container}: {resource} is left alone: its request would become zero")]
    NothingLeft { container: String, resource: Resource },
    /// A resource keeps its amounts, because containers that the VPA does not control fill the LimitRange's maximum.
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
    /// The limit in proportion would lie below the request.
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
    /// The limit in proportion is above the largest quantity, and is cut to that.
    #[display("{container}: {resource} limit stays at the largest quantity there is")]
    LimitSaturated { container: String, resource: Resource },
    /// The recommendation names a container that the pod does not have.
    #[display("{container}: recommended for, but the pod has no such container")]
    UnknownContainer { container: String },
    /// The VPA's own policy excludes a container or resource that it has a recommendation for.
    #[display("{container}: {resource} is left alone: the VPA's policy excludes it")]
    NotControlled { container: String, resource: Resource },
    /// A horizontal autoscaler scales on the resource, so it keeps its amounts.
    #[display("{resource} is left alone: HorizontalPodAutoscaler {hpa} scales on it")]
    FollowedByHpa { resource: Resource, hpa: String },
    /// The kubelet's static manager has assigned the resource to the pod, so it keeps its amounts.
    #[display("{resource} is left alone: the kubelet's static {resource} manager has assigned it to the pod")]
    StaticallyAssigned { resource: Resource },
    /// Another VPA targets the same workload, and is younger or comes later in the alphabet.
    #[display("VerticalPodAutoscaler {vpa} targets the workload too, but is younger or later by name")]
    Outranked { vpa: String },
    /// Why no VPA can control the pod.
    Unmatched(Unmatched),
    /// From this time on the pod is old enough to be changed for a difference within the bounds.
    #[display("old enough to be changed from {at}")]
    ActsFrom { at: Timestamp },
    /// The change would give the pod another class.
    #[display("the pod is {from} and would become {to}, which the API refuses")]
    WouldChangeClass { from: QosClass, to: QosClass },
    #[display(
        "{container}: {resource} is left as it is: its resizePolicy restarts the container when {resource} changes"
    )]
    WouldRestart { container: String, resource: Resource },
    /// A container's limit, or the sum of all requests, would exceed the pod's own `spec.resources`.
    #[display(
        "containers would have {} of {resource}, and the pod's own resources allow {}",
        resource.quantity(*to),
        resource.quantity(*pod)
    )]
    WouldExceedPod { resource: Resource, to: u64, pod: u64 },
    #[display("{container}: two containers have this name")]
    SharedName { container: String },
    /// A container keeps its additional cpu while its pod starts.
    #[display("{container}: cpu keeps its startup boost until {lasts}")]
    Boosted { container: String, lasts: BoostEnd },
    /// The annotation does not say what a container had before its boost.
    #[display(
        "{container}: what it had before its startup boost is not known: annotation {ANNOTATION}{container} should hold the \
         requests and limits of then as JSON: {why}"
    )]
    BoostUnreadable { container: String, why: String },
    #[display("changed recommendations go to this pod first, as to {percent}% of the VPA's pods")]
    GoesFirst { percent: u64 },
    /// The pod waits for a change that other pods have first.
    #[display(
        "{percent}% of the VPA's pods have the change first; this one has it from {until:.0}, if none of them on this node is in \
         trouble, as none has been since {since:.0}"
    )]
    Waits {
        percent: u64,
        since: Timestamp,
        until: Timestamp,
    },
    /// An annotation of the VPA is malformed.
    #[display("VerticalPodAutoscaler {vpa}: metadata.annotations[{annotation}]: {value:?}: allowed is {allowed}")]
    Unreadable {
        vpa: String,
        annotation: &'static str,
        /// The beginning of the annotation's value.
        value: String,
        allowed: String,
    },
    /// No resize reaches a memory setting inside a container.
    #[display("{}: {_0}", _0.container)]
    OutOfReach(Box<Finding>),
    /// The agent cannot take a boost back: the container had no request before.
    #[display(
        "{container}: cpu stays as its startup boost left it: it had no request before, and a request cannot be removed from a \
         running pod"
    )]
    BoostStays { container: String },
}

impl Note {
    /// An annotation of the VPA is malformed.
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

    /// The container and the resource that the note is about, if it is about one.
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
