//! What the guard is told, and what becomes of what it does: loans that stand, are saved, shown and ended.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::Coordinator;
use crate::actuate::{ForeignWriters, Growable, Grown, JobDone};
use crate::agent::entry::Entry;
use crate::agent::metrics::GrowthOutcome;
use crate::agent::standing::Lent;
use crate::guard::lease::{AfterQuiet, Lease};
use crate::guard::ledger::Refusal;
use crate::guard::{Claim, CpuTerms, Guarded, GuardedPod, Report, Terms, Watchlist};
use crate::model::{Bytes, Cause, KubeletVersion, MilliCpu, Outcome, Resource, Stages};
use crate::plan::pod_requests;

impl Coordinator {
    /// Takes in what the guard did or could not do.
    pub(super) fn take_report(&mut self, report: Report) {
        match report {
            Report::Grew { of, to, why, grown } => self.take_growth(&of, to, why, *grown),
            Report::Refused { of, refused, why } => {
                self.metrics.grew(not_grown(refused));
                tracing::warn!(
                    pod = %of.pod, container = of.container, reason = why,
                    "a memory limit is not grown although it will be reached"
                );
                if let Some(entry) = self.guarded(&of) {
                    let reason = format!("container {}: memory limit not grown: {why}", of.container);
                    entry.not_saved.insert(of.container.clone(), why);
                    self.note(&of, None, Outcome::Refused { reason }, Vec::new(), Stages::default());
                }
            }
            Report::Quiet { of, peak } => self.take_quiet(&of, peak),
            Report::Throttled { of, from, to, why } => {
                let cause = cause(&of, Resource::Cpu, Some(why.clone()));
                let lent = |entry: &mut Entry| {
                    entry.standing.remember_origin(&entry.pod);
                    entry.standing.lend(Lent {
                        container: &of.container,
                        resource: Resource::Cpu,
                        from: from.get(),
                        to: to.get(),
                        why,
                        now: Timestamp::now(),
                    });
                };
                self.change_loan(&of, cause, lent);
            }
            Report::Unthrottled { of } => {
                let ended = |entry: &mut Entry| entry.standing.end_lease(&of.container, Resource::Cpu);
                self.change_loan(&of, Cause::LoanEnded, ended);
            }
        }
    }

    fn take_growth(&mut self, of: &Guarded, to: Bytes, why: String, grown: Grown) {
        let applied = grown.outcome == Outcome::Applied;
        self.metrics.grew(if applied {
            GrowthOutcome::Applied
        } else {
            GrowthOutcome::Failed
        });
        let floors = Arc::clone(&self.floors);
        let Some(entry) = self.guarded(of) else {
            tracing::info!(pod = %of.pod, container = of.container, "grown by the guard, and not described any more");
            return;
        };
        if applied && entry.standing.is_set_by_hand(&of.container, Resource::Memory) {
            // An operator was a moment faster.
            floors.replace(&of.pod.uid, &of.container, to, None);
            entry.ask(cause(of, Resource::Memory, Some(why.clone())), true);
        } else if applied {
            let now = Timestamp::now();
            entry.not_saved.remove(&of.container);
            entry.standing.remember_origin(&entry.pod);
            entry.standing.lend(Lent {
                container: &of.container,
                resource: Resource::Memory,
                from: grown.from.unwrap_or_default().get(),
                to: to.get(),
                why: why.clone(),
                now,
            });
            entry.start_over();
            entry.ask(cause(of, Resource::Memory, Some(why.clone())), true);
            self.unsaved = true;
        }
        let stages = Stages {
            write: grown.took,
            verified: grown.took,
            ..Stages::default()
        };
        self.note(of, Some(why), grown.outcome, grown.steps, stages);
    }

    /// Changes what is lent to a container, and has a pass make it so.
    fn change_loan(&mut self, of: &Guarded, cause: Cause, change: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.guarded(of) else { return };
        change(entry);
        entry.start_over();
        entry.ask(cause, true);
        self.unsaved = true;
        self.unwatched = true;
    }

