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

/// One line for each reason: its name, which the API shows, the action that follows, and its meaning.
macro_rules! reasons {
    ($($name:ident => $action:ident, $meaning:literal;)*) => {
        /// Why a pod is changed or not. The [`Action`] follows from it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, strum::Display, strum::IntoStaticStr)]
        pub enum Reason {
            $(#[doc = $meaning] $name,)*
        }

        impl Reason {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub const fn action(self) -> Action {
                match self { $(Self::$name => Action::$action,)* }
            }

            /// The reason for people, as the end of a sentence about the pod.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning,)* }
            }
        }
    };
}

reasons! {
    OutOfBounds => Resize, "a request lies outside of the VPA's bounds, so the pod goes to the target";
    RequestMissing => Resize, "a resource has a recommendation but no request, so the pod goes to the target";
    QuickOOM => Resize, "a container was killed for memory soon after it started, so the pod goes to the target";
    AskedTooMuch => Resize, "the kubelet does not grant the requested amounts, and less is recommended now, so the pod goes to the target";
    LongLived => Resize, "the pod is old and far enough from the VPA's target, so it goes there";
    StartupBoostEnded => Resize, "the pod has started, so a container's cpu goes back from its startup boost";
    StartupBoost => None, "a container keeps more cpu while its pod starts, and nothing else is to be done";
    InRange => None, "the requests lie within the VPA's bounds and near enough to its target";
    TooYoung => None, "the requests lie within the VPA's bounds, and the pod is too young to be changed for the difference";
    AgeUnknown => None, "the requests lie within the VPA's bounds, and it is not known how old the pod is";
    AtTarget => None, "the rules lead to the values that are there already";
    NoVpa => None, "no VPA targets the pod's workload";
    NotActedOn => None, "the VPA's mode, annotation or recommender keeps vscaled from acting on it";
    NoRecommendation => None, "the VPA has nothing to say about the pod's containers yet";
    CanaryFirst => None, "a change is due, and a part of the workload's pods has it first";
    HpaConflict => None, "a HorizontalPodAutoscaler follows every resource that the VPA recommends";
    Ignored => None, "the pod's annotation vscaled.io/ignore says so";
    NotScheduled => None, "the pod is bound to no node";
    Ended => None, "the pod has ended";
    Terminating => None, "the pod is being deleted";
    SourcesSilent => None, "no source has answered since the agent started, so the saved state applies";
    QoSClassChange => Skip, "the change would move the pod to another QoS class, which Kubernetes never does";
    RestartRequired => Skip, "a container's resizePolicy asks for a restart, and vscaled never restarts; what needs no restart is changed";
    PodLevelExceeded => Skip, "the containers would need more than the pod's own resources allow";
    StaticallyAssigned => Skip, "the kubelet's static CPU or memory manager has given it processors or memory of its own";
    DuplicateContainer => Skip, "two containers of the pod share a name";
    CanaryUnreadable => Skip, "a change is due, but an annotation of the VPA does not say which pods have it first";
    BoostUnreadable => Skip, "a startup boost is over, but nothing says what the container had before it";
}
