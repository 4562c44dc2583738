//! Decisions about whole pods: what upstream's rules leave open, and properties of all decisions. The rules themselves
//! are tested by upstream's own cases, in `tests/it/decisions.rs`.

mod arbitrary;
mod assigned;
mod boost;
mod canary;
mod fixed_heap;
mod growth;
mod limits;
mod matching;
mod non_interference;
mod pod_level;
mod pod_limit_range;
mod properties;
mod record;
mod rules;
mod sidecars;

use std::sync::Arc;

use jiff::Timestamp;

use super::{EarlierDecisions, Index, Options, PodDecision, decide};
use crate::model::objects::Pod;
use crate::model::{NamedRequirements, PodAmounts, Requirements, Resource};
use crate::sources::{KnownObjects, parse_manifests};

/// The time of all decisions here.
const NOW: &str = "2026-03-01T12:00:00Z";

/// A workload with one pod, and a VPA that targets it. The pod is an hour old, its requests are below their range.
const WEB: &str = "
kind: StatefulSet
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}}
---
kind: VerticalPodAutoscaler
metadata: {name: web}
spec:
  targetRef: {kind: StatefulSet, name: web}
status:
  recommendation:
    containerRecommendations:
    - containerName: app
      target: {cpu: 200m, memory: 200Mi}
      lowerBound: {cpu: 150m, memory: 150Mi}
      upperBound: {cpu: 400m, memory: 400Mi}
---
kind: Pod
metadata:
  name: web-0
  labels: {app: web}
  ownerReferences: [{kind: StatefulSet, name: web, controller: true}]
spec:
  nodeName: here
  containers:
  - name: app
    resources: {requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 300m, memory: 300Mi}}
status: {phase: Running, qosClass: Burstable, startTime: '2026-03-01T11:00:00Z'}
";

impl<'a> From<Option<&'a PodAmounts>> for EarlierDecisions<'a> {
    fn from(applied: Option<&'a PodAmounts>) -> Self {
        Self {
            applied,
            ..Self::default()
        }
    }
}

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn view(manifests: &str) -> KnownObjects {
    parse_manifests("test", manifests).unwrap().view
}

/// The first pod, to be changed.
fn pod_of(view: &mut KnownObjects) -> &mut Pod {
    Arc::make_mut(&mut view.pods[0])
}

/// [`WEB`] with further documents.
fn web_and(documents: &str) -> KnownObjects {
    view(&format!("{WEB}---\n{documents}"))
}

fn decide_all(view: &KnownObjects) -> Vec<PodDecision> {
    decide(&view.pods, &index(view), now(), &Options::default())
}

/// The decision about the only pod.
fn decide_one(view: &KnownObjects) -> PodDecision {
    let mut decisions = decide_all(view);
    assert_eq!(decisions.len(), 1);
    decisions.remove(0)
}

fn index(view: &KnownObjects) -> Index<'_> {
    Index::new([view])
}

/// `request/limit`, `-` where unset.
fn amounts(has: &Requirements, resource: Resource) -> String {
    let text = |list: crate::model::ResourceList| list.text(resource).unwrap_or_else(|| "-".to_owned());
    format!("{}/{}", text(has.requests), text(has.limits))
}

fn cpu(decision: &PodDecision, container: &str) -> String {
    amounts(decision.amounts.container(container).unwrap(), Resource::Cpu)
}

fn memory(decision: &PodDecision, container: &str) -> String {
    amounts(decision.amounts.container(container).unwrap(), Resource::Memory)
}

fn notes(decision: &PodDecision) -> Vec<String> {
    decision.notes.iter().map(ToString::to_string).collect()
}
