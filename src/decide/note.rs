//! What the rules did to a decision on its way, one fact each, for people who ask why.

use std::fmt;

use jiff::Timestamp;

use super::boost::{ANNOTATION, Lasts};
use super::matching::Unmatched;
use crate::lint::Finding;
use crate::model::{Bytes, MilliCpu, QosClass, Resource};

/// A bound that changes a recommended request. In the order in which they are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A LimitRange's minimum for pods.
    PodMin,
    /// A LimitRange's maximum for pods.
    PodMax,
    /// A LimitRange's minimum for containers.
    ContainerMin,
    /// A LimitRange's maximum for containers, which bounds the limit and so the request.
    ContainerMax,
    /// The VPA's `minAllowed`.
    MinAllowed,
    /// The VPA's `maxAllowed`.
    MaxAllowed,
    /// The lowest memory limit under which a heap of fixed size has room.
    FixedHeap,
    /// The container's limit, which a VPA with `RequestsOnly` leaves alone.
    OwnLimit,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PodMin => "the LimitRange's minimum for pods",
            Self::PodMax => "the LimitRange's maximum for pods",
            Self::ContainerMin => "the LimitRange's minimum for containers",
            Self::ContainerMax => "the LimitRange's maximum for containers",
            Self::MinAllowed => "the VPA's minAllowed",
            Self::MaxAllowed => "the VPA's maxAllowed",
            Self::FixedHeap => "the memory limit keeps room for the container's fixed heap",
            Self::OwnLimit => "the container's limit, which RequestsOnly leaves alone",
        })
    }
}

/// One fact about a decision. Amounts are thousandths of a cpu or bytes, by their resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A bound changed a recommended request.
    Capped {
        container: String,
        resource: Resource,
        rule: Rule,
        from: u64,
        to: u64,
    },
    /// A resource of a container is left as it is, because nothing would remain of its request.
    NothingLeft { container: String, resource: Resource },
    /// A resource is left as it is, because containers that the VPA does not control fill the LimitRange's maximum.
    PodMaxTaken { resource: Resource, max: u64 },
    /// A container without a limit gets one, because the LimitRange has a default.
    LimitAdded {
        container: String,
        resource: Resource,
        to: u64,
    },
    /// A limit in proportion would lie below the request, and is raised to it.
    LimitRaised {
        container: String,
        resource: Resource,
        from: u64,
        to: u64,
    },
    /// A limit in proportion is more than a quantity can say, and stays at the largest.
    LimitSaturated { container: String, resource: Resource },
    /// The recommendation names a container that the pod lacks.
    UnknownContainer { container: String },
    /// A recommendation for a container or resource that the VPA's own policy takes out.
    NotControlled { container: String, resource: Resource },
    /// A horizontal autoscaler follows the resource, so it is left as it is.
    FollowedByHpa { resource: Resource, hpa: String },
    /// The kubelet's static manager has assigned the resource to the pod, so it is left as it is.
    StaticallyAssigned { resource: Resource },
    /// Another VPA targets the same workload, but is younger or comes later in the alphabet.
    Outranked { vpa: String },
    /// Why no VPA can control the pod.
    Unmatched(Unmatched),
    /// When the pod will be old enough to be changed for a difference within the bounds.
    ActsFrom { at: Timestamp },
    /// The class the pod has, and the one the change would give it.
    WouldChangeClass {
        from: QosClass,
        /// The class the API would refuse.
        to: QosClass,
    },
    /// Changing the resource restarts the container.
    WouldRestart { container: String, resource: Resource },
    /// A container's limit, or the sum of all requests, would pass what the pod's own `spec.resources` allow.
    WouldExceedPod {
        resource: Resource,
        /// What the containers would have.
        to: u64,
        pod: u64,
    },
    /// Two containers have this name.
    SharedName { container: String },
    /// A container has more cpu while its pod starts, and keeps it for now.
    Boosted { container: String, lasts: Lasts },
    /// It is not known what a container had before its boost.
    BoostUnreadable {
        container: String,
        /// What is wrong with the pod's annotation.
        why: String,
    },
    /// A setting inside a container that no resize reaches.
    OutOfReach(Finding),
    /// A boost cannot be taken back: the container had no request before.
    BoostStays { container: String },
}

impl Note {
    /// The container it is about; none if it is about the pod, or about no part of it.
    pub fn container(&self) -> Option<&str> {
        match self {
            Self::Capped { container, .. }
            | Self::NothingLeft { container, .. }
            | Self::LimitAdded { container, .. }
            | Self::LimitRaised { container, .. }
            | Self::LimitSaturated { container, .. }
            | Self::UnknownContainer { container }
            | Self::NotControlled { container, .. }
            | Self::WouldRestart { container, .. }
            | Self::Boosted { container, .. }
            | Self::BoostUnreadable { container, .. }
            | Self::BoostStays { container }
            | Self::SharedName { container }
            | Self::OutOfReach(Finding { container, .. }) => Some(container),
            Self::PodMaxTaken { .. }
            | Self::FollowedByHpa { .. }
            | Self::StaticallyAssigned { .. }
            | Self::Outranked { .. }
            | Self::Unmatched(_)
            | Self::ActsFrom { .. }
            | Self::WouldChangeClass { .. }
            | Self::WouldExceedPod { .. } => None,
        }
    }

