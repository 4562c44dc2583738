//! What a pod's containers should have, by the rules of the VerticalPodAutoscaler. Pure: pods, the objects around them
//! and a time come in, and one [`PodDecision`] for each pod goes out. No function here reads a clock, waits, or can fail: a
//! malformed object leads to a [`Reason`] and a [`Note`].
//!
//! `case` leads a decision through these modules in this order:
//! 1. `matching`: finds the workload above the pod and the VPA that controls it, in an [`Index`];
//! 2. `candidate`: what each container has, and what is recommended for it;
//!    `boost`: leaves cpu alone while the pod starts, and takes it back after that;
//! 3. `capping` with `pod_share` and `limit_rule`: bounds on the recommendation, limits, and the pod's own amounts;
//! 4. `trigger`: whether to act now;
//! 5. `admission`: whether the API server admits the change, and no container restarts;
//! 6. `canary`: whether other pods of the VPA have the change first.
//!
//! `growth` computes how far limits may grow before there is a decision.
//!
//! # Which amounts count
//! Upstream takes requests and limits from the container's status if that has resources, else from its spec. Upstream tests
//! bounds, computes differences and keeps ratios of limit to request by these amounts. So does [`decide`]. Every rounded
//! limit becomes the base of the next ratio that way, and errors add up.
//!
//! A kubelet that cannot resize writes no such status. There the agent passes the record of its applied amounts to
//! [`decide_pod`]: bounds and differences are tested against the record, but ratios are those of the spec, which never
//! changes. Another decision about the result then changes nothing.
//!
//! # Where this differs from upstream (1.8.1)
//! - Upstream evicts in modes `Recreate` and `Auto`. Here all modes that change running pods change them in place.
//! - What a policy excludes (mode `Off`, resources not controlled) is not applied, even if a recommendation has it.
//! - A LimitRange for pods never changes containers without a recommendation, and neither missing requests nor missing
//!   bounds matter (upstream crashes). A share of nothing leaves the resource alone (upstream writes minus one byte).
//!   Targets stay inside their range.
//! - A request of zero is never written, nor one beside a limit of zero. A limit never ends below its request. Everything saturates,
//!   nothing wraps.
//! - A change that leads to the present values is no change. One that leaves a container less than a page of memory is skipped.
//! - Upstream sends changes of the QoS class and changes that restart containers, and evicts the pod if the API refuses
//!   them. Here they are skipped. The part that restarts no container is decided on its own ([`PodDecision::without_restart`]).
//! - A change that breaks a LimitRange's rule is skipped, unless the VPA's own policy demands it. Where a minimum has raised a
//!   container, the others give way to a pod's maximum that they can reach. The `maxLimitRequestRatio` is kept.
//! - Where a pod has a limit of its own, a LimitRange for pods bounds that one, as in the API server, not the containers' limits.
//! - A resource of a container is left alone if an autoscaler scales on that container's requests.
//! - A pod that is still pending is changed like a running one. In `InPlaceOrRecreate` upstream waits.
//! - Sidecars (init containers with `restartPolicy: Always`) that have a recommendation are treated like regular containers. Upstream
//!   drops recommendations for them (AEP-8905 is text only).
//! - A workload of a kind that is not well known is the topmost if a VPA targets it. Upstream asks the API server whether the
//!   workload can be scaled. Kinds that share a name with a well-known one are told apart by their group.
//! - A smaller target replaces at once what the kubelet has deferred or refused, also if that lies within the bounds.
//! - A memory limit is not lowered below what a heap of fixed size needs (`lint`), for any policy.
//! - Replica counts and `evictionRequirements` do not matter: the agent evicts nothing.
//! - While a startup boost lasts, only the boosted cpu is left alone. Upstream changes nothing of the pod. The end of a boost
//!   moves that cpu and nothing else, and only down.
//! - The annotation of a startup boost counts only if the VPA has a `startupBoost` for the container.

mod admission;
mod boost;
mod canary;
mod candidate;
mod capping;
mod case;
mod growth;
mod index;
mod limit_rule;
mod matching;
mod note;
mod pod_share;
mod refusals;
mod trigger;

#[cfg(test)]
mod tests;

use std::borrow::Borrow;

use jiff::{SignedDuration, Timestamp};

use crate::lint::{Finding, findings};
use crate::model::objects::annotation::ACT;
use crate::model::objects::{Pod, TargetRef, UpdateMode, VerticalPodAutoscaler};
use crate::model::{Action, CpuBurst, PodAmounts, Reason};
use candidate::Candidate;
use case::Case;

pub use boost::Boosts;
pub use canary::{Canary, CanaryWait, EarlierDecisions};
pub use growth::Ceiling;
pub use index::Index;
pub use note::{Fact, Note};
pub use refusals::{NodePolicies, Refusals};

