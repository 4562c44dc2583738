//! The reasons of decisions, and the action that follows from each.

use serde::Serialize;

/// What the agent does with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Resize,
    /// No change is due.
    None,
    /// A change is due, but a rule forbids it.
    Skip,
}

/// What a decision means for an earlier recommendation: no VPA recommends its values any more, or they stay desired.
const ENDS: bool = true;
const KEEPS: bool = false;

/// One line for each reason: its name, which the API shows, the action that follows, what happens to an earlier recommendation,
/// and its meaning.
macro_rules! reasons {
    ($($name:ident => $action:ident, $earlier:ident, $meaning:literal;)*) => {
        /// Why a pod is changed or not. The [`Action`] follows from it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, strum::Display, strum::IntoStaticStr)]
        pub enum Reason {
            $(#[doc = $meaning] $name,)*
        }

        impl Default for Reason {
            /// Nothing is decided yet.
            fn default() -> Self {
                Self::SourcesSilent
            }
        }

        impl Reason {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub const fn action(self) -> Action {
                match self { $(Self::$name => Action::$action,)* }
            }

            /// Whether the decision ends an earlier recommendation.
            pub const fn ends_recommendation(self) -> bool {
                match self { $(Self::$name => $earlier,)* }
            }

            /// The reason for people, as the end of a sentence about the pod.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning,)* }
            }
        }
    };
}

reasons! {
    OutOfBounds => Resize, KEEPS, "a request lies outside of the VPA's bounds, so the pod goes to the target";
    RequestMissing => Resize, KEEPS, "a resource has a recommendation but no request, so the pod goes to the target";
    QuickOOM => Resize, KEEPS, "a container was killed for memory soon after it started, and not long ago, so the pod goes to the target";
    AskedTooMuch => Resize, KEEPS, "the kubelet does not grant the requested amounts, and less is recommended now, so the pod goes to the target";
    LongLived => Resize, KEEPS, "the pod is old and far enough from the VPA's target, so it goes there";
    StartupBoostEnded => Resize, KEEPS, "the pod has started, so a container's cpu goes back from its startup boost";
    StartupBoost => None, KEEPS, "a container keeps more cpu while its pod starts, and nothing else is to be done";
    InRange => None, KEEPS, "the requests lie within the VPA's bounds and near enough to its target";
    TooYoung => None, KEEPS, "the requests lie within the VPA's bounds, and the pod is too young to be changed for the difference";
    AgeUnknown => None, KEEPS, "the requests lie within the VPA's bounds, and it is not known how old the pod is";
    AtTarget => None, KEEPS, "the rules lead to the values that are there already";
    NoVpa => None, ENDS, "no VPA targets the pod's workload";
    NotActedOn => None, ENDS, "the VPA's mode, annotation or recommender keeps vscaled from acting on it";
    NoRecommendation => None, KEEPS, "the VPA has nothing to say about the pod's containers yet";
    OthersResize => None, ENDS, "a resize that another client requested waits for room, and is left for five minutes";
    CanaryFirst => None, KEEPS, "a change is due, and a part of the workload's pods has it first";
    NoTrouble => None, KEEPS, "the VPA's annotation vscaled.io/act lets changes happen after trouble alone, and the pod has had none";
    HpaConflict => None, KEEPS, "a HorizontalPodAutoscaler follows every resource that the VPA recommends";
    Ignored => None, ENDS, "the pod's annotation vscaled.io/ignore says so";
    NotScheduled => None, KEEPS, "the pod is bound to no node";
    Ended => None, KEEPS, "the pod has ended";
    Terminating => None, KEEPS, "the pod is being deleted";
    SourcesSilent => None, KEEPS, "no source has answered since the agent started, so the saved state applies";
    QoSClassChange => Skip, KEEPS, "the change would move the pod to another QoS class, which Kubernetes never does";
    RestartRequired => Skip, KEEPS, "a container's resizePolicy asks for a restart, and vscaled never restarts; what needs no restart is changed";
    LimitRangeExceeded => Skip, KEEPS, "a LimitRange of the namespace does not allow the change";
    QuotaExceeded => Skip, KEEPS, "a quota of the namespace does not allow the change";
    BelowLeast => Skip, KEEPS, "the change would give a container less than it can run with";
    PodLevelExceeded => Skip, KEEPS, "the containers would need more than the pod's own resources allow";
    StaticallyAssigned => Skip, KEEPS, "the kubelet's static CPU or memory manager has given it processors or memory of its own";
    KubeletRefuses => Skip, KEEPS, "the node's kubelet refuses to resize pods like this one";
    BoundUnreadable => Skip, KEEPS, "a bound in the VPA's policy is no whole number of bytes, or of thousandths of a cpu";
    LimitUnreadable => Skip, KEEPS, "an annotation of the VPA does not say which limits go with the requests";
    DuplicateContainer => Skip, KEEPS, "two containers of the pod share a name";
    CanaryUnreadable => Skip, KEEPS, "a change is due, but an annotation of the VPA does not say which pods have it first";
    BurstUnreadable => Skip, KEEPS, "a change is due, but an annotation of the VPA does not say by which part of their quotas cgroups may burst";
    BoostUnreadable => Skip, KEEPS, "a startup boost is over, but nothing says what the container had before it";
}