    /// A container that was lent memory needs it no more, or less of it, or still all of it.
    fn take_quiet(&mut self, of: &Guarded, peak: Bytes) {
        let now = Timestamp::now();
        let floors = Arc::clone(&self.floors);
        let Some(entry) = self.guarded(of) else { return };
        let base = entry
            .standing
            .limit_without_loan(&entry.pod, &of.container, Resource::Memory);
        let Some(lease) = entry.standing.lease(&of.container, Resource::Memory) else {
            return;
        };
        let lent = Bytes::new(lease.to);
        let kept = match lease.after_quiet(base.unwrap_or(0), peak.get()) {
            AfterQuiet::Keep => return,
            AfterQuiet::Lower { to } => Some(Bytes::new(to)),
            AfterQuiet::End => None,
        };
        floors.replace(&of.pod.uid, &of.container, lent, kept);
        self.change_loan(of, Cause::LoanEnded, |entry| match kept {
            Some(to) => entry
                .standing
                .lower_lease(&of.container, Resource::Memory, to.get(), now),
            None => entry.standing.end_lease(&of.container, Resource::Memory),
        });
    }

    /// What the recommender has caught up with is lent no more.
    pub(super) fn end_overtaken(entry: &mut Entry, floors: &crate::actuate::Floors) -> bool {
        let ended = entry.standing.end_overtaken(&entry.pod);
        release_floors(floors, entry, &ended);
        for lease in &ended {
            tracing::info!(
                pod = entry.pod.full_name(),
                container = lease.container,
                lent = lease.to,
                "what was lent in an emergency is recommended now"
            );
        }
        !ended.is_empty()
    }

    /// Has the guard watch what may grow now, if that is something else than before.
    pub(super) fn watch_guarded(&mut self) {
        if !std::mem::take(&mut self.unwatched) {
            return;
        }
        let Some(guard) = &self.guard else { return };
        let settings = self.options.guard.filter(|_| !self.options.observe_only);
        let entries = || self.entries.values().map(|entry| &**entry);
        guard.watch(Watchlist {
            node: self.node.clone(),
            pods: settings.map_or_else(Vec::new, |_| entries().filter_map(terms).collect()),
            claims: entries().filter_map(|entry| claim(entry, self.kubelet())).collect(),
            settings: settings.unwrap_or_default(),
        });
    }

    /// How long a container has to be quiet before what it was lent is taken back.
    pub(super) fn quiet(&self) -> SignedDuration {
        let quiet = self.options.guard.unwrap_or_default().quiet;
        SignedDuration::try_from(quiet).unwrap_or(SignedDuration::MAX)
    }

    /// The entry of a pod the guard speaks of, if it is still that pod.
    fn guarded(&mut self, of: &Guarded) -> Option<&mut Entry> {
        let key = format!("{}/{}", of.pod.namespace, of.pod.name);
        let entry = self.entries.get_mut(&key)?;
        let same = entry.live.as_ref().is_some_and(|live| live.id.uid == of.pod.uid);
        same.then_some(entry)
    }

    fn note(
        &mut self,
        of: &Guarded,
        why: Option<String>,
        outcome: Outcome,
        steps: Vec<crate::model::StepRecord>,
        stages: Stages,
    ) {
        let mut done = JobDone {
            outcome,
            steps,
            stages,
            ..JobDone::failed(String::new(), ForeignWriters::default())
        };
        let record = self.history.add(
            Timestamp::now(),
            of.pod.clone(),
            cause(of, Resource::Memory, why),
            &mut done,
            None,
        );
        // Why a pass failed stays the pod's reason until a pass says otherwise.
        if let Some(entry) = self.guarded(of).filter(|entry| entry.work.backoff.failures() == 0) {
            entry.last = Some(record);
        }
    }
}

fn cause(of: &Guarded, resource: Resource, why: Option<String>) -> Cause {
    Cause::Guard {
        container: of.container.clone(),
        resource,
        why,
    }
}

const fn not_grown(refusal: Option<Refusal>) -> GrowthOutcome {
    match refusal {
        Some(Refusal::Ceiling { .. } | Refusal::Pod { .. }) => GrowthOutcome::Ceiling,
        Some(Refusal::Node { .. }) => GrowthOutcome::Node,
        Some(Refusal::PodBudget { .. }) => GrowthOutcome::PodBudget,
        Some(Refusal::NodeBudget { .. }) => GrowthOutcome::NodeBudget,
        None => GrowthOutcome::Failed,
    }
}

