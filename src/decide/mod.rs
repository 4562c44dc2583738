//! What a pod's containers should have, by the rules of the VerticalPodAutoscaler. Pure: pods, the objects around them
//! and a time come in; one [`PodDecision`] for each pod goes out. Nothing here reads a clock, waits, or can fail: what
//! is wrong with an object becomes a [`Reason`] and a [`Note`].
//!
//! A decision goes through these rooms, in this order:
//! 1. `matching`: the workload above the pod, and the VPA that controls it, found in an [`Index`];
//! 2. `candidate`: what each container has, and what is recommended for it;
//!    `boost`: whose cpu is not to be touched while the pod starts, or goes back because it has started;
//! 3. `capping` with `pod_share`, `limit_range` and `proportional`: bounds on the recommendation, and limits; `pod_level`: the
//!    pod's own amounts;
//! 4. `trigger`: whether to act now;
//! 5. `verdict`: whether that is allowed in place;
//! 6. `canary`: whether other pods of the VPA have it first.
//!
//! Beside the decision `growth` says how far limits may grow before there is one.
//!
//! # Which amounts count
//! Upstream takes requests and limits from the container's status where it has resources, else from its spec, and tests
//! bounds, computes differences and keeps ratios of limit to request by these. So does [`decide`]. Every rounding of a
//! limit becomes the base of the next ratio that way, and errors add up.
//!
//! A node whose kubelet cannot resize has no such status. There the agent passes [`decide_pod`] its own record of what
//! it applied: bounds and differences are tested against the record, but ratios are those of the spec, which never
//! changes. Deciding on the result changes nothing then, however often.
//!
//! # Where this differs from upstream (1.7.1)
//! - Upstream evicts in modes `Recreate` and `Auto`; here all modes that change running pods change them in place.
//! - What a policy excludes (mode `Off`, resources not controlled) is not applied, even if a recommendation has it.
//! - A LimitRange for pods never changes containers without recommendation, and neither missing requests nor missing
//!   bounds matter (upstream crashes); a share of nothing leaves the resource alone (upstream writes minus one byte);
//!   targets stay inside their range.
//! - A request of zero is never written. A limit never ends below its request. Everything saturates, nothing wraps.
//! - A change that leads to the values there already is none.
//! - Upstream sends changes of the QoS class and changes that restart containers, and evicts what is refused; here
//!   they are skipped. What can change without a restart is decided on its own ([`WithoutRestart`]).
//! - Resources that a horizontal autoscaler follows are left alone.
//! - Sidecars (init containers with `restartPolicy: Always`) are followed like regular containers, as VPA 1.8 does behind a
//!   gate (AEP-8905); 1.7 drops what is recommended for them.
//! - Owners of kinds that are not well known end the owner chain.
//! - What the kubelet has put off or refused is replaced by a smaller target at once, also where it lies within the bounds.
//! - A memory limit is not lowered below what a heap of fixed size needs (`lint`), whatever the policy says.
//! - Replica counts and `evictionRequirements` play no part: nothing is evicted.
//! - While a startup boost lasts only the boosted cpu is left alone; upstream changes nothing of the pod. Its end moves that
//!   cpu and nothing else, and only down.
//! - The annotation of a startup boost counts only where the VPA has a `startupBoost` for the container.

mod boost;
mod canary;
mod candidate;
mod capping;
mod case;
mod growth;
mod index;
mod limit_range;
mod matching;
mod note;
mod pod_level;
mod pod_share;
mod proportional;
mod trigger;
mod verdict;

#[cfg(test)]
mod tests;

use std::borrow::Borrow;

use jiff::{SignedDuration, Timestamp};

use crate::lint::{Finding, findings};
use crate::model::objects::{Pod, TargetRef, UpdateMode, VerticalPodAutoscaler, annotation};
use crate::model::{Action, MilliCpu, NamedRequirements, QosClass, Reason, Resource};
use case::Case;

pub use boost::{ANNOTATION as BOOST_ANNOTATION, Boosts, Lasts};
pub use canary::{Canary, Known, Waits};
pub use growth::Ceiling;
pub use index::Index;
pub use matching::Unmatched;
pub use note::{Note, Rule};