/// The recommender of VPAs that name none.
pub const DEFAULT_RECOMMENDER: &str = "default";

/// How long a pod's trouble lets changes pass that wait for trouble.
const TROUBLE_WINDOW: SignedDuration = SignedDuration::from_hours(1);

/// When to act, and on which VPAs. The defaults are those of upstream's flags.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The relative difference from which old pods are changed within their range (`--pod-update-threshold`): 0.1.
    pub update_threshold: f64,
    /// The age from which pods are old (`--in-recommendation-bounds-eviction-lifetime-threshold`): 12 hours.
    pub lifetime: SignedDuration,
    /// How soon after its start a container's kill for memory is quick, and how long it counts (`--evict-after-oom-threshold`):
    /// 10 minutes.
    pub oom_window: SignedDuration,
    /// The modes that the agent acts on: all that change running pods.
    pub modes: Vec<UpdateMode>,
    /// The recommender whose VPAs the agent acts on. VPAs that name none have `default`. None: all recommenders.
    pub recommender: Option<String>,
    /// The burst of pods whose VPA has no annotation for it. None leaves bursts alone.
    pub burst: Option<CpuBurst>,
    pub refusals: Refusals,
}

/// Whether the agent acts on a VPA, by the VPA's annotation `vscaled.io/act`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString)]
enum Act {
    #[strum(serialize = "true")]
    Always,
    #[strum(serialize = "false")]
    Never,
    /// For pods that were in trouble within the [`TROUBLE_WINDOW`].
    #[strum(serialize = "on-trouble")]
    OnTrouble,
}

impl Act {
    /// None if the VPA has no such annotation, or a malformed one.
    fn of(vpa: &VerticalPodAutoscaler) -> Option<Self> {
        vpa.metadata.annotations.get(ACT)?.parse().ok()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            update_threshold: 0.1,
            lifetime: SignedDuration::from_hours(12),
            oom_window: SignedDuration::from_mins(10),
            modes: UpdateMode::UPDATING.into(),
            recommender: None,
            burst: None,
            refusals: Refusals::default(),
        }
    }
}

impl Options {
    /// Whether a VPA can control pods: if the agent acts on it, or else ends the startup boosts that it gives. The strongest of
    /// these VPAs controls (`RunOnce`, autoscaler `pkg/updater/logic`).
    fn controls(&self, vpa: &VerticalPodAutoscaler) -> bool {
        self.acts_on(vpa) || (vpa.has_startup_boost() && self.ends_boosts(vpa))
    }

    /// Whether the agent acts on a VPA.
    fn acts_on(&self, vpa: &VerticalPodAutoscaler) -> bool {
        self.declines(vpa).is_none()
    }

    /// Why the agent does not act on a VPA; none if it does.
    fn declines(&self, vpa: &VerticalPodAutoscaler) -> Option<&'static str> {
        match Act::of(vpa) {
            Some(Act::Never) => Some("the VPA's annotation vscaled.io/act is false"),
            None if !self.modes.contains(&vpa.update_mode()) => {
                Some("updateModes lacks the VPA's mode, and no annotation vscaled.io/act allows it")
            }
            _ => (!self.recommends(vpa)).then_some("the VPA's recommender is not that of the configuration"),
        }
    }

    /// Whether the agent ends the startup boosts of a VPA that it does not act on: if the VPA's mode leaves running pods alone,
    /// and the agent acts on any mode.
    fn ends_boosts(&self, vpa: &VerticalPodAutoscaler) -> bool {
        let declined = Act::of(vpa) == Some(Act::Never);
        let leaves_pods_alone = matches!(vpa.update_mode(), UpdateMode::Off | UpdateMode::Initial);
        !self.modes.is_empty() && !declined && leaves_pods_alone && self.recommends(vpa)
    }

    /// Whether a VPA's recommendations come from the recommender whose VPAs the agent acts on.
    fn recommends(&self, vpa: &VerticalPodAutoscaler) -> bool {
        let first = vpa.spec.recommenders.first();
        let recommender = first.map_or(DEFAULT_RECOMMENDER, |first| &first.name);
        self.recommender.as_deref().is_none_or(|ours| ours == recommender)
    }
}

/// What one pod's containers should have, and why.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodDecision {
    /// The topmost known workload above the pod, or the pod itself.
    pub workload: TargetRef,
    /// The VPA that controls the pod, or would if the agent acted on it.
    pub vpa: Option<String>,
    /// Why the pod is changed or not. The [`Action`] follows from the reason.
    pub reason: Reason,
    /// The amounts after the decision: for a resize the new ones, else those of the agent's record or of the spec.
    pub amounts: PodAmounts,
    /// For [`Reason::RestartRequired`]: the part of the change that restarts no container.
    pub without_restart: Option<DueChange>,
    pub notes: Vec<Note>,
    /// How far limits may grow in an emergency, regardless of the decision. Empty for a pod that
    /// the agent does not change.
    pub ceilings: Vec<Ceiling>,
    pub boosts: Boosts,
    pub canary: Canary,
    /// The burst of the pod's cgroups, in percent of their quotas. None leaves bursts alone.
    pub burst: Option<CpuBurst>,
    /// Until when a deferred resize of another client is left alone.
    pub yields_until: Option<Timestamp>,
}

