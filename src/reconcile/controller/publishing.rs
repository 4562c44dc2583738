//! How pods are doing, for the metrics, the annotations and whoever asks.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Controller;
use crate::kubernetes::Annotations;
use crate::model::objects::annotation::{self, UPDATED};
use crate::plan::resize;
use crate::reconcile::annotations::{Annotator, applied_text, ended_boosts, pod_ref};
use crate::reconcile::history::History;
use crate::reconcile::metrics::{Metrics, ProblemKind};
use crate::reconcile::pod::{PodState, ends_recommendation};
use crate::reconcile::worth::Worth;

/// Everything is counted at most this often.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// The one problem that the configuration asks for.
pub(crate) const OBSERVING: &str = "observing only: nothing is written";

/// Where it is said how pods are doing.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) metrics: Metrics,
    pub(crate) worth: Worth,
    /// None without an API server.
    pub(crate) annotator: Option<Annotator>,
    /// What hinders watching for kills.
    pub(crate) kill_problems: Vec<watch::Receiver<Vec<String>>>,
    pub(crate) history: History,
    pub(crate) next: Option<Instant>,
}

impl Publisher {
    fn kill_problems(&self) -> impl Iterator<Item = String> {
        self.kill_problems.iter().flat_map(|problems| problems.borrow().clone())
    }

    fn annotator_problems(&self) -> Vec<String> {
        self.annotator.as_ref().map_or_else(Vec::new, Annotator::problems)
    }
}

impl Controller {
    /// Counts how pods are doing and what is degraded, and has pods say what is applied to them, at most once a second.
    pub(super) fn publish(&mut self, now: Instant) {
        if self.publisher.next.is_some_and(|next| now < next) {
            return;
        }
        self.publisher.next = Some(now + COUNT_EVERY);
        let metrics = &self.publisher.metrics;
        metrics.problems(&[
            (
                ProblemKind::Manifests,
                self.sources.problems.len() + self.publisher.annotator_problems().len(),
            ),
            (ProblemKind::Node, self.node.found.problems.len()),
            (ProblemKind::State, self.store.problems().count()),
            (ProblemKind::Kills, self.publisher.kill_problems().count()),
        ]);
        metrics.show(self.pods.values(), Timestamp::now());
        let followed = self.pods.values().filter(|_| !self.options.observe_only);
        self.publisher.worth.show(followed, Timestamp::now());
        self.annotate(Timestamp::now());
    }

    /// Leaves the annotations of every pod that has others than it should. None while nothing is to be written.
    fn annotate(&self, now: Timestamp) {
        let Some(annotator) = self.publisher.annotator.as_ref() else {
            return;
        };
        let pods = self.pods.values().filter(|_| !self.options.observe_only);
        let due = pods.filter_map(|state| Some((pod_ref(&state.pod)?, self.annotations_of(state, now))));
        annotator.annotate(due.filter(|(_, annotations)| !annotations.is_empty()).collect());
    }

    /// The annotations that a pod should have and has not.
    fn annotations_of(&self, state: &PodState, now: Timestamp) -> Annotations {
        let by_kubelet = self.endpoint.get().is_some() && resize::supports_in_place_resize(&state.pod);
        let boosts = ended_boosts(state).filter(|_| by_kubelet).map(|name| (name, None));
        let wanted = applied_text(state, by_kubelet, now).filter(|_| self.options.annotate);
        let has = state.pod.metadata.annotations.get(annotation::APPLIED);
        let wanted = wanted.filter(|wanted| has != wanted.as_ref());
        boosts
            .chain(wanted.map(|wanted| (annotation::APPLIED.to_owned(), wanted)))
            .collect()
    }

    /// What is degraded, one sentence each.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = self.node.found.problems.clone();
        problems.extend(self.sources.problems.iter().cloned());
        problems.extend(self.store.problems());
        problems.extend(self.publisher.history.problem());
        problems.extend(self.publisher.kill_problems());
        problems.extend(self.publisher.annotator_problems());
        problems.extend(self.updater_problems());
        problems.extend(self.pod_level_problems());
        if self.options.observe_only {
            problems.push(OBSERVING.to_owned());
        }
        problems
    }

    /// The VPAs whose pods VPA's own updater resizes as well, one sentence each.
    fn updater_problems(&self) -> Vec<String> {
        let pods = self.pods.values().filter(|state| self.is_updated_by_vpa(state));
        let name = |state: &PodState| {
            let vpa = state.decision.vpa.clone().unwrap_or_default();
            (format!("{}/{vpa}", state.pod.metadata.namespace), state.pod.full_name())
        };
        let vpas: BTreeMap<_, _> = pods.map(name).collect();
        vpas.into_iter()
            .map(|(vpa, pod)| {
                format!(
                    "VPA's updater resizes the pods of VPA {vpa} as well (annotation {UPDATED} on {pod}): let one do it; either stop \
                     the updater, or set the VPA's mode to Off or Initial and annotate it with vscaled.io/act: \"true\""
                )
            })
            .collect()
    }

    /// Whether the updater has resized a pod, and still would by its VPA's mode, as this agent would.
    fn is_updated_by_vpa(&self, state: &PodState) -> bool {
        let updated = state.pod.metadata.annotations.get(UPDATED).map(String::as_str) == Some("true");
        let vpa = self.sources.vpa_of(state);
        updated
            && !ends_recommendation(state.decision.reason)
            && vpa.is_some_and(|vpa| vpa.update_mode().updates_running_pods())
    }
}
