//! A changed recommendation goes to a share of a workload's pods first, and to the rest after a time without trouble.
//!
//! Every node decides alone. A hash of the pod's UID and the VPA's decides whether the pod goes first. Every other pod waits
//! from the moment at which its change becomes due. The wait begins again when the change moves by the update threshold, and
//! when a pod of this node that goes first is in trouble. A node without such a pod sees no trouble: there the time passes,
//! unless the recommender moves its recommendation after a kill.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Note;
use super::case::Case;
use super::trigger::relative_difference;
use crate::model::objects::annotation::{CANARY, CANARY_BAKE};
use crate::model::objects::{Pod, VerticalPodAutoscaler};
use crate::model::{CpuBurst, PodAmounts, Reason, Resource, percent};

/// How long pods wait if the VPA has no annotation for it.
const BAKE: SignedDuration = SignedDuration::from_mins(30);
const SHORTEST: SignedDuration = SignedDuration::from_mins(1);
const LONGEST: SignedDuration = SignedDuration::from_hours(168);

/// The part of a VPA's pods that a pod belongs to, and the change that it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Canary {
    /// Changed recommendations go to this pod first.
    pub goes_first: bool,
    /// The change that the pod waits for, or has waited for and does not have yet.
    pub waits: Option<CanaryWait>,
    /// When the pod gets that change, unless there is trouble.
    pub until: Option<Timestamp>,
    /// Whether the agent only observes. The state file has no such wait: the agent does not make the change.
    pub is_observed: bool,
}

/// A change that other pods have first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanaryWait {
    /// Since when no pod has been in trouble with the change.
    pub since: Timestamp,
    /// The targets of the pod when the wait began.
    pub targets: PodAmounts,
}

/// The facts that the agent keeps of earlier decisions about a pod.
#[derive(Debug, Clone, Copy, Default)]
pub struct EarlierDecisions<'a> {
    /// The amounts that the agent applied, if no status has them. A container that is absent here has the amounts
    /// of its status or spec.
    pub applied: Option<&'a PodAmounts>,
    /// The change that the pod waits for.
    pub waits: Option<&'a CanaryWait>,
    /// When a pod of the VPA that goes first was in trouble for the last time.
    pub trouble: Option<Timestamp>,
    /// When this pod was in trouble for the last time, in ways that its status does not show.
    pub own_trouble: Option<Timestamp>,
    /// Whether another client requested the amounts of the pod's spec.
    pub others_request: bool,
    /// The burst that the pod has by the agent.
    pub burst: Option<CpuBurst>,
}

/// The canary annotations of a VPA.
#[derive(Debug, Clone, Copy)]
struct CanaryPolicy {
    percent: u8,
    bake: SignedDuration,
}

impl CanaryPolicy {
    /// Errors: the annotation that is malformed.
    fn of(vpa: &VerticalPodAutoscaler) -> Result<Option<Self>, Note> {
        let annotations = &vpa.metadata.annotations;
        let Some(share) = annotations.get(CANARY) else {
            return Ok(None);
        };
        let percent = percent(share)
            .filter(|percent| *percent > 0)
            .ok_or_else(|| Note::unreadable(vpa, CANARY, share, "1% to 100%"))?;
        let bake = annotations.get(CANARY_BAKE).map_or(Ok(BAKE), |bake| {
            let read = bake.parse().ok().filter(|bake| (SHORTEST..=LONGEST).contains(bake));
            read.ok_or_else(|| Note::unreadable(vpa, CANARY_BAKE, bake, &format!("{SHORTEST:#} to {LONGEST:#}")))
        })?;
        Ok(Some(Self { percent, bake }))
    }

    /// Whether changes go to this pod first. The answer is the same on every node, and stays the same for a larger share.
    fn lets_go_first(&self, pod: &Pod, vpa: &VerticalPodAutoscaler) -> bool {
        let mut hash = crc32fast::Hasher::new();
        for metadata in [&vpa.metadata, &pod.metadata] {
            let mut ids = [&metadata.uid, &metadata.name].into_iter();
            hash.update(ids.find(|id| !id.is_empty()).map_or(&[][..], |id| id.as_bytes()));
        }
        (u64::from(hash.finalize()) * 100) >> 32 < self.percent.into()
    }
}

impl Canary {
    /// Finds out whether the pod goes first.
    pub(super) fn of(pod: &Pod, vpa: &VerticalPodAutoscaler, notes: &mut Vec<Note>) -> Self {
        let policy = CanaryPolicy::of(vpa).unwrap_or_else(|malformed| {
            notes.push(malformed);
            None
        });
        let first = policy.filter(|policy| policy.lets_go_first(pod, vpa));
        notes.extend(first.map(|CanaryPolicy { percent, .. }| {
            let text =
                format!("this pod is among the {percent}% of the VPA's pods that get changed recommendations first");
            Note::new(None, None, text)
        }));
        Self {
            goes_first: first.is_some(),
            ..Self::default()
        }
    }
}

impl Case<'_> {
    /// Lets a due change to these amounts pass, or makes the pod wait. A pod whose container was just killed does not wait.
    ///
    /// Errors: the reason why the pod waits, or the reason that an annotation of the VPA is malformed.
    pub(super) fn admit(
        &mut self,
        vpa: &VerticalPodAutoscaler,
        due: Reason,
        targets: &PodAmounts,
    ) -> Result<(), Reason> {
        if due == Reason::QuickOOM {
            return Ok(());
        }
        self.wanted_burst(vpa).map_err(|_| Reason::BurstUnreadable)?;
        let (now, known, canary) = (self.now, &self.known, &mut self.decision.canary);
        if canary.goes_first {
            return Ok(());
        }
        let Some(policy) = CanaryPolicy::of(vpa).map_err(|_| Reason::CanaryUnreadable)? else {
            return Ok(());
        };
        let threshold = self.options.update_threshold;
        let before = known.waits.filter(|waits| !differ(&waits.targets, targets, threshold));
        let since = before.map_or(now, |waits| waits.since.min(now));
        // A time in the future is that of a clock that was set back.
        let trouble = known.trouble.filter(|trouble| *trouble <= now);
        let since = trouble.map_or(since, |trouble| since.max(trouble));
        let targets = before.map_or(targets, |waits| &waits.targets).clone();
        canary.waits = Some(CanaryWait { since, targets });
        let until = since.checked_add(policy.bake).unwrap_or(Timestamp::MAX);
        if until <= now {
            return Ok(());
        }
        canary.until = Some(until);
        let text = format!(
            "{}% of the VPA's pods get the change first; this one gets it at {until:.0}, if none of them on this node is in \
             trouble until then (none has been since {since:.0})",
            policy.percent
        );
        self.decision.notes.push(Note::new(None, None, text));
        Err(Reason::CanaryFirst)
    }
}

/// Whether the sums of requests differ by the threshold. Like upstream, adds the differences of both resources.
fn differ(before: &PodAmounts, after: &PodAmounts, threshold: f64) -> bool {
    let sum = |all: &PodAmounts, resource| -> u128 {
        let requests = all.iter().map(|(_, has)| has.requests.amount(resource));
        requests.map(u128::from).sum()
    };
    let differences = Resource::ALL.map(|resource| relative_difference(sum(before, resource), sum(after, resource)));
    differences.into_iter().sum::<f64>() >= threshold
}
