//! Publishes the state of pods: metrics, annotations and problems.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Controller;
use crate::model::OBSERVING;
use crate::model::objects::annotation::UPDATED;
use crate::observe::metrics::gauge;
use crate::reconcile::annotations::{Annotator, pod_ref, wanted};
use crate::reconcile::history::History;
use crate::reconcile::metrics::Metrics;
use crate::reconcile::pod::{Now, PodState};
use crate::reconcile::savings::Savings;

/// Metrics and annotations are updated at most this often.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// The metrics, annotations and history that the controller publishes.
#[derive(derive_more::Debug)]
pub(crate) struct Publisher {
    pub(crate) metrics: Metrics,
    pub(crate) savings: Savings,
    /// `None` without an API server.
    pub(crate) annotator: Option<Annotator>,
    /// The problems of the components that watch for kills.
    #[debug(skip)]
    pub(crate) kill_problems: Box<dyn Fn() -> Vec<String> + Send + Sync>,
    pub(crate) history: History,
}

impl Controller {
    /// Updates metrics and annotations, at most once in [`COUNT_EVERY`].
    pub(super) fn publish(&mut self, now: Instant) {
        if now < self.next_publication {
            return;
        }
        self.next_publication = now + COUNT_EVERY;
        let metrics = &self.publisher.metrics;
        for (kind, problems) in self.problems_by_kind() {
            let gauges = metrics.problems.get_or_create(&[("with", kind)]);
            gauges.set(gauge(problems.len()));
        }
        metrics.show(self.pods.values(), Timestamp::now());
        let followed = self.pods.values().filter(|_| !self.config.observe_only);
        self.publisher.savings.show(followed.clone(), Timestamp::now());
        // With observeOnly, no pod should have other annotations.
        if let Some(annotator) = &self.publisher.annotator {
            let now = Now::read();
            let support = self.node.known().map(|node| self.node_support(&node, now));
            let by_kubelet = |state: &PodState| {
                if self.endpoint.get().is_none() || state.pod.resizes_in_place() {
                    return Some(self.endpoint.get().is_some());
                }
                // A kubelet that resizes has not reported a new pod's resources yet.
                let may_resize = support.is_none_or(|support| support.may_resize(&state.pod, now.wall));
                (!may_resize).then_some(false)
            };
            let due = followed.filter_map(|state| {
                let annotations = wanted(state, by_kubelet(state), self.config.applied_annotation, now.wall);
                Some((pod_ref(&state.pod)?, annotations)).filter(|(_, annotations)| !annotations.is_empty())
            });
            annotator.annotate(due.collect());
        }
    }

    /// The problems that metrics count.
    fn problems_by_kind(&self) -> [(&'static str, Vec<String>); 4] {
        let annotator = self.publisher.annotator.iter().flat_map(Annotator::problems);
        let mut sources: Vec<_> = self.sources.problems.iter().cloned().chain(annotator).collect();
        let kills = (self.publisher.kill_problems)();
        if let Some(resizer) = &self.endpoint.resizer {
            let told = [&sources[..], &kills].concat();
            sources.extend(resizer.missing_rights(&told));
        }
        [
            ("node", self.node.found.problems.clone()),
            ("manifests", sources),
            ("state", self.store.problems().collect()),
            ("kills", kills),
        ]
    }

    /// Everything that is degraded, one sentence each.
    pub(super) fn problems(&self) -> Vec<String> {
        let kinds = self.problems_by_kind().into_iter();
        let mut problems: Vec<_> = kinds.flat_map(|(_, problems)| problems).collect();
        problems.extend(self.publisher.history.audit.problem());
        problems.extend(self.updater_problems());
        problems.extend(self.pod_level_problems());
        let bursts = self.pods.values().filter_map(|state| state.desired.burst);
        let largest = bursts.max();
        problems.extend(largest.and_then(|burst| self.node.known()?.lacks_burst(burst)));
        problems.extend(self.config.observe_only.then(|| OBSERVING.to_owned()));
        problems
    }

    /// The VPAs whose pods both this agent and VPA's own updater resize, one sentence each.
    fn updater_problems(&self) -> Vec<String> {
        let pods = self.pods.values().filter_map(|state| {
            let vpa = self.sources.vpa_of(state)?;
            let updated = state.pod.metadata.annotations.get(UPDATED);
            let by_both = updated.is_some_and(|updated| updated == "true")
                && !state.decision.reason.ends_recommendation()
                && vpa.update_mode().updates_running_pods();
            by_both.then(|| (vpa.metadata.full_name(), state.pod.full_name()))
        });
        let vpas: BTreeMap<_, _> = pods.collect();
        vpas.into_iter()
            .map(|(vpa, pod)| {
                format!(
                    "VPA's updater resizes the pods of VPA {vpa} as well (annotation {UPDATED} on {pod}): let one do it; either stop \
                     the updater, or set the VPA's mode to Off or Initial and annotate it with vscaled.io/act: \"true\""
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::http::StatusCode;
    use serde_json::json;

    use crate::actuate::PodResizer as _;
    use crate::kubernetes::{ApiClient, ApiResizer};
    use crate::model::objects::Pod;
    use crate::reconcile::controller::tests::controller;

    #[tokio::test]
    async fn a_rule_that_pods_lack_is_told_once() {
        let words = "pods \"web\" is forbidden: User \"vscaled\" cannot patch resource \"pods/resize\"";
        let body = json!({"message": words}).to_string();
        let router = Router::new().fallback(async move || (StatusCode::FORBIDDEN, body.clone()));
        let resizer = ApiResizer::new(ApiClient::to(&router), None);
        for name in ["web", "db"] {
            let pod = json!({"metadata": {"namespace": "shop", "name": name}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            resizer.read(&pod).await.unwrap_err();
        }
        let directory = tempfile::tempdir().unwrap();
        let mut controller = controller(directory.path());
        assert!(controller.problems().is_empty());
        controller.endpoint.resizer = Some(Arc::new(resizer));
        let problems = controller.problems();
        let rule = "{apiGroups: [\"\"], resources: [pods/resize], verbs: [patch]} in namespace shop";
        assert!(problems.len() == 1 && problems[0].ends_with(rule), "{problems:?}");
    }
}