/// On a pod: `"true"` leaves it alone.
pub const IGNORE_ANNOTATION: &str = annotation::IGNORE;
/// On a VPA: `"true"` or `"false"` says whether it is acted on, whatever its mode.
pub const ACT_ANNOTATION: &str = annotation::ACT;
/// The recommender of VPAs that name none.
pub const DEFAULT_RECOMMENDER: &str = "default";

/// When to act, and on which VPAs. The defaults are those of upstream's flags.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The relative difference from which old pods are changed within their range (`--pod-update-threshold`): 0.1.
    pub update_threshold: f64,
    /// The age from which pods are old (`--in-recommendation-bounds-eviction-lifetime-threshold`): 12 hours.
    pub lifetime: SignedDuration,
    /// How soon after its start a container's kill for memory is quick (`--evict-after-oom-threshold`): 10 minutes.
    pub oom_window: SignedDuration,
    /// The modes that are acted on: all that change running pods.
    pub modes: Vec<UpdateMode>,
    /// The recommender whose VPAs are acted on, `default` being that of VPAs that name none. None acts on all.
    pub recommender: Option<String>,
    pub managers: StaticManagers,
}

/// Whether the kubelet assigns processors and memory to Guaranteed pods for good: no resize changes these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StaticManagers {
    /// The CPU manager's policy is `static`.
    pub cpu: bool,
    /// The memory manager's policy is `Static`.
    pub memory: bool,
}

impl StaticManagers {
    /// Whether a resource of this pod is assigned: memory of every Guaranteed pod, and processors where a container requests
    /// a whole number of them (`guaranteedCPUs`, kubernetes `pkg/kubelet/cm/cpumanager/policy_static.go`).
    pub fn assign(self, pod: &Pod, resource: Resource) -> bool {
        let whole = |cpu: MilliCpu| !cpu.is_zero() && cpu.get().is_multiple_of(1000);
        let requests_whole = || {
            let limits = pod
                .all_containers()
                .filter_map(|container| container.resources.limits.cpu);
            limits.into_iter().any(whole)
        };
        let assigned = match resource {
            Resource::Cpu => self.cpu && requests_whole(),
            Resource::Memory => self.memory,
        };
        assigned && pod.qos_class() == QosClass::Guaranteed
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            update_threshold: 0.1,
            lifetime: SignedDuration::from_hours(12),
            oom_window: SignedDuration::from_mins(10),
            modes: vec![
                UpdateMode::Recreate,
                UpdateMode::Auto,
                UpdateMode::InPlaceOrRecreate,
                UpdateMode::InPlace,
            ],
            recommender: None,
            managers: StaticManagers::default(),
        }
    }
}

impl Options {
    /// Whether a VPA is acted on. Those that are not are passed over before the strongest is chosen.
    fn acts_on(&self, vpa: &VerticalPodAutoscaler) -> bool {
        let asked = vpa
            .metadata
            .annotations
            .get(ACT_ANNOTATION)
            .and_then(|act| act.parse().ok());
        asked.unwrap_or_else(|| self.modes.contains(&vpa.update_mode())) && self.recommends(vpa)
    }

    /// Whether startup boosts end by this agent where the VPA is not acted on. Modes that leave running pods alone leave
    /// their boosts to whoever acts for the other modes.
    fn ends_boosts(&self, vpa: &VerticalPodAutoscaler) -> bool {
        let declined = vpa
            .metadata
            .annotations
            .get(ACT_ANNOTATION)
            .is_some_and(|act| act == "false");
        let leaves_pods_alone = matches!(vpa.update_mode(), UpdateMode::Off | UpdateMode::Initial);
        !self.modes.is_empty() && !declined && leaves_pods_alone && self.recommends(vpa)
    }

    /// Whether a VPA's recommendations come from the recommender whose VPAs are acted on.
    fn recommends(&self, vpa: &VerticalPodAutoscaler) -> bool {
        let recommender = vpa
            .spec
            .recommenders
            .first()
            .map_or(DEFAULT_RECOMMENDER, |first| &first.name);
        self.recommender.as_deref().is_none_or(|ours| ours == recommender)
    }
}

