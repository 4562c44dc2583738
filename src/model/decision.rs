//! What a decision says in one word, and what follows from it.

use std::fmt;

use serde::{Serialize, Serializer};

/// What is to be done with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Resize,
    /// There is nothing to do.
    None,
    /// A change is due, but a rule forbids it.
    Skip,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Resize => "resize",
            Self::None => "none",
            Self::Skip => "skip",
        })
    }
}

/// Why a pod is changed, or is not. Decides the [`Action`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A request lies below the lower or above the upper bound.
    OutOfBounds,
    /// A resource has a recommendation but no request.
    RequestMissing,
    /// A container was killed for memory soon after it started.
    QuickOom,
    /// The kubelet has put off or refused what the pod was to have, and less is recommended now.
    AskedTooMuch,
    /// The requests lie within their bounds, but the pod is old and the difference large enough.
    LongLived,
    /// The pod has started: a container's cpu goes back from its startup boost.
    StartupBoostEnded,

    /// A container keeps more cpu while its pod starts, and nothing else is to be done.
    StartupBoost,
    /// The requests lie within their bounds, near enough to the target.
    InRange,
    /// The requests lie within their bounds, and the pod is too young to be changed for the difference.
    TooYoung,
    /// The requests lie within their bounds, and it is unknown how old the pod is.
    AgeUnknown,
    /// The rules lead to the values that are there already.
    AtTarget,
    /// No VPA targets the pod's workload.
    NoVpa,
    /// Only VPAs whose mode, annotation or recommender rules them out target the pod's workload.
    NotActedOn,
    /// The VPA has nothing to say about the pod's containers.
    NoRecommendation,
    /// A horizontal autoscaler follows every resource that the VPA recommends.
    HpaConflict,
    /// The pod's annotation says so.
    Ignored,
    /// The pod is bound to no node.
    NotScheduled,
    Ended,
    /// The pod is being deleted.
    Terminating,
    /// No source has said anything since the agent started: what stood before counts.
    SourcesSilent,

    /// The change would move the pod to another QoS class, which the API refuses.
    QosClassChange,
    /// The change would restart a container.
    RestartRequired,
    /// The containers would leave the pod's own requests or limits (`spec.resources`), which the API refuses.
    PodLevelExceeded,
    /// The kubelet's static CPU or memory manager has given the pod processors or memory of its own.
    StaticallyAssigned,
    /// Two containers of the pod share a name.
    DuplicateContainer,
    /// A startup boost is over, but nothing says what the container had before, or should have.
    BoostUnreadable,
}

impl Reason {
    pub const ALL: &[Self] = &[
        Self::OutOfBounds,
        Self::RequestMissing,
        Self::QuickOom,
        Self::AskedTooMuch,
        Self::LongLived,
        Self::StartupBoostEnded,
        Self::StartupBoost,
        Self::InRange,
        Self::TooYoung,
        Self::AgeUnknown,
        Self::AtTarget,
        Self::NoVpa,
        Self::NotActedOn,
        Self::NoRecommendation,
        Self::HpaConflict,
        Self::Ignored,
        Self::NotScheduled,
        Self::Ended,
        Self::Terminating,
        Self::SourcesSilent,
        Self::QosClassChange,
        Self::RestartRequired,
        Self::PodLevelExceeded,
        Self::StaticallyAssigned,
        Self::DuplicateContainer,
        Self::BoostUnreadable,
    ];

    pub const fn action(self) -> Action {
        match self {
            Self::OutOfBounds
            | Self::RequestMissing
            | Self::QuickOom
            | Self::AskedTooMuch
            | Self::LongLived
            | Self::StartupBoostEnded => Action::Resize,
            Self::StartupBoost
            | Self::InRange
            | Self::TooYoung
            | Self::AgeUnknown
            | Self::AtTarget
            | Self::NoVpa
            | Self::NotActedOn
            | Self::NoRecommendation
            | Self::HpaConflict
            | Self::Ignored
            | Self::NotScheduled
            | Self::Ended
            | Self::Terminating
            | Self::SourcesSilent => Action::None,
            Self::QosClassChange
            | Self::RestartRequired
            | Self::PodLevelExceeded
            | Self::StaticallyAssigned
            | Self::DuplicateContainer
            | Self::BoostUnreadable => Action::Skip,
        }
    }

