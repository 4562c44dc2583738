//! The link to the guard: which limits it may grow, and what it reports.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;

use super::Controller;
use crate::actuate::LeastLimits;
use crate::guard::{Guard, GuardEvent, Report, Watchlist};
use crate::reconcile::pod::{PodInput, PodState};

/// The controller's side of the guard.
#[derive(Debug)]
pub(crate) struct GuardLink {
    /// `None` if the guard's thread could not be started.
    pub(crate) guard: Option<Guard>,
    pub(crate) reports: mpsc::UnboundedReceiver<Report>,
    pub(crate) least_limits: Arc<LeastLimits>,
    /// Whether the watched limits have changed since the last watch list.
    pub(crate) stale: bool,
}

impl Controller {
    pub(super) fn take_guard_report(&mut self, report: Report) {
        self.publisher.metrics.reported_by_guard(&report.event);
        match &report.event {
            GuardEvent::Refused { why, .. } => tracing::warn!(
                pod = %report.of.pod, container = report.of.container, reason = why,
                "a memory limit is not grown although it will be reached"
            ),
            GuardEvent::Pressure { limit, lent } => tracing::warn!(
                pod = %report.of.pod, container = report.of.container, %limit, %lent,
                "a memory limit that cannot grow will be reached: evidence is asked for"
            ),
            _ => {}
        }
        let pod = &report.of.pod;
        let key = pod.to_string();
        if self.runs(&key, &pod.uid) {
            self.apply(&key, PodInput::Guard(Box::new(report)));
        } else {
            tracing::info!(%pod, "the guard reports a pod that is not described any more");
        }
    }

    /// Sends the guard a new watch list, if the limits have changed.
    pub(super) fn update_guard(&mut self) {
        if !std::mem::take(&mut self.guard.stale) {
            return;
        }
        let Some(guard) = &self.guard.guard else { return };
        let settings = self.options.guard.filter(|_| !self.options.observe_only);
        let (kubelet, now) = (self.node.kubelet(), Timestamp::now());
        let hooks = |state: &PodState| self.options.hooks.forbidden_by(&state.pod.metadata.namespace).is_none();
        let guarded = |state| PodState::guarded(state, hooks(state), now);
        let guarded = || self.pods.values().filter_map(guarded).collect();
        guard.watch(Watchlist {
            node: self.node.known(),
            pods: settings.map_or_else(Vec::new, |_| guarded()),
            claims: self.pods.values().filter_map(|state| state.claim(kubelet)).collect(),
            settings: settings.unwrap_or_default(),
        });
    }

    /// How long a container has to be quiet before a temporary limit ends.
    pub(super) fn quiet(&self) -> SignedDuration {
        let quiet = self.options.guard.unwrap_or_default().quiet;
        SignedDuration::try_from(quiet).unwrap_or(SignedDuration::MAX)
    }
}
