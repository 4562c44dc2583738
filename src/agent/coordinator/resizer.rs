//! The way to the `resize` subresource, which is left alone for a while after the API server turned out not to serve it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Coordinator;
use crate::actuate::PodResizer;
use crate::model::Cause;
use crate::plan::resize;

/// How long the API server is left alone after it first says that it does not resize in place. Doubles each time.
const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The way, and when it may be used.
#[derive(Debug)]
pub(super) struct Resizer {
    way: Option<Arc<dyn PodResizer>>,
    /// How often in a row the API server said that it does not resize in place.
    refusals: u32,
    /// When it is asked again, while it is left alone.
    again: Option<Instant>,
    /// When the kubelet was last seen to be of another version than before.
    upgraded: Option<Timestamp>,
}

impl Resizer {
    pub(super) const fn new(way: Option<Arc<dyn PodResizer>>) -> Self {
        Self {
            way,
            refusals: 0,
            again: None,
            upgraded: None,
        }
    }

    pub(super) const fn upgraded(&self) -> Option<Timestamp> {
        self.upgraded
    }

    /// The way, unless it is left alone.
    pub(super) const fn get(&self) -> Option<&Arc<dyn PodResizer>> {
        match self.again {
            Some(_) => None,
            None => self.way.as_ref(),
        }
    }

    /// When the API server is asked again, while it is left alone.
    pub(super) const fn again(&self) -> Option<Instant> {
        self.again
    }

    /// The API server does not resize in place. Returns how long it is left alone, where that is news.
    fn refused(&mut self, now: Instant) -> Option<Duration> {
        self.get()?;
        let wait = FIRST_WAIT.saturating_mul(1 << self.refusals.min(16)).min(LONGEST_WAIT);
        self.refusals = self.refusals.saturating_add(1);
        self.again = Some(now + wait);
        Some(wait)
    }

    /// The API server has accepted a resize.
    pub(super) const fn accepted(&mut self) {
        self.refusals = 0;
    }

    /// Whether it is time to ask again.
    fn is_due(&mut self, now: Instant) -> bool {
        self.again.take_if(|again| *again <= now).is_some()
    }

    /// The cluster is another than before: what the API server said no longer counts.
    pub(super) fn start_over(&mut self, upgraded: Option<Timestamp>) {
        self.refusals = 0;
        self.again = None;
        self.upgraded = upgraded;
    }
}

impl Coordinator {
    /// The API server said that it does not resize in place: values are written directly until it is asked again.
    pub(super) fn resizing_is_unsupported(&mut self) {
        if let Some(wait) = self.resizer.refused(Instant::now()) {
            tracing::warn!(asked_again_in = ?wait, "the API server does not resize pods in place: values are written directly");
        }
    }

    /// Has pods go through the API server again, once it has been left alone for long enough.
    pub(super) fn try_resizer_again(&mut self, now: Instant) {
        if !self.resizer.is_due(now) {
            return;
        }
        for entry in self.entries.values_mut() {
            if !entry.standing.is_empty() && resize::supports_in_place_resize(&entry.pod) {
                entry.ask(Cause::Retry, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actuate::ResizeError;
    use crate::model::Step;
    use crate::model::objects::{Pod, PodId};

    #[derive(Debug)]
    struct Way;

    #[tonic::async_trait]
    impl PodResizer for Way {
        async fn resize(&self, _: &PodId, _: &[Step]) -> Result<Pod, ResizeError> {
            Err(ResizeError::Gone(String::new()))
        }
    }

    #[test]
    fn an_api_server_that_does_not_resize_is_asked_again_after_twice_as_long_each_time() {
        let mut now = Instant::now();
        let mut resizer = Resizer::new(Some(Arc::new(Way)));
        for seconds in [10, 20, 40] {
            let wait = Duration::from_secs(seconds);
            assert_eq!(resizer.refused(now), Some(wait));
            assert_eq!(resizer.refused(now), None, "a pass that was under way says nothing new");
            assert!(resizer.get().is_none() && !resizer.is_due(now));
            now += wait;
            assert!(resizer.is_due(now) && resizer.get().is_some());
        }
        resizer.accepted();
        assert_eq!(resizer.refused(now), Some(FIRST_WAIT));
        resizer.start_over(None);
        assert!(resizer.get().is_some());
        for _ in 0..40 {
            resizer.refused(now);
            resizer.again = None;
        }
        assert_eq!(resizer.refused(now), Some(LONGEST_WAIT));
    }
}
