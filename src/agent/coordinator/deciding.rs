//! From what sources say to what stands.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::Coordinator;
use super::room::Admission;
use crate::actuate::{ForeignWriters, JobDone};
use crate::agent::entry::{Entry, TooMuch};
use crate::agent::inventory::Inventory;
use crate::agent::standing::Recommended;
use crate::decide::{self, PodDecision};
use crate::model::objects::{ObjectMeta, OwnerKind, Pod, VerticalPodAutoscaler};
use crate::model::{Cause, MemoryLimit, NamedRequirements, Reason, Target};
use crate::pace::{place_in, spread_window};
use crate::plan::resize;
use crate::sources::NodeView;

impl Coordinator {
    pub(super) fn take_view(&mut self, view: Arc<NodeView>, problems: Vec<String>) {
        let other_pods = !self.seen_view || self.view.pods != view.pods;
        let other_node = other_pods || self.view.node != view.node;
        self.view = view;
        self.seen_view = true;
        self.source_problems = problems;
        // The kubelet may have been upgraded in place.
        self.take_node(self.node.clone());
        self.decide_all(Timestamp::now());
        self.match_live();
        if other_node {
            self.try_refused_again();
        }
        if other_pods {
            // Manifests may name containers that nobody could name before. A recommendation names none.
            self.ask_refresh();
        }
    }

    /// Decides again once a startup boost is over.
    pub(super) fn end_boosts(&mut self, now: Timestamp) {
        let over = |entry: &Entry| entry.decision.boosts.next_end.is_some_and(|end| end <= now);
        if self.entries.values().any(|entry| over(entry)) {
            self.decide_all(now);
        }
    }

    /// Decides for every pod of the view, and asks for passes where that changes what stands. Pods that left the view are
    /// no longer ours.
    pub(super) fn decide_all(&mut self, now: Timestamp) {
        if !self.seen_view {
            // Nothing said is not the same as nothing wanted.
            return;
        }
        let view = Arc::clone(&self.view);
        let index = decide::Index::new(&view.owners, &view.vpas, &view.limit_ranges, &view.hpas);
        let observe_only = self.options.observe_only;
        let options = decide::Options {
            managers: self.managers(),
            ..self.options.decide.clone()
        };
        let resizes = self.resizer.get().is_some();
        let decided = |pod: &Pod, recommended: Option<&Recommended>| {
            // What is only observed never comes into force.
            let recommended = recommended.filter(|_| !observe_only);
            let in_force = recommended.map(|recommended| &*recommended.targets);
            // Where the kubelet resizes, the spec is what was last asked for, by whomever.
            let spec = (resizes && resize::supports_in_place_resize(pod)).then(|| pod.requirements());
            decide::decide_pod(pod, &index, now, &options, spec.as_deref().or(in_force))
        };
        let mut known = std::mem::take(&mut self.entries);
        let mut yielded = false;
        for (key, pod) in one_of_each_name(&view.pods, &self.inventory) {
            let old = known
                .remove(&key)
                .filter(|entry| entry.pod.cgroup_uid() == pod.cgroup_uid());
            let deciding = std::time::Instant::now();
            let (mut entry, earlier) = match old {
                Some(mut entry) => {
                    // It is saved with what stands for it.
                    self.unsaved |= entry.pod != *pod && !entry.standing.is_empty();
                    entry.describe(pod);
                    yielded |= entry.yield_to_spec();
                    let earlier = entry.decision.reason;
                    entry.decision = decided(&entry.undisturbed(), entry.standing.recommended.as_ref());
                    (entry, Some(earlier))
                }
                None => (Box::new(Entry::new(Arc::clone(pod), decided(pod, None))), None),
            };
            if earlier != Some(entry.decision.reason) {
                self.metrics.decided(&entry.decision);
            }
            entry.decided_in = deciding.elapsed();
            self.entries.insert(key, entry);
        }
        self.follow_all(now, &decided);
        self.unwatched = true;
        self.unsaved |= yielded;
        for (key, entry) in known {
            self.watching.forget(&key);
            if let Some(id) = &entry.last_lived {
                self.floors.forget(&id.uid);
            }
            if !entry.standing.is_empty() {
                tracing::info!(
                    pod = key,
                    "no longer described by any source; its values are left as they are"
                );
            }
        }
    }
}

/// Pods that follow each other share a name, and may be described side by side: the one that lives counts, or else the last.
fn one_of_each_name<'a>(pods: &'a [Arc<Pod>], inventory: &Inventory) -> BTreeMap<String, &'a Arc<Pod>> {
    let mut chosen: BTreeMap<String, &Arc<Pod>> = BTreeMap::new();
    for pod in pods {
        let earlier = chosen.entry(pod.full_name()).or_insert(pod);
        if inventory.find(pod).is_some() || inventory.find(earlier).is_none() {
            *earlier = pod;
        }
    }
    chosen
}

/// What a pod's decision is, given what of it is in force.
type Decided<'a> = &'a dyn Fn(&Pod, Option<&Recommended>) -> PodDecision;

