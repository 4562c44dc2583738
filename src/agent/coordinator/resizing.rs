//! Pods whose kubelet resizes in place: their spec at the API server is the truth, and the kubelet's word about it is news.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Coordinator;
use super::room::{account, takes};
use crate::actuate::{Asked, Node, PodResizer, ThroughApi, Unreported};
use crate::agent::entry::{Entry, FIRST_RETRY};
use crate::model::objects::Pod;
use crate::model::{Cause, KubeletVersion, MemoryLimit, NamedRequirements, Resource, Target, Withheld};
use crate::plan::resize::{self, NodeSupport, Phase, Support};
use crate::plan::shrink::lift_kept;
use crate::plan::{Account, Capacity, Room, larger, pod_requests};
use crate::sources::NodeView;

/// A limit that was not grown for so long is not being grown: longer than a kubelet takes from being asked to having
/// written (a second, where it is slow), with some to spare.
const CALM: SignedDuration = SignedDuration::from_secs(5);

/// The node's room while passes are handed out, and the way to ask for some.
pub(super) struct Roominess {
    resizer: Option<Arc<dyn PodResizer>>,
    capacity: Option<Capacity>,
    account: Account,
    kubelet: KubeletVersion,
    support: NodeSupport,
}

impl Roominess {
    /// What the node's pods take now, those included for which more was asked and nobody has seen it yet.
    pub(super) fn of(
        entries: &BTreeMap<String, Box<Entry>>,
        view: &NodeView,
        resizer: Option<&Arc<dyn PodResizer>>,
        upgraded: Option<Timestamp>,
        node: &Node,
    ) -> Self {
        let kubelet = node.traits.kubelet;
        let mut roominess = Self {
            resizer: resizer.cloned(),
            capacity: None,
            account: Account::default(),
            kubelet,
            support: NodeSupport::of(
                entries.values().map(|entry| &*entry.pod),
                node.known_kubelet(),
                upgraded,
                Timestamp::now(),
            ),
        };
        if roominess.resizer.is_some() {
            roominess.capacity = Capacity::of(view.node.as_ref());
            roominess.account = account(entries.values().map(|entry| &**entry), true, kubelet);
        }
        roominess
    }

    /// How a pass for this pod goes through the API server, if it does. What it asks for is taken from now on.
    pub(super) fn through(
        &mut self,
        entry: &Entry,
        targets: &[NamedRequirements],
        cause: &Cause,
    ) -> Option<ThroughApi> {
        let mut resizer = self.resizer.clone()?;
        if let Cause::Operator { .. } | Cause::Released { .. } = cause {
            resizer = resizer.for_operators().unwrap_or(resizer);
        }
        let now = Timestamp::now();
        let unreported = match self.support.for_pod(&entry.pod, now) {
            Support::Never => return None,
            Support::Resizes => None,
            Support::NotReported { why, until } => Some(Unreported {
                why,
                wait: until.and_then(|until| Duration::try_from(until.duration_since(now)).ok()),
            }),
        };
        let own = takes(entry, true, self.kubelet);
        let others = self.account.others(own);
        let after = pod_requests(&entry.pod, targets, self.kubelet);
        let room = self.capacity.map(|capacity| Room { capacity, others });
        if room.is_none_or(|room| resize::check_room(&room, &entry.pod, targets, self.kubelet).is_ok()) {
            self.account.change(own, larger(own, after));
        }
        Some(ThroughApi {
            resizer,
            asked: entry.standing.asked.clone(),
            room,
            failed: match &entry.withheld {
                Some(Withheld::Failed(why)) => Some(why.clone()),
                _ => None,
            },
            urgent: urgent(entry, cause),
            unreported,
            noted: None,
        })
    }
}

/// How long it is still too early to ask: what was lent may be more in a moment, and what hurts is undone first.
fn urgent(entry: &Entry, cause: &Cause) -> Option<Duration> {
    let grown = entry.standing.leases.iter();
    let grown = grown.filter(|lease| lease.resource == Resource::Memory);
    let calm = grown.clone().map(|lease| lease.until(CALM)).max();
    let calm = calm.and_then(|at| Duration::try_from(at.duration_since(Timestamp::now())).ok());
    let grown = grown.map(|lease| (lease.container.as_str(), lease.to));
    let kept = entry.shrinking.holds(Timestamp::now());
    let kept: Vec<_> = kept
        .iter()
        .filter_map(|(target, limit)| match (target, limit) {
            (Target::Container(name), MemoryLimit::Bytes(limit)) => Some((name.as_str(), *limit)),
            _ => None,
        })
        .collect();
    let ahead = is_about_to_lower(&entry.pod, entry.standing.asked.as_ref(), grown.chain(kept));
    let since = entry.work.accepted_at.map(|at| at.elapsed());
    match cause {
        Cause::Regret { .. } => Some(if ahead { Duration::ZERO } else { FIRST_RETRY }),
        _ => too_early(calm.unwrap_or_default(), ahead, since),
    }
}

/// How long to wait before asking for what was lent: until the limit has not been grown for a while. But where the kubelet
/// is about to write less than that it is asked at once, though not more often than once in [`FIRST_RETRY`].
fn too_early(calm: Duration, about_to_lower: bool, since_accepted: Option<Duration>) -> Option<Duration> {
    let wait = if about_to_lower {
        calm.min(since_accepted.map_or(Duration::ZERO, |since| FIRST_RETRY.saturating_sub(since)))
    } else {
        calm
    };
    (!wait.is_zero()).then_some(wait)
}

