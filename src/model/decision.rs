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
    OutOfBounds => Resize, KEEPS, "a request is outside the VPA's bounds: the pod gets the target";
    RequestMissing => Resize, KEEPS, "a resource has a recommendation but no request: the pod gets the target";
    QuickOOM => Resize, KEEPS, "a container was OOM-killed soon after its start, and recently: the pod gets the target";
    AskedTooMuch => Resize, KEEPS, "the kubelet does not grant the requested amounts, and the VPA recommends less now: the pod gets the target";
    LongLived => Resize, KEEPS, "the pod is old and far enough from the VPA's target: it gets the target";
    StartupBoostEnded => Resize, KEEPS, "the pod has started: a container's startup boost of cpu ends";
    StartupBoost => None, KEEPS, "a container keeps its startup boost of cpu, and nothing else is due";
    InRange => None, KEEPS, "the requests are within the VPA's bounds and near its target";
    TooYoung => None, KEEPS, "the requests are within the VPA's bounds, and the pod is too young for a change towards the target";
    AgeUnknown => None, KEEPS, "the requests are within the VPA's bounds, and the pod's age is unknown";
    AtTarget => None, KEEPS, "the pod has the decided values already";
    NoVpa => None, ENDS, "no VPA targets the pod's workload";
    NotActedOn => None, ENDS, "the VPA's mode, annotation or recommender keeps vscaled from acting on it";
    NoRecommendation => None, KEEPS, "the VPA has no recommendation for the pod's containers yet";
    OthersResize => None, ENDS, "a resize that another client requested waits for room; vscaled leaves it alone for five minutes";
    CanaryFirst => None, KEEPS, "a change is due, and other pods of the workload get it first";
    NoTrouble => None, KEEPS, "the VPA's annotation vscaled.io/act allows changes only after trouble, and the pod has had none";
    HpaConflict => None, KEEPS, "a HorizontalPodAutoscaler scales on every resource that the VPA recommends";
    Ignored => None, ENDS, "the pod has the annotation vscaled.io/ignore";
    NotScheduled => None, KEEPS, "the pod is not bound to a node";
    Ended => None, KEEPS, "the pod has ended";
    Terminating => None, KEEPS, "the pod is being deleted";
    SourcesSilent => None, KEEPS, "the objects that decide about the pod are unknown or refused: the saved state applies";
    QoSClassChange => Skip, KEEPS, "the change would move the pod to another QoS class, which Kubernetes never allows";
    RestartRequired => Skip, KEEPS, "a container's resizePolicy requires a restart, and vscaled never restarts; it changes the other resources";
    LimitRangeExceeded => Skip, KEEPS, "a LimitRange of the namespace does not allow the change";
    QuotaExceeded => Skip, KEEPS, "a quota of the namespace does not allow the change";
    BelowLeast => Skip, KEEPS, "the change would give a container less than it can run with";
    PodLevelExceeded => Skip, KEEPS, "the containers would need more than the pod's own resources allow";
    StaticallyAssigned => Skip, KEEPS, "the kubelet's static CPU or memory manager has assigned processors or memory to the pod";
    KubeletRefuses => Skip, KEEPS, "the node's kubelet or the API server refuses to resize pods like this one";
    BoundUnreadable => Skip, KEEPS, "a bound in the VPA's policy is not a whole number of bytes, or of thousandths of a cpu";
    LimitUnreadable => Skip, KEEPS, "the VPA's annotation for limits is invalid";
    DuplicateContainer => Skip, KEEPS, "two containers of the pod have the same name";
    CanaryUnreadable => Skip, KEEPS, "a change is due, but the VPA's annotation for canaries is invalid";
    BurstUnreadable => Skip, KEEPS, "a change is due, but the VPA's annotation for bursts is invalid";
    BoostUnreadable => Skip, KEEPS, "a startup boost is over, but nothing says what the container had before";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_reasons_end_an_earlier_recommendation() {
        let ends = Reason::ALL
            .iter()
            .copied()
            .filter(|reason| reason.ends_recommendation());
        assert_eq!(
            ends.collect::<Vec<_>>(),
            [Reason::NoVpa, Reason::NotActedOn, Reason::OthersResize, Reason::Ignored]
        );
    }

    #[test]
    fn only_decided_changes_are_made() {
        let with = |action| {
            Reason::ALL
                .iter()
                .copied()
                .filter(move |reason| reason.action() == action)
        };
        assert_eq!(
            with(Action::Resize).collect::<Vec<_>>(),
            [
                Reason::OutOfBounds,
                Reason::RequestMissing,
                Reason::QuickOOM,
                Reason::AskedTooMuch,
                Reason::LongLived,
                Reason::StartupBoostEnded,
            ]
        );
        assert_eq!(with(Action::Skip).next(), Some(Reason::QoSClassChange));
        assert_eq!(
            [Action::Resize, Action::None, Action::Skip].map(|action| action.to_string()),
            ["resize", "none", "skip"]
        );
    }
}