impl Coordinator {
    /// Turns decisions into what stands. What the node has no room for is tried again every time, and at once where others
    /// have come to take less.
    fn follow_all(&mut self, now: Timestamp, decided: Decided<'_>) {
        let view = Arc::clone(&self.view);
        let vpas = view.vpas.as_slice();
        let mut admission = self.admission();
        let mut refused = Vec::new();
        for (key, entry) in &mut self.entries {
            let known = entry.too_much.take().map(|too_much| too_much.targets);
            if follow(entry, &mut admission, &view, now) {
                self.unsaved = true;
                // What is left to decide, for those who ask.
                entry.decision = decided(&entry.undisturbed(), entry.standing.recommended.as_ref());
            }
            self.unsaved |= Self::end_overtaken(entry, &self.floors);
            if entry.too_much.is_some() {
                refused.push((key.clone(), known));
            }
        }
        for (key, known) in refused {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            if admission.made_room() && follow(entry, &mut admission, &view, now) {
                self.unsaved = true;
                entry.decision = decided(&entry.undisturbed(), entry.standing.recommended.as_ref());
            }
            let news = entry
                .too_much
                .as_ref()
                .filter(|much| Some(&much.targets) != known.as_ref());
            if let (Some(much), Some(cause), Some(live)) = (news, cause(entry, vpas), &entry.live) {
                tracing::warn!(pod = key, %cause, "not done: {}", much.why);
                let mut done = JobDone::failed(much.why.clone(), ForeignWriters::default());
                entry.last = Some(self.history.add(now, live.id.clone(), cause, &mut done, None));
            }
        }
    }
}

/// Turns a decision into what stands, if the node has room for that, and asks for a pass if that changed.
fn follow(entry: &mut Entry, admission: &mut Admission, view: &NodeView, now: Timestamp) -> bool {
    let decision = &entry.decision;
    let change = decision.change();
    if change.is_none() && !lets_go(decision.reason) {
        entry.too_much = None;
        return false;
    }
    let (before, took) = (entry.standing.targets(&entry.pod), admission.takes(entry));
    let mut in_force = before.clone().unwrap_or_else(|| entry.pod.requirements());
    entry.lift_what_is_kept(&mut in_force);
    let mut too_much = None;
    if let Some((_, targets)) = change {
        let recommended = Recommended {
            vpa: decision.vpa.clone(),
            at: now,
            targets: targets.to_vec(),
        };
        match admission.check(entry, &recommended) {
            Ok(()) => entry.standing.recommended = Some(recommended),
            Err(full) => {
                too_much = Some(TooMuch {
                    targets: recommended.targets,
                    why: full.to_string(),
                });
            }
        }
    } else {
        entry.standing.let_go();
    }
    entry.too_much = too_much;
    let after = entry.standing.targets(&entry.pod);
    if before == after {
        return false;
    }
    admission.changed(took, entry);
    entry.start_over();
    let lowered = lowered(&in_force, after.as_deref().unwrap_or_default());
    entry.shrinking.put_off(&lowered, now);
    if after.is_some()
        && let Some(cause) = cause(entry, &view.vpas)
    {
        let pod = &entry.pod;
        let delay = place_in(
            spread_window(pods_of(entry, view)),
            &pod.spec.node_name,
            &pod.metadata.uid,
        );
        entry.ask_after(cause, delay);
    }
    true
}

/// The memory limits that come down, and what they come down from.
fn lowered(before: &[NamedRequirements], after: &[NamedRequirements]) -> Vec<(Target, MemoryLimit)> {
    let limit = |named: &NamedRequirements| {
        let limit = named.resources.limits.memory;
        limit.map_or(MemoryLimit::Max, |limit| MemoryLimit::Bytes(limit.get()))
    };
    let lowered = after.iter().filter_map(|after| {
        let before = limit(before.iter().find(|before| before.name == after.name)?);
        (limit(after) < before).then(|| (Target::Container(after.name.clone()), before))
    });
    lowered.collect()
}

/// How many pods of the cluster the recommendation is about: what their workload is to have.
fn pods_of(entry: &Entry, view: &NodeView) -> u64 {
    let namespace = &entry.pod.metadata.namespace;
    let is_it = |metadata: &ObjectMeta, name: &str| metadata.name == name && metadata.namespace == *namespace;
    let vpa = entry.decision.vpa.as_deref();
    let vpa = vpa.and_then(|name| view.vpas.iter().find(|vpa| is_it(&vpa.metadata, name)));
    let Some(target) = vpa.and_then(|vpa| vpa.spec.target_ref.as_ref()) else {
        return 0;
    };
    let kind = OwnerKind::named(&target.kind);
    let mut owners = view.owners.iter();
    let owner = owners.find(|owner| Some(owner.kind) == kind && is_it(&owner.metadata, &target.name));
    owner.map_or(0, |owner| owner.pods)
}

/// What is behind a decision, as the cause of what follows.
fn cause(entry: &Entry, vpas: &[VerticalPodAutoscaler]) -> Option<Cause> {
    let vpa = entry.decision.vpa.clone()?;
    if entry.decision.reason == Reason::StartupBoostEnded {
        return Some(Cause::BoostEnded { vpa });
    }
    let namespace = &entry.pod.metadata.namespace;
    let found = vpas
        .iter()
        .find(|other| other.metadata.name == vpa && other.metadata.namespace == *namespace);
    let resource_version = found
        .map(|vpa| vpa.metadata.resource_version.clone())
        .unwrap_or_default();
    Some(Cause::Recommendation {
        vpa,
        resource_version,
        reason: entry
            .decision
            .change()
            .map_or(entry.decision.reason, |(reason, _)| reason),
    })
}

/// Whether a decision ends what an earlier recommendation left standing: nobody asks for these values any more.
pub(super) const fn lets_go(reason: Reason) -> bool {
    matches!(reason, Reason::NoVpa | Reason::NotActedOn | Reason::Ignored)
}