    /// The same for people, as the end of a sentence about the pod.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::OutOfBounds => "a request lies outside of the VPA's bounds, so the pod goes to the target",
            Self::RequestMissing => "a resource has a recommendation but no request, so the pod goes to the target",
            Self::QuickOom => "a container was killed for memory soon after it started, so the pod goes to the target",
            Self::AskedTooMuch => {
                "the kubelet does not let the pod have what was asked for, and less is recommended now, so it goes to the target"
            }
            Self::LongLived => "the pod is old and far enough from the VPA's target, so it goes there",
            Self::StartupBoostEnded => "the pod has started, so a container's cpu goes back from its startup boost",
            Self::StartupBoost => "a container keeps more cpu while its pod starts, and nothing else is to be done",
            Self::InRange => "the requests lie within the VPA's bounds and near enough to its target",
            Self::TooYoung => {
                "the requests lie within the VPA's bounds, and the pod is too young to be changed for the difference"
            }
            Self::AgeUnknown => "the requests lie within the VPA's bounds, and it is not known how old the pod is",
            Self::AtTarget => "the rules lead to the values that are there already",
            Self::NoVpa => "no VPA targets the pod's workload",
            Self::NotActedOn => "the VPA's mode, annotation or recommender says that nobody acts on it here",
            Self::NoRecommendation => "the VPA has nothing to say about the pod's containers yet",
            Self::HpaConflict => "a HorizontalPodAutoscaler follows every resource that the VPA recommends",
            Self::Ignored => "the pod's annotation vscaled.io/ignore says so",
            Self::NotScheduled => "the pod is bound to no node",
            Self::Ended => "the pod has ended",
            Self::Terminating => "the pod is being deleted",
            Self::SourcesSilent => "no source has said anything since the agent started, so what stood before counts",
            Self::QosClassChange => "the change would move the pod to another QoS class, which Kubernetes never does",
            Self::RestartRequired => {
                "a container's resizePolicy asks for a restart, and vscaled never restarts; what needs no restart is changed"
            }
            Self::PodLevelExceeded => "the containers would need more than the pod's own resources allow",
            Self::StaticallyAssigned => {
                "the kubelet's static CPU or memory manager has given it processors or memory of its own"
            }
            Self::DuplicateContainer => "two containers of the pod share a name",
            Self::BoostUnreadable => "a startup boost is over, but nothing says what the container had before it",
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OutOfBounds => "OutOfBounds",
            Self::RequestMissing => "RequestMissing",
            Self::QuickOom => "QuickOOM",
            Self::AskedTooMuch => "AskedTooMuch",
            Self::LongLived => "LongLived",
            Self::StartupBoostEnded => "StartupBoostEnded",
            Self::StartupBoost => "StartupBoost",
            Self::InRange => "InRange",
            Self::TooYoung => "TooYoung",
            Self::AgeUnknown => "AgeUnknown",
            Self::AtTarget => "AtTarget",
            Self::NoVpa => "NoVpa",
            Self::NotActedOn => "NotActedOn",
            Self::NoRecommendation => "NoRecommendation",
            Self::HpaConflict => "HpaConflict",
            Self::Ignored => "Ignored",
            Self::NotScheduled => "NotScheduled",
            Self::Ended => "Ended",
            Self::Terminating => "Terminating",
            Self::SourcesSilent => "SourcesSilent",
            Self::QosClassChange => "QoSClassChange",
            Self::RestartRequired => "RestartRequired",
            Self::PodLevelExceeded => "PodLevelExceeded",
            Self::StaticallyAssigned => "StaticallyAssigned",
            Self::DuplicateContainer => "DuplicateContainer",
            Self::BoostUnreadable => "BoostUnreadable",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
