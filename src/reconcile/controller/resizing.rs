//! The API server's `resize` subresource, which is not used for a while after the API server said that it does not serve it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::actuate::PodResizer;
use crate::model::{Cause, NamedRequirements, Withheld};
use crate::plan::resize::{NodeSupport, ResizeFacts, Support};
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::pod::{Now, PodState};

/// The pause after the first such answer. Doubles each time.
const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The subresource, and when the agent may use it.
#[derive(Debug)]
pub(crate) struct ResizeEndpoint {
    /// `None` without an API server.
    resizer: Option<Arc<dyn PodResizer>>,
    /// How many times in a row the API server said that it does not serve the subresource.
    refusals: u32,
    /// The end of the pause.
    pub(super) retry_at: Option<Instant>,
    /// When the kubelet's version last changed.
    pub(super) upgraded: Option<Timestamp>,
}

impl ResizeEndpoint {
    pub(crate) const fn new(resizer: Option<Arc<dyn PodResizer>>) -> Self {
        Self {
            resizer,
            refusals: 0,
            retry_at: None,
            upgraded: None,
        }
    }

    /// The subresource, except in a pause.
    pub(super) const fn get(&self) -> Option<&Arc<dyn PodResizer>> {
        match self.retry_at {
            Some(_) => None,
            None => self.resizer.as_ref(),
        }
    }

    /// Begins a pause, in which passes write values directly.
    pub(super) fn refuse(&mut self) {
        if let Some(wait) = self.refuse_at(Instant::now()) {
            tracing::warn!(asked_again_in = ?wait, "the API server does not resize pods in place: values are written directly");
        }
    }

    /// Begins a pause unless there is one; returns its length.
    fn refuse_at(&mut self, now: Instant) -> Option<Duration> {
        self.get()?;
        let wait = FIRST_WAIT.saturating_mul(1 << self.refusals.min(16)).min(LONGEST_WAIT);
        self.refusals = self.refusals.saturating_add(1);
        self.retry_at = Some(now + wait);
        Some(wait)
    }

    pub(super) const fn accept(&mut self) {
        self.refusals = 0;
    }

    /// Whether a pause has just ended; true once.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        self.retry_at.take_if(|at| *at <= now).is_some()
    }

    /// Ends a pause after the kubelet's version has changed.
    pub(super) fn start_over(&mut self, upgraded: Option<Timestamp>) {
        self.upgraded = upgraded;
        self.refusals = 0;
        self.retry_at = None;
    }

    /// The subresource for a pass with this cause, except in a pause.
    pub(super) fn resizer(&self, cause: &Cause) -> Option<Arc<dyn PodResizer>> {
        let resizer = self.get()?;
        let own = match cause {
            Cause::Operator { .. } | Cause::Released { .. } => resizer.for_operators(),
            _ => None,
        };
        Some(own.unwrap_or_else(|| Arc::clone(resizer)))
    }

    /// The facts about a pod's resize, where a pass goes through the API server. Its targets count as requested from now on.
    pub(super) fn facts(
        &self,
        state: &PodState,
        targets: &[NamedRequirements],
        cause: &Cause,
        support: &NodeSupport,
        capacity: &mut NodeCapacity,
        now: Now,
    ) -> Option<ResizeFacts> {
        let resizer = self.get()?;
        let unreported = match support.for_pod(&state.pod, now.wall) {
            Support::Never => return None,
            Support::Resizes => None,
            Support::NotReported(unreported) => Some(unreported),
        };
        let (room, yields) = capacity.reserve(state, targets);
        Some(ResizeFacts {
            accepted: state.resize.accepted.clone(),
            room,
            yields,
            kubelet: capacity.kubelet,
            failed: match state.drift.resize.pending() {
                Some(Withheld::Failed(why)) => Some(why.clone()),
                _ => None,
            },
            too_early: state.too_early_to_patch(cause, now),
            unreported,
            away: resizer.away(),
            by_hand: state.desired.is_by_hand(),
            ahead: state.resize.written_ahead.is_some(),
            unanswered: state.resize.prepared.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actuate::ResizeError;
    use crate::model::Step;
    use crate::model::objects::Pod;

    #[derive(Debug)]
    struct Way;

    #[tonic::async_trait]
    impl PodResizer for Way {
        async fn resize(&self, _: &Pod, _: &str, _: &[Step]) -> Result<Pod, ResizeError> {
            Err(ResizeError::Gone(String::new()))
        }

        async fn read(&self, _: &Pod) -> Result<Pod, ResizeError> {
            Err(ResizeError::Gone(String::new()))
        }

        fn away(&self) -> Option<String> {
            None
        }
    }

    #[test]
    fn an_api_server_that_does_not_resize_is_asked_again_after_twice_as_long_each_time() {
        let mut now = Instant::now();
        let mut endpoint = ResizeEndpoint::new(Some(Arc::new(Way)));
        for seconds in [10, 20, 40] {
            let wait = Duration::from_secs(seconds);
            assert_eq!(endpoint.refuse_at(now), Some(wait));
            assert_eq!(
                endpoint.refuse_at(now),
                None,
                "a pass that was under way says nothing new"
            );
            assert!(endpoint.get().is_none() && !endpoint.take_due(now));
            now += wait;
            assert!(endpoint.take_due(now) && endpoint.get().is_some());
        }
        endpoint.accept();
        assert_eq!(endpoint.refuse_at(now), Some(FIRST_WAIT));
        endpoint.start_over(None);
        assert!(endpoint.get().is_some());
        for _ in 0..40 {
            endpoint.refuse_at(now);
            endpoint.retry_at = None;
        }
        assert_eq!(endpoint.refuse_at(now), Some(LONGEST_WAIT));
    }
}