    /// The resource it is about, if it is about one.
    pub const fn resource(&self) -> Option<Resource> {
        match self {
            Self::Capped { resource, .. }
            | Self::NothingLeft { resource, .. }
            | Self::PodMaxTaken { resource, .. }
            | Self::LimitAdded { resource, .. }
            | Self::LimitRaised { resource, .. }
            | Self::LimitSaturated { resource, .. }
            | Self::NotControlled { resource, .. }
            | Self::FollowedByHpa { resource, .. }
            | Self::StaticallyAssigned { resource }
            | Self::WouldRestart { resource, .. }
            | Self::WouldExceedPod { resource, .. } => Some(*resource),
            Self::OutOfReach(_) => Some(Resource::Memory),
            Self::Boosted { .. } | Self::BoostUnreadable { .. } | Self::BoostStays { .. } => Some(Resource::Cpu),
            Self::UnknownContainer { .. }
            | Self::Outranked { .. }
            | Self::Unmatched(_)
            | Self::ActsFrom { .. }
            | Self::WouldChangeClass { .. }
            | Self::SharedName { .. } => None,
        }
    }
}

/// An amount as a Kubernetes quantity.
fn quantity(resource: Resource, amount: u64) -> String {
    match resource {
        Resource::Cpu => MilliCpu::new(amount).to_string(),
        Resource::Memory => Bytes::new(amount).to_string(),
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capped {
                container,
                resource,
                rule,
                from,
                to,
            } => {
                let (from, to) = (quantity(*resource, *from), quantity(*resource, *to));
                write!(f, "{container}: {resource} request {from} becomes {to}: {rule}")
            }
            Self::NothingLeft { container, resource } => {
                write!(
                    f,
                    "{container}: {resource} is left alone: its request would become zero"
                )
            }
            Self::PodMaxTaken { resource, max } => write!(
                f,
                "{resource} is left alone: containers without recommendation take all of the {} that the LimitRange allows a pod",
                quantity(*resource, *max)
            ),
            Self::LimitAdded {
                container,
                resource,
                to,
            } => write!(
                f,
                "{container}: {resource} gets a limit of {}: the LimitRange has a default",
                quantity(*resource, *to)
            ),
            Self::LimitRaised {
                container,
                resource,
                from,
                to,
            } => write!(
                f,
                "{container}: {resource} limit {} is raised to the request of {}",
                quantity(*resource, *from),
                quantity(*resource, *to)
            ),
            Self::LimitSaturated { container, resource } => {
                write!(
                    f,
                    "{container}: {resource} limit stays at the largest quantity there is"
                )
            }
            Self::UnknownContainer { container } => {
                write!(f, "{container}: recommended for, but the pod has no such container")
            }
            Self::NotControlled { container, resource } => {
                write!(f, "{container}: {resource} is left alone: the VPA's policy excludes it")
            }
            Self::FollowedByHpa { resource, hpa } => write!(
                f,
                "{resource} is left alone: HorizontalPodAutoscaler {hpa} scales on it"
            ),
            Self::StaticallyAssigned { resource } => write!(
                f,
                "{resource} is left alone: the kubelet's static {resource} manager has assigned it to the pod"
            ),
            Self::Outranked { vpa } => write!(
                f,
                "VerticalPodAutoscaler {vpa} targets the workload too, but is younger or later by name"
            ),
            Self::Unmatched(unmatched) => unmatched.fmt(f),
            Self::ActsFrom { at } => write!(f, "old enough to be changed from {at}"),
            Self::WouldChangeClass { from, to } => {
                write!(f, "the pod is {from} and would become {to}, which the API refuses")
            }
            Self::WouldRestart { container, resource } => {
                write!(
                    f,
                    "{container}: {resource} is left as it is: its resizePolicy restarts the container when {resource} changes"
                )
            }
            Self::WouldExceedPod { resource, to, pod } => write!(
                f,
                "containers would have {} of {resource}, and the pod's own resources allow {}",
                quantity(*resource, *to),
                quantity(*resource, *pod)
            ),
            Self::OutOfReach(finding) => write!(f, "{}: {finding}", finding.container),
            Self::SharedName { container } => write!(f, "{container}: two containers have this name"),
            Self::Boosted { container, lasts } => write!(f, "{container}: cpu keeps its startup boost until {lasts}"),
            Self::BoostUnreadable { container, why } => write!(
                f,
                "{container}: what it had before its startup boost is not known: annotation {ANNOTATION}{container} should hold \
                 the requests and limits of then as JSON: {why}"
            ),
            Self::BoostStays { container } => write!(
                f,
                "{container}: cpu stays as its startup boost left it: it had no request before, and a request cannot be removed \
                 from a running pod"
            ),
        }
    }
}