/// What is to become of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDecision {
    pub namespace: String,
    pub name: String,
    /// The pod's UID; empty if its manifest has none.
    pub uid: String,
    /// The topmost known workload above the pod, or the pod itself.
    pub workload: TargetRef,
    /// The VPA that controls the pod, or would if it were acted on.
    pub vpa: Option<String>,
    /// Why the pod is changed or not; says what is done.
    pub reason: Reason,
    /// Every regular container, every sidecar, and the pod as a whole where that can be resized, with what it has after the
    /// decision: for a resize the new amounts, else those of the
    /// record that was passed in, or of the spec.
    pub containers: Vec<NamedRequirements>,
    /// Where the reason is [`Reason::RestartRequired`]: the part of the change that restarts no container.
    pub without_restart: Option<WithoutRestart>,
    /// What the rules did on the way.
    pub notes: Vec<Note>,
    /// How far limits may grow in an emergency, whatever is decided. None for a pod that is not to be changed.
    pub ceilings: Vec<Ceiling>,
    /// What becomes of its startup boosts.
    pub boosts: Boosts,
    pub canary: Canary,
}

/// The part of a due change that restarts no container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithoutRestart {
    /// Why that part alone is due.
    pub reason: Reason,
    /// Every regular container, then every sidecar, with what it has after that part.
    pub containers: Vec<NamedRequirements>,
}

impl PodDecision {
    /// What is said of a pod that no source has described yet.
    pub fn undecided(pod: &Pod) -> Self {
        Self {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            workload: matching::declared_workload(pod),
            vpa: None,
            reason: Reason::SourcesSilent,
            containers: pod.requirements(),
            without_restart: None,
            notes: Vec::new(),
            ceilings: Vec::new(),
            boosts: Boosts::default(),
            canary: Canary::default(),
        }
    }

    /// When only time has to pass for another decision.
    pub fn next_change(&self) -> Option<Timestamp> {
        [self.boosts.next_end, self.canary.until].into_iter().flatten().min()
    }

    /// What is to be done.
    pub const fn action(&self) -> Action {
        self.reason.action()
    }

    /// Settings inside the pod's containers that no resize reaches.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.notes.iter().filter_map(|note| match note {
            Note::OutOfReach(finding) => Some(finding.as_ref()),
            _ => None,
        })
    }

    /// Which annotation of the VPA is not understood, and what it may hold.
    pub fn unreadable(&self) -> Option<String> {
        let unreadable = |note: &&Note| matches!(note, Note::Unreadable { .. });
        self.notes.iter().find(unreadable).map(Note::to_string)
    }

    /// What to change the pod to now, and why; none where nothing changes. Where the whole change would restart a
    /// container, this is the part that restarts none.
    pub fn change(&self) -> Option<(Reason, &[NamedRequirements])> {
        match &self.without_restart {
            Some(part) => Some((part.reason, &part.containers)),
            None => (self.action() == Action::Resize).then_some((self.reason, &self.containers)),
        }
    }
}

/// Decides about all pods, in their order.
pub fn decide(pods: &[impl Borrow<Pod>], index: &Index<'_>, now: Timestamp, options: &Options) -> Vec<PodDecision> {
    pods.iter()
        .map(|pod| decide_pod(pod.borrow(), index, now, options, Known::default()))
        .collect()
}

/// Decides about one pod.
pub fn decide_pod<'a>(
    pod: &Pod,
    index: &Index<'_>,
    now: Timestamp,
    options: &Options,
    known: impl Into<Known<'a>>,
) -> PodDecision {
    let mut case = Case::new(pod, now, options, known.into());
    let with_settings = pod.running_containers().flat_map(findings);
    case.notes
        .extend(with_settings.map(|finding| Note::OutOfReach(Box::new(finding))));
    let (reason, containers) = case.decide(index).unwrap_or_else(|reason| (reason, case.standing()));
    PodDecision {
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        workload: case.workload.unwrap_or_else(|| matching::declared_workload(pod)),
        vpa: case.vpa.map(|vpa| vpa.metadata.name.clone()),
        reason,
        containers,
        without_restart: case.without_restart,
        notes: case.notes,
        ceilings: case.ceilings,
        boosts: case.boosts,
        canary: case.canary,
    }
}