/// What of a pod may grow. What an operator has set is the operator's. What was lent and nobody lets grow any more is
/// followed until it is taken back, and goes no higher.
fn terms(entry: &Entry) -> Option<GuardedPod> {
    let live = entry.live.clone()?;
    let targets = entry
        .standing
        .targets(&entry.pod)
        .unwrap_or_else(|| entry.pod.requirements());
    let (ceilings, now) = (&entry.decision.ceilings, Timestamp::now());
    let containers: Vec<Terms> = live
        .containers
        .keys()
        .map(|name| {
            let ceiling = ceilings.iter().find(|ceiling| ceiling.container == *name);
            let lent = |resource| entry.standing.lease(name, resource).map(|lease| lease.to);
            let highest = |resource| {
                let decided = ceiling.and_then(|ceiling| ceiling.limits.get(resource));
                let free = !entry.standing.is_set_by_hand(name, resource);
                let decided = decided.filter(|_| entry.may_lend(name, now));
                decided.or_else(|| lent(resource)).filter(|_| free)
            };
            let has = targets.iter().find(|target| target.name == *name);
            let limit = has.and_then(|has| has.resources.limits.cpu);
            Terms {
                container: name.clone(),
                memory: highest(Resource::Memory).map(Bytes::new),
                cpu: limit.zip(highest(Resource::Cpu)).map(|(limit, highest)| CpuTerms {
                    limit,
                    ceiling: MilliCpu::new(highest),
                    lent: lent(Resource::Cpu).is_some(),
                }),
            }
        })
        .filter(|terms| terms.memory.is_some() || terms.cpu.is_some())
        .collect();
    let growable = Growable {
        pod: Arc::clone(&entry.pod),
        targets,
    };
    (!containers.is_empty()).then_some(GuardedPod {
        live,
        growable,
        containers,
    })
}

/// What a pod requests.
fn claim(entry: &Entry, kubelet: KubeletVersion) -> Option<Claim> {
    let live = entry.live.as_ref()?;
    let targets = entry.standing.without_loans(&entry.pod);
    let request = pod_requests(&entry.pod, &targets, kubelet).memory.unwrap_or_default();
    (!request.is_zero()).then(|| Claim {
        uid: live.id.uid.clone(),
        path: live.path.clone(),
        request,
    })
}

/// Takes away the floors of loans that have ended, unless they were grown again meanwhile.
pub(super) fn release_floors<'a>(
    floors: &crate::actuate::Floors,
    entry: &Entry,
    ended: impl IntoIterator<Item = &'a Lease>,
) {
    let Some(live) = &entry.live else { return };
    for lease in ended.into_iter().filter(|lease| lease.resource == Resource::Memory) {
        floors.replace(&live.id.uid, &lease.container, Bytes::new(lease.to), None);
    }
}

/// Raises the floors that an earlier agent's loans were.
pub(super) fn raise_floors(floors: &crate::actuate::Floors, uid: &str, leases: &[Lease]) {
    for lease in leases.iter().filter(|lease| lease.resource == Resource::Memory) {
        floors.raise(uid, &lease.container, Bytes::new(lease.to));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::decide::PodDecision;
    use crate::model::objects::PodId;
    use crate::model::{CgroupPath, LivePod};
    use crate::sources::parse_manifests;

    #[test]
    fn a_pod_claims_all_that_it_requests() {
        let pod = "
kind: Pod
metadata: {name: web, uid: u}
spec:
  overhead: {memory: 16Mi}
  initContainers:
  - {name: mesh, restartPolicy: Always, resources: {requests: {memory: 32Mi}}}
  - {name: setup, resources: {requests: {memory: 200Mi}}}
  containers:
  - {name: app, resources: {requests: {memory: 64Mi}}}
";
        let view = parse_manifests("test", pod).unwrap().view;
        let pod = Arc::clone(&view.pods[0]);
        let decision = PodDecision::undecided(&pod);
        let mut entry = Entry::new(pod, decision);
        entry.live = Some(Arc::new(LivePod {
            id: PodId {
                uid: "u".to_owned(),
                namespace: "default".to_owned(),
                name: "web".to_owned(),
            },
            path: CgroupPath::new("/kubepods/podu").unwrap(),
            containers: BTreeMap::new(),
        }));
        let claimed = claim(&entry, KubeletVersion::NEWEST).unwrap().request;
        assert_eq!(claimed, Bytes::new((32 + 200 + 16) << 20));
    }
}
