//! Publishes the state of pods: metrics, annotations and problems.

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

/// Metrics and annotations are updated at most this often.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// The one problem that the configuration asks for.
pub(crate) const OBSERVING: &str = "observing only: nothing is written";

/// The metrics, annotations and history that the controller publishes.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) metrics: Metrics,
    pub(crate) worth: Worth,
    /// `None` without an API server.
    pub(crate) annotator: Option<Annotator>,
    /// The problems of the components that watch for kills.
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
    /// Updates metrics and annotations, at most once in [`COUNT_EVERY`].
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

    /// Sends the annotations of every pod that should have others. With observeOnly there are none.
    fn annotate(&self, now: Timestamp) {
        let Some(annotator) = self.publisher.annotator.as_ref() else {
            return;
        };
        let pods = self.pods.values().filter(|_| !self.options.observe_only);
        let due = pods.filter_map(|state| Some((pod_ref(&state.pod)?, self.annotations_of(state, now))));
        annotator.annotate(due.filter(|(_, annotations)| !annotations.is_empty()).collect());
    }

    /// The annotations of a pod that should be changed.
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

    /// Everything that is degraded, one sentence each.
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

    /// Whether VPA's updater has resized a pod that this agent resizes, too, and still does so in its VPA's mode.
    fn is_updated_by_vpa(&self, state: &PodState) -> bool {
        let updated = state.pod.metadata.annotations.get(UPDATED).map(String::as_str) == Some("true");
        let vpa = self.sources.vpa_of(state);
        updated
            && !ends_recommendation(state.decision.reason)
            && vpa.is_some_and(|vpa| vpa.update_mode().updates_running_pods())
    }
}