/// Whether the kubelet has yet to write what it was asked for, and that is a lower memory limit than one of these.
fn is_about_to_lower<'a>(pod: &Pod, asked: Option<&Asked>, given: impl IntoIterator<Item = (&'a str, u64)>) -> bool {
    let unseen = asked.filter(|asked| pod.metadata.generation < asked.generation);
    let spec = match (unseen, Phase::of(pod)) {
        (Some(asked), _) => asked.targets.clone(),
        (None, Phase::Settled | Phase::Infeasible(_)) => return false,
        (None, _) => pod.requirements(),
    };
    given.into_iter().any(|(name, limit)| {
        let asked = spec.iter().find(|named| named.name == name);
        asked.is_some_and(|named| {
            named
                .resources
                .limits
                .get(Resource::Memory)
                .is_some_and(|asked| asked < limit)
        })
    })
}

impl Coordinator {
    /// How a pass for this pod would go through the API server now, if it would.
    pub(super) fn through_now(&self, entry: &Entry) -> Option<ThroughApi> {
        let node = self.node.as_deref()?;
        let resizer = self.resizer.get();
        Roominess::of(&self.entries, &self.view, resizer, self.resizer.upgraded(), node).through(
            entry,
            &[],
            &Cause::Sweep,
        )
    }

    /// Room has perhaps been made: what was refused is tried at once.
    pub(super) fn try_refused_again(&mut self) {
        if self.resizer.get().is_none() {
            return;
        }
        for entry in self.entries.values_mut().filter(|entry| entry.work.waits_for_room) {
            entry.ask(Cause::Retry, true);
        }
    }
}

impl Entry {
    /// Takes over a newer description of the pod, and asks for a pass when the kubelet has answered in it.
    pub(super) fn describe(&mut self, pod: &Arc<Pod>) {
        let before = std::mem::replace(&mut self.pod, Arc::clone(pod));
        self.standing.settle(pod);
        if self.standing.is_empty() || !resize::supports_in_place_resize(pod) {
            return;
        }
        // Init containers and what the pod has of its own count for the pod's cgroup.
        let news = Phase::of(&before) != Phase::of(pod)
            || before.spec != pod.spec
            || !resize::supports_in_place_resize(&before);
        // What a failed pass asked for and took back comes by again, and is no reason to try at once.
        let takes_its_course = matches!(Phase::of(pod), Phase::Accepted | Phase::InProgress | Phase::Settled);
        let asked = self.standing.asked.as_ref();
        let echo = takes_its_course && asked.is_some_and(|asked| resize::same(&asked.targets, &pod.requirements()));
        if news && !(self.work.backoff.failures() > 0 && echo) {
            // What is held stays so, but another answer may call for something else.
            self.ask(Cause::Kubelet, true);
        }
    }

    /// What the next pass is to see to. Where the kubelet resizes in place, limits that are kept for now although lower
    /// ones are wanted are asked for as well.
    pub(super) fn aims(&self) -> Option<Vec<NamedRequirements>> {
        let mut aims = self.standing.targets(&self.pod)?;
        if resize::supports_in_place_resize(&self.pod) {
            self.lift_what_is_kept(&mut aims);
        }
        Some(aims)
    }

    /// Lays the limits that are kept for now over the lower ones that are wanted.
    pub(in crate::agent) fn lift_what_is_kept(&self, aims: &mut [NamedRequirements]) {
        lift_kept(&self.shrinking.holds(Timestamp::now()), aims);
    }

    /// Where somebody else has changed the spec since it was last asked for anything, what they wrote is the truth: the
    /// recommendation acted on before stands no longer. Returns whether anything is known now that was not.
    pub(super) fn yield_to_spec(&mut self) -> bool {
        // While a pass runs nobody knows yet what it was that it asked for.
        if !resize::supports_in_place_resize(&self.pod) || self.work.running.is_some() {
            return false;
        }
        let known = self.knows_its_request();
        if self.standing.overridden.is_some() {
            return known;
        }
        let (Some(aims), Some(asked)) = (self.aims(), &self.standing.asked) else {
            return known;
        };
        let spec = self.pod.requirements();
        // What was not asked for yet is newer than whatever they wrote.
        let answered = asked.generation < self.pod.metadata.generation && resize::same(&asked.targets, &aims);
        let theirs = answered && !resize::same(&aims, &spec);
        if theirs {
            tracing::info!(pod = %self.pod.full_name(), "somebody else changed the spec: that stands now");
            self.standing.yield_to(spec);
            self.start_over();
            self.ask(Cause::Kubelet, true);
        }
        theirs || known
    }

    /// What the spec says was asked for by this agent or one before, which did not live to see the answer. Returns whether
    /// that is news.
    fn knows_its_request(&mut self) -> bool {
        let standing = &mut self.standing;
        let intention = standing.asking.as_ref();
        let asked = intention.and_then(|intention| intention.carried_out(&self.pod, standing.asked.as_ref()));
        let news = asked.is_some();
        if news {
            standing.asked = asked;
            standing.asking = None;
        }
        news
    }

    /// The pod as the VPA's rules see it: the spec without what an override, a loan or a limit that is kept has changed in
    /// it through the API server.
    pub(super) fn undisturbed(&self) -> Cow<'_, Pod> {
        let standing = &self.standing;
        let asked = |asked: &Asked| resize::same(&asked.targets, &self.pod.requirements());
        let ours = standing.recommended.is_some() && standing.asked.as_ref().is_some_and(asked);
        if standing.origin.is_none() && !ours {
            return Cow::Borrowed(&self.pod);
        }
        let mut pod = Pod::clone(&self.pod);
        for named in standing.base(&self.pod) {
            let containers = pod.spec.containers.iter_mut();
            for container in containers.filter(|container| container.name == named.name) {
                container.resources = named.resources;
            }
        }
        Cow::Owned(pod)
    }
}

#[cfg(test)]
mod tests;