/// Why a change is due, and the amounts after it.
pub type DueChange = (Reason, PodAmounts);

impl PodDecision {
    /// The decision about a pod that no source has described yet.
    pub fn undecided(pod: &Pod) -> Self {
        Self {
            amounts: pod.requirements(),
            ..Self::new(pod, Reason::SourcesSilent)
        }
    }

    fn new(pod: &Pod, reason: Reason) -> Self {
        Self {
            workload: matching::declared_workload(pod),
            reason,
            ..Self::default()
        }
    }

    /// What the decision waits for, as a sentence.
    pub fn next_step(&self) -> Option<String> {
        if let Some(end) = self.boosts.next_end {
            return Some(format!(
                "A startup boost ends at {end:.0}; the container's cpu is lowered then."
            ));
        }
        if let Some(until) = self.canary.until {
            return Some(format!(
                "Other pods get the change first; this pod gets it at {until:.0}, if none of them on this node is in trouble."
            ));
        }
        (self.reason == Reason::StartupBoost)
            .then(|| "A startup boost ends once the pod is ready, or as long after that as its VPA says.".to_owned())
    }

    /// Turns the change of the pod into a skip: a rule that this module does not know refuses it.
    pub fn refuse(&mut self, pod: &Pod, reason: Reason, why: String) {
        (self.reason, self.amounts, self.without_restart) = (reason, pod.requirements(), None);
        self.notes.push(Note::new(None, None, why));
    }

    /// When the decision changes by time alone.
    pub fn next_change(&self) -> Option<Timestamp> {
        [self.boosts.next_end, self.canary.until, self.yields_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether such a time has come; true once.
    pub fn take_due(&mut self, now: Timestamp) -> bool {
        let (boost, canary) = (&mut self.boosts.next_end, &mut self.canary.until);
        let dates = [boost, canary, &mut self.yields_until];
        let due = dates.into_iter().filter_map(|date| date.take_if(|at| *at <= now));
        due.count() > 0
    }

    pub const fn action(&self) -> Action {
        self.reason.action()
    }

    /// The memory settings inside the pod's containers that no resize reaches.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.notes.iter().filter_map(|note| match &note.fact {
            Fact::OutOfReach(finding) => Some(finding.as_ref()),
            Fact::Text(_) | Fact::Unreadable(_) => None,
        })
    }

    /// The malformed annotation of the VPA, with what it may hold.
    pub fn unreadable(&self) -> Option<String> {
        self.notes.iter().find_map(|note| match &note.fact {
            Fact::Unreadable(text) => Some(text.clone()),
            Fact::Text(_) | Fact::OutOfReach(_) => None,
        })
    }

    /// The amounts to change the pod to now, and the reason. None if nothing changes. If the whole change would restart a
    /// container, these are the amounts of the part that restarts none.
    pub fn change(&self) -> Option<(Reason, &PodAmounts)> {
        match &self.without_restart {
            Some((reason, amounts)) => Some((*reason, amounts)),
            None => (self.action() == Action::Resize).then_some((self.reason, &self.amounts)),
        }
    }
}

/// Decides about all pods, in their order, without knowledge of earlier decisions.
pub fn decide(pods: &[impl Borrow<Pod>], index: &Index<'_>, now: Timestamp, options: &Options) -> Vec<PodDecision> {
    pods.iter()
        .map(|pod| decide_pod(pod.borrow(), index, now, options, EarlierDecisions::default()))
        .collect()
}

/// Decides about one pod with the objects of its namespace.
pub fn decide_pod(
    pod: &Pod,
    index: &Index<'_>,
    now: Timestamp,
    options: &Options,
    known: EarlierDecisions<'_>,
) -> PodDecision {
    let mut decision = PodDecision::new(pod, Reason::NoVpa);
    let findings = pod
        .running_containers()
        .flat_map(|container| findings(container, pod.spec.resources));
    decision.notes.extend(findings.map(Note::out_of_reach));
    let candidates = pod.running_containers();
    let applied = known.applied.and_then(|applied| applied.pod.as_deref());
    let pod_level = pod.resizable_pod_level().map(|spec| *applied.unwrap_or(&spec));
    let case = Case {
        pod,
        now,
        options,
        known,
        candidates: candidates.map(|one| Candidate::new(pod, one, known.applied)).collect(),
        pod_level,
        vpa: None,
        decision,
    };
    case.decide(index)
}
